// Where no token reaches: seams of two characters, neither of them ASCII, that no token of the vocabulary has side by side
// (merges.py, lemma D). A piece is cut there before anything else is done with it; the tokens of its parts are its own.
// Chinese without spaces becomes pieces of a few characters that way, most of them tokens.
#pragma once
#include "vocabulary.cuh"

// Whether some token has a part of a character that ends with the one byte before one that begins with the other.
HD bool token_has_bytes(const Tables &t, u32 last, u32 lead) {
    u32 bit = (last & 63) * 64 + (lead & 63);
    return ro(t.adjacent_bytes + (bit >> 5)) >> (bit & 31) & 1;
}
HD u32 first_slot(const Tables &t, u64 key) { return (u32)(key * 0x9E3779B97F4A7C15ull >> (64 - t.bits_adjacent)); }
// Whether no token has the two characters of a seam side by side.
HD bool no_token_across(const Tables &t, u64 key) {
    for (u32 i = first_slot(t, key);; i = (i + 1) & ((1u << t.bits_adjacent) - 1)) {
        u64 held = ro(t.adjacent + i);
        if (held == key) return false;
        if (!held) return true;
    }
}
// Whether a character beyond ASCII may begin behind another one, by the two bytes that meet.
HD bool may_cut(u32 last, u32 lead) { return lead >= 0xc0 && lead != BREAK_BYTE && last >= 0x80 && last != BREAK_BYTE; }
// The two characters that meet before byte `at`, for which `may_cut` holds. The four bytes before it are readable.
HD u64 seam(const u8 *text, u32 at) {
    const u8 *x = text + at;
    u32 a = x[-1] & 63, b = x[-2], c = x[-3], d = x[-4], e = x[0], f = x[1] & 63, g = x[2] & 63, h = x[3] & 63;
    u32 before = b >= 0xc0 ? (b & 31) << 6 | a
                 : c >= 0xc0 ? (c & 15) << 12 | (b & 63) << 6 | a
                             : (d & 7) << 18 | (c & 63) << 12 | (b & 63) << 6 | a;
    u32 own = e < 0xe0 ? (e & 31) << 6 | f : e < 0xf0 ? (e & 15) << 12 | f << 6 | g : (e & 7) << 18 | f << 12 | g << 6 | h;
    return (u64)before << 21 | own;
}
HD bool cut_before(const Tables &t, const u8 *text, u32 at) {
    return !token_has_bytes(t, text[at - 1], text[at]) && no_token_across(t, seam(text, at));
}
// The token that a character in a stretch of `length` bytes is from the beginning on (merges.py, lemma E), or NONE. `at`: its
// first byte, not ASCII; the bytes beside the stretch do not count.
HD u32 early_token(const Tables &t, const u8 *x, u32 length, u32 at) {
    const u64 eight = load_8(x + at - 1);  // the byte before it, and up to five from it on
    auto byte_of = [eight](u32 k) { return (u32)(eight >> 8 * k) & 255; };
    const u32 before = byte_of(0), lead = byte_of(1), size = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (at + size > length) return NONE;
    if (at && (before < 0x80 || token_has_bytes(t, before, lead))) return NONE;
    const u32 last = byte_of(size), next = byte_of(size + 1);
    if (at + size < length && (next < 0xc0 || token_has_bytes(t, last, next))) return NONE;
    const u32 id = probe_8(t, first_bytes(eight >> 8, size), size);
    return id != NONE && !(id & PIECES_ONLY) && ro(t.characters + (id >> 5)) >> (id & 31) & 1 ? id : NONE;
}

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
// Whether a character beyond ASCII may begin behind another one, by the two bytes that meet.
HD bool may_cut(u32 last, u32 lead) { return lead >= 0xc0 && lead != BREAK_BYTE && last >= 0x80 && last != BREAK_BYTE; }
// Five bytes around a place: two before it and two from it on, and the third. Two before and six behind it are readable.
struct Around {
    u32 four, third;
    HD u32 last() const { return four >> 8 & 255; }
    HD u32 lead() const { return four >> 16 & 255; }
};
HD Around around_of(const u8 *text, u32 at) {
#ifdef __CUDA_ARCH__
    const size_t from = (size_t)text + at - 2;  // in two words
    const u32 *word = (const u32 *)(from & ~(size_t)3), shift = 8 * (from & 3);
    return Around{__funnelshift_r(word[0], word[1], shift), word[1] >> shift & 255};
#else
    u32 four;
    __builtin_memcpy(&four, text + at - 2, 4);
    return Around{four, text[at + 2]};
#endif
}
// The bits of a seam in its word of the filter, a Bloom filter of two bits a word (adjacency.py). A seam that is taken for one that
// it is not is not cut, which changes no token.
HD u32 seam_hash(const Around &seam) {  // of two bytes of the first character and up to three of the second
    u32 h = seam.four * 0x9E3779B1u + (seam.lead() < 0xe0 ? 0 : seam.third) * 0x85EBCA6Bu;
    h = (h ^ h >> 16) * 0x2C1B3C6Du;
    return h ^ h >> 15;
}
HD u32 filter_word(const Tables &t, u32 hash) { return hash >> (32 - t.bits_adjacent); }
HD u32 filter_bits(u32 hash) { return 1u << (hash & 31) | 1u << (hash >> 5 & 31); }
// Whether no token has the two characters side by side that meet before `at`, for which `may_cut` holds.
HD bool cut_before(const Tables &t, const u8 *text, u32 at) {
    const Around seam = around_of(text, at);
    const u32 hash = seam_hash(seam), bits = filter_bits(hash);
    return !token_has_bytes(t, seam.last(), seam.lead()) && (ro(t.adjacent + filter_word(t, hash)) & bits) != bits;
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

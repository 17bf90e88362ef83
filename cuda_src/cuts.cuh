// Where no token reaches: seams of two characters, neither of them ASCII, that no token of the vocabulary has side by side
// (merges.py, lemma D). A piece is cut there before anything else is done with it; the tokens of its parts are its own.
// Chinese without spaces becomes pieces of a few characters that way, most of them tokens.
#pragma once
#include "vocabulary.cuh"

HD bool no_token_across(const Tables &t, u32 first, u32 second, u32 last_byte, u32 lead_byte) {
    u32 bit = (last_byte & 63) * 64 + (lead_byte & 63);
    if (ro(t.adjacent_bytes + (bit >> 5)) >> (bit & 31) & 1) return false;
    u64 key = (u64)first << 21 | second;
    for (u32 i = (u32)(key * 0x9E3779B97F4A7C15ull >> (64 - t.bits_adjacent));; i = (i + 1) & ((1u << t.bits_adjacent) - 1)) {
        u64 held = ro(t.adjacent + i);
        if (held == key) return false;
        if (!held) return true;
    }
}
HD u32 decoded(const u8 *x) {
    u32 b = ro(x);
    if (b < 0x80 || b == BREAK_BYTE) return 0;
    u32 c = ro(x + 1) & 63;
    if (b < 0xe0) return (b & 31) << 6 | c;
    c = c << 6 | (ro(x + 2) & 63);
    return b < 0xf0 ? (b & 15) << 12 | c : (b & 7) << 18 | c << 6 | (ro(x + 3) & 63);
}
// Whether such a seam is before byte `at`.
HD bool cut_before(const Tables &t, const u8 *text, u32 at) {
    u32 lead = ro(text + at);
    if (lead < 0xc0 || lead == BREAK_BYTE || !at) return false;
    u32 last = ro(text + at - 1), back = at - 1;
    if (last < 0x80 || last == BREAK_BYTE) return false;
    while ((ro(text + back) & 0xc0) == 0x80) back--;
    return no_token_across(t, decoded(text + back), decoded(text + at), last, lead);
}

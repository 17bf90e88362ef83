// Where pieces begin: a bit per byte of the text. The two words before a tile of the pre-tokenizer have late bits beside.
#pragma once
#include "base.cuh"

struct Marks {
    u32 *mask;
    const u64 *late;  // per tile of the pre-tokenizer, and one more: bits of the 64 bytes before it
    const u32 *any;   // per tile: whether a piece begins in it, late bits apart
    u32 shift;        // log2 of the words of such a tile
};
HD u32 marks_at(const Marks &m, u32 word) {
    u32 bits = m.mask[word], tile = (word >> m.shift) + 1, before = (tile << m.shift) - word;
    if (before == 1) bits |= (u32)(m.late[tile] >> 32);
    if (before == 2) bits |= (u32)m.late[tile];
    return bits;
}
// The first piece that begins at `word` or behind it, below n; n if there is none. Device: see search.cuh.
HD u32 next_mark(const Marks &m, u32 word, u32 n) {
    for (; word * 32ull < n; word++)
        if (u32 bits = marks_at(m, word)) return word * 32 + lowest(bits);
    return n;
}

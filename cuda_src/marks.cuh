// Where pieces begin: a bit per byte of the text. The two words before a tile of the pre-tokenizer have late bits beside.
#pragma once
#include "base.cuh"

struct Marks {
    u32 *mask;
    const u64 *late;  // per tile of the pre-tokenizer, and one more: bits of the 64 bytes before it
    const u32 *any;   // per tile: whether a piece begins in it, late bits apart
    const u32 *cuts;  // where pieces are cut for good (cuts.cuh)
    u32 shift;        // log2 of the words of such a tile
};
// Of pieces proper.
HD u32 starts_at(const Marks &m, u32 word) {
    u32 bits = m.mask[word], tile = (word >> m.shift) + 1, before = (tile << m.shift) - word;
    if (before == 1) bits |= (u32)(m.late[tile] >> 32);
    if (before == 2) bits |= (u32)m.late[tile];
    return bits;
}
HD u32 marks_at(const Marks &m, u32 word) { return starts_at(m, word) | m.cuts[word]; }
// Whether [begin, end) is a part of a piece only. Its ends are marks, or n.
HD bool is_part(const Marks &m, u32 begin, u32 end, u32 n) {
    bool from = starts_at(m, begin >> 5) >> (begin & 31) & 1;
    return !from || (end < n && !(starts_at(m, end >> 5) >> (end & 31) & 1));
}
// The first piece that begins at `word` or behind it, below n; n if there is none. Device: see search.cuh.
HD u32 next_mark(const Marks &m, u32 word, u32 n) {
    for (; word * 32ull < n; word++)
        if (u32 bits = marks_at(m, word)) return word * 32 + lowest(bits);
    return n;
}

// From bytes to classes, and the places where pieces are cut.
#pragma once
#include "cuts.cuh"
#include "tile.cuh"

// The class of a character beyond ASCII. Its first four bytes, some of which may be of what follows it.
HD u32 class_of(const Tables &t, u32 x) {
    const u32 b = x & 255, b1 = x >> 8 & 63, b2 = x >> 16 & 63, b3 = x >> 24 & 63;
    const u32 point = b < 0xe0 ? (b & 31) << 6 | b1 : b < 0xf0 ? (b & 15) << 12 | b1 << 6 | b2 : (b & 7) << 18 | b1 << 12 | b2 << 6 | b3;
    return ro(t.page_classes + ro(t.pages + (point >> 7)) * 128 + (point & 127));
}
// The same of its first three bytes, out of shared memory for nearly all characters: `blocks` has the class of all 64 that differ
// in their last byte alone, or the number of a row that has one for each; else LOOK.
HD u32 class_in_blocks(const u8 *blocks, u32 x) {
    const u32 b = x & 255, three = b - 0xe0 < 16, last = x >> (three ? 16 : 8) & 63;
    const u32 cls = blocks[three ? 256 + ((b & 15) << 6 | (x >> 8 & 63)) : b];
    return cls - FIRST_ROW < ROWS ? blocks[ROWS_AT + (cls - FIRST_ROW) * 64 + last] : cls;
}
// Per byte its highest bit: whether it begins a character beyond ASCII. Valid UTF-8 but for break bytes.
HD u32 leads_of(u32 w) { return w & w << 1 & ~(w << 2 & w << 3 & w << 4) & 0x80808080u; }

// Bytes to classes: of the character that a byte begins, of a continuation, or of a break. `text` is aligned to 16 bytes and
// readable for 20 bytes behind the end. Bytes [from, to) of the span, multiples of 16. With `CUTS`, put(at, bits) has the places where
// pieces are cut among PART bytes from `at` on (cuts.cuh): both ask for the same bytes. All threads call it at the same time.
template <class T, bool CUTS, class Put>
HD void load_part(T &s, const Tables &t, const u8 *text, long n, long begin, int from, int to, int tid, Put &&put) {
    constexpr int WORDS = T::PART / 4, AT_ONCE = WORDS < 3 ? WORDS : 3;  // so many answers of memory are waited for together
    const u32 other = break_class(t) * 0x01010101u;
    for (int base = from / T::PART; base < to / T::PART; base += T::THREADS) {
        const int v = base + tid;
        const long at = begin - T::LEFT + (long)T::PART * v;
        u32 bits = 0, leads = 0;
        if (v < to / T::PART) {
            u32 out[WORDS];
            for (int k = 0; k < WORDS; k++) out[k] = other;
            if (at >= 0 && at < n) {
                u32 in[WORDS];
#ifdef __CUDA_ARCH__
                if constexpr (WORDS == 4) {
                    const uint4 q = *(const uint4 *)(text + at);
                    in[0] = q.x, in[1] = q.y, in[2] = q.z, in[3] = q.w;
                } else
                    in[0] = *(const u32 *)(text + at);
#else
                __builtin_memcpy(in, text + at, T::PART);
#endif
                UNROLLED for (int k = 0; k < WORDS; k++) {
                    const u32 w = in[k];
                    out[k] = s.blocks[w & 255] | s.blocks[w >> 8 & 255] << 8 | s.blocks[w >> 16 & 255] << 16 | (u32)s.blocks[w >> 24] << 24;
                    if (w & 0x80808080u) leads |= (leads_of(w) * 0x00204081u >> 28) << 4 * k;
                }
                for (int j = 0; j < T::PART && at + T::PART > n; j++)
                    if (at + j >= n) out[j >> 2] = (out[j >> 2] & ~(255u << 8 * (j & 3))) | break_class(t) << 8 * (j & 3);
                if (n - at < T::PART) leads &= (1u << (n - at)) - 1;
            }
            for (int k = 0; k < WORDS; k++) s.classes[T::slot(WORDS * v + k)] = out[k];
        }
        while (leads) {
            u32 place[AT_ONCE], hash[AT_ONCE], held[AT_ONCE];
            UNROLLED for (int k = 0; k < AT_ONCE; k++) {
                place[k] = leads ? lowest(leads) : k ? place[k - 1] : 0;  // the same again, where there are no more
                leads &= leads - 1;
                const Around around = around_of(text, at + place[k]);
                u32 cls = class_in_blocks(s.blocks, around.four >> 16 | around.third << 16);
                if (cls == LOOK) cls = class_of(t, (u32)load_8(text + at + place[k]));
                ((u8 *)&s.classes[T::slot(WORDS * v + (place[k] >> 2))])[place[k] & 3] = (u8)cls;
                hash[k] = seam_hash(around);
                held[k] = NONE;
                if (CUTS && may_cut(around.last(), around.lead()) && at + place[k] && !token_has_bytes(t, around.last(), around.lead()))
                    held[k] = ro(t.adjacent + filter_word(t, hash[k]));
            }
            UNROLLED for (int k = 0; k < AT_ONCE; k++)
                if (~held[k] & filter_bits(hash[k])) bits |= 1u << place[k];
        }
        if (CUTS) put(at, bits);
    }
}
template <class T> HD void clear_mask(T &s, int tid) {
    for (int i = T::FAR / 32 + tid; i < T::SPAN / 32; i += T::THREADS) s.mask[i] = 0;
}
// Of the tile, and NEAR bytes before it.
template <class T> HD void load_classes(T &s, const Tables &t, const u8 *text, long n, long begin, int tid) {
    clear_mask(s, tid);
    load_part<T, false>(s, t, text, n, begin, T::FAR, T::SPAN, tid, [](long, u32) {});
}

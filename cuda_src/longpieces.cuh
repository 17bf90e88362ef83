// Long pieces cut into their tokens (windows.cuh), before the vocabulary is asked.
#pragma once
#include "stretches.cuh"

__device__ inline void find_longs(const Tables &t, const Work &w) {
    const u32 n = w.request->n, words = (n + 31) / 32;
    const Marks m = marks_of(w);
    const u32 step = gridDim.x * blockDim.x;
    for (u32 base = (blockIdx.x * blockDim.x + threadIdx.x) & ~31u; base < words; base += step) {
        u32 word = base + lane_id(), begin = 0;
        bool found = word < words && begins_long(m, word, n, begin);
        for (u32 left = __ballot_sync(ALL, found); left; left &= left - 1) {
            int who = __ffs(left) - 1;
            u32 end = warp_next_mark(m, base + who + 1, n);
            if (lane_id() != who) continue;
            u32 id = end - begin <= t.longest ? probe(t, w.text + begin, end - begin) : NONE;
            if (id != NONE && !(id & PIECES_ONLY && is_part(m, begin, end, n))) continue;
            LongPiece p = {begin, end, 0, 0};
            u64 before = atomic_add64(&w.request->longs, 1ull << 32 | window_count(p));
            p.first = (u32)before;
            w.longs[before >> 32] = p;
        }
    }
}

__device__ inline void encode_windows(const Tables &t, const Work &w) {
    const u64 longs = w.request->longs;
    const u32 pieces = longs >> 32, slots = slots_of(longs), warps = gridDim.x * blockDim.x >> 5;
    for (u32 slot = (blockIdx.x * blockDim.x + threadIdx.x) >> 5; slot < slots; slot += warps) {
        const u32 piece = piece_of(w, pieces, slot);
        const LongPiece p = w.longs[piece];
        const u32 word = word_of(p, piece, slot);
        if (word == last_word(p)) continue;
        const u32 begin = window_begin(p, word), length = window_end(p, word) - begin;
        u64 bits = 0;
        bool same = true;  // a run of one byte is left open
        for (u32 i = lane_id(); i < length; i += 32) same = same && w.text[begin + i] == w.text[begin];
        if (length < WINDOW || !__all_sync(ALL, same)) {
            u32 low, high;
            bits = warp_merge(t, w.text + begin, length, low, high) << (begin - word * 32);
        }
        if (!lane_id()) w.windows[p.first + word - first_word(p)] = bits;
    }
}

__device__ inline void join_windows(const Work &w) {
    const u64 longs = w.request->longs;
    const u32 pieces = longs >> 32, slots = slots_of(longs), step = gridDim.x * blockDim.x;
    for (u32 slot = blockIdx.x * blockDim.x + threadIdx.x; slot < slots; slot += step) {
        const u32 piece = piece_of(w, pieces, slot);
        const LongPiece p = w.longs[piece];
        const u32 word = word_of(p, piece, slot);
        const Joined j = joined(p, w.windows, word);
        w.marked[slot] = !j.known;
        if (j.known) mark(w, word, j.bits & inside(p.begin, p.end, word));  // where it begins is marked, as a cut perhaps
        else w.request->open = 1;
    }
}

template <int THREADS, bool BRIEF = false> __device__ void stretches_kernel(const Tables &t, const Work &w, u8 *raw) {
    if (!w.request->longs) return;
    join_windows(w);
    grid_sync(&w.request->barriers[1]);
    if (w.request->open) encode_stretches<THREADS, BRIEF>(t, w, *(StretchSpace<THREADS> *)raw);
}
template <int THREADS, bool BRIEF = false> __device__ void longs_kernel(const Tables &t, const Work &w, u8 *raw) {
    if (!w.request->longs) return;
    encode_windows(t, w);
    grid_sync(&w.request->barriers[1]);
    stretches_kernel<THREADS, BRIEF>(t, w, raw);
}

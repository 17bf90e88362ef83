// Kernels: long pieces cut into their tokens (windows.cuh), before the vocabulary is asked.
#pragma once
#include "warp.cuh"

// A warp looks at four words at a time; most have nothing but ASCII.
__device__ inline void cuts_kernel(const Tables &t, const Work &w) {
    const u32 n = w.request->n, words = (n + 31) / 32, warps = gridDim.x * blockDim.x >> 5;
    for (u32 first = 4 * ((blockIdx.x * blockDim.x + threadIdx.x) >> 5); first < words; first += 4 * warps) {
        u32 at = first * 32 + 4 * lane_id(), high = at < n ? *(const u32 *)(w.text + at) & 0x80808080u : 0, bits = 0;
        if (__any_sync(ALL, high)) {
            for (u32 k = 0; k < 4; k++) {
                u32 own = (first + k) * 32 + lane_id();
                u32 found = __ballot_sync(ALL, own < n && cut_before(t, w.text, own));
                if (lane_id() == (int)k) bits = found;
            }
        }
        if (lane_id() >= 4 || first + lane_id() >= words) continue;
        w.cuts[first + lane_id()] = bits;
        if (bits) w.any[(first + lane_id()) >> w.shift] = 1;
    }
}

__device__ inline void find_longs_kernel(const Tables &t, const Work &w) {
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

// The long piece of window g: they are in the order of their windows.
__device__ inline u32 piece_of(const Work &w, u32 pieces, u32 g) {
    u32 low = 0, high = pieces;
    while (high - low > 1) {
        u32 middle = (low + high) / 2;
        if (w.longs[middle].first <= g) low = middle;
        else high = middle;
    }
    return low;
}

__device__ inline void windows_kernel(const Tables &t, const Work &w) {
    const u64 longs = w.request->longs;
    const u32 pieces = longs >> 32, windows = (u32)longs, warps = gridDim.x * blockDim.x >> 5;
    for (u32 g = (blockIdx.x * blockDim.x + threadIdx.x) >> 5; g < windows; g += warps) {
        const LongPiece p = w.longs[piece_of(w, pieces, g)];
        u32 word = first_word(p) + g - p.first, begin = window_begin(p, word), length = window_end(p, word) - begin;
        u64 bits = 0;
        bool same = true;  // a run of one byte is left open
        for (u32 i = lane_id(); i < length; i += 32) same = same && w.text[begin + i] == w.text[begin];
        if (length < WINDOW || !__all_sync(ALL, same)) {
            u32 low, high;
            bits = warp_merge(t, w.text + begin, length, low, high) << (begin - word * 32);
        }
        if (!lane_id()) w.windows[g] = bits;
    }
}

__device__ inline void mark(const Work &w, u32 word, u32 bits) {
    if (!bits) return;
    atomicOr(w.mask + word, bits);
    w.any[word >> w.shift] = 1;
}

__device__ inline void joins_kernel(const Work &w) {
    const u64 longs = w.request->longs;
    const u32 pieces = longs >> 32, windows = (u32)longs, step = gridDim.x * blockDim.x;
    // a piece has a word more than windows: the thread of its last window does both
    for (u32 g = blockIdx.x * blockDim.x + threadIdx.x; g < windows; g += step) {
        u32 k = piece_of(w, pieces, g);
        const LongPiece p = w.longs[k];
        u32 word = first_word(p) + g - p.first;
        for (u32 last = word + (word + 1 == last_word(p)); word <= last; word++) {
            Joined j = joined(p, w.windows, word);
            if (j.known) mark(w, word, j.bits);
            if (opens(p, w.windows, word)) {
                u32 at = atomicAdd(&w.request->stretches, 1u);
                w.stretches[2 * at] = k;
                w.stretches[2 * at + 1] = word;
            }
        }
    }
}

template <int THREADS> struct StretchSpace {
    static constexpr int WARPS = THREADS / 32;
    Rounds<THREADS> rounds;
    RunList runs;
    u32 warp_best[WARPS], warp_sums[WARPS], flag, room, next;
};

// Whether [begin, end) is one byte again and again.
template <int THREADS> __device__ bool block_one_byte(const u8 *text, u32 begin, u32 end) {
    const u64 all = text[begin] * 0x0101010101010101ull;
    bool same = true;
    for (u32 at = begin + 8 * threadIdx.x; at < end && same; at += 8 * THREADS)
        same = first_bytes(load_8(text + at) ^ all, end - at) == 0;
    return __syncthreads_and(same);
}

// All threads of a block: BPE of [begin, end) into the mask. `at`: room in the scratch arrays. False: it does not fit.
template <int THREADS>
__device__ bool encode_stretch(const Tables &t, const Work &w, StretchSpace<THREADS> &space, const Stretch &s, u32 at) {
    Rounds<THREADS> &r = space.rounds;
    const int tid = threadIdx.x, warps = THREADS / 32;
    const u32 first = s.begin >> 5, last = (s.end - 1) >> 5;
    if (!s.head_end && !s.tail_begin) {
        bool same = block_one_byte<THREADS>(w.text, s.begin, s.end);
        if (same) {
            if (!tid) space.flag = merge_run(t, w.text[s.begin], s.end - s.begin, space.runs);
            __syncthreads();
            same = space.flag;
        }
        if (same) {
            for (u32 word = first + tid; word <= last; word += THREADS) {
                u32 bits = 0, from = s.begin, all = inside(s.begin, s.end, word);
                for (int i = 0; i < space.runs.size; i++) {
                    bits |= run_bits(space.runs.of[i], from, word);
                    from += space.runs.of[i].length * space.runs.of[i].count;
                }
                atomicAnd(w.mask + word, ~all);
                mark(w, word, bits & all);
            }
            return true;
        }
    }
    if (!tid) {
        r.tokens = w.ids + at, r.starts = w.loose + at, r.next_tokens = w.spare + at, r.next_starts = w.out + at;
        r.size = s.end - s.begin;
    }
    __syncthreads();
    rounds_begin(r, t, w.text, s.begin, s.end, tid);
    __syncthreads();
    for (;;) {
        rounds_rank(r, t, tid);
        u32 own = r.best[tid], best = __reduce_min_sync(ALL, own);
        if (!lane_id()) space.warp_best[tid >> 5] = best;
        __syncthreads();
        for (int k = 0; k < warps; k++) best = min(best, space.warp_best[k]);
        if (best == NONE) break;
        if (best & 1) {
            if (r.size > DIPS_LIMIT) {
                if (!tid) atomicAdd(&w.request->error, 1u);
                break;
            }
            if (!tid) {
                r.rank = best;
                rounds_one_by_one(r, t);
                rounds_swap(r);
            }
            __syncthreads();
            continue;
        }
        if (own == best)  // whoever has it has the same pair
            r.left = r.pair_left[tid], r.right = r.pair_right[tid], r.product = r.pair_product[tid];
        __syncthreads();
        rounds_trailing(r, tid);
        __syncthreads();
        u32 total, before = warp_sum_before(rounds_count(r, tid), total);
        if (!lane_id()) space.warp_sums[tid >> 5] = total;
        __syncthreads();
        u32 sum = 0;
        for (int k = 0; k < warps; k++) {
            if (k < tid >> 5) before += space.warp_sums[k];
            sum += space.warp_sums[k];
        }
        r.best[tid] = before;
        if (!tid) r.done = sum;
        rounds_merge(r, tid);
        __syncthreads();
        if (!tid) rounds_swap(r);
        __syncthreads();
    }
    const u32 size = r.size;
    if (!fits(s, size > 1 ? r.starts[1] : s.end, r.starts[size - 1])) return false;
    for (u32 word = first + tid; word <= last; word += THREADS) atomicAnd(w.mask + word, ~inside(s.begin, s.end, word));
    __syncthreads();
    for (u32 i = tid; i < size; i += THREADS) mark(w, r.starts[i] >> 5, 1u << (r.starts[i] & 31));
    return true;
}

template <int THREADS> __device__ void encode_stretches(const Tables &t, const Work &w, StretchSpace<THREADS> &space) {
    for (u32 k = blockIdx.x; k < w.request->stretches; k += gridDim.x) {
        LongPiece &p = w.longs[w.stretches[2 * k]];
        const u32 word = w.stretches[2 * k + 1], last = last_word(p);
        if (!threadIdx.x) space.next = last;
        __syncthreads();
        for (u32 from = word + 1; from < last; from += THREADS) {
            u32 own = from + threadIdx.x;
            bool known = own < last && joined(p, w.windows, own).known;
            if (known) atomicMin(&space.next, own);
            if (__syncthreads_or(known)) break;
        }
        const Stretch s = stretch_at(p, w.windows, word, space.next);
        if (!threadIdx.x) space.room = atomicAdd(&w.request->scratch, s.end - s.begin);
        __syncthreads();
        const u32 at = space.room;
        bool done = (u64)at + (s.end - s.begin) <= w.room && encode_stretch(t, w, space, s, at);
        if (!done && !threadIdx.x) {
            p.broken = 1;
            atomicAdd(&w.request->broken, 1u);
        }
        __syncthreads();
    }
}

// One block, once all stretches are done: pieces of which one did not fit.
template <int THREADS> __device__ void encode_wholes(const Tables &t, const Work &w, StretchSpace<THREADS> &space) {
    for (u32 k = 0; k < w.request->longs >> 32; k++) {
        const LongPiece p = w.longs[k];
        if (p.broken) encode_stretch(t, w, space, Stretch{p.begin, p.end, 0, 0}, p.begin);
        __syncthreads();
    }
}

template <int THREADS> __device__ void stretches_kernel(const Tables &t, const Work &w) {
    __shared__ StretchSpace<THREADS> space;
    if (!w.request->stretches) return;
    encode_stretches(t, w, space);
    if (last_block(&w.request->stretched) && *(volatile u32 *)&w.request->broken) encode_wholes(t, w, space);
}

// What only a device has: searches and BPE by a warp. All 32 lanes call each of these.
#pragma once
#include "work.cuh"

constexpr u32 ALL = 0xffffffffu;

__device__ __forceinline__ int lane_id() { return threadIdx.x & 31; }
__device__ __forceinline__ u32 warp_sum_before(u32 x, u32 &total) {  // exclusive
    u32 sum = x;
    for (int d = 1; d < 32; d <<= 1) {
        u32 y = __shfl_up_sync(ALL, sum, d);
        if (lane_id() >= d) sum += y;
    }
    total = __shfl_sync(ALL, sum, 31);
    return sum - x;
}

// Whether this block is the last one to come here: what the others have written is then seen. All threads call it.
__device__ inline bool last_block(u32 *finished) {
    __shared__ u32 before;
    __threadfence();
    __syncthreads();
    if (!threadIdx.x) before = atomicAdd(finished, 1u);
    __syncthreads();
    bool last = before == gridDim.x - 1;
    if (last) __threadfence();
    return last;
}

// next_mark, 32 words at a time, and 32 tiles at a time where no piece begins.
__device__ inline u32 warp_next_mark(const Marks &m, u32 word, u32 n) {
    const u32 words = (n + 31) / 32, tiles = ((words - 1) >> m.shift) + 1;
    u32 from = word & ~31u;
    while (from < words) {
        u32 own = from + lane_id(), bits = own >= word && own < words ? marks_at(m, own) : 0;
        u32 found = __ballot_sync(ALL, bits != 0);
        if (found) {
            int at = __ffs(found) - 1;
            u32 mark = (from + at) * 32 + lowest(__shfl_sync(ALL, bits, at));
            return mark < n ? mark : n;
        }
        from += 32;
        if (from & ((1u << m.shift) - 1)) continue;
        for (u32 tile = from >> m.shift;; tile += 32) {
            u32 k = tile + lane_id();
            u32 busy = __ballot_sync(ALL, k >= tiles || m.any[k] || m.late[k + 1]);
            if (!busy) continue;
            from = (tile + __ffs(busy) - 1) << m.shift;
            break;
        }
    }
    return n;
}

// BPE of pieces of up to GROUP bytes, one per group of lanes; `busy`: this group has one. A token lies in the lane of its
// first byte. Returns the lanes that have one.
template <int LANES> __device__ u32 group_merge(const Tables &t, const u8 *x, int length, bool busy, u32 &token) {
    static_assert(LANES < 32, "");
    const int i = lane_id() & (LANES - 1), base = lane_id() & ~(LANES - 1);
    u32 alive = busy ? (1u << length) - 1 : 0, rank = NONE, product = 0;
    token = busy && i < length ? __ldg(t.of_byte + x[i]) : 0;
    u32 next = __shfl_down_sync(ALL, token, 1, LANES);
    if (busy && i + 1 < length) rank = pair_rank(t, token, next, product);
    for (;;) {
        u32 best = rank;
        for (int d = LANES / 2; d; d >>= 1) best = min(best, __shfl_xor_sync(ALL, best, d));
        bool go = best != NONE;
        if (!__any_sync(ALL, go)) return alive;
        u32 holders = __ballot_sync(ALL, go && rank == best) >> base & ((1u << LANES) - 1);
        int at = go ? (int)lowest(holders) : 0;
        u32 made = __shfl_sync(ALL, product, at, LANES);
        if (go) {
            int gone = at + 1 + lowest(alive >> (at + 1));
            alive &= ~(1u << gone);
            if (i == at) token = made;
            if (i == gone) rank = NONE;
        }
        u32 below = alive & ((1u << at) - 1), above = alive >> (at + 1);
        int before = below ? (int)highest(below) : -1, after = above ? at + 1 + (int)lowest(above) : -1;
        u32 right = __shfl_sync(ALL, token, after < 0 ? 0 : after, LANES);
        if (go && (i == at || i == before)) {
            if (i != at) right = made;
            rank = i == at && after < 0 ? NONE : pair_rank(t, token, right, product);
        }
    }
}

// BPE of up to 64 bytes by a warp: lane i has the tokens that begin at bytes i and i + 32. Returns where tokens begin.
__device__ inline u64 warp_merge(const Tables &t, const u8 *x, int length, u32 &low, u32 &high) {
    const int i = lane_id();
    u64 alive = length == 64 ? ~0ull : (1ull << length) - 1;
    u32 rank_low = NONE, rank_high = NONE, product_low = 0, product_high = 0;
    low = i < length ? __ldg(t.of_byte + x[i]) : 0;
    high = i + 32 < length ? __ldg(t.of_byte + x[i + 32]) : 0;
    u32 next_low = __shfl_sync(ALL, low, (i + 1) & 31), next_high = __shfl_sync(ALL, high, (i + 1) & 31);
    if (i + 1 < length) rank_low = pair_rank(t, low, i < 31 ? next_low : next_high, product_low);
    if (i < 31 && i + 33 < length) rank_high = pair_rank(t, high, next_high, product_high);
    for (;;) {
        u32 best = __reduce_min_sync(ALL, min(rank_low, rank_high));
        if (best == NONE) return alive;
        u32 lows = __ballot_sync(ALL, rank_low == best), highs = __ballot_sync(ALL, rank_high == best);
        int at = lows ? (int)lowest(lows) : 32 + (int)lowest(highs);
        u32 made = __shfl_sync(ALL, at < 32 ? product_low : product_high, at & 31);
        u64 above = alive >> at >> 1;
        int gone = at + __ffsll(above);
        alive &= ~(1ull << gone);
        if (i == (at & 31)) (at < 32 ? low : high) = made;
        if (i == (gone & 31)) (gone < 32 ? rank_low : rank_high) = NONE;
        u64 below = alive & ((1ull << at) - 1);
        above = alive >> at >> 1;
        int before = below ? 63 - __clzll(below) : -1, after = above ? at + __ffsll(above) : -1;
        u32 left = __shfl_sync(ALL, before < 32 ? low : high, before & 31);
        u32 right = __shfl_sync(ALL, after < 32 ? low : high, after & 31);
        u32 rank = NONE, product = 0;  // lane 0: the pair that ends with the new token, lane 1: the one that begins with it
        if (i == 0 ? before >= 0 : i == 1 && after >= 0) rank = pair_rank(t, i ? made : left, i ? right : made, product);
        u32 rank_before = __shfl_sync(ALL, rank, 0), product_before = __shfl_sync(ALL, product, 0);
        rank = __shfl_sync(ALL, rank, 1), product = __shfl_sync(ALL, product, 1);
        if (before >= 0 && i == (before & 31)) {
            if (before < 32) rank_low = rank_before, product_low = product_before;
            else rank_high = rank_before, product_high = product_before;
        }
        if (i == (at & 31)) {
            if (at < 32) rank_low = rank, product_low = product;
            else rank_high = rank, product_high = product;
        }
    }
}

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

// BPE by the lanes of a group. A token lies in the lane of its first byte; beside it stand its neighbours, token and place in
// one word, and the key of the pair that it begins: rank and place, so that the least key is the lowest rank and of equals the
// leftmost. A merge then asks four lanes what it has to know, and tells four lanes what has changed. Tokens have 20 bits and
// ranks 25 (merges.py).
constexpr u32 TOKEN_BITS = 20, TOKEN = (1u << TOKEN_BITS) - 1, PLACE_BITS = 6, NO_PLACE = 64;
constexpr u32 NO_PAIR = NONE << PLACE_BITS;  // keys from here on
HD u32 neighbour(u32 token, u32 place) { return token | place << TOKEN_BITS; }

// Of pieces of up to LANES bytes, one per group; `busy`: this group has one. Returns the lanes that have a token.
template <int LANES> __device__ u32 group_merge(const Tables &t, const u8 *x, u32 length, bool busy, u32 &token) {
    static_assert(LANES < 32, "");
    const u32 i = lane_id() & (LANES - 1), base = lane_id() & ~(LANES - 1);
    const bool own = busy && i < length;
    token = own ? __ldg(t.of_byte + x[i]) : 0;
    const u32 next = __shfl_down_sync(ALL, token, 1, LANES), previous = __shfl_up_sync(ALL, token, 1, LANES);
    u32 left = own ? neighbour(previous, i ? i - 1 : NO_PLACE) : NONE, right = neighbour(next, i + 1 < length ? i + 1 : NO_PLACE);
    u32 key = NONE, product = 0;
    if (own && i + 1 < length) key = pair_rank(t, token, next, product) << PLACE_BITS | i;
    for (;;) {
        u32 best = key;
        for (int d = LANES / 2; d; d >>= 1) best = min(best, __shfl_xor_sync(ALL, best, d));
        const bool go = best < NO_PAIR;
        if (!__any_sync(ALL, go)) break;
        const u32 at = best % LANES, made = __shfl_sync(ALL, product, at, LANES);
        const u32 before = __shfl_sync(ALL, left, at, LANES), gone = __shfl_sync(ALL, right, at, LANES) >> TOKEN_BITS;
        const u32 behind = __shfl_sync(ALL, right, gone, LANES);
        if (!go) continue;
        const u32 first = before >> TOKEN_BITS, after = behind >> TOKEN_BITS;
        if (i == gone) key = left = NONE;
        if (i == first) right = neighbour(made, at);
        if (i == after) left = neighbour(made, at);
        if (i == at) token = made, right = behind, key = NONE;
        if (i == at ? after != NO_PLACE : i == first)
            key = pair_rank(t, i == at ? made : before & TOKEN, i == at ? behind & TOKEN : made, product) << PLACE_BITS | i;
    }
    return __ballot_sync(ALL, left != NONE) >> base & ((1u << LANES) - 1);
}

// Of up to 64 bytes by a warp: lane i has the tokens that begin at bytes i and i + 32. Returns where tokens begin.
__device__ inline u64 warp_merge(const Tables &t, const u8 *x, u32 length, u32 &low, u32 &high) {
    const u32 i = lane_id(), j = i + 32;
    const u32 byte_low = i < length ? x[i] : 0, byte_high = j < length ? x[j] : 0;
    bool has_low = i < length, has_high = j < length;  // a token that begins there
    low = has_low ? __ldg(t.of_byte + byte_low) : 0, high = has_high ? __ldg(t.of_byte + byte_high) : 0;
    const u64 leads = (u64)__ballot_sync(ALL, byte_high >= 0xc0) << 32 | __ballot_sync(ALL, byte_low >= 0xc0);
    if (leads) {
        const u32 early_low = byte_low >= 0xc0 ? early_token(t, x, length, i) : NONE;
        const u32 early_high = byte_high >= 0xc0 ? early_token(t, x, length, j) : NONE;
        const u64 early = (u64)__ballot_sync(ALL, early_high != NONE) << 32 | __ballot_sync(ALL, early_low != NONE);
        auto continues = [&](u32 byte, u32 at) {  // such a character
            const u64 before = leads & ((1ull << at) - 1);
            return byte >= 0x80 && byte < 0xc0 && before && early >> (63 - __clzll(before)) & 1;
        };
        has_low = has_low && !continues(byte_low, i), has_high = has_high && !continues(byte_high, j);
        if (early_low != NONE) low = early_low;
        if (early_high != NONE) high = early_high;
    }
    const u64 all = (u64)__ballot_sync(ALL, has_high) << 32 | __ballot_sync(ALL, has_low);
    auto beside = [&](u64 places, u32 place) {  // the token at a place, if there is one
        const u32 a = __shfl_sync(ALL, low, place), b = __shfl_sync(ALL, high, place);
        return places ? neighbour(place < 32 ? a : b, place) : neighbour(0, NO_PLACE);
    };
    auto before = [&](u32 at) {
        const u64 places = all & ((1ull << at) - 1);
        return beside(places, places ? 63 - __clzll(places) : 0);
    };
    auto behind_of = [&](u32 at) {
        const u64 places = all >> at >> 1;
        return beside(places, places ? at + __ffsll(places) : 0);
    };
    u32 left_low = before(i), left_high = before(j), right_low = behind_of(i), right_high = behind_of(j);
    u32 key_low = NONE, key_high = NONE, product_low = 0, product_high = 0;
    if (has_low && right_low >> TOKEN_BITS != NO_PLACE) key_low = pair_rank(t, low, right_low & TOKEN, product_low) << PLACE_BITS | i;
    if (has_high && right_high >> TOKEN_BITS != NO_PLACE) key_high = pair_rank(t, high, right_high & TOKEN, product_high) << PLACE_BITS | j;
    if (!has_low) left_low = NONE;
    if (!has_high) left_high = NONE;
    for (;;) {
        const u32 best = __reduce_min_sync(ALL, min(key_low, key_high));
        if (best >= NO_PAIR) break;
        const u32 at = best & 63;
        const u32 made = __shfl_sync(ALL, at < 32 ? product_low : product_high, at);
        const u32 before = __shfl_sync(ALL, at < 32 ? left_low : left_high, at);
        const u32 gone = __shfl_sync(ALL, at < 32 ? right_low : right_high, at) >> TOKEN_BITS;
        const u32 behind = __shfl_sync(ALL, gone < 32 ? right_low : right_high, gone);
        const u32 first = before >> TOKEN_BITS, after = behind >> TOKEN_BITS;
        if (i == gone) key_low = left_low = NONE;
        if (j == gone) key_high = left_high = NONE;
        if (i == first) right_low = neighbour(made, at);
        if (j == first) right_high = neighbour(made, at);
        if (i == after) left_low = neighbour(made, at);
        if (j == after) left_high = neighbour(made, at);
        if (i == at) low = made, right_low = behind;
        if (j == at) high = made, right_high = behind;
        // the lane of `at` asks for the pair that begins with the new token, the one of `first` for the pair that ends with it
        const bool begins = i == (at & 31);
        const u32 a = begins ? made : before & TOKEN, b = begins ? behind & TOKEN : made;
        u32 key = NONE, product = 0;
        if (begins ? after != NO_PLACE : i == first || j == first) key = pair_rank(t, a, b, product) << PLACE_BITS | (begins ? at : first);
        if (i == (begins ? at : first)) key_low = key, product_low = product;
        if (j == (begins ? at : first)) key_high = key, product_high = product;
        if (first + 32 == at && begins) key_low = pair_rank(t, before & TOKEN, made, product_low) << PLACE_BITS | first;  // both are its own
    }
    return (u64)__ballot_sync(ALL, left_high != NONE) << 32 | __ballot_sync(ALL, left_low != NONE);
}

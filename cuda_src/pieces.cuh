// Kernels: pieces to tokens. Every piece is looked up whole; what is no token is merged; then all is put in a row.
#pragma once
#include "warp.cuh"

constexpr int PROBE_THREADS = 128, AT_ONCE = 2;  // pieces of one thread
// Where pieces begin in a tile of PROBE_TILE bytes, in order. All threads of a block. Returns how many.
__device__ inline u32 list_pieces(const Marks &m, u32 tile, u32 words, u16 *list, u32 *sums) {
    const int tid = threadIdx.x;
    const u32 own = tile * (PROBE_TILE / 32) + tid;
    u32 bits = tid < PROBE_TILE / 32 && own < words ? marks_at(m, own) : 0, total;
    u32 at = warp_sum_before(__popc(bits), total);
    if (!lane_id()) sums[tid >> 5] = total;
    __syncthreads();
    if (tid >= 32) at += sums[0];
    for (; bits; bits &= bits - 1) list[at++] = (u16)(tid * 32 + lowest(bits));
    __syncthreads();
    return sums[0] + sums[1];
}

template <int THREADS> struct ProbeSpace {
    u16 list[PROBE_TILE + 1];
    u16 missed[PROBE_TILE];  // numbers of pieces that are no token: short ones from the front, middle ones from the back
    u16 later[PROBE_TILE];
    u32 sums[THREADS / 32], behind, laters, shorts, middles, first_short, first_middle;
};
template <int THREADS> __device__ void probe_kernel(const Tables &t, const Work &w, u8 *raw) {
    ProbeSpace<THREADS> &s = *(ProbeSpace<THREADS> *)raw;
    const int tid = threadIdx.x;
    const u32 n = w.request->n, words = (n + 31) / 32, tiles = (n + PROBE_TILE - 1) / PROBE_TILE;
    const Marks m = marks_of(w);
    for (u32 k = blockIdx.x; k < tiles; k += gridDim.x) {
        if (!tid) s.laters = s.shorts = s.middles = 0;
        const u32 begin = k * PROBE_TILE, pieces = list_pieces(m, k, words, s.list, s.sums);
        if (pieces && tid < 32) {  // where the last one ends
            u32 mark = warp_next_mark(m, (k + 1) * (PROBE_TILE / 32), n);
            if (!tid) s.behind = mark - begin;
        }
        __syncthreads();
        if (!tid) w.pieces[k] = w.tokens[k] = pieces;
        auto at_of = [&](u32 i) { return begin + s.list[i]; };
        auto length_at = [&](u32 i) { return (i + 1 < pieces ? s.list[i + 1] : s.behind) - s.list[i]; };
        auto found = [&](u32 i, u32 id) {
            const u32 at = at_of(i), length = length_at(i);
            if (id != NONE && id & PIECES_ONLY) id = is_part(m, at, at + length, n) ? NONE : id & ~PIECES_ONLY;
            w.ids[begin + i] = id;
            if (id != NONE) return;
            if (length > MIDDLE) atomicAdd(&w.request->error, 1u);
            else if (length > SHORT) s.missed[PROBE_TILE - 1 - atomicAdd(&s.middles, 1u)] = (u16)i;
            else s.missed[atomicAdd(&s.shorts, 1u)] = (u16)i;
        };
        for (u32 base = 0; base < pieces; base += AT_ONCE * THREADS) {
            const u8 *x[AT_ONCE];
            u32 length[AT_ONCE], id[AT_ONCE];
            UNROLLED for (int j = 0; j < AT_ONCE; j++) {
                const u32 i = base + j * THREADS + tid;
                x[j] = w.text + (i < pieces ? at_of(i) : begin);
                length[j] = i < pieces ? length_at(i) : 0;
            }
            probe_short(t, x, length, id);
            UNROLLED for (int j = 0; j < AT_ONCE; j++) {
                const u32 i = base + j * THREADS + tid;
                if (i >= pieces) continue;
                if (id[j] == LATER) s.later[atomicAdd(&s.laters, 1u)] = (u16)i;
                else found(i, id[j]);
            }
        }
        __syncthreads();
        for (u32 j = tid; j < s.laters; j += THREADS) found(s.later[j], probe(t, w.text + at_of(s.later[j]), length_at(s.later[j])));
        __syncthreads();
        if (tid < 2) {  // one place in the queues for all of the tile
            const u32 count = tid ? s.middles : s.shorts;
            if (count) (tid ? s.first_middle : s.first_short) = atomicAdd(tid ? &w.request->middles : &w.request->shorts, count);
        }
        __syncthreads();
        auto miss = [&](u32 i) { return Miss{at_of(i), i | length_at(i) << 16}; };
        for (u32 j = tid; j < s.shorts; j += THREADS) w.shorts[s.first_short + j] = miss(s.missed[j]);
        for (u32 j = tid; j < s.middles; j += THREADS) w.middles[s.first_middle + j] = miss(s.missed[PROBE_TILE - 1 - j]);
        __syncthreads();
    }
}

__device__ __forceinline__ void missed(const Work &w, const Miss &miss, u32 count) {
    u32 tile = miss.begin / PROBE_TILE, index = miss.at & 0xffff;
    w.ids[tile * PROBE_TILE + index] = MISSED | count << MISSED_COUNT | miss.begin % PROBE_TILE;
    if (count > 1) atomicAdd(w.tokens + tile, count - 1);
}

// The first blocks take the middle ones, which take longest: a warp each. The others take the short ones, two a warp.
__device__ inline void merge_middles(const Tables &t, const Work &w, u32 warp, u32 warps) {
    const u32 count = w.request->middles;
    for (u32 k = warp; k < count; k += warps) {
        Miss miss = w.middles[k];
        u32 low, high;
        u64 alive = warp_merge(t, w.text + miss.begin, miss.at >> 16, low, high);
        u32 first = __popc((u32)alive), i = lane_id();
        if (alive >> i & 1) w.loose[miss.begin + __popc((u32)alive & ((1u << i) - 1))] = low;
        if (alive >> 32 >> i & 1) w.loose[miss.begin + first + __popc((u32)(alive >> 32) & ((1u << i) - 1))] = high;
        if (!i) missed(w, miss, __popcll(alive));
    }
}
__device__ inline void merge_shorts(const Tables &t, const Work &w, u32 warp, u32 warps) {
    const u32 count = w.request->shorts, i = lane_id() & 15;
    for (u32 k = 2 * warp; k < count; k += 2 * warps) {
        u32 own = k + (lane_id() >> 4), token;
        bool busy = own < count;
        Miss miss = busy ? w.shorts[own] : Miss{0, 0};
        u32 alive = group_merge<16>(t, w.text + miss.begin, miss.at >> 16, busy, token);
        if (alive >> i & 1) w.loose[miss.begin + __popc(alive & ((1u << i) - 1))] = token;
        if (busy && !i) missed(w, miss, __popc(alive));
    }
}
// A thread for each short one.
struct MergeSpace {
    u32 tokens[SHORT * 128], ranks[SHORT * 128], products[SHORT * 128];
};
__device__ inline void merge_many(const Tables &t, const Work &w, MergeSpace &s, u32 block, u32 blocks) {
    const u32 tid = threadIdx.x, count = w.request->shorts;
    for (u32 k = block * 128 + tid; k < count; k += blocks * 128) {
        Miss miss = w.shorts[k];
        int n = merge_piece(t, w.text + miss.begin, miss.at >> 16, s.tokens + tid, s.ranks + tid, s.products + tid, 128);
        for (int i = 0; i < n; i++) w.loose[miss.begin + i] = s.tokens[tid + i * 128];
        missed(w, miss, n);
    }
}
// The first blocks take the middle ones. Of few short ones each has half a warp, of many a thread; `Few`: there are few.
template <bool Few> __device__ void merge_kernel(const Tables &t, const Work &w, u8 *raw) {
    const u32 blocks = gridDim.x > 3 ? gridDim.x / 4 : 0, warp = (blockIdx.x * 128 + threadIdx.x) >> 5, warps = gridDim.x * 4;
    if (blockIdx.x < blocks) merge_middles(t, w, warp, 4 * blocks);
    else if (!Few && w.request->shorts > 4 * (warps - 4 * blocks)) merge_many(t, w, *(MergeSpace *)raw, blockIdx.x - blocks, gridDim.x - blocks);
    else merge_shorts(t, w, warp - 4 * blocks, warps - 4 * blocks);
    if (!blocks) merge_middles(t, w, warp, warps);
}

// Tokens per tile -> where each tile's begin: first within SUMMED tiles, a warp for each so many; the last block to end sums
// those up. Blocks of THREADS.
template <int THREADS> __device__ void sums_kernel(const Work &w) {
    __shared__ u32 sums[THREADS / 32], carry;
    const int tid = threadIdx.x;
    const u32 tiles = (w.request->n + PROBE_TILE - 1) / PROBE_TILE, groups = (tiles + SUMMED - 1) / SUMMED;
    for (u32 g = (blockIdx.x * THREADS + tid) >> 5; g < groups; g += gridDim.x * THREADS / 32) {
        const u32 k = g * SUMMED + 2 * lane_id();
        const u32 a = k < tiles ? w.tokens[k] : 0, b = k + 1 < tiles ? w.tokens[k + 1] : 0;
        u32 total, at = warp_sum_before(a + b, total);
        if (k < tiles) w.offsets[k] = at;
        if (k + 1 < tiles) w.offsets[k + 1] = at + a;
        if (!lane_id()) w.sums[g] = total;
    }
    if (!last_block(&w.request->merged)) return;
    if (!tid) carry = 0;
    __syncthreads();
    for (u32 base = 0; base < groups; base += THREADS) {
        const u32 own = base + tid < groups ? __ldcg(w.sums + base + tid) : 0;
        u32 total, at = warp_sum_before(own, total), all = 0;
        if (!lane_id()) sums[tid >> 5] = total;
        __syncthreads();
        for (int k = 0; k < THREADS / 32; k++) {
            if (k < tid >> 5) at += sums[k];
            all += sums[k];
        }
        if (base + tid < groups) w.sums[base + tid] = carry + at;
        __syncthreads();
        if (!tid) carry += all;
        __syncthreads();
    }
    if (!tid) w.request->total = carry;
}

// Tokens of missed pieces from the fourth on, by all lanes of a warp: one thread would wait for memory once a token. Of the four
// pieces of a lane: their IDs, how many tokens each has, and where the first one's begin in `to`.
constexpr u32 AT_HAND = 3;
__device__ __forceinline__ void copy_rest(const u32 *loose, const u32 (&ids)[4], const u32 (&counts)[4], u32 at, u32 *to) {
    u32 rest = 0, packed = 0;
    u64 places = 0;
    UNROLLED for (int k = 0; k < 4; k++) {
        rest += counts[k] > AT_HAND ? counts[k] - AT_HAND : 0;
        packed |= counts[k] << 8 * k;
        places |= (u64)(ids[k] & (PROBE_TILE - 1)) << 16 * k;
    }
    if (!__any_sync(ALL, rest)) return;
    u32 total;
    const u32 before = warp_sum_before(rest, total);
    for (u32 base = 0; base < total; base += 32) {
        u32 j = base + lane_id(), owner = 0;
        for (u32 d = 16; d; d >>= 1)  // the last lane before which there are no more than j
            if (__shfl_sync(ALL, before, owner + d) <= j) owner += d;
        j -= __shfl_sync(ALL, before, owner);
        const u32 sizes = __shfl_sync(ALL, packed, owner);
        u32 place = __shfl_sync(ALL, at, owner), k = 0;
        const u64 held = (u64)__shfl_sync(ALL, (u32)(places >> 32), owner) << 32 | __shfl_sync(ALL, (u32)places, owner);
        if (base + lane_id() >= total) continue;
        for (;; k++) {
            const u32 size = sizes >> 8 * k & 255, more = size > AT_HAND ? size - AT_HAND : 0;
            if (j < more) break;
            j -= more, place += size;
        }
        to[place + AT_HAND + j] = loose[((u32)(held >> 16 * k) & 0xffff) + AT_HAND + j];
    }
}
// The tokens of a tile in a row at `to`, four pieces a thread. Ends behind a barrier. Returns how many.
template <int THREADS> __device__ u32 row_of(const Work &w, u32 tile, u32 *sums, u32 *to) {
    const int tid = threadIdx.x;
    const u32 begin = tile * PROBE_TILE, pieces = w.pieces[tile];
    u32 out = 0;
    for (u32 base = 0; base < pieces; base += 4 * THREADS) {
        const u32 i = base + 4 * tid;
        const uint4 q = i < pieces ? *(const uint4 *)(w.ids + begin + i) : make_uint4(0, 0, 0, 0);
        const u32 ids[4] = {q.x, q.y, q.z, q.w};
        u32 counts[4], own = 0, total, all = 0;
        UNROLLED for (int k = 0; k < 4; k++) {
            counts[k] = i + k >= pieces ? 0 : is_missed(ids[k]) ? (ids[k] & ~MISSED) >> MISSED_COUNT : 1;
            own += counts[k];
        }
        u32 at = out + warp_sum_before(own, total);
        if (!lane_id()) sums[tid >> 5] = total;
        __syncthreads();
        for (int j = 0; j < THREADS / 32; j++) {
            if (j < tid >> 5) at += sums[j];
            all += sums[j];
        }
        copy_rest(w.loose + begin, ids, counts, at, to);
        u32 tokens[4][AT_HAND];  // what is there is asked for at once: stores could be in the way of later loads
        UNROLLED for (int k = 0; k < 4; k++)
            UNROLLED for (u32 j = 0; j < AT_HAND; j++) {
                const bool miss = is_missed(ids[k]) && j < counts[k];
                tokens[k][j] = miss ? w.loose[begin + (ids[k] & (PROBE_TILE - 1)) + j] : ids[k];
            }
        UNROLLED for (int k = 0; k < 4; k++) {
            UNROLLED for (u32 j = 0; j < AT_HAND; j++)
                if (j < counts[k]) to[at + j] = tokens[k][j];
            at += counts[k];
        }
        out += all;
        __syncthreads();
    }
    return out;
}
// The request's counters, for the host. The first 32 threads of a block call it.
__device__ __forceinline__ void tell(const Work &w, u32 total) {
    constexpr u32 WORDS = sizeof(Request) / 4, TOTAL = offsetof(Request, total) / 4;
    static_assert(WORDS == 32, "");
    ((u32 *)w.host_request)[threadIdx.x] = threadIdx.x == TOTAL ? total : ((const u32 *)w.request)[threadIdx.x];
}
// Tells the host that all is there, which looks at nothing else meanwhile. All threads of all `blocks` blocks call it once. True
// for one of them, which is the last one. One thread's fence is enough for what its block has written: a barrier comes before it,
// and what a fence orders is all that its thread knows of (PTX memory model, causality order).
__device__ inline bool tell_turn(const Work &w, u32 blocks) {
    __syncthreads();
    if (threadIdx.x) return false;
    __threadfence_system();
    if (blocks > 1) {
        if (atomicAdd(&w.request->merged, 1u) != blocks - 1) return false;
        __threadfence_system();
    }
    *(volatile u32 *)(w.host_request + 1) = w.request->turn;
    return true;
}
// All in a row on the device, behind `sums`; the host copies as many as it is told of.
__device__ inline void compact_kernel(const Work &w) {
    __shared__ u32 sums[4];
    const u32 tiles = (w.request->n + PROBE_TILE - 1) / PROBE_TILE;
    for (u32 k = blockIdx.x; k < tiles; k += gridDim.x) row_of<128>(w, k, sums, w.out + w.sums[k / SUMMED] + w.offsets[k]);
    if (!blockIdx.x && threadIdx.x < 32) tell(w, w.request->total);
}

// Tokens of all tiles before one. Ends behind a barrier.
__device__ inline u32 tokens_before(const Work &w, u32 tile, u32 *sums) {
    u32 own = 0, total;
    for (u32 k = 4 * threadIdx.x; k < tile; k += 4 * 128) {
        const uint4 q = *(const uint4 *)(w.tokens + k);
        own += q.x + (k + 1 < tile ? q.y : 0) + (k + 2 < tile ? q.z : 0) + (k + 3 < tile ? q.w : 0);
    }
    warp_sum_before(own, total);
    if (!lane_id()) sums[threadIdx.x >> 5] = total;
    __syncthreads();
    total = sums[0] + sums[1] + sums[2] + sums[3];
    __syncthreads();
    return total;
}
// All at once where tiles are not too many: each block counts what stands before its tile, puts the tile's tokens in a row,
// and writes whole lines of the bus into the host's memory.
__device__ inline void finish_kernel(const Work &w) {
    constexpr u32 LINE = 32;  // tokens; the last piece of a tile may end behind it
    __shared__ __align__(16) u32 row[LINE + PROBE_TILE + MIDDLE];
    __shared__ u32 sums[4];
    const u32 tiles = (w.request->n + PROBE_TILE - 1) / PROBE_TILE;
    for (u32 k = blockIdx.x; k < tiles; k += gridDim.x) {
        const u32 before = tokens_before(w, k, sums), from = before % LINE, to = from + row_of<128>(w, k, sums, row + from);
        u32 *out = w.host_out + (before - from);
        for (u32 i = 4 * threadIdx.x; i < to; i += 4 * 128) {
            if (i >= from && i + 4 <= to) *(uint4 *)(out + i) = *(const uint4 *)(row + i);
            else
                for (u32 j = i; j < i + 4; j++)
                    if (j >= from && j < to) out[j] = row[j];
        }
        if (k == tiles - 1 && threadIdx.x < 32) tell(w, before - from + to);
        __syncthreads();
    }
    if (tell_turn(w, gridDim.x)) *w.request = Request{};  // the next text's kernels count from zero
}

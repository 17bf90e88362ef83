// Kernels: pieces to tokens. Every piece is looked up whole; what is no token is merged; then all is put in a row.
#pragma once
#include "warp.cuh"

// Where pieces begin in a tile of PROBE_TILE bytes, in order. 128 threads. Returns how many.
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

__device__ inline void enqueue(bool miss, Miss what, u32 *counter, Miss *queue) {
    u32 who = __ballot_sync(ALL, miss);
    if (!who) return;
    u32 first = __ffs(who) - 1, base = 0;
    if (lane_id() == (int)first) base = atomicAdd(counter, __popc(who));
    base = __shfl_sync(ALL, base, first);
    if (miss) queue[base + __popc(who & ((1u << lane_id()) - 1))] = what;
}

__device__ inline void probe_kernel(const Tables &t, const Work &w) {
    __shared__ u16 list[PROBE_TILE + 1];
    __shared__ u32 sums[4], behind;
    const int tid = threadIdx.x;
    const u32 n = w.request->n, words = (n + 31) / 32, tiles = (n + PROBE_TILE - 1) / PROBE_TILE;
    const Marks m = marks_of(w);
    for (u32 k = blockIdx.x; k < tiles; k += gridDim.x) {
        const u32 begin = k * PROBE_TILE, pieces = list_pieces(m, k, words, list, sums);
        if (pieces && tid < 32) {  // where the last one ends
            u32 mark = warp_next_mark(m, (k + 1) * (PROBE_TILE / 32), n);
            if (!tid) behind = mark - begin;
        }
        __syncthreads();
        if (!tid) w.pieces[k] = w.tokens[k] = pieces;
        for (u32 base = 0; base < pieces; base += 128) {
            u32 i = base + tid, at = 0, length = 0;
            bool miss = false;
            if (i < pieces) {
                at = list[i];
                length = (i + 1 < pieces ? list[i + 1] : behind) - at;
                u32 id = probe(t, w.text + begin + at, length);
                if (id != NONE && id & PIECES_ONLY) id = is_part(m, begin + at, begin + at + length, n) ? NONE : id & ~PIECES_ONLY;
                miss = id == NONE;
                if (miss && length > MIDDLE) {
                    atomicAdd(&w.request->error, 1u);
                    miss = false;
                }
                w.ids[begin + i] = id;
            }
            Miss what = {begin + at, i | length << 16};
            enqueue(miss && length <= SHORT, what, &w.request->shorts, w.shorts);
            enqueue(miss && length > SHORT, what, &w.request->middles, w.middles);
        }
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
// Tokens per tile -> where each tile's begin. One block of THREADS.
template <int THREADS> __device__ void scan_tokens(const Work &w) {
    __shared__ u32 sums[THREADS / 32], carry;
    const int tid = threadIdx.x;
    const u32 tiles = (w.request->n + PROBE_TILE - 1) / PROBE_TILE;
    if (!tid) carry = 0;
    __syncthreads();
    for (u32 base = 0; base < tiles; base += 8 * THREADS) {
        u32 counts[8], sum = 0, from = base + tid * 8, total;
        for (int k = 0; k < 8; k++) sum += counts[k] = from + k < tiles ? __ldcg(w.tokens + from + k) : 0;
        u32 at = carry + warp_sum_before(sum, total);
        if (!lane_id()) sums[tid >> 5] = total;
        __syncthreads();
        u32 all = 0;
        for (int k = 0; k < THREADS / 32; k++) {
            if (k < tid >> 5) at += sums[k];
            all += sums[k];
        }
        for (int k = 0; k < 8; k++) {
            if (from + k < tiles) w.offsets[from + k] = at;
            at += counts[k];
        }
        __syncthreads();
        if (!tid) carry += all;
        __syncthreads();
    }
    if (!tid) w.request->total = carry;
}

// Latency: few misses, as many lanes as there are. The last block sums up.
__device__ inline void merge_kernel(const Tables &t, const Work &w) {
    const u32 warp = (blockIdx.x * blockDim.x + threadIdx.x) >> 5, warps = gridDim.x * blockDim.x >> 5, middles = warps / 4;
    if (warp < middles) merge_middles(t, w, warp, middles);
    else merge_shorts(t, w, warp - middles, warps - middles);
    if (last_block(&w.request->merged)) scan_tokens<128>(w);
}
// Throughput: a thread for each short one.
__device__ inline void merge_many_kernel(const Tables &t, const Work &w) {
    __shared__ u32 space[3][SHORT * 128];
    const u32 blocks = gridDim.x / 4, tid = threadIdx.x;
    if (blockIdx.x < blocks) {
        merge_middles(t, w, (blockIdx.x * 128 + tid) >> 5, blocks * 4);
        return;
    }
    const u32 count = w.request->shorts;
    for (u32 k = (blockIdx.x - blocks) * 128 + tid; k < count; k += (gridDim.x - blocks) * 128) {
        Miss miss = w.shorts[k];
        int n = merge_piece(t, w.text + miss.begin, miss.at >> 16, space[0] + tid, space[1] + tid, space[2] + tid, 128);
        for (int i = 0; i < n; i++) w.loose[miss.begin + i] = space[0][tid + i * 128];
        missed(w, miss, n);
    }
}

__device__ inline void compact_kernel(const Work &w) {
    __shared__ u32 sums[4];
    const int tid = threadIdx.x;
    const u32 tiles = (w.request->n + PROBE_TILE - 1) / PROBE_TILE;
    for (u32 k = blockIdx.x; k < tiles; k += gridDim.x) {
        const u32 begin = k * PROBE_TILE, pieces = w.pieces[k];
        u32 out = w.offsets[k];
        for (u32 base = 0; base < pieces; base += 128) {
            u32 i = base + tid, id = i < pieces ? w.ids[begin + i] : 0, total;
            u32 count = i >= pieces ? 0 : id & MISSED ? (id & ~MISSED) >> MISSED_COUNT : 1;
            u32 at = out + warp_sum_before(count, total);
            if (!lane_id()) sums[tid >> 5] = total;
            __syncthreads();
            u32 all = 0;
            for (int j = 0; j < 4; j++) {
                if (j < tid >> 5) at += sums[j];
                all += sums[j];
            }
            if (count && !(id & MISSED)) w.out[at] = id;
            if (id & MISSED) {
                const u32 *from = w.loose + begin + (id & (PROBE_TILE - 1));
                for (u32 j = 0; j < count; j++) w.out[at + j] = from[j];
            }
            out += all;
            __syncthreads();
        }
    }
}

// As many IDs as there are, in whole lines of the bus, into the host's memory; then the request's counters.
__device__ inline void deliver_kernel(const Work &w) {
    const u32 total = w.request->total, step = gridDim.x * blockDim.x, tid = blockIdx.x * blockDim.x + threadIdx.x;
    for (u32 i = tid; 4 * i < total; i += step) ((uint4 *)w.host_out)[i] = ((const uint4 *)w.out)[i];
    if (tid < sizeof(Request) / 4) ((u32 *)w.host_request)[tid] = ((const u32 *)w.request)[tid];
}

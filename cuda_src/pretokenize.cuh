// Kernels: where pieces begin. Tiles, then heads: what no thread has synchronised in.
#pragma once
#include "settle.cuh"
#include "teams.cuh"

// The tile's classes and cuts: of the latter the words of PART bytes that lie in neighbouring lanes are put together.
template <class T> __device__ u32 load_tile(T &s, const Tables &t, const u8 *text, u32 n, long begin, u32 *cuts) {
    u32 any = 0;
    clear_mask(s, threadIdx.x);
    load_part<T, true>(s, t, text, n, begin, T::FAR, T::SPAN, threadIdx.x, [&](long at, u32 bits) {
        bits <<= at & 31 & ~(T::PART - 1);
        UNROLLED for (u32 d = 1; d < 32 / T::PART; d *= 2) bits |= __shfl_xor_sync(ALL, bits, d);
        if (at < begin || at >= begin + T::BYTES) return;
        if (!(at & 31)) cuts[at >> 5] = bits;
        any |= bits;
    });
    return any;
}

// What find_start has left open, if that is worth it. Begins and ends behind a barrier. `far`: where the FAR bytes before the tile
// are, with what is on its way there.
template <class T> __device__ void settle(T &s, const Tables &t, const u8 *far, u32 n, long begin) {
    const int tid = threadIdx.x;
    if (!__syncthreads_or(is_far(s, T::OWN + tid))) return;
    const int first = is_open(s, T::OWN) ? 0 : T::OWN;
    if (!first) {
        wait_for_copies();
        __syncthreads();
        load_part<T, false>(s, t, far, n, begin, 0, T::FAR, tid, [](long, u32) {});
        __syncthreads();
        for (int c = tid; c < T::OWN; c += T::THREADS) find_start(s, t, c);
        __syncthreads();
    }
    auto each = [&](auto &&phase) {
        for (int c = first + tid; c < T::CHUNKS; c += T::THREADS) phase(c);
        __syncthreads();
    };
    each([&](int c) { settle_exits(s, c); });
    each([&](int c) { settle_maps(s, t, c, first); });
    each([&](int c) { settle_entries(s, c, first); });
    each([&](int c) { settle_rows(s, t, c); });
    each([&](int c) { settle_starts(s, c); });
}

// Tile k of `tiles`, by the threads of a block, whose tables are loaded. Ends behind a barrier. Of the text, `near` has the tile,
// NEAR bytes before it and AHEAD behind it; `far` has the FAR bytes before it as well, `look`: no farther is looked first.
template <class T>
__device__ void one_tile(T &s, const Tables &t, const Work &w, const u8 *near, const u8 *far, u32 n, u32 k, u32 tiles, int look = T::NEAR) {
    const int tid = threadIdx.x;
    const long begin = (long)k * T::BYTES;
    u32 any = load_tile(s, t, near, n, begin, w.cuts);
    __syncthreads();
    find_start(s, t, T::OWN + tid, look);
    __syncthreads();
    settle(s, t, far, n, begin);
    walk(s, begin, tid, w.exits + k);
    __syncthreads();
    any = __syncthreads_or(any | store_mask(s, n, begin, tid, w.mask));
    if (!tid) {
        w.any[k] = any;
        w.late[k] = late_of(s);
        if (k == tiles - 1) w.late[tiles] = 0;
        u32 head = head_of(s);
        if (head) {
            w.heads[k] = head;
            w.deferred[atomicAdd(&w.request->deferred, 1u)] = k;
        }
    }
    __syncthreads();
}
template <class T> __device__ void tiles_kernel(const Tables &t, const Work &w, u8 *raw) {
    T &s = *(T *)raw;
    const u32 n = w.request->n, tiles = n / T::BYTES + 1;
    load_tables(s, t, threadIdx.x);
    __syncthreads();
    for (u32 k = blockIdx.x; k < tiles; k += gridDim.x) one_tile(s, t, w, w.text, w.text, n, k, tiles);
}
// The part of a text in the host's memory that a block needs for a tile. All is asked for at once: an answer takes long. Of what
// stands before NEAR the last 16 bytes are in it: whoever looks at a character reads a word before it too.
template <class T> struct Pulled {
    static constexpr int FROM = T::FAR - 16, TIMES = (T::PULLED - FROM + 16 * T::THREADS - 1) / (16 * T::THREADS);
    uint4 parts[TIMES];
    // Of the part that each thread has, place(v, at, part): where it lies in the block's memory, and in the text.
    template <class F> __device__ void each(u32 n, long first, F &&place) {
        UNROLLED for (int k = 0; k < TIMES; k++) {
            const int v = FROM + 16 * (k * T::THREADS + threadIdx.x);
            const long at = first + v;
            if (v < T::PULLED && at >= 0 && at < n) place(v, at, parts[k]);
        }
    }
};
// Whether rows that no thread synchronises in are likely to stand before a tile: all of the NEAR bytes are of no ASCII.
template <class T> __device__ bool row_before(const u8 *pulled) {
    u32 all = 0x80808080u;
    for (int k = 0; k < T::NEAR; k += 4) all &= *(const u32 *)(pulled + T::FAR + k);
    return all == 0x80808080u;
}
// The same of a text that still is in the host's memory: it comes over the bus while other blocks have theirs already. Leaves it, and
// what the request says, where the other kernels look for it; all counters are zero, as the last kernel has left them.
template <class T> __device__ void pulled_tiles_kernel(const Tables &t, const Work &w, u8 *raw) {
    T &s = *(T *)raw;
    u8 *pulled = raw + tile_size<T>(t);
    const u8 *text = (const u8 *)(w.staged + 1);
    const u32 n = w.staged->n, tiles = n / T::BYTES + 1, tid = threadIdx.x;
    if (!blockIdx.x && !tid) w.request->n = n, w.request->turn = w.staged->turn;
    for (u32 k = blockIdx.x; k < tiles; k += gridDim.x) {
        const long first = (long)k * T::BYTES - T::LEFT;
        Pulled<T> own;
        own.each(n, first, [&](int, long at, uint4 &part) { part = *(const uint4 *)(text + at); });
        if (k == blockIdx.x) load_tables(s, t, tid);  // while that is on its way
        own.each(n, first, [&](int v, long at, uint4 &part) {
            *(uint4 *)(pulled + v) = part;
            if (v >= T::LEFT && v < T::LEFT + T::BYTES) *(uint4 *)((u8 *)w.text + at) = part;
        });
        __syncthreads();
        const bool far = t.open_rows && k && row_before<T>(pulled);
        if (far && 16 * tid < Pulled<T>::FROM && first + 16 * (long)tid >= 0) copy_behind(pulled + 16 * tid, text + first + 16 * tid);
        one_tile(s, t, w, pulled - first, far ? pulled - first : text, n, k, tiles, far ? T::NEAR / 4 : T::NEAR);
        if (far) wait_for_copies();
    }
}

template <class T> __device__ void maps_of_tiles(const Tables &t, const Work &w, u8 *raw) {
    T &s = *(T *)raw;
    ChunkMaps<T> &chunks = *(ChunkMaps<T> *)(raw + tile_size<T>(t));
    const int tid = threadIdx.x;
    const u32 n = w.request->n, deferred = w.request->deferred;
    if (blockIdx.x >= deferred) return;
    load_tables(s, t, tid);
    __syncthreads();
    for (u32 d = blockIdx.x; d < deferred; d += gridDim.x) {
        u32 k = w.deferred[d];
        if (w.exits[k].state != NONE) continue;
        load_classes(s, t, w.text, n, (long)k * T::BYTES, tid);
        __syncthreads();
        map_chunk(chunks, s, t, tid, T::BYTES);
        __syncthreads();
        for (u32 q = tid; q < t.states; q += T::THREADS) w.maps[(size_t)k * STATES_LIMIT + q] = tile_map(chunks, q, k * T::BYTES);
        __syncthreads();
    }
}

template <class T> __device__ void maps_of_groups(const Tables &t, const Work &w) {
    const u32 tiles = w.request->n / T::BYTES + 1, tid = threadIdx.x;
    for (u32 g = blockIdx.x; (g + 1) * GROUP <= tiles; g += gridDim.x) {
        u32 opaque = __syncthreads_and(tid >= GROUP || w.exits[g * GROUP + tid].state == NONE);
        if (!tid) w.group_opaque[g] = opaque;
        if (opaque && tid < t.states) w.group_maps[(size_t)g * STATES_LIMIT + tid] = group_map(w.maps, g, tid);
    }
}

template <class T> __device__ void walk_heads(const Tables &t, const Work &w, u8 *raw) {
    T &s = *(T *)raw;
    ChunkMaps<T> &chunks = *(ChunkMaps<T> *)(raw + tile_size<T>(t));
    Map *entries = (Map *)(raw + tile_size<T>(t) + chunks_size<T>(t));
    const int tid = threadIdx.x;
    const u32 n = w.request->n, deferred = w.request->deferred;
    if (blockIdx.x >= deferred) return;
    const Stretches known = {w.exits, w.maps, w.group_maps, w.group_opaque};
    load_tables(s, t, tid);
    __syncthreads();
    for (u32 d = blockIdx.x; d < deferred; d += gridDim.x) {
        u32 k = w.deferred[d], begin = k * T::BYTES;
        const int end = w.heads[k];
        load_classes(s, t, w.text, n, begin, tid);
        __syncthreads();
        if (end <= SHORT_HEAD) {
            if (!tid) walk_head(s, t, entry_of(known, k, t.stride), n, begin, 0, end, w.mask, w.any);
            __syncthreads();
            continue;
        }
        map_chunk(chunks, s, t, tid, end);
        __syncthreads();
        if (!tid) {
            Map m = entry_of(known, k, t.stride);
            for (int c = 0; c * T::CHUNK < end; c++) {
                entries[c] = m;
                m = then(m, chunk_map(chunks, m.state, c, begin));
            }
        }
        __syncthreads();
        if (tid * T::CHUNK < end)
            walk_head(s, t, entries[tid], n, begin, tid * T::CHUNK, min((tid + 1) * T::CHUNK, end), w.mask, w.any);
        __syncthreads();
    }
}

// All blocks have done with it when it returns.
template <class T> __device__ void heads_kernel(const Tables &t, const Work &w, u8 *raw) {
    if (!w.request->deferred) return;
    maps_of_tiles<T>(t, w, raw);
    grid_sync(&w.request->barriers[0]);
    maps_of_groups<T>(t, w);
    grid_sync(&w.request->barriers[0]);
    walk_heads<T>(t, w, raw);
    grid_sync(&w.request->barriers[0]);
}

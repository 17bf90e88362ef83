// Kernels: where pieces begin. In this order: tiles, then for what no thread has synchronised in maps, groups and heads.
#pragma once
#include "warp.cuh"

template <class T> __device__ void tiles_kernel(const Tables &t, const Work &w) {
    extern __shared__ __align__(16) u8 raw[];
    T &s = *(T *)raw;
    const int tid = threadIdx.x;
    const u32 n = w.request->n, tiles = n / T::BYTES + 1;
    load_tables(s, t, tid);
    __syncthreads();
    for (u32 k = blockIdx.x; k < tiles; k += gridDim.x) {
        const long begin = (long)k * T::BYTES;
        load_classes(s, t, w.text, n, begin, tid);
        __syncthreads();
        find_start(s, t, tid);
        __syncthreads();
        walk(s, begin, tid, w.exits + k);
        __syncthreads();
        u32 any = __syncthreads_or(store_mask(s, n, begin, tid, w.mask));
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
}

template <class T> __device__ void maps_kernel(const Tables &t, const Work &w) {
    extern __shared__ __align__(16) u8 raw[];
    T &s = *(T *)raw;
    ChunkMaps<T> &chunks = *(ChunkMaps<T> *)(raw + sizeof(T));
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

template <class T> __device__ void groups_kernel(const Tables &t, const Work &w) {
    const u32 tiles = w.request->n / T::BYTES + 1, tid = threadIdx.x;
    if (!w.request->deferred) return;
    for (u32 g = blockIdx.x; (g + 1) * GROUP <= tiles; g += gridDim.x) {
        u32 opaque = __syncthreads_and(w.exits[g * GROUP + tid].state == NONE);
        if (!tid) w.group_opaque[g] = opaque;
        if (opaque && tid < t.states) w.group_maps[(size_t)g * STATES_LIMIT + tid] = group_map(w.maps, g, tid);
    }
}

template <class T> __device__ void heads_kernel(const Tables &t, const Work &w) {
    extern __shared__ __align__(16) u8 raw[];
    T &s = *(T *)raw;
    ChunkMaps<T> &chunks = *(ChunkMaps<T> *)(raw + sizeof(T));
    __shared__ Map entries[T::THREADS];
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

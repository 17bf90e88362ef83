// Threads that encode one unit together: a warp, a block, or all blocks. All of a team call each of these alike.
#pragma once
#include "warp.cuh"

__device__ __forceinline__ u32 warp_max_before(u32 x, u32 &all) {  // exclusive, of nothing: 0
    for (int d = 1; d < 32; d <<= 1) {
        u32 y = __shfl_up_sync(ALL, x, d);
        if (lane_id() >= d) x = max(x, y);
    }
    all = __shfl_sync(ALL, x, 31);
    x = __shfl_up_sync(ALL, x, 1);
    return lane_id() ? x : 0;
}
__device__ __forceinline__ void warp_min(u32 &rank, u32 &at) {
    u32 best = __reduce_min_sync(ALL, rank), who = __ballot_sync(ALL, rank == best);
    at = __shfl_sync(ALL, at, __ffs(who) - 1);
    rank = best;
}

struct WarpTeam {
    __device__ u32 rank() const { return lane_id(); }
    __device__ u32 size() const { return 32; }
    __device__ void sync() { __syncwarp(); }
    __device__ void min(u32 &rank, u32 &at) {
        warp_min(rank, at);
        __syncwarp();  // as in larger teams: who has come back sees what all had written
    }
    __device__ u32 max_before(u32 x) {
        u32 all;
        return warp_max_before(x, all);
    }
    __device__ u32 sum_before(u32 x, u32 &total) { return warp_sum_before(x, total); }
};

// Between two calls of the same operation there is a `sync`, or another operation.
template <int THREADS> struct BlockTeam {
    static constexpr int WARPS = THREADS / 32;
    struct Space {
        u32 best[WARPS], at[WARPS], sums[WARPS], tops[WARPS];
    };
    Space &space;
    __device__ explicit BlockTeam(Space &s) : space(s) {}
    __device__ u32 rank() const { return threadIdx.x; }
    __device__ u32 size() const { return THREADS; }
    __device__ void sync() { __syncthreads(); }
    __device__ void min(u32 &rank, u32 &at) {
        warp_min(rank, at);
        if (!lane_id()) space.best[threadIdx.x >> 5] = rank, space.at[threadIdx.x >> 5] = at;
        __syncthreads();
        rank = space.best[0], at = space.at[0];
        for (int k = 1; k < WARPS; k++)
            if (space.best[k] < rank) rank = space.best[k], at = space.at[k];
    }
    __device__ u32 max_before(u32 x, u32 &all) {
        x = warp_max_before(x, all);
        if (!lane_id()) space.tops[threadIdx.x >> 5] = all;
        __syncthreads();
        all = 0;
        for (int k = 0; k < WARPS; k++) {
            if (k < (int)threadIdx.x >> 5) x = max(x, space.tops[k]);
            all = max(all, space.tops[k]);
        }
        return x;
    }
    __device__ u32 max_before(u32 x) {
        u32 all;
        return max_before(x, all);
    }
    __device__ u32 sum_before(u32 x, u32 &total) {
        x = warp_sum_before(x, total);
        if (!lane_id()) space.sums[threadIdx.x >> 5] = total;
        __syncthreads();
        total = 0;
        for (int k = 0; k < WARPS; k++) {
            if (k < (int)threadIdx.x >> 5) x += space.sums[k];
            total += space.sums[k];
        }
        return x;
    }
    __device__ void sums_of(u32 &x, u32 &y) {  // of all threads, of both
        x = __reduce_add_sync(ALL, x), y = __reduce_add_sync(ALL, y);
        if (!lane_id()) space.sums[threadIdx.x >> 5] = x, space.tops[threadIdx.x >> 5] = y;
        __syncthreads();
        x = y = 0;
        for (int k = 0; k < WARPS; k++) x += space.sums[k], y += space.tops[k];
    }
};

// Releases what the block has written, and acquires what the others have: cheaper than a fence on both sides.
__device__ __forceinline__ u32 arrive(u32 *arrivals) {
    u32 before = 0;
#ifdef __CUDA_ARCH__
    asm volatile("atom.add.acq_rel.gpu.u32 %0, [%1], 1;" : "=r"(before) : "l"(arrivals) : "memory");
#endif
    return before;
}
__device__ __forceinline__ u32 arrived(const u32 *arrivals) {
    u32 now = 0;
#ifdef __CUDA_ARCH__
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(now) : "l"(arrivals) : "memory");
#endif
    return now;
}
// All threads of `blocks` blocks meet; what they have written before is then seen. The blocks must be on the device at the
// same time.
__device__ inline void meet(u32 *arrivals, u32 blocks) {
    __syncthreads();
    if (blocks == 1) return;
    if (!threadIdx.x) {
        const u32 goal = (arrive(arrivals) / blocks + 1) * blocks;
        while ((int)(arrived(arrivals) - goal) < 0) {}
    }
    __syncthreads();
}
__device__ __forceinline__ void grid_sync(u32 *arrivals) { meet(arrivals, gridDim.x); }

// Some blocks in a row as one team. Their words in memory, by the first block: three minima, in turn, and the arrivals at
// their own barrier; then for each block a sum, and a maximum.
constexpr u32 TEAM_BLOCKS = 4096;
__device__ inline void clear_teams(const Work &w) {
    for (u32 k = blockIdx.x * blockDim.x + threadIdx.x; k < 4 * gridDim.x; k += gridDim.x * blockDim.x) w.team[k] = k % 4 < 3 ? ~0ull : 0;
}
template <int THREADS> struct BlocksTeam {
    BlockTeam<THREADS> block;
    u64 *words;
    volatile u32 *sums, *tops;
    u32 first, blocks, turn = 0;
    __device__ BlocksTeam(typename BlockTeam<THREADS>::Space &s, const Work &w, u32 first_block, u32 how_many)
        : block(s), words(w.team + 4 * first_block), first(first_block), blocks(how_many) {
        sums = (volatile u32 *)(w.team + 4 * TEAM_BLOCKS) + first, tops = sums + TEAM_BLOCKS;
    }
    __device__ u32 rank() const { return (blockIdx.x - first) * THREADS + threadIdx.x; }
    __device__ u32 size() const { return blocks * THREADS; }
    __device__ void sync() { meet((u32 *)(words + 3), blocks); }
    __device__ void min(u32 &rank, u32 &at) {
        block.min(rank, at);
        if (!threadIdx.x && rank != NONE) atomicMin((unsigned long long *)words + turn, (unsigned long long)rank << 32 | at);
        const u32 own = turn;
        turn = turn == 2 ? 0 : turn + 1;
        if (blockIdx.x == first && !threadIdx.x) words[turn] = ~0ull;  // whoever has read it has come here
        sync();
        const u64 best = *(volatile u64 *)(words + own);
        rank = (u32)(best >> 32), at = (u32)best;
    }
    __device__ u32 max_before(u32 x) {
        u32 all, before = 0;
        x = block.max_before(x, all);
        if (!threadIdx.x) tops[blockIdx.x - first] = all;
        sync();
        for (u32 k = threadIdx.x; first + k < blockIdx.x; k += THREADS) before = ::max(before, tops[k]);
        block.max_before(before, all);
        __syncthreads();
        return ::max(x, all);
    }
    __device__ u32 sum_before(u32 x, u32 &total) {
        u32 before = 0, behind = 0, all;
        x = block.sum_before(x, all);
        if (!threadIdx.x) sums[blockIdx.x - first] = all;
        sync();
        for (u32 k = threadIdx.x; k < blocks; k += THREADS) (first + k < blockIdx.x ? before : behind) += sums[k];
        block.sums_of(before, behind);
        total = before + behind;
        return x + before;
    }
};

// The entry points, by the names that toktier/gpu/launcher.py asks for. `small` and `large` are shapes of the
// pre-tokenizer's tiles: the one for latency, the other for throughput.
#include "longpieces.cuh"
#include "pieces.cuh"
#include "pretokenize.cuh"

typedef Tile<16, 128> Small;
typedef Tile<64, 128> Large;

// Dynamic shared memory of the pre-tokenizer's kernels, read by the launcher: tiles, maps and heads of each shape; sizes of
// what both sides lay out.
extern "C" __device__ const u32 tt_sizes[8] = {
    sizeof(Small), sizeof(Small) + sizeof(ChunkMaps<Small>), sizeof(Large), sizeof(Large) + sizeof(ChunkMaps<Large>),
    sizeof(Tables), sizeof(Work), sizeof(Request), 0,
};

#define SHAPED(NAME, T, THREADS)                                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS) tt_tiles_##NAME(Tables t, Work w) { tiles_kernel<T>(t, w); } \
    extern "C" __global__ void __launch_bounds__(THREADS) tt_maps_##NAME(Tables t, Work w) { maps_kernel<T>(t, w); }   \
    extern "C" __global__ void __launch_bounds__(GROUP) tt_groups_##NAME(Tables t, Work w) { groups_kernel<T>(t, w); } \
    extern "C" __global__ void __launch_bounds__(THREADS) tt_heads_##NAME(Tables t, Work w) { heads_kernel<T>(t, w); }
SHAPED(small, Small, Small::THREADS)
SHAPED(large, Large, Large::THREADS)

extern "C" __global__ void __launch_bounds__(256) tt_cuts(Tables t, Work w) { cuts_kernel(t, w); }
extern "C" __global__ void __launch_bounds__(256) tt_find_longs(Tables t, Work w) { find_longs_kernel(t, w); }
extern "C" __global__ void __launch_bounds__(128) tt_windows(Tables t, Work w) { windows_kernel(t, w); }
extern "C" __global__ void __launch_bounds__(128) tt_joins(Tables t, Work w) { joins_kernel(w); }
extern "C" __global__ void __launch_bounds__(256) tt_stretches(Tables t, Work w) { stretches_kernel<256>(t, w); }
extern "C" __global__ void __launch_bounds__(128) tt_probe(Tables t, Work w) { probe_kernel(t, w); }
extern "C" __global__ void __launch_bounds__(128) tt_merge(Tables t, Work w) { merge_kernel(t, w); }
extern "C" __global__ void __launch_bounds__(128) tt_merge_many(Tables t, Work w) { merge_many_kernel(t, w); }
extern "C" __global__ void __launch_bounds__(1024) tt_scan(Tables t, Work w) { scan_tokens<1024>(w); }
extern "C" __global__ void __launch_bounds__(128) tt_compact(Tables t, Work w) { compact_kernel(w); }
extern "C" __global__ void __launch_bounds__(256) tt_deliver(Tables t, Work w) { deliver_kernel(w); }

// The entry points, by the names that toktier/gpu/launcher.py asks for. `small` and `large` are shapes of the
// pre-tokenizer's tiles: the one for latency, whose text is still in the host's memory, the other for throughput. `longs` is
// `windows` and `stretches` in one launch, `finish` is `sums` and `compact` with the delivery, `merge_few` has no room for many
// misses and so more threads, `brief` is all of it for texts of less than one of its tiles (toktier/gpu/chain.py).
#include "brief.cuh"

typedef Tile<4, 512> Brief;
typedef Tile<16, 128> Small;
typedef Tile<64, 128> Large;

// Read by the launcher: what both sides lay out; dynamic shared memory of tiles, without automata; of what else there is.
extern "C" __device__ const u32 tt_sizes[10] = {
    sizeof(Tables), sizeof(Work), sizeof(Request), offsetof(Small, moves), offsetof(Large, moves),
    sizeof(StretchSpace<256>), sizeof(ProbeSpace<PROBE_THREADS>), sizeof(MergeSpace), sizeof(BriefSpace<Brief>), Small::PULLED,
};

#ifndef SHARED
#define SHARED extern __shared__ __align__(16) u8 raw[]
#endif
#define SHAPED(NAME, T, THREADS, TILES)                                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS) tt_tiles_##NAME(Tables t, Work w) { SHARED; TILES<T>(t, w, raw); } \
    extern "C" __global__ void __launch_bounds__(THREADS) tt_heads_##NAME(Tables t, Work w) { SHARED; heads_kernel<T>(t, w, raw); find_longs(t, w); }
SHAPED(small, Small, Small::THREADS, pulled_tiles_kernel)
SHAPED(large, Large, Large::THREADS, tiles_kernel)

extern "C" __global__ void __launch_bounds__(Brief::THREADS) tt_brief(const __grid_constant__ Tables t, const __grid_constant__ Work w) { SHARED; brief_kernel<Brief>(t, w, raw); }
extern "C" __global__ void __launch_bounds__(256) tt_longs(const __grid_constant__ Tables t, const __grid_constant__ Work w) { SHARED; longs_kernel<256>(t, w, raw); }
extern "C" __global__ void __launch_bounds__(128, 12) tt_windows(Tables t, Work w) { encode_windows(t, w); }
extern "C" __global__ void __launch_bounds__(256) tt_stretches(const __grid_constant__ Tables t, const __grid_constant__ Work w) { SHARED; stretches_kernel<256>(t, w, raw); }
extern "C" __global__ void __launch_bounds__(PROBE_THREADS) tt_probe(Tables t, Work w) { SHARED; let_next_start(); probe_kernel<PROBE_THREADS>(t, w, raw); }
extern "C" __global__ void __launch_bounds__(128) tt_merge(Tables t, Work w) { SHARED; let_next_start(); wait_for_last(); merge_kernel<false>(t, w, raw); }
extern "C" __global__ void __launch_bounds__(128, 12) tt_merge_few(Tables t, Work w) { let_next_start(); wait_for_last(); merge_kernel<true>(t, w, nullptr); }
extern "C" __global__ void __launch_bounds__(1024) tt_sums(Tables t, Work w) { sums_kernel<1024>(w); }
extern "C" __global__ void __launch_bounds__(128) tt_compact(Tables t, Work w) { compact_kernel(w); }
extern "C" __global__ void __launch_bounds__(128) tt_finish(Tables t, Work w) { wait_for_last(); finish_kernel(w); }

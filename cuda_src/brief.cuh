// Kernel: a text of one tile from the host's memory to the host's memory, by one block. What other texts' kernels keep in the
// device's memory between them is in the block's own; long pieces are rare, and what they need is not.
//
// The first tile begins where the text does, so it has no head: before it stand breaks, behind which the state is known.
#pragma once
#include "longpieces.cuh"
#include "pieces.cuh"
#include "pretokenize.cuh"

template <class T> struct alignas(16) BriefSpace {
    static constexpr u32 PADDING = 64;  // bytes behind a text that may be read
    Request request;
    u8 text[T::BYTES + PADDING];  // in a row with its request, as the host puts them
    u32 mask[T::BYTES / 32], cuts[T::BYTES / 32], any, heads, deferred, pieces, tokens;
    u64 late[2];
    Exit exit;
    alignas(16) u32 ids[T::BYTES + 4], loose[T::BYTES];
    Miss shorts[T::BYTES / 2 + 1], middles[T::BYTES / 16 + 1];
    u32 sums[T::THREADS / 32];
    union alignas(16) {  // one after the other
        u8 tile[sizeof(T)], stretches[sizeof(StretchSpace<T::THREADS>)];
        u16 list[T::BYTES];
        u32 row[T::BYTES + 4];
    } now;
};

// `w` as the launcher gives it, but that all that is in the block's own memory is there.
template <class T> __device__ __forceinline__ Work in_block(const Work &w, BriefSpace<T> &s) {
    Work own = w;
    own.text = s.text, own.request = &s.request;
    own.mask = s.mask, own.cuts = s.cuts, own.any = &s.any, own.late = s.late;
    own.exits = &s.exit, own.heads = &s.heads, own.deferred = &s.deferred;
    own.ids = s.ids, own.loose = s.loose, own.shorts = s.shorts, own.middles = s.middles;
    own.pieces = &s.pieces, own.tokens = &s.tokens;
    return own;
}

// Where pieces begin, in order, four bytes a thread. Begins behind a barrier and ends at one. Returns how many.
template <class T> __device__ u32 list_brief(const BriefSpace<T> &s, u16 *list, u32 *sums) {
    static_assert(T::BYTES == 4 * T::THREADS, "");
    const u32 tid = threadIdx.x;
    u32 bits = (s.mask[tid >> 3] | s.cuts[tid >> 3]) >> 4 * (tid & 7) & 15, total, all = 0;
    u32 at = warp_sum_before(__popc(bits), total);
    if (!lane_id()) sums[tid >> 5] = total;
    __syncthreads();
    UNROLLED for (u32 k = 0; k < T::THREADS / 32; k++) {
        if (k < tid >> 5) at += sums[k];
        all += sums[k];
    }
    for (; bits; bits &= bits - 1) list[at++] = (u16)(4 * tid + lowest(bits));
    __syncthreads();
    return all;
}
// What a piece is in the vocabulary, a thread for each; those that are no token are queued. A slot of any kind is one sector of
// memory, so that pieces of both lengths wait for one answer, at the same time.
template <class T> __device__ void look_up_brief(const Tables &t, const Work &w, BriefSpace<T> &s, u32 n, u32 pieces, const u16 *list) {
    const Marks m = marks_of(w);
    for (u32 i = threadIdx.x; i < pieces; i += T::THREADS) {
        const u32 begin = list[i], end = i + 1 < pieces ? list[i + 1] : n, length = end - begin;
        u32 id = probe_at_once(t, s.text + begin, length);
        if (id != NONE && id & PIECES_ONLY) id = is_part(m, begin, end, n) ? NONE : id & ~PIECES_ONLY;
        s.ids[i] = id;
        if (id != NONE) continue;
        const Miss miss = {begin, i | length << 16};
        if (length > MIDDLE) atomicAdd(&s.request.error, 1u);
        else if (length > SHORT) s.middles[atomicAdd(&s.request.middles, 1u)] = miss;
        else s.shorts[atomicAdd(&s.request.shorts, 1u)] = miss;
    }
}

// Texts of less than a tile.
template <class T> __device__ void brief_kernel(const Tables &t, const Work &given, u8 *raw) {
    constexpr u32 STAGED = (sizeof(Request) + T::BYTES + BriefSpace<T>::PADDING) / 16, WARPS = T::THREADS / 32;
    static_assert(STAGED <= T::THREADS && offsetof(BriefSpace<T>, text) == sizeof(Request), "");
    BriefSpace<T> &s = *(BriefSpace<T> *)raw;
    const Work w = in_block(given, s);
    const u32 tid = threadIdx.x, warp = tid >> 5;
    uint4 staged = make_uint4(0, 0, 0, 0);
    if (tid < STAGED) staged = ((const uint4 *)w.staged)[tid];  // the tables come while it is on its way
    T &tile = *(T *)s.now.tile;
    load_tables(tile, t, tid);
    if (tid < STAGED) ((uint4 *)&s.request)[tid] = staged;
    __syncthreads();
    one_tile(tile, t, w, s.text, s.text, s.request.n, 0, 1);
    find_longs(t, w);
    __syncthreads();
    static_assert(T::BYTES <= SMALL_UNIT * StretchSpace<T::THREADS>::SPACES, "");
    longs_kernel<T::THREADS, true>(t, w, s.now.stretches);
    __syncthreads();
    const u32 pieces = list_brief(s, s.now.list, s.sums);
    if (!tid) s.pieces = pieces;
    look_up_brief(t, w, s, s.request.n, pieces, s.now.list);
    __syncthreads();
    merge_shorts(t, w, warp, WARPS);
    merge_middles(t, w, WARPS - 1 - warp, WARPS);  // the warps that have no short one first
    __syncthreads();
    const u32 total = row_of<T::THREADS>(w, 0, s.sums, s.now.row);
    for (u32 i = 4 * tid; i < total; i += 4 * T::THREADS) *(uint4 *)(w.host_out + i) = *(const uint4 *)(s.now.row + i);
    if (tid < 32) tell(w, total);
    tell_turn(w, 1);
}

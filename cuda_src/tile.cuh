// Pre-tokenization of one tile, in phases with a barrier between them. A tile is THREADS chunks of CHUNK bytes.
//
// A tile tells what is settled by reading its own bytes (the byte behind the text counts as a break). What it settles may
// lie in the LEFT bytes before it: those bits are its `late` word, which belongs to the tile before.
// - Every thread walks the synchronising automaton from the beginning of its chunk. Where it comes down to one state, the
//   thread knows the transducer's state, and runs it from there to the next thread's such point, or the tile's end.
// - Thread 0 begins left of the tile. If it does not synchronise in LEFT bytes, the *head* of the tile, up to the first
//   point that any thread has found, is left to statemap.cuh, which knows the state at the tile before's end.
#pragma once
#include "tables.cuh"

struct Exit {  // the transducer behind the last byte of a tile; registers are positions in the text
    u32 state, r0, r1, r2;  // state NONE: no thread of the tile has synchronised
};

template <int CHUNK_, int THREADS_> struct Tile {
    static constexpr int CHUNK = CHUNK_, THREADS = THREADS_, BYTES = CHUNK * THREADS, LEFT = 64, SPAN = LEFT + BYTES;
    static constexpr int WORDS = SPAN / 4, PER_CHUNK = CHUNK / 4;
    static constexpr int NOWHERE = 0x7fffffff;
    // one word of padding a chunk: threads that walk their chunks in step then read other banks
    static HD int slot(int word) { return word + word / PER_CHUNK; }

    u32 classes[WORDS + WORDS / PER_CHUNK + 1];
    u32 mask[SPAN / 32];
    u32 moves[MOVES_LIMIT];
    u16 sync[SYNC_LIMIT];
    u8 ascii[128];
    int from[THREADS];
    u16 state[THREADS];

    HD u32 cls(int i) const { return classes[slot(i >> 2)] >> 8 * (i & 3) & 255; }
};

template <class T> HD void load_tables(T &s, const Tables &t, int tid) {
    for (u32 i = tid; i < t.moves_size; i += T::THREADS) s.moves[i] = ro(t.moves + i);
    for (u32 i = tid; i < t.sync_size; i += T::THREADS) s.sync[i] = ro(t.sync + i);
    for (int i = tid; i < 128; i += T::THREADS) s.ascii[i] = ro(t.ascii + i);
}

// Bytes to classes. `text` is aligned to 16 bytes and readable to the next multiple of 16 behind its 3rd byte after the end.
template <class T> HD void load_classes(T &s, const Tables &t, const u8 *text, long n, long begin, int tid) {
    const u32 other = break_class(t) * 0x01010101u;
    for (int i = tid; i < T::SPAN / 32; i += T::THREADS) s.mask[i] = 0;
    for (int v = tid; v < T::SPAN / 16; v += T::THREADS) {
        long at = begin - T::LEFT + 16L * v;
        u32 out[4] = {other, other, other, other};
        if (at >= 0 && at < n) {
            u32 in[4];
#ifdef __CUDA_ARCH__
            uint4 q = *(const uint4 *)(text + at);
            in[0] = q.x, in[1] = q.y, in[2] = q.z, in[3] = q.w;
#else
            __builtin_memcpy(in, text + at, 16);
#endif
#ifdef __CUDACC__
#pragma unroll
#endif
            for (int k = 0; k < 4; k++) {
                u32 w = in[k];
                if (!(w & 0x80808080u)) {
                    out[k] = s.ascii[w & 255] | s.ascii[w >> 8 & 255] << 8 | s.ascii[w >> 16 & 255] << 16 |
                             (u32)s.ascii[w >> 24] << 24;
                } else {
                    out[k] = 0;
                    for (int j = 0; j < 4; j++) {
                        u32 b = w >> 8 * j & 255;
                        u32 c = b < 0x80 ? s.ascii[b] : b < 0xc0 ? continuation_class(t) : classify(t, text + at + 4 * k + j);
                        out[k] |= c << 8 * j;
                    }
                }
                for (int j = 0; j < 4; j++)
                    if (at + 4 * k + j >= n) out[k] = (out[k] & ~(255u << 8 * j)) | break_class(t) << 8 * j;
            }
        }
        for (int k = 0; k < 4; k++) s.classes[T::slot(4 * v + k)] = out[k];
    }
}

// From "any state" at i, up to e. Returns where it has synchronised, in `state`; NOWHERE if it has not.
template <class T> HD int synchronise(const T &s, const Tables &t, int i, int e, u32 &state) {
    const u32 base = t.states * t.stride;
    u32 q = base;
    while (i < e) {
        q = s.sync[q - base + s.cls(i++)];
        if (q < base) {
            state = q;
            return i;
        }
    }
    return T::NOWHERE;
}
template <class T> HD void find_start(T &s, const Tables &t, int tid) {
    u32 state = 0;
    int found = T::NOWHERE;
    if (tid)
        found = synchronise(s, t, T::LEFT + tid * T::CHUNK, T::LEFT + (tid + 1) * T::CHUNK, state);
    else  // mostly a few bytes are enough; what is walked twice delays the tile
        for (int back = T::LEFT / 4; back <= T::LEFT && found == T::NOWHERE; back *= 2)
            found = synchronise(s, t, T::LEFT - back, T::LEFT, state);
    s.from[tid] = found;
    s.state[tid] = (u16)state;
}

// One move of the transducer at position i. `emit` gets each settled boundary.
template <class P, class E> HD void move(u32 entry, P i, P &r0, P &r1, P &r2, E &&emit) {
    if (!(entry & 0x40f0000u)) return;
    if (entry >> 19 & 1) emit(i);
    if (entry & 0x70000u) {
        if (entry >> 16 & 1) emit(r0);
        if (entry >> 17 & 1) emit(r1);
        if (entry >> 18 & 1) emit(r2);
    }
    if (entry >> 26 & 1) {
        P v0 = r0, v1 = r1, v2 = r2;
        u32 q = entry >> 20;
        r0 = (q & 3) == 0 ? v0 : (q & 3) == 1 ? v1 : (q & 3) == 2 ? v2 : i;
        q >>= 2;
        r1 = (q & 3) == 0 ? v0 : (q & 3) == 1 ? v1 : (q & 3) == 2 ? v2 : i;
        q >>= 2;
        r2 = (q & 3) == 0 ? v0 : (q & 3) == 1 ? v1 : (q & 3) == 2 ? v2 : i;
    }
}

// Runs from each thread's point to the next one. The last thread tells the tile's exit.
template <class T> HD void walk(T &s, long begin, int tid, Exit *exit) {
    int i = s.from[tid];
    bool none = i == T::NOWHERE;
    int next = tid + 1;
    while (next < T::THREADS && s.from[next] == T::NOWHERE) next++;
    bool last = next == T::THREADS;
    if (none) {
        if (tid == 0 && last) exit->state = NONE;
        return;
    }
    const int e = last ? T::SPAN : s.from[next];
    u32 state = s.state[tid], w = i & 3 ? s.classes[T::slot(i >> 2)] >> 8 * (i & 3) : 0;
    int r0 = i, r1 = i, r2 = i;
    auto emit = [&](int at) { atomic_or(&s.mask[at >> 5], 1u << (at & 31)); };
    for (; i < e; i++) {
        if (!(i & 3)) w = s.classes[T::slot(i >> 2)];
        u32 entry = s.moves[state + (w & 255)];
        w >>= 8;
        state = entry & 0xffff;
        move(entry, i, r0, r1, r2, emit);
    }
    if (last) {
        const u32 origin = (u32)(begin - T::LEFT);
        *exit = Exit{state, origin + r0, origin + r1, origin + r2};
    }
}

// The end of the head, in bytes of the tile: 0 where there is none.
template <class T> HD int head_of(const T &s) {
    if (s.from[0] != T::NOWHERE) return 0;
    for (int k = 1; k < T::THREADS; k++)
        if (s.from[k] != T::NOWHERE) return s.from[k] - T::LEFT;
    return T::BYTES;
}

template <class T> HD u32 store_mask(const T &s, long n, long begin, int tid, u32 *mask) {
    u32 any = 0;
    for (int i = tid; i < T::BYTES / 32; i += T::THREADS) {
        long at = begin + 32L * i;
        u32 m = s.mask[T::LEFT / 32 + i];
        if (at + 32 > n) m = at >= n ? 0 : m & (NONE >> (32 - (n - at)));
        mask[at >> 5] = m;
        any |= m;
    }
    return any;
}
template <class T> HD u64 late_of(const T &s) { return (u64)s.mask[1] << 32 | s.mask[0]; }

// Pre-tokenization of one tile, in phases with a barrier between them. A tile is THREADS chunks of CHUNK bytes.
//
// A tile tells what is settled by reading its own bytes (the byte behind the text counts as a break). What it settles may
// lie in the NEAR bytes before it: those bits are its `late` word, which belongs to the tile before.
// - Every thread walks the synchronising automaton from the beginning of its chunk. Where it comes down to one state, the
//   thread knows the transducer's state, and runs it from there to the next thread's such point, or the tile's end.
// - Thread 0 begins left of the tile, NEAR bytes. Where it does not synchronise, or other threads do not, settle.cuh may find
//   the state out all the same, for which it reads more of what stands before. What is then left open of the tile is its
//   *head*, up to the first point that is known: statemap.cuh knows the state at the tile before's end.
#pragma once
#include "tables.cuh"

struct Exit {  // the transducer behind the last byte of a tile; registers are positions in the text
    u32 state, r0, r1, r2;  // state NONE: no thread of the tile has synchronised
};

template <int CHUNK_, int THREADS_> struct alignas(16) Tile {
    static constexpr int CHUNK = CHUNK_, THREADS = THREADS_, BYTES = CHUNK * THREADS;
    static constexpr int NEAR = 64, FAR = 512, LEFT = FAR + NEAR, SPAN = LEFT + BYTES;
    static constexpr int AHEAD = 32, PULLED = NEAR + BYTES + AHEAD;
    static constexpr int OWN = FAR / CHUNK, CHUNKS = OWN + THREADS;  // of the tile's chunks, the first one; of FAR bytes and of it
    static constexpr int WORDS = SPAN / 4, PER_CHUNK = CHUNK / 4;
    static constexpr int NOWHERE = 0x7fffffff;
    static constexpr int RARE = CHUNK > 16 ? 0 : 8;  // entries that a thread puts down
    // one word of padding a chunk: threads that walk their chunks in step then read other banks
    static HD int slot(int word) { return word + word / PER_CHUNK; }

    u32 classes[WORDS + WORDS / PER_CHUNK + 1];
    u32 mask[SPAN / 32];
    alignas(4) u8 blocks[BLOCKS];
    u32 rare[RARE ? RARE : 1][RARE ? THREADS : 1];
    int from[CHUNKS];  // where a chunk's thread has synchronised, and
    u16 state[CHUNKS]; // in which state; where it has not, in which subset it was at the chunk's end
    u16 exit[CHUNKS], map[CHUNKS], entry[CHUNKS];  // settle.cuh: the state behind it; which becomes which; the one before it

    // `moves`, and behind as many as there are `sync`: what a kernel does not take of shared memory is left for the cache of L1
    alignas(16) u32 moves[MOVES_LIMIT + SYNC_LIMIT / 2];

    HD u16 *sync(const Tables &t) { return (u16 *)(moves + t.moves_size); }
    HD const u16 *sync(const Tables &t) const { return (const u16 *)(moves + t.moves_size); }
    static HD int begin_of(int chunk) { return NEAR + chunk * CHUNK; }
    HD u32 cls(int i) const { return classes[slot(i >> 2)] >> 8 * (i & 3) & 255; }
};

// What an entry of `moves` says beside the state: HERE, a boundary at the position that is read; the rest is rarer.
constexpr u32 HERE_BIT = 19, HERE = 1u << HERE_BIT, RARER = 0x4070000u, RARE_BITS = 0x7f70000u, QUIET_BIT = 27;

// Bytes that a tile takes of shared memory.
template <class T> HD u32 tile_size(const Tables &t) { return offsetof(T, moves) + ((4 * t.moves_size + 2 * t.sync_size + 15) & ~15u); }
template <class T> HD void load_tables(T &s, const Tables &t, u32 tid) {
    u16 *sync = s.sync(t);
    for (u32 i = tid; i < t.moves_size || i < t.sync_size || i < BLOCKS / 4; i += T::THREADS) {
        // all is asked for before any answer is waited for
        const u32 entry = i < t.moves_size ? ro(t.moves + i) : 0;
        const u16 row = i < t.sync_size ? ro(t.sync + i) : 0;
        const u32 four = i < BLOCKS / 4 ? ro((const u32 *)t.blocks + i) : 0;
        if (i < t.moves_size) s.moves[i] = entry | (entry & HERE) << (31 - HERE_BIT);  // the highest bit too: it is shifted out with one instruction
        if (i < t.sync_size) sync[i] = row;
        if (i < BLOCKS / 4) ((u32 *)s.blocks)[i] = four;
    }
}

// The class of the character that begins with the first of eight bytes, which is not ASCII.
HD u32 class_of(const Tables &t, u64 eight) {
    const u32 x = (u32)eight, b = x & 255, b1 = x >> 8 & 63, b2 = x >> 16 & 63, b3 = x >> 24 & 63;
    const u32 point = b < 0xe0 ? (b & 31) << 6 | b1 : b < 0xf0 ? (b & 15) << 12 | b1 << 6 | b2 : (b & 7) << 18 | b1 << 12 | b2 << 6 | b3;
    return ro(t.page_classes + ro(t.pages + (point >> 7)) * 128 + (point & 127));
}
// Where `blocks` has the class of a byte: by the byte alone, or by it and the next one.
HD u32 in_blocks(u32 byte, u32 next) { return byte - 0xe0 < 16 ? 256 + ((byte & 15) << 6 | (next & 63)) : byte; }

// Bytes to classes: of the character that a byte begins, of a continuation, or of a break. Valid UTF-8 but for break bytes. `text` is
// aligned to 16 bytes and readable for 20 bytes behind the end. Bytes [from, to) of the span, multiples of 16.
// Returns bits that are set where this thread has seen a byte beyond ASCII.
template <class T> HD u32 load_part(T &s, const Tables &t, const u8 *text, long n, long begin, int from, int to, int tid) {
    constexpr int WORDS = T::CHUNK < 16 ? 1 : 4;  // of a thread at once
    const u32 other = break_class(t) * 0x01010101u;
    u32 high = 0;
    for (int v = from / (4 * WORDS) + tid; v < to / (4 * WORDS); v += T::THREADS) {
        const long at = begin - T::LEFT + 4L * WORDS * v;
        u32 out[WORDS], looks = 0;
        for (int k = 0; k < WORDS; k++) out[k] = other;
        if (at >= 0 && at < n) {
            u32 in[WORDS + 1];
            in[WORDS] = *(const u32 *)(text + at + 4 * WORDS);
#ifdef __CUDA_ARCH__
            if constexpr (WORDS == 4) {
                const uint4 q = *(const uint4 *)(text + at);
                in[0] = q.x, in[1] = q.y, in[2] = q.z, in[3] = q.w;
            } else
                in[0] = *(const u32 *)(text + at);
#else
            __builtin_memcpy(in, text + at, 4 * WORDS);
#endif
#ifdef __CUDACC__
#pragma unroll
#endif
            for (int k = 0; k < WORDS; k++) {
                const u32 w = in[k];
                high |= w & 0x80808080u;
                if (!(w & 0x80808080u))
                    out[k] = s.blocks[w & 255] | s.blocks[w >> 8 & 255] << 8 | s.blocks[w >> 16 & 255] << 16 |
                             (u32)s.blocks[w >> 24] << 24;
                else {
                    u32 found[4];
                    for (int j = 0; j < 4; j++)
                        found[j] = s.blocks[in_blocks(w >> 8 * j & 255, j < 3 ? w >> 8 * (j + 1) : in[k + 1])];
                    out[k] = found[0] | found[1] << 8 | found[2] << 16 | found[3] << 24;
                    for (int j = 0; j < 4; j++) looks |= (u32)(found[j] == LOOK) << (4 * k + j);
                }
            }
            for (int j = 0; j < 4 * WORDS && at + 4 * WORDS > n; j++)
                if (at + j >= n) {
                    out[j >> 2] = (out[j >> 2] & ~(255u << 8 * (j & 3))) | break_class(t) << 8 * (j & 3);
                    looks &= ~(1u << j);
                }
        }
        for (int k = 0; k < WORDS; k++) s.classes[T::slot(WORDS * v + k)] = out[k];
        for (; looks; looks &= looks - 1) {
            const u32 j = lowest(looks);
            ((u8 *)&s.classes[T::slot(WORDS * v + (j >> 2))])[j & 3] = (u8)class_of(t, load_8(text + at + j));
        }
    }
    return high;
}
template <class T> HD u32 load_classes(T &s, const Tables &t, const u8 *text, long n, long begin, int tid) {
    for (int i = T::FAR / 32 + tid; i < T::SPAN / 32; i += T::THREADS) s.mask[i] = 0;
    return load_part(s, t, text, n, begin, T::FAR, T::SPAN, tid);
}

// From a row of states at i, "any" if it is the first, up to e. Returns where it has synchronised, and the state; NOWHERE if it
// has not, and the row of what is possible at e.
template <class T> HD int synchronise(const T &s, const Tables &t, int i, int e, u32 &row) {
    const u32 base = t.states * t.stride;
    const u16 *sync = s.sync(t);
    while (i < e) {
        row = sync[row - base + s.cls(i++)];
        if (row < base) return i;
    }
    return T::NOWHERE;
}
HD u32 any_state(const Tables &t) { return t.states * t.stride; }
// Of a chunk: the tile's, or one of those before it.
template <class T> HD void find_start(T &s, const Tables &t, int chunk) {
    const int begin = T::begin_of(chunk), end = begin + T::CHUNK;
    u32 row = any_state(t);
    int found = T::NOWHERE;
    if (chunk == T::OWN)  // mostly a few bytes are enough; what is walked twice delays the tile
        for (int back = T::NEAR / 4; back <= T::NEAR && found == T::NOWHERE; back *= 2)
            found = synchronise(s, t, begin - back, begin, row = any_state(t));
    if (found == T::NOWHERE) found = synchronise(s, t, begin, end, row);
    s.from[chunk] = found;
    s.state[chunk] = (u16)row;
}

// The rarer part of a move at position i. `emit` gets each boundary that is settled now.
template <class P, class E> HD void move_rarer(u32 entry, P i, P &r0, P &r1, P &r2, E &&emit) {
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
template <class P, class E> HD void move(u32 entry, P i, P &r0, P &r1, P &r2, E &&emit) {
    if (entry & HERE) emit(i);
    if (entry & RARER) move_rarer(entry, i, r0, r1, r2, emit);
}

// The transducer in the middle of a tile. Two registers in a word; above the lower half of r2x stands what does not matter.
struct Running {
    u32 state, r01, r2x;
    HD u32 r0() const { return r01 & 0xffff; }
    HD u32 r1() const { return r01 >> 16; }
    HD u32 r2() const { return r2x & 0xffff; }
    HD void move(u32 entry, u32 i) {  // as move_rarer
        const u32 others = pick_bytes(r2x, i, 0x5410), two = 0x1010 + 0x22 * (entry >> 20 & 3) + 0x2200 * (entry >> 22 & 3);
        r2x = pick_bytes(r01, others, 0x10 + 0x22 * (entry >> 24 & 3));
        r01 = pick_bytes(r01, others, two);
    }
};
template <class T> HD void mark(T &s, u32 at) { atomic_or(&s.mask[at >> 5], 1u << (at & 31)); }

// From i to e with as few instructions a byte as can be, for much text.
template <class T> HD void walk_words(T &s, Running &at, int i, int e) {
    u32 here = 0;  // boundaries of kind HERE in the word of the mask that i is in, the last one lowest
    auto step = [&](u32 cls) {
        const u32 entry = s.moves[at.state + cls];
        at.state = entry & 0xffff;
        here = shift_in(here, entry);
        if (entry & RARER) {
            if (entry >> 16 & 1) mark(s, at.r0());
            if (entry >> 17 & 1) mark(s, at.r1());
            if (entry >> 18 & 1) mark(s, at.r2());
            if (entry >> 26 & 1) at.move(entry, i);
        }
        i++;
    };
    auto flush = [&] {  // behind a word's last step
        if (here) atomic_or(&s.mask[(i - 1) >> 5], reversed(here) >> (31 - ((i - 1) & 31)));
        here = 0;
    };
    while (i < e && i & 3) step(s.cls(i));
    if (!(i & 31)) flush();
    while (i + 4 <= e) {
        const u32 w = s.classes[T::slot(i >> 2)];
        step(w & 255);
        step(w >> 8 & 255);
        step(w >> 16 & 255);
        step(w >> 24);
        if (!(i & 31)) flush();
    }
    while (i < e) step(s.cls(i));
    flush();
}
// The same so that the threads of a warp wait little for each other, for little text: at nearly every step one of them has
// something rare to do. That is put down, with its place, and done when 32 steps are.
template <class T> HD void walk_steps(T &s, Running &at, int i, int e, int tid) {
    while (i < e) {
        const int start = i, stop = e < start + 32 ? e : start + 32;
        u32 here = 0, rare = 0;
        do {
            const u32 entry = s.moves[at.state + s.cls(i)];
            at.state = entry & 0xffff;
            here = shift_in(here, entry);
            if (entry & RARER) s.rare[rare++][tid] = (entry & RARE_BITS) | i;
            i++;
        } while (i < stop && rare < T::RARE);
        here = reversed(here) >> (32 - (i - start));
        const u32 behind = start & 31 ? here >> (32 - (start & 31)) : 0;
        if (here) atomic_or(&s.mask[start >> 5], here << (start & 31));
        if (behind) atomic_or(&s.mask[(start >> 5) + 1], behind);
        for (u32 k = 0; k < rare; k++) {
            const u32 entry = s.rare[k][tid];
            if (entry >> 16 & 1) mark(s, at.r0());
            if (entry >> 17 & 1) mark(s, at.r1());
            if (entry >> 18 & 1) mark(s, at.r2());
            if (entry >> 26 & 1) at.move(entry, entry & 0xffff);
        }
    }
}
// Runs from each thread's point to the next one. The last thread tells the tile's exit.
template <class T> HD void walk(T &s, long begin, int tid, Exit *exit) {
    const int i = s.from[T::OWN + tid];
    const bool none = i == T::NOWHERE;
    int next = T::OWN + tid + 1;
    while (next < T::CHUNKS && s.from[next] == T::NOWHERE) next++;
    const bool last = next == T::CHUNKS;
    if (none) {
        if (tid == 0 && last) exit->state = NONE;
        return;
    }
    const int e = last ? T::SPAN : s.from[next];
    static_assert(T::SPAN < 1 << 16, "two registers in a word, and a place in an entry");
    Running at = {s.state[T::OWN + tid], i * 0x10001u, (u32)i};
    if constexpr (T::RARE != 0) walk_steps(s, at, i, e, tid);
    else walk_words(s, at, i, e);
    if (last) {
        const u32 origin = (u32)(begin - T::LEFT);
        *exit = Exit{at.state, origin + at.r0(), origin + at.r1(), origin + at.r2()};
    }
}

// The end of the head, in bytes of the tile: 0 where there is none.
template <class T> HD int head_of(const T &s) {
    for (int chunk = T::OWN; chunk < T::CHUNKS; chunk++)
        if (s.from[chunk] != T::NOWHERE) return s.from[chunk] <= T::LEFT ? 0 : s.from[chunk] - T::LEFT;
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
template <class T> HD u64 late_of(const T &s) { return (u64)s.mask[T::LEFT / 32 - 1] << 32 | s.mask[T::LEFT / 32 - 2]; }

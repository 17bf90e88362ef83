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
    static constexpr int PART = CHUNK < 16 ? 4 : 16;  // bytes that a thread classifies at once
    static constexpr int AHEAD = 32, PULLED = LEFT + BYTES + AHEAD;  // as much of a text in the host's memory has room in the block's
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
// `near`: how far back the tile's first chunk may look.
template <class T> HD void find_start(T &s, const Tables &t, int chunk, int near = T::NEAR) {
    const int begin = T::begin_of(chunk), end = begin + T::CHUNK;
    u32 row = any_state(t);
    int found = T::NOWHERE;
    if (chunk == T::OWN)  // mostly a few bytes are enough; what is walked twice delays the tile
        for (int back = T::NEAR / 4; back <= near && found == T::NOWHERE; back *= 4)
            found = synchronise(s, t, begin - back, begin, row = any_state(t));
    if (found == T::NOWHERE) found = synchronise(s, t, begin, end, row);
    s.from[chunk] = found;
    s.state[chunk] = (u16)row;
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

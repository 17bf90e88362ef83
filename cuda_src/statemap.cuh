// Stretches in which nothing synchronises, as maps from the state before them to the state behind them. Maps compose, so
// no thread ever walks such a stretch from its beginning: chunks make maps of tiles, tiles make maps of groups, and the
// state at any tile follows from the last known one in a few steps.
#pragma once
#include "classes.cuh"
#include "walk.cuh"

constexpr u32 GROUP = 64;        // tiles
constexpr u32 HELD = 0xfffffff0; // HELD + k in a map: what register k held before

struct Map {
    u32 state, r0, r1, r2;  // a register: a position in the text, or HELD + k
};
HD Map identity(u32 state) { return Map{state, HELD, HELD + 1, HELD + 2}; }
HD u32 carried(u32 r, const Map &before) {
    return r < HELD ? r : r == HELD ? before.r0 : r == HELD + 1 ? before.r1 : before.r2;
}
HD Map then(const Map &before, const Map &after) {  // `after` is the map of before.state
    return Map{after.state, carried(after.r0, before), carried(after.r1, before), carried(after.r2, before)};
}

// Of a chunk, packed: state | register codes of 8 bits each; a code is 0 to 2, a register held, or 3 + position in the chunk.
template <class T> struct ChunkMaps {
    u32 of[1];  // [state][chunk]
};
template <class T> HD u32 chunks_size(const Tables &t) { return t.states * T::THREADS * 4; }
template <class T> HD void map_chunk(ChunkMaps<T> &maps, const T &s, const Tables &t, int tid, int end) {
    const int from = T::LEFT + tid * T::CHUNK, to = from + T::CHUNK < T::LEFT + end ? from + T::CHUNK : T::LEFT + end;
    for (u32 q = 0; q < t.states; q++) {
        u32 state = q * t.stride, held = 0x020100;  // a code a byte; what stands in the fourth does not matter
        for (int i = from; i < to; i++) {
            const u32 entry = s.moves[state + s.cls(i)];
            state = entry & 0xffff;
            if (entry >> 26 & 1) {  // as move_rarer
                const u32 which = (entry >> 20 & 3) | (entry >> 18 & 0x30) | (entry >> 16 & 0x300);
                held = pick_bytes(pick_bytes(held, i - from + 3, 0x4210), 0, which);
            }
        }
        maps.of[q * T::THREADS + tid] = state / t.stride | held << 8;
    }
}
HD u32 unpacked(u32 code, u32 at) { return code < 3 ? HELD + code : at + code - 3; }
template <class T> HD Map chunk_map(const ChunkMaps<T> &maps, u32 state, int chunk, u32 begin) {
    u32 m = maps.of[state * T::THREADS + chunk], at = begin + chunk * T::CHUNK;
    return Map{m & 255, unpacked(m >> 8 & 255, at), unpacked(m >> 16 & 255, at), unpacked(m >> 24, at)};
}
template <class T> HD Map tile_map(const ChunkMaps<T> &maps, u32 state, u32 begin) {
    Map m = identity(state);
    for (int k = 0; k < T::THREADS; k++) m = then(m, chunk_map(maps, m.state, k, begin));
    return m;
}

// What is known of tiles: exits, and maps of those without one; of groups whose tiles are all without, a map as well.
struct Stretches {
    const Exit *exits;
    const Map *maps;          // [tile][STATES_LIMIT]
    const Map *group_maps;    // [group][STATES_LIMIT]
    const u32 *group_opaque;  // [group]
};
HD Map group_map(const Map *maps, u32 group, u32 state) {
    Map m = identity(state);
    for (u32 k = group * GROUP; k < (group + 1) * GROUP; k++) m = then(m, maps[(size_t)k * STATES_LIMIT + m.state]);
    return m;
}
// The transducer before the first byte of `tile`, which is not the first tile.
HD Map entry_of(const Stretches &known, u32 tile, u32 stride) {
    u32 at = tile;  // the state before tile `at` is that behind at - 1
    while (known.exits[at - 1].state == NONE) {
        if (at % GROUP == 0 && known.group_opaque[at / GROUP - 1])
            at -= GROUP;
        else
            at--;
    }
    const Exit &e = known.exits[at - 1];
    Map m = Map{e.state / stride, e.r0, e.r1, e.r2};
    while (at < tile) {
        if (at % GROUP == 0 && at + GROUP <= tile && known.group_opaque[at / GROUP]) {
            m = then(m, known.group_maps[(size_t)(at / GROUP) * STATES_LIMIT + m.state]);
            at += GROUP;
        } else {
            m = then(m, known.maps[(size_t)at * STATES_LIMIT + m.state]);
            at++;
        }
    }
    return m;
}

// Bytes of a head that one thread walks in less time than all take for the maps of its chunks.
constexpr int SHORT_HEAD = 192;

// Bytes [from, to) of a head, from their true state. Boundaries may lie anywhere before them. `any`: per tile, whether one
// begins there.
template <class T>
HD void walk_head(const T &s, const Tables &t, const Map &entry, long n, u32 begin, int from, int to, u32 *mask, u32 *any) {
    from += T::LEFT, to += T::LEFT;
    u32 state = entry.state * t.stride, r0 = entry.r0, r1 = entry.r1, r2 = entry.r2;
    auto emit = [&](u32 at) {
        if (at >= n) return;
        atomic_or(&mask[at >> 5], 1u << (at & 31));
        any[at / T::BYTES] = 1;
    };
    for (int i = from; i < to; i++) {
        u32 move_entry = s.moves[state + s.cls(i)];
        state = move_entry & 0xffff;
        move(move_entry, begin + (u32)(i - T::LEFT), r0, r1, r2, emit);
    }
}

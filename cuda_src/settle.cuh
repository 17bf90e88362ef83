// The state before a chunk in which nothing synchronises, where few states are possible: a row of CJK, which may be upper or
// lower case to gpt-oss's pattern, leaves two of them for as long as it goes on.
//
// What a thread that has not synchronised knows behind its chunk is a subset of states, with MEMBERS or fewer of them mostly.
// The next thread runs its own chunk from each of those, in no more time than it takes to walk it, and notes which becomes
// which: a map of two bits a member. From the last thread that has synchronised on, one thread then follows the maps, chunk by
// chunk. A state found so is the machine's own; a thread may begin to walk there if it reads no register (synchronise.py).
//
// In phases with a barrier between them, each for all chunks from `first` on: those of the tile, and FAR bytes before it where
// the tile's own beginning is not known.
#pragma once
#include "tile.cuh"

constexpr int MEMBERS = 4;
constexpr u32 NO_MEMBER = 0xffff, NO_MAP = 0x100, EXACT = MEMBERS;  // EXACT: it is `exit` of the chunk before
constexpr int SETTLED_FROM = 32;  // bytes that a thread walks beyond its chunk in less time than settling takes

HD u64 members_of(const Tables &t, u32 row) { return ro(t.members + (row - t.states * t.stride)); }
HD u32 member(u64 members, u32 k) { return (u32)(members >> 16 * k) & 0xffff; }
HD u32 index_in(u64 members, u32 row) {
    for (u32 k = 0; k < MEMBERS; k++)
        if (member(members, k) == row) return k;
    return MEMBERS;
}
template <class T> HD u32 run(const T &s, u32 row, int i, int e) {
    for (; i < e; i++) row = s.moves[row + s.cls(i)] & 0xffff;
    return row;
}
// Whether the state before a chunk is asked for. The first one of the tile may have synchronised inside.
template <class T> HD bool is_open(const T &s, int chunk) {
    return s.from[chunk] == T::NOWHERE || (chunk == T::OWN && s.from[chunk] > T::LEFT);
}
// Whether it is worth settling, for a chunk of the tile: the tile's beginning is not known, or some thread would walk far.
template <class T> HD bool is_far(const T &s, int chunk) {
    if (!is_open(s, chunk)) return false;
    for (int back = 1; back * T::CHUNK < SETTLED_FROM + T::CHUNK && chunk - back >= T::OWN; back++)
        if (!is_open(s, chunk - back)) return false;
    return true;
}

// Behind chunks that have synchronised, where the next one has not.
template <class T> HD void settle_exits(T &s, int chunk) {
    s.entry[chunk] = NO_MEMBER;
    if (s.from[chunk] == T::NOWHERE || chunk + 1 == T::CHUNKS || !is_open(s, chunk + 1)) return;
    s.exit[chunk] = (u16)run(s, s.state[chunk], s.from[chunk], T::begin_of(chunk + 1));
}
template <class T, int N> HD u32 map_of(const T &s, u64 before, u64 behind, int begin) {
    u32 rows[N], map = 0;
    for (int k = 0; k < N; k++) rows[k] = member(before, k) == NO_MEMBER ? 0 : member(before, k);
    for (int i = begin; i < begin + T::CHUNK; i++) {
        const u32 cls = s.cls(i);
        for (int k = 0; k < N; k++) rows[k] = s.moves[rows[k] + cls] & 0xffff;
    }
    for (int k = 0; k < N; k++) map |= (index_in(behind, rows[k]) & 3) << 2 * k;
    return map;
}
// Of chunks that have not: which state before it becomes which behind it. NO_MAP: more are possible than are kept.
template <class T> HD void settle_maps(T &s, const Tables &t, int chunk, int first) {
    s.map[chunk] = NO_MAP;
    if (s.from[chunk] != T::NOWHERE || chunk == first) return;
    const u64 behind = members_of(t, s.state[chunk]);
    const int begin = T::begin_of(chunk);
    u32 map;
    if (s.from[chunk - 1] != T::NOWHERE) {
        map = index_in(behind, run(s, s.exit[chunk - 1], begin, begin + T::CHUNK));
    } else {
        const u64 before = members_of(t, s.state[chunk - 1]);
        if (member(before, 0) == NO_MEMBER) return;
        map = member(before, 2) == NO_MEMBER ? map_of<T, 2>(s, before, behind, begin) : map_of<T, 4>(s, before, behind, begin);
    }
    if (member(behind, 0) != NO_MEMBER) s.map[chunk] = (u16)map;
}
// Follows the maps from the last chunk that has synchronised on.
template <class T> HD void settle_entries(T &s, int chunk, int first) {
    if (chunk == first || !is_open(s, chunk) || s.from[chunk - 1] == T::NOWHERE) return;
    s.entry[chunk] = EXACT;
    u32 map = s.map[chunk], k = 0;
    for (int c = chunk + 1; map != NO_MAP && c < T::CHUNKS; c++) {
        k = map >> 2 * k & 3;
        map = s.map[c];
        s.entry[c] = (u16)k;
    }
}
// From the member's number to its row, or NO_MEMBER where no thread may begin.
template <class T> HD void settle_rows(T &s, const Tables &t, int chunk) {
    u32 row = s.entry[chunk];
    if (row == NO_MEMBER) return;
    row = row == EXACT ? s.exit[chunk - 1] : member(members_of(t, s.state[chunk - 1]), row);
    const bool quiet = s.moves[row + continuation_class(t)] >> QUIET_BIT & 1;
    s.entry[chunk] = (u16)(quiet && is_open(s, chunk) ? row : NO_MEMBER);
}
template <class T> HD void settle_starts(T &s, int chunk) {
    if (s.entry[chunk] != NO_MEMBER) s.from[chunk] = T::begin_of(chunk), s.state[chunk] = s.entry[chunk];
}

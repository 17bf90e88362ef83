// The transducer over a tile, each thread from the point at which its state is known to the next one's.
#pragma once
#include "tile.cuh"

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

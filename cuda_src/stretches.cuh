// Kernel: what the windows of long pieces leave open, in passes (units.cuh).
#pragma once
#include "teams.cuh"

template <class Team, class P> __device__ void begin_unit(Team &team, const Tables &t, Sequence<P> &s, const u8 *text) {
    share_begin(s, t, text, share_of(s.size, team.rank(), team.size()));
}
// A round whose rule is a dip. False: too much of it for one thread lies together.
template <class Team, class P> __device__ bool merge_dip(Team &team, const Tables &t, Sequence<P> &s, u32 rank, const Share &own) {
    for (u32 margin = MARGIN; margin <= MARGIN_LIMIT; margin *= 4) {
        team.sync();
        const Part part = part_of(s, rank, own, margin);
        u32 kept, left, unused = 0, came_to = try_part(s, t, rank, part, kept);
        team.min(came_to, unused);
        if (came_to == TOO_LONG) break;
        if (came_to == AGAIN) continue;
        const u32 to = team.sum_before(kept, left);
        put_part(s, part, kept, to);
        s.size = left;
        return true;
    }
    return false;
}
// Rounds until all is merged, or no more than `few` tokens are left. False: a dip in too long a sequence.
template <class Team, class P> __device__ __forceinline__ bool merge_rounds(Team &team, const Tables &t, Sequence<P> &s, u32 few) {
    bool whole = true;
    for (;;) {
        team.sync();
        if (s.size <= few) break;
        const Share own = share_of(s.size, team.rank(), team.size());
        u32 at, rank = share_rank(s, t, own, at);
        team.min(rank, at);
        if (rank == NONE) break;
        u32 left;
        if (rank & 1) {
            whole = merge_dip(team, t, s, rank, own);
            if (whole) continue;
            break;
        }
        const Pair m = pair_at(s, t, at);
        const u32 run = m.left == m.right ? team.max_before(share_run(s, m, own)) : 0;
        const u32 from = share_from(s, m, own, run);
        const u32 to = team.sum_before(share_count(s, m, from, own), left);
        share_merge(s, m, from, own, to);
        s.swap(left);
    }
    return whole;
}
// There is one of these for each kind of team, not for each place that calls it, as a kernel's code is read from memory too; but a
// warp's, whose rounds are short.
template <class Team, class P> __device__ __noinline__ bool merge_unit(Team team, const Tables &t, Sequence<P> &given, u32 few = 0) {
    Sequence<P> s = given;
    const bool whole = merge_rounds(team, t, s, few);
    given = s;
    return whole;
}
template <class P> __device__ __forceinline__ bool merge_unit(WarpTeam &team, const Tables &t, Sequence<P> &s) { return merge_rounds(team, t, s, 0); }
template <class Team, class P> __device__ bool encode_unit(Team &team, const Tables &t, Sequence<P> &s, const u8 *text) {
    begin_unit(team, t, s, text);
    return merge_unit(team, t, s);
}

__device__ inline void mark(const Work &w, u32 word, u32 bits) {
    if (!bits) return;
    atomicOr(w.mask + word, bits);
    w.any[word >> w.shift] = 1;
}
// The tokens of a unit into the mask, in place of what was there.
template <class Team> __device__ void clear_unit(Team &team, const Work &w, const Unit &unit) {
    const u32 last = (unit.end - 1) >> 5;
    for (u32 word = (unit.begin >> 5) + team.rank(); word <= last; word += team.size())
        if (u32 bits = inside(unit.begin, unit.end, word)) atomicAnd(w.mask + word, ~bits);
}
template <class Team, class P> __device__ void put_unit(Team &team, const Work &w, const Unit &unit, const Sequence<P> &s) {
    for (u32 i = 1 + team.rank(); i < s.size; i += team.size()) {
        const u32 at = unit.begin + s.starts[i];
        mark(w, at >> 5, 1u << (at & 31));
    }
}

// Room for a unit of up to SMALL_UNIT bytes; several in a row are room for one of so many times as long.
struct SmallSpace {
    u32 room[5 * SMALL_UNIT];
};
__device__ inline Sequence<u16> small_sequence(SmallSpace *x, u32 spaces, u32 size) {
    const u32 room = spaces * SMALL_UNIT;
    u32 *at = x->room;
    u16 *starts = (u16 *)(at + 4 * room);
    return Sequence<u16>{at, at + room, starts, at + 2 * room, at + 3 * room, starts + room, size};
}
// Room for any unit, at its own place in the text: what these arrays are for comes later.
__device__ inline Sequence<u32> long_sequence(const Work &w, const Unit &unit) {
    const u32 at = unit.begin;
    return Sequence<u32>{w.ids + at,        w.ranks + at, w.loose + at, w.spare + at,
                         (u32 *)w.shorts + at, w.out + at,   unit.end - unit.begin};
}

template <int THREADS> struct StretchSpace {
    static constexpr int SPACES = THREADS > 256 ? 8 : THREADS / 32;  // warps that encode units of their own; others have no room
    SmallSpace small[SPACES];
    typename BlockTeam<THREADS>::Space team;
    RunList runs;
    u32 flag, end;
    u32 unit, first, blocks;  // of a team of blocks
};

// The long piece of a slot, and the slot's word.
__device__ inline u32 piece_of(const Work &w, u32 pieces, u32 slot) {
    u32 low = 0, high = pieces;
    while (high - low > 1) {
        u32 middle = (low + high) / 2;
        if (w.longs[middle].first + middle <= slot) low = middle;
        else high = middle;
    }
    return low;
}
__device__ __forceinline__ u32 word_of(const LongPiece &p, u32 piece, u32 slot) { return first_word(p) + slot - first_slot(p, piece); }
__device__ __forceinline__ Marked marked_of(const Work &w, const LongPiece &p, u32 piece, u32 pass) {
    return Marked{w.marked + first_slot(p, piece), pass};
}

// By one lane or thread: the ends of this unit are to be looked at.
__device__ inline void list_unit(const Work &w, const Unit &unit, u32 pass) {
    w.units[atomicAdd(w.request->units + (pass & 1), 1u)] = unit;
}

// Finds the units of a pass. Those of a warp are encoded at once; of others is listed where they begin.
template <int THREADS> __device__ void small_units(const Tables &t, const Work &w, StretchSpace<THREADS> &space, u32 pass) {
    const u64 longs = w.request->longs;
    constexpr u32 SPACES = StretchSpace<THREADS>::SPACES;
    const u32 pieces = longs >> 32, slots = slots_of(longs), warp = threadIdx.x >> 5;
    if (warp >= SPACES) return;
    const Marks m = marks_of(w);
    SmallSpace &own = space.small[warp];
    WarpTeam team;
    for (u32 base = 32 * (blockIdx.x * SPACES + warp); base < slots; base += 32 * SPACES * gridDim.x) {
        const u32 slot = base + lane_id();
        u32 piece = 0, word = 0, begin = 0;
        bool found = slot < slots && w.marked[slot] == pass;
        if (found) {
            piece = piece_of(w, pieces, slot);
            const LongPiece p = w.longs[piece];
            word = word_of(p, piece, slot);
            found = unit_begins(m, p, marked_of(w, p, piece, pass), word, begin);
        }
        for (u32 left = __ballot_sync(ALL, found); left; left &= left - 1) {
            const int who = __ffs(left) - 1;
            const u32 of = __shfl_sync(ALL, piece, who), first = __shfl_sync(ALL, word, who);
            const LongPiece p = w.longs[of];
            const u32 behind = first + 1 + lane_id();
            Unit unit = {__shfl_sync(ALL, begin, who), 0, of};
            bool ends = behind <= last_word(p) + 1 && unit_ends(m, p, marked_of(w, p, of, pass), behind, unit.end);
            const u32 any = __ballot_sync(ALL, ends);
            unit.end = __shfl_sync(ALL, unit.end, any ? __ffs(any) - 1 : 0);
            if (!any || unit.end - unit.begin > SMALL_UNIT) {
                if (!lane_id())
                    w.bigs[atomicAdd(w.request->bigs + (pass & 1), 1u)] = (u64)(base + who) << 32 | unit.begin;
                continue;
            }
            clear_unit(team, w, unit);
            Sequence<u16> s = small_sequence(&own, 1, unit.end - unit.begin);
            if (!encode_unit(team, t, s, w.text + unit.begin) && !lane_id()) atomicAdd(&w.request->error, 1u);
            put_unit(team, w, unit, s);
            if (!lane_id() && (unit.begin > p.begin || unit.end < p.end)) list_unit(w, unit, pass);
            __syncwarp();
        }
    }
}

// Whether a unit is one byte again and again.
template <int THREADS> __device__ bool block_one_byte(const u8 *text, const Unit &unit) {
    const u64 all = text[unit.begin] * 0x0101010101010101ull;
    bool same = true;
    for (u32 at = unit.begin + 8 * threadIdx.x; at < unit.end && same; at += 8 * THREADS)
        same = first_bytes(load_8(text + at) ^ all, unit.end - at) == 0;
    return __syncthreads_and(same);
}
template <int THREADS> __device__ bool encode_run(const Tables &t, const Work &w, StretchSpace<THREADS> &space, const Unit &unit) {
    if (!block_one_byte<THREADS>(w.text, unit)) return false;
    if (!threadIdx.x) space.flag = merge_run(t, w.text[unit.begin], unit.end - unit.begin, space.runs);
    __syncthreads();
    if (!space.flag) return false;
    const u32 last = (unit.end - 1) >> 5;
    for (u32 word = (unit.begin >> 5) + threadIdx.x; word <= last; word += THREADS) {
        u32 bits = 0, from = unit.begin, all = inside(unit.begin, unit.end, word);
        for (int i = 0; i < space.runs.size; i++) {
            bits |= run_bits(space.runs.of[i], from, word);
            from += space.runs.of[i].length * space.runs.of[i].count;
        }
        if (all) atomicAnd(w.mask + word, ~all);
        mark(w, word, bits & all);
    }
    return true;
}

// Finds where the units of a pass end that are no warp's. Runs are encoded at once; of the others, `bigs` has from then on the ends
// and the beginnings of those that are for one block (nothing for the rest), `giants` has those that are for several.
// BRIEF: no text is longer than what the block's own memory has room for.
template <int THREADS, bool BRIEF> __device__ void find_big_units(const Tables &t, const Work &w, StretchSpace<THREADS> &space, u32 pass) {
    const u32 bigs = w.request->bigs[pass & 1], pieces = w.request->longs >> 32;
    const Marks m = marks_of(w);
    for (u32 k = blockIdx.x; k < bigs; k += gridDim.x) {
        const u32 slot = w.bigs[k] >> 32, piece = piece_of(w, pieces, slot);
        const LongPiece p = w.longs[piece];
        const Marked marked = marked_of(w, p, piece, pass);
        Unit unit = {(u32)w.bigs[k], 0, piece};
        if (!threadIdx.x) space.end = NONE;
        __syncthreads();
        for (u32 from = word_of(p, piece, slot) + 1; from <= last_word(p) + 1; from += 4 * THREADS) {
            u32 end, least = NONE;
            for (u32 j = 0; j < 4; j++) {
                const u32 word = from + 4 * threadIdx.x + j;
                if (least == NONE && word <= last_word(p) + 1 && unit_ends(m, p, marked, word, end)) least = end;
            }
            if (least != NONE) atomicMin(&space.end, least);
            if (__syncthreads_or(least != NONE)) break;
        }
        unit.end = space.end;
        const bool run = encode_run(t, w, space, unit), giant = !BRIEF && unit.end - unit.begin > BLOCK_UNIT * THREADS;
        if (!threadIdx.x) {
            w.bigs[k] = run || giant ? 0 : (u64)unit.end << 32 | unit.begin;
            if (!run && giant) w.giants[atomicAdd(w.request->giants + (pass & 1), 1u)] = unit;
            if (unit.begin > p.begin || unit.end < p.end) list_unit(w, unit, pass);
        }
        __syncthreads();
    }
}

// A unit by one block. Ends behind a barrier.
template <int THREADS, bool BRIEF> __device__ void unit_by_block(const Tables &t, const Work &w, StretchSpace<THREADS> &space, const Unit &unit) {
    BlockTeam<THREADS> team(space.team);
    bool whole = true;
    clear_unit(team, w, unit);
    if (BRIEF || unit.end - unit.begin <= SMALL_UNIT * space.SPACES) {
        Sequence<u16> s = small_sequence(space.small, space.SPACES, unit.end - unit.begin);
        whole = encode_unit(team, t, s, w.text + unit.begin);
        put_unit(team, w, unit, s);
    } else if constexpr (!BRIEF) {
        Sequence<u32> s = long_sequence(w, unit);
        whole = encode_unit(team, t, s, w.text + unit.begin);
        put_unit(team, w, unit, s);
    }
    if (!whole && !threadIdx.x) atomicAdd(&w.request->error, 1u);
    __syncthreads();
}

// Those for several blocks, by the first `blocks` of all: each has as many as its length is among all, one at least; where there are
// more than blocks, one in turn.
template <int THREADS> __device__ void giant_units(const Tables &t, const Work &w, StretchSpace<THREADS> &space, u32 giants, u32 blocks) {
    BlockTeam<THREADS> block(space.team);
    if (giants >= blocks) {
        for (u32 k = blockIdx.x; k < giants; k += blocks) unit_by_block<THREADS, false>(t, w, space, w.giants[k]);
        return;
    }
    const u32 spare = blocks - giants;
    u32 all = 0, done = 0, total;
    for (u32 k = threadIdx.x; k < giants; k += THREADS) all += w.giants[k].end - w.giants[k].begin;
    block.sum_before(all, all);
    for (u32 base = 0; base < giants; base += THREADS) {
        const u32 k = base + threadIdx.x, own = k < giants ? w.giants[k].end - w.giants[k].begin : 0;
        __syncthreads();
        const u32 before = done + block.sum_before(own, total);
        const u32 first = k + (u32)((u64)before * spare / all), behind = k + 1 + (u32)((u64)(before + own) * spare / all);
        if (k < giants && first <= blockIdx.x && blockIdx.x < behind) space.unit = k, space.first = first, space.blocks = behind - first;
        done += total;
    }
    __syncthreads();
    BlocksTeam<THREADS> team(space.team, w, space.first, space.blocks);
    const Unit unit = w.giants[space.unit];
    clear_unit(team, w, unit);
    Sequence<u32> s = long_sequence(w, unit);
    begin_unit(team, t, s, w.text + unit.begin);
    bool whole = merge_unit(team, t, s, BLOCK_UNIT * THREADS);
    if (whole && s.size <= BLOCK_UNIT * THREADS) {  // one block is quicker with the rest
        if (blockIdx.x != space.first) return;
        whole = merge_unit(block, t, s);
        put_unit(block, w, unit, s);
    } else {
        put_unit(team, w, unit, s);
    }
    if (!whole && !team.rank()) atomicAdd(&w.request->error, 1u);
}

// All that find_big_units has found, at the same time: at least half of the blocks for giants, where there are any.
template <int THREADS, bool BRIEF> __device__ void big_units(const Tables &t, const Work &w, StretchSpace<THREADS> &space, u32 pass) {
    const u32 bigs = w.request->bigs[pass & 1], giants = w.request->giants[pass & 1];
    u32 first = 0;  // of the blocks for the others
    if constexpr (!BRIEF) {
        if (giants) {
            first = gridDim.x - min(bigs, gridDim.x / 2);
            if (blockIdx.x < first) giant_units(t, w, space, giants, first);
            if (first == gridDim.x) first = 0;  // there is one block
            else if (blockIdx.x < first) return;
        }
    }
    for (u32 k = blockIdx.x - first; k < bigs; k += gridDim.x - first)
        if (const u64 unit = w.bigs[k]) unit_by_block<THREADS, BRIEF>(t, w, space, Unit{(u32)unit, (u32)(unit >> 32), 0});
}

// The place of a token's beginning next to `at`, which is one too: before it, or behind; the piece's end if there is none.
// NOWHERE_NEAR: too far for what a warp encodes.
constexpr u32 NOWHERE_NEAR = NONE;
__device__ inline u32 token_before(const Marks &m, const LongPiece &p, u32 at) {
    const u32 word = at >> 5;
    const bool own = word >= first_word(p) + lane_id();
    u32 k = word - lane_id(), bits = own ? tokens_at(m, p, k) : 0;
    if (!lane_id()) bits &= (1u << (at & 31)) - 1;
    const u32 found = __ballot_sync(ALL, bits != 0), who = found ? __ffs(found) - 1 : 0;
    const u32 place = __shfl_sync(ALL, bits ? k * 32 + highest(bits) : 0, who);
    return found ? place : NOWHERE_NEAR;
}
__device__ inline u32 token_behind(const Marks &m, const LongPiece &p, u32 at) {
    const u32 word = (at >> 5) + lane_id();
    u32 bits = word <= last_word(p) ? tokens_at(m, p, word) : 0;
    if (!lane_id()) bits &= ~((2u << (at & 31)) - 1);
    const u32 found = __ballot_sync(ALL, bits != 0), who = found ? __ffs(found) - 1 : 0;
    const u32 place = __shfl_sync(ALL, bits ? word * 32 + lowest(bits) : 0, who);
    return found ? place : (at >> 5) + 32 > last_word(p) ? p.end : NOWHERE_NEAR;
}
// Whether BPE of the two tokens that meet at `at` is those two.
__device__ inline bool settled(const Tables &t, const Work &w, SmallSpace &space, const LongPiece &p, u32 at) {
    const Marks m = marks_of(w);
    const u32 begin = token_before(m, p, at), end = token_behind(m, p, at);
    if (begin == NOWHERE_NEAR || end == NOWHERE_NEAR || end - begin > SMALL_UNIT) return false;
    WarpTeam team;
    Sequence<u16> s = small_sequence(&space, 1, end - begin);
    const bool done = encode_unit(team, t, s, w.text + begin);
    const bool fine = done && s.size == 2 && begin + s.starts[1] == at;
    __syncwarp();
    return fine;
}

__device__ inline void look_at_ends(const Tables &t, const Work &w, SmallSpace &space, u32 pass, u32 warp, u32 warps) {
    const u32 ends = 2 * w.request->units[pass & 1];
    for (u32 k = warp; k < ends; k += warps) {
        const Unit unit = w.units[k / 2];
        const u32 piece = unit.piece, at = k & 1 ? unit.end : unit.begin;
        const LongPiece p = w.longs[piece];
        if (at == p.begin || at == p.end || settled(t, w, space, p, at)) continue;
        u32 first, last;
        around(p, at, pass, first, last);
        for (u32 word = first + lane_id(); word <= last; word += 32) w.marked[first_slot(p, piece) + word - first_word(p)] = pass + 1;
        if (!lane_id()) atomicAdd(&w.request->unsettled, 1u);
    }
}

template <int THREADS, bool BRIEF> __device__ void encode_stretches(const Tables &t, const Work &w, StretchSpace<THREADS> &space) {
    Request &r = *w.request;
    u32 unsettled = 0;
    for (u32 pass = 1;; pass++) {
        const u32 odd = pass & 1;
        small_units(t, w, space, pass);
        grid_sync(&r.barriers[1]);
        if (r.bigs[odd]) {
            if constexpr (!BRIEF) clear_teams(w);
            find_big_units<THREADS, BRIEF>(t, w, space, pass);
            grid_sync(&r.barriers[1]);
            big_units<THREADS, BRIEF>(t, w, space, pass);
            grid_sync(&r.barriers[1]);
        }
        if (!r.units[odd]) break;
        if (!blockIdx.x && !threadIdx.x) r.units[!odd] = r.bigs[!odd] = r.giants[!odd] = 0, r.passes = pass;
        if (const u32 warp = threadIdx.x >> 5; warp < space.SPACES)
            look_at_ends(t, w, space.small[warp], pass, blockIdx.x * space.SPACES + warp, gridDim.x * space.SPACES);
        grid_sync(&r.barriers[1]);
        const u32 now = r.unsettled;
        if (now == unsettled) break;
        unsettled = now;
    }
}


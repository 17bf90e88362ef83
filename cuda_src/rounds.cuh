// BPE of a stretch of any length, by rounds: each merges all occurrences of the lowest pair (merges.py, batches). For what
// windows cannot join: repetitive text, which has few rounds. A team of threads takes one (teams.cuh), each a contiguous
// share of the tokens; between the phases here the team meets. Ranks stay beside the tokens and are looked up again only
// where a merge was.
#pragma once
#include "runs.cuh"
#include "windows.cuh"

constexpr u32 DIPS_LIMIT = 2048;  // tokens of a stretch with a dip: one thread takes those
constexpr u32 ASK = NONE - 1;     // in `ranks`: to be looked up

template <class P> struct Sequence {  // P holds a place: bytes behind the stretch's beginning
    u32 *tokens, *ranks;              // ranks[i]: of tokens i and i + 1
    P *starts;
    u32 *next_tokens, *next_ranks;
    P *next_starts;
    u32 size;
    HD void swap(u32 left) {
        u32 *p = tokens;
        tokens = next_tokens, next_tokens = p;
        p = ranks;
        ranks = next_ranks, next_ranks = p;
        P *q = starts;
        starts = next_starts, next_starts = q;
        size = left;
    }
};
struct Share {
    u32 low, high;
};
HD Share share_of(u32 size, u32 rank, u32 threads) {
    u32 each = (size + threads - 1) / threads, low = rank * each < size ? rank * each : size;
    return Share{low, low + each < size ? low + each : size};
}
struct Pair {
    u32 left, right, product;
};

template <class P> HD void share_begin(const Sequence<P> &s, const Tables &t, const u8 *text, const Share &own) {
    for (u32 i = own.low; i < own.high; i++) {
        s.tokens[i] = ro(t.of_byte + text[i]);
        s.starts[i] = (P)i;
        s.ranks[i] = ASK;
    }
}
// The lowest rank of the share, and a place that has it.
template <class P> HD u32 share_rank(const Sequence<P> &s, const Tables &t, const Share &own, u32 &at) {
    u32 best = NONE;
    at = own.low;
    for (u32 i = own.low; i < own.high && i + 1 < s.size; i++) {
        u32 rank = s.ranks[i], product;
        if (rank == ASK) s.ranks[i] = rank = pair_rank(t, s.tokens[i], s.tokens[i + 1], product);
        if (rank < best) best = rank, at = i;
    }
    return best;
}
template <class P> HD Pair pair_at(const Sequence<P> &s, const Tables &t, u32 at) {
    Pair m = {s.tokens[at], s.tokens[at + 1], 0};
    pair_rank(t, m.left, m.right, m.product);
    return m;
}
// Behind the last token of the share that is not `left`: where a run of it would begin. 0: the share has no other.
template <class P> HD u32 share_run(const Sequence<P> &s, const Pair &m, const Share &own) {
    u32 i = own.high;
    while (i > own.low && s.tokens[i - 1] == m.left) i--;
    return i > own.low ? i : 0;
}
template <class P> HD bool merges_at(const Sequence<P> &s, const Pair &m, u32 i) {
    return i + 1 < s.size && s.tokens[i] == m.left && s.tokens[i + 1] == m.right;
}
// The first token of a share that is not the second one of a merge in the share before. `run`: where the run of `left`
// before the share begins.
template <class P> HD u32 share_from(const Sequence<P> &s, const Pair &m, const Share &own, u32 run) {
    if (!own.low || own.low == own.high || !merges_at(s, m, own.low - 1)) return own.low;
    return own.low + (m.left != m.right || (own.low - run) & 1);
}
template <class P> HD u32 share_count(const Sequence<P> &s, const Pair &m, u32 from, const Share &own) {
    u32 n = 0;
    for (u32 i = from; i < own.high; i += merges_at(s, m, i) ? 2 : 1) n++;
    return n;
}
template <class P> HD void share_merge(const Sequence<P> &s, const Pair &m, u32 from, const Share &own, u32 to) {
    for (u32 i = from; i < own.high; to++) {
        bool merge = merges_at(s, m, i);
        u32 next = i + 1 + merge;
        s.next_tokens[to] = merge ? m.product : s.tokens[i];
        s.next_starts[to] = s.starts[i];
        s.next_ranks[to] = merge || merges_at(s, m, next) ? ASK : s.ranks[i];
        i = next;
    }
}
// A round whose rule is a dip, by one thread: each merge from the left, followed by those of its rank or below that it makes
// possible. All pairs that are left behind rank above it. Returns how many tokens are left.
template <class P> HD u32 one_by_one(const Sequence<P> &s, const Tables &t, u32 rank) {
    u32 kept = 0, i = 0;
    while (i < s.size) {
        u32 token = s.tokens[i];
        P start = s.starts[i++];
        for (;;) {
            u32 made_left = 0, made_right = 0;
            u32 left = kept ? pair_rank(t, s.next_tokens[kept - 1], token, made_left) : NONE;
            u32 right = i < s.size ? pair_rank(t, token, s.tokens[i], made_right) : NONE;
            if (left <= right && left <= rank) {
                token = made_left;
                start = s.next_starts[--kept];
            } else if (right <= rank) {
                token = made_right;
                i++;
            } else {
                break;
            }
        }
        s.next_tokens[kept] = token;
        s.next_ranks[kept] = ASK;
        s.next_starts[kept++] = start;
    }
    return kept;
}

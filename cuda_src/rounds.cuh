// BPE of a stretch of any length, by rounds: each merges all occurrences of the lowest pair (merges.py, batches). For what
// windows cannot join: repetitive text, which has few rounds. A team of threads takes one (teams.cuh), each a contiguous
// share of the tokens; between the phases here the team meets. Ranks stay beside the tokens and are looked up again only
// where a merge was.
#pragma once
#include "runs.cuh"
#include "windows.cuh"

constexpr u32 DIPS_LIMIT = 2048;  // tokens that one thread takes in a round whose rule is a dip
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
// N values from `base` on, `other` from `end` on: all are asked for before any is looked at, as an answer takes long; less so of
// short sequences, which lie in the block's own memory.
template <class P> constexpr u32 AT_A_TIME = sizeof(P) == 2 ? 1 : 8;
template <u32 N, class V> HD void read(const V *from, u32 base, u32 end, V other, V (&into)[N]) {
    UNROLLED for (u32 k = 0; k < N; k++) into[k] = base + k < end ? from[base + k] : other;
}
// The lowest rank of the share, and a place that has it.
template <class P> HD u32 share_rank(const Sequence<P> &s, const Tables &t, const Share &own, u32 &at) {
    constexpr u32 AT = AT_A_TIME<P>;
    const u32 end = own.high < s.size ? own.high : s.size - 1;  // the last token begins no pair
    u32 best = NONE;
    at = own.low;
    for (u32 base = own.low; base < end; base += AT) {
        u32 ranks[AT], asked = 0;
        read(s.ranks, base, end, NONE, ranks);
        UNROLLED for (u32 k = 0; k < AT; k++) asked |= (u32)(ranks[k] == ASK) << k;
        if (asked) {
            u32 tokens[AT + 1];
            read(s.tokens, base, s.size, NONE, tokens);
            if constexpr (AT == 1) {
                u32 product;
                s.ranks[base] = ranks[0] = pair_rank(t, tokens[0], tokens[1], product);
            } else UNROLLED for (u32 half = 0; half < AT; half += 4) {
                u32 left[4], right[4], rank[4], product[4];
                UNROLLED for (u32 k = 0; k < 4; k++)
                    left[k] = asked >> (half + k) & 1 ? tokens[half + k] : NONE, right[k] = tokens[half + k + 1];
                if (asked >> half & 15) pair_ranks(t, left, right, rank, product);
                UNROLLED for (u32 k = 0; k < 4; k++)
                    if (left[k] != NONE) s.ranks[base + half + k] = ranks[half + k] = rank[k];
            }
        }
        UNROLLED for (u32 k = 0; k < AT; k++)
            if (ranks[k] < best) best = ranks[k], at = base + k;
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
    constexpr u32 AT = AT_A_TIME<P>;
    for (u32 end = own.high; end > own.low;) {
        const u32 base = end - own.low > AT ? end - AT : own.low;
        u32 tokens[AT], last = 0;
        read(s.tokens, base, end, m.left, tokens);
        UNROLLED for (u32 k = 0; k < AT; k++)
            if (tokens[k] != m.left) last = base + k + 1;
        if (last) return last;
        end = base;
    }
    return 0;
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
    constexpr u32 AT = AT_A_TIME<P>;
    u32 n = 0;
    bool merged = false;  // into the token before it
    for (u32 base = from; base < own.high; base += AT) {
        u32 tokens[AT + 1];
        read(s.tokens, base, s.size, NONE, tokens);
        UNROLLED for (u32 k = 0; k < AT; k++) {
            if (base + k >= own.high) break;
            n += !merged;
            merged = !merged && tokens[k] == m.left && tokens[k + 1] == m.right;
        }
    }
    return n;
}
template <class P> HD void share_merge(const Sequence<P> &s, const Pair &m, u32 from, const Share &own, u32 to) {
    constexpr u32 AT = AT_A_TIME<P>;
    bool merged = false;
    for (u32 base = from; base < own.high; base += AT) {
        u32 tokens[AT + 2], ranks[AT];
        P starts[AT];
        read(s.tokens, base, s.size, NONE, tokens);
        read(s.ranks, base, own.high, NONE, ranks);
        read(s.starts, base, own.high, (P)0, starts);
        UNROLLED for (u32 k = 0; k < AT; k++) {
            if (base + k >= own.high) break;
            if (merged) {
                merged = false;
                continue;
            }
            const bool next = tokens[k + 1] == m.left && tokens[k + 2] == m.right;  // merges, unless this one takes it
            merged = tokens[k] == m.left && tokens[k + 1] == m.right;
            s.next_tokens[to] = merged ? m.product : tokens[k];
            s.next_starts[to] = starts[k];
            s.next_ranks[to++] = merged || next ? ASK : ranks[k];
        }
    }
}
// A round whose rule is a dip: each of its merges from the left, followed by those of its rank or below that it makes
// possible. What is left is BPE by the rules up to that rank, to which the lemmas of merges.py apply as to all rules. So it
// may be done in *parts* that begin away from merges: where all tokens beside a part's ends are left as they were, two
// neighbours there are the BPE of their own text (their pair ranks above), and lemma B says that the parts' results are the
// whole's. Where one is not, all is done again with parts that begin farther from merges.
struct Part {
    u32 begin, end;
};
constexpr u32 MARGIN = 4, MARGIN_LIMIT = 4096;  // tokens on both sides of a part's beginning that no pair of the rank has
static_assert(MARGIN_LIMIT > DIPS_LIMIT, "at last one thread has all that it may");

// The first token of [from, to) at which a part may begin; `to` if there is none.
template <class P> HD u32 quiet_from(const Sequence<P> &s, u32 rank, u32 from, u32 to, u32 margin) {
    u32 quiet = 0;  // pairs in a row that are of another rank; the one before token i is pair i - 1
    for (u32 i = from > margin ? from - margin : 1; i < to + margin && i < s.size; i++) {
        quiet = s.ranks[i - 1] == rank ? 0 : quiet + 1;
        if (quiet > 2 * margin && i - margin >= from) return i - margin;
    }
    return to;
}
// The part that begins in a share: empty where none does. Longer than DIPS_LIMIT: where it ends is not known.
template <class P> HD Part part_of(const Sequence<P> &s, u32 rank, const Share &own, u32 margin) {
    const u32 begin = own.low ? quiet_from(s, rank, own.low, own.high, margin) : 0;
    if (begin == own.high) return Part{begin, begin};
    const u32 stop = begin + DIPS_LIMIT + 1 < s.size ? begin + DIPS_LIMIT + 1 : s.size;
    return Part{begin, own.high < stop ? quiet_from(s, rank, own.high, stop, margin) : stop};
}
// One part, by one thread; its tokens are put at its own beginning. Returns how many are left.
template <class P> HD u32 merge_part(const Sequence<P> &s, const Tables &t, u32 rank, const Part &part) {
    u32 kept = part.begin, i = part.begin;
    bool same_before = true;  // the last token that is kept is one of `s`
    while (i < part.end) {
        u32 token = s.tokens[i], right_rank = s.ranks[i];
        P start = s.starts[i++];
        bool same = true;
        for (;;) {
            u32 made_left = 0, made_right = 0, left = NONE, right = NONE;
            if (kept > part.begin && !(same && same_before)) left = pair_rank(t, s.next_tokens[kept - 1], token, made_left);
            if (i < part.end && (!same || right_rank == rank)) right = pair_rank(t, token, s.tokens[i], made_right);
            if (left <= right && left <= rank) {
                token = made_left;
                start = s.next_starts[--kept];
            } else if (right <= rank) {
                token = made_right;
                i++;
            } else {
                break;
            }
            same = false;
        }
        if (!same && kept > part.begin) s.next_ranks[kept - 1] = ASK;
        s.next_tokens[kept] = token;
        s.next_ranks[kept] = same ? right_rank : ASK;
        s.next_starts[kept++] = start;
        same_before = same;
    }
    return kept - part.begin;
}
// What a part's round came to, the lesser of all counts: it has to be done again where a token at an end is not as it was.
enum : u32 { TOO_LONG, AGAIN, DONE };
template <class P> HD u32 try_part(const Sequence<P> &s, const Tables &t, u32 rank, const Part &part, u32 &left) {
    left = 0;
    if (part.end - part.begin > DIPS_LIMIT) return TOO_LONG;
    if (part.begin == part.end) return DONE;
    left = merge_part(s, t, rank, part);
    // a token that was merged is another one
    const bool first = !part.begin || s.next_tokens[part.begin] == s.tokens[part.begin];
    const bool last = part.end == s.size || s.next_tokens[part.begin + left - 1] == s.tokens[part.end - 1];
    return first && last ? DONE : AGAIN;
}
// Puts a part's tokens where they belong among all, in place of what was merged.
template <class P> HD void put_part(const Sequence<P> &s, const Part &part, u32 left, u32 to) {
    for (u32 k = 0; k < left; k++) {
        s.tokens[to + k] = s.next_tokens[part.begin + k];
        s.ranks[to + k] = s.next_ranks[part.begin + k];
        s.starts[to + k] = s.next_starts[part.begin + k];
    }
}

// BPE of a stretch of any length, by rounds: each merges all occurrences of the lowest pair (merges.py, batches). For what
// windows cannot join: repetitive text, which has few rounds. Phases of THREADS threads with a barrier between them; each
// thread has a contiguous share of the tokens.
#pragma once
#include "runs.cuh"
#include "windows.cuh"

constexpr u32 DIPS_LIMIT = 8192;  // tokens of a stretch with a dip: one thread takes those, some 10 ms at most

template <int THREADS_> struct Rounds {
    static constexpr int THREADS = THREADS_;
    u32 *tokens, *starts, *next_tokens, *next_starts;
    u32 size;
    u32 rank, left, right, product;        // the pair of this round
    u32 best[THREADS];                     // per share: its lowest rank, then how many tokens it leaves
    u32 pair_left[THREADS], pair_right[THREADS], pair_product[THREADS];
    u32 trailing[THREADS];                 // how many tokens at the end of the share are `left`
    u32 done;
    HD u32 low(int tid) const { return (u32)((u64)size * tid / THREADS); }
    HD u32 high(int tid) const { return (u32)((u64)size * (tid + 1) / THREADS); }
};
template <class R> HD void rounds_begin(R &s, const Tables &t, const u8 *text, u32 begin, u32 end, int tid) {
    for (u32 i = tid; i < end - begin; i += R::THREADS) {
        s.tokens[i] = ro(t.of_byte + ro(text + begin + i));
        s.starts[i] = begin + i;
    }
}
template <class R> HD void rounds_rank(R &s, const Tables &t, int tid) {
    u32 best = NONE;
    for (u32 i = s.low(tid); i < s.high(tid) && i + 1 < s.size; i++) {
        u32 product, rank = pair_rank(t, s.tokens[i], s.tokens[i + 1], product);
        if (rank >= best) continue;
        best = rank;
        s.pair_left[tid] = s.tokens[i], s.pair_right[tid] = s.tokens[i + 1], s.pair_product[tid] = product;
    }
    s.best[tid] = best;
}
template <class R> HD void rounds_pick(R &s) {  // one thread
    int from = 0;
    for (int k = 1; k < R::THREADS; k++)
        if (s.best[k] < s.best[from]) from = k;
    s.rank = s.best[from];
    s.left = s.pair_left[from], s.right = s.pair_right[from], s.product = s.pair_product[from];
}
template <class R> HD void rounds_trailing(R &s, int tid) {
    u32 run = 0;
    for (u32 i = s.high(tid); i > s.low(tid) && s.tokens[i - 1] == s.left; i--) run++;
    s.trailing[tid] = run;
}
// Whether the first token of a share is the second one of a merge that the share before makes.
template <class R> HD bool taken(const R &s, int tid) {
    u32 low = s.low(tid);
    if (!low || low == s.high(tid) || s.tokens[low] != s.right || s.tokens[low - 1] != s.left) return false;
    if (s.left != s.right) return true;
    u32 run = 0;
    for (int k = tid - 1; k >= 0; k--) {
        run += s.trailing[k];
        if (s.trailing[k] < s.high(k) - s.low(k)) break;
    }
    return run & 1;
}
template <class R> HD bool merges_at(const R &s, u32 i) {
    return i + 1 < s.size && s.tokens[i] == s.left && s.tokens[i + 1] == s.right;
}
template <class R> HD u32 rounds_count(R &s, int tid) {  // the caller puts it into s.best[tid] behind a barrier
    u32 n = 0;
    for (u32 i = s.low(tid) + taken(s, tid); i < s.high(tid); i += merges_at(s, i) ? 2 : 1) n++;
    return n;
}
template <class R> HD void rounds_sum(R &s) {  // one thread: counts to offsets
    u32 sum = 0;
    for (int k = 0; k < R::THREADS; k++) {
        u32 n = s.best[k];
        s.best[k] = sum;
        sum += n;
    }
    s.done = sum;
}
template <class R> HD void rounds_merge(R &s, int tid) {
    u32 to = s.best[tid];
    for (u32 i = s.low(tid) + taken(s, tid); i < s.high(tid); to++) {
        bool merge = merges_at(s, i);
        s.next_tokens[to] = merge ? s.product : s.tokens[i];
        s.next_starts[to] = s.starts[i];
        i += merge ? 2 : 1;
    }
}
// A round whose rule is a dip, by one thread: each merge from the left, followed by those of its rank or below that it makes
// possible. All pairs that are left behind rank above it.
template <class R> HD void rounds_one_by_one(R &s, const Tables &t) {
    u32 kept = 0, i = 0;
    while (i < s.size) {
        u32 token = s.tokens[i], start = s.starts[i++];
        for (;;) {
            u32 made_left = 0, made_right = 0;
            u32 left = kept ? pair_rank(t, s.next_tokens[kept - 1], token, made_left) : NONE;
            u32 right = i < s.size ? pair_rank(t, token, s.tokens[i], made_right) : NONE;
            if (left <= right && left <= s.rank) {
                token = made_left;
                start = s.next_starts[--kept];
            } else if (right <= s.rank) {
                token = made_right;
                i++;
            } else {
                break;
            }
        }
        s.next_tokens[kept] = token;
        s.next_starts[kept++] = start;
    }
    s.done = kept;
}
template <class R> HD void rounds_swap(R &s) {  // one thread
    u32 *p = s.tokens;
    s.tokens = s.next_tokens;
    s.next_tokens = p;
    p = s.starts;
    s.starts = s.next_starts;
    s.next_starts = p;
    s.size = s.done;
}

// Whether the tokens of a stretch, of which the second begins at `second` (its end if there is none) and the last at `last`,
// fit what stands beside it.
HD bool fits(const Stretch &s, u32 second, u32 last) {
    return (!s.head_end || second == s.head_end) && (!s.tail_begin || last == s.tail_begin);
}
// The bits of `word` that lie inside (begin, end): those that the stretch decides.
HD u32 inside(u32 begin, u32 end, u32 word) {
    u32 from = word * 32, low = begin + 1 > from ? begin + 1 - from : 0, high = end < from + 32 ? end - from : 32;
    if (low >= high) return 0;
    return (NONE << low) & (NONE >> (32 - high));
}

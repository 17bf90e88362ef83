// BPE of one byte repeated, in closed form: the text as runs of equal tokens. A round merges all occurrences of the lowest
// pair (merges.py, batches), which halves a run; so there are few rounds and few runs, however long the text is.
#pragma once
#include "pairs.cuh"

constexpr int RUNS = 32;

struct Run {
    u32 token, length, count;
};
struct RunList {
    Run of[RUNS];
    int size;
    HD bool push(Run r) {
        if (!r.count) return true;
        if (size && of[size - 1].token == r.token) {
            of[size - 1].count += r.count;
            return true;
        }
        if (size == RUNS) return false;
        of[size++] = r;
        return true;
    }
};
// False where there would be too many runs, or merges must be made one by one.
HD bool merge_run(const Tables &t, u32 byte, u32 length, RunList &list) {
    list.size = 1;
    list.of[0] = Run{ro(t.of_byte + byte), 1, length};
    for (;;) {
        u32 best = NONE, left = 0, right = 0, made = 0;
        for (int i = 0; i < list.size; i++) {
            u32 product = 0, rank = list.of[i].count > 1 ? pair_rank(t, list.of[i].token, list.of[i].token, product) : NONE;
            if (rank < best) best = rank, left = right = list.of[i].token, made = product;
            rank = i + 1 < list.size ? pair_rank(t, list.of[i].token, list.of[i + 1].token, product) : NONE;
            if (rank < best) best = rank, left = list.of[i].token, right = list.of[i + 1].token, made = product;
        }
        if (best == NONE) return true;
        if (best & 1) return false;
        RunList next;
        next.size = 0;
        bool fits = true;
        for (int i = 0; i < list.size; i++) {
            Run r = list.of[i];
            if (r.token == left && left == right) {
                fits = fits && next.push(Run{made, 2 * r.length, r.count / 2}) && next.push(Run{r.token, r.length, r.count & 1});
            } else if (r.token == left && i + 1 < list.size && list.of[i + 1].token == right && r.count) {
                fits = fits && next.push(Run{r.token, r.length, r.count - 1});
                fits = fits && next.push(Run{made, r.length + list.of[i + 1].length, 1});
                list.of[i + 1].count--;
            } else {
                fits = fits && next.push(r);
            }
        }
        if (!fits) return false;
        list = next;
    }
}
// The bits of a word at which tokens of a run begin; the run begins at `begin`.
HD u32 run_bits(const Run &r, u32 begin, u32 word) {
    u32 from = word * 32, k = from > begin ? (from - begin + r.length - 1) / r.length : 0, bits = 0;
    for (; k < r.count; k++) {
        u32 at = begin + k * r.length;
        if (at >= from + 32) break;
        bits |= 1u << (at - from);
    }
    return bits;
}

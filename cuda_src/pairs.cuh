// Merges: the table of pairs, and BPE of one short piece by one thread (toktier/gpu/merges.py has the lemmas).
#pragma once
#include "tables.cuh"

HD u32 hash_pair(u32 left, u32 right, u32 bits) {
    return (left * 0x9E3779B9u + right) * 0xD6E8FEB9u >> (32 - bits) & ~1u;
}
// The rank of a pair and the token that it makes; NONE where there is no such merge.
HD u32 pair_rank(const Tables &t, u32 left, u32 right, u32 &product) {
#ifdef __CUDA_ARCH__
    for (u32 i = hash_pair(left, right, t.bits_pair);; i = (i + 2) & ((1u << t.bits_pair) - 1)) {
        // two slots are one sector of memory: both are read before either is looked at
        uint4 a = __ldg((const uint4 *)(t.pairs + i)), b = __ldg((const uint4 *)(t.pairs + i + 1));
        bool first = a.x == left && a.y == right;
        if (first || (b.x == left && b.y == right)) {
            product = first ? a.w : b.w;
            return first ? a.z : b.z;
        }
        if (a.z == NONE || b.z == NONE) return NONE;
    }
#else
    for (u32 i = hash_pair(left, right, t.bits_pair);; i = (i + 1) & ((1u << t.bits_pair) - 1)) {
        const SlotPair &q = t.pairs[i];
        if (q.left == left && q.right == right && q.rank != NONE) {
            product = q.product;
            return q.rank;
        }
        if (q.rank == NONE) return NONE;
    }
#endif
}

// Of N pairs at once, `left` NONE for none: on a device all memory is asked for before any answer is looked at.
template <int N> HD void pair_ranks(const Tables &t, const u32 (&left)[N], const u32 (&right)[N], u32 (&rank)[N], u32 (&product)[N]) {
#ifdef __CUDA_ARCH__
    uint4 a[N], b[N];
    UNROLLED for (int k = 0; k < N; k++) {
        u32 i = left[k] == NONE ? 0 : hash_pair(left[k], right[k], t.bits_pair);
        a[k] = __ldg((const uint4 *)(t.pairs + i)), b[k] = __ldg((const uint4 *)(t.pairs + i + 1));
    }
    UNROLLED for (int k = 0; k < N; k++) {
        bool first = a[k].x == left[k] && a[k].y == right[k], second = b[k].x == left[k] && b[k].y == right[k];
        rank[k] = first ? a[k].z : second ? b[k].z : NONE;
        product[k] = first ? a[k].w : b[k].w;
        if (!first && !second && left[k] != NONE && a[k].z != NONE && b[k].z != NONE)  // displaced
            rank[k] = pair_rank(t, left[k], right[k], product[k]);
    }
#else
    for (int k = 0; k < N; k++) rank[k] = left[k] == NONE ? NONE : pair_rank(t, left[k], right[k], product[k]);
#endif
}

// BPE of `length` tokens: the lowest rank first, of equals the leftmost. Ranks stay beside the tokens, so that a merge asks
// for two pairs only. tokens, ranks and products are `step` apart. Returns how many tokens.
HD int merge_tokens(const Tables &t, int length, u32 *tokens, u32 *ranks, u32 *products, int step) {
    for (int i = 0; i + 1 < length; i += 4) {
        u32 left[4], right[4], rank[4], product[4];
        for (int k = 0; k < 4; k++) {
            bool there = i + k + 1 < length;
            left[k] = there ? tokens[(i + k) * step] : NONE, right[k] = there ? tokens[(i + k + 1) * step] : 0;
        }
        pair_ranks(t, left, right, rank, product);
        for (int k = 0; k < 4; k++)
            if (left[k] != NONE) ranks[(i + k) * step] = rank[k], products[(i + k) * step] = product[k];
    }
    int n = length;
    while (n > 1) {
        u32 best = NONE;
        int at = 0;
        for (int i = 0; i < n - 1; i++)
            if (ranks[i * step] < best) best = ranks[i * step], at = i;
        if (best == NONE) break;
        const u32 made = products[at * step];
        n--;
        u32 left[2] = {at > 0 ? tokens[(at - 1) * step] : NONE, at < n - 1 ? made : NONE}, right[2] = {made, 0}, rank[2], product[2];
        if (at < n - 1) right[1] = tokens[(at + 2) * step];
        pair_ranks(t, left, right, rank, product);
        tokens[at * step] = made;
        for (int i = at + 1; i < n; i++) {
            tokens[i * step] = tokens[(i + 1) * step];
            if (i < n - 1) ranks[i * step] = ranks[(i + 1) * step], products[i * step] = products[(i + 1) * step];
        }
        if (at < n - 1) ranks[at * step] = rank[1], products[at * step] = product[1];
        if (at > 0) ranks[(at - 1) * step] = rank[0], products[(at - 1) * step] = product[0];
    }
    return n;
}
// BPE of the bytes at x.
HD int merge_piece(const Tables &t, const u8 *x, int length, u32 *tokens, u32 *ranks, u32 *products, int step) {
    for (int i = 0; i < length; i++) tokens[i * step] = ro(t.of_byte + x[i]);
    return merge_tokens(t, length, tokens, ranks, products, step);
}

// Merges: the table of pairs, and BPE of one short piece by one thread (toktier/gpu/merges.py has the lemmas).
#pragma once
#include "tables.cuh"

HD u32 hash_pair(u32 left, u32 right, u32 bits) {
    u64 mixed = (u64)left * 0x9E3779B97F4A7C15ull ^ (u64)right * 0xD6E8FEB86659FD93ull;
    return (u32)(mixed * 0xA0761D6478BD642Full >> (64 - bits)) & ~1u;
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

// BPE of the bytes at x: the lowest rank first, of equals the leftmost. Ranks stay beside the tokens, so that a merge asks
// for two pairs only. tokens, ranks, products and starts have room for `length`, `step` apart. Returns how many tokens.
HD int merge_piece(const Tables &t, const u8 *x, int length, u32 *tokens, u32 *ranks, u32 *products, int step) {
    for (int i = 0; i < length; i++) tokens[i * step] = ro(t.of_byte + ro(x + i));
    for (int i = 0; i + 1 < length; i++) ranks[i * step] = pair_rank(t, tokens[i * step], tokens[(i + 1) * step], products[i * step]);
    int n = length;
    while (n > 1) {
        u32 best = NONE;
        int at = 0;
        for (int i = 0; i < n - 1; i++)
            if (ranks[i * step] < best) best = ranks[i * step], at = i;
        if (best == NONE) break;
        tokens[at * step] = products[at * step];
        n--;
        for (int i = at + 1; i < n; i++) {
            tokens[i * step] = tokens[(i + 1) * step];
            if (i < n - 1) ranks[i * step] = ranks[(i + 1) * step], products[i * step] = products[(i + 1) * step];
        }
        if (at < n - 1) ranks[at * step] = pair_rank(t, tokens[at * step], tokens[(at + 1) * step], products[at * step]);
        if (at > 0) ranks[(at - 1) * step] = pair_rank(t, tokens[(at - 1) * step], tokens[at * step], products[(at - 1) * step]);
    }
    return n;
}

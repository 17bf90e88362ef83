// Whole pieces by their bytes: three exact tables, by length. The hashes are those of toktier/gpu/hashing.py.
#pragma once
#include "tables.cuh"

HD u32 hash_8(u64 key, u32 length, u32 bits) {
    return (u32)(((key ^ (u64)length * 0x9E3779B97F4A7C15ull) * 0xD6E8FEB86659FD93ull) >> (64 - bits)) & ~1u;
}
HD u32 hash_16(u64 low, u64 high, u32 length, u32 bits) {
    u64 mixed = low * 0x9E3779B97F4A7C15ull;
    return (u32)(((mixed ^ (mixed >> 29) ^ high ^ length) * 0xD6E8FEB86659FD93ull) >> (64 - bits));
}
HD u64 first_bytes(u64 x, u32 length) { return length < 8 ? x & ((1ull << 8 * length) - 1) : x; }
HD u64 hash_long(const u8 *x, u32 length) {
    u64 h = length;
    for (u32 at = 0; at < length; at += 8) {
        h = (h ^ first_bytes(load_8(x + at), length - at)) * 0x9E3779B97F4A7C15ull;
        h ^= h >> 32;
    }
    return h * 0xD6E8FEB86659FD93ull;
}

// The token of 1 to 8 bytes, or NONE.
HD u32 probe_8(const Tables &t, u64 key, u32 length) {
#ifdef __CUDA_ARCH__
    for (u32 i = hash_8(key, length, t.bits_8);; i = (i + 2) & ((1u << t.bits_8) - 1)) {
        uint4 a = __ldg((const uint4 *)(t.slots_8 + i)), b = __ldg((const uint4 *)(t.slots_8 + i + 1));
        if (((u64)a.y << 32 | a.x) == key && a.w == length) return a.z;
        if (((u64)b.y << 32 | b.x) == key && b.w == length) return b.z;
        if (!a.w || !b.w) return NONE;
    }
#else
    for (u32 i = hash_8(key, length, t.bits_8);; i = (i + 1) & ((1u << t.bits_8) - 1)) {
        const Slot8 &q = t.slots_8[i];
        if (!q.length) return NONE;
        if (q.key == key && q.length == length) return q.id;
    }
#endif
}
// The token that the piece at x is, or NONE. Up to 7 bytes behind the piece are read.
HD u32 probe(const Tables &t, const u8 *x, u32 length) {
    if (length <= 8) return probe_8(t, first_bytes(load_8(x), length), length);
    if (length <= 16) {
        u64 low = load_8(x), high = first_bytes(load_8(x + 8), length - 8);
        for (u32 i = hash_16(low, high, length, t.bits_16);; i = (i + 1) & ((1u << t.bits_16) - 1)) {
            const Slot16 *q = t.slots_16 + i;
            u32 held = ro(&q->length);
            if (!held) return NONE;
            if (held == length && ro(&q->low) == low && ro(&q->high) == high) return ro(&q->id);
        }
    }
    if (length > t.longest) return NONE;
    u64 hash = hash_long(x, length);
    for (u32 i = (u32)(hash >> (64 - t.bits_long));; i = (i + 1) & ((1u << t.bits_long) - 1)) {
        const SlotLong *q = t.slots_long + i;
        u32 held = ro(&q->length);
        if (!held) return NONE;
        if (held != length || ro(&q->hash) != hash) continue;
        const u8 *y = t.long_text + ro(&q->offset);
        u32 at = 0;
        while (at < length && first_bytes(load_8(x + at), length - at) == first_bytes(load_8(y + at), length - at)) at += 8;
        if (at >= length) return ro(&q->id);
    }
}

#ifdef __CUDACC__
// As probe, which looks at one thing after the other: pieces of up to 16 bytes wait for one answer of memory.
__device__ __forceinline__ u32 probe_at_once(const Tables &t, const u8 *x, u32 length) {
    if (length > 16) return probe(t, x, length);
    const bool is_8 = length <= 8;
    const u64 low = first_bytes(load_8(x), length), high = is_8 ? 0 : first_bytes(load_8(x + 8), length - 8);
    const u32 of_8 = hash_8(low, length, t.bits_8), of_16 = hash_16(low, high, length, t.bits_16);
    const uint4 *slot = is_8 ? (const uint4 *)(t.slots_8 + of_8) : (const uint4 *)(t.slots_16 + of_16);
    const uint4 a = __ldg(slot), b = __ldg(slot + 1);
    const bool first = ((u64)a.y << 32 | a.x) == low;
    if (is_8) {
        if (first && a.w == length) return a.z;
        if (((u64)b.y << 32 | b.x) == low && b.w == length) return b.z;
        if (!a.w || !b.w) return NONE;
    } else {
        if (first && ((u64)a.w << 32 | a.z) == high && b.y == length) return b.x;
        if (!b.y) return NONE;
    }
    return probe(t, x, length);  // displaced
}
// Of N pieces at once, `length` 0 for none: all memory is asked for before any answer is looked at. LATER: longer than
// eight bytes, or displaced in its table.
constexpr u32 LATER = NONE - 1;
template <int N> __device__ void probe_short(const Tables &t, const u8 *const (&x)[N], const u32 (&length)[N], u32 (&id)[N]) {
    u64 key[N];
    uint4 a[N], b[N];
    UNROLLED for (int k = 0; k < N; k++) key[k] = length[k] - 1 < 8 ? load_8(x[k]) : 0;
    UNROLLED for (int k = 0; k < N; k++) {
        key[k] = first_bytes(key[k], length[k]);
        u32 i = length[k] - 1 < 8 ? hash_8(key[k], length[k], t.bits_8) : 0;
        a[k] = __ldg((const uint4 *)(t.slots_8 + i)), b[k] = __ldg((const uint4 *)(t.slots_8 + i + 1));
    }
    UNROLLED for (int k = 0; k < N; k++) {
        bool first = ((u64)a[k].y << 32 | a[k].x) == key[k] && a[k].w == length[k];
        bool second = ((u64)b[k].y << 32 | b[k].x) == key[k] && b[k].w == length[k];
        id[k] = first ? a[k].z : second ? b[k].z : a[k].w && b[k].w ? LATER : NONE;
        if (length[k] - 1 >= 8) id[k] = LATER;
    }
}
#endif

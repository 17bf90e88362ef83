// Types and primitives of the device core. Everything marked HD runs on the host too: g++ builds it for the tests, which
// drive the same phases thread by thread.
#pragma once
#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define HD __host__ __device__ __forceinline__
#define UNROLLED _Pragma("unroll")
#else
#define HD inline
#define UNROLLED
#endif

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

constexpr u32 NONE = 0xffffffffu;

// A load of memory that no kernel of this launch writes.
template <class X> HD X ro(const X *p) {
#ifdef __CUDA_ARCH__
    return __ldg(p);
#else
    return *p;
#endif
}
HD u32 lowest(u32 x) {  // index of the lowest set bit
#ifdef __CUDA_ARCH__
    return __ffs(x) - 1;
#else
    return __builtin_ctz(x);
#endif
}
HD u32 highest(u32 x) {  // index of the highest set bit
#ifdef __CUDA_ARCH__
    return 31 - __clz(x);
#else
    return 31 - __builtin_clz(x);
#endif
}
HD u32 count(u32 x) {
#ifdef __CUDA_ARCH__
    return __popc(x);
#else
    return __builtin_popcount(x);
#endif
}
HD u32 shift_in(u32 x, u32 y) {  // the highest bit of y becomes the lowest of x
#ifdef __CUDA_ARCH__
    return __funnelshift_l(y, x, 1);
#else
    return x << 1 | y >> 31;
#endif
}
HD u32 reversed(u32 x) {  // bit 31 first
#ifdef __CUDA_ARCH__
    return __brev(x);
#else
    u32 y = 0;
    for (int k = 0; k < 32; k++) y |= (x >> k & 1) << (31 - k);
    return y;
#endif
}
HD u32 pick_bytes(u32 x, u32 y, u32 which) {  // byte k is that of x and y, in a row, which the hex digit k of `which` names
#ifdef __CUDA_ARCH__
    return __byte_perm(x, y, which);
#else
    u64 all = (u64)y << 32 | x;
    u32 z = 0;
    for (int k = 0; k < 4; k++) z |= (u32)(all >> 8 * (which >> 4 * k & 7) & 255) << 8 * k;
    return z;
#endif
}
HD u32 atomic_or(u32 *p, u32 v) {
#ifdef __CUDA_ARCH__
    return atomicOr(p, v);
#else
    u32 before = *p;
    *p |= v;
    return before;
#endif
}
HD u32 atomic_and(u32 *p, u32 v) {
#ifdef __CUDA_ARCH__
    return atomicAnd(p, v);
#else
    u32 before = *p;
    *p &= v;
    return before;
#endif
}
HD u32 atomic_add(u32 *p, u32 v) {
#ifdef __CUDA_ARCH__
    return atomicAdd(p, v);
#else
    u32 before = *p;
    *p += v;
    return before;
#endif
}
HD u64 atomic_add64(u64 *p, u64 v) {
#ifdef __CUDA_ARCH__
    return atomicAdd((unsigned long long *)p, (unsigned long long)v);
#else
    u64 before = *p;
    *p += v;
    return before;
#endif
}
#ifdef __CUDACC__
// A kernel that the launcher starts before the one before it has ended (chain.py) first waits for that; every kernel lets the
// next one start at once. Older devices know neither.
__device__ __forceinline__ void wait_for_last() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// 16 bytes into the block's memory, in the background until this thread waits for them.
__device__ __forceinline__ void copy_behind(void *to, const void *from) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from) : "memory");
#else
    __builtin_memcpy(to, from, 16);
#endif
}
__device__ __forceinline__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
#endif
// 8 bytes at any address. On the device it reads the aligned words around them.
HD u64 load_8(const u8 *x) {
#ifdef __CUDA_ARCH__
    size_t at = (size_t)x;
    const u64 *word = (const u64 *)(at & ~(size_t)7);
    u32 shift = 8 * (at & 7);
    u64 low = word[0];
    return shift ? low >> shift | word[1] << (64 - shift) : low;
#else
    u64 v;
    __builtin_memcpy(&v, x, 8);
    return v;
#endif
}

// A block of CUDA threads on the host, for tests: the kernels as they are, compiled by g++.
//
// Every thread is a fiber. It runs until it comes to something that a warp or the block does together; then others run, in
// an order that the caller chooses, so that what lacks a barrier goes wrong in one order or another. Threads that meet at
// different operations, or wait for one that has ended, are reported. Blocks run one after the other.
#pragma once
#include <algorithm>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <ucontext.h>
#include <vector>

#define __CUDACC__
#define __host__
#define __device__
#define __global__
#define __grid_constant__
#define __noinline__ __attribute__((noinline))
#define __shared__ static
#define __forceinline__ inline
#define __align__(N) __attribute__((aligned(N)))
#define __launch_bounds__(...)

struct Index {
    unsigned x, y, z;
};
inline Index threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {

constexpr size_t STACK = 64 << 10;
constexpr int WARP = 32;

enum class Meets { NOT, WARP, BLOCK };
struct Fiber {
    ucontext_t entry;
    jmp_buf at;
    bool begun, ended;
    Meets meets;
    const char *operation;
    uint64_t value;
};
struct Block {
    std::vector<Fiber> fibers;
    std::vector<char> stacks;
    std::vector<uint64_t> values;  // of the last operation, of each thread's warp or block
    jmp_buf scheduler;
    void (*kernel)(const void *);
    const void *arguments;
    size_t running;
};
inline Block block;

[[noreturn]] inline void fail(const char *what, const Fiber &fiber) {
    std::fprintf(stderr, "block %u, thread %u: %s at %s\n", blockIdx.x, threadIdx.x, what, fiber.operation);
    std::abort();
}

inline void enter() {
    block.kernel(block.arguments);
    block.fibers[block.running].ended = true;
    _longjmp(block.scheduler, 1);
}

// Until all of the warp or block are there. What each of them brings, by lane or thread.
inline const uint64_t *meet(Meets who, const char *operation, uint64_t value) {
    const size_t own = block.running;
    Fiber &fiber = block.fibers[own];
    fiber.meets = who, fiber.operation = operation, fiber.value = value;
    if (!_setjmp(fiber.at)) _longjmp(block.scheduler, 1);
    return &block.values[who == Meets::WARP ? own / WARP * WARP : 0];
}

// Lets threads [begin, end) go on if all of them wait at one operation.
inline bool release(size_t begin, size_t end, Meets who) {
    size_t waiting = 0;
    for (size_t k = begin; k < end; k++) waiting += block.fibers[k].meets == who;
    if (waiting < end - begin) return false;
    for (size_t k = begin; k < end; k++) {
        Fiber &fiber = block.fibers[k];
        if (std::strcmp(fiber.operation, block.fibers[begin].operation)) fail("another operation than the first thread's", fiber);
        block.values[k] = fiber.value;
        fiber.meets = Meets::NOT;
    }
    return true;
}

inline void resume(size_t k) {
    Fiber &fiber = block.fibers[k];
    block.running = k;
    threadIdx.x = (unsigned)k;
    if (_setjmp(block.scheduler)) return;
    if (fiber.begun) _longjmp(fiber.at, 1);
    fiber.begun = true;
    setcontext(&fiber.entry);
    std::abort();
}

// Orders: 0 ascending, 1 descending, others by chance.
inline void run_block(void (*kernel)(const void *), const void *arguments, unsigned threads, unsigned order) {
    block.kernel = kernel, block.arguments = arguments;
    block.fibers.assign(threads, Fiber());
    block.values.resize(threads);
    block.stacks.resize(threads * STACK);
    for (size_t k = 0; k < threads; k++) {
        Fiber &fiber = block.fibers[k];
        getcontext(&fiber.entry);
        fiber.entry.uc_stack.ss_sp = &block.stacks[k * STACK];
        fiber.entry.uc_stack.ss_size = STACK;
        makecontext(&fiber.entry, enter, 0);
    }
    std::vector<size_t> turns(threads);
    std::iota(turns.begin(), turns.end(), 0);
    std::mt19937 chance(order);
    for (;;) {
        if (order == 1) std::sort(turns.begin(), turns.end(), std::greater<>());
        if (order > 1) std::shuffle(turns.begin(), turns.end(), chance);
        size_t ran = 0, ended = 0;
        for (size_t k : turns)
            if (!block.fibers[k].ended && block.fibers[k].meets == Meets::NOT) resume(k), ran++;
        for (const Fiber &fiber : block.fibers) ended += fiber.ended;
        if (ended == threads) return;
        bool free = release(0, threads, Meets::BLOCK);
        for (size_t k = 0; k < threads; k += WARP) free = release(k, k + WARP, Meets::WARP) || free;
        if (!free && !ran)
            for (const Fiber &fiber : block.fibers)
                if (!fiber.ended) fail("waits for threads that do not come", fiber);
    }
}

inline unsigned lane() { return threadIdx.x % WARP; }
inline unsigned partner(unsigned lane, unsigned width) { return (emulator::lane() & ~(width - 1)) | (lane & (width - 1)); }
template <class X> uint64_t bits_of(X x) {
    static_assert(sizeof x <= 8, "");
    uint64_t bits = 0;
    std::memcpy(&bits, &x, sizeof x);
    return bits;
}
template <class X> X exchanged(const char *operation, X own, unsigned from, bool there = true) {
    const uint64_t *all = meet(Meets::WARP, operation, bits_of(own));
    if (there) std::memcpy(&own, all + from, sizeof own);
    return own;
}

}  // namespace emulator

// Every call names all lanes: nothing here calls for less.
template <class X> X __shfl_sync(unsigned, X x, unsigned from, unsigned width = 32) {
    return emulator::exchanged("shfl", x, emulator::partner(from, width));
}
template <class X> X __shfl_up_sync(unsigned, X x, unsigned by, unsigned width = 32) {
    const unsigned lane = emulator::lane();
    return emulator::exchanged("shfl_up", x, lane - by, (lane & (width - 1)) >= by);
}
template <class X> X __shfl_down_sync(unsigned, X x, unsigned by, unsigned width = 32) {
    const unsigned lane = emulator::lane();
    return emulator::exchanged("shfl_down", x, lane + by, (lane & (width - 1)) + by < width);
}
template <class X> X __shfl_xor_sync(unsigned, X x, unsigned with, unsigned = 32) {
    return emulator::exchanged("shfl_xor", x, emulator::lane() ^ with);
}
inline unsigned __ballot_sync(unsigned, bool x) {
    const uint64_t *all = emulator::meet(emulator::Meets::WARP, "ballot", x);
    unsigned bits = 0;
    for (int k = 0; k < emulator::WARP; k++) bits |= (unsigned)all[k] << k;
    return bits;
}
inline bool __any_sync(unsigned mask, bool x) { return __ballot_sync(mask, x) != 0; }
inline bool __all_sync(unsigned mask, bool x) { return __ballot_sync(mask, x) == 0xffffffffu; }
inline unsigned __reduce_min_sync(unsigned, unsigned x) {
    const uint64_t *all = emulator::meet(emulator::Meets::WARP, "reduce_min", x);
    for (int k = 0; k < emulator::WARP; k++) x = all[k] < x ? (unsigned)all[k] : x;
    return x;
}
inline unsigned __reduce_add_sync(unsigned, unsigned x) {
    const uint64_t *all = emulator::meet(emulator::Meets::WARP, "reduce_add", x);
    return std::accumulate(all, all + emulator::WARP, 0u);
}
inline void __syncwarp() { emulator::meet(emulator::Meets::WARP, "syncwarp", 0); }
inline void __syncthreads() { emulator::meet(emulator::Meets::BLOCK, "syncthreads", 0); }
inline bool __syncthreads_or(bool x) {
    const uint64_t *all = emulator::meet(emulator::Meets::BLOCK, "syncthreads_or", x);
    for (unsigned k = 0; k < blockDim.x; k++) x = x || all[k];
    return x;
}
inline bool __syncthreads_and(bool x) {
    const uint64_t *all = emulator::meet(emulator::Meets::BLOCK, "syncthreads_and", x);
    for (unsigned k = 0; k < blockDim.x; k++) x = x && all[k];
    return x;
}
inline void __threadfence() {}
inline void __threadfence_system() {}

struct uint4 {
    unsigned x, y, z, w;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return uint4{x, y, z, w}; }
template <class X> X __ldg(const X *p) { return *p; }
template <class X> X __ldcg(const X *p) { return *p; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(unsigned x) { return __builtin_ffs((int)x); }
inline int __ffsll(unsigned long long x) { return __builtin_ffsll((long long)x); }
inline int __clzll(unsigned long long x) { return x ? __builtin_clzll(x) : 64; }
template <class X, class Y> X atomicAdd(X *p, Y x) {
    X before = *p;
    *p += (X)x;
    return before;
}
template <class X> X atomicOr(X *p, X x) {
    X before = *p;
    *p |= x;
    return before;
}
template <class X> X atomicAnd(X *p, X x) {
    X before = *p;
    *p &= x;
    return before;
}
template <class X> X atomicMin(X *p, X x) {
    X before = *p;
    if (x < *p) *p = x;
    return before;
}
inline unsigned min(unsigned x, unsigned y) { return x < y ? x : y; }
inline unsigned max(unsigned x, unsigned y) { return x > y ? x : y; }
inline int min(int x, int y) { return x < y ? x : y; }

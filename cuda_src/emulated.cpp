// The kernels on the host, for tests (emulator.h): one launch after the other, as toktier/gpu/chain.py has them.
#include "emulator.h"

static __align__(16) unsigned char shared_memory[256 << 10];
#define SHARED unsigned char *const raw = shared_memory
#include "kernels.cu"

namespace {

struct Launch {
    void (*kernel)(Tables, Work);
    Tables tables;
    Work work;
};
void called(const void *launch) {
    const Launch &one = *(const Launch *)launch;
    one.kernel(one.tables, one.work);
}
const struct {
    const char *name;
    void (*kernel)(Tables, Work);
} KERNELS[] = {
#define NAMED(NAME) {#NAME, tt_##NAME}
    NAMED(brief),  NAMED(tiles_small), NAMED(heads_small), NAMED(tiles_large), NAMED(heads_large), NAMED(longs),   NAMED(windows),
    NAMED(stretches), NAMED(probe),    NAMED(merge),       NAMED(merge_few),   NAMED(sums),        NAMED(compact), NAMED(finish),
};

}  // namespace

// Bytes of shared memory and the like: `tt_sizes` of kernels.cu.
extern "C" unsigned tt_number(unsigned which) { return tt_sizes[which]; }

// Whether there is such a kernel. `shared`: bytes of dynamic shared memory, behind which nothing may be written.
extern "C" bool tt_launch(const char *name, const Tables *t, const Work *w, unsigned blocks, unsigned threads, unsigned shared, unsigned order) {
    for (const auto &known : KERNELS) {
        if (std::strcmp(known.name, name)) continue;
        const Launch launch = {known.kernel, *t, *w};
        gridDim = {blocks, 1, 1}, blockDim = {threads, 1, 1};
        for (unsigned k = 0; k < blocks; k++) {
            std::memset(shared_memory, 0xee, sizeof shared_memory);  // what nobody has written means nothing
            blockIdx = {k, 0, 0};
            emulator::run_block(called, &launch, threads, order);
            for (size_t at = shared; at < sizeof shared_memory; at++)
                if (shared_memory[at] != 0xee) {
                    std::fprintf(stderr, "%s has written behind its shared memory\n", name);
                    std::abort();
                }
        }
        return true;
    }
    return false;
}

#include "kernels.h"

// The project's own kernels, compiled for the host, and those of the tests.
#include "host/kernels.h"
#include "user_kernels.cuh"

namespace fake {

namespace {

template <void (*entry)(const funicular_batch)>
void run_grid(const Launch& launch, const funicular_batch& batch) {
    funicular_batch own = batch;
    void* parameters[] = {&own};
    funicular_host::run(funicular_host::kernel<entry>(""), {launch.blocks}, {launch.threads}, launch.shared_bytes, parameters);
}

constexpr Kernel KERNELS[] = {
    {"batchstring", run_grid<batchstring>, false, true},
    {"busy", run_grid<busy>, true, true},
    {"moody", run_grid<moody>, false, true},
    {"twice", run_grid<twice>, false, true},
    {"by_shared_memory", run_grid<by_shared_memory>, false, true},
    {"never_ends", run_grid<batchstring>, false, false},
};

}  // namespace

const Kernel* find_kernel(const std::string& name) {
    for (const Kernel& kernel : KERNELS)
        if (name == kernel.name) return &kernel;
    return nullptr;
}

}  // namespace fake

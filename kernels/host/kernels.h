/*
 * The bundled kernels on a CPU, by name: for the tests, and for a stand-in of the driver library. Header only, for one
 * translation unit: `#include ".../kernels/host/kernels.h"` after the standard headers, compiled with `g++ -std=c++20 -pthread`.
 *
 *     const funicular_host::Kernel *kernel = funicular_host::find("batchstring");  // nullptr: no such entry
 *     funicular_batch batch = {...};
 *     void *parameters[] = {&batch};                                               // as for cuLaunchKernel
 *     funicular_host::launch(*kernel, {count}, {256}, 0, parameters);              // comes back when the kernel has ended
 *
 * `launch` may be called from many threads at the same time. It checks nothing that a driver checks (block sizes, limits of the
 * device, addresses): grid and block must not be empty, and the parameters must be those of the kernel, which
 * `Kernel::parameter_bytes` tells. It costs about 6 ns for each CUDA thread with -O2, three times as much in a shared library, unless that is compiled
 * with -ftls-model=initial-exec.
 *
 * A kernel that spends time (`busy`) is computed at once and then slept out in one piece, without cost for the processor. Who
 * wants to do the waiting itself, to be interruptible or to fail half-way, calls `run`, which computes and gives the time at
 * which the kernel ends. It may be past already.
 *
 * With FUNICULAR_HOST_THREADS defined, every CUDA thread is a thread of the host (threads.h); by default they are fibers
 * (fibers.h).
 */
#ifndef FUNICULAR_HOST_KERNELS_H
#define FUNICULAR_HOST_KERNELS_H

#include <chrono>
#include <cstddef>
#include <string_view>
#include <thread>

#ifdef FUNICULAR_HOST_THREADS
#include "threads.h"
#else
#include "fibers.h"
#endif

#include "../bundled.cu"

static_assert(sizeof(funicular_batch) == 56 && alignof(funicular_batch) == 8, "the driver is asked for exactly this");
static_assert(offsetof(funicular_batch, output_lengths) == 32 && offsetof(funicular_batch, count) == 48);

namespace funicular_host {

struct Kernel {
    std::string_view name;
    /* Of its one parameter, at offset 0. */
    std::size_t parameter_bytes;
    /* What one of its threads does. */
    void (*call)(void **parameters);
};

/* A kernel with Funicular's signature, for a table of kernels. */
template <void (*entry)(const funicular_batch)> constexpr Kernel kernel(std::string_view name)
{
    return {name, sizeof(funicular_batch),
            [](void **parameters) { entry(*static_cast<const funicular_batch *>(parameters[0])); }};
}

inline constexpr Kernel bundled[] = {kernel<batchstring>("batchstring"), kernel<busy>("busy")};

inline const Kernel *find(std::string_view name)
{
    for (const Kernel &kernel : bundled)
        if (kernel.name == name)
            return &kernel;
    return nullptr;
}

/* Computes, and gives the time at which the kernel ends. No kernel here uses dynamic shared memory; there is none. */
inline std::chrono::steady_clock::time_point run(const Kernel &kernel, dim3 grid, dim3 block,
                                                 [[maybe_unused]] std::size_t shared_bytes, void **parameters)
{
    Timing launch;
    timing = &launch;
    run_grid(grid, block, {kernel.call, parameters});
    timing = nullptr;
    return launch.end();
}

/* Computes, and comes back when the kernel ends. */
inline void launch(const Kernel &kernel, dim3 grid, dim3 block, std::size_t shared_bytes, void **parameters)
{
    std::this_thread::sleep_until(run(kernel, grid, block, shared_bytes, parameters));
}

} // namespace funicular_host

#endif

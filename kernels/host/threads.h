/*
 * Engine for ThreadSanitizer: every CUDA thread is a thread of the host, and __syncthreads() is a real barrier, so a missing
 * one is a data race that the sanitizer reports. Blocks run side by side, as on a GPU, and races between them are reported too;
 * with FUNICULAR_HOST_ONE_BLOCK defined they follow each other, which a kernel with __shared__ variables needs: here they are
 * one object for all blocks. For small grids: it starts grid × block threads.
 */
#ifndef FUNICULAR_HOST_THREADS_H
#define FUNICULAR_HOST_THREADS_H

#include <barrier>
#include <memory>
#include <thread>
#include <vector>

#include "dialect.h"

#define __shared__ static

namespace funicular_host {

/* What one CUDA thread of a kernel does. */
struct Body {
    void (*call)(void **parameters);
    void **parameters;
};

inline thread_local std::barrier<> *block_barrier;

inline void run_grid(dim3 grid, dim3 block, Body body)
{
    Timing *const launch = timing;
    std::vector<std::unique_ptr<std::barrier<>>> barriers;
    std::vector<std::thread> threads;
    auto join_all = [&threads] {
        for (std::thread &thread : threads)
            thread.join();
        threads.clear();
    };
    for (std::size_t b = 0; b < grid.size(); ++b) {
        barriers.push_back(std::make_unique<std::barrier<>>(static_cast<std::ptrdiff_t>(block.size())));
        for (std::size_t t = 0; t < block.size(); ++t)
            threads.emplace_back([=, barrier = barriers.back().get()] {
                gridDim = grid;
                blockDim = block;
                blockIdx = at(b, grid);
                threadIdx = at(t, block);
                timing = launch;
                block_barrier = barrier;
                body.call(body.parameters);
                // A thread that has ended does not hold up the others.
                barrier->arrive_and_drop();
            });
#ifdef FUNICULAR_HOST_ONE_BLOCK
        join_all();
#endif
    }
    join_all();
}

} // namespace funicular_host

static inline void __syncthreads()
{
    funicular_host::block_barrier->arrive_and_wait();
}

#endif

/*
 * Engine for speed: all threads of a launch run on the calling thread, one after the other. As long as a kernel has no barrier
 * that is a plain loop. A thread that comes to __syncthreads() is set aside with its stack, another fiber goes on with the loop,
 * and when all threads of the block have ended or stand at the barrier, those at the barrier go on. Blocks follow each other.
 *
 * Many threads may launch at the same time: nothing is shared between launches.
 */
#ifndef FUNICULAR_HOST_FIBERS_H
#define FUNICULAR_HOST_FIBERS_H

#include <memory>
#include <ucontext.h>
#include <utility>
#include <vector>

#include "dialect.h"

/* One block at a time runs on a thread of the host, so what is local to that thread is shared by the block. */
#define __shared__ static thread_local

namespace funicular_host {

/* What one CUDA thread of a kernel does. */
struct Body {
    void (*call)(void **parameters);
    void **parameters;
};

class Grid {
public:
    Grid(dim3 grid, dim3 block, Body body) : body(body), blocks(grid.size()), threads(block.size())
    {
        gridDim = grid;
        blockDim = block;
        blockIdx = at(0, gridDim);
    }

    /* Runs all blocks to their ends. */
    void run()
    {
        running = this;
        while (!has_ended()) {
            if (started < threads) {
                resume(idle_fiber());
                continue;
            }
            // All that have not ended stand at the barrier.
            for (Fiber *fiber : std::exchange(waiting, {}))
                resume(fiber);
        }
        running = nullptr;
    }

    /* What __syncthreads() does to the thread that calls it. */
    static void barrier()
    {
        Grid &grid = *running;
        Fiber *fiber = grid.current;
        fiber->thread = threadIdx;
        grid.waiting.push_back(fiber);
        swapcontext(&fiber->context, &grid.scheduler);
        threadIdx = fiber->thread;
    }

private:
    /* Enough for kernels, which have few locals and no recursion; there is no guard page behind it. */
    static constexpr std::size_t stack_bytes = 64 * 1024;

    struct Fiber {
        ucontext_t context;
        std::unique_ptr<char[]> stack;
        uint3 thread;
    };

    /* Kept by each thread of the host for its next launch. */
    struct Pool {
        std::vector<std::unique_ptr<Fiber>> all;
        std::vector<Fiber *> idle;
    };

    bool has_ended() const { return ended == threads && block + 1 == blocks; }

    bool next_block()
    {
        if (ended != threads || block + 1 == blocks)
            return false;
        blockIdx = at(++block, gridDim);
        started = ended = 0;
        return true;
    }

    /* Runs threads until there is none left to start before a barrier opens. */
    void work()
    {
        while (started < threads || next_block()) {
            threadIdx = at(started++, blockDim);
            body.call(body.parameters);
            ++ended;
        }
    }

    /* The life of a fiber: it works whenever it is resumed, for whatever grid is running then. */
    static void live()
    {
        for (;;) {
            Grid &grid = *running;
            Fiber *self = grid.current;
            grid.work();
            pool.idle.push_back(self);
            swapcontext(&self->context, &grid.scheduler);
        }
    }

    static Fiber *idle_fiber()
    {
        if (pool.idle.empty()) {
            auto fiber = std::make_unique<Fiber>();
            fiber->stack = std::make_unique_for_overwrite<char[]>(stack_bytes);
            getcontext(&fiber->context);
            fiber->context.uc_stack.ss_sp = fiber->stack.get();
            fiber->context.uc_stack.ss_size = stack_bytes;
            makecontext(&fiber->context, live, 0);
            pool.idle.push_back(fiber.get());
            pool.all.push_back(std::move(fiber));
        }
        Fiber *fiber = pool.idle.back();
        pool.idle.pop_back();
        return fiber;
    }

    void resume(Fiber *fiber)
    {
        current = fiber;
        swapcontext(&scheduler, &fiber->context);
    }

    static inline thread_local Grid *running;
    static inline thread_local Pool pool;

    const Body body;
    const std::size_t blocks, threads;
    /* The block that runs, and how many of its threads were started and have ended. */
    std::size_t block = 0, started = 0, ended = 0;
    Fiber *current = nullptr;
    std::vector<Fiber *> waiting;
    ucontext_t scheduler;
};

inline void run_grid(dim3 grid, dim3 block, Body body)
{
    Grid(grid, block, body).run();
}

} // namespace funicular_host

static inline void __syncthreads()
{
    funicular_host::Grid::barrier();
}

#endif

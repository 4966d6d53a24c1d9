/*
 * CUDA's dialect of C++, as far as the kernels here speak it, for a host compiler: `g++ -std=c++20` takes a `.cu` file that is
 * included after this header as it is. What a thread, a block and a barrier are is up to an engine (fibers.h, threads.h), which
 * includes this header and comes before the kernel.
 *
 * Device time stands still while a kernel runs: nanoseconds_now() is the time of the launch, and spin_until() notes until when
 * the kernel takes. Whoever launched it waits for that, once, instead of thousands of threads that burn a processor.
 */
#ifndef FUNICULAR_HOST_DIALECT_H
#define FUNICULAR_HOST_DIALECT_H

#include <atomic>
#include <chrono>
#include <cstddef>

/* Kernels leave out what only a GPU can do. */
#define FUNICULAR_HOST 1

#define __host__
#define __device__
#define __global__
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

struct uint3 {
    unsigned int x, y, z;
};

struct dim3 {
    unsigned int x = 1, y = 1, z = 1;
    constexpr std::size_t size() const { return std::size_t(x) * y * z; }
};

/* May alias: kernels read bytes as vectors. The alignment makes the sanitizers object to a misaligned one, as a GPU does. */
struct __attribute__((aligned(16), may_alias)) uint4 {
    unsigned int x, y, z, w;
};

inline thread_local uint3 threadIdx, blockIdx;
inline thread_local dim3 blockDim, gridDim;

namespace funicular_host {

/* The number `n` among all of `dim` in x, y, z: x counts fastest. */
inline uint3 at(std::size_t n, dim3 dim)
{
    return {unsigned(n % dim.x), unsigned(n / dim.x % dim.y), unsigned(n / dim.x / dim.y)};
}

/* The time of one launch, in nanoseconds of the steady clock. */
class Timing {
public:
    Timing() : started(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1)), ends(started) {}

    long long start() const { return started; }

    /* Relaxed: it orders nothing, so it can't hide a race between the threads of a kernel from ThreadSanitizer. */
    void not_before(long long time)
    {
        long long known = ends.load(std::memory_order_relaxed);
        while (known < time && !ends.compare_exchange_weak(known, time, std::memory_order_relaxed)) {
        }
    }

    std::chrono::steady_clock::time_point end() const
    {
        return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(ends.load(std::memory_order_relaxed)));
    }

private:
    const long long started;
    std::atomic<long long> ends;
};

/* Of the launch that the calling thread is part of. */
inline thread_local Timing *timing;

} // namespace funicular_host

static inline unsigned long long nanoseconds_now()
{
    return funicular_host::timing->start();
}

static inline void spin_until(unsigned long long time)
{
    funicular_host::timing->not_before(static_cast<long long>(time));
}

template <class T> static inline T __ldg(const T *from)
{
    return *from;
}

template <class T> static inline T atomicAdd(T *at, T value)
{
    return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}

#endif

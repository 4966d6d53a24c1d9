// The time of the device, for kernels that are made to take time. The host build has its own (host/cuda_host.h).
#ifndef FUNICULAR_CLOCK_CUH
#define FUNICULAR_CLOCK_CUH

#ifndef FUNICULAR_HOST

// Nanoseconds of a clock that all multiprocessors share. It may advance in steps of a microsecond.
static __device__ __forceinline__ unsigned long long nanoseconds_now()
{
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// Comes back when nanoseconds_now() has reached `time`. Pauses of about 0.1 µs between two looks leave the multiprocessor's
// issue slots to other warps, so that spinning does not slow down who has work to do.
static __device__ __forceinline__ void spin_until(unsigned long long time)
{
    while (nanoseconds_now() < time)
        asm volatile("nanosleep.u32 100;");
}

#endif

#endif

// `busy`: `batchstring` that takes `--cuda-work-us` microseconds, for studies of latency. The time counts from the start of the
// block, the upper-casing is part of it.
//
// Memory access: that of `batchstring` (upper.cuh); the spinning touches no memory. Every thread spins for itself, so there is
// no barrier. The whole kernel takes as long as one block while all blocks are resident at once, which a batch of 100 with 256
// threads a block is on any GPU with 13 multiprocessors or more (2,048 threads each); with more blocks than that it takes that
// time again for each further wave.
#include "clock.cuh"
#include "upper.cuh"

extern "C" __global__ void __launch_bounds__(1024) busy(const funicular_batch batch)
{
    const unsigned long long end = nanoseconds_now() + 1000ull * batch.work_us;
    upper_block(batch);
    spin_until(end);
}

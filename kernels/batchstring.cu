// `batchstring`: the bundled batch function and the reference for the kernel interface. Each output is its input with the ASCII
// letters a to z in upper case and every other byte unchanged.
//
// Memory access: one block per input, aligned 16-byte stores and loads that neighbouring threads make side by side, nothing
// read outside the input, no shared memory, no barrier. The details are beside the code, in upper.cuh.
#include "upper.cuh"

extern "C" __global__ void __launch_bounds__(1024) batchstring(const funicular_batch batch)
{
    upper_block(batch);
}

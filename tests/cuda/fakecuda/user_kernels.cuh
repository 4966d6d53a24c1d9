// Kernels as users might write them, good and bad, for the tests: what each does with an input depends on how it begins.
#pragma once
#include "upper.cuh"

// Whether input `i` begins with `word`.
static __device__ __forceinline__ bool begins(const funicular_batch &batch, unsigned i, const char *word)
{
    unsigned at = batch.input_offsets[i];
    for (; *word; word++, at++)
        if (at == batch.input_offsets[i + 1] || batch.input[at] != (unsigned char)*word)
            return false;
    return true;
}

// Writes a text into output `i`, as much of it as fits, and says how it went.
static __device__ __forceinline__ void say(const funicular_batch &batch, unsigned i, const char *text, unsigned status)
{
    const unsigned start = batch.output_offsets[i], room = batch.output_offsets[i + 1] - start;
    unsigned length = 0;
    for (; text[length]; length++)
        if (length < room)
            batch.output[start + length] = (unsigned char)text[length];
    batch.output_lengths[i] = length;
    batch.statuses[i] = status;
}

// Upper case, except for inputs that begin with a word of these: what it does wrong must cost nobody else.
extern "C" __global__ void moody(const funicular_batch batch)
{
    const unsigned i = blockIdx.x;
    const bool refuses = begins(batch, i, "refuse"), babbles = begins(batch, i, "babble");
    // What one thread says all by itself the others must not write over: nothing orders them.
    if (!refuses && !babbles && !begins(batch, i, "forget"))
        upper_block(batch);
    if (threadIdx.x != 0)
        return;
    if (refuses)
        say(batch, i, "this input is not to my taste", FUNICULAR_REFUSED);
    if (babbles)
        say(batch, i, "\xff\xfe no text", FUNICULAR_OK);
    if (begins(batch, i, "status"))
        batch.statuses[i] = 7;
    if (begins(batch, i, "long"))
        batch.output_lengths[i] = 100000;
    if (begins(batch, i, "huge"))
        batch.output_lengths[i] = FUNICULAR_UNSET - 1;
}

// Each output is its input twice: longer than the input, as far as there is room.
extern "C" __global__ void twice(const funicular_batch batch)
{
    const unsigned i = blockIdx.x, from = batch.input_offsets[i], length = batch.input_offsets[i + 1] - from;
    const unsigned to = batch.output_offsets[i], room = batch.output_offsets[i + 1] - to;
    for (unsigned n = threadIdx.x; n < 2 * length && n < room; n += blockDim.x)
        batch.output[to + n] = batch.input[from + n % length];
    if (threadIdx.x == 0) {
        batch.output_lengths[i] = 2 * length;
        batch.statuses[i] = FUNICULAR_OK;
    }
}

// Upper case by way of shared memory and a barrier, 64 bytes at a time and backwards within them.
extern "C" __global__ void by_shared_memory(const funicular_batch batch)
{
    __shared__ unsigned char part[64];
    const unsigned i = blockIdx.x, from = batch.input_offsets[i], length = batch.input_offsets[i + 1] - from;
    for (unsigned start = 0; start < length; start += 64) {
        for (unsigned n = threadIdx.x; n < 64 && start + n < length; n += blockDim.x)
            part[63 - n] = upper_byte(batch.input[from + start + n]);
        __syncthreads();
        for (unsigned n = threadIdx.x; n < 64 && start + n < length; n += blockDim.x)
            batch.output[batch.output_offsets[i] + start + n] = part[63 - n];
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        batch.output_lengths[i] = length;
        batch.statuses[i] = FUNICULAR_OK;
    }
}

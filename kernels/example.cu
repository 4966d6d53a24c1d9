// Answers each input with the number of its words, in decimal.
#include "funicular.h"

extern "C" __global__ void count_words(const funicular_batch batch)
{
    __shared__ unsigned int words;
    const unsigned int i = blockIdx.x, begin = batch.input_offsets[i], end = batch.input_offsets[i + 1];
    if (threadIdx.x == 0)
        words = 0;
    __syncthreads();
    for (unsigned int at = begin + threadIdx.x; at < end; at += blockDim.x)
        if (batch.input[at] != ' ' && (at == begin || batch.input[at - 1] == ' '))
            atomicAdd(&words, 1u);
    __syncthreads();
    if (threadIdx.x == 0) {
        const unsigned int room = batch.output_offsets[i + 1] - batch.output_offsets[i];
        unsigned int length = 1;
        for (unsigned int rest = words; rest >= 10; rest /= 10)
            ++length;
        for (unsigned int at = length, rest = words; at-- > 0; rest /= 10)
            if (at < room)
                batch.output[batch.output_offsets[i] + at] = '0' + rest % 10;
        batch.output_lengths[i] = length;
        batch.statuses[i] = FUNICULAR_OK;
    }
}

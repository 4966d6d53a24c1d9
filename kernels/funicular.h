/*
 * funicular.h: what a CUDA kernel and Funicular agree on.
 *
 * A batch function that is a kernel has this signature, under a name that `--cuda-entry` gives:
 *
 *     #include "funicular.h"
 *     extern "C" __global__ void my_kernel(const funicular_batch batch);
 *
 * One launch runs one batch: the grid has one block for each input (`blockIdx.x` is the number of the input), the block has
 * `--cuda-block` threads in one dimension, and `--cuda-shared-bytes` of dynamic shared memory.
 *
 * Block i reads input i, writes output i into its room, and sets output_lengths[i] and statuses[i]. Inputs are UTF-8 without a
 * terminator and may be empty; an output must be UTF-8 too. What a kernel forgets is seen: lengths and statuses hold
 * FUNICULAR_UNSET before the launch and the room of every output is zeroed, so an input whose block sets nothing is answered
 * with an error and never with bytes of an earlier batch.
 *
 * The header compiles with nvcc, nvrtc, clang, and as plain C or C++. It needs no other header.
 */
#ifndef FUNICULAR_H
#define FUNICULAR_H

/* Values of statuses[i]. */
#define FUNICULAR_OK 0u             /* output i is the answer */
#define FUNICULAR_REFUSED 1u        /* this input can't be answered; output i says why, for the caller to read */
#define FUNICULAR_UNSET 0xFFFFFFFFu /* in every status and length before the launch */

/* Every output starts at a multiple of this many bytes, so that it can be written in vectors of that size. */
#define FUNICULAR_OUTPUT_ALIGNMENT 16u

/*
 * One batch, passed by value: the one parameter of the kernel, 56 bytes. All pointers are to device memory, valid until the
 * kernel ends.
 */
typedef struct funicular_batch {
    /* The bytes of all inputs, packed without padding; an input starts at any address. */
    const unsigned char *input;
    /* count + 1 of them: input i is input[input_offsets[i]] up to, not including, input[input_offsets[i + 1]]. */
    const unsigned int *input_offsets;
    /* The rooms of all outputs. 16-byte aligned, zeroed before the launch. */
    unsigned char *output;
    /* count + 1 of them: output i may use output[output_offsets[i]] up to, not including, output[output_offsets[i + 1]]. */
    const unsigned int *output_offsets;
    /*
     * To be set: the bytes of output i. More than its room says how much it would have needed, as snprintf does; the input is
     * then answered with an error that names the setting to raise. Nothing may be written past the room.
     */
    unsigned int *output_lengths;
    /* To be set: FUNICULAR_OK or FUNICULAR_REFUSED. */
    unsigned int *statuses;
    /* Inputs in this batch, which is the number of blocks. */
    unsigned int count;
    /* `--cuda-work-us`: microseconds, for kernels that are made to take time. */
    unsigned int work_us;
} funicular_batch;

#endif

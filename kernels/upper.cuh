// Upper-casing of one input by one block: what both bundled kernels do.
//
// ASCII letters a to z become A to Z; every other byte, those of UTF-8 sequences among them, passes through as it is. So the
// output is as long as the input, byte i depends on byte i alone, and UTF-8 stays UTF-8. (Unicode's upper case changes
// lengths, `ß` to `SS`, and needs tables: not what a reference for memory access should spend its time on.)
//
// Memory access: threads of a warp read and write neighbouring vectors of 16 bytes, 512 bytes per instruction, each sector of
// memory once. Inputs are packed, so input and output are aligned differently. Stores decide: an output starts 16-byte aligned,
// and vector k of it is one aligned store. Its 16 source bytes lie in two aligned source vectors, k and k + 1, from which they
// are cut with shifts; the second of them is the first one of the next thread, so it comes from the L1 cache. Only vectors that
// lie wholly inside the input are read, never a byte outside it; at most 16 bytes at the start and 47 at the end are left, which
// are done one byte by one thread.
#ifndef FUNICULAR_UPPER_CUH
#define FUNICULAR_UPPER_CUH

#include "funicular.h"

// Upper-cases four bytes at once. The seven low bits of a byte plus 0x1f reach the top bit from 'a' on, plus 0x05 from behind 'z'
// on; no sum runs into the next byte. A byte whose own top bit is set is not ASCII.
static __device__ __forceinline__ unsigned int upper_word(unsigned int word)
{
    const unsigned int low = word & 0x7f7f7f7fu;
    const unsigned int letters = (low + 0x1f1f1f1fu) & ~(low + 0x05050505u) & ~word & 0x80808080u;
    return word ^ (letters >> 2);
}

static __device__ __forceinline__ unsigned char upper_byte(unsigned char byte)
{
    return byte >= 'a' && byte <= 'z' ? byte ^ 0x20 : byte;
}

// The four bytes that start `shift` bytes, 0 to 3, into the little-endian pair.
static __device__ __forceinline__ unsigned int cut_word(unsigned int first, unsigned int second, unsigned int shift)
{
    const unsigned long long pair = (unsigned long long)second << 32 | first;
    return (unsigned int)(pair >> (8 * shift));
}

// The 16 bytes that start `shift` bytes, 0 to 15, into the pair. Whole words move by selects, so that nothing is indexed with a
// number that the compiler does not know, which would push the words into local memory.
static __device__ __forceinline__ uint4 cut_vector(uint4 first, uint4 second, unsigned int shift)
{
    const bool two = (shift & 8) != 0, one = (shift & 4) != 0;
    const unsigned int a = two ? first.z : first.x, b = two ? first.w : first.y, c = two ? second.x : first.z;
    const unsigned int d = two ? second.y : first.w, e = two ? second.z : second.x, f = two ? second.w : second.y;
    const unsigned int v = one ? b : a, w = one ? c : b, x = one ? d : c, y = one ? e : d, z = one ? f : e;
    const unsigned int rest = shift & 3;
    return uint4{cut_word(v, w, rest), cut_word(w, x, rest), cut_word(x, y, rest), cut_word(y, z, rest)};
}

// Upper-cases input `blockIdx.x` into its room, with all threads of the block and no barrier, and sets its length and status.
static __device__ __forceinline__ void upper_block(const funicular_batch &batch)
{
    const unsigned int i = blockIdx.x;
    if (i >= batch.count)
        return;
    const unsigned char *from = batch.input + batch.input_offsets[i];
    unsigned char *to = batch.output + batch.output_offsets[i];
    const unsigned int length = batch.input_offsets[i + 1] - batch.input_offsets[i];
    const unsigned int room = batch.output_offsets[i + 1] - batch.output_offsets[i];
    const unsigned int written = length < room ? length : room;

    // Vectors first to end are done whole: they fit into the room, and their source vectors, k and k + first, lie inside the
    // input. (Where input and output are aligned alike, the two are one and the second load costs nothing.)
    const unsigned int shift = (unsigned int)((unsigned long long)from & 15);
    const unsigned int first = shift == 0 ? 0 : 1;
    const unsigned int inside = (length + shift) / 16;
    unsigned int end = inside > first ? inside - first : 0;
    end = end < written / 16 ? end : written / 16;
    end = end > first ? end : first;
    const uint4 *source = (const uint4 *)(from - shift);
    uint4 *target = (uint4 *)to;
    for (unsigned int k = first + threadIdx.x; k < end; k += blockDim.x) {
        const uint4 low = source[k], high = source[k + first];
        const uint4 cut = cut_vector(low, high, shift);
        target[k] = uint4{upper_word(cut.x), upper_word(cut.y), upper_word(cut.z), upper_word(cut.w)};
    }

    // The bytes in front of them and behind them.
    const unsigned int head = 16 * first < written ? 16 * first : written;
    const unsigned int tail = 16 * end < written ? written - 16 * end : 0;
    for (unsigned int n = threadIdx.x; n < head + tail; n += blockDim.x) {
        const unsigned int at = n < head ? n : 16 * end + (n - head);
        to[at] = upper_byte(from[at]);
    }

    if (threadIdx.x == 0) {
        batch.output_lengths[i] = length;
        batch.statuses[i] = FUNICULAR_OK;
    }
}

#endif

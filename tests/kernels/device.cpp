// A GPU for the tests: takes batches from its standard input, runs them with the kernels compiled for the host, and writes back
// everything that a kernel can have changed. Numbers are 32 bits in the byte order of the machine.
//
//   asked:    bytes of the name, name, block, work_us, misalignment, count,
//             input offsets (count + 1), output offsets (count + 1), packed inputs
//   answered: microseconds it took, microseconds of processor time,
//             lengths (count), statuses (count), guard, output area, guard
//
// All memory is as large as it must be and not a byte larger, so that the address sanitizer sees what is read beyond it.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <sanitizer/asan_interface.h>
#include <string>
#include <vector>

#include "../../kernels/host/kernels.h"

#ifdef FORGET_BARRIERS
// The planted bug that shows that the race detector detects.
#define __syncthreads() static_cast<void>(0)
#endif
#include "../../kernels/example.cu"

namespace {

constexpr std::size_t guard_bytes = 64;
// Not what a kernel writes, and not zero, so that a byte that was zeroed shows too.
constexpr unsigned char untouched = 0xA5;

template <class T> std::vector<T> take(std::size_t count)
{
    std::vector<T> values(count);
    if (std::fread(values.data(), sizeof(T), count, stdin) != count)
        std::exit(std::feof(stdin) ? EXIT_SUCCESS : EXIT_FAILURE);
    return values;
}

unsigned int take_number()
{
    return take<unsigned int>(1)[0];
}

template <class T> void give(const T *values, std::size_t count)
{
    if (std::fwrite(values, sizeof(T), count, stdout) != count)
        std::exit(EXIT_FAILURE);
}

funicular_host::Kernel find(const std::string &name)
{
    if (name == "count_words")
        return funicular_host::kernel<count_words>("count_words");
    const funicular_host::Kernel *kernel = funicular_host::find(name);
    if (kernel == nullptr) {
        std::fprintf(stderr, "no kernel is called %s\n", name.c_str());
        std::exit(EXIT_FAILURE);
    }
    return *kernel;
}

struct Free {
    void operator()(void *memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<unsigned char, Free>;

// Packed inputs that start `misalignment` bytes, 0 to 15, behind an address that vectors may be read from.
Memory packed(std::size_t misalignment, const std::vector<unsigned char> &bytes)
{
    Memory memory(static_cast<unsigned char *>(std::malloc(misalignment + bytes.size())));
    if (!bytes.empty())
        std::memcpy(memory.get() + misalignment, bytes.data(), bytes.size());
    // In front of an address only whole groups of eight can be forbidden.
    ASAN_POISON_MEMORY_REGION(memory.get(), misalignment / 8 * 8);
    return memory;
}

void run_batch()
{
    const std::vector<char> name = take<char>(take_number());
    const unsigned int block = take_number(), work_us = take_number(), misalignment = take_number(), count = take_number();
    const std::vector<unsigned int> input_offsets = take<unsigned int>(count + 1);
    const std::vector<unsigned int> output_offsets = take<unsigned int>(count + 1);
    const Memory input = packed(misalignment, take<unsigned char>(input_offsets.back()));

    const std::size_t area = guard_bytes + output_offsets.back() + guard_bytes;
    const Memory output(static_cast<unsigned char *>(std::aligned_alloc(guard_bytes, (area + 63) / 64 * 64)));
    std::memset(output.get(), untouched, area);
    std::vector<unsigned int> lengths(count, FUNICULAR_UNSET), statuses(count, FUNICULAR_UNSET);

    funicular_batch batch = {input.get() + misalignment, input_offsets.data(), output.get() + guard_bytes, output_offsets.data(),
                             lengths.data(),             statuses.data(),      count,                      work_us};
    void *parameters[] = {&batch};
    const auto started = std::chrono::steady_clock::now();
    const std::clock_t spent = std::clock();
    funicular_host::launch(find({name.begin(), name.end()}), {count}, {block}, 0, parameters);
    const unsigned int times[] = {
        static_cast<unsigned int>((std::chrono::steady_clock::now() - started) / std::chrono::microseconds(1)),
        static_cast<unsigned int>((std::clock() - spent) * 1'000'000 / CLOCKS_PER_SEC),
    };
    give(times, 2);
    give(lengths.data(), count);
    give(statuses.data(), count);
    give(output.get(), area);
    std::fflush(stdout);
    ASAN_UNPOISON_MEMORY_REGION(input.get(), misalignment / 8 * 8);
}

} // namespace

int main()
{
    for (;;)
        run_batch();
}

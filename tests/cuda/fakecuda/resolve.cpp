// From device pointers to host pointers: what a kernel is given must be what kernels/funicular.h promises.

#include <cstring>

#include "journal.h"
#include "kernels.h"

namespace fake {

namespace {

// Follows the pointers of one batch and remembers what went wrong first.
class Follow {
  public:
    explicit Follow(const Context& context) : context_(context) {}

    // The host address of `size` bytes that the kernel may read, or write.
    template <class T>
    T* bytes(T* pointer, uint64_t size, bool writes, const char* name) {
        const uint64_t address = reinterpret_cast<uint64_t>(pointer);
        unsigned char* found = context_.device_memory.find(address, size);
        if (!found) return wrong(std::string(name) + " does not point at " + std::to_string(size) + " bytes of device memory");
        if (size > 0) ranges.push_back({address, size, writes});
        return reinterpret_cast<T*>(found);
    }

    // The last of `count` + 1 offsets, which must not descend.
    uint64_t last(const unsigned* offsets, unsigned count, const char* name) {
        if (!offsets) return 0;
        for (unsigned i = 0; i < count; i++)
            if (offsets[i] > offsets[i + 1]) wrong(std::string(name) + " descend");
        return offsets[count];
    }

    std::nullptr_t wrong(const std::string& text) {
        if (!failed) violation(context_.device->index, "a kernel's batch is not as promised: " + text);
        failed = true;
        return nullptr;
    }

    std::vector<Range> ranges;
    bool failed = false;

  private:
    const Context& context_;
};

bool is_filled(const unsigned* words, unsigned count, unsigned value) {
    for (unsigned i = 0; i < count; i++)
        if (words[i] != value) return false;
    return true;
}

}  // namespace

std::optional<Resolved> resolve(const Context& context, const funicular_batch& batch) {
    Follow follow(context);
    const uint64_t words = 4ull * batch.count;
    funicular_batch host = batch;
    host.input_offsets = follow.bytes(batch.input_offsets, words + 4, false, "input_offsets");
    host.output_offsets = follow.bytes(batch.output_offsets, words + 4, false, "output_offsets");
    host.output_lengths = follow.bytes(batch.output_lengths, words, true, "output_lengths");
    host.statuses = follow.bytes(batch.statuses, words, true, "statuses");
    const uint64_t input_bytes = follow.last(host.input_offsets, batch.count, "input_offsets");
    const uint64_t output_bytes = follow.last(host.output_offsets, batch.count, "output_offsets");
    host.input = follow.bytes(batch.input, input_bytes, false, "input");
    host.output = follow.bytes(batch.output, output_bytes, true, "output");
    if (follow.failed) return {};

    for (unsigned i = 0; i < batch.count; i++)
        if (host.output_offsets[i] % FUNICULAR_OUTPUT_ALIGNMENT != 0) follow.wrong("an output is not aligned");
    if (!is_filled(host.output_lengths, batch.count, FUNICULAR_UNSET)) follow.wrong("output_lengths are not unset");
    if (!is_filled(host.statuses, batch.count, FUNICULAR_UNSET)) follow.wrong("statuses are not unset");
    for (uint64_t at = host.output_offsets[0]; at < output_bytes && !follow.failed; at++)
        if (host.output[at] != 0) follow.wrong("the outputs' rooms are not zeroed");
    if (follow.failed) return {};
    return Resolved{host, std::move(follow.ranges)};
}

}  // namespace fake

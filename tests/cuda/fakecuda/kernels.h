// The kernels that the stand-in can run: the project's own and those of the tests, by the names of their entries.
#pragma once
#include <optional>
#include <string>

#include "driver.h"
#include "funicular.h"

namespace fake {

struct Launch {
    unsigned blocks;
    unsigned threads;
    size_t shared_bytes;
};

// A kernel as host code: runs the whole grid on the calling thread. The batch's pointers are host pointers.
using HostKernel = void (*)(const Launch& launch, const funicular_batch& batch);

struct Kernel {
    const char* name;
    HostKernel run;
    bool takes_work_us;  // its launch takes the batch's `work_us`
    bool ends;           // false: it runs until it is released or its context dies
};

// That kernel, if there is one.
const Kernel* find_kernel(const std::string& name);

// A batch as the device sees it, with host pointers instead of device pointers, and the memory that its kernel may touch.
struct Resolved {
    funicular_batch batch;
    std::vector<Range> ranges;
};

// Follows the pointers of a batch; nothing (and a violation) if they don't lead to what the interface promises.
std::optional<Resolved> resolve(const Context& context, const funicular_batch& batch);

}  // namespace fake

// Exported functions about memory: device memory, pinned host memory, and the copies between the two.

#include <cstring>
#include <new>

#include "driver.h"
#include "journal.h"

using namespace fake;

namespace {

void note(const char* event, const char* what, const Context& context, uint64_t address, size_t bytes) {
    journal(event, {{"what", what}, {"device", context.device->index}, {"context", context.id}, {"address", address}, {"bytes", bytes}});
}

// Freeing what an operation still uses blocks until that has ended, as the real driver does; no good program does it.
void wait_until_unused(Context& context, uint64_t address, size_t size, Lock& lock, const char* what) {
    if (auto op = pending_on(context, address, size))
        violation(context.device->index, std::string(what) + " is freed while operation " + std::to_string(*op) + " uses it");
    context.device->progress.wait(lock, [&] { return !pending_on(context, address, size); });
    context.accesses.forget(address, size);
}

// Fills what an operation is going to write, so that whoever reads it too early reads garbage; what that looks like.
uint64_t poison(unsigned char* bytes, size_t size) {
    std::memset(bytes, 0xA5, size);
    return fingerprint(bytes, size);
}

// The two ends of a copy, as host addresses.
struct Ends {
    unsigned char* device;
    unsigned char* host;
};

// Finds them and the stream; both ends must be alive and large enough, the host's pinned.
CUresult find_ends(const Context& context, const char* call, CUdeviceptr device, const void* host, size_t size, Ends& ends) {
    ends.device = context.device_memory.find(device, size);
    ends.host = context.pinned_memory.find(reinterpret_cast<uint64_t>(host), size);
    if (ends.device && ends.host) return CUDA_SUCCESS;
    const char* which = ends.device ? "its host side is no living pinned memory" : "its device side is no living allocation";
    violation(context.device->index, std::string(call) + " of " + std::to_string(size) + " bytes: " + which + ", or too small");
    return CUDA_ERROR_INVALID_VALUE;
}

Op copy_op(Kind kind, CUdeviceptr device, const void* host, size_t size) {
    Op op{};
    op.kind = kind;
    op.ranges = {{device, size, kind == Kind::h2d}, {reinterpret_cast<uint64_t>(host), size, kind == Kind::d2h}};
    return op;
}

}  // namespace

FAKE_API cuMemGetInfo_v2(size_t* free, size_t* total) {
    return in_context("cuMemGetInfo_v2", [&](Context& context, Lock&) -> CUresult {
        if (!free || !total) return CUDA_ERROR_INVALID_VALUE;
        const Device& device = *context.device;
        *total = device.memory_bytes;
        *free = device.memory_bytes - std::min(device.memory_used, device.memory_bytes);
        return CUDA_SUCCESS;
    });
}

FAKE_API cuMemAlloc_v2(CUdeviceptr* address, size_t size) {
    return in_context("cuMemAlloc_v2", [&](Context& context, Lock&) -> CUresult {
        Device& device = *context.device;
        if (!address || size == 0) return CUDA_ERROR_INVALID_VALUE;
        if (size > device.memory_bytes || device.memory_used > device.memory_bytes - size) return CUDA_ERROR_OUT_OF_MEMORY;
        *address = context.device_memory.add(std::make_unique<Mapping>(size), device.addresses.take(size));
        device.memory_used += size;
        note("create", "device memory", context, *address, size);
        return CUDA_SUCCESS;
    });
}

FAKE_API cuMemFree_v2(CUdeviceptr address) {
    return in_context("cuMemFree_v2", [&](Context& context, Lock& lock) -> CUresult {
        const auto size = context.device_memory.size_of(address);
        if (!size) return CUDA_ERROR_INVALID_VALUE;
        wait_until_unused(context, address, *size, lock, "device memory");
        context.device->memory_used -= *size;
        context.device_memory.remove(address);
        note("destroy", "device memory", context, address, *size);
        return CUDA_SUCCESS;
    });
}

FAKE_API cuMemHostAlloc(void** address, size_t size, unsigned flags) {
    return in_context("cuMemHostAlloc", [&](Context& context, Lock&) -> CUresult {
        if (!address || size == 0 || (flags & ~MEMHOSTALLOC_FLAGS)) return CUDA_ERROR_INVALID_VALUE;
        const uint64_t at = context.pinned_memory.add(std::make_unique<Mapping>(size), {});
        *address = reinterpret_cast<void*>(at);
        note("create", "pinned memory", context, at, size);
        return CUDA_SUCCESS;
    });
}

FAKE_API cuMemFreeHost(void* pointer) {
    return in_context("cuMemFreeHost", [&](Context& context, Lock& lock) -> CUresult {
        const uint64_t address = reinterpret_cast<uint64_t>(pointer);
        const auto size = context.pinned_memory.size_of(address);
        if (!size) return CUDA_ERROR_INVALID_VALUE;
        wait_until_unused(context, address, *size, lock, "pinned memory");
        context.pinned_memory.remove(address);
        note("destroy", "pinned memory", context, address, *size);
        return CUDA_SUCCESS;
    });
}

FAKE_API cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t size, CUhandle handle) {
    return in_context("cuMemcpyHtoDAsync_v2", [&](Context& context, Lock&) -> CUresult {
        auto stream = driver().streams.find(handle, context);
        if (!stream) return CUDA_ERROR_INVALID_HANDLE;
        Ends ends;
        if (const CUresult code = find_ends(context, "cuMemcpyHtoDAsync", to, from, size, ends)) return code;
        Op op = copy_op(Kind::h2d, to, from, size);
        const bool watched = !settings().light;
        const uint64_t expected = watched ? fingerprint(ends.host, size) : 0;
        op.body = [=, index = context.device->index] {
            std::memcpy(ends.device, ends.host, size);
            if (watched && fingerprint(ends.device, size) != expected)
                violation(index, "the source of a copy to the device changed before the copy was over");
            return CUDA_SUCCESS;
        };
        enqueue(*stream, std::move(op));
        return CUDA_SUCCESS;
    });
}

FAKE_API cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t size, CUhandle handle) {
    return in_context("cuMemcpyDtoHAsync_v2", [&](Context& context, Lock&) -> CUresult {
        auto stream = driver().streams.find(handle, context);
        if (!stream) return CUDA_ERROR_INVALID_HANDLE;
        Ends ends;
        if (const CUresult code = find_ends(context, "cuMemcpyDtoHAsync", from, to, size, ends)) return code;
        // Unless an earlier operation is about to write it.
        const bool watched = !settings().light && !pending_on(context, reinterpret_cast<uint64_t>(to), size);
        const uint64_t expected = watched ? poison(ends.host, size) : 0;
        Op op = copy_op(Kind::d2h, from, to, size);
        op.body = [=, index = context.device->index] {
            if (watched && fingerprint(ends.host, size) != expected)
                violation(index, "the destination of a copy from the device was written before the copy was over");
            std::memcpy(ends.host, ends.device, size);
            return CUDA_SUCCESS;
        };
        enqueue(*stream, std::move(op));
        return CUDA_SUCCESS;
    });
}

FAKE_API cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t size, CUhandle handle) {
    return in_context("cuMemsetD8Async", [&](Context& context, Lock&) -> CUresult {
        auto stream = driver().streams.find(handle, context);
        if (!stream) return CUDA_ERROR_INVALID_HANDLE;
        unsigned char* bytes = context.device_memory.find(to, size);
        if (!bytes) {
            violation(context.device->index, "cuMemsetD8Async of " + std::to_string(size) + " bytes that are not of one living allocation");
            return CUDA_ERROR_INVALID_VALUE;
        }
        Op op{};
        op.kind = Kind::memset;
        op.ranges = {{to, size, true}};
        op.body = [=] {
            std::memset(bytes, value, size);
            return CUDA_SUCCESS;
        };
        enqueue(*stream, std::move(op));
        return CUDA_SUCCESS;
    });
}

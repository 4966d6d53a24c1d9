// Exported functions about code: modules, functions, launches.

#include <algorithm>
#include <cstring>

#include "driver.h"
#include "image.h"
#include "journal.h"
#include "kernels.h"

using namespace fake;

namespace {

constexpr unsigned MAX_THREADS = 1024;
constexpr size_t SHARED_OPTIN = 227 << 10;

// Puts what the JIT compiler says into the program's buffers, and how much it was into their sizes.
void give_log(const std::string& log, unsigned count, const int* options, void** values) {
    char* buffer = nullptr;
    void** size = nullptr;
    for (unsigned i = 0; i < count; i++) {
        if (options[i] == JIT_ERROR_LOG_BUFFER) buffer = static_cast<char*>(values[i]);
        if (options[i] == JIT_ERROR_LOG_BUFFER_SIZE_BYTES) size = &values[i];
    }
    if (!buffer || !size) return;
    const size_t room = reinterpret_cast<uintptr_t>(*size) & 0xFFFFFFFFu;
    const size_t written = room == 0 ? 0 : std::min(log.size(), room - 1);
    std::memcpy(buffer, log.data(), written);
    if (room > 0) buffer[written] = '\0';
    *size = reinterpret_cast<void*>(written);
}

// A launch whose dimensions the device can run.
CUresult check_launch(const Function& function, const unsigned (&grid)[3], const unsigned (&block)[3], size_t shared) {
    for (int i = 0; i < 3; i++)
        if (grid[i] == 0 || block[i] == 0 || block[i] > (i == 2 ? 64u : MAX_THREADS)) return CUDA_ERROR_INVALID_VALUE;
    if (grid[0] > 0x7FFFFFFF || grid[1] > 0xFFFF || grid[2] > 0xFFFF) return CUDA_ERROR_INVALID_VALUE;
    if (uint64_t(block[0]) * block[1] * block[2] > MAX_THREADS) return CUDA_ERROR_INVALID_VALUE;
    return shared > function.dynamic_shared_max ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

// What a launch does when its turn comes: the batch was copied when it was enqueued, as the real driver does.
Op kernel_op(Context& context, const Kernel& kernel, const Launch& launch, const funicular_batch& batch) {
    Op op{};
    op.kind = Kind::kernel;
    op.takes = std::chrono::microseconds(kernel.takes_work_us ? batch.work_us : 0);
    if (!kernel.ends) op.takes = std::chrono::hours(24 * 365);
    auto resolved = std::make_shared<Resolved>();
    op.begin = [&context, batch, resolved](Op& op) -> CUresult {
        auto found = resolve(context, batch);
        if (!found) return CUDA_ERROR_ILLEGAL_ADDRESS;
        *resolved = std::move(*found);
        // Its time passes outside of the kernel.
        resolved->batch.work_us = 0;
        op.ranges = resolved->ranges;
        return CUDA_SUCCESS;
    };
    op.body = [resolved, launch, run = kernel.run] {
        run(launch, resolved->batch);
        return CUDA_SUCCESS;
    };
    return op;
}

}  // namespace

FAKE_API cuModuleLoadDataEx(CUhandle* handle, const void* image, unsigned count, int* options, void** values) {
    return in_context("cuModuleLoadDataEx", [&](Context& context, Lock&) -> CUresult {
        if (!handle || !image || (count > 0 && (!options || !values))) return CUDA_ERROR_INVALID_VALUE;
        Image read = read_image(image);
        give_log(read.log, count, options, values);
        if (read.code != CUDA_SUCCESS) return read.code;
        auto module = std::make_shared<Module>();
        module->id = ++driver().ids;
        module->context = &context;
        module->entries = std::move(read.entries);
        *handle = driver().modules.add(module);
        journal("create", {{"what", "module"}, {"device", context.device->index}, {"context", context.id}, {"id", module->id}});
        return CUDA_SUCCESS;
    });
}

FAKE_API cuModuleUnload(CUhandle handle) {
    return in_context("cuModuleUnload", [&](Context& context, Lock&) -> CUresult {
        auto module = driver().modules.find(handle, context);
        if (!module) return CUDA_ERROR_INVALID_HANDLE;
        if (!is_idle(context)) violation(context.device->index, "a module is unloaded while operations run");
        driver().modules.remove(handle);
        journal("destroy", {{"what", "module"}, {"device", context.device->index}, {"context", context.id}, {"id", module->id}});
        return CUDA_SUCCESS;
    });
}

FAKE_API cuModuleGetFunction(CUhandle* handle, CUhandle module_handle, const char* name) {
    return in_context("cuModuleGetFunction", [&](Context& context, Lock&) -> CUresult {
        auto module = driver().modules.find(module_handle, context);
        if (!module) return CUDA_ERROR_INVALID_HANDLE;
        if (!handle || !name) return CUDA_ERROR_INVALID_VALUE;
        auto entry = module->entries.find(name);
        if (entry == module->entries.end()) return CUDA_ERROR_NOT_FOUND;
        auto function = std::make_shared<Function>();
        function->context = &context;
        function->module = module->id;
        function->name = name;
        function->parameters = entry->second;
        *handle = driver().functions.add(function);
        return CUDA_SUCCESS;
    });
}

FAKE_API cuFuncGetAttribute(int* value, int attribute, CUhandle handle) {
    return in_context("cuFuncGetAttribute", [&](Context& context, Lock&) -> CUresult {
        auto function = driver().functions.find(handle, context);
        if (!function) return CUDA_ERROR_INVALID_HANDLE;
        if (!value || attribute < 0 || attribute >= FUNCTION_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
        switch (attribute) {
            case FUNCTION_MAX_THREADS_PER_BLOCK: *value = MAX_THREADS; break;
            case FUNCTION_NUM_REGS: *value = 32; break;
            case FUNCTION_PTX_VERSION: *value = 70; break;
            case FUNCTION_BINARY_VERSION: *value = settings().capability; break;
            case FUNCTION_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = static_cast<int>(function->dynamic_shared_max); break;
            case FUNCTION_PREFERRED_SHARED_MEMORY_CARVEOUT: *value = -1; break;
            default: *value = 0;
        }
        return CUDA_SUCCESS;
    });
}

FAKE_API cuFuncSetAttribute(CUhandle handle, int attribute, int value) {
    return in_context("cuFuncSetAttribute", [&](Context& context, Lock&) -> CUresult {
        auto function = driver().functions.find(handle, context);
        if (!function) return CUDA_ERROR_INVALID_HANDLE;
        if (attribute == FUNCTION_PREFERRED_SHARED_MEMORY_CARVEOUT) return CUDA_SUCCESS;
        const bool fits = value >= 0 && static_cast<size_t>(value) <= SHARED_OPTIN;
        if (attribute != FUNCTION_MAX_DYNAMIC_SHARED_SIZE_BYTES || !fits) return CUDA_ERROR_INVALID_VALUE;
        function->dynamic_shared_max = static_cast<size_t>(value);
        return CUDA_SUCCESS;
    });
}

FAKE_API cuLaunchKernel(CUhandle handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                        unsigned block_z, unsigned shared, CUhandle stream_handle, void** parameters, void** extra) {
    return in_context("cuLaunchKernel", [&](Context& context, Lock&) -> CUresult {
        auto function = driver().functions.find(handle, context);
        auto stream = driver().streams.find(stream_handle, context);
        if (!function || !stream) return CUDA_ERROR_INVALID_HANDLE;
        if (!parameters || extra) return CUDA_ERROR_INVALID_VALUE;
        if (const CUresult code = check_launch(*function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared)) return code;
        const Kernel* kernel = find_kernel(function->name);
        if (!kernel || function->parameters != std::vector{sizeof(funicular_batch)} || grid_y * grid_z * block_y * block_z != 1) {
            violation(context.device->index, function->name + ": the stand-in can't run this kernel in this way");
            return CUDA_ERROR_INVALID_VALUE;
        }
        funicular_batch batch;
        std::memcpy(&batch, parameters[0], sizeof batch);
        enqueue(*stream, kernel_op(context, *kernel, {grid_x, block_x, shared}, batch));
        return CUDA_SUCCESS;
    });
}

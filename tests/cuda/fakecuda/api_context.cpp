// Exported functions about contexts: made for one device, current in one thread at a time, and all that is in one goes
// with it.

#include "driver.h"
#include "journal.h"

using namespace fake;

namespace {

// Everything that a context leaves behind is freed, and what the program forgot is noted.
void free_all(Context& context) {
    Device& device = *context.device;
    for (auto& stream : driver().streams.remove_of(context)) {
        stream->closing = true;
        stream->work.notify_one();
    }
    const size_t events = driver().events.remove_of(context).size();
    const size_t modules = driver().modules.remove_of(context).size();
    driver().functions.remove_of(context);
    device.memory_used -= context.device_memory.bytes();
    journal("destroy", {{"what", "context"},
                        {"device", device.index},
                        {"context", context.id},
                        {"code", context.sticky},
                        {"left_device_allocations", context.device_memory.count()},
                        {"left_pinned_buffers", context.pinned_memory.count()},
                        {"left_events", events},
                        {"left_modules", modules}});
    context.device_memory.clear();
    context.pinned_memory.clear();
}

}  // namespace

FAKE_API cuCtxCreate_v2(CUhandle* handle, unsigned flags, CUdevice ordinal) {
    return anywhere("cuCtxCreate_v2", ordinal, [&]() -> CUresult {
        Device* device = driver().device(ordinal);
        if (!handle || flags > 0x3F) return CUDA_ERROR_INVALID_VALUE;
        if (!device) return CUDA_ERROR_INVALID_DEVICE;
        if (device->lost != CUDA_SUCCESS) return device->lost;
        auto context = std::make_shared<Context>();
        context->id = ++driver().ids;
        context->device = device;
        driver().shells.push_back(context);
        *handle = current_handle() = driver().contexts.add(context);
        journal("create", {{"what", "context"}, {"device", ordinal}, {"context", context->id}, {"flags", flags}});
        return CUDA_SUCCESS;
    });
}

FAKE_API cuCtxSetCurrent(CUhandle handle) {
    return anywhere("cuCtxSetCurrent", -1, [&] {
        if (handle && !driver().contexts.find(handle)) return CUDA_ERROR_INVALID_CONTEXT;
        current_handle() = handle;
        return CUDA_SUCCESS;
    });
}

// Works for dead contexts too: it is the only thing that does.
FAKE_API cuCtxDestroy_v2(CUhandle handle) {
    Lock lock(driver().mutex);
    auto context = driver().contexts.find(handle);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    const int device = context->device->index;
    if (const CUresult code = driver().faults.on_call(device, "cuCtxDestroy_v2")) return code;
    if (context->dead() == CUDA_SUCCESS && !is_idle(*context))
        violation(device, "context " + std::to_string(context->id) + " is destroyed while operations of it run: this blocks");
    context->device->progress.wait(lock, [&] { return is_idle(*context); });
    free_all(*context);
    driver().contexts.remove(handle);
    if (current_handle() == handle) current_handle() = nullptr;
    return CUDA_SUCCESS;
}

// What a program leaves behind when it ends.
__attribute__((destructor)) static void say_goodbye() {
    Lock lock(driver().mutex, std::try_to_lock);
    if (!lock) return;

    
    journal("exit", {{"left_contexts", driver().contexts.all().size()}});
}

#include "driver.h"

#include <cstdlib>
#include <sstream>

#include "control.h"
#include "journal.h"

namespace fake {

namespace {

long number_from(const char* name, long otherwise) {
    const char* text = std::getenv(name);
    return text && *text ? std::strtol(text, nullptr, 10) : otherwise;
}

void report(const char* function, int device, CUresult code) {
    if (code != CUDA_SUCCESS && code != CUDA_ERROR_NOT_READY)
        journal("call", {{"device", device}, {"function", function}, {"code", code}});
}

// What every call is refused for, whatever it is about.
CUresult refusal(const char* function, int device) {
    if (in_host_function()) {
        violation(device, std::string(function) + " was called from a host function");
        return CUDA_ERROR_NOT_PERMITTED;
    }
    if (!driver().initialised) return CUDA_ERROR_NOT_INITIALIZED;
    return CUDA_SUCCESS;
}

Driver* make_driver() {
    auto* made = new Driver;
    for (int index = 0; index < settings().devices; index++) made->devices.push_back(std::make_unique<Device>(index));
    const char* faults = std::getenv("FAKE_CUDA_FAULTS");
    std::istringstream commands(faults ? faults : "");
    for (std::string command; std::getline(commands, command, ';');)
        if (auto wrong = made->faults.obey(command, *made)) {
            std::fprintf(stderr, "fakecuda: FAKE_CUDA_FAULTS: %s\n", wrong->c_str());
            std::abort();
        }
    return made;
}

}  // namespace

const Settings& settings() {
    static const Settings read{
        .devices = static_cast<int>(number_from("FAKE_CUDA_DEVICES", 1)),
        .version = static_cast<int>(number_from("FAKE_CUDA_VERSION", 12040)),
        .memory_bytes = static_cast<size_t>(number_from("FAKE_CUDA_MEMORY_MIB", 4096)) << 20,
        .capability = static_cast<int>(number_from("FAKE_CUDA_CAPABILITY", 90)),
        .light = std::getenv("FAKE_CUDA_LIGHT") != nullptr,
    };
    return read;
}

Driver& driver() {
    static Driver& only = *make_driver();
    return only;
}

void Driver::lose(int index, CUresult code) {
    for (auto& each : devices)
        if (index == Faults::ALL || each->index == index) each->lost = code;
}

void Driver::restore(int index) {
    // Contexts of before stay dead.
    for (const auto& [handle, context] : contexts.all())
        if ((index == Faults::ALL || context->device->index == index) && context->device->lost != CUDA_SUCCESS)
            context->sticky = context->device->lost;
    lose(index, CUDA_SUCCESS);
}

void Driver::memory(int index, size_t bytes) {
    for (auto& each : devices)
        if (index == Faults::ALL || each->index == index) each->memory_bytes = bytes;
}

Clock& host_clock() {
    thread_local Clock clock;
    return clock;
}

CUhandle& current_handle() {
    thread_local CUhandle handle = nullptr;
    return handle;
}

std::shared_ptr<Context> current_context() { return driver().contexts.find(current_handle()); }

bool& in_host_function() {
    thread_local bool in = false;
    return in;
}

CUresult anywhere(const char* function, int device, const std::function<CUresult()>& body) {
    Lock lock(driver().mutex);
    CUresult code = refusal(function, device);
    if (code == CUDA_SUCCESS) code = driver().faults.on_call(device, function);
    if (code == CUDA_SUCCESS) code = body();
    report(function, device, code);
    return code;
}

CUresult in_context(const char* function, const std::function<CUresult(Context&, Lock&)>& body) {
    Lock lock(driver().mutex);
    CUresult code = refusal(function, -1);
    auto context = current_context();
    if (code == CUDA_SUCCESS && !context)
        code = current_handle() ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT;
    if (!context) {
        report(function, -1, code);
        return code;
    }
    const int device = context->device->index;
    if (code == CUDA_SUCCESS) code = context->dead();
    if (code == CUDA_SUCCESS) code = driver().faults.on_call(device, function);
    if (code == CUDA_SUCCESS) code = body(*context, lock);
    report(function, device, code);
    return code;
}

}  // namespace fake

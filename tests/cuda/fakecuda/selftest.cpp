// Does the stand-in catch what it is there to catch? A program against the driver API that does right and wrong things and looks
// at what comes back and what the journal says. Run by `tests/cuda/standin.rs` with FAKE_CUDA_JOURNAL, FAKE_CUDA_CONTROL
// and two devices; says what failed and exits with 1.

#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "abi.h"
#include "funicular.h"

extern "C" {
CUresult cuInit(unsigned);
CUresult cuDeviceGetCount(int*);
CUresult cuCtxCreate_v2(CUhandle*, unsigned, CUdevice);
CUresult cuCtxDestroy_v2(CUhandle);
CUresult cuCtxSetCurrent(CUhandle);
CUresult cuMemGetInfo_v2(size_t*, size_t*);
CUresult cuModuleLoadDataEx(CUhandle*, const void*, unsigned, int*, void**);
CUresult cuModuleGetFunction(CUhandle*, CUhandle, const char*);
CUresult cuFuncGetParamInfo(CUhandle, size_t, size_t*, size_t*);
CUresult cuMemAlloc_v2(CUdeviceptr*, size_t);
CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuMemHostAlloc(void**, size_t, unsigned);
CUresult cuMemFreeHost(void*);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr, const void*, size_t, CUhandle);
CUresult cuMemcpyDtoHAsync_v2(void*, CUdeviceptr, size_t, CUhandle);
CUresult cuMemsetD8Async(CUdeviceptr, unsigned char, size_t, CUhandle);
CUresult cuStreamCreate(CUhandle*, unsigned);
CUresult cuStreamQuery(CUhandle);
CUresult cuStreamWaitEvent(CUhandle, CUhandle, unsigned);
CUresult cuEventCreate(CUhandle*, unsigned);
CUresult cuEventRecord(CUhandle, CUhandle);
CUresult cuEventQuery(CUhandle);
CUresult cuEventElapsedTime(float*, CUhandle, CUhandle);
CUresult cuLaunchHostFunc(CUhandle, CUhostFn, void*);
CUresult cuLaunchKernel(CUhandle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUhandle, void**, void**);
CUresult cuGetErrorName(CUresult, const char**);
}

namespace {

int failures = 0;

// Microseconds that no test lasts: what is slowed by so much goes on when it is told to.
const std::string FOR_EVER = "600000000";

void check(bool holds, const char* what, int line) {
    if (holds) return;
    std::printf("line %d: %s\n", line, what);
    failures++;
}
#define CHECK(what) check(what, #what, __LINE__)
#define OK(call) check((call) == CUDA_SUCCESS, #call, __LINE__)

// A command to the stand-in; comes back when it holds.
void tell(const std::string& command) {
    const int to = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, std::getenv("FAKE_CUDA_CONTROL"), sizeof address.sun_path - 1);
    CHECK(connect(to, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    const std::string line = command + "\n";
    CHECK(write(to, line.data(), line.size()) == static_cast<ssize_t>(line.size()));
    char answer[256] = {};
    CHECK(read(to, answer, sizeof answer - 1) > 0);
    if (std::strcmp(answer, "ok\n") != 0) std::printf("%s: %s", command.c_str(), answer);
    CHECK(std::strcmp(answer, "ok\n") == 0);
    close(to);
}

// How many violations the journal tells of whose text has `text` in it.
int violations(const std::string& text) {
    std::ifstream journal(std::getenv("FAKE_CUDA_JOURNAL"));
    int count = 0;
    for (std::string line; std::getline(journal, line);)
        count += line.find("\"violation\"") != std::string::npos && line.find(text) != std::string::npos;
    return count;
}

void wait_for(CUhandle stream) {
    while (cuStreamQuery(stream) == CUDA_ERROR_NOT_READY) std::this_thread::yield();
}

// A context with a stream, a device buffer and a pinned one, gone at the end of the scope.
struct World {
    static constexpr size_t SIZE = 4096;
    CUhandle context{}, stream{}, other{};
    CUdeviceptr device{};
    unsigned char* host{};

    explicit World(int index = 0) {
        OK(cuCtxCreate_v2(&context, 0, index));
        OK(cuStreamCreate(&stream, 1));
        OK(cuStreamCreate(&other, 1));
        OK(cuMemAlloc_v2(&device, SIZE));
        void* pinned{};
        OK(cuMemHostAlloc(&pinned, SIZE, 0));
        host = static_cast<unsigned char*>(pinned);
    }
    ~World() { OK(cuCtxDestroy_v2(context)); }
};

void streams_run_by_themselves() {
    World world;
    tell("slow 0 h2d " + FOR_EVER);
    std::memset(world.host, 7, 100);
    static std::atomic<bool> called;
    OK(cuMemcpyHtoDAsync_v2(world.device, world.host, 100, world.stream));
    OK(cuLaunchHostFunc(world.stream, [](void*) { called = cuStreamQuery(nullptr) == CUDA_ERROR_NOT_PERMITTED; }, nullptr));
    CHECK(cuStreamQuery(world.stream) == CUDA_ERROR_NOT_READY);
    CHECK(!called);
    tell("slow 0 h2d 0");
    wait_for(world.stream);
    CHECK(called);
    OK(cuMemsetD8Async(world.device + 10, 9, 10, world.stream));
    OK(cuMemcpyDtoHAsync_v2(world.host + 200, world.device, 100, world.stream));
    wait_for(world.stream);
    CHECK(world.host[209] == 7 && world.host[210] == 9 && world.host[219] == 9 && world.host[220] == 7);
    CHECK(violations("from a host function") == 1);
}

void buffers_in_use_are_left_alone() {
    World world;
    tell("slow 0 h2d " + FOR_EVER);
    OK(cuMemcpyHtoDAsync_v2(world.device, world.host, 100, world.stream));
    world.host[50]++;
    tell("slow 0 h2d 0");
    wait_for(world.stream);
    CHECK(violations("source of a copy") == 1);
    tell("slow 0 d2h " + FOR_EVER);
    world.host[1000] = 1;
    OK(cuMemcpyDtoHAsync_v2(world.host + 1000, world.device, 100, world.stream));
    CHECK(world.host[1000] == 0xA5);
    world.host[1001] = 1;
    tell("slow 0 d2h 0");
    wait_for(world.stream);
    CHECK(violations("destination of a copy") == 1);
    tell("slow 0 h2d " + FOR_EVER);
    OK(cuMemcpyHtoDAsync_v2(world.device, world.host, 100, world.stream));
    // It tells of the violation and then waits for the copy, as a real one may.
    std::atomic<bool> freed = false;
    std::thread copy([&] {
        while (violations("device memory is freed") == 0 && !freed) std::this_thread::yield();
        tell("slow 0 h2d 0");
    });
    OK(cuMemFree_v2(world.device));
    freed = true;
    copy.join();
    CHECK(violations("device memory is freed") == 1);
    tell("clear");
}

void ends_of_copies_are_checked() {
    World world;
    std::vector<unsigned char> pageable(100);
    CHECK(cuMemcpyHtoDAsync_v2(world.device, pageable.data(), 100, world.stream) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemcpyHtoDAsync_v2(world.device + World::SIZE - 10, world.host, 11, world.stream) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemcpyDtoHAsync_v2(world.host + World::SIZE - 10, world.device, 11, world.stream) == CUDA_ERROR_INVALID_VALUE);
    CHECK(violations("no living") == 3);
    CHECK(cuMemFree_v2(world.device + 16) == CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree_v2(world.device));
    CHECK(cuMemFree_v2(world.device) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemsetD8Async(world.device, 0, 1, world.stream) == CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFreeHost(world.host));
    CHECK(cuMemFreeHost(world.host) == CUDA_ERROR_INVALID_VALUE);
}

void device_pointers_are_no_host_pointers() {
    World world;
    std::fflush(stdout);
    if (const pid_t child = fork(); child == 0) {
        *reinterpret_cast<volatile unsigned char*>(world.device) = 1;
        _exit(0);
    } else {
        int status = 0;
        waitpid(child, &status, 0);
        CHECK(WIFSIGNALED(status));
    }
}

void what_nothing_orders_is_a_race() {
    World world;
    CUhandle event{};
    OK(cuEventCreate(&event, 0));
    // Ordered by an event, then by the host's knowledge.
    OK(cuMemsetD8Async(world.device, 1, 100, world.stream));
    OK(cuEventRecord(event, world.stream));
    OK(cuStreamWaitEvent(world.other, event, 0));
    OK(cuMemsetD8Async(world.device, 2, 100, world.other));
    wait_for(world.other);
    OK(cuMemsetD8Async(world.device, 3, 100, world.stream));
    wait_for(world.stream);
    CHECK(violations("nothing orders") == 0);
    // Over by the time that the other one begins, but nobody knows.
    OK(cuMemsetD8Async(world.device, 4, 100, world.stream));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    OK(cuMemsetD8Async(world.device + 99, 5, 100, world.other));
    wait_for(world.other);
    wait_for(world.stream);
    CHECK(violations("nothing orders") == 1);
}

void events_tell_time_and_order() {
    World world;
    CUhandle before{}, after{}, never{};
    OK(cuEventCreate(&before, 0));
    OK(cuEventCreate(&after, 0));
    OK(cuEventCreate(&never, 2));
    tell("slow 0 memset " + FOR_EVER);
    OK(cuEventRecord(before, world.stream));
    OK(cuMemsetD8Async(world.device, 1, 100, world.stream));
    OK(cuEventRecord(after, world.stream));
    CHECK(cuEventQuery(after) == CUDA_ERROR_NOT_READY);
    float ms = 0;
    CHECK(cuEventElapsedTime(&ms, before, after) == CUDA_ERROR_NOT_READY);
    tell("slow 0 memset 30000");
    wait_for(world.stream);
    OK(cuEventQuery(after));
    OK(cuEventElapsedTime(&ms, before, after));
    CHECK(ms >= 30 && ms < 300000);
    OK(cuEventQuery(never));
    CHECK(cuEventElapsedTime(&ms, before, never) == CUDA_ERROR_INVALID_HANDLE);
    tell("clear");
}

void handles_and_threads_are_checked() {
    World world;
    World second(1);
    CHECK(cuStreamQuery(world.stream) == CUDA_ERROR_INVALID_HANDLE);  // current is the second one
    CHECK(cuStreamQuery(second.context) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuMemFree_v2(world.device) == CUDA_ERROR_INVALID_VALUE);
    std::thread([&] {
        CHECK(cuStreamQuery(second.stream) == CUDA_ERROR_INVALID_CONTEXT);
        OK(cuCtxSetCurrent(second.context));
        OK(cuStreamQuery(second.stream));
    }).join();
    size_t before = 0, after = 0, total = 0;
    OK(cuMemGetInfo_v2(&before, &total));
    CUdeviceptr large = 0;
    CHECK(cuMemAlloc_v2(&large, total) == CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAlloc_v2(&large, 1 << 20));
    OK(cuMemGetInfo_v2(&after, &total));
    CHECK(before - after == 1 << 20);
}

void errors_stick_until_the_context_is_gone() {
    for (const char* command : {"fail 0 memset 700", "lose 0 719"}) {
        const bool lost = command[0] == 'l';
        const CUresult code = lost ? 719 : 700;
        {
            World world;
            if (lost) OK(cuMemsetD8Async(world.device, 0, 1, world.stream));
            tell(command);
            if (!lost) OK(cuMemsetD8Async(world.device, 0, 1, world.stream));
            wait_for(world.stream);
            CHECK(cuStreamQuery(world.stream) == code);
            CHECK(cuMemFree_v2(world.device) == code);
            CUhandle next{};
            CHECK(cuCtxCreate_v2(&next, 0, 0) == (lost ? code : CUDA_SUCCESS));
            if (!lost) OK(cuCtxDestroy_v2(next));
            if (lost) tell("restore 0");
            OK(cuCtxSetCurrent(world.context));
            CHECK(cuStreamQuery(world.stream) == code);
        }
        World again;
        OK(cuStreamQuery(again.stream));
    }
    tell("fail 0 cuStreamQuery 999 2");
    World world;
    OK(cuStreamQuery(world.stream));
    CHECK(cuStreamQuery(world.stream) == 999);
    OK(cuStreamQuery(world.stream));
}

constexpr char PTX[] =
    ".version 7.0\n.target sm_80\n.address_size 64\n// .entry not_here()\n"
    ".visible .entry batchstring(\n.param .align 8 .b8 p[56]\n)\n{\nret;\n}\n"
    ".visible .entry other(.param .u64 a, .param .u32 b, .param .u64 c)\n{\nret;\n}\n";

void modules_are_read() {
    World world;
    CUhandle module{}, function{};
    OK(cuModuleLoadDataEx(&module, PTX, 0, nullptr, nullptr));
    CHECK(cuModuleGetFunction(&function, module, "not_here") == CUDA_ERROR_NOT_FOUND);
    OK(cuModuleGetFunction(&function, module, "other"));
    size_t offset = 0, size = 0;
    OK(cuFuncGetParamInfo(function, 2, &offset, &size));
    CHECK(offset == 16 && size == 8);
    CHECK(cuFuncGetParamInfo(function, 3, &offset, &size) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuModuleLoadDataEx(&module, "no code", 0, nullptr, nullptr) == CUDA_ERROR_INVALID_IMAGE);
    CHECK(cuModuleLoadDataEx(&module, ".version 9.9\n.target sm_80\n", 0, nullptr, nullptr) == CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
    char log[64] = {};
    int options[] = {JIT_ERROR_LOG_BUFFER, JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
    CHECK(cuModuleLoadDataEx(&module, ".version 7.0\n.target sm_80\n.entry x() {", 2, options, values) == CUDA_ERROR_INVALID_PTX);
    CHECK(std::strstr(log, "line 3") != nullptr);
}

// A batch of two inputs in the world's buffers.
funicular_batch stage(World& world, const char* first, const char* second) {
    const unsigned a = static_cast<unsigned>(std::strlen(first)), b = static_cast<unsigned>(std::strlen(second));
    const unsigned offsets[] = {0, a, a + b, 0, 256, 512};
    std::memcpy(world.host, offsets, sizeof offsets);
    std::memcpy(world.host + 24, first, a);
    std::memcpy(world.host + 24 + a, second, b);
    OK(cuMemcpyHtoDAsync_v2(world.device, world.host, 24 + a + b, world.stream));
    OK(cuMemsetD8Async(world.device + 1024, 0xFF, 16, world.stream));
    OK(cuMemsetD8Async(world.device + 2048, 0, 512, world.stream));
    const auto at = [&](unsigned offset) { return reinterpret_cast<unsigned*>(world.device + offset); };
    return {reinterpret_cast<unsigned char*>(at(24)), at(0), reinterpret_cast<unsigned char*>(at(2048)), at(12), at(1024), at(1032), 2, 0};
}

void launch(CUhandle function, funicular_batch batch, CUhandle stream) {
    void* parameters[] = {&batch};
    OK(cuLaunchKernel(function, batch.count, 1, 1, 256, 1, 1, 0, stream, parameters, nullptr));
}

void kernels_run_on_device_memory() {
    CUhandle module{}, function{};
    {
        World world;
        OK(cuModuleLoadDataEx(&module, PTX, 0, nullptr, nullptr));
        OK(cuModuleGetFunction(&function, module, "batchstring"));
        funicular_batch batch = stage(world, "Hello, \xC3\xBC!", "");
        launch(function, batch, world.stream);
        OK(cuMemcpyDtoHAsync_v2(world.host + 1024, world.device + 1024, 2048, world.stream));
        wait_for(world.stream);
        const unsigned results[] = {10, 0, 0, 0};
        CHECK(std::memcmp(world.host + 1024, results, sizeof results) == 0);
        CHECK(std::memcmp(world.host + 2048, "HELLO, \xC3\xBC!", 11) == 0);
        void* parameters[] = {&batch};
        CHECK(cuLaunchKernel(function, 2, 1, 1, 2048, 1, 1, 0, world.stream, parameters, nullptr) == CUDA_ERROR_INVALID_VALUE);

        // Two at a time, and one that hangs.
        tell("hang 0");
        launch(function, stage(world, "a", "b"), world.stream);
        wait_for(world.other);
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        CHECK(cuStreamQuery(world.stream) == CUDA_ERROR_NOT_READY);
        tell("release 0");
        wait_for(world.stream);
        CHECK(violations("not as promised") == 0);
    }
    World world;
    OK(cuModuleLoadDataEx(&module, PTX, 0, nullptr, nullptr));
    OK(cuModuleGetFunction(&function, module, "batchstring"));
    funicular_batch batch = stage(world, "a", "b");
    batch.input = world.host;
    launch(function, batch, world.stream);
    wait_for(world.stream);
    CHECK(cuStreamQuery(world.stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(violations("not as promised: input does not point") == 1);
}

}  // namespace

int main() {
    CHECK(cuDeviceGetCount(nullptr) == CUDA_ERROR_NOT_INITIALIZED);
    OK(cuInit(0));
    const char* name = nullptr;
    OK(cuGetErrorName(CUDA_ERROR_NOT_READY, &name));
    CHECK(std::strcmp(name, "CUDA_ERROR_NOT_READY") == 0);
    CHECK(cuGetErrorName(12345, &name) == CUDA_ERROR_INVALID_VALUE && !name);
    streams_run_by_themselves();
    buffers_in_use_are_left_alone();
    ends_of_copies_are_checked();
    device_pointers_are_no_host_pointers();
    what_nothing_orders_is_a_race();
    events_tell_time_and_order();
    handles_and_threads_are_checked();
    errors_stick_until_the_context_is_gone();
    modules_are_read();
    kernels_run_on_device_memory();
    std::printf(failures == 0 ? "all as it should be\n" : "%d checks failed\n", failures);
    return failures == 0 ? 0 : 1;
}

// The state of the driver: devices, contexts and everything that belongs to them, guarded by one lock.
//
// One lock for all is simple and enough: it is held for bookkeeping only, never while a kernel, a copy or a host function
// runs. Whoever waits for something to happen waits on its device's `progress`, which every end of an operation and every
// command notifies. Nothing here is ever destroyed: streams may still run while the process ends.
#pragma once
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "abi.h"
#include "faults.h"
#include "memory.h"
#include "order.h"
#include "settings.h"

namespace fake {

using Lock = std::unique_lock<std::mutex>;

struct Device {
    explicit Device(int index) : index(index), memory_bytes(settings().memory_bytes), addresses(index) {}

    int index;
    size_t memory_bytes;
    size_t memory_used = 0;
    CUresult lost = CUDA_SUCCESS;
    bool copying_up = false;    // one engine a direction
    bool copying_down = false;
    int kernels = 0;            // running now
    std::condition_variable progress;
    Addresses addresses;
};

struct Context;

// A point in a stream that was recorded, perhaps several times.
struct Event {
    unsigned id;
    Context* context;
    bool timed;
    uint64_t recorded = 0;  // how often it was enqueued
    uint64_t reached = 0;   // up to which of those the stream has come
    uint64_t reached_at_ns = 0;
    Clock clock;            // of the record that was enqueued last
};

struct Stream;

// Something that a stream does.
struct Op {
    uint64_t id;
    Kind kind;
    uint64_t number;  // on its stream
    Clock clock;
    std::vector<Range> ranges;
    // Runs with the lock held when the operation begins: finds its memory. The code that it fails with.
    std::function<CUresult(Op&)> begin;
    // Runs without the lock when the operation's time is over, so that what it reads is read late and what it writes is
    // written late. The code that it fails with.
    std::function<CUresult()> body;
    std::chrono::microseconds takes{0};
    std::shared_ptr<Event> event;  // of record and wait
    uint64_t generation = 0;       // of that event
};

// A queue of operations and the thread that runs them in order. The front one is running.
struct Stream {
    unsigned id;
    Context* context;
    std::deque<Op> queue;
    std::condition_variable work;
    bool closing = false;
    uint64_t numbered = 0;
    Clock clock;  // of its last operation

    bool idle() const { return queue.empty(); }
};

// Code that was loaded: entries and the sizes of their parameters.
struct Module {
    unsigned id;
    Context* context;
    std::map<std::string, std::vector<size_t>> entries;
};

struct Function {
    Context* context;
    unsigned module;
    std::string name;
    std::vector<size_t> parameters;
    size_t dynamic_shared_max = 48 << 10;
};

struct Context {
    unsigned id;
    Device* device;
    CUresult sticky = CUDA_SUCCESS;
    Space device_memory;
    Space pinned_memory;
    Accesses accesses;

    // The code that every call gets now, or success.
    CUresult dead() const { return device->lost != CUDA_SUCCESS ? device->lost : sticky; }
};

// Objects by their handles, which are no pointers: one of another kind, or of one that is gone, is not found.
template <class T>
class Handles {
  public:
    explicit Handles(unsigned char kind) : kind_(kind) {}
    CUhandle add(std::shared_ptr<T> object) {
        const uint64_t handle = static_cast<uint64_t>(kind_) << 56 | ++count_ << 4;
        objects_.emplace(handle, std::move(object));
        return reinterpret_cast<CUhandle>(handle);
    }
    std::shared_ptr<T> find(CUhandle handle) const {
        auto found = objects_.find(reinterpret_cast<uint64_t>(handle));
        return found == objects_.end() ? nullptr : found->second;
    }
    // That object, if it belongs to `context`.
    std::shared_ptr<T> find(CUhandle handle, const Context& context) const {
        auto object = find(handle);
        return object && object->context == &context ? object : nullptr;
    }
    void remove(CUhandle handle) { objects_.erase(reinterpret_cast<uint64_t>(handle)); }
    // Removes those that belong to `context`, and gives them.
    std::vector<std::shared_ptr<T>> remove_of(const Context& context) {
        std::vector<std::shared_ptr<T>> removed;
        std::erase_if(objects_, [&](const auto& entry) {
            if (entry.second->context != &context) return false;
            removed.push_back(entry.second);
            return true;
        });
        return removed;
    }
    const auto& all() const { return objects_; }

  private:
    uint64_t kind_;
    uint64_t count_ = 0;
    std::map<uint64_t, std::shared_ptr<T>> objects_;
};

struct Driver final : Faults::Devices {
    std::mutex mutex;
    bool initialised = false;
    std::vector<std::unique_ptr<Device>> devices;
    Faults faults;
    unsigned ids = 0;  // of contexts, streams, events, modules and allocations in the journal
    uint64_t ops = 0;

    void notify_all() {
        for (auto& each : devices) each->progress.notify_all();
    }

    Handles<Context> contexts{0xC0};
    // Destroyed ones stay as shells: streams and functions point at them.
    std::vector<std::shared_ptr<Context>> shells;
    Handles<Stream> streams{0x51};
    Handles<Event> events{0xE7};
    Handles<Module> modules{0x3D};
    Handles<Function> functions{0xF0};

    Device* device(int index) {
        const bool there = index >= 0 && static_cast<size_t>(index) < devices.size();
        return there ? devices[static_cast<size_t>(index)].get() : nullptr;
    }

    bool exists(int device) override { return this->device(device) != nullptr; }
    void lose(int device, CUresult code) override;
    void restore(int device) override;
    void memory(int device, size_t bytes) override;
};

Driver& driver();

// What this thread knows to be over, from events and streams that it queried.
Clock& host_clock();
// The context that this thread made current; none if that was destroyed. With the lock held.
std::shared_ptr<Context> current_context();
CUhandle& current_handle();
// Whether this thread runs a host function, in which no call is allowed.
bool& in_host_function();

// --- every exported function is one of these two

// Runs `body` with the lock held if the driver was initialised and nothing was injected; `body` takes nothing, `device` is
// the one in question or -1.
CUresult anywhere(const char* function, int device, const std::function<CUresult()>& body);

// The same in the thread's current context, which must be alive; `body` may wait with the lock that it is given.
CUresult in_context(const char* function, const std::function<CUresult(Context&, Lock&)>& body);

// --- streams (stream.cpp)

// Makes a stream and starts its thread. With the lock held, as all of these.
CUhandle make_stream(Context& context);
// Appends an operation, whose number, clock and id are set here, and writes it to the journal; its id.
uint64_t enqueue(Stream& stream, Op op);
// Whether an operation that waits or runs in `context` touches those bytes; its number.
std::optional<uint64_t> pending_on(const Context& context, uint64_t start, uint64_t size);
// Whether nothing waits or runs in `context`.
bool is_idle(const Context& context);

}  // namespace fake

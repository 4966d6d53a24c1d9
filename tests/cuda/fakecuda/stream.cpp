// Streams: each a queue and a thread of its own, so copies, kernels and host functions really run while the program goes on.

#include <pthread.h>

#include <thread>

#include "driver.h"
#include "journal.h"

namespace fake {

namespace {

using std::chrono::steady_clock;

// One line about an operation.
void note(const char* event, const Stream& stream, const Op& op, CUresult code = CUDA_SUCCESS) {
    uint64_t bytes = 0;
    for (const Range& range : op.ranges) bytes += range.size;
    journal(event, {{"device", stream.context->device->index},
                    {"context", stream.context->id},
                    {"stream", stream.id},
                    {"op", op.id},
                    {"kind", name_of(op.kind)},
                    {"about", op.event ? op.event->id : 0},
                    {"generation", op.generation},
                    {"bytes", bytes},
                    {"code", code}});
}

// The engine that a copy needs: one for each direction.
bool* engine(Device& device, Kind kind) {
    if (kind == Kind::h2d) return &device.copying_up;
    return kind == Kind::d2h ? &device.copying_down : nullptr;
}

// What of the stream's turn can be waited for before an operation begins.
bool may_begin(Device& device, const Op& op) {
    if (op.kind == Kind::wait) return op.event->reached >= op.generation;
    const bool* busy = engine(device, op.kind);
    return !busy || !*busy;
}

void watch_order(Device& device, const Stream& stream, const Op& op) {
    if (auto other = stream.context->accesses.note(stream.id, op.number, op.id, op.clock, op.ranges))
        violation(device.index, std::string("operation ") + std::to_string(op.id) + " (" + name_of(op.kind) +
                                    ") touches the same memory as operation " + std::to_string(*other) +
                                    " of another stream, and nothing orders the two");
    if (op.kind == Kind::kernel && device.kernels > 0)
        violation(device.index, "operation " + std::to_string(op.id) + ": a kernel begins while another one runs");
}

// Lets the operation's time pass, which may change meanwhile.
void pass_time(Device& device, const Op& op, Lock& lock, const auto& is_cut_off) {
    if (op.kind == Kind::kernel) driver().faults.hang(device.index, lock, device.progress, is_cut_off);
    const auto began = steady_clock::now();
    const auto due = [&] { return began + op.takes + driver().faults.slowness(device.index, op.kind); };
    while (!is_cut_off() && steady_clock::now() < due()) device.progress.wait_until(lock, due());
}

// The operation proper; the code that it ends with.
CUresult run(Device& device, const Stream& stream, Op& op, Lock& lock, const auto& is_cut_off) {
    CUresult code = driver().faults.on_operation(device.index, op.kind);
    if (code == CUDA_SUCCESS && op.begin) code = op.begin(op);
    if (code == CUDA_SUCCESS) watch_order(device, stream, op);
    if (code != CUDA_SUCCESS) return code;
    device.kernels += op.kind == Kind::kernel;
    pass_time(device, op, lock, is_cut_off);
    const bool left_out = is_cut_off() || (op.kind == Kind::hostfunc && driver().faults.muted(device.index));
    if (op.body && !left_out) {
        lock.unlock();
        code = op.body();
        lock.lock();
    }
    device.kernels -= op.kind == Kind::kernel;
    return code;
}

void perform(Stream& stream, Op& op, Lock& lock) {
    Context& context = *stream.context;
    Device& device = *context.device;
    const auto is_cut_off = [&] { return context.dead() != CUDA_SUCCESS; };
    device.progress.wait(lock, [&] { return is_cut_off() || may_begin(device, op); });
    if (is_cut_off()) {
        note("dropped", stream, op, context.dead());
        return;
    }
    bool* busy = engine(device, op.kind);
    if (busy) *busy = true;
    note("begin", stream, op);
    const CUresult code = run(device, stream, op, lock, is_cut_off);
    if (busy) *busy = false;
    if (is_cut_off()) {
        note("end", stream, op, context.dead());
        return;
    }
    note("end", stream, op, code);
    if (code != CUDA_SUCCESS) {
        context.sticky = code;
        journal("sticky", {{"device", device.index}, {"context", context.id}, {"code", code}});
    } else if (op.kind == Kind::record) {
        op.event->reached = op.generation;
        op.event->reached_at_ns = now_ns();
    }
}

void drive(const std::shared_ptr<Stream>& stream) {
    pthread_setname_np(pthread_self(), "fakecuda-stream");
    Lock lock(driver().mutex);
    for (;;) {
        stream->work.wait(lock, [&] { return stream->closing || !stream->queue.empty(); });
        if (stream->queue.empty()) return;
        perform(*stream, stream->queue.front(), lock);
        stream->queue.pop_front();
        stream->context->device->progress.notify_all();
    }
}

}  // namespace

CUhandle make_stream(Context& context) {
    auto stream = std::make_shared<Stream>();
    stream->id = ++driver().ids;
    stream->context = &context;
    std::thread(drive, stream).detach();
    return driver().streams.add(std::move(stream));
}

uint64_t enqueue(Stream& stream, Op op) {
    op.id = ++driver().ops;
    op.number = ++stream.numbered;
    stream.clock.join(host_clock());
    if (op.kind == Kind::wait) stream.clock.join(op.event->clock);
    stream.clock.advance(stream.id, op.number);
    op.clock = stream.clock;
    if (op.kind == Kind::record) op.event->clock = op.clock;
    note("enqueue", stream, op);
    const uint64_t id = op.id;
    stream.queue.push_back(std::move(op));
    stream.work.notify_one();
    return id;
}

std::optional<uint64_t> pending_on(const Context& context, uint64_t start, uint64_t size) {
    const Range wanted{start, size, true};
    for (const auto& [handle, stream] : driver().streams.all()) {
        if (stream->context != &context) continue;
        for (const Op& op : stream->queue)
            for (const Range& range : op.ranges)
                if (range.meets(wanted)) return op.id;
    }
    return {};
}

bool is_idle(const Context& context) {
    for (const auto& [handle, stream] : driver().streams.all())
        if (stream->context == &context && !stream->idle()) return false;
    return true;
}

}  // namespace fake

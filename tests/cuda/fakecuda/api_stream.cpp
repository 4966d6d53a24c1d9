// Exported functions about streams, events and host functions.

#include "driver.h"
#include "journal.h"

using namespace fake;

namespace {

void note(const char* event, const char* what, const Context& context, unsigned id) {
    journal(event, {{"what", what}, {"device", context.device->index}, {"context", context.id}, {"id", id}});
}

bool has_happened(const Event& event) { return event.reached >= event.recorded; }

Op op_of(Kind kind) {
    Op op{};
    op.kind = kind;
    return op;
}

}  // namespace

FAKE_API cuStreamCreate(CUhandle* handle, unsigned flags) {
    return in_context("cuStreamCreate", [&](Context& context, Lock&) -> CUresult {
        if (!handle || (flags & ~STREAM_NON_BLOCKING)) return CUDA_ERROR_INVALID_VALUE;
        *handle = make_stream(context);
        note("create", "stream", context, driver().streams.find(*handle)->id);
        return CUDA_SUCCESS;
    });
}

// Comes back at once; what is queued still runs.
FAKE_API cuStreamDestroy_v2(CUhandle handle) {
    return in_context("cuStreamDestroy_v2", [&](Context& context, Lock&) -> CUresult {
        auto stream = driver().streams.find(handle, context);
        if (!stream) return CUDA_ERROR_INVALID_HANDLE;
        if (!stream->idle()) violation(context.device->index, "a stream is destroyed while operations of it run");
        stream->closing = true;
        stream->work.notify_one();
        driver().streams.remove(handle);
        note("destroy", "stream", context, stream->id);
        return CUDA_SUCCESS;
    });
}

FAKE_API cuStreamQuery(CUhandle handle) {
    return in_context("cuStreamQuery", [&](Context& context, Lock&) -> CUresult {
        auto stream = driver().streams.find(handle, context);
        if (!stream) return CUDA_ERROR_INVALID_HANDLE;
        if (!stream->idle()) return CUDA_ERROR_NOT_READY;
        host_clock().join(stream->clock);
        return CUDA_SUCCESS;
    });
}

FAKE_API cuStreamWaitEvent(CUhandle handle, CUhandle event_handle, unsigned flags) {
    return in_context("cuStreamWaitEvent", [&](Context& context, Lock&) -> CUresult {
        auto stream = driver().streams.find(handle, context);
        auto event = driver().events.find(event_handle, context);
        if (!stream || !event) return CUDA_ERROR_INVALID_HANDLE;
        if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
        // For the record that was enqueued last; an event that never was is no reason to wait.
        Op op = op_of(Kind::wait);
        op.event = event;
        op.generation = event->recorded;
        enqueue(*stream, std::move(op));
        return CUDA_SUCCESS;
    });
}

FAKE_API cuEventCreate(CUhandle* handle, unsigned flags) {
    return in_context("cuEventCreate", [&](Context& context, Lock&) -> CUresult {
        if (!handle || (flags & ~(EVENT_BLOCKING_SYNC | EVENT_DISABLE_TIMING))) return CUDA_ERROR_INVALID_VALUE;
        auto event = std::make_shared<Event>();
        event->id = ++driver().ids;
        event->context = &context;
        event->timed = !(flags & EVENT_DISABLE_TIMING);
        *handle = driver().events.add(event);
        note("create", "event", context, event->id);
        return CUDA_SUCCESS;
    });
}

FAKE_API cuEventDestroy_v2(CUhandle handle) {
    return in_context("cuEventDestroy_v2", [&](Context& context, Lock&) -> CUresult {
        auto event = driver().events.find(handle, context);
        if (!event) return CUDA_ERROR_INVALID_HANDLE;
        driver().events.remove(handle);
        note("destroy", "event", context, event->id);
        return CUDA_SUCCESS;
    });
}

FAKE_API cuEventRecord(CUhandle handle, CUhandle stream_handle) {
    return in_context("cuEventRecord", [&](Context& context, Lock&) -> CUresult {
        auto event = driver().events.find(handle, context);
        auto stream = driver().streams.find(stream_handle, context);
        if (!event || !stream) return CUDA_ERROR_INVALID_HANDLE;
        Op op = op_of(Kind::record);
        op.event = event;
        op.generation = ++event->recorded;
        enqueue(*stream, std::move(op));
        return CUDA_SUCCESS;
    });
}

FAKE_API cuEventQuery(CUhandle handle) {
    return in_context("cuEventQuery", [&](Context& context, Lock&) -> CUresult {
        auto event = driver().events.find(handle, context);
        if (!event) return CUDA_ERROR_INVALID_HANDLE;
        if (!has_happened(*event)) return CUDA_ERROR_NOT_READY;
        host_clock().join(event->clock);
        return CUDA_SUCCESS;
    });
}

FAKE_API cuEventElapsedTime(float* milliseconds, CUhandle start_handle, CUhandle end_handle) {
    return in_context("cuEventElapsedTime", [&](Context& context, Lock&) -> CUresult {
        auto start = driver().events.find(start_handle, context), end = driver().events.find(end_handle, context);
        if (!milliseconds) return CUDA_ERROR_INVALID_VALUE;
        const auto usable = [](const auto& event) { return event && event->timed && event->recorded > 0; };
        if (!usable(start) || !usable(end)) return CUDA_ERROR_INVALID_HANDLE;
        if (!has_happened(*start) || !has_happened(*end)) return CUDA_ERROR_NOT_READY;
        const auto span = static_cast<int64_t>(end->reached_at_ns) - static_cast<int64_t>(start->reached_at_ns);
        *milliseconds = static_cast<float>(span) / 1e6f;
        return CUDA_SUCCESS;
    });
}

FAKE_API cuLaunchHostFunc(CUhandle handle, CUhostFn function, void* data) {
    return in_context("cuLaunchHostFunc", [&](Context& context, Lock&) -> CUresult {
        auto stream = driver().streams.find(handle, context);
        if (!stream) return CUDA_ERROR_INVALID_HANDLE;
        if (!function) return CUDA_ERROR_INVALID_VALUE;
        Op op = op_of(Kind::hostfunc);
        op.body = [=] {
            in_host_function() = true;
            function(data);
            in_host_function() = false;
            return CUDA_SUCCESS;
        };
        enqueue(*stream, std::move(op));
        return CUDA_SUCCESS;
    });
}

//! Why a sound request is turned away: the words behind 429 and 503.

use crate::metrics::ShedReason;

/// The `type` of the problem document of a request refused for `reason`.
pub(super) const fn problem_type(reason: ShedReason) -> &'static str {
    match reason {
        ShedReason::QueueFull => "urn:funicular:problem:queue-full",
        ShedReason::ZoneYellow | ShedReason::ZoneRed | ShedReason::Limit => {
            "urn:funicular:problem:overloaded"
        }
        ShedReason::Infeasible | ShedReason::Rejudged => {
            "urn:funicular:problem:deadline-infeasible"
        }
        ShedReason::DeadlineTooShort => "urn:funicular:problem:deadline-too-short",
        ShedReason::RateLimit => "urn:funicular:problem:rate-limited",
        ShedReason::NoGpu | ShedReason::Draining | ShedReason::Memory => {
            "urn:funicular:problem:unavailable"
        }
    }
}

/// What the caller reads.
pub(super) const fn sentence(reason: ShedReason) -> &'static str {
    match reason {
        ShedReason::QueueFull => "the queue of this tier is full",
        ShedReason::ZoneYellow => "the backlog is high and this tier's share of it is used up",
        ShedReason::ZoneRed => "the backlog is very high and this tier's share of it is used up",
        ShedReason::Limit => "the backlog has reached its limit",
        ShedReason::Infeasible => "the request would not be answered in time",
        ShedReason::Rejudged => "the request waited, and can no longer be answered in time",
        ShedReason::DeadlineTooShort => "an answer takes longer than the request allows",
        ShedReason::RateLimit => "this key has used up its rate",
        ShedReason::NoGpu => UnavailableReason::NoGpu.sentence(),
        ShedReason::Draining => UnavailableReason::Draining.sentence(),
        ShedReason::Memory => UnavailableReason::Memory.sentence(),
    }
}

/// Why the server as a whole cannot serve a request right now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnavailableReason {
    /// No GPU is healthy.
    NoGpu,
    /// The request was admitted, and then its GPUs failed; says how.
    GpuFailed(&'static str),
    /// The server is shutting down.
    Draining,
    /// The connection cap is reached.
    Connections,
    /// All requests together hold as much memory as they may.
    Memory,
    /// A worker has as many batches as it takes.
    Busy,
}

impl UnavailableReason {
    /// The name used in the `reason` of a problem.
    pub const fn name(self) -> &'static str {
        match self {
            UnavailableReason::NoGpu => "no_gpu",
            UnavailableReason::GpuFailed(_) => "gpu_failed",
            UnavailableReason::Draining => "draining",
            UnavailableReason::Connections => "connections",
            UnavailableReason::Memory => "memory",
            UnavailableReason::Busy => "busy",
        }
    }

    pub(super) const fn sentence(self) -> &'static str {
        match self {
            UnavailableReason::NoGpu => "no GPU is healthy",
            UnavailableReason::GpuFailed(how) => how,
            UnavailableReason::Draining => "the server is shutting down",
            UnavailableReason::Connections => "the server has as many connections as it can take",
            UnavailableReason::Memory => {
                "requests hold as much memory as they may; a smaller one may be let in"
            }
            UnavailableReason::Busy => "the worker has one batch running and one waiting",
        }
    }
}

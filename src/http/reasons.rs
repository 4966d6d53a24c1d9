//! Why a sound request is turned away: the words behind 429 and 503.

/// Why admission turned a well-formed request away; the names are metric labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShedReason {
    /// The hand-over channel of the tier is full.
    QueueFull,
    /// The backlog is in the yellow zone and this tier's share of it is used up.
    ZoneYellow,
    /// The backlog is in the red zone and this tier's share of it is used up.
    ZoneRed,
    /// The backlog has reached its limit: nobody gets in.
    Limit,
    /// The request could not be answered before its deadline or the target latency.
    Infeasible,
    /// The caller's key has used up its rate.
    RateLimit,
}

impl ShedReason {
    /// Every reason, in the order of declaration.
    pub const ALL: [ShedReason; 6] = [
        ShedReason::QueueFull,
        ShedReason::ZoneYellow,
        ShedReason::ZoneRed,
        ShedReason::Limit,
        ShedReason::Infeasible,
        ShedReason::RateLimit,
    ];

    /// The name used in metrics and in the `reason` of a problem.
    pub const fn name(self) -> &'static str {
        match self {
            ShedReason::QueueFull => "queue_full",
            ShedReason::ZoneYellow => "zone_yellow",
            ShedReason::ZoneRed => "zone_red",
            ShedReason::Limit => "limit",
            ShedReason::Infeasible => "infeasible",
            ShedReason::RateLimit => "rate_limit",
        }
    }

    pub(super) const fn problem_type(self) -> &'static str {
        match self {
            ShedReason::QueueFull => "urn:funicular:problem:queue-full",
            ShedReason::ZoneYellow | ShedReason::ZoneRed | ShedReason::Limit => {
                "urn:funicular:problem:overloaded"
            }
            ShedReason::Infeasible => "urn:funicular:problem:deadline-infeasible",
            ShedReason::RateLimit => "urn:funicular:problem:rate-limited",
        }
    }

    pub(super) const fn sentence(self) -> &'static str {
        match self {
            ShedReason::QueueFull => "the queue of this tier is full",
            ShedReason::ZoneYellow => "the backlog is high and this tier's share of it is used up",
            ShedReason::ZoneRed => {
                "the backlog is very high and this tier's share of it is used up"
            }
            ShedReason::Limit => "the backlog has reached its limit",
            ShedReason::Infeasible => "the request would not be answered in time",
            ShedReason::RateLimit => "this key has used up its rate",
        }
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
}

impl UnavailableReason {
    /// The name used in the `reason` of a problem.
    pub const fn name(self) -> &'static str {
        match self {
            UnavailableReason::NoGpu => "no_gpu",
            UnavailableReason::GpuFailed(_) => "gpu_failed",
            UnavailableReason::Draining => "draining",
            UnavailableReason::Connections => "connections",
        }
    }

    pub(super) const fn sentence(self) -> &'static str {
        match self {
            UnavailableReason::NoGpu => "no GPU is healthy",
            UnavailableReason::GpuFailed(how) => how,
            UnavailableReason::Draining => "the server is shutting down",
            UnavailableReason::Connections => "the server has as many connections as it can take",
        }
    }
}

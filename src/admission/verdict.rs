//! The answers of admission, and what they say to callers.

use std::time::Duration;

/// The longest wait that `Retry-After` asks for: beyond a minute nobody knows.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// Why a request was shed: the label of `funicular_shed_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Not among the share of the free tier that yellow lets in.
    ZoneYellow,
    /// Red: free, or not among the share of the paid tier that it lets in.
    ZoneRed,
    /// The backlog is at its limit.
    Limit,
    /// It could not be answered in time.
    Infeasible,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Reason; 4] = [
        Reason::ZoneYellow,
        Reason::ZoneRed,
        Reason::Limit,
        Reason::Infeasible,
    ];

    /// The stable name used in metrics and in the `reason` of a problem document.
    pub const fn label(self) -> &'static str {
        match self {
            Reason::ZoneYellow => "zone_yellow",
            Reason::ZoneRed => "zone_red",
            Reason::Limit => "limit",
            Reason::Infeasible => "infeasible",
        }
    }
}

/// A refusal with 429.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shed {
    /// What refused it.
    pub reason: Reason,
    /// When what refused it will have drained; may be zero. For the header see [`retry_after_seconds`].
    pub retry_after: Duration,
}

impl Shed {
    /// A refusal whose cause will be gone in `seconds`.
    pub(super) fn new(reason: Reason, seconds: f64) -> Shed {
        let capped = seconds.clamp(0.0, RETRY_AFTER_MAX.as_secs_f64());
        Shed {
            reason,
            retry_after: Duration::try_from_secs_f64(capped).unwrap_or(RETRY_AFTER_MAX),
        }
    }
}

/// The answer to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It becomes a ticket.
    Admit,
    /// 429.
    Shed {
        /// What refused it.
        reason: Reason,
        /// As in [`Shed`].
        retry_after: Duration,
    },
    /// 429, whenever it comes: a batch alone takes as long as the deadline that the caller asks for. Coming back later
    /// is no remedy, so there is no time for it.
    DeadlineTooShort {
        /// How long a batch takes.
        batch_time: Duration,
    },
    /// 503: nobody could serve it.
    NoHealthyGpu {
        /// A guess at how long a reset takes.
        retry_after: Duration,
    },
}

impl From<Shed> for Verdict {
    fn from(shed: Shed) -> Verdict {
        Verdict::Shed {
            reason: shed.reason,
            retry_after: shed.retry_after,
        }
    }
}

/// The value of a `Retry-After` header: whole seconds, rounded up, 1 to 60.
pub fn retry_after_seconds(retry_after: Duration) -> u64 {
    let capped = retry_after.min(RETRY_AFTER_MAX);
    let whole = capped.as_secs() + u64::from(capped.subsec_nanos() > 0);
    whole.max(1)
}

//! The gate between a parsed request and the waiting room: admission, with the numbers that it goes by read from the
//! live counts.
//!
//! Acceptor cores come here through [`Door`], for every request; nothing here blocks or allocates.

use std::sync::Arc;
use std::time::Duration;

use crate::admission::{Admission, Load, Reason, Verdict};
use crate::batch::pool::Capacity;
use crate::clock::Time;
use crate::http::Door;
use crate::http::reject::{Rejection, ShedReason as Refusal, UnavailableReason};
use crate::metrics::{Metrics, ShedReason};
use crate::queue::{Backlog, Lane};
use crate::tier::Tier;

/// See the module's text.
#[derive(Debug)]
pub struct Gate {
    admission: Arc<Admission>,
    backlog: Arc<Backlog>,
    capacity: Arc<Capacity>,
    metrics: Arc<Metrics>,
}

/// What admission goes by. The counts may straddle a change; each is exact by itself.
pub fn load(backlog: &Backlog, capacity: &Capacity) -> Load {
    let waiting = Tier::ALL.map(|tier| {
        let both: usize = Lane::ALL.into_iter().map(|lane| backlog.waiting(lane, tier)).sum();
        u32::try_from(both).unwrap_or(u32::MAX)
    });
    Load {
        waiting,
        idle_gpus: capacity.idle(),
        capacity: capacity.per_second(),
        batch_time: capacity.batch_time(),
        healthy: capacity.healthy(),
    }
}

impl Gate {
    /// A gate that lets in by `admission`, and records in `metrics` whom it does not.
    pub fn new(
        admission: Arc<Admission>,
        backlog: Arc<Backlog>,
        capacity: Arc<Capacity>,
        metrics: Arc<Metrics>,
    ) -> Gate {
        Gate { admission, backlog, capacity, metrics }
    }

    /// What admission would see now.
    pub fn load(&self) -> Load {
        load(&self.backlog, &self.capacity)
    }

    /// The admission.
    pub fn admission(&self) -> &Admission {
        &self.admission
    }
}

impl Door for Gate {
    fn judge(&self, core: usize, now: Time, tier: Tier, deadline: Duration) -> Result<(), Rejection> {
        let (label, rejection) = match self.admission.judge(now, tier, deadline, &self.load()) {
            Verdict::Admit => return Ok(()),
            Verdict::Shed { reason, retry_after } => {
                let (label, reason) = refusal(reason);
                (label, Rejection::Shed { reason, tier, retry_after })
            }
            Verdict::NoHealthyGpu { retry_after } => {
                let reason = UnavailableReason::NoGpu;
                (ShedReason::NoGpu, Rejection::Unavailable { reason, retry_after })
            }
        };
        self.metrics.core(core).shed(tier, label);
        Err(rejection)
    }

    fn queue_full(&self, core: usize, _now: Time, tier: Tier) -> Duration {
        self.metrics.core(core).shed(tier, ShedReason::QueueFull);
        // Time for the whole queue to drain: a full one is beyond every zone.
        let waiting = self.backlog.waiting(Lane::Fresh, tier) as f64;
        let seconds = waiting / self.capacity.per_second();
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(1))
    }

    fn is_ready(&self) -> bool {
        self.capacity.healthy() > 0
    }
}

fn refusal(reason: Reason) -> (ShedReason, Refusal) {
    match reason {
        Reason::ZoneYellow => (ShedReason::ZoneYellow, Refusal::ZoneYellow),
        Reason::ZoneRed => (ShedReason::ZoneRed, Refusal::ZoneRed),
        Reason::Limit => (ShedReason::Limit, Refusal::Limit),
        Reason::Infeasible => (ShedReason::Infeasible, Refusal::Infeasible),
    }
}

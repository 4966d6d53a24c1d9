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
use crate::http::reject::{Rejection, ShedReason, UnavailableReason};
use crate::metrics::Metrics;
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

impl Gate {
    /// A gate that lets in by `admission`, and records in `metrics` whom it does not.
    pub fn new(
        admission: Arc<Admission>,
        backlog: Arc<Backlog>,
        capacity: Arc<Capacity>,
        metrics: Arc<Metrics>,
    ) -> Gate {
        Gate {
            admission,
            backlog,
            capacity,
            metrics,
        }
    }

    /// What admission would see now.
    pub fn load(&self) -> Load {
        Load::of(&self.backlog, &self.capacity)
    }

    /// The admission.
    pub fn admission(&self) -> &Admission {
        &self.admission
    }
}

impl Door for Gate {
    fn judge(
        &self,
        core: usize,
        now: Time,
        tier: Tier,
        deadline: Duration,
    ) -> Result<(), Rejection> {
        let (reason, rejection) = match self.admission.judge(now, tier, deadline, &self.load()) {
            Verdict::Admit => return Ok(()),
            Verdict::Shed {
                reason,
                retry_after,
            } => {
                let reason = shed_reason(reason);
                (
                    reason,
                    Rejection::Shed {
                        reason,
                        tier,
                        retry_after,
                    },
                )
            }
            Verdict::DeadlineTooShort { batch_time } => (
                ShedReason::DeadlineTooShort,
                Rejection::DeadlineTooShort {
                    tier,
                    deadline,
                    batch_time,
                },
            ),
            Verdict::NoHealthyGpu { retry_after } => {
                let reason = UnavailableReason::NoGpu;
                (
                    ShedReason::NoGpu,
                    Rejection::Unavailable {
                        reason,
                        retry_after,
                    },
                )
            }
        };
        self.metrics.core(core).shed(tier, reason);
        Err(rejection)
    }

    fn queue_full(&self, core: usize, _now: Time, tier: Tier) -> Duration {
        self.metrics.core(core).shed(tier, ShedReason::QueueFull);
        // Time for the whole queue to drain: a full one is beyond every zone.
        let waiting = self.backlog.waiting(Lane::Fresh, tier) as f64;
        let seconds = waiting / self.capacity.per_second();
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(1))
    }

    fn deadline(&self) -> Duration {
        self.admission
            .rules()
            .deadline
            .with(self.capacity.batch_time())
    }

    fn batch_time(&self) -> Duration {
        self.capacity.batch_time()
    }

    fn is_ready(&self) -> bool {
        self.capacity.healthy() > 0
    }
}

fn shed_reason(reason: Reason) -> ShedReason {
    match reason {
        Reason::ZoneYellow => ShedReason::ZoneYellow,
        Reason::ZoneRed => ShedReason::ZoneRed,
        Reason::Limit => ShedReason::Limit,
        Reason::Infeasible => ShedReason::Infeasible,
    }
}

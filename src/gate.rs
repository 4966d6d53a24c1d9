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
    deadline: DefaultDeadline,
}

/// How long a request may take that does not ask for less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultDeadline {
    /// What the operator says.
    Fixed(Duration),
    /// At least this, and at least four batches: a batch that runs, its own, and room for one retry.
    AtLeast(Duration),
}

/// Batches that fit into a deadline that nobody set.
const DEADLINE_BATCHES: u32 = 4;

impl DefaultDeadline {
    /// The deadline where a batch takes `batch_time`.
    pub fn with(self, batch_time: Duration) -> Duration {
        match self {
            DefaultDeadline::Fixed(deadline) => deadline,
            DefaultDeadline::AtLeast(least) => {
                least.max(batch_time.saturating_mul(DEADLINE_BATCHES))
            }
        }
    }
}

/// What admission goes by. The counts may straddle a change; each is exact by itself.
pub fn load(backlog: &Backlog, capacity: &Capacity) -> Load {
    let waiting = Tier::ALL.map(|tier| {
        let both: usize = Lane::ALL
            .into_iter()
            .map(|lane| backlog.waiting(lane, tier))
            .sum();
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
        deadline: DefaultDeadline,
    ) -> Gate {
        Gate {
            deadline,
            admission,
            backlog,
            capacity,
            metrics,
        }
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
    fn judge(
        &self,
        core: usize,
        now: Time,
        tier: Tier,
        deadline: Duration,
    ) -> Result<(), Rejection> {
        let (label, rejection) = match self.admission.judge(now, tier, deadline, &self.load()) {
            Verdict::Admit => return Ok(()),
            Verdict::Shed {
                reason,
                retry_after,
            } => {
                let (label, reason) = refusal(reason);
                (
                    label,
                    Rejection::Shed {
                        reason,
                        tier,
                        retry_after,
                    },
                )
            }
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

    fn deadline(&self) -> Duration {
        self.deadline.with(self.capacity.batch_time())
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::admission::Rules;

    const LEAST: DefaultDeadline = DefaultDeadline::AtLeast(Duration::from_secs(2));

    #[test]
    fn a_deadline_is_fixed_or_four_batches_but_never_less_than_its_least() {
        let ms = Duration::from_millis;
        assert_eq!(DefaultDeadline::Fixed(ms(7)).with(ms(100)), ms(7));
        for (batch_time, deadline) in [(0, 2_000), (500, 2_000), (501, 2_004), (60_000, 240_000)] {
            assert_eq!(LEAST.with(ms(batch_time)), ms(deadline));
        }
        assert_eq!(LEAST.with(Duration::MAX), Duration::MAX);
    }

    /// One healthy GPU, nobody waiting.
    fn quiet(idle: bool, batch_max: u32, batch_time: Duration) -> Load {
        Load {
            waiting: [0; Tier::COUNT],
            idle_gpus: usize::from(idle),
            capacity: f64::from(batch_max) / batch_time.as_secs_f64().max(1e-3),
            batch_time,
            healthy: 1,
        }
    }

    proptest! {
        /// Whatever the settings say of the batch time, if anything, and whatever it turns out to be.
        #[test]
        fn the_first_request_with_the_default_deadline_is_let_in(
            named_us in prop_oneof![Just(0), 0_u64..600_000_000],
            measured_us in prop_oneof![0_u64..10_000_000, any::<u64>()],
            idle: bool,
            batch_max in 1_u32..200,
            tier in prop::sample::select(Tier::ALL.to_vec()),
        ) {
            let measured = Duration::from_micros(measured_us);
            let deadline = LEAST.with(Duration::from_micros(named_us));
            let admission = Admission::new(Rules { deadline, ..Rules::default() });
            let load = quiet(idle, batch_max, measured);
            let verdict = admission.judge(Time::ZERO, tier, LEAST.with(measured), &load);
            prop_assert_eq!(verdict, Verdict::Admit);
        }
    }
}

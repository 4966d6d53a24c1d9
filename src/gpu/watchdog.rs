//! The thread that looks after what nobody else can: GPUs whose threads don't come back from their executor in time, and
//! tickets that wait while every GPU is busy.
//!
//! A GPU thread notices by itself when a batch takes too long, as long as its executor returns when told to. This thread
//! is for the executor that does not. A GPU thread that is overdue need not be stuck, though: it may be waiting for a
//! CPU, on a machine that stood still or has too much to do, and a stalled machine is not a dead GPU. What tells them
//! apart is what the thread does ([`Sample`]) at two looks in a row for the same call; see [`Suspicion`].
//!
//! Waiting tickets are judged again every [`REJUDGE_EVERY`]: see [`Collector::rejudge`].

use std::time::Duration;

use crate::admission::REJUDGE_EVERY;
use crate::batch::collector::Collector;
use crate::clock::{self, Time};
use crate::gpu::activity::Sample;
use crate::gpu::fleet::Fleet;
use crate::metrics::Metrics;
use crate::metrics::labels::{BatchOutcome, ShedReason};
use crate::tier::Tier;

/// Pause between two looks.
pub const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A watchdog that wakes up so much too late is itself short of a CPU, and so may everybody be.
const LATE_MAX: Duration = LOOK_EVERY;

/// An overdue thread that runs, or wants to, is stuck in a loop once it has had so much of a CPU's time. What it would
/// do otherwise, looking or copying, takes it far less.
const SPIN_MAX: Duration = Duration::from_millis(50);

/// After so long past its time, nothing is an excuse.
const PATIENCE: Duration = Duration::from_secs(10);

/// What one look finds.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// When.
    pub now: Time,
    /// How much later than it meant to.
    pub late: Duration,
}

/// What the watchdog has seen of one GPU thread. Pure.
#[derive(Clone, Copy, Debug, Default)]
pub struct Suspicion(Option<Seen>);

#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Of the call that does not return.
    due: Time,
    /// The CPU time that the thread had used when it was first seen overdue.
    cpu: Duration,
    /// Whether it was blocked at the last look, on a machine that ran.
    blocked: bool,
}

impl Suspicion {
    /// One look: `overdue` says since when the thread is overdue, see [`crate::gpu::cell::Cell::overdue`], and `sample`
    /// what it does. Whether it is stuck, which takes two looks at the same call:
    ///
    /// * it was blocked at both, and the watchdog itself woke up in time; or
    /// * it has used 50 ms of a CPU's time since the first; or
    /// * it is overdue by 10 s.
    pub fn confirmed_by(
        &mut self,
        overdue: Option<Time>,
        look: Look,
        sample: impl FnOnce() -> Sample,
    ) -> bool {
        let Some(due) = overdue else {
            self.0 = None;
            return false;
        };
        let sample = sample();
        let blocked = !sample.runnable && look.late <= LATE_MAX;
        let before = self.0.filter(|seen| seen.due == due);
        let cpu = before.map_or(sample.cpu, |seen| seen.cpu);
        self.0 = Some(Seen { due, cpu, blocked });
        before.is_some_and(|seen| {
            (seen.blocked && blocked)
                || sample.cpu.saturating_sub(seen.cpu) >= SPIN_MAX
                || look.now.since(due) >= PATIENCE
        })
    }
}

/// The watchdog thread's whole life: until the collector closes.
pub fn run(fleet: &Fleet, collector: &Collector, metrics: &Metrics) {
    // By seat, with the number of the GPU that sat there when it was last looked at.
    let mut suspicions = vec![(0, Suspicion::default()); fleet.seats()];
    let (mut rejudged, mut planned) = (Time::ZERO, clock::now());
    while !collector.is_closed() {
        let now = clock::now();
        let late = now.since(planned);
        if now.since(rejudged) >= REJUDGE_EVERY {
            rejudged = now;
            count(collector.rejudge(), metrics);
        }
        for gpu in fleet.gpus() {
            let (number, suspicion) = &mut suspicions[gpu.seat()];
            if std::mem::replace(number, gpu.index) != gpu.index {
                *suspicion = Suspicion::default();
            }
            let now = clock::now();
            let sample = || gpu.cell().activity();
            if suspicion.confirmed_by(gpu.cell().overdue(now), Look { now, late }, sample) {
                gpu.fail(
                    "its executor blocks and does not return",
                    BatchOutcome::TimedOut,
                );
            }
        }
        planned = clock::now() + LOOK_EVERY;
        collector.wait_closed(planned);
    }
}

fn count(shed: [usize; Tier::COUNT], metrics: &Metrics) {
    for tier in Tier::ALL {
        (0..shed[tier.index()]).for_each(|_| metrics.core(0).shed(tier, ShedReason::Rejudged));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUE: Time = Time::from_nanos(1_000_000_000);

    /// Looks every 20 ms from when the call was due at what `sample` says of each, `late` every time: at which of them it
    /// was confirmed that the thread is stuck.
    fn confirmed_at(
        looks: usize,
        late: Duration,
        sample: impl Fn(usize) -> (bool, u64),
    ) -> Option<usize> {
        let mut suspicion = Suspicion::default();
        (0..looks).find(|&index| {
            let count = u32::try_from(index + 1).expect("few looks");
            let now = DUE + (LOOK_EVERY + late) * count;
            let (runnable, cpu_ms) = sample(index);
            let cpu = Duration::from_millis(cpu_ms);
            suspicion.confirmed_by(Some(DUE), Look { now, late }, || Sample { runnable, cpu })
        })
    }

    #[test]
    fn a_thread_that_is_blocked_at_two_looks_in_a_row_is_stuck() {
        assert_eq!(confirmed_at(9, Duration::ZERO, |_| (false, 7)), Some(1));
        let wakes_up_between = |index| (index % 2 == 0, 7);
        assert_eq!(confirmed_at(99, Duration::ZERO, wakes_up_between), None);
    }

    #[test]
    fn a_thread_that_gets_no_cpu_is_not_stuck() {
        assert_eq!(confirmed_at(400, Duration::ZERO, |_| (true, 7)), None);
        // A little of one now and then, enough for what it has to do in such a call.
        let crumbs = |index| (true, 7 + index as u64 / 10);
        assert_eq!(confirmed_at(400, Duration::ZERO, crumbs), None);
    }

    #[test]
    fn a_thread_that_spins_is_stuck() {
        let spins = |index| (true, 7 + 20 * index as u64);
        assert_eq!(confirmed_at(99, Duration::ZERO, spins), Some(3));
    }

    #[test]
    fn while_the_watchdog_itself_gets_no_cpu_nobody_is_stuck() {
        let late = LATE_MAX + Duration::from_millis(1);
        assert_eq!(confirmed_at(200, late, |_| (false, 7)), None);
        // A machine that stood still for a second before one look, and runs again from the next.
        let mut suspicion = Suspicion::default();
        let mut look = |millis, late| {
            let (now, late) = (
                DUE + Duration::from_millis(millis),
                Duration::from_millis(late),
            );
            let sample = || Sample {
                runnable: false,
                cpu: Duration::ZERO,
            };
            suspicion.confirmed_by(Some(DUE), Look { now, late }, sample)
        };
        assert!(!look(1_000, 1_000));
        assert!(!look(1_020, 0), "it has only just been able to run");
        assert!(look(1_040, 0));
    }

    #[test]
    fn patience_ends() {
        let looks = (PATIENCE.as_millis() / LOOK_EVERY.as_millis()) as usize;
        assert_eq!(
            confirmed_at(2 * looks, Duration::ZERO, |_| (true, 7)),
            Some(looks - 1)
        );
    }

    #[test]
    fn another_call_is_another_suspicion() {
        let mut suspicion = Suspicion::default();
        let sample = || Sample {
            runnable: false,
            cpu: Duration::ZERO,
        };
        let look = Look {
            now: DUE + Duration::from_millis(30),
            late: Duration::ZERO,
        };
        assert!(!suspicion.confirmed_by(Some(DUE), look, sample));
        assert!(!suspicion.confirmed_by(Some(DUE + LOOK_EVERY), look, sample));
        assert!(!suspicion.confirmed_by(None, look, sample));
        assert!(!suspicion.confirmed_by(Some(DUE + LOOK_EVERY), look, sample));
        assert!(suspicion.confirmed_by(Some(DUE + LOOK_EVERY), look, sample));
    }
}

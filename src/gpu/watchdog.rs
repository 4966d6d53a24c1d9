//! The thread that looks after what nobody else can: GPUs whose threads don't come back from their executor in time, and
//! tickets that wait while every GPU is busy.
//!
//! A GPU thread notices by itself when a batch takes too long, as long as its executor returns when told to. This thread
//! is for the executor that does not. It acts when a GPU thread is overdue at two looks in a row for the same call: if
//! the whole machine stood still for a while, the GPU thread is given one interval to show up first.
//!
//! Waiting tickets are judged again every [`REJUDGE_EVERY`]: see [`Collector::rejudge`].

use std::sync::Arc;
use std::time::Duration;

use crate::admission::REJUDGE_EVERY;
use crate::batch::collector::Collector;
use crate::clock::{self, Time};
use crate::gpu::Gpu;
use crate::metrics::Metrics;
use crate::metrics::labels::{BatchOutcome, ShedReason};
use crate::tier::Tier;

/// Pause between two looks.
pub const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What the watchdog has seen of one GPU thread. Pure.
#[derive(Clone, Copy, Debug, Default)]
pub struct Suspicion(Option<Time>);

impl Suspicion {
    /// One look: `overdue` says since when the thread is overdue, see [`crate::gpu::cell::Cell::overdue`]. Whether it was
    /// so at the last look already, for the same call.
    pub fn confirmed_by(&mut self, overdue: Option<Time>) -> bool {
        let confirmed = overdue.is_some() && overdue == self.0;
        self.0 = overdue;
        confirmed
    }
}

/// The watchdog thread's whole life: until the collector closes.
pub fn run(gpus: &[Arc<Gpu>], collector: &Collector, metrics: &Metrics) {
    let mut suspicions = vec![Suspicion::default(); gpus.len()];
    let mut rejudged = Time::ZERO;
    while !collector.is_closed() {
        if clock::now().since(rejudged) >= REJUDGE_EVERY {
            rejudged = clock::now();
            count(collector.rejudge(), metrics);
        }
        for (gpu, suspicion) in gpus.iter().zip(&mut suspicions) {
            if suspicion.confirmed_by(gpu.cell().overdue(clock::now())) {
                gpu.fail(
                    "its executor blocks and does not return",
                    BatchOutcome::TimedOut,
                );
            }
        }
        collector.wait_closed(clock::now() + LOOK_EVERY);
    }
}

fn count(shed: [usize; Tier::COUNT], metrics: &Metrics) {
    for tier in Tier::ALL {
        (0..shed[tier.index()]).for_each(|_| metrics.core(0).shed(tier, ShedReason::Rejudged));
    }
}

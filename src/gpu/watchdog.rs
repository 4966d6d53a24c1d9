//! Fails the GPUs whose threads don't come back from their executor in time.
//!
//! A GPU thread notices by itself when a batch takes too long, as long as its executor returns when told to. This thread
//! is for the executor that does not. It acts when a GPU thread is overdue at two looks in a row for the same call: if
//! the whole machine stood still for a while, the GPU thread is given one interval to show up first.

use std::sync::Arc;
use std::time::Duration;

use crate::batch::collector::Collector;
use crate::clock::{self, Time};
use crate::gpu::Gpu;
use crate::metrics::labels::BatchOutcome;

/// Pause between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The watchdog thread's whole life: until the collector closes.
pub fn run(gpus: &[Arc<Gpu>], collector: &Collector) {
    let mut seen: Vec<Option<Time>> = vec![None; gpus.len()];
    while !collector.is_closed() {
        for (gpu, seen) in gpus.iter().zip(&mut seen) {
            let overdue = gpu.cell().overdue(clock::now());
            if overdue.is_some() && overdue == *seen {
                gpu.fail(
                    "its executor blocks and does not return",
                    BatchOutcome::TimedOut,
                );
            }
            *seen = overdue;
        }
        collector.wait_closed(clock::now() + LOOK_EVERY);
    }
}

//! The state that a verdict rests on, and the plain numbers that are reckoned with.

use std::time::Duration;

use super::rate::window;
use crate::batch::pool::Capacity;
use crate::queue::{Backlog, Lane};
use crate::tier::Tier;

/// With less than this part of capacity left to it, a tier is refused while higher tickets wait; and no drain is
/// ever reckoned at less.
pub(super) const LEFT_MIN_SHARE: f64 = 0.05;

/// Batch times below this are not believed, in seconds.
const BATCH_SECONDS_MIN: f64 = 1e-3;

/// The state of the server that a verdict rests on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Live waiting tickets by [`Tier::index`], retry lanes included.
    pub waiting: [u32; Tier::COUNT],
    /// GPUs that are healthy and run nothing.
    pub idle_gpus: usize,
    /// Healthy GPUs × `batch_max` / batch time, in requests per second.
    pub capacity: f64,
    /// Mean batch time L; before the first batch that of the canary.
    pub batch_time: Duration,
    /// GPUs that serve.
    pub healthy: usize,
}

impl Load {
    /// Read from the live counts. They may straddle a change; each is exact by itself.
    pub fn of(backlog: &Backlog, capacity: &Capacity) -> Load {
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
}

/// A [`Load`] in plain positive numbers.
pub(super) struct Numbers {
    /// Requests per second, finite and above zero.
    pub(super) capacity: f64,
    /// L in seconds.
    pub(super) batch_seconds: f64,
    /// Tickets that board the batches of the GPUs that are idle.
    pub(super) boarding: f64,
    /// All waiting tickets.
    pub(super) waiting: f64,
    /// Waiting tickets of the tiers above.
    pub(super) above: f64,
    /// The window of the arrival rates, in seconds.
    pub(super) window: f64,
}

impl Numbers {
    /// `None` if nobody serves.
    pub(super) fn new(tier: Tier, load: &Load) -> Option<Numbers> {
        if load.healthy == 0 {
            return None;
        }
        let batch_seconds = batch_seconds(load.batch_time);
        let healthy = load.healthy as f64;
        let capacity = if load.capacity.is_finite() && load.capacity > 0.0 {
            load.capacity
        } else {
            // Not a number to divide by; one ticket per GPU and batch is the least that a healthy pool serves.
            healthy / batch_seconds
        };
        let batch_max = (capacity * batch_seconds / healthy).round().max(1.0);
        let count = |tickets: &[u32]| tickets.iter().map(|&n| f64::from(n)).sum();
        Some(Numbers {
            capacity,
            batch_seconds,
            boarding: load.idle_gpus as f64 * batch_max,
            waiting: count(&load.waiting),
            above: count(&load.waiting[..tier.index()]),
            window: window(capacity),
        })
    }

    /// Backlog in seconds.
    pub(super) fn depth(&self) -> f64 {
        self.waiting / self.capacity
    }
}

/// How waiting tickets drain at the capacity left to a tier.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drain {
    /// Requests per second left to the tier, never below [`LEFT_MIN_SHARE`] of capacity.
    left: f64,
    /// Requests per second promised to the tier alone; may be 0.
    promised: f64,
    /// Waiting tickets of the tiers above, which the promise passes by.
    above: f64,
}

impl Drain {
    /// At `left` requests per second, for a tier that is promised `min_share` of each batch.
    pub(super) fn new(left: f64, min_share: f64, numbers: &Numbers) -> Drain {
        Drain {
            left: left.max(LEFT_MIN_SHARE * numbers.capacity),
            promised: min_share * numbers.capacity,
            above: numbers.above,
        }
    }

    /// Seconds until `ahead` tickets, those of the tiers above among them, are gone.
    pub(super) fn seconds(&self, ahead: f64) -> f64 {
        let strict = ahead / self.left;
        let own = (ahead - self.above).max(0.0);
        // A promise of nothing makes 0/0 or infinity, both of which `min` passes over.
        strict.min(own / self.promised)
    }
}

/// L in seconds, as far as it is believed.
pub(super) fn batch_seconds(batch_time: Duration) -> f64 {
    batch_time.as_secs_f64().max(BATCH_SECONDS_MIN)
}

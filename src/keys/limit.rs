//! The rate limit of one key.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Time;

/// A token bucket in one word, by the generic cell rate algorithm (ITU-T I.371): instead of tokens and the time of
/// the last refill it keeps the time at which the bucket will be full again. Each request moves that time on by the
/// spacing of requests; it may not lie further ahead than a full bucket less the request's own token takes to fill.
#[derive(Debug)]
pub(super) struct RateLimit {
    /// Nanoseconds between requests at the steady rate.
    pub(super) spacing: u64,
    /// How far ahead, in nanoseconds, the bucket may be from full when a request comes.
    tolerance: u64,
    /// When the bucket is full again, in nanoseconds of [`Time`].
    ///
    /// Relaxed: the word is the whole state and guards nothing else.
    full_at: AtomicU64,
}

impl RateLimit {
    /// `rate` requests per second within the allowed range, `burst` at once and at least 1.
    pub(super) fn new(rate: f64, burst: u32) -> RateLimit {
        let spacing = (1e9 / rate).round().max(1.0) as u64;
        RateLimit {
            spacing,
            tolerance: spacing.saturating_mul(u64::from(burst.saturating_sub(1))),
            full_at: AtomicU64::new(0),
        }
    }

    /// What it allows, whatever was used of it.
    pub(super) fn terms(&self) -> (u64, u64) {
        (self.spacing, self.tolerance)
    }

    /// Counts a request at `now`.
    ///
    /// # Errors
    /// The time to wait, as in [`Key::admit`](super::Key::admit).
    pub(super) fn admit(&self, now: Time) -> Result<(), Duration> {
        let now = now.as_nanos();
        let ahead = |full_at: u64| full_at.saturating_sub(now);
        let step = |full_at: u64| {
            let within = ahead(full_at) <= self.tolerance;
            within.then(|| full_at.max(now).saturating_add(self.spacing))
        };
        self.full_at
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, step)
            .map(|_| ())
            .map_err(|full_at| Duration::from_nanos(ahead(full_at) - self.tolerance))
    }
}

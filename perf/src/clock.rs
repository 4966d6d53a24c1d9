//! Time as the generator counts it: nanoseconds since the process's first look at the monotonic clock.
//!
//! This file is the only caller of `Instant::now`. The schedule, the histograms and the engine carry plain nanoseconds,
//! because they are what is recorded.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

/// Nanoseconds in a second.
pub const SECOND: u64 = 1_000_000_000;
/// Nanoseconds in a millisecond.
pub const MILLISECOND: u64 = 1_000_000;

/// Reads the monotonic clock: nanoseconds since the first call.
pub fn now() -> u64 {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads the clock"
    )]
    let instant = Instant::now();
    nanos(instant.saturating_duration_since(*ORIGIN.get_or_init(|| instant)))
}

/// Reads the wall clock, for the names and dates of results only: it may jump.
pub fn wall() -> SystemTime {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads the clock"
    )]
    SystemTime::now()
}

/// A duration in nanoseconds, saturating after 584 years.
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Nanoseconds as seconds.
pub fn seconds(nanos: u64) -> f64 {
    nanos as f64 / SECOND as f64
}

/// Nanoseconds as milliseconds.
pub fn millis(nanos: u64) -> f64 {
    nanos as f64 / MILLISECOND as f64
}

//! Time as the server's cores see it: nanoseconds since the process's first look at the clock.
//!
//! This file is the only caller of `Instant::now`. Everything else takes a [`Time`] as an argument, so that the
//! pure modules (launch rule, admission, health, waiting room) run on a virtual clock in tests, and so that a time
//! fits into one atomic.

use std::ops::{Add, Sub};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A point on the monotonic clock, in nanoseconds since the process's origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The origin of the clock.
    pub const ZERO: Time = Time(0);
    /// Later than every time that can be read: "never".
    pub const MAX: Time = Time(u64::MAX);

    /// The time `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Time {
        Time(nanos)
    }

    /// The time `millis` milliseconds after the origin, for tests and simulations.
    pub fn from_millis_f64(millis: f64) -> Time {
        Time((millis * 1e6).round() as u64)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to `self`; zero if `earlier` is the later one.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;

    /// Saturates at [`Time::MAX`].
    fn add(self, span: Duration) -> Time {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Time(self.0.saturating_add(nanos))
    }
}

impl Sub<Duration> for Time {
    type Output = Time;

    /// Saturates at [`Time::ZERO`].
    fn sub(self, span: Duration) -> Time {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Time(self.0.saturating_sub(nanos))
    }
}

fn origin() -> Instant {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads the clock"
    )]
    *ORIGIN.get_or_init(Instant::now)
}

/// Reads the monotonic clock.
pub fn now() -> Time {
    let origin = origin();
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads the clock"
    )]
    let elapsed = Instant::now().saturating_duration_since(origin);
    Time(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
}

/// Reads the wall clock, for the `Date` header and log lines only: it may jump.
pub fn wall() -> std::time::SystemTime {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads the clock"
    )]
    std::time::SystemTime::now()
}

/// The monotonic instant that `time` stands for, where a library wants to be given one.
pub fn instant(time: Time) -> Instant {
    let origin = origin();
    origin
        .checked_add(Duration::from_nanos(time.0))
        .unwrap_or_else(|| origin + Duration::from_secs(u32::MAX as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_instead_of_wrapping() {
        let second = Duration::from_secs(1);
        assert_eq!(Time::MAX + second, Time::MAX);
        assert_eq!(Time::ZERO - second, Time::ZERO);
        assert_eq!(Time::ZERO.since(Time::MAX), Duration::ZERO);
        assert_eq!((Time::ZERO + second).since(Time::ZERO), second);
        assert_eq!(Time::from_millis_f64(1.5).as_nanos(), 1_500_000);
    }

    #[test]
    fn the_clock_does_not_run_backwards() {
        let first = now();
        assert!(now() >= first);
    }
}

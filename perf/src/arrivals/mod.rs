//! When requests leave: a schedule, fixed before the run starts.
//!
//! A schedule is a sorted list of nanoseconds after the start. Nothing that the server does can move it, which is what makes
//! the load open: callers in the world do not wait for each other either. Pure: the same arrivals, duration and seed give
//! the same schedule on every machine and with any number of generator threads.

mod profile;
mod trace;

pub use profile::{Profile, ProfileError};
pub use trace::{Trace, TraceError};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::clock::SECOND;

/// No schedule may hold more requests: at 8 bytes each, 1.6 GB.
pub const SCHEDULE_MAX: usize = 200_000_000;

/// How arrivals are spaced around their rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spacing {
    /// Evenly: a metronome.
    #[default]
    Constant,
    /// Independently of each other: exponential gaps, as from many callers.
    Poisson,
}

/// Where a schedule comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrivals {
    /// A rate over time, constant or not, with a spacing.
    Rate {
        /// Requests per second over time.
        profile: Profile,
        /// How they are spaced.
        spacing: Spacing,
    },
    /// Recorded arrivals, scaled in time to a mean rate (requests per second) where one is given.
    Trace {
        /// The recording.
        trace: Trace,
        /// Mean rate wanted.
        rate: Option<f64>,
    },
}

/// The schedule would be too long to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the schedule would hold more than {SCHEDULE_MAX} requests: shorten the run or lower the rate"
)]
pub struct TooLong;

impl Arrivals {
    /// The schedule for `duration_ns`, in nanoseconds after the start: sorted, all below `duration_ns`.
    ///
    /// # Errors
    /// If it would hold more than [`SCHEDULE_MAX`] requests.
    pub fn schedule(&self, duration_ns: u64, seed: u64) -> Result<Vec<u64>, TooLong> {
        match self {
            Arrivals::Rate { profile, spacing } => {
                rate_schedule(profile, *spacing, duration_ns, seed)
            }
            Arrivals::Trace { trace, rate } => trace.schedule(*rate, duration_ns),
        }
    }

    /// The arrivals in words, for the report.
    pub fn describe(&self) -> String {
        match self {
            Arrivals::Rate { profile, spacing } => {
                let spacing = match spacing {
                    Spacing::Constant => "constant",
                    Spacing::Poisson => "poisson",
                };
                match profile.constant_rate() {
                    Some(rate) => format!("{spacing} {rate}/s"),
                    None => format!("{spacing} profile {profile}"),
                }
            }
            Arrivals::Trace {
                trace,
                rate: Some(rate),
            } => format!("trace {} at {rate}/s", trace.name()),
            Arrivals::Trace { trace, rate: None } => format!("trace {}", trace.name()),
        }
    }

    /// How long the arrivals last by themselves, in seconds; `None` for a constant rate.
    pub fn natural_seconds(&self) -> Option<f64> {
        match self {
            Arrivals::Rate { profile, .. } => profile.end_seconds(),
            Arrivals::Trace { trace, rate } => Some(trace.seconds_at(*rate)),
        }
    }
}

/// Maps arrivals of rate 1 through the inverse of the profile's integral, which is exact for any profile: the k-th metronome
/// tick for [`Spacing::Constant`], a sum of unit exponentials for [`Spacing::Poisson`].
fn rate_schedule(
    profile: &Profile,
    spacing: Spacing,
    duration_ns: u64,
    seed: u64,
) -> Result<Vec<u64>, TooLong> {
    let duration = duration_ns as f64 / SECOND as f64;
    let expected = profile.integral(duration);
    if expected > SCHEDULE_MAX as f64 {
        return Err(TooLong);
    }
    let mut random = SmallRng::seed_from_u64(seed);
    let mut schedule = Vec::with_capacity(expected as usize + 1);
    let mut cursor = profile.cursor();
    let mut position = match spacing {
        Spacing::Constant => 0.0,
        Spacing::Poisson => unit_exponential(&mut random),
    };
    while let Some(at) = cursor.time_of(position) {
        let nanos = (at * SECOND as f64) as u64;
        if nanos >= duration_ns {
            break;
        }
        if schedule.len() == SCHEDULE_MAX {
            return Err(TooLong);
        }
        schedule.push(nanos);
        position = match spacing {
            Spacing::Constant => schedule.len() as f64,
            Spacing::Poisson => position + unit_exponential(&mut random),
        };
    }
    Ok(schedule)
}

fn unit_exponential(random: &mut SmallRng) -> f64 {
    // `random()` is in [0, 1), so the logarithm's argument is in (0, 1].
    -(1.0 - random.random::<f64>()).ln()
}

#[cfg(test)]
mod tests;

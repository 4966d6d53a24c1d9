//! The settings of admission, and what they can't deliver on a given device.

use std::time::Duration;

use super::deadline::DefaultDeadline;
use super::load::batch_seconds;
use super::{BOUND_SHARE, TARGET_BATCHES};
use crate::config::units::span;
use crate::tier::Tier;

/// The settings of admission.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// The latency that admission aims to stay below.
    pub target_latency: Duration,
    /// The deadline of requests that bring none of their own; where it goes with the measured batch time, what it
    /// comes to with the batch time that the settings name.
    pub deadline: DefaultDeadline,
    /// The longest time a batch waits although a GPU is free.
    pub hold_max: Duration,
    /// The launch rule's patience: beyond 1, even a lone ticket may be held.
    pub patience: f64,
    /// Backlog at which yellow begins, in seconds of capacity.
    pub yellow: f64,
    /// Backlog at which red begins, in seconds of capacity.
    pub red: f64,
    /// Backlog beyond which nobody is let in, in seconds of capacity.
    pub limit: f64,
    /// The part of each batch, 0 to 1, promised to a tier whatever waits above it; by [`Tier::index`].
    pub min_share: [f64; Tier::COUNT],
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            target_latency: Duration::from_millis(500),
            deadline: DefaultDeadline::AtLeast(Duration::from_secs(2)),
            hold_max: Duration::from_millis(40),
            patience: 1.0,
            yellow: 0.2,
            red: 0.5,
            limit: 1.0,
            min_share: [0.0; Tier::COUNT],
        }
    }
}

/// Settings that contradict each other.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RulesError {
    /// The thresholds are not in order.
    #[error(
        "the zones must begin at 0 < yellow < red < limit seconds of backlog, not at {yellow}, {red} and {limit}"
    )]
    Thresholds {
        /// Seconds.
        yellow: f64,
        /// Seconds.
        red: f64,
        /// Seconds.
        limit: f64,
    },
    /// A promise is not a part, or all of them together are more than a batch.
    #[error("min_share must be between 0 and 1 for each tier, and at most 1 for all together")]
    MinShare,
    /// A time that must not be zero.
    #[error("{0} must be longer than zero")]
    Zero(&'static str),
}

impl Rules {
    /// Checks that the settings make sense together.
    ///
    /// # Errors
    /// The first contradiction found.
    pub fn validate(&self) -> Result<(), RulesError> {
        let Rules {
            yellow, red, limit, ..
        } = *self;
        let ordered = 0.0 < yellow && yellow < red && red < limit && limit.is_finite();
        if !ordered {
            return Err(RulesError::Thresholds { yellow, red, limit });
        }
        let parts = self.min_share.iter().all(|part| (0.0..=1.0).contains(part));
        if !parts || self.min_share.iter().sum::<f64>() > 1.0 {
            return Err(RulesError::MinShare);
        }
        if self.target_latency.is_zero() {
            return Err(RulesError::Zero("target_latency"));
        }
        if self.deadline.with(Duration::ZERO).is_zero() {
            return Err(RulesError::Zero("the deadline"));
        }
        Ok(())
    }

    /// What callers will not get if a batch takes `batch_time`: one sentence each, for `funicular check` and the
    /// start-up screen.
    pub fn warnings(&self, batch_time: Duration) -> Vec<String> {
        let batch = batch_seconds(batch_time);
        let [deadline, hold, target] = [
            self.deadline.with(batch_time),
            self.hold_max,
            self.target_latency,
        ]
        .map(|span| span.as_secs_f64());
        let mut warnings = Vec::new();
        // One batch may be running, one is its own, and half of one is left for the answer and for jitter.
        let enough = setting_ms(((2.5 * batch + hold) * 10.0).ceil() / 10.0);
        // Callers can lower the default deadline, not raise it.
        if batch >= deadline {
            warnings.push(format!(
                "a batch takes {}, the default deadline is {}: every request ends with 504; set deadline_ms to \
                 {enough} or more",
                in_words(batch),
                in_words(deadline),
            ));
        } else if 2.0 * batch + hold > deadline {
            warnings.push(format!(
                "a batch takes {}, the default deadline is {}: requests that arrive while all GPUs are busy may not be \
                 answered in time; set deadline_ms to {enough} or more",
                in_words(batch),
                in_words(deadline),
            ));
        }
        let reachable = TARGET_BATCHES * batch;
        // A hair of tolerance, so that a batch time measured at 100.01 ms does not warn about the default.
        if reachable > BOUND_SHARE * target * 1.05 {
            warnings.push(format!(
                "a target latency of {} is out of reach under load with batches of {}: whatever takes up to {} (four \
                 batches) is let in; set target_latency_ms to {} or more",
                in_words(target),
                in_words(batch),
                in_words(reachable),
                setting_ms(reachable / BOUND_SHARE),
            ));
        }
        if hold + batch > target {
            warnings.push(format!(
                "holding a batch for up to {} and running it for {} takes longer than the target latency of {}: lower \
                 hold_max_ms or raise target_latency_ms",
                in_words(hold),
                in_words(batch),
                in_words(target),
            ));
        }
        warnings
    }

    /// The part of each batch promised to `tier`, made safe to reckon with.
    pub(super) fn min_share(&self, tier: Tier) -> f64 {
        let part = self.min_share[tier.index()];
        if part > 0.0 { part.min(1.0) } else { 0.0 }
    }
}

/// As the start-up screen has it, to a tenth of a millisecond.
fn in_words(seconds: f64) -> String {
    let tenths = Duration::from_micros(((seconds * 1e4).round() as u64).saturating_mul(100));
    span(tenths)
}

/// As a setting in milliseconds takes it, rounded up but for the noise of the reckoning.
fn setting_ms(seconds: f64) -> String {
    format!("{:.0}", (seconds * 1e3 - 1e-6).ceil())
}

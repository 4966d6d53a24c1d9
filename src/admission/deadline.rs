//! How long a request may take that does not ask for less.

use std::time::Duration;

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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::admission::{Admission, Load, Rules, Verdict};
    use crate::clock::Time;
    use crate::tier::Tier;

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
        /// Whatever a batch takes.
        #[test]
        fn the_first_request_with_the_default_deadline_is_let_in(
            measured_us in prop_oneof![0_u64..10_000_000, any::<u64>()],
            idle: bool,
            batch_max in 1_u32..200,
            tier in prop::sample::select(Tier::ALL.to_vec()),
        ) {
            let measured = Duration::from_micros(measured_us);
            let admission = Admission::new(Rules { deadline: LEAST, ..Rules::default() });
            let load = quiet(idle, batch_max, measured);
            let verdict = admission.judge(Time::ZERO, tier, LEAST.with(measured), &load);
            prop_assert_eq!(verdict, Verdict::Admit);
        }

        /// A caller that asks for less than a batch takes is told at once, not when its deadline has passed.
        #[test]
        fn a_shorter_deadline_of_the_callers_own_is_refused(
            measured_ms in 1_u64..100_000, idle: bool, tier in prop::sample::select(Tier::ALL.to_vec()),
        ) {
            let measured = Duration::from_millis(measured_ms);
            let admission = Admission::new(Rules { deadline: LEAST, ..Rules::default() });
            let verdict = admission.judge(Time::ZERO, tier, measured / 2, &quiet(idle, 100, measured));
            prop_assert_ne!(verdict, Verdict::Admit);
        }
    }
}

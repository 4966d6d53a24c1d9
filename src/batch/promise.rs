//! The part of each batch that is promised to a tier, whatever waits above it. Pure.
//!
//! A part of a batch is seldom a whole number of places. Rounded up, a tenth would be every place of a batch of one and
//! starve those above; rounded down it would be none. So the rest is owed: it is carried into the next batch, and over
//! time a tier that keeps waiting gets exactly its part. What is owed lapses when nobody of the tier waits any more.

use crate::tier::Tier;

/// Whole places are not lost to rounding: three times a third is one.
const ROUNDING: f64 = 1e-9;

/// At most so many places are carried over: enough for a tier to wait for its turn while others get theirs, in batches of
/// one, and too little to save up.
const OWED_MAX: f64 = Tier::COUNT as f64;

/// What is promised, and what is still owed of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Promises {
    part: [f64; Tier::COUNT],
    owed: [f64; Tier::COUNT],
}

impl Promises {
    /// Promises each tier a part, 0 to 1, of every batch.
    pub fn new(part: [f64; Tier::COUNT]) -> Promises {
        Promises {
            part,
            owed: [0.0; Tier::COUNT],
        }
    }

    /// Places of a batch of up to `room` that are kept for `tier`, of which `waiting` tickets wait.
    pub fn places(&self, tier: Tier, room: usize, waiting: usize) -> usize {
        let due = self.owed[tier.index()] + self.part[tier.index()] * room as f64;
        ((due + ROUNDING) as usize).min(waiting)
    }

    /// A batch took `took` tickets of each tier; `waiting` are left.
    pub fn settle(&mut self, took: [usize; Tier::COUNT], waiting: [usize; Tier::COUNT]) {
        let batch: usize = took.iter().sum();
        for tier in Tier::ALL.map(Tier::index) {
            let due = self.owed[tier] + self.part[tier] * batch as f64 - took[tier] as f64;
            self.owed[tier] = if waiting[tier] == 0 {
                0.0
            } else {
                due.clamp(0.0, OWED_MAX)
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Fills `batches` batches of `room` while everybody waits, and says what part each tier got.
    fn served(part: [f64; Tier::COUNT], room: usize, batches: usize) -> [f64; Tier::COUNT] {
        let mut promises = Promises::new(part);
        let mut sum = [0; Tier::COUNT];
        for _ in 0..batches {
            let mut took = [0; Tier::COUNT];
            let mut left = room;
            for tier in [Tier::Free, Tier::Paid] {
                took[tier.index()] = promises.places(tier, room, usize::MAX).min(left);
                left -= took[tier.index()];
            }
            took[Tier::Enterprise.index()] = left;
            promises.settle(took, [1; Tier::COUNT]);
            sum.iter_mut()
                .zip(took)
                .for_each(|(sum, took)| *sum += took);
        }
        sum.map(|sum| sum as f64 / (room * batches) as f64)
    }

    proptest! {
        #[test]
        fn over_time_each_tier_gets_its_part_whatever_the_size_of_a_batch(
            room in 1usize..30, paid in 0.0f64..0.5, free in 0.0f64..0.5,
        ) {
            let got = served([0.0, paid, free], room, 1000);
            prop_assert!((got[Tier::Paid.index()] - paid).abs() < 0.005, "{:?} for {} and {}", got, paid, free);
            prop_assert!((got[Tier::Free.index()] - free).abs() < 0.005, "{:?} for {} and {}", got, paid, free);
        }
    }

    #[test]
    fn what_is_owed_lapses_with_those_who_wait() {
        let mut promises = Promises::new([0.0, 0.0, 0.5]);
        promises.settle([1, 0, 0], [1, 0, 1]);
        assert_eq!(promises.places(Tier::Free, 1, 1), 1);
        promises.settle([1, 0, 0], [1, 0, 0]);
        assert_eq!(promises.places(Tier::Free, 1, 1), 0);
    }

    #[test]
    fn nothing_is_promised_by_default_and_never_more_than_wait() {
        assert_eq!(Promises::default().places(Tier::Free, 100, 100), 0);
        assert_eq!(Promises::new([0.0, 0.0, 0.5]).places(Tier::Free, 100, 7), 7);
    }
}

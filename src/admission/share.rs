//! Letting a share of the requests in, evenly and without dice.
//!
//! Each request adds its share to a credit; whenever the credit reaches one, a request is let in and one is taken
//! off. A share of a third lets in every third request, and over any run of requests the number let in differs from
//! the sum of their shares by less than one.

use std::sync::atomic::{AtomicU32, Ordering};

/// Credit of one tier, as a fraction of 2^32: reaching one is the overflow of the word, and taking one off is its
/// wrap.
#[derive(Debug)]
pub(super) struct Share(AtomicU32);

impl Default for Share {
    /// Starts nearly full, so that the first request of a tier is let in for any share but zero.
    fn default() -> Share {
        Share(AtomicU32::new(u32::MAX))
    }
}

impl Share {
    /// Whether this request is one of the `share` that is let in. Shares at or above 1 always are, 0 and below (and
    /// NaN) never.
    pub(super) fn take(&self, share: f64) -> bool {
        if share >= 1.0 {
            return true;
        }
        // The cast saturates: NaN and negative shares become 0, which never overflows.
        let step = (share * 4_294_967_296.0) as u32;
        // Relaxed: the word is the whole state and guards nothing else.
        let before = self.0.fetch_add(step, Ordering::Relaxed);
        before.checked_add(step).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_run_lets_in_the_sum_of_its_shares(
            shares in prop::collection::vec(0.0_f64..1.0, 1..400),
            skip in 0_usize..400,
        ) {
            let credit = Share::default();
            let skip = skip % shares.len();
            for share in &shares[..skip] {
                credit.take(*share);
            }
            let let_in = shares[skip..].iter().filter(|share| credit.take(**share)).count();
            let sum: f64 = shares[skip..].iter().sum();
            prop_assert!((let_in as f64 - sum).abs() < 1.0 + 1e-6, "{let_in} of {sum}");
        }

        #[test]
        fn the_same_shares_are_decided_the_same_way(shares in prop::collection::vec(0.0_f64..1.1, 1..200)) {
            let (one, other) = (Share::default(), Share::default());
            for share in shares {
                prop_assert_eq!(one.take(share), other.take(share));
            }
        }
    }

    #[test]
    fn half_lets_in_every_second_and_the_ends_are_all_and_none() {
        let credit = Share::default();
        let pattern: Vec<bool> = (0..6).map(|_| credit.take(0.5)).collect();
        assert_eq!(pattern, [true, false, true, false, true, false]);
        for _ in 0..100 {
            assert!(credit.take(1.0) && credit.take(f64::INFINITY));
            assert!(!credit.take(0.0) && !credit.take(-1.0) && !credit.take(f64::NAN));
        }
    }

    #[test]
    fn cores_together_let_in_the_exact_share() {
        let credit = Share::default();
        let let_in: usize = std::thread::scope(|scope| {
            let count = || (0..10_000).filter(|_| credit.take(0.25)).count();
            let cores: Vec<_> = (0..4).map(|_| scope.spawn(count)).collect();
            cores.into_iter().map(|core| core.join().unwrap()).sum()
        });
        assert_eq!(let_in, 10_000);
    }
}

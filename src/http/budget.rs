//! The memory that requests hold, all together: heads, bodies and what is pipelined behind them, inputs until they are
//! answered, answers that their callers don't take. Each is bounded by itself, but not their sum: 20,000 connections
//! with a body of 1 MiB each would be 20 GiB.
//!
//! A connection has [`FREE_BYTES`] for nothing, so that the usual small request touches no shared counter and is served
//! whatever others hold; beyond that it counts. Where the budget is spent, a request that needs more of it is answered
//! 503 at once, with `Retry-After`: letting it wait for room could leave all of them waiting for each other. What is on
//! its way out is counted although it exceeds the budget, since there is no one left to refuse.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What a connection may hold without being counted.
pub const FREE_BYTES: usize = 4 << 10;

/// Counted in steps of this, so that a body that drips in does not drip on the counter.
const STEP_BYTES: usize = 4 << 10;

/// What all connections hold, and may.
#[derive(Debug)]
pub struct Budget {
    used_bytes: AtomicUsize,
    max_bytes: usize,
}

/// What one connection holds of it. To be [released](Share::release) before it is dropped.
#[derive(Debug, Default)]
pub struct Share {
    counted_bytes: usize,
}

impl Budget {
    /// A budget of `max_bytes`, of which nobody holds anything.
    pub fn new(max_bytes: usize) -> Budget {
        Budget {
            used_bytes: AtomicUsize::new(0),
            max_bytes,
        }
    }

    /// Bytes that are held.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes.load(Relaxed)
    }

    /// Bytes that may be.
    pub fn max_bytes(&self) -> usize {
        self.max_bytes
    }
}

impl Share {
    /// The connection now holds `bytes` in all. False if that is more than the budget has left; then the share is what
    /// it was.
    #[inline]
    pub fn hold(&mut self, bytes: usize, budget: &Budget) -> bool {
        let counted = countable(bytes);
        counted == self.counted_bytes || self.change(counted, budget, budget.max_bytes)
    }

    /// The same, whatever the budget says.
    #[inline]
    pub fn hold_anyway(&mut self, bytes: usize, budget: &Budget) {
        let counted = countable(bytes);
        if counted != self.counted_bytes {
            self.change(counted, budget, usize::MAX);
        }
    }

    /// The connection holds nothing any more.
    pub fn release(&mut self, budget: &Budget) {
        self.hold_anyway(0, budget);
    }

    #[cold]
    fn change(&mut self, counted: usize, budget: &Budget, max_bytes: usize) -> bool {
        // Relaxed: a count that orders nothing. Two that grow at once may both be refused where one would have fitted.
        if let Some(less) = self.counted_bytes.checked_sub(counted) {
            budget.used_bytes.fetch_sub(less, Relaxed);
        } else {
            let more = counted - self.counted_bytes;
            let before = budget.used_bytes.fetch_add(more, Relaxed);
            if before.saturating_add(more) > max_bytes {
                budget.used_bytes.fetch_sub(more, Relaxed);
                return false;
            }
        }
        self.counted_bytes = counted;
        true
    }
}

fn countable(bytes: usize) -> usize {
    match bytes.checked_sub(FREE_BYTES) {
        None | Some(0) => 0,
        Some(beyond) => beyond.next_multiple_of(STEP_BYTES),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn small_requests_are_served_whatever_others_hold() {
        let budget = Budget::new(100 << 10);
        let (mut large, mut small) = (Share::default(), Share::default());
        assert!(large.hold(104 << 10, &budget));
        assert_eq!(budget.used_bytes(), 100 << 10);
        assert!(small.hold(FREE_BYTES, &budget));
        assert!(!small.hold(FREE_BYTES + 1, &budget));
        assert!(!large.hold((104 << 10) + 1, &budget));
        small.hold_anyway(FREE_BYTES + 1, &budget);
        assert_eq!(budget.used_bytes(), 104 << 10);
        large.release(&budget);
        assert!(small.hold(64 << 10, &budget));
        small.release(&budget);
        assert_eq!(budget.used_bytes(), 0);
    }

    proptest! {
        #[test]
        fn the_sum_is_kept_and_never_exceeds_the_budget(
            steps in proptest::collection::vec((0usize..4, 0usize..100_000), 0..60),
        ) {
            let budget = Budget::new(128 << 10);
            let mut shares: [Share; 4] = Default::default();
            let mut held = [0; 4];
            for (index, bytes) in steps {
                let others: usize = held.iter().sum::<usize>() - held[index];
                let fits = others + countable(bytes) <= budget.max_bytes();
                prop_assert_eq!(shares[index].hold(bytes, &budget), fits || countable(bytes) <= held[index]);
                if fits || countable(bytes) <= held[index] {
                    held[index] = countable(bytes);
                }
                prop_assert_eq!(budget.used_bytes(), held.iter().sum::<usize>());
            }
            shares.iter_mut().for_each(|share| share.release(&budget));
            prop_assert_eq!(budget.used_bytes(), 0);
        }
    }
}

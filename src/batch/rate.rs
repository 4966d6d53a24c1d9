//! The arrival rate that the launch rule works with. Pure.
//!
//! An exponentially decayed count: every arrival weighs 1 when it comes and `e^(-age / τ)` later, so the sum divided by τ
//! estimates arrivals per second. The newest arrival is left out, so that a lone request on a quiet server sees the rate
//! of those before it and not the burst of one that it is itself.

use std::time::Duration;

use crate::clock::Time;

/// A decayed estimate of arrivals per second.
#[derive(Clone, Copy, Debug)]
pub struct ArrivalRate {
    /// Time constant in seconds.
    tau: f64,
    /// Sum of the weights at `newest`, the newest arrival's 1 included.
    weight: f64,
    newest: Time,
}

impl ArrivalRate {
    /// An estimate that has seen nothing, with time constant `tau` (at least 1 µs).
    pub fn new(tau: Duration) -> ArrivalRate {
        ArrivalRate {
            tau: tau.as_secs_f64().max(1e-6),
            weight: 0.0,
            newest: Time::ZERO,
        }
    }

    /// Follows a changed batch time. The weight is carried over as it is: it is wrong for about one new τ.
    pub fn set_tau(&mut self, tau: Duration) {
        self.tau = tau.as_secs_f64().max(1e-6);
    }

    /// Counts an arrival. Tiers are drained one after the other, so arrivals may come out of order; the decayed sum
    /// does not care.
    pub fn arrive(&mut self, at: Time) {
        if at >= self.newest {
            self.weight = self.weight * self.decay(at.since(self.newest)) + 1.0;
            self.newest = at;
        } else {
            self.weight += self.decay(self.newest.since(at));
        }
    }

    /// Arrivals per second at `now`, the newest arrival left out.
    pub fn per_second(&self, now: Time) -> f64 {
        (self.weight - 1.0).max(0.0) / self.tau * self.decay(now.since(self.newest))
    }

    fn decay(&self, age: Duration) -> f64 {
        (-age.as_secs_f64() / self.tau).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TAU: Duration = Duration::from_millis(20);

    #[test]
    fn a_lone_arrival_sees_no_traffic() {
        let mut rate = ArrivalRate::new(TAU);
        assert_eq!(rate.per_second(Time::ZERO), 0.0);
        rate.arrive(Time::from_millis_f64(500.0));
        assert_eq!(rate.per_second(Time::from_millis_f64(500.0)), 0.0);
    }

    #[test]
    fn a_steady_stream_is_estimated_at_its_rate() {
        let mut rate = ArrivalRate::new(TAU);
        (0..1000).for_each(|i| rate.arrive(Time::from_millis_f64(f64::from(i))));
        let seen = rate.per_second(Time::from_millis_f64(999.0));
        assert!((seen - 1000.0).abs() < 60.0, "{seen}");
    }

    proptest! {
        #[test]
        fn the_sum_is_what_a_naive_count_gives_in_any_order(
            mut at in prop::collection::vec(0.0f64..200.0, 1..60), after in 0.0f64..50.0, turn in 0usize..60,
        ) {
            let newest = at.iter().copied().fold(0.0, f64::max);
            let now = newest + after;
            let all: f64 = at.iter().map(|t| (-(now - t) / 20.0).exp()).sum();
            let naive = (all - (-(now - newest) / 20.0f64).exp()).max(0.0) / 0.020;
            let turn = turn % at.len();
            at.rotate_left(turn);
            let mut rate = ArrivalRate::new(TAU);
            at.iter().for_each(|&t| rate.arrive(Time::from_millis_f64(t)));
            let seen = rate.per_second(Time::from_millis_f64(now));
            prop_assert!((seen - naive).abs() <= 1e-3 * naive.max(1.0), "{} against {}", seen, naive);
        }
    }
}

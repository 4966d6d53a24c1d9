//! How much of the pool's time the searches for bad inputs may take, so that bad inputs slow the good ones down but never
//! take the place over. One for all GPUs.
//!
//! The share is an exponentially decayed mean over [`WINDOW`]: a burst of searches on a pool that had none runs for a
//! while whatever it takes, a lasting stream of them settles at [`SHARE_MAX`]. It only counts while somebody waits for a
//! GPU: searches on a pool that is idle otherwise cost nobody anything.

use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Time;

/// The share is averaged over this.
pub const WINDOW: Duration = Duration::from_secs(10);

/// The share of the pool's time that searches may take.
pub const SHARE_MAX: f64 = 0.5;

/// GPU time spent on searches, decayed. Pure.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    /// GPU-seconds as of `at`; a GPU that always searches stands at [`WINDOW`].
    seconds: f64,
    at: Time,
}

impl Spent {
    fn as_of(self, now: Time) -> f64 {
        self.seconds * decay(now.since(self.at))
    }

    /// A run that took `took` ended at `now`.
    fn add(&mut self, now: Time, took: Duration) {
        // What a run was at its start has decayed by its end.
        let run = WINDOW.as_secs_f64() * (1.0 - decay(took));
        // Two GPUs may report in the wrong order by microseconds; time must not run backwards for it.
        let now = now.max(self.at);
        *self = Spent {
            seconds: self.as_of(now) + run,
            at: now,
        };
    }

    /// How long no search may run until `gpus` GPUs have spent less than [`SHARE_MAX`] again.
    fn excess(self, now: Time, gpus: usize) -> Option<Duration> {
        let allowed = SHARE_MAX * WINDOW.as_secs_f64() * gpus.max(1) as f64;
        let ratio = self.as_of(now) / allowed;
        (ratio > 1.0).then(|| WINDOW.mul_f64(ratio.ln()))
    }
}

fn decay(span: Duration) -> f64 {
    (-span.as_secs_f64() / WINDOW.as_secs_f64()).exp()
}

/// See the module's text. Asked before every run of a search and charged after it, so a lock is cheap enough.
#[derive(Debug, Default)]
pub struct SearchBudget {
    spent: Mutex<Spent>,
}

impl SearchBudget {
    /// A run of a search that took `took` ended at `now`.
    pub fn charge(&self, now: Time, took: Duration) {
        self.spent.lock().add(now, took);
    }

    /// `None` while searches may go on in a pool of `gpus` healthy GPUs for which `waiting` fresh tickets wait; else the
    /// time after which they may again if none runs until then.
    pub fn exceeded(&self, now: Time, waiting: usize, gpus: usize) -> Option<Duration> {
        if waiting == 0 {
            return None;
        }
        self.spent.lock().excess(now, gpus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: Duration = Duration::from_millis(100);

    fn at(seconds: f64) -> Time {
        Time::ZERO + Duration::from_secs_f64(seconds)
    }

    /// `searching` GPUs of `gpus` search without a pause. When is it too much?
    fn exceeded_after(searching: usize, gpus: usize) -> Option<f64> {
        let budget = SearchBudget::default();
        (1..=1000).map(|run| f64::from(run) / 10.0).find(|&now| {
            (0..searching).for_each(|_| budget.charge(at(now), RUN));
            budget.exceeded(at(now), 1, gpus).is_some()
        })
    }

    #[test]
    fn half_of_the_pool_may_search_for_ever_and_all_of_it_for_seven_seconds() {
        assert_eq!(exceeded_after(2, 4), None);
        assert_eq!(exceeded_after(1, 4), None);
        for gpus in [1, 4] {
            let after = exceeded_after(gpus, gpus).expect("all of the pool is too much");
            assert!((6.9..7.1).contains(&after), "{after} s");
        }
    }

    #[test]
    fn one_search_is_never_too_much_for_a_pool_that_had_none() {
        let budget = SearchBudget::default();
        (1..=9).for_each(|run| budget.charge(at(f64::from(run) / 10.0), RUN));
        assert_eq!(budget.exceeded(at(0.9), 1, 1), None);
    }

    #[test]
    fn after_the_time_it_names_searches_may_go_on() {
        let budget = SearchBudget::default();
        budget.charge(at(20.0), Duration::from_secs(20));
        let pause = budget.exceeded(at(20.0), 1, 1).expect("all of the time");
        let recovered = at(20.0) + pause;
        assert!(budget.exceeded(recovered - RUN, 1, 1).is_some());
        assert_eq!(budget.exceeded(recovered + RUN, 1, 1), None);
    }

    #[test]
    fn nothing_is_too_much_while_nobody_waits() {
        let budget = SearchBudget::default();
        budget.charge(at(20.0), Duration::from_secs(20));
        assert_eq!(budget.exceeded(at(20.0), 0, 1), None);
    }

    #[test]
    fn losing_gpus_shrinks_what_searches_may_take() {
        let budget = SearchBudget::default();
        budget.charge(at(20.0), Duration::from_secs(20));
        assert_eq!(budget.exceeded(at(20.0), 1, 4), None);
        assert!(budget.exceeded(at(20.0), 1, 1).is_some());
        assert_eq!(
            budget.exceeded(at(20.0), 1, 0),
            budget.exceeded(at(20.0), 1, 1)
        );
    }
}

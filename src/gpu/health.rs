//! Whether a GPU may serve. Pure: events in, state out.
//!
//! ```text
//!            reset ok            canary passed         launched
//! warming ─────────────► probing ─────────────► ready ◄────────► busy
//!    │                   ▲    │                   │    finished    │
//!    │ reset failed      │    │ canary failed     │ lost           │ lost, timed out
//!    └───────────► down ─┴────┴───────────────────┴────────────────┘
//!                        reset ok, after a back-off
//! ready, busy ──► draining: it was removed, runs its last batch and takes no other ──► gone
//! any ──► gone: the server ends, or it was removed while out of service
//! ```
//!
//! Only `ready` and `busy` GPUs count as capacity. A GPU that went down is reset after a back-off that doubles with
//! every failure in a row and is forgotten once the GPU has served for a while: one that passes its canary and then
//! fails on real batches is backed off too.

use std::time::Duration;

use crate::clock::Time;

/// What a GPU's thread is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Started, never reset yet.
    Warming,
    /// In service, idle.
    Ready,
    /// In service, running a batch.
    Busy,
    /// Out of service, waiting for its next reset.
    Down,
    /// Reset, running its canary.
    Probing,
    /// Removed, and out of service as soon as nothing is in hand.
    Draining,
    /// Out of service for good.
    Gone,
}

impl State {
    /// The name in `/status`.
    pub const fn label(self) -> &'static str {
        match self {
            State::Warming => "warming",
            State::Ready => "ready",
            State::Busy => "busy",
            State::Down => "down",
            State::Probing => "probing",
            State::Draining => "draining",
            State::Gone => "gone",
        }
    }

    /// Whether the GPU counts as capacity.
    pub const fn in_service(self) -> bool {
        matches!(self, State::Ready | State::Busy)
    }
}

/// First pause before a reset.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
/// Longest pause before a reset.
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// A GPU that has served so long is trusted again: its failures are forgotten.
const TRUSTED_AFTER: Duration = Duration::from_secs(10);

/// The health of one GPU.
#[derive(Clone, Debug)]
pub struct Health {
    /// Never [`State::Draining`]: that it leaves does not change what its batch does meanwhile.
    state: State,
    is_leaving: bool,
    since: Time,
    why: String,
    /// Why it failed last, until it is trusted again.
    last_failure: String,
    /// Failures since it was last trusted.
    failures: u32,
    /// When it last came into service.
    serving_since: Time,
    reset_due: Time,
}

impl Health {
    /// A GPU that has just been given its thread; its first reset is due at once.
    pub fn new(now: Time) -> Health {
        Health {
            state: State::Warming,
            is_leaving: false,
            since: now,
            why: "starting".to_owned(),
            last_failure: String::new(),
            failures: 0,
            serving_since: now,
            reset_due: now,
        }
    }

    /// The state.
    pub fn state(&self) -> State {
        if self.is_leaving && self.state != State::Gone {
            State::Draining
        } else {
            self.state
        }
    }

    /// Since when it is in service or out of it, as the case may be; going from ready to busy and back is no change.
    pub fn since(&self) -> Time {
        self.since
    }

    /// Why it is in or out of service.
    pub fn why(&self) -> &str {
        &self.why
    }

    /// Says what it is about while it is out of service; no change of state.
    pub fn note(&mut self, text: &str) {
        if self.is_leaving {
            return;
        }
        match (self.state, self.last_failure.as_str()) {
            (State::Ready | State::Busy | State::Gone, _) => {}
            (_, "") => text.clone_into(&mut self.why),
            (_, failure) => self.why = format!("{text}; it failed before: {failure}"),
        }
    }

    /// Whether it has failed since it was last trusted and does not serve: then another failure only keeps it down.
    pub fn is_kept_down(&self) -> bool {
        self.failures > 0 && !self.state.in_service()
    }

    /// When the next reset is due, while warming or down.
    pub fn reset_due(&self) -> Time {
        self.reset_due
    }

    fn enter(&mut self, state: State, why: &str, now: Time) {
        self.state = state;
        self.since = now;
        why.clone_into(&mut self.why);
        self.check_invariants();
    }

    fn check_invariants(&self) {
        let timed = matches!(self.state, State::Warming | State::Down);
        assert!(
            timed || self.reset_due == Time::MAX,
            "a reset is due only in a state that waits for one"
        );
        assert!(
            self.state != State::Down || self.failures > 0,
            "nothing goes down without a failure"
        );
    }

    /// The executor was reset; the canary is next.
    pub fn reset_passed(&mut self, now: Time) {
        assert!(
            matches!(self.state, State::Warming | State::Down),
            "reset while {:?}",
            self.state
        );
        self.reset_due = Time::MAX;
        self.enter(State::Probing, "running its canary batch", now);
    }

    /// The canary came back right.
    pub fn canary_passed(&mut self, now: Time) {
        assert_eq!(
            self.state,
            State::Probing,
            "only a probing GPU runs a canary"
        );
        self.serving_since = now;
        self.enter(State::Ready, "passed its canary batch", now);
    }

    /// A batch was launched.
    pub fn launched(&mut self) {
        assert!(self.state.in_service(), "launched while {:?}", self.state);
        self.state = State::Busy;
    }

    /// No batch runs any more.
    pub fn finished(&mut self) {
        assert_eq!(self.state, State::Busy, "only a busy GPU finishes");
        self.state = State::Ready;
    }

    /// The GPU failed: a reset or canary failed, a batch was lost or timed out, the thread panicked. Returns whether that
    /// is news: it was in service, or what fails its resets is something else than before.
    pub fn failed(&mut self, why: &str, now: Time) -> bool {
        if self.state == State::Gone {
            return false;
        }
        if self.state.in_service() && now.since(self.serving_since) >= TRUSTED_AFTER {
            self.failures = 0;
        }
        let is_news = self.state.in_service() || self.last_failure != why;
        why.clone_into(&mut self.last_failure);
        let pause = BACKOFF_MIN
            .saturating_mul(1 << self.failures.min(16))
            .min(BACKOFF_MAX);
        self.failures = self.failures.saturating_add(1);
        self.reset_due = now + pause;
        self.enter(State::Down, why, now);
        is_news
    }

    /// It is to leave: what it has in hand is its last. At once if it is out of service, since then it has nothing.
    pub fn leave(&mut self, why: &str, now: Time) {
        match self.state() {
            State::Draining | State::Gone => {}
            State::Ready | State::Busy => {
                self.is_leaving = true;
                self.since = now;
                why.clone_into(&mut self.why);
            }
            State::Warming | State::Down | State::Probing => self.gone(why, now),
        }
    }

    /// Out of service for good.
    pub fn gone(&mut self, why: &str, now: Time) {
        if self.state == State::Gone {
            return;
        }
        self.reset_due = Time::MAX;
        self.enter(State::Gone, why, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn serving(at: Time) -> Health {
        let mut health = Health::new(at);
        health.reset_passed(at);
        assert!(!health.state().in_service(), "not before its canary");
        health.canary_passed(at);
        health
    }

    fn fail_and_return(health: &mut Health, now: Time) -> Duration {
        health.failed("device lost", now);
        let pause = health.reset_due().since(now);
        health.reset_passed(now);
        health.canary_passed(now);
        pause
    }

    #[test]
    fn the_back_off_doubles_up_to_its_cap_for_failures_in_a_row() {
        let now = Time::ZERO;
        let mut health = Health::new(now);
        let pauses: Vec<_> = (0..9)
            .map(|_| {
                health.failed("no device", now);
                health.reset_due().since(now)
            })
            .collect();
        assert_eq!(pauses[..3], [100 * MS, 200 * MS, 400 * MS]);
        assert_eq!(pauses[8], BACKOFF_MAX);
    }

    #[test]
    fn passing_the_canary_is_not_enough_to_be_trusted_again() {
        let mut health = serving(Time::ZERO);
        assert_eq!(fail_and_return(&mut health, Time::ZERO), 100 * MS);
        assert_eq!(fail_and_return(&mut health, Time::ZERO + 50 * MS), 200 * MS);
        let later = Time::ZERO + 50 * MS + TRUSTED_AFTER;
        assert_eq!(fail_and_return(&mut health, later), 100 * MS);
    }

    #[test]
    fn working_does_not_change_since_when_it_is_in_service() {
        let mut health = serving(Time::from_nanos(5));
        health.launched();
        assert_eq!(
            (health.state(), health.since()),
            (State::Busy, Time::from_nanos(5))
        );
        health.launched();
        health.finished();
        assert_eq!(
            (health.state(), health.since()),
            (State::Ready, Time::from_nanos(5))
        );
    }

    #[test]
    fn a_reset_that_fails_for_the_same_reason_again_is_no_news() {
        let now = Time::ZERO;
        let mut health = Health::new(now);
        let news: Vec<_> = ["no device", "no device", "no driver", "no device"]
            .map(|why| health.failed(why, now))
            .into();
        assert_eq!(news, [true, false, true, true]);
        let mut health = serving(now);
        assert!(health.failed("device lost", now));
        health.reset_passed(now);
        health.canary_passed(now);
        assert!(health.failed("device lost", now), "it was in service");
    }

    #[test]
    fn a_note_tells_of_the_last_failure_and_never_of_a_gpu_in_service() {
        let mut health = Health::new(Time::ZERO);
        health.note("importing");
        assert_eq!(health.why(), "importing");
        health.failed("no such module", Time::ZERO);
        health.note("importing");
        assert_eq!(health.why(), "importing; it failed before: no such module");
        let mut health = serving(Time::ZERO);
        health.note("importing");
        assert_eq!(health.why(), "passed its canary batch");
    }

    #[test]
    fn a_gpu_that_leaves_is_out_of_service_at_once_and_still_runs_its_batch() {
        let mut health = serving(Time::ZERO);
        health.launched();
        health.leave("removed", Time::from_nanos(7));
        assert_eq!((health.state(), health.why()), (State::Draining, "removed"));
        assert!(!health.state().in_service());
        // What was staged may yet be launched, and what runs may fail.
        health.launched();
        health.finished();
        assert_eq!(
            (health.state(), health.since()),
            (State::Draining, Time::from_nanos(7))
        );
        health.failed("device lost", Time::from_nanos(8));
        assert_eq!(health.state(), State::Draining);
        health.gone("removed", Time::from_nanos(9));
        assert_eq!(health.state(), State::Gone);
    }

    #[test]
    fn a_gpu_out_of_service_leaves_at_once() {
        let mut down = serving(Time::ZERO);
        down.failed("device lost", Time::ZERO);
        let mut warming = Health::new(Time::ZERO);
        for health in [&mut down, &mut warming] {
            health.leave("removed", Time::ZERO);
            assert_eq!((health.state(), health.why()), (State::Gone, "removed"));
            health.gone("the server ends", Time::ZERO);
            assert_eq!(health.why(), "removed");
        }
    }

    #[test]
    fn a_gpu_that_is_gone_stays_gone() {
        let mut health = serving(Time::ZERO);
        health.gone("its thread never returned", Time::ZERO);
        health.failed("late", Time::ZERO);
        assert_eq!(health.state(), State::Gone);
    }
}

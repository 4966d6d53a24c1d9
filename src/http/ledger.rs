//! The batches that a worker has run or runs, so that one that is sent twice runs once.
//!
//! | a batch comes | then it |
//! | --- | --- |
//! | with an id that is not known | runs, if there is room: one batch runs and one may wait |
//! | again while it runs | waits for the results with those who wait already |
//! | again after it has run | gets the same answer |
//! | with a known id and other requests | is refused |
//!
//! Answers are kept for [`KEPT_FOR`], the last [`KEPT_MAX`] of them. A batch that did not run leaves nothing behind: sent
//! again it is a new one. Pure but for the lock; the slots of those who wait are theirs who call.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::reject::Rejection;
use crate::clock::Time;
use crate::ticket::TicketSlot;

/// Batches that may be here at a time and have not run: one runs, one waits.
pub const UNFINISHED_MAX: usize = 2;

/// How long an answer is kept.
const KEPT_FOR: Duration = Duration::from_secs(30);

/// Answers that are kept.
const KEPT_MAX: usize = 64;

/// What a batch is answered: its results as they stand on the wire, or why there are none.
pub type Answer = Result<Arc<[u8]>, Rejection>;

/// What becomes of a batch that comes.
#[derive(Debug)]
pub enum Entrance {
    /// It is to be run, and [`Ledger::finish`]ed.
    Run,
    /// It has run.
    Ran(Answer),
    /// It runs; the slot is resolved when it has.
    Runs(Arc<TicketSlot>),
    /// It is another one under a known id.
    Other,
    /// There is no room for it.
    Full,
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct Ledger {
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
struct Inside {
    entries: HashMap<Box<str>, Entry>,
    /// Those that have run, and when.
    finished: VecDeque<(Time, Box<str>)>,
}

#[derive(Debug)]
struct Entry {
    fingerprint: [u8; 32],
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Runs(Vec<Arc<TicketSlot>>),
    Ran(Answer),
}

impl Ledger {
    /// A batch comes. `slot` makes the slot on which its handler can wait.
    pub fn enter(
        &self,
        id: &str,
        fingerprint: &[u8; 32],
        now: Time,
        slot: impl FnOnce() -> Arc<TicketSlot>,
    ) -> Entrance {
        let mut inside = self.inside.lock();
        inside.forget_old(now);
        let unfinished = inside.entries.len() - inside.finished.len();
        match inside.entries.get_mut(id) {
            Some(entry) if entry.fingerprint != *fingerprint => Entrance::Other,
            Some(Entry {
                stage: Stage::Ran(answer),
                ..
            }) => Entrance::Ran(answer.clone()),
            Some(Entry {
                stage: Stage::Runs(waiting),
                ..
            }) => {
                let slot = slot();
                waiting.push(Arc::clone(&slot));
                Entrance::Runs(slot)
            }
            None if unfinished >= UNFINISHED_MAX => Entrance::Full,
            None => {
                let entry = Entry {
                    fingerprint: *fingerprint,
                    stage: Stage::Runs(Vec::new()),
                };
                inside.entries.insert(id.into(), entry);
                Entrance::Run
            }
        }
    }

    /// A batch has run and was answered so; or it has not run, and there is nothing to keep. Returns those who wait for
    /// it.
    pub fn finish(&self, id: &str, answer: Option<Answer>, now: Time) -> Vec<Arc<TicketSlot>> {
        let mut inside = self.inside.lock();
        let Some(entry) = inside.entries.get_mut(id) else {
            return Vec::new();
        };
        let Stage::Runs(waiting) = &mut entry.stage else {
            return Vec::new();
        };
        let waiting = std::mem::take(waiting);
        match answer {
            Some(answer) => {
                entry.stage = Stage::Ran(answer);
                inside.finished.push_back((now, id.into()));
                inside.forget_old(now);
            }
            None => {
                inside.entries.remove(id);
            }
        }
        waiting
    }

    /// The answer to a batch, if it has run.
    pub fn answer(&self, id: &str) -> Option<Answer> {
        match &self.inside.lock().entries.get(id)?.stage {
            Stage::Ran(answer) => Some(answer.clone()),
            Stage::Runs(_) => None,
        }
    }
}

impl Inside {
    fn forget_old(&mut self, now: Time) {
        while let Some((finished, _)) = self.finished.front() {
            let is_old = now.since(*finished) > KEPT_FOR;
            if !is_old && self.finished.len() <= KEPT_MAX {
                return;
            }
            if let Some((_, id)) = self.finished.pop_front() {
                self.entries.remove(&id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slot::Slot;
    use crate::wake::Handler;
    use may::sync::Blocker;

    fn slot() -> Arc<TicketSlot> {
        Arc::new(Slot::new(Handler::new(Blocker::current(), 0)))
    }

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    fn enter(ledger: &Ledger, id: &str, mark: u8, now: Time) -> Entrance {
        ledger.enter(id, &[mark; 32], now, slot)
    }

    fn run(ledger: &Ledger, id: &str, now: Time) {
        assert!(matches!(enter(ledger, id, 0, now), Entrance::Run), "{id}");
        let answer: Arc<[u8]> = id.as_bytes().into();
        ledger.finish(id, Some(Ok(answer)), now);
    }

    #[test]
    fn a_batch_that_comes_again_waits_for_the_first_and_then_gets_its_answer() {
        let ledger = Ledger::default();
        assert!(matches!(enter(&ledger, "a", 0, at(0)), Entrance::Run));
        let Entrance::Runs(waits) = enter(&ledger, "a", 0, at(0)) else {
            panic!("it runs");
        };
        assert!(ledger.answer("a").is_none());
        let answer: Arc<[u8]> = Arc::from(*b"results");
        let woken = ledger.finish("a", Some(Ok(Arc::clone(&answer))), at(1));
        assert!(woken.len() == 1 && Arc::ptr_eq(&woken[0], &waits));
        assert!(matches!(enter(&ledger, "a", 0, at(1)), Entrance::Ran(Ok(kept)) if kept == answer));
        assert_eq!(ledger.answer("a"), Some(Ok(answer)));
        assert!(
            ledger.finish("a", None, at(1)).is_empty(),
            "it is finished once"
        );
        assert!(ledger.answer("a").is_some());
    }

    #[test]
    fn another_batch_under_a_known_id_is_told_apart_running_or_not() {
        let ledger = Ledger::default();
        assert!(matches!(enter(&ledger, "a", 0, at(0)), Entrance::Run));
        assert!(matches!(enter(&ledger, "a", 1, at(0)), Entrance::Other));
        ledger.finish("a", Some(Err(Rejection::BatchRaised("x".into()))), at(0));
        assert!(matches!(enter(&ledger, "a", 1, at(0)), Entrance::Other));
    }

    #[test]
    fn one_runs_one_waits_and_nobody_else_comes_in() {
        let ledger = Ledger::default();
        run(&ledger, "before", at(0));
        assert!(matches!(enter(&ledger, "a", 0, at(0)), Entrance::Run));
        assert!(matches!(enter(&ledger, "b", 0, at(0)), Entrance::Run));
        assert!(matches!(enter(&ledger, "c", 0, at(0)), Entrance::Full));
        assert!(matches!(enter(&ledger, "a", 0, at(0)), Entrance::Runs(_)));
        assert!(matches!(
            enter(&ledger, "before", 0, at(0)),
            Entrance::Ran(_)
        ));
        ledger.finish("a", None, at(0));
        assert!(
            matches!(enter(&ledger, "a", 9, at(0)), Entrance::Run),
            "it did not run, so it is new"
        );
        assert!(matches!(enter(&ledger, "c", 0, at(0)), Entrance::Full));
    }

    #[test]
    fn answers_are_kept_for_a_while_and_so_many() {
        let ledger = Ledger::default();
        for number in 0..=KEPT_MAX {
            run(&ledger, &number.to_string(), at(0));
        }
        assert!(ledger.answer("0").is_none() && ledger.answer("1").is_some());
        assert!(matches!(enter(&ledger, "1", 0, at(30)), Entrance::Ran(_)));
        assert!(matches!(enter(&ledger, "1", 0, at(31)), Entrance::Run));
        assert_eq!(ledger.inside.lock().entries.len(), 1);
    }
}

//! What a GPU's thread shares with the watchdog: the batches it has in hand, and its health, under one lock.
//!
//! An executor may block for ever, and with it the GPU thread; the tickets of its batches must not. So the thread does
//! not keep a batch, it puts it here and takes it out again when the results are in. When the GPU fails — by the
//! thread's own finding or, if the thread is stuck, by the watchdog's — everything is seized and the generation is
//! bumped. A thread that comes back late finds another generation: it gets nothing, changes nothing, and its results
//! go nowhere.

use std::sync::OnceLock;

use parking_lot::Mutex;

use crate::batch::Batch;
use crate::clock::Time;
use crate::gpu::activity::{Sample, Thread};
use crate::gpu::executor::Half;
use crate::gpu::health::{Health, State};

/// A batch in the cell.
#[derive(Debug)]
pub struct Held {
    /// The batch.
    pub batch: Batch,
    /// When it was launched; then its loss costs each ticket an attempt. `None` while it is only staged.
    pub launched: Option<Time>,
}

#[derive(Debug)]
struct Inside {
    generation: u64,
    halves: [Option<Held>; 2],
    /// When the thread must have shown up again.
    due: Time,
    health: Health,
}

/// The cell of one GPU.
#[derive(Debug)]
pub struct Cell {
    inside: Mutex<Inside>,
    thread: OnceLock<Thread>,
}

/// The cell was seized: whatever the thread was doing has been dealt with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seized;

impl Cell {
    /// The cell of a GPU that is just starting.
    pub fn new(now: Time) -> Cell {
        let halves = [None, None];
        Cell {
            inside: Mutex::new(Inside {
                generation: 0,
                halves,
                due: Time::MAX,
                health: Health::new(now),
            }),
            thread: OnceLock::new(),
        }
    }

    /// Says which thread is the GPU's.
    pub fn runs_on(&self, thread: Thread) {
        self.thread.get_or_init(|| thread);
    }

    /// What the GPU's thread does at the moment.
    pub fn activity(&self) -> Sample {
        self.thread
            .get()
            .map_or_else(Sample::default, |thread| thread.sample())
    }

    /// A copy of the GPU's health, and how many tickets run.
    pub fn look(&self) -> (Health, Option<usize>) {
        let inside = self.inside.lock();
        let running = inside
            .halves
            .iter()
            .flatten()
            .find(|held| held.launched.is_some());
        (
            inside.health.clone(),
            running.map(|held| held.batch.tickets.len()),
        )
    }

    /// The current generation, which the thread shows to get at its batches.
    pub fn generation(&self) -> u64 {
        self.inside.lock().generation
    }

    fn claim(&self, generation: u64) -> Result<parking_lot::MutexGuard<'_, Inside>, Seized> {
        let inside = self.inside.lock();
        if inside.generation == generation {
            Ok(inside)
        } else {
            Err(Seized)
        }
    }

    /// Puts a batch in, bound and not launched.
    ///
    /// # Errors
    /// Gives it back if the cell was seized since `generation`.
    pub fn put(&self, generation: u64, half: Half, batch: Batch) -> Result<(), Batch> {
        let Ok(mut inside) = self.claim(generation) else {
            return Err(batch);
        };
        let before = inside.halves[half.index()].replace(Held {
            batch,
            launched: None,
        });
        assert!(before.is_none(), "a half holds one batch at a time");
        Ok(())
    }

    /// Lets `change` see the batch in `half` just before its launch at `now`, and counts it as running if `change` says
    /// that it may go.
    ///
    /// # Errors
    /// [`Seized`].
    pub fn launch(
        &self,
        generation: u64,
        half: Half,
        now: Time,
        change: impl FnOnce(&mut Batch) -> bool,
    ) -> Result<bool, Seized> {
        let mut inside = self.claim(generation)?;
        let held = inside.halves[half.index()]
            .as_mut()
            .expect("a batch is put in before it is launched");
        let goes = change(&mut held.batch);
        if goes {
            held.launched = Some(now);
            inside.health.launched();
        }
        Ok(goes)
    }

    /// Lets `change` see the batch in `half` and take tickets out of it. The caller has to deal with those; what stays is
    /// dealt with by whoever fails the GPU.
    ///
    /// # Errors
    /// [`Seized`].
    pub fn edit<R>(
        &self,
        generation: u64,
        half: Half,
        change: impl FnOnce(&mut Batch) -> R,
    ) -> Result<R, Seized> {
        let mut inside = self.claim(generation)?;
        let held = inside.halves[half.index()]
            .as_mut()
            .expect("a batch is put in before it is edited");
        Ok(change(&mut held.batch))
    }

    /// Takes the batch in `half` out. The GPU is idle if no other runs.
    ///
    /// # Errors
    /// [`Seized`].
    pub fn take(&self, generation: u64, half: Half) -> Result<Held, Seized> {
        let mut inside = self.claim(generation)?;
        let held = inside.halves[half.index()]
            .take()
            .expect("a batch is put in before it is taken");
        let runs = inside
            .halves
            .iter()
            .flatten()
            .any(|held| held.launched.is_some());
        if held.launched.is_some() && !runs {
            inside.health.finished();
        }
        Ok(held)
    }

    /// The thread enters a call that must be over by `due`; [`Time::MAX`] while it does nothing that could block it.
    pub fn expect_by(&self, due: Time) {
        self.inside.lock().due = due;
    }

    /// The thread has something else to do before, which must be over by `due`: it is not due earlier.
    pub fn expect_no_earlier(&self, due: Time) {
        let mut inside = self.inside.lock();
        inside.due = inside.due.max(due);
    }

    /// When the thread was due, if that is past.
    pub fn overdue(&self, now: Time) -> Option<Time> {
        let due = self.inside.lock().due;
        (now > due).then_some(due)
    }

    /// Says what a GPU that is out of service is about.
    pub fn note(&self, text: &str) {
        self.inside.lock().health.note(text);
    }

    /// Moves the health on with `step`, unless the GPU was failed by somebody else since `generation`.
    ///
    /// # Errors
    /// [`Seized`].
    pub fn health(&self, generation: u64, step: impl FnOnce(&mut Health)) -> Result<(), Seized> {
        step(&mut self.claim(generation)?.health);
        Ok(())
    }

    /// The GPU failed: takes everything out, voids the thread's claim to it and marks it down (or, if `for_good`, gone).
    /// Returns what was in hand, and whether that it failed is news.
    pub fn fail(&self, why: &str, now: Time, for_good: bool) -> (Vec<Held>, bool) {
        let mut inside = self.inside.lock();
        inside.generation += 1;
        inside.due = Time::MAX;
        let is_news = if for_good {
            inside.health.gone(why, now);
            false
        } else {
            inside.health.failed(why, now)
        };
        (
            inside.halves.iter_mut().filter_map(Option::take).collect(),
            is_news,
        )
    }

    /// The GPU is to leave: it keeps what it has in hand, see [`Health::leave`]. If it has nothing and is out of service, the
    /// thread's claim is void at once.
    pub fn leave(&self, why: &str, now: Time) {
        let mut inside = self.inside.lock();
        inside.health.leave(why, now);
        if inside.health.state() == State::Gone {
            debug_assert!(inside.halves.iter().all(Option::is_none));
            inside.generation += 1;
            inside.due = Time::MAX;
        }
    }

    /// The GPU's state.
    pub fn state(&self) -> State {
        self.inside.lock().health.state()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::policy::Launch;
    use crate::queue::Lane;

    fn batch() -> Batch {
        Batch {
            lane: Lane::Fresh,
            reason: Launch::Full,
            tickets: Vec::new(),
        }
    }

    fn serving() -> (Cell, u64) {
        let cell = Cell::new(Time::ZERO);
        let generation = cell.generation();
        let step = |health: &mut Health| {
            health.reset_passed(Time::ZERO);
            health.canary_passed(Time::ZERO);
        };
        cell.health(generation, step).expect("nobody failed it");
        (cell, generation)
    }

    #[test]
    fn after_a_failure_the_thread_gets_leaves_and_changes_nothing() {
        let (cell, old) = serving();
        cell.put(old, Half::A, batch())
            .expect("the generation is current");
        assert_eq!(cell.launch(old, Half::A, Time::ZERO, |_| true), Ok(true));
        cell.put(old, Half::B, batch())
            .expect("the other half is free");
        let (seized, is_news) = cell.fail("hangs", Time::ZERO, false);
        assert!(is_news);
        assert_eq!(
            seized
                .iter()
                .map(|held| held.launched.is_some())
                .collect::<Vec<_>>(),
            [true, false]
        );
        assert_eq!(cell.take(old, Half::A).err(), Some(Seized));
        assert!(cell.put(old, Half::A, batch()).is_err());
        assert_eq!(cell.health(old, Health::finished), Err(Seized));
        assert_eq!(cell.state(), State::Down);
    }

    #[test]
    fn a_gpu_is_busy_until_its_last_running_batch_is_taken_out() {
        let (cell, generation) = serving();
        for half in Half::ALL {
            cell.put(generation, half, batch()).expect("free");
            cell.launch(generation, half, Time::ZERO, |_| true)
                .expect("current");
        }
        cell.take(generation, Half::A).expect("current");
        assert_eq!(cell.state(), State::Busy);
        cell.take(generation, Half::B).expect("current");
        assert_eq!(cell.state(), State::Ready);
    }

    #[test]
    fn a_batch_of_which_nobody_lives_is_not_launched() {
        let (cell, generation) = serving();
        cell.put(generation, Half::A, batch()).expect("free");
        assert_eq!(
            cell.launch(generation, Half::A, Time::ZERO, |_| false),
            Ok(false)
        );
        assert_eq!(cell.state(), State::Ready);
        assert_eq!(
            cell.take(generation, Half::A).expect("current").launched,
            None
        );
    }

    #[test]
    fn a_thread_is_overdue_only_past_the_time_it_gave() {
        let (cell, due) = (Cell::new(Time::ZERO), Time::from_nanos(100));
        assert_eq!(cell.overdue(Time::from_nanos(u64::MAX - 1)), None);
        cell.expect_by(due);
        cell.expect_no_earlier(Time::from_nanos(90));
        assert_eq!(
            (cell.overdue(due), cell.overdue(Time::from_nanos(101))),
            (None, Some(due))
        );
        cell.expect_by(Time::MAX);
        assert_eq!(cell.overdue(Time::from_nanos(101)), None);
    }
}

//! The completion slot: where one request's handler waits for its answer.
//!
//! A handler creates a slot, gives one reference to its ticket and waits on the other. Three parties race for it — the
//! GPU thread with a result, the core's timers with the deadline, the collector with the news that the caller hung
//! up — and exactly one of them may resolve it. The slot settles that race with one atomic word; it knows nothing of
//! requests, sockets or GPUs.
//!
//! | from | to | moved by | when |
//! | --- | --- | --- | --- |
//! | `Fresh` | `Bound` | collector | the ticket is claimed for a batch |
//! | `Retry` | `Bound` | collector | the ticket is claimed for a batch of retried tickets |
//! | `Bound` | `Fresh` | GPU thread | its batch was returned unlaunched |
//! | `Bound` | `Retry` | GPU thread, watchdog | its batch was lost and it may be tried once more |
//! | `Bound` | `Done` | GPU thread | output i goes to ticket i |
//! | any live | `Failed` | owner of the ticket | shed, rejected, lost twice, dropped |
//! | any live | `Expired` | timers, collector | the deadline passed |
//! | any live | `Gone` | collector | the caller closed its connection |
//!
//! *Live* is `Fresh`, `Retry` or `Bound`; the other four are final and are never left. The two waiting states are kept
//! apart so that whoever takes a ticket out of one knows, from the same atomic step, which count it left.
//!
//! The winner of a move to a final state owes the handler exactly one wake-up. The slot leaves that to the caller
//! (hence `#[must_use]`), because a GPU thread wakes the hundred waiters of a batch with one system call per core
//! instead of one per slot; see [`crate::wake`].

use crate::sync::{AtomicU8, Mutex, Ordering};

/// Where a slot stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Waiting in its tier's queue for the first time.
    Fresh = 0,
    /// Waiting in its tier's retry lane.
    Retry = 1,
    /// In a batch, staged or running.
    Bound = 2,
    /// Answered with an output.
    Done = 3,
    /// Answered with a failure.
    Failed = 4,
    /// Its deadline passed first.
    Expired = 5,
    /// Its caller left first.
    Gone = 6,
}

impl State {
    fn from_word(word: u8) -> State {
        match word {
            0 => State::Fresh,
            1 => State::Retry,
            2 => State::Bound,
            3 => State::Done,
            4 => State::Failed,
            5 => State::Expired,
            6 => State::Gone,
            other => unreachable!("the slot's word only ever holds a State, not {other}"),
        }
    }

    /// Whether the ticket waits in a queue.
    pub const fn is_waiting(self) -> bool {
        matches!(self, State::Fresh | State::Retry)
    }

    /// Whether the slot is still to be resolved.
    pub const fn is_live(self) -> bool {
        matches!(self, State::Fresh | State::Retry | State::Bound)
    }
}

/// What the handler blocks on. `park` may return early; it must return soon after the wake-up that the winner sends,
/// also if that came first.
pub trait Waiter {
    /// Blocks the handler (a coroutine, a thread, a model thread) until it is woken.
    fn park(&self);
}

/// What the handler finds when its slot is resolved.
#[derive(Debug, PartialEq, Eq)]
pub enum Resolution<R> {
    /// The ticket's owner answered; `Ok` and `Err` are told apart by the reply itself.
    Answered(R),
    /// The deadline passed: 504.
    Expired,
    /// The caller is gone; there is nobody to answer.
    Gone,
}

/// A completion slot with reply type `R`, on which a `W` waits. Resolved exactly once.
#[derive(Debug)]
pub struct Slot<W, R> {
    state: AtomicU8,
    /// Written by the ticket's owner before it moves the state to `Done` or `Failed`, read by the handler after.
    reply: Mutex<Option<R>>,
    waiter: W,
}

impl<W: Waiter, R> Slot<W, R> {
    /// A slot in state [`State::Fresh`].
    pub fn new(waiter: W) -> Self {
        Slot {
            state: AtomicU8::new(State::Fresh as u8),
            reply: Mutex::new(None),
            waiter,
        }
    }

    /// The state at this moment; only a final one is still true a moment later.
    pub fn state(&self) -> State {
        // Acquire pairs with the AcqRel of `shift`: whoever sees `Done` sees the reply as well.
        State::from_word(self.state.load(Ordering::Acquire))
    }

    /// The waiter, for the winner that has to wake it.
    pub fn waiter(&self) -> &W {
        &self.waiter
    }

    fn shift(&self, from: State, to: State) -> bool {
        // AcqRel on success: releases the reply written before it, and orders a bind after the hand-over of the ticket.
        self.state
            .compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Moves to `to` from whatever live state the slot is in and returns that state, or `None` if it was resolved.
    fn close(&self, to: State) -> Option<State> {
        let mut from = self.state();
        while from.is_live() {
            if self.shift(from, to) {
                return Some(from);
            }
            from = self.state();
        }
        None
    }

    /// Claims a waiting ticket for a batch. Returns the waiting state it was taken from, or `None` if it was resolved
    /// meanwhile (or is bound already, which a ticket that has one owner can't be).
    pub fn bind(&self) -> Option<State> {
        [State::Fresh, State::Retry]
            .into_iter()
            .find(|&from| self.shift(from, State::Bound))
    }

    /// Puts a bound ticket back to wait, as fresh (returned unlaunched) or in the retry lane. False if it was resolved
    /// meanwhile.
    pub fn unbind(&self, to: State) -> bool {
        assert!(
            to.is_waiting(),
            "a ticket is returned to a waiting state, not to {to:?}"
        );
        self.shift(State::Bound, to)
    }

    /// Resolves with the owner's answer: `Done` for an output, `Failed` for anything else. Returns the state it was in,
    /// and then the caller owes the wake-up; or `None` if the deadline or a hang-up won, and the reply is dropped here.
    #[must_use = "the winner wakes the handler; a lost race is counted as a late result"]
    pub fn answer(&self, reply: R, done: bool) -> Option<State> {
        // Before the move, so that the handler finds it. Only the ticket's one owner writes here, so nobody else's
        // reply can stand in it, and if the move fails nobody reads it.
        *self.reply.lock() = Some(reply);
        let won = self.close(if done { State::Done } else { State::Failed });
        if won.is_none() {
            self.reply.lock().take();
        }
        won
    }

    /// The deadline passed. Returns the state it was in (the caller then owes the wake-up), or `None` if it was resolved.
    #[must_use = "the winner wakes the handler and corrects the counts"]
    pub fn expire(&self) -> Option<State> {
        self.close(State::Expired)
    }

    /// The caller hung up. Returns the state it was in (the caller of this then owes the wake-up), or `None`.
    #[must_use = "the winner wakes the handler and corrects the counts"]
    pub fn leave(&self) -> Option<State> {
        self.close(State::Gone)
    }

    /// Blocks the handler until the slot is resolved. Called once, by the handler.
    pub fn wait(&self) -> Resolution<R> {
        loop {
            match self.state() {
                State::Fresh | State::Retry | State::Bound => self.waiter.park(),
                State::Expired => return Resolution::Expired,
                State::Gone => return Resolution::Gone,
                State::Done | State::Failed => {
                    let reply = self.reply.lock().take();
                    return Resolution::Answered(
                        reply.expect("the reply is stored before the state says so"),
                    );
                }
            }
        }
    }
}

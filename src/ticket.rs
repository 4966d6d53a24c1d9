//! A ticket: one admitted request inside the server.
//!
//! The handler makes it, a queue hands it over, a GPU thread answers it. It has exactly one owner at any time — it is
//! moved, never shared — and must be resolved: [`Ticket::answer`] and [`Ticket::fail`] consume it, and a ticket that is
//! dropped unresolved answers its caller with 500, is counted, and panics in debug builds, because it is a bug of ours.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Time;
use crate::peer::Peer;
use crate::slot::{Slot, State};
use crate::tier::Tier;
use crate::wake::{Handler, Wakes};

/// The slot of a ticket.
pub type TicketSlot = Slot<Handler, Reply>;

/// One element of a batch, as the executor sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// The input string.
    pub text: Arc<str>,
    /// The request's `parameters` as JSON text, for executors that take them.
    pub parameters: Option<Arc<str>>,
    /// The id that the caller knows the request by, for executors that take it. A canary has none.
    pub request_id: Option<Arc<str>>,
}

impl Input {
    /// An input without parameters.
    pub fn new(text: impl Into<Arc<str>>) -> Input {
        Input {
            text: text.into(),
            parameters: None,
            request_id: None,
        }
    }

    /// Bytes of memory that it takes.
    pub fn held_bytes(&self) -> usize {
        self.text.len() + self.parameters.as_ref().map_or(0, |text| text.len())
    }
}

/// What the batch function returned for one input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// The output string.
    pub text: String,
    /// Tokens used, if the executor reports them.
    pub tokens: Option<u64>,
}

/// Why an admitted request was not answered with an output. The data plane maps each to a status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Its deadline can't be met any more: 429, like a refusal at the door.
    Shed {
        /// When the caller may try again.
        retry_after: Duration,
    },
    /// There is no GPU left to run it, or its second attempt was lost as well: 503.
    Unavailable {
        /// What happened, for the caller.
        why: &'static str,
        /// When the caller may try again.
        retry_after: Duration,
    },
    /// The last GPU went down while it waited: 503.
    NoGpu,
    /// The batch function rejects this very input: 422 with the function's own words.
    Rejected(String),
    /// On a worker, which does not look for the inputs at fault: the batch function raised on the whole batch.
    Raised(String),
    /// The output is larger than this limit in bytes: 500, the function's fault.
    OutputTooLarge(usize),
    /// The server is going away: 503.
    Draining,
    /// A bug of ours: 500.
    Dropped,
}

/// When things happened to a ticket, for its `metadata` and for `stage_seconds`. `Time::ZERO` means not yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// Since when a GPU was free that could have taken it; the part of its wait after this is hold, before it queue.
    pub hold_from: Time,
    /// Bound to a batch.
    pub bound: Time,
    /// Its batch was launched.
    pub launched: Time,
    /// Its batch came back.
    pub finished: Time,
}

/// What the handler finds in its slot.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply {
    /// The output or why there is none.
    pub result: Result<Output, Failure>,
    /// When things happened.
    pub timeline: Timeline,
}

static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Tickets of this process that were dropped unresolved. Anything but 0 is a bug.
pub fn dropped_total() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

/// One admitted request.
#[derive(Debug)]
pub struct Ticket {
    /// What the batch function gets. Shared with the executor that stages it, so that a ticket can be taken away from a
    /// thread that hangs in its executor.
    pub input: Input,
    /// Its class of traffic.
    pub tier: Tier,
    /// When the request had arrived in full.
    pub arrived: Time,
    /// When it must have been answered.
    pub deadline: Time,
    /// How often it was launched.
    pub launches: u8,
    /// When things happened to it.
    pub timeline: Timeline,
    /// The caller's connection, to see whether it is still there.
    pub peer: Peer,
    /// Its place in the order of its lane; see [`crate::queue::WaitingRoom`].
    pub(crate) seat: u64,
    slot: Arc<TicketSlot>,
    resolved: bool,
}

impl Ticket {
    /// A fresh ticket whose handler waits on `slot`.
    pub fn new(
        input: Input,
        tier: Tier,
        arrived: Time,
        deadline: Time,
        slot: Arc<TicketSlot>,
    ) -> Ticket {
        Ticket {
            input,
            tier,
            arrived,
            deadline,
            launches: 0,
            timeline: Timeline::default(),
            peer: Peer::unknown(),
            seat: 0,
            slot,
            resolved: false,
        }
    }

    /// The slot's state.
    pub fn state(&self) -> State {
        self.slot.state()
    }

    /// The slot, for tests and for the deadline's timer.
    pub fn slot(&self) -> &Arc<TicketSlot> {
        &self.slot
    }

    /// Whether the ticket still waits for a batch (the deadline or a hang-up may have resolved it).
    pub fn is_waiting(&self) -> bool {
        self.slot.state().is_waiting()
    }

    /// Binds a waiting ticket; see [`Slot::bind`].
    pub fn bind(&mut self, now: Time) -> Option<State> {
        let from = self.slot.bind()?;
        self.timeline.bound = now;
        Some(from)
    }

    /// Puts a bound ticket back to wait; see [`Slot::unbind`].
    pub fn unbind(&mut self, to: State) -> bool {
        self.slot.unbind(to)
    }

    /// Ends a ticket that was refused at the door: nobody waits on its slot yet, and its handler answers by itself.
    pub fn withdraw(mut self) {
        self.resolved = true;
    }

    /// Ends a ticket that was resolved by somebody else (deadline, hang-up). False if it is still live.
    pub fn forget_if_resolved(&mut self) -> bool {
        self.resolved = self.resolved || !self.slot.state().is_live();
        self.resolved
    }

    /// Expires a ticket whose deadline has passed. Returns the state it was in if this call was what resolved it.
    pub fn expire(&mut self, wakes: &mut Wakes<'_>) -> Option<State> {
        let from = self.slot.expire();
        self.settle(from, wakes)
    }

    /// The caller is gone. Returns the state it was in if this call was what resolved it.
    pub fn leave(&mut self, wakes: &mut Wakes<'_>) -> Option<State> {
        let from = self.slot.leave();
        self.settle(from, wakes)
    }

    /// Answers with an output. `None` if the result came too late for its caller: it is dropped, to be counted.
    pub fn answer(mut self, output: Output, wakes: &mut Wakes<'_>) -> Option<State> {
        let reply = Reply {
            result: Ok(output),
            timeline: self.timeline,
        };
        let from = self.slot.answer(reply, true);
        self.settle(from, wakes)
    }

    /// Answers with a failure. Returns the state it was in, or `None` if it had been resolved already.
    pub fn fail(mut self, failure: Failure, wakes: &mut Wakes<'_>) -> Option<State> {
        self.refuse(failure, wakes)
    }

    /// As [`Ticket::fail`], for a ticket that lies in a queue and is dropped from there next.
    pub fn refuse(&mut self, failure: Failure, wakes: &mut Wakes<'_>) -> Option<State> {
        let reply = Reply {
            result: Err(failure),
            timeline: self.timeline,
        };
        let from = self.slot.answer(reply, false);
        self.settle(from, wakes)
    }

    fn settle(&mut self, won: Option<State>, wakes: &mut Wakes<'_>) -> Option<State> {
        self.resolved = true;
        if won.is_some() {
            wakes.wake(Arc::clone(&self.slot));
        }
        won
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.forget_if_resolved() {
            return;
        }
        let reply = Reply {
            result: Err(Failure::Dropped),
            timeline: self.timeline,
        };
        if self.slot.answer(reply, false).is_some() {
            self.slot.waiter().unpark();
            DROPPED.fetch_add(1, Ordering::Relaxed);
            debug_assert!(std::thread::panicking(), "a ticket was dropped unresolved");
        }
    }
}

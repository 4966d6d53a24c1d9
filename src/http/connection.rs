//! One connection: read a request, answer it, read the next. (The reading is in [`receive`](super::receive).)
//!
//! Straight-line code in a coroutine that never leaves the core which owns its descriptor. It blocks in exactly two
//! places: in [`Wire::wait`] for the socket, and in [`Connection::wait_for`] for its slot. Between two waits it has
//! the core to itself and works in the core's [`Scratch`](super::core::Scratch) buffers; no lock, no borrow of them and no thread-local
//! crosses a wait. What may panic runs under `catch_unwind` and costs its request a 500, not the process.

use std::net::TcpStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::Phase;
use super::answer::{Inferred, Outcome, abandonment_of, compose, rejection_of};
use super::assemble::Assembler;
use super::budget::Share;
use super::core::CoreRef;
use super::ending::Next;
use super::receive::Arrival;
use super::reject::{Rejection, ShedReason, UnavailableReason};
use super::request::{Call, Request, Work};
use super::routes::Route;
use super::wire::Wire;
use crate::clock::{self, Time};
use crate::metrics::{Abandonment, Stage};
use crate::peer::Peer;
use crate::slot::{Resolution, Slot, State, Waiter};
use crate::ticket::{Input, Reply, Ticket, TicketSlot};
use crate::tier::Tier;
use crate::wake::Handler;

/// A connection that is being served.
pub struct Connection {
    pub(super) core: CoreRef,
    pub(super) wire: Wire<TcpStream>,
    pub(super) assembler: Assembler,
    /// When the connection fell silent: accepted, or the last answer written.
    pub(super) quiet_since: Time,
    pub(super) steps_in_a_row: u32,
    /// What it holds of the memory for all requests.
    pub(super) share: Share,
    /// Requests that were turned away because the server drains, for the sake of those behind them.
    pub(super) turned_away: u32,
}

impl Connection {
    /// A connection that was accepted at `now`.
    pub fn new(core: CoreRef, wire: Wire<TcpStream>, now: Time) -> Connection {
        Connection {
            core,
            wire,
            assembler: Assembler::new(),
            quiet_since: now,
            steps_in_a_row: 0,
            share: Share::default(),
            turned_away: 0,
        }
    }

    /// Serves requests until either side has had enough.
    pub fn run(&mut self) {
        while let Some(arrival) = self.next_request() {
            match self.answer(arrival) {
                Next::Request => {}
                Next::Linger => return self.linger(),
                Next::Close | Next::Drop => return,
            }
        }
    }

    /// Turns the connection away at the connection cap.
    pub fn refuse(&mut self) {
        let rejection = Rejection::Unavailable {
            reason: UnavailableReason::Connections,
            retry_after: Duration::from_secs(1),
        };
        let call = Call::unreadable(&self.core.shared.terms, self.core.fresh_id());
        if self.reply(&call, Outcome::Refused(rejection)) != Next::Drop {
            self.linger();
        }
    }

    #[inline(never)]
    fn answer(&mut self, arrival: Arrival) -> Next {
        let Arrival {
            request,
            begun,
            arrived,
        } = arrival;
        let Request { call, work } = request;
        let core = self.core.clone();
        let outcome = match work {
            Ok(work) if !self.holds(&core, work.held_bytes()) => {
                core.recorder().shed(call.tier, ShedReason::Memory);
                Outcome::Refused(Rejection::out_of_memory())
            }
            Ok(Work::Infer(input)) => self.infer(&call, input, begun, arrived),
            Ok(Work::Run(batch)) => self.run_batch(&call, *batch, begun, arrived),
            Ok(Work::Show(Route::Ready)) => self.readiness(),
            Ok(Work::Show(route)) => Outcome::Shown(route),
            Err(rejection) => Outcome::Refused(rejection),
        };
        if let Outcome::Gone = outcome {
            self.core
                .recorder()
                .request_finished(Some(call.tier), 499, clock::now().since(begun));
            return Next::Drop;
        }
        let status = match &outcome {
            Outcome::Refused(rejection) => rejection.status(),
            _ => 200,
        };
        let next = self.reply(&call, outcome);
        // What is pipelined behind it is kept; that it is in already.
        self.share
            .hold_anyway(self.assembler.held_bytes(), &core.shared.budget);
        let tier = call.wants_body().then_some(call.tier);
        self.core
            .recorder()
            .request_finished(tier, status, self.quiet_since.since(begun));
        next
    }

    fn readiness(&self) -> Outcome {
        let shared = &self.core.shared;
        match shared.phase() {
            Phase::Serving if !shared.is_listening() => Outcome::Refused(Rejection::Unavailable {
                reason: UnavailableReason::Connections,
                retry_after: Duration::from_secs(1),
            }),
            Phase::Serving if shared.door.is_ready() => Outcome::Shown(Route::Ready),
            Phase::Serving => Outcome::Refused(Rejection::Unavailable {
                reason: UnavailableReason::NoGpu,
                retry_after: Duration::from_secs(1),
            }),
            _ => Outcome::Refused(Rejection::draining()),
        }
    }

    /// Admits one input, waits for its output.
    fn infer(&mut self, call: &Call, input: Input, begun: Time, arrived: Time) -> Outcome {
        let text = Arc::clone(&input.text);
        let longest = self.core.shared.door.deadline();
        let timeout = call.timeout.map_or(longest, |asked| asked.min(longest));
        let deadline = arrived + timeout;
        let admitted = unless_panicking(|| self.admit(call, input, arrived, timeout));
        let slot = match admitted {
            Some(Ok(slot)) => slot,
            Some(Err(rejection)) => return Outcome::Refused(rejection),
            None => return Outcome::Refused(Rejection::Internal),
        };
        self.core
            .recorder()
            .stage(Stage::Parse, arrived.since(begun));
        match self.wait_for(&slot, call.tier, arrived, deadline) {
            Resolution::Answered(Reply {
                result: Ok(output),
                timeline,
            }) => Outcome::Inferred(Box::new(Inferred {
                input: text,
                output,
                timeline,
                arrived,
            })),
            Resolution::Answered(Reply {
                result: Err(failure),
                ..
            }) => {
                if let Some(reason) = abandonment_of(&failure) {
                    self.core.recorder().abandoned(reason);
                }
                Outcome::Refused(rejection_of(failure, call))
            }
            Resolution::Expired => Outcome::Refused(Rejection::DeadlinePassed),
            Resolution::Gone => {
                self.core.recorder().abandoned(Abandonment::Gone);
                Outcome::Gone
            }
        }
    }

    #[inline(never)]
    fn admit(
        &self,
        call: &Call,
        input: Input,
        arrived: Time,
        timeout: Duration,
    ) -> Result<Arc<TicketSlot>, Rejection> {
        let shared = &self.core.shared;
        let recorder = self.core.recorder();
        if shared.phase() == Phase::Draining {
            recorder.shed(call.tier, ShedReason::Draining);
            return Err(Rejection::draining());
        }
        if let Some(Err(retry_after)) = call.key.as_ref().map(|key| key.admit(arrived)) {
            recorder.shed(call.tier, ShedReason::RateLimit);
            let reason = ShedReason::RateLimit;
            return Err(Rejection::Shed {
                reason,
                tier: call.tier,
                retry_after,
            });
        }
        shared
            .door
            .judge(self.core.index, arrived, call.tier, timeout)?;
        let deadline = arrived + timeout;
        let handler = Handler::new(Arc::clone(self.wire.blocker()), self.core.index);
        let slot = Arc::new(Slot::new(handler));
        let mut ticket = Ticket::new(input, call.tier, arrived, deadline, Arc::clone(&slot));
        ticket.peer = Peer::new(self.wire.descriptor());
        match shared.intake.offer(Box::new(ticket)) {
            Ok(()) => Ok(slot),
            Err(ticket) => {
                ticket.withdraw();
                Err(Rejection::Shed {
                    reason: ShedReason::QueueFull,
                    tier: call.tier,
                    retry_after: shared.door.queue_full(self.core.index, arrived, call.tier),
                })
            }
        }
    }

    /// Blocks until the slot is resolved; resolves it itself when the deadline comes first.
    pub(super) fn wait_for(
        &mut self,
        slot: &TicketSlot,
        tier: Tier,
        now: Time,
        deadline: Time,
    ) -> Resolution<Reply> {
        let mut noticed_here = false;
        if slot.state().is_live() {
            self.steps_in_a_row = 0;
            self.wire.enter_slot(&self.core.timers, now, deadline);
            while slot.state().is_live() {
                slot.waiter().park();
                let now = clock::now();
                if now >= deadline {
                    noticed_here = self.expire(slot, tier);
                } else if slot.state().is_live() {
                    // Woken by news for everybody, or by a token left from an earlier request.
                    self.wire.enter_slot(&self.core.timers, now, deadline);
                }
            }
            self.wire.leave_slot();
        }
        let resolution = slot.wait();
        if matches!(resolution, Resolution::Expired) && !noticed_here {
            // By a GPU thread, when it came to claim or to launch the ticket.
            self.core.recorder().abandoned(Abandonment::Expired);
        }
        resolution
    }

    /// Whether this is what resolved the slot.
    fn expire(&self, slot: &TicketSlot, tier: Tier) -> bool {
        let Some(from) = slot.expire() else {
            return false;
        };
        self.core.shared.intake.backlog().left(from, tier);
        self.core.recorder().abandoned(match from {
            State::Bound => Abandonment::ExpiredRunning,
            _ => Abandonment::Expired,
        });
        true
    }

    /// Writes the answer in one piece and says how the connection goes on.
    #[inline(never)]
    fn reply(&mut self, call: &Call, outcome: Outcome) -> Next {
        let core = self.core.clone();
        if core.shared.phase() != Phase::Serving {
            self.look_behind(&outcome);
        }
        let persistence = self.persistence(call, &outcome);
        let now = clock::now();
        let rest = {
            let mut scratch = core.scratch.lock();
            let composed =
                unless_panicking(|| compose(&mut scratch, &core, call, &outcome, persistence, now));
            if composed.is_none() {
                return Next::Drop;
            }
            match self.wire.try_write(&scratch.out) {
                Ok(written) => scratch.take_rest(written),
                Err(_) => return Next::Drop,
            }
        };
        if !rest.is_empty() && !self.write_rest(&rest, now) {
            return Next::Drop;
        }
        self.quiet_since = clock::now();
        if let Outcome::Inferred(inferred) = &outcome {
            inferred.record(core.recorder(), call.tier, now);
            core.recorder()
                .stage(Stage::Write, self.quiet_since.since(now));
        }
        self.after(call, &outcome, persistence)
    }

    /// The rare case of a socket that does not take an answer at once. False if it never took it.
    #[cold]
    #[inline(never)]
    pub(super) fn write_rest(&mut self, mut rest: &[u8], since: Time) -> bool {
        let held = self.assembler.held_bytes() + rest.len();
        self.share.hold_anyway(held, &self.core.shared.budget);
        let due = since + self.core.shared.timeouts.write;
        let mut now = since;
        while !rest.is_empty() {
            if now >= due {
                self.wire.abandon_output();
                return false;
            }
            self.wait(now, due);
            now = clock::now();
            match self.wire.try_write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(_) => return false,
            }
        }
        true
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.share.release(&self.core.shared.budget);
    }
}

/// Runs `step`, which must not wait; `None` if it panicked. The panic hook has logged it by then.
pub(super) fn unless_panicking<T>(step: impl FnOnce() -> T) -> Option<T> {
    // What the step was changing is thrown away with the connection, and the shared parts hold no state between steps.
    catch_unwind(AssertUnwindSafe(step)).ok()
}

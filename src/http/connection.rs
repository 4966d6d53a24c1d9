//! One connection: read a request, answer it, read the next.
//!
//! Straight-line code in a coroutine that never leaves the core which owns its descriptor. It blocks in exactly two
//! places: in [`Wire::wait`] for the socket, and in [`Connection::wait_for`] for its slot. Between two waits it has
//! the core to itself and works in the core's [`Scratch`] buffers; no lock, no borrow of them and no thread-local
//! crosses a wait. What may panic runs under `catch_unwind` and costs its request a 500, not the process.

use std::net::TcpStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::Phase;
use super::assemble::Assembler;
use super::core::{Core, CoreRef, Scratch};
use super::inference::{InferenceReply, count_tokens};
use super::reject::{Rejection, ShedReason, UnavailableReason};
use super::request::{Call, Request, Work};
use super::respond::{self, Envelope, Persistence};
use super::routes::{OPENAPI, Route};
use super::wire::Wire;
use crate::clock::{self, Time};
use crate::metrics::{Abandonment, Stage};
use crate::peer::Peer;
use crate::slot::{Resolution, Slot, State, Waiter};
use crate::ticket::{Failure, Input, Output, Reply, Ticket, TicketSlot, Timeline};
use crate::tier::Tier;
use crate::wake::Handler;

/// How long an idle connection may stay quiet once the server drains.
const DRAIN_QUIET: Duration = Duration::from_secs(1);

/// How long, and how many bytes, a peer may go on sending after the last answer before the connection is cut.
const LINGER_MAX: Duration = Duration::from_secs(2);
const LINGER_BYTES_MAX: usize = 8 << 20;

/// Requests or pieces of them that a connection may take in without waiting once. A peer that pipelines for ever
/// would otherwise have the core for itself.
const STEPS_IN_A_ROW_MAX: u32 = 256;

/// A connection that is being served.
pub struct Connection {
    core: CoreRef,
    wire: Wire<TcpStream>,
    assembler: Assembler,
    /// When the connection fell silent: accepted, or the last answer written.
    quiet_since: Time,
    steps_in_a_row: u32,
}

/// A request that has arrived in full.
struct Arrival {
    request: Box<Request>,
    /// When its first byte was seen.
    begun: Time,
    /// When its last byte was.
    arrived: Time,
}

/// What became of a request.
enum Outcome {
    Inferred(Box<Inferred>),
    Shown(Route),
    Refused(Rejection),
    /// The caller left first: there is nobody to answer.
    Gone,
}

struct Inferred {
    input: Arc<str>,
    output: Output,
    timeline: Timeline,
    arrived: Time,
}

/// What one look at the socket gave.
enum Receipt {
    Request(Box<Request>),
    Part,
    Nothing,
    Closed,
}

/// How the connection goes on after an answer.
#[derive(PartialEq)]
enum Next {
    Request,
    /// The caller expects the close: nothing of it can be under way.
    Close,
    /// The caller may still be sending.
    Linger,
    /// The connection is broken.
    Drop,
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
        }
    }

    /// Serves requests until either side has had enough.
    pub fn run(mut self) {
        while let Some(arrival) = self.next_request() {
            match self.answer(arrival) {
                Next::Request => {}
                Next::Linger => return self.linger(),
                Next::Close | Next::Drop => return,
            }
        }
    }

    /// Turns the connection away at the connection cap.
    pub fn refuse(mut self) {
        let rejection = Rejection::Unavailable {
            reason: UnavailableReason::Connections,
            retry_after: Duration::from_secs(1),
        };
        let call = Call::unreadable(&self.core.shared.terms, self.core.fresh_id());
        if self.reply(&call, Outcome::Refused(rejection)) != Next::Drop {
            self.linger();
        }
    }

    // --- reading

    /// The next request; `None` when there will be none.
    fn next_request(&mut self) -> Option<Arrival> {
        let mut now = self.quiet_since;
        let mut begun = (!self.assembler.is_idle()).then_some(now);
        let mut body_since = None;
        let mut receipt = self.look_at_pending();
        loop {
            match receipt {
                Receipt::Request(request) => {
                    let begun = begun.unwrap_or(now);
                    return Some(Arrival {
                        request,
                        begun,
                        arrived: now,
                    });
                }
                Receipt::Closed => return None,
                Receipt::Part => {
                    begun.get_or_insert(now);
                    if self.assembler.is_in_body() {
                        body_since.get_or_insert(now);
                    }
                    self.say_continue(now)?;
                }
                Receipt::Nothing => {
                    let (due, patience) = self.patience(begun, body_since);
                    if now >= due {
                        return self.give_up(begun?, now, patience);
                    }
                    self.wait(now, due);
                    now = clock::now();
                }
            }
            receipt = self.receive();
        }
    }

    fn look_at_pending(&mut self) -> Receipt {
        if !self.assembler.has_pending() {
            return Receipt::Nothing;
        }
        self.breathe();
        let core = self.core.clone();
        self.feed(&core, &[])
    }

    /// Takes in what the socket has.
    fn receive(&mut self) -> Receipt {
        self.breathe();
        let core = self.core.clone();
        let mut scratch = core.scratch.lock();
        match self.wire.try_read(&mut scratch.input) {
            Ok(None) => Receipt::Nothing,
            Ok(Some(0)) | Err(_) => Receipt::Closed,
            Ok(Some(bytes)) => self.feed(&core, &scratch.input[..bytes]),
        }
    }

    fn feed(&mut self, core: &Core, fresh: &[u8]) -> Receipt {
        let assembler = &mut self.assembler;
        let fed =
            unless_panicking(|| assembler.feed(fresh, &core.shared.terms, || core.fresh_id()));
        match fed {
            Some(Some(request)) => Receipt::Request(request),
            Some(None) => Receipt::Part,
            None => Receipt::Request(self.unreadable(Rejection::Internal)),
        }
    }

    fn unreadable(&self, rejection: Rejection) -> Box<Request> {
        Box::new(Request {
            call: Call::unreadable(&self.core.shared.terms, self.core.fresh_id()),
            work: Err(rejection),
        })
    }

    /// Until when the connection waits for more bytes, and how long that is in all.
    fn patience(&self, begun: Option<Time>, body_since: Option<Time>) -> (Time, Duration) {
        let timeouts = &self.core.shared.timeouts;
        let (since, patience) = match (begun, body_since) {
            (_, Some(since)) => (since, timeouts.body),
            (Some(since), None) => (since, timeouts.header),
            (None, None) if self.core.shared.phase() == Phase::Draining => {
                (self.quiet_since, DRAIN_QUIET.min(timeouts.idle))
            }
            (None, None) => (self.quiet_since, timeouts.idle),
        };
        (since + patience, patience)
    }

    /// A request stayed incomplete for too long.
    fn give_up(&self, begun: Time, arrived: Time, patience: Duration) -> Option<Arrival> {
        let request = self.unreadable(Rejection::RequestTimeout(patience));
        Some(Arrival {
            request,
            begun,
            arrived,
        })
    }

    /// Sends the interim response, if one is due. `None` if the connection is broken.
    fn say_continue(&mut self, now: Time) -> Option<()> {
        if !self.assembler.take_continue() {
            return Some(());
        }
        let written = self.wire.try_write(respond::CONTINUE).ok()?;
        let rest = &respond::CONTINUE[written..];
        (rest.is_empty() || self.write_rest(rest, now)).then_some(())
    }

    fn wait(&mut self, now: Time, due: Time) {
        self.steps_in_a_row = 0;
        self.wire.wait(&self.core.timers, now, due);
    }

    /// Lets others run after many steps without a wait, at the latest until the core's next tick.
    fn breathe(&mut self) {
        self.steps_in_a_row += 1;
        if self.steps_in_a_row >= STEPS_IN_A_ROW_MAX {
            let now = clock::now();
            self.wait(now, now);
        }
    }

    // --- answering

    fn answer(&mut self, arrival: Arrival) -> Next {
        let Arrival {
            request,
            begun,
            arrived,
        } = arrival;
        let Request { call, work } = *request;
        let outcome = match work {
            Ok(Work::Infer(input)) => self.infer(&call, input, begun, arrived),
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
        let tier = call.wants_body().then_some(call.tier);
        self.core
            .recorder()
            .request_finished(tier, status, self.quiet_since.since(begun));
        next
    }

    fn readiness(&self) -> Outcome {
        let shared = &self.core.shared;
        match shared.phase() {
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
        let deadline = arrived + call.timeout;
        let admitted = unless_panicking(|| self.admit(call, input, arrived, deadline));
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
            }) => Outcome::Refused(rejection_of(failure, call)),
            Resolution::Expired => Outcome::Refused(Rejection::DeadlinePassed),
            Resolution::Gone => Outcome::Gone,
        }
    }

    fn admit(
        &self,
        call: &Call,
        input: Input,
        arrived: Time,
        deadline: Time,
    ) -> Result<Arc<TicketSlot>, Rejection> {
        let shared = &self.core.shared;
        if shared.phase() == Phase::Draining {
            return Err(Rejection::draining());
        }
        shared
            .door
            .judge(self.core.index, arrived, call.tier, call.timeout)?;
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
    fn wait_for(
        &mut self,
        slot: &TicketSlot,
        tier: Tier,
        now: Time,
        deadline: Time,
    ) -> Resolution<Reply> {
        if slot.state().is_live() {
            self.steps_in_a_row = 0;
            self.wire.enter_slot(&self.core.timers, now, deadline);
            while slot.state().is_live() {
                slot.waiter().park();
                let now = clock::now();
                if now >= deadline {
                    self.expire(slot, tier);
                } else if slot.state().is_live() {
                    // Woken by news for everybody, or by a token left from an earlier request.
                    self.wire.enter_slot(&self.core.timers, now, deadline);
                }
            }
            self.wire.leave_slot();
        }
        slot.wait()
    }

    fn expire(&self, slot: &TicketSlot, tier: Tier) {
        if let Some(from) = slot.expire() {
            self.core.shared.intake.backlog().left(from, tier);
            self.core.recorder().abandoned(match from {
                State::Bound => Abandonment::ExpiredRunning,
                _ => Abandonment::Expired,
            });
        }
    }

    // --- writing

    /// Writes the answer in one piece and says how the connection goes on.
    fn reply(&mut self, call: &Call, outcome: Outcome) -> Next {
        let core = self.core.clone();
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
            core.recorder()
                .stage(Stage::Demux, now.since(inferred.timeline.finished));
            core.recorder()
                .stage(Stage::Write, self.quiet_since.since(now));
        }
        self.after(call, &outcome, persistence)
    }

    fn persistence(&self, call: &Call, outcome: &Outcome) -> Persistence {
        let refused_for_good = matches!(outcome, Outcome::Refused(rejection) if rejection.closes());
        if !call.keep_alive || refused_for_good || self.core.shared.phase() != Phase::Serving {
            Persistence::Close
        } else if call.says_keep_alive {
            Persistence::KeepAlive
        } else {
            Persistence::Open
        }
    }

    fn after(&self, call: &Call, outcome: &Outcome, persistence: Persistence) -> Next {
        let asked_for_it = !call.keep_alive && !matches!(outcome, Outcome::Refused(_));
        match persistence {
            Persistence::Open | Persistence::KeepAlive => Next::Request,
            Persistence::Close if asked_for_it && self.assembler.is_idle() => Next::Close,
            Persistence::Close => Next::Linger,
        }
    }

    /// The rare case of a socket that does not take an answer at once. False if it never took it.
    #[cold]
    #[inline(never)]
    fn write_rest(&mut self, mut rest: &[u8], since: Time) -> bool {
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

    /// Closes in a way that the peer gets to read the last answer: a close with unread bytes would reset the
    /// connection, and a reset may overtake the answer.
    #[cold]
    #[inline(never)]
    fn linger(&mut self) {
        self.wire.finish_writing();
        let mut now = clock::now();
        let due = now + LINGER_MAX;
        let mut bytes_left = LINGER_BYTES_MAX;
        while now < due {
            let read = self.wire.try_read(&mut self.core.scratch.lock().input);
            match read {
                Ok(None) => {
                    self.wait(now, due);
                    now = clock::now();
                }
                Ok(Some(bytes)) if bytes > 0 && bytes <= bytes_left => bytes_left -= bytes,
                Ok(Some(_)) | Err(_) => return,
            }
        }
    }
}

/// Runs `step`, which must not wait; `None` if it panicked. The panic hook has logged it by then.
fn unless_panicking<T>(step: impl FnOnce() -> T) -> Option<T> {
    // What the step was changing is thrown away with the connection, and the shared parts hold no state between steps.
    catch_unwind(AssertUnwindSafe(step)).ok()
}

/// Writes the whole response into the core's output buffer.
#[inline(never)]
fn compose(
    scratch: &mut Scratch,
    core: &Core,
    call: &Call,
    outcome: &Outcome,
    persistence: Persistence,
    now: Time,
) {
    let Scratch {
        out, body, date, ..
    } = scratch;
    out.clear();
    body.clear();
    let envelope = Envelope {
        request_id: &call.request_id,
        persistence,
        head_only: call.head_only,
    };
    let date = date.at(now);
    match outcome {
        Outcome::Inferred(inferred) => {
            inferred.write(&call.request_id, now, body);
            respond::write_ok(out, &envelope, date, "application/json", body);
        }
        Outcome::Shown(route) => {
            let (content_type, text) = shown(*route, core);
            respond::write_ok(out, &envelope, date, content_type, text.as_bytes());
        }
        Outcome::Refused(rejection) => {
            if *rejection == Rejection::Internal {
                log::error!("request {} failed by a bug of ours", call.request_id);
            }
            respond::write_rejection(out, &envelope, date, rejection, body);
        }
        Outcome::Gone => {}
    }
}

fn shown(route: Route, core: &Core) -> (&'static str, &str) {
    match route {
        Route::Live => ("application/json", "{\"live\":true}"),
        Route::Ready => ("application/json", "{\"ready\":true}"),
        Route::OpenApi => ("application/json", OPENAPI),
        Route::Welcome | Route::Inference => ("text/plain; charset=utf-8", &core.shared.welcome),
    }
}

impl Inferred {
    fn write(&self, request_id: &str, now: Time, body: &mut Vec<u8>) {
        let count = || count_tokens(&self.input) + count_tokens(&self.output.text);
        let reply = InferenceReply {
            request_id,
            output: &self.output.text,
            latency: now.since(self.arrived),
            queue_wait: self.timeline.launched.since(self.arrived),
            tokens_used: self.output.tokens.unwrap_or_else(count),
        };
        reply.write(body);
    }
}

/// What the caller sees of a failure after admission.
fn rejection_of(failure: Failure, call: &Call) -> Rejection {
    match failure {
        Failure::Shed { retry_after } => Rejection::Shed {
            reason: ShedReason::Infeasible,
            tier: call.tier,
            retry_after,
        },
        Failure::Unavailable { why, retry_after } => Rejection::Unavailable {
            reason: UnavailableReason::GpuFailed(why),
            retry_after,
        },
        Failure::Rejected(detail) => Rejection::InputRejected(detail.into()),
        Failure::OutputTooLarge(limit_bytes) => Rejection::OutputTooLarge { limit_bytes },
        Failure::Draining => Rejection::draining(),
        Failure::Dropped => Rejection::Internal,
    }
}

//! The reading half of a connection: from waiting for the first byte to a whole request.
//!
//! What comes in lands in the core's buffer and goes through the connection's assembler before anybody else runs.
//! One time covers each stretch, however slowly it drips: idle before the first byte, then header, then body. The
//! times are looked at when the connection is woken, so that news for everybody (the server drains) need no message
//! of their own.

use std::time::Duration;

use super::Phase;
use super::connection::{Connection, unless_panicking};
use super::core::Core;
use super::reject::{Rejection, ShedReason};
use super::request::{Call, Request};
use super::respond;
use crate::clock::{self, Time};

/// How long an idle connection may stay quiet once the server drains.
const DRAIN_QUIET: Duration = Duration::from_secs(1);

/// Requests or pieces of them that a connection may take in without waiting once. A peer that pipelines for ever
/// would otherwise have the core for itself.
const STEPS_IN_A_ROW_MAX: u32 = 256;

/// Bytes that are as much work as a small request, so that a turn takes in 1 MiB at most.
const BYTES_PER_STEP: usize = 4 << 10;

fn steps_of(bytes: usize) -> u32 {
    u32::try_from(bytes / BYTES_PER_STEP).unwrap_or(u32::MAX)
}

/// A request that has arrived in full.
pub(super) struct Arrival {
    pub(super) request: Request,
    /// When its first byte was seen.
    pub(super) begun: Time,
    /// When it was there in full, and read.
    pub(super) arrived: Time,
}

/// What one look at the socket gave.
enum Receipt {
    Request(Request),
    Part,
    Nothing,
    Closed,
}

impl Connection {
    /// The next request; `None` when there will be none.
    #[inline(never)]
    pub(super) fn next_request(&mut self) -> Option<Arrival> {
        let mut now = self.quiet_since;
        let mut begun = (!self.assembler.is_idle()).then_some(now);
        let mut body_since = None;
        let mut receipt = self.look_at_pending();
        loop {
            match receipt {
                Receipt::Request(request) => {
                    let begun = begun.unwrap_or(now);
                    // Read anew: what lies between is the reading and parsing.
                    let arrived = clock::now();
                    return Some(Arrival {
                        request,
                        begun,
                        arrived,
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
            // The news of more bytes may have come, and been used up, in a wait for something else: for room to write,
            // or for a breath. Without such news this costs no system call.
            return self.receive();
        }
        self.breathe();
        let core = self.core.clone();
        self.feed(&core, &[])
    }

    /// Takes in what the socket has.
    #[inline(never)]
    fn receive(&mut self) -> Receipt {
        self.breathe();
        let core = self.core.clone();
        let mut scratch = core.scratch.lock();
        match self.wire.try_read(&mut scratch.input) {
            Ok(None) => Receipt::Nothing,
            Ok(Some(0)) | Err(_) => Receipt::Closed,
            Ok(Some(bytes)) => {
                self.steps_in_a_row += steps_of(bytes);
                self.feed(&core, &scratch.input[..bytes])
            }
        }
    }

    fn feed(&mut self, core: &Core, fresh: &[u8]) -> Receipt {
        let assembler = &mut self.assembler;
        let fed =
            unless_panicking(|| assembler.feed(fresh, &core.shared.terms, || core.fresh_id()));
        match fed {
            Some(Some(request)) => Receipt::Request(request),
            Some(None) if self.holds(core, 0) => Receipt::Part,
            Some(None) => Receipt::Request(self.out_of_memory()),
            None => Receipt::Request(self.unreadable(Rejection::Internal)),
        }
    }

    fn unreadable(&self, rejection: Rejection) -> Request {
        let call = Call::unreadable(&self.core.shared.terms, self.core.fresh_id());
        Request {
            call: Box::new(call),
            work: Err(rejection),
        }
    }

    /// Whether the budget has room for what the connection keeps, and `more` bytes.
    pub(super) fn holds(&mut self, core: &Core, more: usize) -> bool {
        let bytes = self.assembler.held_bytes() + more;
        self.share.hold(bytes, &core.shared.budget)
    }

    /// The request that is under way is refused for lack of memory.
    #[cold]
    #[inline(never)]
    fn out_of_memory(&mut self) -> Request {
        let rejection = Rejection::out_of_memory();
        match self.assembler.give_up() {
            Some(call) => {
                self.core.recorder().shed(call.tier, ShedReason::Memory);
                Request {
                    call,
                    work: Err(rejection),
                }
            }
            None => self.unreadable(rejection),
        }
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

    pub(super) fn wait(&mut self, now: Time, due: Time) {
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
}

//! From the bytes of a connection to requests. Pure: bytes in, [`Request`]s out, no socket and no clock.
//!
//! The connection feeds whatever it receives; the assembler keeps what does not make a request yet and gives a
//! request as soon as there is one. In the usual case, a whole request in one piece, it keeps nothing: the request is
//! read straight from the receive buffer, which belongs to the core, and an idle connection owns no buffer at all.
//!
//! Bodies that nobody will read (of a request that is refused anyway) are counted and dropped; a body that the server
//! will not read to its end is refused when its head arrives.

use std::sync::Arc;

use super::Terms;
use super::chunked::Decoder;
use super::parse::{Framing, parse_head};
use super::reject::Rejection;
use super::request::{Call, Request, Work};

/// First allocation for a body whose length the caller announced; a lie costs no more than this.
const BODY_BYTES_AT_ONCE: usize = 64 << 10;

/// Makes requests out of bytes. One per connection.
#[derive(Debug, Default)]
pub struct Assembler {
    /// Bytes of a head that is not complete, or of whatever was pipelined behind the last request.
    pending: Vec<u8>,
    /// The request whose body is on its way.
    body: Option<Box<Body>>,
    /// The caller waits for `100 Continue`.
    continues: bool,
}

#[derive(Debug)]
struct Body {
    call: Box<Call>,
    end: BodyEnd,
    bytes: Vec<u8>,
}

#[derive(Debug)]
enum BodyEnd {
    /// So many bytes are still to come.
    Length(usize),
    Chunked(Decoder),
}

/// What a piece of input led to.
enum Progress {
    /// A request, and how many bytes of the piece belong to it.
    Request(Request, usize),
    /// Everything was taken in; more is needed.
    More,
    /// A head is not complete: the piece is to be kept.
    Keep,
}

impl Assembler {
    /// An assembler at the start of a connection.
    pub fn new() -> Assembler {
        Assembler::default()
    }

    /// Whether the connection is between two requests, with nothing received of the next one.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.body.is_none()
    }

    /// Whether a head is complete and its body is awaited.
    pub fn is_in_body(&self) -> bool {
        self.body.is_some()
    }

    /// Whether bytes lie here that have not been looked at: pipelined behind the last request.
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Bytes that it keeps.
    pub fn held_bytes(&self) -> usize {
        let body = self.body.as_ref().map_or(0, |body| body.bytes.len());
        self.pending.len() + body
    }

    /// Gives up whatever is incomplete; whose it was, if its head was complete. What follows cannot be read any more.
    pub fn give_up(&mut self) -> Option<Box<Call>> {
        self.pending = Vec::new();
        self.body.take().map(|body| body.call)
    }

    /// Whether `100 Continue` is due; says so once.
    pub fn take_continue(&mut self) -> bool {
        std::mem::take(&mut self.continues)
    }

    /// Keeps `fresh` bytes without looking at them. Not to be called within a body.
    pub fn keep(&mut self, fresh: &[u8]) {
        debug_assert!(self.body.is_none(), "these bytes belong to the body");
        self.pending.extend_from_slice(fresh);
    }

    /// Takes in `fresh` bytes (none, to look at what is pending) and gives the next request if it is complete.
    /// `fresh_id` makes a request id.
    pub fn feed(
        &mut self,
        fresh: &[u8],
        terms: &Terms,
        fresh_id: impl FnOnce() -> Arc<str>,
    ) -> Option<Request> {
        if self.pending.is_empty() {
            return match self.advance(fresh, terms, fresh_id) {
                Progress::Request(request, taken) => {
                    self.pending.extend_from_slice(&fresh[taken..]);
                    Some(request)
                }
                Progress::More => None,
                Progress::Keep => {
                    self.pending.extend_from_slice(fresh);
                    None
                }
            };
        }
        self.pending.extend_from_slice(fresh);
        let held = std::mem::take(&mut self.pending);
        match self.advance(&held, terms, fresh_id) {
            Progress::Request(request, taken) => {
                self.pending = held;
                self.pending.drain(..taken);
                self.let_go();
                Some(request)
            }
            Progress::More => None,
            Progress::Keep => {
                self.pending = held;
                None
            }
        }
    }

    /// An idle connection owns no buffer.
    fn let_go(&mut self) {
        if self.pending.is_empty() {
            self.pending = Vec::new();
        }
    }

    fn advance(
        &mut self,
        input: &[u8],
        terms: &Terms,
        fresh_id: impl FnOnce() -> Arc<str>,
    ) -> Progress {
        if self.body.is_some() {
            return self.continue_body(input, terms);
        }
        match read_head(input, terms, fresh_id) {
            Start::Incomplete => Progress::Keep,
            Start::Complete(call, expected) => self.begin_body(call, &expected, input, terms),
            // What follows cannot be read as a request; the connection closes and throws it away.
            Start::Unreadable(call, rejection) => complete(call, Err(rejection), input.len()),
        }
    }

    /// The head is complete: takes the body from what follows it, if all of it is there.
    #[inline(never)]
    fn begin_body(
        &mut self,
        mut call: Box<Call>,
        expected: &Expected,
        input: &[u8],
        terms: &Terms,
    ) -> Progress {
        let rest = &input[expected.head_bytes..];
        let end = match expected.framing {
            Framing::Empty => BodyEnd::Length(0),
            Framing::Length(length) => match usize::try_from(length) {
                Ok(length) if length <= terms.limits.body_bytes_max => BodyEnd::Length(length),
                _ => return complete(call, Err(terms.limits.body_too_large()), input.len()),
            },
            Framing::Chunked => BodyEnd::Chunked(Decoder::new(terms.limits.body_bytes_max)),
        };
        if let BodyEnd::Length(length) = end
            && let Some(body) = rest.get(..length)
        {
            let work = call.work(body, terms);
            return complete(call, work, expected.head_bytes + length);
        }
        if expected.waits_for_continue {
            if let Err(refused) = call.route.clone() {
                // Without the 100 the caller may or may not send its body: only a close is unambiguous.
                call.keep_alive = false;
                return complete(call, Err(refused), input.len());
            }
            self.continues = rest.is_empty();
        }
        self.body = Some(Box::new(Body::new(call, end)));
        match self.continue_body(rest, terms) {
            Progress::Request(request, taken) => {
                Progress::Request(request, expected.head_bytes + taken)
            }
            progress => progress,
        }
    }

    #[inline(never)]
    fn continue_body(&mut self, input: &[u8], terms: &Terms) -> Progress {
        let Some(mut body) = self.body.take() else {
            return Progress::More;
        };
        match body.take(input) {
            Ok((taken, true)) => {
                let Body { call, bytes, .. } = *body;
                let work = call.work(&bytes, terms);
                complete(call, work, taken)
            }
            Ok((_, false)) => {
                self.body = Some(body);
                Progress::More
            }
            Err(rejection) => complete(body.call, Err(rejection), input.len()),
        }
    }
}

/// What the start of the input is.
enum Start {
    /// Part of a head, perhaps.
    Incomplete,
    /// A head, and what it says about the body.
    Complete(Box<Call>, Expected),
    /// Nothing that a request could begin with.
    Unreadable(Box<Call>, Rejection),
}

/// What a head says about the body that follows it.
struct Expected {
    head_bytes: usize,
    framing: Framing,
    waits_for_continue: bool,
}

// Not inlined, so that the parser's stack is given back before the body is read.
#[inline(never)]
fn read_head(input: &[u8], terms: &Terms, fresh_id: impl FnOnce() -> Arc<str>) -> Start {
    match parse_head(input, &terms.limits) {
        Ok(None) => Start::Incomplete,
        Ok(Some(head)) => {
            let expected = Expected {
                head_bytes: head.bytes,
                framing: head.framing,
                waits_for_continue: head.expects_continue,
            };
            Start::Complete(Box::new(Call::new(&head, terms, fresh_id)), expected)
        }
        Err(rejection) => {
            Start::Unreadable(Box::new(Call::unreadable(terms, fresh_id())), rejection)
        }
    }
}

fn complete(call: Box<Call>, work: Result<Work, Rejection>, taken: usize) -> Progress {
    Progress::Request(Request { call, work }, taken)
}

impl Body {
    fn new(call: Box<Call>, end: BodyEnd) -> Body {
        let announced = match &end {
            BodyEnd::Length(length) if call.wants_body() => *length,
            _ => 0,
        };
        Body {
            call,
            end,
            bytes: Vec::with_capacity(announced.min(BODY_BYTES_AT_ONCE)),
        }
    }

    /// Takes bytes of the body off `input`; returns how many and whether the body is complete.
    fn take(&mut self, input: &[u8]) -> Result<(usize, bool), Rejection> {
        let taken = match &mut self.end {
            BodyEnd::Length(remaining) => {
                let taken = input.len().min(*remaining);
                self.bytes.extend_from_slice(&input[..taken]);
                *remaining -= taken;
                (taken, *remaining == 0)
            }
            BodyEnd::Chunked(decoder) => {
                let taken = decoder.decode(input, &mut self.bytes)?;
                (taken, decoder.is_done())
            }
        };
        if !self.call.wants_body() {
            self.bytes.clear();
        }
        Ok(taken)
    }
}

#[cfg(test)]
#[path = "assemble_tests.rs"]
mod tests;

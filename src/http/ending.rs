//! How a connection goes on after an answer: with its next request, or to its end in a way that loses no answer.

use std::time::Duration;

use super::Phase;
use super::answer::Outcome;
use super::connection::Connection;
use super::reject::{Rejection, UnavailableReason};
use super::request::Call;
use super::respond::Persistence;
use crate::clock;

/// How long, and how many bytes, a peer may go on sending after the last answer before the connection is cut.
const LINGER_MAX: Duration = Duration::from_secs(2);
const LINGER_BYTES_MAX: usize = 8 << 20;

/// So many requests in a row are told one by one that the server drains; the rest learn it from the close. Whoever
/// pipelines without end would else keep the server from ending.
const TURNED_AWAY_MAX: u32 = 1_000;

/// How the connection goes on after an answer.
#[derive(PartialEq)]
pub(super) enum Next {
    Request,
    /// The caller expects the close: nothing of it can be under way.
    Close,
    /// The caller may still be sending.
    Linger,
    /// The connection is broken.
    Drop,
}

impl Connection {
    /// Takes in what was pipelined behind the request that is about to be answered, while the server leaves: the answer
    /// would else say that the connection closes, and those behind it would get none.
    #[cold]
    #[inline(never)]
    pub(super) fn look_behind(&mut self, outcome: &Outcome) {
        if is_drained(outcome) {
            self.turned_away += 1;
        } else if matches!(outcome, Outcome::Refused(rejection) if rejection.closes()) {
            return;
        }
        if self.assembler.has_pending() || self.turned_away >= TURNED_AWAY_MAX {
            return;
        }
        let core = self.core.clone();
        let mut scratch = core.scratch.lock();
        self.wire.look_again();
        // A broken or ended connection shows at the next read as well.
        if let Ok(Some(bytes)) = self.wire.try_read(&mut scratch.input) {
            self.assembler.keep(&scratch.input[..bytes]);
        }
    }

    pub(super) fn persistence(&self, call: &Call, outcome: &Outcome) -> Persistence {
        // What was pipelined behind this request has come while the server took requests, and is answered before it leaves.
        let is_last = !self.assembler.has_pending() || self.turned_away >= TURNED_AWAY_MAX;
        let refused_for_good = match outcome {
            Outcome::Refused(rejection) if rejection.closes() => is_last || !is_drained(outcome),
            _ => false,
        };
        let leaving = self.core.shared.phase() != Phase::Serving && is_last;
        if !call.keep_alive || refused_for_good || leaving {
            Persistence::Close
        } else if call.says_keep_alive {
            Persistence::KeepAlive
        } else {
            Persistence::Open
        }
    }

    pub(super) fn after(&self, call: &Call, outcome: &Outcome, persistence: Persistence) -> Next {
        let asked_for_it = !call.keep_alive && !matches!(outcome, Outcome::Refused(_));
        match persistence {
            Persistence::Open | Persistence::KeepAlive => Next::Request,
            Persistence::Close if asked_for_it && self.assembler.is_idle() => Next::Close,
            Persistence::Close => Next::Linger,
        }
    }

    /// Closes in a way that the peer gets to read the last answer: a close with unread bytes would reset the
    /// connection, and a reset may overtake the answer.
    #[cold]
    #[inline(never)]
    pub(super) fn linger(&mut self) {
        self.wire.finish_writing();
        self.assembler.give_up();
        self.share.release(&self.core.shared.budget);
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

/// Whether a request was turned away because the server drains.
fn is_drained(outcome: &Outcome) -> bool {
    matches!(
        outcome,
        Outcome::Refused(Rejection::Unavailable {
            reason: UnavailableReason::Draining,
            ..
        })
    )
}

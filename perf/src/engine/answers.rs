//! What the sockets of a generator thread say: connected, writable, an answer, bytes that nobody asked for, the end.

use rustix::event::epoll;
use rustix::io::Errno;

use super::connection::{InFlight, State};
use super::worker::Worker;
use crate::clock;
use crate::http::{self, Malformed};
use crate::record::Outcome;
use crate::traffic::Checked;

/// Flags that say that the peer will send no more.
const END_FLAGS: epoll::EventFlags = epoll::EventFlags::RDHUP
    .union(epoll::EventFlags::HUP)
    .union(epoll::EventFlags::ERR);

impl Worker<'_> {
    pub(super) fn event(&mut self, id: u32, flags: epoll::EventFlags) {
        let connection = &mut self.connections[id as usize];
        match connection.state {
            State::Closed => {}
            State::Connecting => {
                if let Err(error) = connection.finish_connect() {
                    return self.connect_failed(id, error);
                }
                self.write(id);
            }
            State::Open => {
                if flags.contains(epoll::EventFlags::OUT) && connection.has_unsent() {
                    self.write(id);
                }
                let ends = flags.intersects(END_FLAGS);
                if ends || flags.contains(epoll::EventFlags::IN) {
                    self.read(id, ends);
                }
            }
        }
    }

    /// Reads what is there. A short read means that there is no more, which saves the read that would say so, unless the
    /// connection `ends`: that is told only once.
    pub(super) fn read(&mut self, id: u32, ends: bool) {
        let mut buffer = std::mem::take(&mut self.read_buffer);
        loop {
            let result = self.connections[id as usize].read(&mut buffer);
            let now = clock::now();
            match result {
                Ok(0) => {
                    self.closed_by_server(id, now);
                    break;
                }
                Ok(count) => {
                    self.received(id, &buffer[..count], now);
                    let drained = count < buffer.len() && !ends;
                    if drained || self.connections[id as usize].state == State::Closed {
                        break;
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(_) => {
                    self.closed_by_server(id, now);
                    break;
                }
            }
        }
        self.read_buffer = buffer;
    }

    fn received(&mut self, id: u32, bytes: &[u8], now: u64) {
        let connection = &mut self.connections[id as usize];
        let Some(request) = connection.request else {
            return self.unasked(id, bytes);
        };
        if connection.inbox.is_empty() {
            if !self.examine(id, &request, bytes, now, false) {
                self.connections[id as usize].inbox.extend_from_slice(bytes);
            }
        } else {
            connection.inbox.extend_from_slice(bytes);
            let inbox = std::mem::take(&mut connection.inbox);
            if !self.examine(id, &request, &inbox, now, false) {
                self.connections[id as usize].inbox = inbox;
            }
        }
    }

    /// Looks whether `bytes` are a whole answer, and ends the request if so. `closed` says that nothing will follow.
    fn examine(
        &mut self,
        id: u32,
        request: &InFlight,
        bytes: &[u8],
        now: u64,
        closed: bool,
    ) -> bool {
        let answer = match http::read(bytes, closed) {
            Ok(Some(answer)) => answer,
            Ok(None) => return false,
            Err(error) => {
                self.malformed(id, &error, now);
                return true;
            }
        };
        let outcome = self.judge(request.number, &answer);
        let surplus = bytes.len() - answer.length;
        if surplus > 0 {
            self.recorder.double(|| {
                format!(
                    "request {}: {surplus} bytes more than its answer",
                    request.number
                )
            });
        }
        let connection = &mut self.connections[id as usize];
        if surplus > 0 || !answer.keep_alive || connection.has_unsent() {
            connection.close();
        }
        self.end(id, outcome, now);
        true
    }

    /// A 2xx must be the request's own answer.
    fn judge(&mut self, number: u64, answer: &http::Answer<'_>) -> Outcome {
        let outcome = Outcome::Status(answer.status);
        let job = self.job;
        if !outcome.is_good() {
            let describe = || excerpt(&answer.body);
            self.recorder.refused(answer.status, describe);
            return outcome;
        }
        let (body, place) = (&answer.body, job.expect.place());
        let checked = job.expect.check(body, &job.traffic, number, &mut self.text);
        match checked {
            Checked::Right => return outcome,
            Checked::NoOutput => {
                self.recorder.mismatches.without_output += 1;
                self.recorder.mismatch(|| {
                    format!(
                        "request {number}: the answer has no {place}; see --expect: {:?}",
                        excerpt(body)
                    )
                });
            }
            Checked::Different => {
                job.traffic.input(number, &mut self.text);
                let input = excerpt(self.text.as_bytes());
                self.recorder.mismatch(|| {
                    format!(
                        "request {number}: {input:?} was answered with {:?}",
                        excerpt(body)
                    )
                });
            }
        }
        Outcome::Wrong
    }

    fn malformed(&mut self, id: u32, error: &Malformed, now: u64) {
        self.recorder.note(|| format!("malformed answer: {error}"));
        self.connections[id as usize].close();
        self.end(id, Outcome::Malformed, now);
    }

    /// Bytes on a connection on which no answer is due. A 408 is how some servers say that they close an idle connection.
    fn unasked(&mut self, id: u32, bytes: &[u8]) {
        let notice = matches!(http::read(bytes, true), Ok(Some(answer)) if answer.status == 408);
        if !notice {
            self.recorder.double(|| {
                format!(
                    "{} bytes on an idle connection: {:?}",
                    bytes.len(),
                    excerpt(bytes)
                )
            });
        }
        self.connections[id as usize].close();
    }

    fn closed_by_server(&mut self, id: u32, now: u64) {
        let connection = &mut self.connections[id as usize];
        let inbox = std::mem::take(&mut connection.inbox);
        let request = connection.request;
        connection.close();
        if let Some(request) = request
            && !self.examine(id, &request, &inbox, now, true)
        {
            self.end(id, Outcome::Closed, now);
        }
    }

    pub(super) fn connect_failed(&mut self, id: u32, error: Errno) {
        self.recorder.note(|| format!("cannot connect: {error}"));
        self.connections[id as usize].close();
        self.end(id, Outcome::Connect, clock::now());
    }
}

/// The start of a text, for a message.
fn excerpt(bytes: &[u8]) -> String {
    const EXCERPT_BYTES: usize = 300;
    String::from_utf8_lossy(&bytes[..bytes.len().min(EXCERPT_BYTES)]).into_owned()
}

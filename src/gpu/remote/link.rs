//! The connection to a worker: one request at a time, its response, and no wait beyond the time given.
//!
//! The socket does not block; waiting is one `poll` for as long as there is time, exact to the microsecond (a socket's own
//! time-outs are counted in ticks of the kernel, up to 10 ms long). The connection is kept from one exchange to the next.
//! Bytes that nobody asked for, a repeated response for one, end it, so that they can't be taken for the next response.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::response::{Reader, Response};
use crate::clock::{self, Time};

/// Longest time for one attempt to connect.
const CONNECT_MAX: Duration = Duration::from_secs(1);

/// The shortest: less would be no attempt.
const CONNECT_MIN: Duration = Duration::from_millis(20);

/// Read at a time.
const READ_BYTES: usize = 64 << 10;

/// A request on its way, and the response to it.
#[derive(Debug)]
pub struct Exchange {
    request: Vec<u8>,
    sent: usize,
    reader: Reader,
    body_bytes_max: usize,
}

impl Exchange {
    /// An exchange that has not begun. The response's body is at most `body_bytes_max` long.
    pub fn new(request: Vec<u8>, body_bytes_max: usize) -> Exchange {
        Exchange {
            request,
            sent: 0,
            reader: Reader::new(body_bytes_max),
            body_bytes_max,
        }
    }

    /// Back to the beginning, for another connection.
    pub fn rewind(&mut self) {
        self.sent = 0;
        self.reader = Reader::new(self.body_bytes_max);
    }

    /// Whether the whole request is on its way.
    pub fn is_sent(&self) -> bool {
        self.sent == self.request.len()
    }
}

/// How an exchange stands.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Under way.
    Pending,
    /// The response is here.
    Answered(Response),
    /// The connection could not be made, or broke. What the worker did is not known.
    Broken(String),
    /// The worker sent something that is no response to this.
    Nonsense(String),
}

/// A connection to one of a worker's addresses, or the lack of one.
#[derive(Debug, Default)]
pub struct Link {
    addresses: Vec<SocketAddr>,
    stream: Option<TcpStream>,
    /// What is read at a time.
    buffer: Vec<u8>,
}

impl Link {
    /// Closes the connection and takes the worker to be at these addresses.
    pub fn point_at(&mut self, addresses: Vec<SocketAddr>) {
        self.close();
        self.addresses = addresses;
    }

    /// Closes the connection.
    pub fn close(&mut self) {
        self.stream = None;
    }

    /// Drops an idle connection that the worker has closed, or on which it said something unasked for.
    pub fn tidy(&mut self) {
        let news = self.stream.as_ref().is_some_and(|stream| {
            !matches!(stream.peek(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
        });
        if news {
            self.close();
        }
    }

    /// Moves `exchange` on until the response is here, or until `until` (which may have passed: then it only does what can
    /// be done at once). After anything but [`Step::Pending`] the exchange is over; to try again, rewind it.
    pub fn drive(&mut self, exchange: &mut Exchange, until: Time) -> Step {
        loop {
            match self.advance(exchange, until) {
                Ok(None) => {}
                Ok(Some(response)) => {
                    if response.closes || !exchange.is_sent() {
                        self.close();
                    }
                    return Step::Answered(response);
                }
                Err(step) => {
                    self.close();
                    return step;
                }
            }
            let now = clock::now();
            if now >= until {
                return Step::Pending;
            }
            self.wait(exchange, until.since(now));
        }
    }

    /// Moves `exchange` on until its request is sent, or until `until`.
    pub fn send(&mut self, exchange: &mut Exchange, until: Time) -> Result<(), Step> {
        loop {
            let sent = self.connect(until).and_then(|()| self.write(exchange));
            if let Err(step) = sent {
                self.close();
                return Err(step);
            }
            let now = clock::now();
            if exchange.is_sent() || now >= until {
                return Ok(());
            }
            self.wait(exchange, until.since(now));
        }
    }

    /// What can be done without waiting, but for the connection.
    fn advance(&mut self, exchange: &mut Exchange, until: Time) -> Result<Option<Response>, Step> {
        self.connect(until)?;
        // A worker may refuse a request before it has read all of it, and close: then what it said counts.
        let written = self.write(exchange);
        match self.read(exchange) {
            Ok(None) => written.map(|()| None),
            read => read,
        }
    }

    /// Connects, if need be.
    pub fn connect(&mut self, until: Time) -> Result<(), Step> {
        if self.stream.is_some() {
            return Ok(());
        }
        let mut problem = "it has no address".to_owned();
        for address in &self.addresses {
            let left = until.since(clock::now()).clamp(CONNECT_MIN, CONNECT_MAX);
            match connect(address, left) {
                Ok(stream) => {
                    self.stream = Some(stream);
                    return Ok(());
                }
                Err(error) => problem = format!("can't connect to {address}: {error}"),
            }
        }
        // The next attempt begins with another address.
        if self.addresses.len() > 1 {
            self.addresses.rotate_left(1);
        }
        Err(Step::Broken(problem))
    }

    fn write(&mut self, exchange: &mut Exchange) -> Result<(), Step> {
        let Some(stream) = &mut self.stream else {
            return Ok(());
        };
        while !exchange.is_sent() {
            match stream.write(&exchange.request[exchange.sent..]) {
                Ok(bytes) => exchange.sent += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Step::Broken(format!("the connection broke: {error}"))),
            }
        }
        Ok(())
    }

    fn read(&mut self, exchange: &mut Exchange) -> Result<Option<Response>, Step> {
        let Some(stream) = &mut self.stream else {
            return Ok(None);
        };
        self.buffer.resize(READ_BYTES, 0);
        loop {
            match stream.read(&mut self.buffer) {
                Ok(0) => {
                    return exchange
                        .reader
                        .end()
                        .map(Some)
                        .ok_or_else(|| broken(exchange));
                }
                Ok(bytes) => {
                    let response = exchange
                        .reader
                        .feed(&self.buffer[..bytes])
                        .map_err(Step::Nonsense)?;
                    if response.is_some() {
                        return Ok(response);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Step::Broken(format!("the connection broke: {error}"))),
            }
        }
    }

    /// Waits until the socket has news, at most `span`.
    fn wait(&self, exchange: &Exchange, span: Duration) {
        let Some(stream) = &self.stream else { return };
        let flags = if exchange.is_sent() {
            PollFlags::IN
        } else {
            PollFlags::IN | PollFlags::OUT
        };
        let timeout = Timespec::try_from(span).ok();
        // An interrupted or failed poll is a short wait: the caller looks, and finds out what is wrong.
        let _ = poll(&mut [PollFd::new(stream, flags)], timeout.as_ref());
    }
}

fn connect(address: &SocketAddr, timeout: Duration) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(address, timeout)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

fn broken(exchange: &Exchange) -> Step {
    let place = if exchange.reader.is_fresh() {
        "before"
    } else {
        "in the middle of"
    };
    Step::Broken(format!("it closed the connection {place} its answer"))
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;

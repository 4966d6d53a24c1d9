//! One connection: a socket, what is still to be written, what has been read, and the request that it carries.
//!
//! Only socket calls and buffers live here; what an event means for the run is decided in [`super::worker`].

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

/// A buffer that has grown beyond this is given back after its answer, so that one big answer does not stay for the run.
const BUFFER_KEPT_MAX: usize = 64 * 1024;

/// Where a connection stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    /// No socket.
    #[default]
    Closed,
    /// A socket that is not connected yet.
    Connecting,
    /// Ready for a request, or carrying one.
    Open,
}

/// A request on its way. Times are readings of the clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    pub number: u64,
    pub tier: usize,
    pub due: u64,
    pub written: Option<u64>,
    pub hangup_after_ns: Option<u64>,
    /// When it began to wait for a free connection, if it had to.
    pub waiting_since: Option<u64>,
}

/// What a write came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    All,
    /// The socket's buffer is full; the rest goes when it is writable.
    Part,
    Broken,
}

#[derive(Debug, Default)]
pub(super) struct Connection {
    socket: Option<OwnedFd>,
    pub state: State,
    pub request: Option<InFlight>,
    /// Grows with each request, so that a timer can tell whether it still concerns the request it was set for.
    pub generation: u32,
    /// Grows with each socket, so that an event can tell whether it is about this one.
    pub epoch: u32,
    pub outbox: Vec<u8>,
    outbox_sent: usize,
    pub inbox: Vec<u8>,
}

impl Connection {
    /// Opens a socket towards `target` and has `poller` report everything about it with the token `id` in
    /// its low and the epoch in its high half, edge-triggered.
    pub fn open(&mut self, poller: &OwnedFd, id: u32, target: SocketAddr) -> Result<(), Errno> {
        let family = if target.is_ipv4() {
            AddressFamily::INET
        } else {
            AddressFamily::INET6
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        let state = match net::connect(&socket, &target) {
            Ok(()) => State::Open,
            Err(Errno::INPROGRESS) => State::Connecting,
            Err(error) => return Err(error),
        };
        let interest = epoll::EventFlags::IN
            | epoll::EventFlags::OUT
            | epoll::EventFlags::RDHUP
            | epoll::EventFlags::ET;
        self.epoch = self.epoch.wrapping_add(1);
        let token = u64::from(self.epoch) << 32 | u64::from(id);
        epoll::add(poller, &socket, epoll::EventData::new_u64(token), interest)?;
        self.state = state;
        self.socket = Some(socket);
        Ok(())
    }

    /// What became of a connect that was in progress.
    pub fn finish_connect(&mut self) -> Result<(), Errno> {
        let socket = self.socket.as_ref().ok_or(Errno::NOTCONN)?;
        sockopt::socket_error(socket)??;
        self.state = State::Open;
        Ok(())
    }

    /// Closes the socket and forgets what was read and not yet written.
    pub fn close(&mut self) {
        // Closing takes it out of the poller: nobody else holds a duplicate.
        self.socket = None;
        self.state = State::Closed;
        self.clear();
    }

    /// Forgets what was read and written; buffers that grew large are given back.
    pub fn clear(&mut self) {
        self.outbox_sent = 0;
        for buffer in [&mut self.outbox, &mut self.inbox] {
            buffer.clear();
            buffer.shrink_to(BUFFER_KEPT_MAX);
        }
    }

    /// True if part of the request has not been written.
    pub fn has_unsent(&self) -> bool {
        self.outbox_sent < self.outbox.len()
    }

    /// Writes what is left of the outbox.
    pub fn flush(&mut self) -> Written {
        let Some(socket) = &self.socket else {
            return Written::Broken;
        };
        while self.outbox_sent < self.outbox.len() {
            match net::send(
                socket,
                &self.outbox[self.outbox_sent..],
                net::SendFlags::NOSIGNAL,
            ) {
                Ok(count) => self.outbox_sent += count,
                Err(Errno::AGAIN) => return Written::Part,
                Err(Errno::INTR) => {}
                Err(_) => return Written::Broken,
            }
        }
        Written::All
    }

    /// Whether the server has closed an idle connection, though no event has told yet. Clients that keep connections look
    /// before they use one again.
    pub fn was_left(&self) -> bool {
        let Some(socket) = &self.socket else {
            return true;
        };
        let flags = net::RecvFlags::PEEK | net::RecvFlags::DONTWAIT;
        match net::recv(socket, &mut [0_u8], flags) {
            Ok((_, length)) => length == 0,
            Err(Errno::AGAIN | Errno::INTR) => false,
            Err(_) => true,
        }
    }

    /// Reads once into `buffer`; `Ok(0)` is the end, [`Errno::AGAIN`] nothing more for now.
    pub fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        let Some(socket) = &self.socket else {
            return Ok(0);
        };
        loop {
            match rustix::io::read(socket, &mut *buffer) {
                Err(Errno::INTR) => {}
                other => return other,
            }
        }
    }
}

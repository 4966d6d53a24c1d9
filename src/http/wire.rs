//! A socket as a coroutine sees it: tries that never block, and one wait that ends for whatever comes first.
//!
//! `may`'s own `read` and `write` give each call a time-out of its own and hold the caller's buffer while they wait.
//! A [`Wire`] separates the two: [`try_read`](Wire::try_read) and [`try_write`](Wire::try_write) are plain
//! non-blocking calls on a buffer that belongs to the core, and [`wait`](Wire::wait) blocks without any buffer until
//! the socket has news or the watch is due. So an idle connection owns no buffer, and one time covers a whole head or
//! body however slowly it drips.
//!
//! The socket is registered edge-triggered. A read that fills less than its buffer has emptied the socket, so the
//! next read is put off until the next event: one system call less per request.
//!
//! Everything here happens on the core that owns the descriptor (descriptor modulo number of cores), the timers'
//! wake-ups included.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use may::io::{CoIo, WaitIo, WaitIoWaker};
use may::sync::Blocker;
use socket2::SockRef;

use super::timer::{Timers, Wake, Watch};
use crate::clock::Time;

/// `EPOLLERR | EPOLLHUP | EPOLLRDHUP`: the peer has sent its last byte, so that even a short read is not the end.
const HUNG_UP: usize = 0x8 | 0x10 | 0x2000;

/// A socket that is non-blocking and known to the epoll set of the core that owns its descriptor.
pub struct Registered<S> {
    // Fields are dropped in the order of their declaration, and this order matters: the descriptor leaves the epoll set
    // before it is closed. The other way round (`CoIo` owning the socket) another core may be given the same number in
    // between, and it is its new connection that is struck off and never heard of again.
    io: CoIo<Descriptor>,
    socket: S,
}

/// A descriptor that somebody else closes.
struct Descriptor(RawFd);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

impl<S: AsRawFd> Registered<S> {
    /// Registers a socket.
    ///
    /// # Errors
    ///
    /// The system is out of memory or watches.
    pub fn new(socket: S) -> io::Result<Registered<S>> {
        let io = CoIo::new(Descriptor(socket.as_raw_fd()))
            .map_err(|refused| io::Error::other(refused.to_string()))?;
        Ok(Registered { io, socket })
    }
}

/// Wakes the coroutine behind a socket, whichever of its two waits it is in.
pub struct Bell {
    socket: WaitIoWaker,
    slot: Arc<Blocker>,
    in_slot: AtomicBool,
}

impl Wake for Bell {
    fn wake(&self) {
        if self.in_slot.load(Relaxed) {
            self.slot.unpark();
        } else {
            self.socket.wakeup();
        }
    }
}

/// A socket and the time at which the wait for it is over.
pub struct Wire<S> {
    registered: Registered<S>,
    watch: Arc<Watch<Bell>>,
    /// Bytes may lie in the socket.
    readable: bool,
    /// The end of the peer's bytes lies in the socket.
    hung_up: bool,
}

impl<S> Wire<S> {
    /// Wraps a registered socket. Called by the coroutine that will wait for it.
    pub fn new(registered: Registered<S>) -> Wire<S> {
        let bell = Bell {
            socket: registered.io.waker(),
            slot: Blocker::current(),
            in_slot: AtomicBool::new(false),
        };
        Wire {
            registered,
            watch: Arc::new(Watch::new(bell)),
            readable: true,
            hung_up: false,
        }
    }

    /// The socket itself.
    pub fn socket(&self) -> &S {
        &self.registered.socket
    }

    /// Its descriptor.
    pub fn descriptor(&self) -> RawFd {
        self.registered.io.as_raw_fd()
    }

    /// What a slot's handler is woken by.
    pub fn blocker(&self) -> &Arc<Blocker> {
        &self.watch.target().slot
    }

    /// Blocks until the socket has news, `due` has come, or the core has news for everybody. Which of them it was, the
    /// caller finds out by looking.
    pub fn wait(&mut self, timers: &Timers<Bell>, now: Time, due: Time) {
        timers.arm(&self.watch, now, due);
        let events = self.registered.io.wait_io();
        self.readable = true;
        self.hung_up |= events & HUNG_UP != 0;
    }

    /// Makes `due` the time at which [`blocker`](Wire::blocker) is unparked, until [`leave_slot`](Wire::leave_slot).
    pub fn enter_slot(&self, timers: &Timers<Bell>, now: Time, due: Time) {
        self.watch.target().in_slot.store(true, Relaxed);
        timers.arm(&self.watch, now, due);
    }

    /// The wait for the slot is over.
    pub fn leave_slot(&self) {
        self.watch.target().in_slot.store(false, Relaxed);
    }
}

impl Wire<TcpStream> {
    /// Makes the next read ask the socket even if nothing has been heard of it: news may have come, and been used up, in
    /// a wait for something else.
    pub fn look_again(&mut self) {
        self.readable = true;
    }

    /// Reads what is there; `None` if that is nothing yet, 0 at the end of the stream.
    ///
    /// # Errors
    ///
    /// The connection is broken.
    pub fn try_read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        while self.readable {
            match self.socket().read(buffer) {
                Ok(bytes) => {
                    self.readable = bytes == buffer.len() || self.hung_up;
                    return Ok(Some(bytes));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.readable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Writes what the socket takes now, perhaps nothing.
    ///
    /// # Errors
    ///
    /// The connection is broken.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.socket().write(bytes) {
                Ok(written) => return Ok(written),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Tells the peer that no more bytes come, while it may still send.
    pub fn finish_writing(&self) {
        // Fails if the peer has reset the connection, and then there is nobody to tell.
        let _ = self.socket().shutdown(Shutdown::Write);
    }

    /// Makes the coming close drop what the peer has not read, instead of keeping it in the kernel.
    pub fn abandon_output(&self) {
        let _ = SockRef::from(self.socket()).set_linger(Some(Duration::ZERO));
    }
}

impl<S> Drop for Wire<S> {
    fn drop(&mut self) {
        self.watch.disarm();
    }
}

//! Accepting: from a core's listener to a coroutine on the core that owns the new descriptor.
//!
//! Every core has a listener on the same port and the kernel spreads connections over them; which core then serves a
//! connection is up to its descriptor. At the connection cap a connection is still accepted, told 503 and closed, as
//! far as there is room even for that. Errors of `accept` (no descriptors, no memory) pass when connections close:
//! the acceptor backs off, which on a core of coroutines means waiting on the timers, not sleeping.
//!
//! A listener that closes resets whoever is in its backlog then, and between the last look at the backlog and the end there
//! is always a moment, on a busy machine a long one. So it is closed to newcomers first: from then on the kernel drops
//! what would begin a connection (whoever tries again a second later finds another server, or none), and only those come
//! whose handshake was under way.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use socket2::{Domain, Protocol, SockFilter, SockRef, Socket, Type};

use super::Phase;
use super::connection::Connection;
use super::core::{CoreRef, spawn};
use super::wire::{Registered, Wire};
use crate::clock;

/// Wait after an error of `accept`: out of descriptors or memory, which passes when connections close.
const ACCEPT_BACK_OFF: Duration = Duration::from_millis(50);

/// A handshake that was under way when a listener was closed to newcomers is over by then.
const HANDSHAKE_MAX: Duration = Duration::from_millis(100);

/// Connections accepted in one go before the core turns to the ones it has.
const ACCEPTS_IN_A_ROW_MAX: usize = 64;

/// Connections beyond the cap that are held just long enough to be told so.
pub(crate) const REFUSALS_MAX: usize = 64;

/// A listener on `addr` that shares its port with those of the other cores.
pub fn listener(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    // Accepted connections inherit it: no system call for each of them.
    socket.set_tcp_nodelay(true)?;
    socket.bind(&addr.into())?;
    socket.listen(4096)?;
    Ok(socket.into())
}

/// Closes `listener` to newcomers: the kernel drops segments that ask for a connection, as if they were lost. Connections
/// that are accepted later inherit the rule, which does not concern them.
fn close_to_newcomers(listener: &TcpListener) -> io::Result<()> {
    use libc::{BPF_ABS, BPF_ALU, BPF_AND, BPF_B, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET};
    // The kernel runs this on the TCP header, in which byte 13 has the flags.
    const FLAGS_AT: u32 = 13;
    const SYN: u32 = 0x02;
    const ACK: u32 = 0x10;
    let step =
        |code: u32, (then, otherwise), value| SockFilter::new(code as u16, then, otherwise, value);
    SockRef::from(listener).attach_filter(&[
        step(BPF_LD | BPF_B | BPF_ABS, (0, 0), FLAGS_AT),
        step(BPF_ALU | BPF_AND | BPF_K, (0, 0), SYN | ACK),
        step(BPF_JMP | BPF_JEQ | BPF_K, (0, 1), SYN),
        step(BPF_RET | BPF_K, (0, 0), 0),
        step(BPF_RET | BPF_K, (0, 0), u32::MAX),
    ])
}

/// Takes connections off a core's listener until the listeners close.
pub fn acceptor(core: &CoreRef, listener: Registered<TcpListener>) {
    let mut wire = Wire::new(listener);
    let mut failing = false;
    let mut last_call = None;
    loop {
        let closing = core.shared.phase() >= Phase::Closing;
        if closing && last_call.is_none() {
            if let Err(error) = close_to_newcomers(wire.socket()) {
                log::debug!("connections that begin now may be reset: {error}");
            }
            last_call = Some(clock::now() + HANDSHAKE_MAX);
        }
        // The look at the backlog comes after the look at the clock, or a connection could slip in between.
        let now = clock::now();
        let pause = accept_some(core, wire.socket(), &mut failing);
        let due = match (pause, last_call) {
            (Pause::UntilNews, Some(end)) if now >= end => break,
            (Pause::UntilNews, Some(end)) => end,
            (Pause::UntilNews, None) => now + Duration::from_secs(3_600),
            (Pause::Breath, _) => now,
            (Pause::BackOff, _) => now + ACCEPT_BACK_OFF,
        };
        wire.wait(&core.timers, now, due);
    }
    drop(wire);
    core.shared.acceptors.fetch_sub(1, Relaxed);
}

/// How long the acceptor waits before it looks at its listener again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pause {
    /// The backlog is empty: until a connection comes or the phase changes.
    UntilNews,
    /// There may be more, but others want to run.
    Breath,
    /// `accept` failed.
    BackOff,
}

/// `failing` remembers whether the last attempt failed, so that a lasting failure is logged once.
fn accept_some(core: &CoreRef, listener: &TcpListener, failing: &mut bool) -> Pause {
    for _ in 0..ACCEPTS_IN_A_ROW_MAX {
        match listener.accept() {
            Ok((stream, _)) => {
                *failing = false;
                take_in(core, stream);
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock => return Pause::UntilNews,
                ErrorKind::Interrupted | ErrorKind::ConnectionAborted => {}
                _ => {
                    if !std::mem::replace(failing, true) {
                        log::warn!("connections are not accepted for now: {error}");
                    }
                    return Pause::BackOff;
                }
            },
        }
    }
    Pause::Breath
}

/// Starts the coroutine of a new connection on the core that owns its descriptor.
fn take_in(acceptor: &CoreRef, stream: TcpStream) {
    let descriptor = stream.as_raw_fd();
    let Some(open) = Open::new(acceptor.owner_of(descriptor)) else {
        return;
    };
    let id = open.core.index;
    let started =
        Registered::new(stream).and_then(|stream| spawn(id, move || serve(&open, stream)));
    if let Err(error) = started {
        log::warn!("a connection was dropped: {error}");
    }
}

fn serve(open: &Open, stream: Registered<TcpStream>) {
    // Boxed, or its coroutine would keep it, and the copy that it was made from, on its stack.
    let mut connection = Box::new(Connection::new(
        open.core.clone(),
        Wire::new(stream),
        clock::now(),
    ));
    if open.refused {
        connection.refuse();
    } else {
        connection.run();
    }
}

/// An open connection, as far as it is counted: among those that are served, or among those that are turned away.
struct Open {
    core: CoreRef,
    refused: bool,
}

impl Open {
    /// Counts a connection; `None` if there is not even room to turn it away.
    fn new(core: CoreRef) -> Option<Open> {
        let refused = !try_count(&core.shared.connections, core.shared.connections_max);
        if !refused {
            core.recorder().connection_opened();
            return Some(Open { core, refused });
        }
        core.recorder().connection_refused();
        try_count(&core.shared.refusals, REFUSALS_MAX).then_some(Open { core, refused })
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.refused {
            self.core.shared.refusals.fetch_sub(1, Relaxed);
        } else {
            self.core.shared.connections.fetch_sub(1, Relaxed);
            self.core.recorder().connection_closed();
        }
    }
}

/// Adds one unless that makes more than `most`.
fn try_count(count: &AtomicUsize, most: usize) -> bool {
    let fits = count.fetch_add(1, Relaxed) < most;
    if !fits {
        count.fetch_sub(1, Relaxed);
    }
    fits
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn a_count_never_passes_its_bound() {
        let count = AtomicUsize::new(0);
        assert!(try_count(&count, 2) && try_count(&count, 2));
        assert!(!try_count(&count, 2));
        assert_eq!(count.load(Relaxed), 2);
        count.fetch_sub(1, Relaxed);
        assert!(try_count(&count, 2));
    }

    #[test]
    fn a_listener_closed_to_newcomers_gives_those_who_had_come() {
        let listener = listener(([127, 0, 0, 1], 0).into()).expect("a free port");
        let addr = listener.local_addr().expect("an address");
        let mut before = TcpStream::connect(addr).expect("connect");
        close_to_newcomers(&listener).expect("a rule that the kernel takes");
        let late = TcpStream::connect_timeout(&addr, Duration::from_millis(50));
        let error = late.expect_err("nobody answers");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let (mut accepted, peer) = listener.accept().expect("who had come");
        assert_eq!(peer, before.local_addr().expect("an address"));
        // The rule is no hindrance to what it let through.
        before.write_all(b"asked").expect("written");
        let mut text = [0; 5];
        accepted.read_exact(&mut text).expect("read");
        accepted.write_all(&text).expect("written");
        before.read_exact(&mut text).expect("read");
        assert_eq!(&text, b"asked");
        listener.set_nonblocking(true).expect("non-blocking");
        let none = listener.accept().expect_err("nobody else");
        assert_eq!(none.kind(), ErrorKind::WouldBlock);
    }

    #[test]
    fn listeners_share_a_port_and_what_they_accept_does_not_delay() {
        let first = listener(([127, 0, 0, 1], 0).into()).expect("a free port");
        let addr = first.local_addr().expect("an address");
        let _second = listener(addr).expect("the same port");
        let clients: Vec<_> = (0..32)
            .map(|_| TcpStream::connect(addr).expect("connect"))
            .collect();
        first.set_nonblocking(true).expect("non-blocking");
        if let Ok((stream, _)) = first.accept() {
            assert!(stream.nodelay().expect("an option"));
        }
        drop(clients);
    }
}

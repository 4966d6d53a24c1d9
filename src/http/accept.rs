//! Accepting: from a core's listener to a coroutine on the core that owns the new descriptor.
//!
//! Every core has a listener on the same port and the kernel spreads connections over them; which core then serves a
//! connection is up to its descriptor. At the connection cap a connection is still accepted, told 503 and closed, as
//! far as there is room even for that. Errors of `accept` (no descriptors, no memory) pass when connections close:
//! the acceptor backs off, which on a core of coroutines means waiting on the timers, not sleeping. So it does when the
//! coroutine of a connection can't be had, and that connection is dropped. A panic ends a round of the acceptor and not
//! the acceptor; should one end all the same, it is no longer counted, the log says so, and readiness says no.
//!
//! A listener that closes resets whoever is in its backlog then, and between the last look at the backlog and the end there
//! is always a moment, on a busy machine a long one. So it is closed to newcomers first: from then on the kernel drops
//! what would begin a connection (whoever tries again a second later finds another server, or none), and only those come
//! whose handshake was under way.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use socket2::{Domain, Protocol, SockFilter, SockRef, Socket, Type};

use super::connection::{Connection, unless_panicking};
use super::core::{CoreRef, spawn};
use super::wire::{Registered, Wire};
use super::{Phase, Shared};
use crate::clock::{self, Time};

/// Wait after a connection could not be had: out of descriptors or memory, which passes when connections close.
const ACCEPT_BACK_OFF: Duration = Duration::from_millis(50);

/// Trouble that comes again within this time is the same trouble, and has been logged.
const TROUBLE_OVER: Duration = Duration::from_secs(10);

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

/// An acceptor, as far as it is counted: until it ends, whatever ends it.
pub struct Accepting(Arc<Shared>);

impl Accepting {
    /// Counts an acceptor.
    pub fn new(shared: &Arc<Shared>) -> Accepting {
        shared.acceptors.fetch_add(1, Relaxed);
        Accepting(Arc::clone(shared))
    }
}

impl Drop for Accepting {
    fn drop(&mut self) {
        if self.0.phase() < Phase::Closing {
            self.0.lost_acceptor.store(true, Relaxed);
            log::error!(
                "a listener of the data port is lost: restart this server, it is not ready any more"
            );
        }
        self.0.acceptors.fetch_sub(1, Relaxed);
    }
}

/// Takes connections off a core's listener until the listeners close. `accepting` is held until this one has.
pub fn acceptor(core: &CoreRef, listener: Registered<TcpListener>, accepting: Accepting) {
    let mut wire = Wire::new(listener);
    let mut trouble = Trouble::default();
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
        let round = || accept_some(core, wire.socket(), &mut trouble, now);
        let pause = unless_panicking(round).unwrap_or(Pause::BackOff);
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
    drop(accepting);
}

/// How long the acceptor waits before it looks at its listener again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pause {
    /// The backlog is empty: until a connection comes or the phase changes.
    UntilNews,
    /// There may be more, but others want to run.
    Breath,
    /// `accept` failed, or what comes after it.
    BackOff,
}

/// Connections that could not be had. Where there is hardly room, every other one can be: that is one trouble, logged once.
#[derive(Default)]
struct Trouble {
    last: Option<Time>,
}

impl Trouble {
    /// Whether what happens at `now` is to be logged.
    fn is_news(&mut self, now: Time) -> bool {
        let last = self.last.replace(now);
        last.is_none_or(|last| now.since(last) >= TROUBLE_OVER)
    }
}

/// Accepts what is there, up to a number.
fn accept_some(core: &CoreRef, listener: &TcpListener, trouble: &mut Trouble, now: Time) -> Pause {
    for _ in 0..ACCEPTS_IN_A_ROW_MAX {
        match listener.accept() {
            Ok((stream, _)) => {
                if let Err(error) = take_in(core, stream) {
                    if trouble.is_news(now) {
                        log::warn!("connections are dropped for now: {error}");
                    }
                    return Pause::BackOff;
                }
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock => return Pause::UntilNews,
                ErrorKind::Interrupted | ErrorKind::ConnectionAborted => {}
                _ => {
                    if trouble.is_news(now) {
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
///
/// # Errors
///
/// The system is out of memory or watches, and the connection is dropped.
fn take_in(acceptor: &CoreRef, stream: TcpStream) -> io::Result<()> {
    let descriptor = stream.as_raw_fd();
    let Some(open) = Open::new(acceptor.owner_of(descriptor)) else {
        return Ok(());
    };
    let id = open.core.index;
    Registered::new(stream).and_then(|stream| spawn(id, move || serve(&open, stream)))
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
    fn trouble_is_logged_when_it_begins_anew() {
        let mut trouble = Trouble::default();
        let mut now = clock::now();
        assert!(trouble.is_news(now));
        for _ in 0..100 {
            now = now + TROUBLE_OVER / 2;
            assert!(!trouble.is_news(now), "it has not ended since");
        }
        assert!(trouble.is_news(now + TROUBLE_OVER));
    }

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

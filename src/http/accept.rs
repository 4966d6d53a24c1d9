//! Accepting: from a core's listener to a coroutine on the core that owns the new descriptor.
//!
//! Every core has a listener on the same port and the kernel spreads connections over them; which core then serves a
//! connection is up to its descriptor. At the connection cap a connection is still accepted, told 503 and closed, as
//! far as there is room even for that. Errors of `accept` (no descriptors, no memory) pass when connections close:
//! the acceptor backs off, which on a core of coroutines means waiting on the timers, not sleeping.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use super::Phase;
use super::connection::Connection;
use super::core::{CoreRef, spawn};
use super::wire::{Registered, Wire};
use crate::clock;

/// Wait after an error of `accept`: out of descriptors or memory, which passes when connections close.
const ACCEPT_BACK_OFF: Duration = Duration::from_millis(50);

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

/// Takes connections off a core's listener until the listeners close.
pub fn acceptor(core: &CoreRef, listener: Registered<TcpListener>) {
    let mut wire = Wire::new(listener);
    let mut failing = false;
    loop {
        let pause = accept_some(core, wire.socket(), &mut failing);
        let now = clock::now();
        // The look at the backlog comes after the look at the phase, or a connection could slip in between.
        if pause == Pause::UntilNews && core.shared.phase() >= Phase::Closing {
            if accept_some(core, wire.socket(), &mut failing) == Pause::UntilNews {
                break;
            }
            continue;
        }
        let due = match pause {
            Pause::UntilNews => now + Duration::from_secs(3_600),
            Pause::Breath => now,
            Pause::BackOff => now + ACCEPT_BACK_OFF,
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
    let connection = Connection::new(open.core.clone(), Wire::new(stream), clock::now());
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

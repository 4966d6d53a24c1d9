//! Bounds what the admin port's connections may cost. The library that serves them has no limits of its own: it reads
//! and answers for as long as bytes come and without a pause, keeps answers that nobody takes, and its accept loop spins
//! when the process is out of descriptors; all that on the acceptor cores. It shows its connections to us in two places,
//! when it has accepted one and when it has read a request, and from there they are bounded:
//!
//! * At most 16 at a time, and 500 new ones a second. The next one waits in the accept loop, so the loop accepts no more,
//!   and whoever has been quiet for longest goes: idle connections keep no operator out.
//! * On one connection, 1,000 requests a second, 64 KiB that make no request, 1 MiB of answers not taken (see
//!   [`super::seat`]). Beyond that the connection is cut, and none is accepted for a second: a flood that begins anew each
//!   time must not have the cores. How many bytes came and went the kernel knows.
//! * After one that sent nonsense, about which the library writes a line, none is accepted for a tenth of a second.
//! * Where no descriptor is left, spare ones are given up, so that the accept loop gets one, comes here, and stays here
//!   until there are some again. ([`crate::config`] reserves enough that no number of connections leads to this.)
//!
//! Bytes without a request are seen by a thread of its own every 20 ms, so for that long they may keep a core busy.
//! Rejected: to relay the bytes through a port of our own with limits, as that would be a second server in front of this
//! one, whose port would still be there.

use std::collections::HashMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::thread::{self, Thread};
use std::time::Duration;

use may::sync::Blocker;
use parking_lot::Mutex;
use rustix::net::{AddressFamily, Shutdown, SocketType, shutdown, socket};
use socket2::SockRef;

use super::seat::{Seat, Verdict};
use super::traffic::traffic;
use crate::clock::{self, Time};

/// Connections at a time: scrapers, dashboards, people.
pub const CONNECTIONS_MAX: usize = 16;
/// Connections accepted in one [`WINDOW`].
const ACCEPTS_MAX: u32 = 500;
const WINDOW: Duration = Duration::from_secs(1);
/// No connection is accepted for so long after one was cut.
const PAUSE: Duration = Duration::from_secs(1);
/// Nor for so long after one that sent nonsense.
const PAUSE_AFTER_NONSENSE: Duration = Duration::from_millis(100);
/// Pause between two looks at the connections, and at the descriptors while there are none.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const LOOK_EVERY_IDLE: Duration = Duration::from_millis(100);
/// What the kernel keeps of a connection's bytes before they are read.
const RECEIVE_BUFFER_BYTES: usize = 16 << 10;
/// Descriptors that are kept to be given up: for the accept loop, and for whoever is quicker than that.
const SPARES: usize = 4;
/// A flood is said once in so long.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// The connections of the admin port.
#[derive(Debug)]
pub struct Guard {
    inside: Mutex<Inside>,
    watcher: Mutex<Option<Thread>>,
}

#[derive(Debug, Default)]
struct Inside {
    /// By descriptor. Whoever is in here is open: [`Place`] takes it out before the library closes it.
    seats: HashMap<RawFd, Seat>,
    /// The accept loop, while it waits for room.
    waiting: Option<Arc<Blocker>>,
    paused_until: Time,
    /// Connections accepted since this time, of which each second lets in [`ACCEPTS_MAX`].
    window: Time,
    accepted: u32,
    said: Option<Time>,
    is_exhausted: bool,
    spares: Vec<OwnedFd>,
}

impl Inside {
    fn has_room(&self, now: Time) -> bool {
        let too_often = self.accepted >= ACCEPTS_MAX && now.since(self.window) < WINDOW;
        let is_paused = self.is_exhausted || too_often || now < self.paused_until;
        !is_paused && self.seats.len() < CONNECTIONS_MAX
    }

    fn seat(&mut self, descriptor: RawFd, now: Time) {
        if now.since(self.window) >= WINDOW {
            (self.window, self.accepted) = (now, 0);
        }
        self.accepted += 1;
        self.waiting = None;
        self.seats.insert(descriptor, Seat::new(now));
    }

    /// Ends a connection: the library finds its stream closed.
    fn cut(seat: &mut Seat, descriptor: RawFd, floods: bool) {
        if seat.cut() {
            end(descriptor, floods);
        }
    }

    fn cut_for(&mut self, descriptor: RawFd, why: &str, now: Time) {
        if let Some(seat) = self.seats.get_mut(&descriptor) {
            Inside::cut(seat, descriptor, true);
        }
        self.paused_until = now + PAUSE;
        if self.said.is_none_or(|said| now.since(said) >= SAY_EVERY) {
            self.said = Some(now);
            log::warn!("a connection of the admin port was cut: {why}");
        }
    }

    /// The connection that has been quiet for longest goes.
    fn make_room(&mut self) {
        let quietest = self
            .seats
            .iter_mut()
            .filter(|(_, seat)| !seat.is_cut())
            .min_by_key(|(_, seat)| seat.quiet_since());
        if let Some((&descriptor, seat)) = quietest {
            Inside::cut(seat, descriptor, false);
        }
    }
}

impl Guard {
    /// A guard, and its thread, which lives as long as the process: so does the port.
    ///
    /// # Errors
    /// The thread can't be started, or there is no descriptor left.
    pub fn start() -> io::Result<Arc<Guard>> {
        let guard = Arc::new(Guard {
            inside: Mutex::new(Inside {
                spares: spares()?,
                ..Inside::default()
            }),
            watcher: Mutex::new(None),
        });
        let watched = Arc::clone(&guard);
        let thread = thread::Builder::new().name("admin-guard".to_owned());
        let thread = thread.spawn(move || watched.watch())?;
        *guard.watcher.lock() = Some(thread.thread().clone());
        Ok(guard)
    }

    /// A connection was accepted. To be called in the accept loop, which waits here until there is room for it.
    pub fn enter(self: &Arc<Guard>, descriptor: RawFd) -> Place {
        if let Some(watcher) = &*self.watcher.lock() {
            watcher.unpark();
        }
        // SAFETY: the library has just accepted it and holds it until its connection's coroutine begins.
        let socket = unsafe { BorrowedFd::borrow_raw(descriptor) };
        // Without it the kernel's own limit holds, which is larger.
        let _ = SockRef::from(&socket).set_recv_buffer_size(RECEIVE_BUFFER_BYTES);
        let blocker = Blocker::current();
        loop {
            let now = clock::now();
            let mut inside = self.inside.lock();
            if inside.has_room(now) {
                inside.seat(descriptor, now);
                break;
            }
            if inside.seats.len() >= CONNECTIONS_MAX {
                inside.make_room();
            }
            inside.waiting = Some(Arc::clone(&blocker));
            drop(inside);
            // Whoever leaves wakes us, and the thread at its looks. A wake-up for nothing is another look.
            let _ = blocker.park(None);
        }
        Place {
            guard: Arc::clone(self),
            descriptor,
        }
    }

    fn watch(&self) {
        loop {
            let pause = self.look(clock::now());
            thread::park_timeout(pause);
        }
    }

    fn look(&self, now: Time) -> Duration {
        let mut inside = self.inside.lock();
        inside.look_at_descriptors();
        let flooding = inside
            .seats
            .iter()
            .find(|(descriptor, seat)| seat.is_flooding(traffic(**descriptor)));
        if let Some((&descriptor, _)) = flooding {
            inside.cut_for(descriptor, "it sends bytes that make no request", now);
        }
        let pause = if inside.seats.is_empty() && inside.waiting.is_none() {
            LOOK_EVERY_IDLE
        } else {
            LOOK_EVERY
        };
        let ready = inside.has_room(now);
        let waiting = inside.waiting.take_if(|_| ready);
        drop(inside);
        if let Some(waiting) = waiting {
            waiting.unpark();
        }
        pause
    }

    fn leave(&self, descriptor: RawFd) {
        let waiting = {
            let mut inside = self.inside.lock();
            let (seat, now) = (inside.seats.remove(&descriptor), clock::now());
            if seat.is_some_and(|seat| seat.sent_nonsense(traffic(descriptor))) {
                inside.paused_until = inside.paused_until.max(now + PAUSE_AFTER_NONSENSE);
            }
            let ready = inside.has_room(now);
            inside.waiting.take_if(|_| ready)
        };
        if let Some(waiting) = waiting {
            waiting.unpark();
        }
    }
}

impl Inside {
    /// Gives the spare descriptors up when there are no others, and takes them back when there are.
    fn look_at_descriptors(&mut self) {
        if self.is_exhausted {
            if let Ok(made) = spares() {
                self.spares = made;
                self.is_exhausted = false;
            }
        } else if spare().is_err() {
            self.spares.clear();
            self.is_exhausted = true;
            log::warn!("the process is out of descriptors: the admin port accepts nobody for now");
        }
    }
}

fn spares() -> io::Result<Vec<OwnedFd>> {
    (0..SPARES).map(|_| spare()).collect()
}

fn spare() -> io::Result<OwnedFd> {
    Ok(socket(AddressFamily::UNIX, SocketType::DGRAM, None)?)
}

fn end(descriptor: RawFd, floods: bool) {
    // SAFETY: it has a seat, so its connection has not ended and the descriptor is still that connection's.
    let socket = unsafe { BorrowedFd::borrow_raw(descriptor) };
    // Both calls fail if the peer has closed already.
    if floods {
        // With a reset: a peer that has more to send would else wait for room that never comes.
        let _ = SockRef::from(&socket).set_linger(Some(Duration::ZERO));
    }
    let _ = shutdown(socket, Shutdown::Both);
}

/// A connection's place among those that are served. The library drops it, with the service that it belongs to, before it
/// closes the connection.
#[derive(Debug)]
pub struct Place {
    guard: Arc<Guard>,
    descriptor: RawFd,
}

impl Place {
    /// A request has been read. Whether it may be answered; if not, the connection is at its end.
    pub fn request(&self) -> bool {
        let now = clock::now();
        let mut inside = self.guard.inside.lock();
        let Some(seat) = inside.seats.get_mut(&self.descriptor) else {
            return false;
        };
        match seat.request(now, || traffic(self.descriptor)) {
            Verdict::Answer => true,
            Verdict::AtItsEnd => false,
            Verdict::Cut(why) => {
                inside.cut_for(self.descriptor, why, now);
                false
            }
        }
    }

    /// The request is answered with a body of so many bytes.
    pub fn answered(&self, body_bytes: usize) {
        if let Some(seat) = self.guard.inside.lock().seats.get_mut(&self.descriptor) {
            seat.answered(body_bytes);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.guard.leave(self.descriptor);
    }
}

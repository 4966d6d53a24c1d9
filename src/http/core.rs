//! The acceptor cores: one pinned worker thread of `may` each, with a listener, a mailbox and timers of its own.
//!
//! The owner of a connection is decided by its descriptor: `descriptor % cores` picks the epoll set that watches it
//! and so the thread that resumes its coroutine. Everything that belongs to a core — its listener, its bell, its
//! connections — therefore has a descriptor of that remainder and is spawned with it as `id`. Nothing is ever woken
//! from a foreign thread: GPU threads put slots into the core's mailbox and ring its bell, and the core's resident
//! service coroutine wakes the handlers. So a connection never moves, and what a core's coroutines share among
//! themselves is never contended.
//!
//! Two coroutines live on a core as long as the process does (the second until the listeners close):
//! * `service`: woken by the bell and by a tick of 10 ms. Delivers the mailbox, fires the timers, spreads the news of
//!   a new [`Phase`].
//! * `acceptor`: takes connections off the listener and spawns a coroutine for each.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind, Read};
use std::net::SocketAddr;
use std::ops::Deref;
use std::os::fd::{AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use may::coroutine::Builder;
use may::io::CoIo;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use super::accept::{Accepting, acceptor, listener};
use super::respond::DateCache;
use super::timer::Timers;
use super::wire::{Bell, Registered};
use super::{Phase, Shared};
use crate::clock;
use crate::metrics::Recorder;
use crate::wake::{Mailbox, Mailboxes};

/// The finest time that deadlines are kept to; 504s leave within two of them.
const TICK: Duration = Duration::from_millis(10);

/// Stack of a coroutine in words. Only touched pages cost memory, so this is address space; debug builds need more.
/// What costs memory is the deepest call, for as long as the connection lives: up to 512 words it is one page, and a
/// connection 8.5 KiB. So functions with large frames (the parser, the deserialisers, `compose`) are not inlined
/// into one another's callers, and the connection itself is boxed. With an odd number here `may` prints what each coroutine
/// used: 486 words for served requests (release build), of which the parser is the deepest part. The smoke test looks.
pub(crate) const STACK_WORDS: usize = if cfg!(debug_assertions) {
    0x4000
} else {
    0x1000
};

/// Stacks that are kept for the next connections.
pub(crate) const STACKS_POOLED: usize = 512;

/// Receive buffer of a core.
const INPUT_BYTES: usize = 64 << 10;

/// Output buffers that grew beyond this are given back after use.
const OUTPUT_BYTES_KEPT: usize = 256 << 10;

/// Buffers that a core's coroutines use in turn, each for as long as it does not wait.
pub struct Scratch {
    /// What was just received.
    pub input: Box<[u8]>,
    /// A response, head and body.
    pub out: Vec<u8>,
    /// The body of it.
    pub body: Vec<u8>,
    /// The `Date` header.
    pub date: DateCache,
}

impl Scratch {
    fn new() -> Scratch {
        Scratch {
            input: vec![0; INPUT_BYTES].into_boxed_slice(),
            out: Vec::with_capacity(4 << 10),
            body: Vec::with_capacity(4 << 10),
            date: DateCache::new(),
        }
    }

    /// What was not written of the output, for its connection to keep; almost always nothing.
    pub fn take_rest(&mut self, written: usize) -> Vec<u8> {
        let rest = self.out[written..].to_vec();
        if self.out.capacity() > OUTPUT_BYTES_KEPT {
            self.out = Vec::new();
            self.body = Vec::new();
        }
        rest
    }
}

/// What the coroutines of one acceptor core share.
pub struct Core {
    /// Its position among the cores.
    pub index: usize,
    /// What all cores share.
    pub shared: Arc<Shared>,
    /// The due times of its connections.
    pub timers: Timers<Bell>,
    /// Its buffers. Never contended; a lock only so that no `unsafe` is needed.
    pub scratch: Mutex<Scratch>,
    mailboxes: Arc<Mailboxes>,
    ids: Ids,
}

impl Core {
    fn new(index: usize, shared: Arc<Shared>, mailboxes: Arc<Mailboxes>) -> Core {
        Core {
            index,
            shared,
            timers: Timers::new(),
            scratch: Mutex::new(Scratch::new()),
            mailboxes,
            ids: Ids::new(),
        }
    }

    /// Where this core records.
    pub fn recorder(&self) -> &Recorder {
        self.shared.metrics.core(self.index)
    }

    /// A request id that no other request of this process has, and that says nothing about their number.
    pub fn fresh_id(&self) -> Arc<str> {
        self.ids.next()
    }

    /// The mailboxes of all cores.
    pub fn mailboxes(&self) -> &Arc<Mailboxes> {
        &self.mailboxes
    }

    fn mailbox(&self) -> &Mailbox {
        self.mailboxes.core(self.index)
    }
}

/// One core of all; keeps them alive.
#[derive(Clone)]
pub struct CoreRef {
    all: Arc<[Core]>,
    index: usize,
}

impl CoreRef {
    fn new(all: &Arc<[Core]>, index: usize) -> CoreRef {
        CoreRef {
            all: Arc::clone(all),
            index,
        }
    }

    /// The core that a descriptor belongs to.
    pub fn owner_of(&self, descriptor: RawFd) -> CoreRef {
        CoreRef::new(&self.all, owner(descriptor, self.all.len()))
    }
}

impl Deref for CoreRef {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.all[self.index]
    }
}

/// Request ids: a counter, scrambled by a bijection that differs from core to core and from start to start.
struct Ids {
    count: AtomicU64,
    key: u64,
}

impl Ids {
    fn new() -> Ids {
        Ids {
            count: AtomicU64::new(0),
            key: RandomState::new().hash_one(0u8),
        }
    }

    fn next(&self) -> Arc<str> {
        // The finaliser of SplitMix64.
        let mut word = self.count.fetch_add(1, Relaxed).wrapping_add(self.key);
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^= word >> 31;
        // On the stack first: then there is one allocation, the one that is shared.
        let mut text = *b"req_0000000000000000";
        for (place, byte) in text[4..].iter_mut().enumerate() {
            let digit = (word >> (60 - 4 * place)) & 0xf;
            *byte = b"0123456789abcdef"[digit as usize];
        }
        std::str::from_utf8(&text).expect("hex digits").into()
    }
}

/// Mailboxes for `cores` acceptor cores, each able to hold `capacity` slots. Made before the cores start, because the
/// GPU threads need them as well.
///
/// # Errors
///
/// The system is out of descriptors.
pub fn mailboxes(cores: usize, capacity: usize) -> io::Result<Mailboxes> {
    let boxes = (0..cores).map(|core| {
        let bell = on_core(core, cores, || {
            Ok(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?)
        })?;
        Ok(Mailbox::new(capacity, bell))
    });
    Ok(Mailboxes::new(boxes.collect::<io::Result<Vec<_>>>()?))
}

/// Makes descriptors until one belongs to `core`; the others are closed.
fn on_core<T: AsRawFd>(
    core: usize,
    cores: usize,
    mut make: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    let mut others = Vec::new();
    loop {
        let made = make()?;
        if owner(made.as_raw_fd(), cores) == core {
            return Ok(made);
        }
        others.push(made);
    }
}

/// The core that a descriptor belongs to.
fn owner(descriptor: RawFd, cores: usize) -> usize {
    usize::try_from(descriptor).unwrap_or_default() % cores
}

/// The running acceptor cores.
pub struct DataPlane {
    shared: Arc<Shared>,
    mailboxes: Arc<Mailboxes>,
}

impl DataPlane {
    /// Starts one acceptor core per mailbox, listening on `listen` (a definite port). If `pin` is not empty, core k is
    /// pinned to the k-th CPU of it, in ascending order. To be called once, and before anything else uses `may`.
    ///
    /// # Errors
    ///
    /// The address cannot be listened on, or the system is out of descriptors.
    pub fn start(
        shared: Arc<Shared>,
        mailboxes: Arc<Mailboxes>,
        listen: SocketAddr,
        pin: &[usize],
    ) -> io::Result<DataPlane> {
        let cores = mailboxes.len();
        set_panic_hook();
        may::config()
            .set_workers(cores)
            .set_stack_size(STACK_WORDS)
            .set_pool_capacity(STACKS_POOLED);
        may::config().set_worker_pin(!pin.is_empty());
        may::config().set_timeout_ns(1_000_000_000);

        let listeners = (0..cores)
            .map(|core| on_core(core, cores, || listener(listen)))
            .collect::<io::Result<Vec<_>>>()?;
        let bells = with_affinity(pin, || {
            let bells = (0..cores).map(|core| {
                let mailboxes = Arc::clone(&mailboxes);
                CoIo::new(CoreBell { mailboxes, core })
                    .map_err(|refused| io::Error::other(refused.to_string()))
            });
            // This is the first use of `may`, which makes the pooled stacks.
            without_panic(|| bells.collect::<io::Result<Vec<_>>>())
        })?;
        let all: Arc<[Core]> = (0..cores)
            .map(|core| Core::new(core, Arc::clone(&shared), Arc::clone(&mailboxes)))
            .collect();
        for (index, (listener, bell)) in listeners.into_iter().zip(bells).enumerate() {
            let listener = Registered::new(listener)?;
            let (serviced, accepting) = (CoreRef::new(&all, index), CoreRef::new(&all, index));
            spawn(index, move || service(&serviced, bell))?;
            let counted = Accepting::new(&shared);
            spawn(index, move || acceptor(&accepting, listener, counted))?;
        }
        Ok(DataPlane { shared, mailboxes })
    }

    /// Moves to a later phase and tells every core.
    pub fn enter(&self, phase: Phase) {
        self.shared.enter(phase);
        self.mailboxes.kick_all();
    }

    /// Connections that are open.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Relaxed)
    }

    /// Listeners that are open: 0 some time after [`Phase::Closing`] began.
    pub fn listeners(&self) -> usize {
        self.shared.acceptors.load(Relaxed)
    }
}

/// Starts a coroutine on the core that owns descriptors like `id`. If it can't be had, `body` is dropped here.
///
/// # Errors
///
/// There is no memory for its stack.
pub fn spawn(id: usize, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    // SAFETY: spawning is unsafe because a coroutine may misuse thread-locals and may overflow its stack. The bodies
    // here stay on one thread (see the module's text), keep no thread-local across a wait and recurse nowhere.
    let start = || unsafe { Builder::new().id(id).spawn(body) };
    without_panic(start).map(drop)
}

/// Runs `start`, which starts a coroutine and must not wait. `may` panics where the system refuses a stack: that is an
/// error, and the log is left to the caller.
pub(crate) fn without_panic<T>(start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    SPAWNING.set(true);
    let started = catch_unwind(AssertUnwindSafe(start));
    SPAWNING.set(false);
    started.unwrap_or_else(|_| {
        let text = "no memory for another coroutine's stack (see ulimit -v and vm.max_map_count)";
        Err(io::Error::new(ErrorKind::OutOfMemory, text))
    })
}

thread_local! {
    /// Whether this thread is in [`without_panic`], whose caller hears of a panic by an error.
    static SPAWNING: Cell<bool> = const { Cell::new(false) };
}

/// Runs `start` with the calling thread confined to the CPUs of `pin`: `may` deals out to its workers, which it starts
/// at first use, the CPUs that the thread may run on.
fn with_affinity<T>(pin: &[usize], start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    if pin.is_empty() {
        return start();
    }
    let before = sched_getaffinity(None)?;
    let mut cpus = CpuSet::new();
    pin.iter().for_each(|&cpu| cpus.set(cpu));
    sched_setaffinity(None, &cpus)?;
    let started = start();
    sched_setaffinity(None, &before)?;
    started
}

/// A panic is logged in one line, without a backtrace: printing one needs more stack than a coroutine has.
fn set_panic_hook() {
    std::panic::set_hook(Box::new(|panic| {
        if SPAWNING.get() {
            log::debug!("{panic}");
        } else {
            log::error!("{panic}");
        }
    }));
}

/// The bell of a core as something that a coroutine can read.
struct CoreBell {
    mailboxes: Arc<Mailboxes>,
    core: usize,
}

impl AsRawFd for CoreBell {
    fn as_raw_fd(&self) -> RawFd {
        self.mailboxes.core(self.core).bell().as_raw_fd()
    }
}

impl Read for CoreBell {
    fn read(&mut self, count: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(
            self.mailboxes.core(self.core).bell(),
            count,
        )?)
    }
}

/// The resident coroutine of a core.
fn service(core: &Core, mut bell: CoIo<CoreBell>) {
    name_thread(core.index);
    let _ = bell.set_read_timeout(Some(TICK));
    let mut phase = core.shared.phase();
    loop {
        match bell.read(&mut [0; 8]) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::TimedOut => {}
            Err(error) => panic!("an open eventfd can be read, yet: {error}"),
        }
        core.mailbox().deliver();
        core.timers.fire(clock::now());
        let current = core.shared.phase();
        if current != phase {
            phase = current;
            core.timers.wake_all();
        }
    }
}

fn name_thread(index: usize) {
    let name = std::ffi::CString::new(format!("http-{index}")).unwrap_or_default();
    if let Err(error) = rustix::thread::set_name(&name) {
        log::debug!("thread http-{index} keeps its old name: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn request_ids_are_unique_and_fit_to_be_repeated() {
        let ids = Ids::new();
        let many: HashSet<_> = (0..10_000).map(|_| ids.next()).collect();
        assert_eq!(many.len(), 10_000);
        for id in many.iter().take(100) {
            assert_eq!(id.len(), 20);
            assert!(crate::http::values::request_id(id.as_bytes()).is_some());
        }
    }

    #[test]
    fn bells_belong_to_their_cores() {
        let boxes = mailboxes(3, 1).expect("descriptors");
        for core in 0..3 {
            assert_eq!(owner(boxes.core(core).bell().as_raw_fd(), 3), core);
        }
    }

    #[test]
    fn what_was_not_written_is_kept_and_large_buffers_are_not() {
        let mut scratch = Scratch::new();
        scratch.out.extend_from_slice(b"hello");
        assert_eq!(scratch.take_rest(2), b"llo");
        assert_eq!(scratch.take_rest(5), b"");
        scratch.out = vec![0; OUTPUT_BYTES_KEPT + 1];
        assert!(scratch.take_rest(OUTPUT_BYTES_KEPT + 1).is_empty());
        assert_eq!(scratch.out.capacity(), 0);
    }
}

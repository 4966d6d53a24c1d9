//! What the tests are built on: a server as a child process, a blocking HTTP/1.1 client that can also misbehave, and
//! the patience of a test.
//!
//! Nobody here waits for time to pass: whoever waits, waits for a condition, with a bound that only a broken server
//! reaches. What a test measures of time it compares in generous ratios, since it shares its cores with other tests.

mod capture;
pub mod client;
mod metrics;
pub mod model;
pub mod server;
pub mod tools;
pub mod traffic;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Once, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread;
use std::time::Duration;

pub use self::client::{Client, Response, post};
pub use self::metrics::Metrics;
pub use self::server::Server;
use funicular::clock;

/// What only a broken server, or a machine that stands still, exceeds.
pub const BOUND: Duration = Duration::from_secs(60);

/// How often a condition is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Waits until `condition` holds.
///
/// # Panics
/// If it does not within [`BOUND`]; `what` says what was waited for.
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let due = clock::now() + BOUND;
    while !condition() {
        assert!(clock::now() < due, "waited in vain for: {what}");
        thread::park_timeout(LOOK_EVERY);
    }
}

/// Waits until `probe` gives something.
///
/// # Panics
/// If it does not within [`BOUND`].
pub fn wait_some<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let mut found = None;
    wait_for(what, || {
        found = probe();
        found.is_some()
    });
    found.expect("waited for it")
}

/// How long `step` takes, and what it gives.
pub fn timed<T>(step: impl FnOnce() -> T) -> (Duration, T) {
    let since = clock::now();
    let value = step();
    (clock::now().since(since), value)
}

/// A text that no other request of this test run carries. Lower and upper case, so that its output differs from it.
pub fn unique(label: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{label} No. {count} of {}", std::process::id())
}

/// What the simulated executor makes of an input.
pub fn output_of(input: &str) -> String {
    input.to_uppercase()
}

/// Runs `body(0)` … `body(count - 1)` on a thread each and gives what they return, in that order. A panic of one of
/// them is a panic of the caller.
pub fn in_parallel<T: Send>(count: usize, body: impl Fn(usize) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let body = &body;
        let start = |index| {
            // Small stacks: some tests want hundreds of clients.
            let small = thread::Builder::new().stack_size(256 << 10);
            let spawned = small.spawn_scoped(scope, move || body(index));
            spawned.expect("a thread can be started")
        };
        let threads: Vec<_> = (0..count).map(start).collect();
        let joined = threads.into_iter().map(|thread| match thread.join() {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.collect()
    })
}

/// Says that something is over when it is dropped, by a panic too: who goes on until then would else keep the test from
/// failing.
pub struct Until<'a>(pub &'a AtomicBool);

impl Drop for Until<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Tests that load the machine run alone; the others, with each other.
static MACHINE: RwLock<()> = RwLock::new(());

/// To be held by a test that puts little load on the machine, while it measures time.
pub fn light() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}

/// To be held by a test that loads the machine or opens thousands of connections.
pub fn heavy() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Lets this process have as many descriptors as the system allows; gives their number.
pub fn raise_open_files() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    static RAISED: Once = Once::new();
    RAISED.call_once(|| {
        let maximum = getrlimit(Resource::Nofile).maximum;
        let raised = Rlimit {
            current: maximum,
            maximum,
        };
        // If it can't be raised, the caller gets what there is.
        let _ = setrlimit(Resource::Nofile, raised);
    });
    let current = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(current).unwrap_or(usize::MAX)
}

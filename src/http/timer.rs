//! Deadlines and time-outs: one min-heap per acceptor core, re-armed lazily.
//!
//! A connection waits for one thing at a time — the next byte, room to write, its slot — and each wait has a time at
//! which it is over. So a connection has one [`Watch`] with one due time, and arming it for the next wait is a store:
//! the heap's entry stays where it is. When an entry comes up and its watch is due later, it is put back. Only a due
//! time that is earlier than the entry needs a new entry at once. A busy connection so touches the heap once per
//! deadline's length instead of twice per request.
//!
//! All that happens at the due time is that the connection's coroutine is woken; it looks at the clock and at what it
//! waits for and decides itself. Everything here runs on the core that owns the connections: the core's service
//! coroutine calls [`Timers::fire`], the connections call [`Timers::arm`]. The lock is therefore never contended, and
//! it is never held across a wait.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Time;

/// Farthest ahead that an entry stands. It bounds how long a stale one — of a closed connection, or overtaken by an
/// earlier one — stays in the heap, and so the heap to a few entries per connection.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// "No entry", "not due": later than every time.
const NEVER: u64 = u64::MAX;

/// What the timers wake.
pub trait Wake {
    /// Makes the connection's coroutine look at the clock.
    fn wake(&self);
}

/// When a connection's present wait is over.
#[derive(Debug)]
pub struct Watch<W> {
    /// Nanoseconds of the due time.
    due: AtomicU64,
    /// Nanoseconds at which its one valid entry stands in the heap.
    entry: AtomicU64,
    target: W,
}

impl<W: Wake> Watch<W> {
    /// A watch that is not armed.
    pub fn new(target: W) -> Watch<W> {
        Watch {
            due: AtomicU64::new(NEVER),
            entry: AtomicU64::new(NEVER),
            target,
        }
    }

    /// What is woken.
    pub fn target(&self) -> &W {
        &self.target
    }

    /// The wait ended; its entry disappears when it comes up.
    pub fn disarm(&self) {
        self.due.store(NEVER, Relaxed);
    }
}

/// The watches of one core's connections, by time.
#[derive(Debug)]
pub struct Timers<W> {
    heap: Mutex<BinaryHeap<Reverse<Entry<W>>>>,
}

#[derive(Debug)]
struct Entry<W> {
    at: u64,
    watch: Arc<Watch<W>>,
}

impl<W> PartialEq for Entry<W> {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl<W> Eq for Entry<W> {}

impl<W> PartialOrd for Entry<W> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<W> Ord for Entry<W> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

impl<W: Wake> Timers<W> {
    /// No watches.
    pub fn new() -> Timers<W> {
        Timers {
            heap: Mutex::new(BinaryHeap::new()),
        }
    }

    /// Makes `due` the time at which `watch` is woken, instead of what it was before. `now` may be some time ago; it
    /// only says from when the next look is reckoned.
    pub fn arm(&self, watch: &Arc<Watch<W>>, now: Time, due: Time) {
        let due = due.as_nanos();
        watch.due.store(due, Relaxed);
        if due < watch.entry.load(Relaxed) {
            self.insert(Arc::clone(watch), due.min((now + LOOK_AGAIN).as_nanos()));
        }
    }

    fn insert(&self, watch: Arc<Watch<W>>, at: u64) {
        watch.entry.store(at, Relaxed);
        self.heap.lock().push(Reverse(Entry { at, watch }));
    }

    /// Wakes whoever is due at `now`.
    pub fn fire(&self, now: Time) {
        while let Some(entry) = self.pop(now) {
            self.look_at(entry, now);
        }
    }

    fn pop(&self, now: Time) -> Option<Entry<W>> {
        let mut heap = self.heap.lock();
        if heap.peek()?.0.at > now.as_nanos() {
            return None;
        }
        heap.pop().map(|Reverse(entry)| entry)
    }

    fn look_at(&self, entry: Entry<W>, now: Time) {
        let watch = entry.watch;
        if watch.entry.load(Relaxed) != entry.at {
            return; // Overtaken by an earlier entry.
        }
        let due = watch.due.load(Relaxed);
        watch.entry.store(NEVER, Relaxed);
        if due <= now.as_nanos() {
            watch.disarm();
            watch.target.wake();
        } else if due != NEVER {
            self.insert(watch, due.min((now + LOOK_AGAIN).as_nanos()));
        }
    }

    /// Wakes every armed connection, so that it notices news that concern all of them.
    pub fn wake_all(&self) {
        let entries = std::mem::take(&mut *self.heap.lock());
        for Reverse(entry) in entries {
            if entry.watch.entry.load(Relaxed) == entry.at {
                entry.watch.entry.store(NEVER, Relaxed);
                entry.watch.disarm();
                entry.watch.target.wake();
            }
        }
    }
}

impl<W: Wake> Default for Timers<W> {
    fn default() -> Timers<W> {
        Timers::new()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Counts how often it was woken.
    #[derive(Debug, Default)]
    struct Bell(AtomicU64);

    impl Wake for Bell {
        fn wake(&self) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    fn ms(millis: u64) -> Time {
        Time::from_nanos(millis * 1_000_000)
    }

    fn watch() -> Arc<Watch<Bell>> {
        Arc::new(Watch::new(Bell::default()))
    }

    /// Entries in the heap, valid or not.
    fn entries(timers: &Timers<Bell>) -> usize {
        timers.heap.lock().len()
    }

    fn wakes(watch: &Watch<Bell>) -> u64 {
        watch.target().0.load(Relaxed)
    }

    #[test]
    fn a_watch_is_woken_once_at_its_due_time() {
        let (timers, watch) = (Timers::new(), watch());
        timers.arm(&watch, ms(0), ms(10));
        timers.fire(ms(9));
        assert_eq!(wakes(&watch), 0);
        timers.fire(ms(10));
        timers.fire(ms(50));
        assert_eq!(wakes(&watch), 1);
        assert!(entries(&timers) == 0);
    }

    #[test]
    fn arming_later_again_and_again_leaves_one_entry() {
        let (timers, watch) = (Timers::new(), watch());
        for request in 0..1_000 {
            timers.arm(&watch, ms(request), ms(request + 2_000));
        }
        assert_eq!(entries(&timers), 1);
        timers.fire(ms(2_000));
        assert_eq!((wakes(&watch), entries(&timers)), (0, 1));
        timers.fire(ms(2_999));
        assert_eq!((wakes(&watch), entries(&timers)), (1, 0));
    }

    #[test]
    fn requests_and_idleness_in_turn_keep_the_heap_small() {
        let (timers, watch) = (Timers::new(), watch());
        let mut most = 0;
        for step in 0..100_000 {
            let now = ms(step * 10);
            timers.fire(now);
            let patience = if step % 2 == 0 { 2_000 } else { 75_000 };
            timers.arm(&watch, now, now + Duration::from_millis(patience));
            most = most.max(entries(&timers));
        }
        assert!(most <= 5, "{most} entries for one connection");
        assert_eq!(wakes(&watch), 0);
    }

    #[test]
    fn a_closed_connection_leaves_the_heap_soon() {
        let (timers, watch) = (Timers::new(), watch());
        timers.arm(&watch, ms(0), ms(75_000));
        watch.disarm();
        timers.fire(ms(5_000));
        assert_eq!((wakes(&watch), Arc::strong_count(&watch)), (0, 1));
    }

    #[test]
    fn news_wake_everybody_once() {
        let (timers, early, late) = (Timers::new(), watch(), watch());
        timers.arm(&early, ms(0), ms(10));
        timers.arm(&late, ms(0), ms(75_000));
        timers.arm(&late, ms(0), ms(20));
        timers.wake_all();
        assert_eq!((wakes(&early), wakes(&late)), (1, 1));
        timers.arm(&late, ms(1), ms(30));
        timers.fire(ms(30));
        assert_eq!((wakes(&early), wakes(&late)), (1, 2));
    }

    proptest! {
        #[test]
        fn nobody_is_woken_early_or_forgotten(steps in proptest::collection::vec((0usize..4, 0u64..9_000, 1u64..900), 1..200)) {
            let timers = Timers::new();
            let watches: Vec<_> = (0..4).map(|_| watch()).collect();
            // The naive version: the due time of each, looked through one by one.
            let mut due = [None; 4];
            let mut expected = [0u64; 4];
            let mut now = 0;
            for (which, patience, pause) in steps {
                timers.arm(&watches[which], ms(now), ms(now + patience));
                due[which] = Some(now + patience);
                now += pause;
                timers.fire(ms(now));
                for (due, expected) in due.iter_mut().zip(&mut expected) {
                    if due.is_some_and(|at| at <= now) {
                        *due = None;
                        *expected += 1;
                    }
                }
                let seen: Vec<_> = watches.iter().map(|watch| wakes(watch)).collect();
                prop_assert_eq!(&seen[..], &expected[..]);
            }
        }
    }
}

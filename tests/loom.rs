//! The completion slot under every interleaving: the real `src/slot.rs`, built on loom's primitives.
//!
//! Each model is a handler (the main thread), the ticket's one owner (a GPU thread) and the parties that race it: the
//! core's timer with the deadline, whoever finds that the caller left. They keep the live count from what the moves
//! return, exactly as the waiting room does. Whatever the order of events, the handler is woken and finds exactly one
//! resolution, the one that a single party believes to have won, and the count ends at 0.

#[path = "../src/slot.rs"]
mod slot;

/// What `src/sync.rs` is to the server, in terms of loom.
mod sync {
    pub use loom::sync::atomic::{AtomicU8, Ordering};

    /// A mutex whose `lock` returns the guard itself, like `parking_lot`'s.
    #[derive(Debug)]
    pub struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Mutex<T> {
            Mutex(loom::sync::Mutex::new(value))
        }

        pub fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
            self.0.lock().expect("loom does not poison")
        }
    }
}

use loom::sync::atomic::{AtomicI64, AtomicUsize};
use loom::sync::{Arc, Condvar};
use loom::thread;

use slot::{Resolution, Slot, State, Waiter};
use sync::{Mutex, Ordering};

/// A one-token parker, as `may::sync::Blocker` is one.
#[derive(Debug)]
struct Parker {
    token: Mutex<bool>,
    given: Condvar,
}

impl Parker {
    fn new() -> Parker {
        Parker {
            token: Mutex::new(false),
            given: Condvar::new(),
        }
    }

    fn unpark(&self) {
        *self.token.lock() = true;
        self.given.notify_one();
    }
}

impl Waiter for Parker {
    fn park(&self) {
        let mut token = self.token.lock();
        while !*token {
            token = self.given.wait(token).expect("loom does not poison");
        }
        *token = false;
    }
}

/// One request's slot, and the books about it.
struct Request {
    slot: Slot<Parker, u32>,
    /// Live waiting tickets.
    waiting: AtomicI64,
    /// How many parties believe that they resolved the slot.
    winners: AtomicUsize,
}

impl Request {
    /// A ticket that has just been counted and queued.
    fn queued() -> Arc<Request> {
        Arc::new(Request {
            slot: Slot::new(Parker::new()),
            waiting: AtomicI64::new(1),
            winners: AtomicUsize::new(0),
        })
    }

    /// A ticket that a GPU thread has claimed.
    fn bound() -> Arc<Request> {
        let request = Request::queued();
        assert!(request.bind());
        request
    }

    /// A move out of `from` was won: corrects the count.
    fn left(&self, from: State) {
        if from.is_waiting() {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// What every party does after it tried to resolve the slot. Returns whether it won.
    fn settle(&self, won: Option<State>) -> bool {
        let Some(from) = won else { return false };
        self.left(from);
        self.winners.fetch_add(1, Ordering::SeqCst);
        self.slot.waiter().unpark();
        true
    }

    fn bind(&self) -> bool {
        let from = self.slot.bind();
        from.into_iter().for_each(|from| self.left(from));
        from.is_some()
    }

    /// Back to wait, as the scheduler does it: counted before it is moved.
    fn unbind(&self, to: State) -> bool {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let waits = self.slot.unbind(to);
        if !waits {
            self.left(to);
        }
        waits
    }

    fn answer(&self, reply: u32) -> bool {
        self.settle(self.slot.answer(reply, true))
    }

    fn fail(&self, reply: u32) -> bool {
        self.settle(self.slot.answer(reply, false))
    }

    fn expire(&self) -> bool {
        self.settle(self.slot.expire())
    }

    fn leave(&self) -> bool {
        self.settle(self.slot.leave())
    }

    /// The handler: waits, and must find the one resolution of the one winner.
    fn resolution(&self) -> Resolution<u32> {
        let found = self.slot.wait();
        let expected = match self.slot.state() {
            State::Done | State::Failed => matches!(found, Resolution::Answered(_)),
            State::Expired => found == Resolution::Expired,
            State::Gone => found == Resolution::Gone,
            live => unreachable!("the handler went on although the slot is {live:?}"),
        };
        assert!(expected, "{found:?} in state {:?}", self.slot.state());
        found
    }

    /// After all parties are through.
    fn check_books(&self) {
        assert_eq!(
            self.winners.load(Ordering::SeqCst),
            1,
            "resolved exactly once"
        );
        assert_eq!(
            self.waiting.load(Ordering::SeqCst),
            0,
            "nobody waits any more"
        );
    }
}

/// Runs `body` under every interleaving with at most `preemptions` of them involuntary.
fn explore(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(body);
}

fn spawn(request: &Arc<Request>, party: impl FnOnce(&Request) + 'static) -> thread::JoinHandle<()> {
    let request = Arc::clone(request);
    thread::spawn(move || party(&request))
}

/// Lets `parties` race, with the handler as one of them; checks the books; returns what the handler found.
fn race(request: &Arc<Request>, parties: Vec<thread::JoinHandle<()>>) -> Resolution<u32> {
    let found = request.resolution();
    parties
        .into_iter()
        .for_each(|party| party.join().expect("no party panics"));
    request.check_books();
    found
}

#[test]
fn bind_races_the_deadline_and_the_hang_up() {
    explore(2, || {
        let request = Request::queued();
        let owner = spawn(&request, |request| {
            if request.bind() {
                assert!(
                    !request.slot.state().is_waiting(),
                    "a bound ticket can't be claimed again"
                );
                request.answer(7);
            }
        });
        let timer = spawn(&request, |request| {
            request.expire();
        });
        let hang_up = spawn(&request, |request| {
            request.leave();
        });
        let found = race(&request, vec![owner, timer, hang_up]);
        assert!(matches!(
            found,
            Resolution::Answered(7) | Resolution::Expired | Resolution::Gone
        ));
    });
}

#[test]
fn an_answer_races_the_deadline_and_a_late_one_goes_nowhere() {
    explore(3, || {
        let request = Request::bound();
        let owner = spawn(&request, |request| {
            let won = request.answer(7);
            assert_eq!(won, request.slot.state() == State::Done);
        });
        let timer = spawn(&request, |request| {
            let won = request.expire();
            assert_eq!(won, request.slot.state() == State::Expired);
        });
        let found = race(&request, vec![owner, timer]);
        assert!(matches!(
            found,
            Resolution::Answered(7) | Resolution::Expired
        ));
    });
}

fn a_returned_ticket_is_bound_again(to: State) {
    explore(3, move || {
        let request = Request::bound();
        let owner = spawn(&request, move |request| {
            // Lost to the deadline at either step, the ticket is a husk and its owner drops it.
            if request.unbind(to) && request.bind() {
                request.answer(7);
            }
        });
        let timer = spawn(&request, |request| {
            request.expire();
        });
        let found = race(&request, vec![owner, timer]);
        assert!(matches!(
            found,
            Resolution::Answered(7) | Resolution::Expired
        ));
    });
}

#[test]
fn a_ticket_returned_unlaunched_is_bound_again_or_expires() {
    a_returned_ticket_is_bound_again(State::Fresh);
}

#[test]
fn a_retried_ticket_is_bound_again_or_expires() {
    a_returned_ticket_is_bound_again(State::Retry);
}

#[test]
fn a_returned_ticket_is_claimed_by_another_gpu_while_it_expires() {
    explore(2, || {
        let request = Request::bound();
        let returned = spawn(&request, |request| {
            request.unbind(State::Retry);
        });
        // In the server the waiting room's lock hands the ticket over; here the other GPU simply looks all the time.
        let claimant = spawn(&request, |request| {
            if request.bind() {
                request.answer(8);
            }
        });
        let timer = spawn(&request, |request| {
            request.expire();
        });
        let found = race(&request, vec![returned, claimant, timer]);
        assert!(matches!(
            found,
            Resolution::Answered(8) | Resolution::Expired
        ));
    });
}

#[test]
fn of_two_resolvers_one_wins_and_knows_it() {
    explore(3, || {
        let request = Request::queued();
        let timer = spawn(&request, |request| {
            request.expire();
        });
        let hang_up = spawn(&request, |request| {
            request.leave();
        });
        let found = race(&request, vec![timer, hang_up]);
        assert!(matches!(found, Resolution::Expired | Resolution::Gone));
    });
}

#[test]
fn a_failure_races_a_hang_up() {
    explore(3, || {
        let request = Request::queued();
        let owner = spawn(&request, |request| {
            request.fail(9);
        });
        let hang_up = spawn(&request, |request| {
            request.leave();
        });
        let found = race(&request, vec![owner, hang_up]);
        assert!(matches!(found, Resolution::Answered(9) | Resolution::Gone));
    });
}

#[test]
fn a_wake_up_before_the_park_is_not_lost_and_a_stale_one_is_harmless() {
    explore(3, || {
        let request = Request::bound();
        // The blocker is shared by all requests of a connection, so a token of the one before may still lie in it.
        let stale = spawn(&request, |request| request.slot.waiter().unpark());
        let owner = spawn(&request, |request| {
            assert!(request.answer(7));
        });
        assert_eq!(race(&request, vec![stale, owner]), Resolution::Answered(7));
    });
    explore(3, || {
        let request = Request::bound();
        assert!(request.answer(7));
        assert_eq!(request.resolution(), Resolution::Answered(7));
        request.check_books();
    });
}

//! The collector: where idle GPU threads wait for a batch. Leader/followers, so there is no batcher thread to be a
//! bottleneck.
//!
//! One idle GPU thread holds the token. It drains the hand-over, applies the launch rule and claims its batch; then it
//! gives the token to the next idle thread *before* it stages and launches, so an executor that blocks never blocks
//! another GPU. The token is a mutex guard: a panic gives it up as well.
//!
//! The token only says whose turn it is. The scheduler itself has a lock of its own, held for microseconds and never
//! while anybody sleeps, because others must reach it too: a busy GPU that binds its next batch ahead, one that goes
//! down, returned tickets.
//!
//! A holder with nothing to launch sleeps on the doorbell. It first says how many tickets it needs ([`Doorbell::arm`]),
//! then looks at the hand-over once more, then sleeps: an arrival either sees the number or is seen.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;
use parking_lot::{Condvar, Mutex};

use crate::admission::{Admission, Load};
use crate::batch::Batch;
use crate::batch::budget::SearchBudget;
use crate::batch::pool::{Activity, Capacity};
use crate::batch::schedule::{Advice, Scheduler};
use crate::clock::{self, Time};
use crate::queue::{Backlog, Doorbell, Handover};
use crate::ticket::{Failure, Ticket};
use crate::tier::Tier;
use crate::wake::Mailboxes;

/// What a GPU thread gets when it asks for work.
#[derive(Debug)]
pub enum Work {
    /// A batch of at least one ticket to stage and launch.
    Batch(Batch),
    /// Nothing until the time it asked for.
    Nothing,
    /// Nothing will come for this GPU any more: it was told to leave.
    Leave,
    /// The server ends: nothing will come any more.
    Closed,
}

/// See the module's text.
#[derive(Debug)]
pub struct Collector {
    scheduler: Mutex<Scheduler>,
    token: Mutex<()>,
    handover: Handover,
    doorbell: Arc<Doorbell>,
    ear: Receiver<()>,
    mailboxes: Arc<Mailboxes>,
    admission: Arc<Admission>,
    backlog: Arc<Backlog>,
    capacity: Arc<Capacity>,
    search_budget: SearchBudget,
    closed: (Mutex<bool>, Condvar),
    batch_max: usize,
}

impl Collector {
    /// A collector over `scheduler`, fed by `handover`. `admission` judges those who wait again.
    pub fn new(
        scheduler: Scheduler,
        handover: Handover,
        (doorbell, ear): (Arc<Doorbell>, Receiver<()>),
        mailboxes: Arc<Mailboxes>,
        admission: Arc<Admission>,
    ) -> Collector {
        Collector {
            backlog: Arc::clone(scheduler.backlog()),
            capacity: Arc::clone(scheduler.pool().capacity()),
            batch_max: scheduler.policy().batch_max,
            scheduler: Mutex::new(scheduler),
            token: Mutex::new(()),
            search_budget: SearchBudget::default(),
            handover,
            doorbell,
            ear,
            mailboxes,
            admission,
            closed: (Mutex::new(false), Condvar::new()),
        }
    }

    /// The live counts.
    pub fn backlog(&self) -> &Arc<Backlog> {
        &self.backlog
    }

    /// The pool's published figures.
    pub fn capacity(&self) -> &Arc<Capacity> {
        &self.capacity
    }

    /// How much of the pool's time the searches for bad inputs have taken.
    pub fn search_budget(&self) -> &SearchBudget {
        &self.search_budget
    }

    /// The mailboxes of the acceptor cores.
    pub fn mailboxes(&self) -> &Arc<Mailboxes> {
        &self.mailboxes
    }

    /// Arrivals per second as the launch rule sees them.
    pub fn arrival_rate(&self) -> f64 {
        self.scheduler.lock().arrival_rate(clock::now())
    }

    /// Blocks the thread of the healthy GPU `gpu` until the launch rule gives it a batch, or until `until`.
    pub fn next(&self, gpu: usize, until: Time) -> Work {
        if self
            .scheduler
            .lock()
            .set_activity(gpu, Activity::Idle(clock::now()))
        {
            self.doorbell.ring();
        }
        // The guard is the token. Followers queue here; `parking_lot` wakes one of them when it is given up.
        let Some(_token) = self.token.try_lock_until(clock::instant(until)) else {
            return self.idle_work();
        };
        let work = self.hold(gpu, until);
        self.doorbell.disarm();
        work
    }

    fn idle_work(&self) -> Work {
        if self.is_closed() {
            Work::Closed
        } else {
            Work::Nothing
        }
    }

    /// What the holder of the token does.
    fn hold(&self, gpu: usize, until: Time) -> Work {
        loop {
            let now = clock::now();
            if self.is_closed() || now >= until {
                return self.idle_work();
            }
            match self.look(gpu, now) {
                Ok(work) => return work,
                Err((need, again)) => self.sleep(need, again.min(until)),
            }
        }
    }

    /// One look at the room: what to do, or how many tickets to wait for and until when.
    fn look(&self, gpu: usize, now: Time) -> Result<Work, (usize, Time)> {
        let mut wakes = self.mailboxes.gather();
        let mut scheduler = self.scheduler.lock();
        self.seat_arrivals(&mut scheduler);
        loop {
            match scheduler.decide(gpu, now) {
                Advice::Hold { need, again } => return Err((need, again)),
                Advice::Leave => return Ok(Work::Leave),
                Advice::Launch(lane, reason) => {
                    let batch = scheduler.claim(gpu, lane, reason, now, &mut wakes);
                    if !batch.tickets.is_empty() {
                        return Ok(Work::Batch(batch));
                    }
                }
            }
        }
    }

    /// Everybody who was handed over takes a seat.
    fn seat_arrivals(&self, scheduler: &mut Scheduler) {
        self.handover.drain(|ticket| scheduler.seat(ticket));
        self.handover
            .drain_whole(|tickets| scheduler.seat_whole(tickets));
    }

    fn sleep(&self, need: usize, until: Time) {
        self.doorbell.arm(need);
        if self.handover.is_empty() {
            // Both outcomes mean the same: look again.
            let _ = self.ear.recv_deadline(clock::instant(until));
        }
    }

    /// Binds the next batch of the busy GPU `gpu` if it is full and no GPU is idle.
    pub fn bind_ahead(&self, gpu: usize) -> Option<Batch> {
        let now = clock::now();
        let mut wakes = self.mailboxes.gather();
        let mut scheduler = self.scheduler.lock();
        self.seat_arrivals(&mut scheduler);
        scheduler.bind_ahead(gpu, now, &mut wakes)
    }

    /// Takes back a batch that was bound and not launched.
    pub fn give_back(&self, batch: Batch) {
        self.scheduler.lock().give_back(batch);
        self.returned();
    }

    /// Tickets came back to wait, or a GPU went. Where nobody will ever look at the waiting any more, or there is no GPU to
    /// wait for, they are told at once.
    fn returned(&self) {
        let hopeless = self.scheduler.lock().hopeless(self.is_closed());
        if let Some(failure) = hopeless {
            self.fail_waiting(&failure);
        }
        self.doorbell.ring();
    }

    /// `gpu` launches a batch now. Nothing happens if it was taken out of service meanwhile.
    pub fn launched(&self, gpu: usize, now: Time) {
        self.scheduler.lock().launched(gpu, now);
    }

    /// A batch of `gpu` took `took`.
    pub fn measured(&self, gpu: usize, took: Duration) {
        self.scheduler.lock().measured(gpu, took);
    }

    /// `gpu` is out of service. If it was the last one, nobody waits for a GPU that may come back: 503 at once.
    pub fn down(&self, gpu: usize) {
        self.scheduler.lock().set_activity(gpu, Activity::Down);
        self.returned();
    }

    /// `gpu` is to leave: it counts as capacity no more and gets nothing any more, and whoever sleeps on its behalf looks
    /// up. If it was the last one in service, those who wait are told so.
    pub fn leave(&self, gpu: usize) {
        self.scheduler.lock().close(gpu);
        self.returned();
        // With the lock: a thread that has just looked and not slept yet would miss it.
        let _closed = self.closed.0.lock();
        self.closed.1.notify_all();
    }

    /// Another GPU, not in service yet, takes the seat `gpu`.
    pub fn open(&self, gpu: usize) {
        self.scheduler.lock().open(gpu);
    }

    /// Whether `gpu` counts as capacity.
    pub fn counts(&self, gpu: usize) -> bool {
        self.scheduler.lock().pool().activity(gpu) != Activity::Down
    }

    /// L of `gpu`.
    pub fn batch_time(&self, gpu: usize) -> Duration {
        self.scheduler.lock().batch_time(gpu)
    }

    /// A canary of `gpu` took `took`, which holds until the next batch is measured.
    pub fn canary(&self, gpu: usize, took: Duration) {
        self.scheduler.lock().canary(gpu, took);
    }

    /// Tickets whose batch was lost wait again, in the retry lane.
    pub fn retry(&self, tickets: Vec<Box<Ticket>>) {
        self.scheduler.lock().retry(tickets);
        self.returned();
    }

    /// Looks at everybody who waits: drops those whose callers left, and answers those who can't make their deadline any
    /// more with the 429 that they would rather have now than a 504 later. Returns how many were shed, by tier.
    ///
    /// Called every [`crate::admission::REJUDGE_EVERY`], also while every GPU is busy and nobody else looks.
    pub fn rejudge(&self) -> [usize; Tier::COUNT] {
        // Husks in the hand-over are cleared too: they would fill it while nobody waits.
        if self.backlog.total() == 0 && self.handover.is_empty() {
            return [0; Tier::COUNT];
        }
        let (now, load) = (clock::now(), Load::of(&self.backlog, &self.capacity));
        let mut wakes = self.mailboxes.gather();
        let mut scheduler = self.scheduler.lock();
        self.seat_arrivals(&mut scheduler);
        if let Some(failure) = scheduler.hopeless(false) {
            scheduler.fail_waiting(&failure, &mut wakes);
            return [0; Tier::COUNT];
        }
        scheduler.rejudge(now, &self.admission, &load, &mut wakes)
    }

    /// Whether the idle `gpu` should run a probe batch, to refresh a batch time that keeps everybody out.
    pub fn probe_due(&self, gpu: usize) -> bool {
        let Activity::Idle(since) = self.scheduler.lock().pool().activity(gpu) else {
            return false;
        };
        self.admission.probe_due(clock::now(), since)
    }

    /// Tickets in a full batch.
    pub fn batch_max(&self) -> usize {
        self.batch_max
    }

    /// Whether the server ends.
    pub fn is_closed(&self) -> bool {
        *self.closed.0.lock()
    }

    /// Sleeps until `until`, or until the server ends.
    pub fn wait_closed(&self, until: Time) {
        self.wait_closed_or(until, || false);
    }

    /// The same for a GPU's thread, which has no reason to sleep either once its GPU `is_leaving`.
    pub fn wait_closed_or(&self, until: Time, is_leaving: impl Fn() -> bool) {
        let mut closed = self.closed.0.lock();
        while !*closed && !is_leaving() {
            let waited = self.closed.1.wait_until(&mut closed, clock::instant(until));
            if waited.timed_out() {
                return;
            }
        }
    }

    /// Ends the server: whoever waits is told so, and GPU threads get [`Work::Closed`].
    pub fn close(&self) {
        *self.closed.0.lock() = true;
        self.closed.1.notify_all();
        self.fail_waiting(&Failure::Draining);
        self.doorbell.ring();
    }

    /// Answers everybody who waits with `failure`.
    pub fn fail_waiting(&self, failure: &Failure) {
        let mut wakes = self.mailboxes.gather();
        let mut scheduler = self.scheduler.lock();
        self.seat_arrivals(&mut scheduler);
        scheduler.fail_waiting(failure, &mut wakes);
    }
}

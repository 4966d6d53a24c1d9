//! The scheduler: the waiting room, the pool and the launch rule under one roof. Pure: it takes `now`, holds no clock,
//! no channel and no device, and is what the deterministic simulation drives.
//!
//! Its caller is the collector, which guards it with a lock. A GPU thread asks [`Scheduler::decide`] whether it may launch
//! and, if so, [`Scheduler::claim`]s its batch in the same breath. A busy GPU may bind its next batch ahead, but only a
//! full one and only while no GPU is idle ([`Scheduler::bind_ahead`]): whatever is bound early can neither be overtaken
//! by a higher tier nor go to a GPU that becomes free sooner.
//!
//! Batches that arrive whole, as they do on a worker, come before everything else and know no rule: each is launched as
//! soon as a GPU is free, and bound ahead whatever its size.

mod dismiss;

use std::sync::Arc;
use std::time::Duration;

use crate::batch::Batch;
use crate::batch::policy::{Decision, Launch, Policy, View, even_gap};
use crate::batch::pool::{Activity, Pool};
use crate::batch::promise::Promises;
use crate::batch::rate::ArrivalRate;
use crate::clock::Time;
use crate::queue::{Backlog, Lane, WaitingRoom};
use crate::ticket::Ticket;
use crate::tier::Tier;
use crate::wake::Wakes;

/// λ's time constant is the batch time divided by this.
const RATE_TAUS_PER_BATCH: u32 = 5;

/// Retry batches hold at most `batch_max` divided by this.
const RETRY_SHARE: usize = 4;

/// What a GPU thread that asks for a batch is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Claim a batch of this lane now.
    Launch(Lane, Launch),
    /// Wait until `need` tickets wait, or until the time given, whichever is first.
    Hold {
        /// Tickets at which the rule is worth another look.
        need: usize,
        /// When to look again whatever happens; [`Time::MAX`] if nothing waits.
        again: Time,
    },
    /// Nothing will come any more: the GPU's seat is closed.
    Leave,
}

/// Whose turn it is on a GPU.
#[derive(Clone, Copy, Debug)]
struct NextUp {
    lane: Lane,
    /// When the oldest of the lane arrived.
    oldest: Time,
    /// Whether retried tickets wait, in this batch or behind it.
    retry_waits: bool,
}

/// While a batch is held the rule is looked at again at least this often: `need` falls as time passes.
pub const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// See the module's text.
#[derive(Debug)]
pub struct Scheduler {
    room: WaitingRoom,
    backlog: Arc<Backlog>,
    pool: Pool,
    policy: Policy,
    rate: ArrivalRate,
    /// Per GPU: whether its last batch was a retry batch. At most every second one is, while fresh tickets wait.
    retried_last: Vec<bool>,
    /// Per lane.
    promises: [Promises; 2],
}

impl Scheduler {
    /// A scheduler with seats for `gpus` GPUs, all open and all down.
    pub fn new(policy: Policy, gpus: usize, backlog: Arc<Backlog>) -> Scheduler {
        Scheduler {
            room: WaitingRoom::default(),
            backlog,
            pool: Pool::new(gpus, policy.batch_max),
            policy,
            rate: ArrivalRate::new(Duration::from_millis(20)),
            retried_last: vec![false; gpus],
            promises: [Promises::default(); 2],
        }
    }

    /// Promises each tier a part, 0 to 1, of every batch. By default nothing is promised and priority is strict.
    #[must_use]
    pub fn with_min_share(mut self, min_share: [f64; Tier::COUNT]) -> Scheduler {
        self.promises = [Promises::new(min_share); 2];
        self
    }

    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The live counts.
    pub fn backlog(&self) -> &Arc<Backlog> {
        &self.backlog
    }

    /// The launch rule's settings.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Arrivals per second as the launch rule sees them.
    pub fn arrival_rate(&self, now: Time) -> f64 {
        self.rate.per_second(now)
    }

    /// Seats a fresh ticket from the hand-over.
    pub fn seat(&mut self, ticket: Box<Ticket>) {
        self.rate.arrive(ticket.arrived);
        self.room.push_back(Lane::Fresh, ticket);
    }

    /// Seats a batch that was made elsewhere.
    pub fn seat_whole(&mut self, tickets: Vec<Box<Ticket>>) {
        for ticket in &tickets {
            self.rate.arrive(ticket.arrived);
        }
        self.room.push_whole(tickets);
    }

    /// Changes what `gpu` does. Returns whether a holder of the token should look again.
    pub fn set_activity(&mut self, gpu: usize, activity: Activity) -> bool {
        let changed = self.pool.set(gpu, activity);
        if changed {
            // A GPU that enters service brings the time of its canary with it.
            self.follow_batch_time();
        }
        changed
    }

    /// `gpu` launches a batch at `now`. A GPU that is down stays down: its thread may be the last to hear of it.
    pub fn launched(&mut self, gpu: usize, now: Time) {
        if self.pool.activity(gpu) != Activity::Down {
            let ends = now + self.pool.batch_time(gpu);
            self.pool.set(gpu, Activity::Busy(ends));
        }
    }

    /// A batch of `gpu` took `took`.
    pub fn measured(&mut self, gpu: usize, took: Duration) {
        self.pool.measured(gpu, took);
        self.follow_batch_time();
    }

    /// λ's time constant follows the batch time of the GPUs in service, and stays what it was while there are none.
    fn follow_batch_time(&mut self) {
        if self.pool.healthy() > 0 {
            let batch_time = self.pool.capacity().batch_time();
            self.rate.set_tau(batch_time / RATE_TAUS_PER_BATCH);
        }
    }

    /// A canary of `gpu` took `took`; see [`Pool::canary`].
    pub fn canary(&mut self, gpu: usize, took: Duration) {
        self.pool.canary(gpu, took);
        self.follow_batch_time();
    }

    /// `gpu` gets no batch any more and counts as capacity no more. What it runs, it runs to the end.
    pub fn close(&mut self, gpu: usize) {
        self.pool.close(gpu);
        self.follow_batch_time();
    }

    /// Another GPU takes the seat `gpu`.
    pub fn open(&mut self, gpu: usize) {
        self.pool.open(gpu);
        self.retried_last[gpu] = false;
    }

    /// L of `gpu`.
    pub fn batch_time(&self, gpu: usize) -> Duration {
        self.pool.batch_time(gpu)
    }

    /// Tickets in a full batch of `lane`.
    pub fn batch_max(&self, lane: Lane) -> usize {
        match lane {
            Lane::Fresh => self.policy.batch_max,
            Lane::Retry => (self.policy.batch_max / RETRY_SHARE).max(1),
        }
    }

    /// Living tickets seated in `lane`. The counts may be ahead of the room by tickets that are still being handed over.
    fn living(&self, lane: Lane) -> usize {
        self.backlog.waiting_in(lane).min(self.room.len(lane))
    }

    /// What `gpu` would launch next: a retry batch if any wait, but not twice in a row while fresh ones wait. `None` if
    /// nobody waits. Asks the room and not the counts: a ticket that expires this instant is still counted for a moment,
    /// and a lane with nobody in it must not be chosen over one with somebody.
    fn next_up(&mut self, gpu: usize) -> Option<NextUp> {
        let fresh = self.room.oldest(Lane::Fresh);
        let retry = self.room.oldest(Lane::Retry);
        let (lane, oldest) = match (fresh, retry) {
            (Some(oldest), Some(_)) if self.retried_last[gpu] => (Lane::Fresh, oldest),
            (_, Some(oldest)) => (Lane::Retry, oldest),
            (Some(oldest), None) => (Lane::Fresh, oldest),
            (None, None) => return None,
        };
        Some(NextUp {
            lane,
            oldest,
            retry_waits: retry.is_some(),
        })
    }

    /// The launch rule's settings for `next`. While retried tickets wait nothing is held: they have lost a batch time
    /// already, no more of their kind are about to come, and a batch of fresh ones that is due first is in their way.
    fn policy_for(&self, next: NextUp) -> Policy {
        let patience = if next.retry_waits {
            0.0
        } else {
            self.policy.patience
        };
        Policy {
            patience,
            ..self.policy
        }
    }

    /// Applies the launch rule for the idle `gpu`.
    pub fn decide(&mut self, gpu: usize, now: Time) -> Advice {
        if !self.pool.is_open(gpu) {
            return Advice::Leave;
        }
        if self.room.has_whole() {
            return Advice::Launch(Lane::Fresh, Launch::Whole);
        }
        let Some(next) = self.next_up(gpu) else {
            return Advice::Hold {
                need: 1,
                again: Time::MAX,
            };
        };
        let batch_time = self.pool.batch_time(gpu);
        let idle = self.pool.idle().max(1);
        let view = View {
            waiting: self.living(next.lane),
            oldest_wait: now.since(next.oldest),
            arrival_rate: self.rate.per_second(now),
            gap: even_gap(idle, self.pool.remaining(now), batch_time),
            lone_gpu: self.pool.healthy() <= 1,
        };
        let policy = self.policy_for(next);
        match policy.decide(self.batch_max(next.lane), &view) {
            Decision::Launch(reason) => Advice::Launch(next.lane, reason),
            Decision::Hold { need } => {
                let again = (next.oldest + policy.hold_max).min(now + LOOK_AGAIN);
                Advice::Hold { need, again }
            }
        }
    }

    /// Binds up to a batch of `lane` for `gpu`, strictly by tier, FIFO inside a tier, skipping the dead. May come back
    /// empty if everybody turned out to be dead. The GPU counts as busy from now on unless it does.
    pub fn claim(
        &mut self,
        gpu: usize,
        lane: Lane,
        reason: Launch,
        now: Time,
        wakes: &mut Wakes<'_>,
    ) -> Batch {
        let tickets = match reason {
            Launch::Whole => self.take_whole(now, wakes),
            Launch::Full | Launch::Hold | Launch::Paced => self.take(lane, now, wakes),
        };
        if !tickets.is_empty() {
            self.retried_last[gpu] = lane == Lane::Retry;
            self.launched(gpu, now);
        }
        Batch {
            lane,
            reason,
            tickets,
        }
    }

    /// Binds the next batch of a GPU that is still busy: full, or not at all.
    pub fn bind_ahead(&mut self, gpu: usize, now: Time, wakes: &mut Wakes<'_>) -> Option<Batch> {
        if !self.pool.is_open(gpu) {
            return None;
        }
        if self.room.has_whole() && self.pool.idle() == 0 {
            let batch = Batch {
                lane: Lane::Fresh,
                reason: Launch::Whole,
                tickets: self.take_whole(now, wakes),
            };
            return (!batch.tickets.is_empty()).then_some(batch);
        }
        let lane = self.next_up(gpu)?.lane;
        if self.pool.idle() > 0 || self.living(lane) < self.batch_max(lane) {
            return None;
        }
        let batch = Batch {
            lane,
            reason: Launch::Full,
            tickets: self.take(lane, now, wakes),
        };
        if batch.tickets.len() < self.batch_max(lane) {
            self.give_back(batch);
            return None;
        }
        self.retried_last[gpu] = lane == Lane::Retry;
        Some(batch)
    }

    fn take(&mut self, lane: Lane, now: Time, wakes: &mut Wakes<'_>) -> Vec<Box<Ticket>> {
        let room_for = self.batch_max(lane);
        let mut tickets = Vec::with_capacity(self.living(lane).min(room_for));
        for tier in Tier::ALL {
            // Those above leave what is promised to those below, if they are there to take it.
            let up_to = room_for - self.promised_below(tier, lane).min(room_for);
            self.fill(&mut tickets, up_to, (lane, tier), now, wakes);
        }
        // A promise is no use to anybody if its takers turned out to be dead.
        for tier in Tier::ALL {
            self.fill(&mut tickets, room_for, (lane, tier), now, wakes);
        }
        let took =
            Tier::ALL.map(|tier| tickets.iter().filter(|ticket| ticket.tier == tier).count());
        let waiting = Tier::ALL.map(|tier| self.backlog.waiting(lane, tier));
        self.promises[lane as usize].settle(took, waiting);
        let living = self.backlog.waiting_in(lane);
        self.room.sweep(lane, living);
        tickets
    }

    /// Binds the next batch that arrived whole: those of it who still live.
    fn take_whole(&mut self, now: Time, wakes: &mut Wakes<'_>) -> Vec<Box<Ticket>> {
        let hold_from = self.pool.idle_since();
        let mut tickets = self.room.pop_whole().unwrap_or_default();
        tickets.retain_mut(|ticket| {
            ticket.timeline.hold_from = hold_from.max(ticket.arrived).min(now);
            self.bind(ticket, now, wakes)
        });
        tickets
    }

    fn fill(
        &mut self,
        tickets: &mut Vec<Box<Ticket>>,
        up_to: usize,
        (lane, tier): (Lane, Tier),
        now: Time,
        wakes: &mut Wakes<'_>,
    ) {
        let hold_from = self.pool.idle_since();
        while tickets.len() < up_to {
            let Some(mut ticket) = self.room.pop(lane, tier) else {
                return;
            };
            if self.bind(&mut ticket, now, wakes) {
                ticket.timeline.hold_from = hold_from.max(ticket.arrived).min(now);
                tickets.push(ticket);
            }
        }
    }

    /// Places of a batch of `lane` that are kept for the tiers below `tier`.
    fn promised_below(&self, tier: Tier, lane: Lane) -> usize {
        let promises = &self.promises[lane as usize];
        let room_for = self.batch_max(lane);
        Tier::ALL[tier.index() + 1..]
            .iter()
            .map(|&below| promises.places(below, room_for, self.backlog.waiting(lane, below)))
            .sum()
    }

    /// Binds one ticket, unless it is past its deadline or its caller has left.
    fn bind(&self, ticket: &mut Ticket, now: Time, wakes: &mut Wakes<'_>) -> bool {
        let (from, bound) = if ticket.deadline <= now {
            (ticket.expire(wakes), false)
        } else if ticket.peer.is_gone() {
            (ticket.leave(wakes), false)
        } else {
            (ticket.bind(now), true)
        };
        if let Some(from) = from {
            self.backlog.left(from, ticket.tier);
        }
        bound && from.is_some()
    }

    /// Seats a batch that was bound but not launched where its tickets sat before. No attempt is spent.
    pub fn give_back(&mut self, batch: Batch) {
        let lane = batch.lane;
        if batch.reason == Launch::Whole {
            let tickets = batch.tickets.into_iter();
            let tickets: Vec<_> = tickets
                .filter_map(|ticket| self.unbind(ticket, lane))
                .collect();
            return self.room.put_back_whole(tickets);
        }
        for ticket in batch.tickets.into_iter().rev() {
            if let Some(ticket) = self.unbind(ticket, lane) {
                self.room.put_back(lane, ticket);
            }
        }
    }

    /// Seats tickets whose batch was lost in their tier's retry lane.
    pub fn retry(&mut self, tickets: impl IntoIterator<Item = Box<Ticket>>) {
        for ticket in tickets {
            if let Some(ticket) = self.unbind(ticket, Lane::Retry) {
                self.room.push_back(Lane::Retry, ticket);
            }
        }
    }

    /// Counts a bound ticket as waiting in `lane` and moves its slot there; drops it if it was resolved meanwhile.
    fn unbind(&self, mut ticket: Box<Ticket>, lane: Lane) -> Option<Box<Ticket>> {
        self.backlog.returns(lane, ticket.tier);
        if ticket.unbind(lane.state()) {
            return Some(ticket);
        }
        self.backlog.left(lane.state(), ticket.tier);
        None
    }

    /// The seated tickets of `tier` in `lane`, for checks.
    pub fn seated(&self, lane: Lane, tier: Tier) -> impl Iterator<Item = &Ticket> {
        self.room.seated(lane, tier)
    }
}

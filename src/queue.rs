//! From the acceptor cores to the GPU threads: hand-over channels, live counts and the waiting room.
//!
//! An acceptor core offers a ticket through [`Intake`]: it is counted, and put into its tier's bounded channel. The GPU
//! thread that holds the collector's token drains the channels into the [`WaitingRoom`], whose deques only that thread
//! touches, and claims from there. So a ticket passes two queues but is counted once, in the [`Backlog`], from the
//! moment it is offered until it is claimed or resolved:
//!
//! `live waiting = admitted + returned − claimed − abandoned`, per tier and lane, at all times.
//!
//! On a worker tickets come in batches that were made elsewhere. Such a batch passes both queues whole
//! ([`Intake::offer_whole`]) and is claimed whole; its tickets are counted like all others.
//!
//! A ticket whose deadline passes, or whose caller leaves, stops counting at that moment, though its husk stays in its
//! queue until somebody walks past. Husks are bounded: channels by their capacity, deques by a sweep whenever husks
//! outnumber the living.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering, fence};

use crossbeam_channel::{Receiver, Sender, bounded};
use crossbeam_utils::CachePadded;

use crate::clock::Time;
use crate::slot::State;
use crate::ticket::Ticket;
use crate::tier::Tier;

/// Which of a tier's two queues a ticket waits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Never launched, or returned unlaunched.
    Fresh,
    /// Its first batch was lost. Retried tickets only share batches with each other: if an input kills GPUs, it takes
    /// few others along.
    Retry,
}

impl Lane {
    /// Both lanes.
    pub const ALL: [Lane; 2] = [Lane::Fresh, Lane::Retry];

    /// The slot state of a ticket that waits in this lane.
    pub const fn state(self) -> State {
        match self {
            Lane::Fresh => State::Fresh,
            Lane::Retry => State::Retry,
        }
    }

    const fn index(self) -> usize {
        self as usize
    }
}

/// Live waiting tickets per tier and lane. Read by admission, the launch rule and the metrics; written by whoever wins
/// the move of a slot into or out of a waiting state, so it is exact at every moment.
#[derive(Debug)]
pub struct Backlog {
    /// Signed, so that a race's intermediate value is small and negative instead of huge.
    counts: [[CachePadded<AtomicI64>; Tier::COUNT]; 2],
    bound: i64,
}

impl Backlog {
    /// An empty backlog that lets at most `bound` tickets of each tier wait in the fresh lane.
    pub fn new(bound: usize) -> Backlog {
        Backlog {
            counts: Default::default(),
            bound: i64::try_from(bound).unwrap_or(i64::MAX),
        }
    }

    fn count(&self, lane: Lane, tier: Tier) -> &AtomicI64 {
        &self.counts[lane.index()][tier.index()]
    }

    /// Live tickets of `tier` waiting in `lane`.
    pub fn waiting(&self, lane: Lane, tier: Tier) -> usize {
        usize::try_from(self.count(lane, tier).load(Ordering::SeqCst)).unwrap_or(0)
    }

    /// Live tickets waiting in `lane`, all tiers.
    pub fn waiting_in(&self, lane: Lane) -> usize {
        Tier::ALL
            .into_iter()
            .map(|tier| self.waiting(lane, tier))
            .sum()
    }

    /// Live tickets waiting.
    pub fn total(&self) -> usize {
        Lane::ALL
            .into_iter()
            .map(|lane| self.waiting_in(lane))
            .sum()
    }

    /// Counts a fresh ticket unless its tier's queue is full.
    fn try_enter(&self, tier: Tier) -> bool {
        let count = self.count(Lane::Fresh, tier);
        let fits = count.fetch_add(1, Ordering::SeqCst) < self.bound;
        if !fits {
            count.fetch_sub(1, Ordering::SeqCst);
        }
        fits
    }

    /// A bound ticket is about to wait again. Called before its slot is moved, so that nobody can take it out first.
    pub fn returns(&self, lane: Lane, tier: Tier) {
        self.count(lane, tier).fetch_add(1, Ordering::SeqCst);
    }

    /// A ticket left the state `from`, by claim or by resolution. Does nothing if it was not waiting.
    pub fn left(&self, from: State, tier: Tier) {
        let lane = match from {
            State::Fresh => Lane::Fresh,
            State::Retry => Lane::Retry,
            _ => return,
        };
        self.count(lane, tier).fetch_sub(1, Ordering::SeqCst);
    }
}

/// When an arrival has to ring for the holder of the token, and the bell itself.
///
/// A holder that waits for more tickets says how many it needs; arrivals below that number don't wake it. Rung with
/// `try_send` into a channel of one, so a ring never blocks and never piles up.
#[derive(Debug)]
pub struct Doorbell {
    rings_at: AtomicUsize,
    bell: Sender<()>,
}

impl Doorbell {
    /// The bell and the end at which the holder listens.
    pub fn new() -> (Doorbell, Receiver<()>) {
        let (bell, ear) = bounded(1);
        (
            Doorbell {
                rings_at: AtomicUsize::new(usize::MAX),
                bell,
            },
            ear,
        )
    }

    /// From now on, arrivals ring once `need` tickets wait. The caller looks at the hand-over again after this and
    /// before it sleeps.
    pub fn arm(&self, need: usize) {
        self.rings_at.store(need, Ordering::SeqCst);
        // Pairs with the fence in `arrived`: either that arrival sees `need`, or the caller's next look sees its ticket.
        fence(Ordering::SeqCst);
    }

    /// Nobody listens for arrivals: every GPU is busy.
    pub fn disarm(&self) {
        self.rings_at.store(usize::MAX, Ordering::SeqCst);
    }

    /// A ticket was handed over and `waiting` reads how many wait now.
    fn arrived(&self, waiting: impl FnOnce() -> usize) {
        fence(Ordering::SeqCst);
        let rings_at = self.rings_at.load(Ordering::SeqCst);
        if rings_at != usize::MAX && waiting() >= rings_at {
            self.ring();
        }
    }

    /// Wakes the holder for news other than an arrival: a GPU came or went, tickets came back, the server drains.
    pub fn ring(&self) {
        // A full channel means that it is already rung, a closed one that nobody is left to hear it.
        let _ = self.bell.try_send(());
    }
}

/// The acceptor cores' end of the hand-over.
#[derive(Debug)]
pub struct Intake {
    channels: [Sender<Box<Ticket>>; Tier::COUNT],
    whole: Sender<Vec<Box<Ticket>>>,
    backlog: Arc<Backlog>,
    doorbell: Arc<Doorbell>,
}

/// The collector's end of the hand-over.
#[derive(Debug)]
pub struct Handover {
    channels: [Receiver<Box<Ticket>>; Tier::COUNT],
    whole: Receiver<Vec<Box<Ticket>>>,
}

/// Whole batches that may lie in the hand-over at a time. A worker lets in two, and each is drained at the next look.
const WHOLE_BOUND: usize = 8;

/// Both ends of the hand-over, with room for `bound` tickets in each tier.
pub fn handover(bound: usize, doorbell: Arc<Doorbell>) -> (Intake, Handover, Arc<Backlog>) {
    let pairs = Tier::ALL.map(|_| bounded(bound));
    let (whole_in, whole_out) = bounded(WHOLE_BOUND);
    let backlog = Arc::new(Backlog::new(bound));
    let channels = pairs.each_ref().map(|(sender, _)| sender.clone());
    let intake = Intake {
        channels,
        whole: whole_in,
        backlog: Arc::clone(&backlog),
        doorbell,
    };
    (
        intake,
        Handover {
            channels: pairs.map(|(_, receiver)| receiver),
            whole: whole_out,
        },
        backlog,
    )
}

impl Intake {
    /// Queues a ticket. Never blocks.
    ///
    /// # Errors
    /// Gives the ticket back if its tier's queue is full. It was never admitted and is not counted: the handler
    /// withdraws it and answers 429 itself.
    pub fn offer(&self, ticket: Box<Ticket>) -> Result<(), Box<Ticket>> {
        let tier = ticket.tier;
        if !self.backlog.try_enter(tier) {
            return Err(ticket);
        }
        // The channel holds husks as well as living tickets, so it can be full although the count is not.
        if let Err(refused) = self.channels[tier.index()].try_send(ticket) {
            self.backlog.left(State::Fresh, tier);
            return Err(refused.into_inner());
        }
        self.doorbell.arrived(|| self.backlog.total());
        Ok(())
    }

    /// Queues a batch that was made elsewhere and is to run as it is. Never blocks.
    ///
    /// # Errors
    /// Gives the tickets back if there is no room for all of them; see [`Intake::offer`].
    pub fn offer_whole(&self, tickets: Vec<Box<Ticket>>) -> Result<(), Vec<Box<Ticket>>> {
        let entered = tickets
            .iter()
            .take_while(|ticket| self.backlog.try_enter(ticket.tier))
            .count();
        let refused = if entered < tickets.len() {
            tickets
        } else if let Err(refused) = self.whole.try_send(tickets) {
            refused.into_inner()
        } else {
            self.doorbell.arrived(|| self.backlog.total());
            return Ok(());
        };
        for ticket in &refused[..entered] {
            self.backlog.left(State::Fresh, ticket.tier);
        }
        Err(refused)
    }

    /// The live counts.
    pub fn backlog(&self) -> &Arc<Backlog> {
        &self.backlog
    }
}

impl Handover {
    /// Whether no ticket waits to be drained.
    pub fn is_empty(&self) -> bool {
        self.channels.iter().all(Receiver::is_empty) && self.whole.is_empty()
    }

    /// Takes every whole batch that was handed over before the call, in order.
    pub fn drain_whole(&self, mut take: impl FnMut(Vec<Box<Ticket>>)) {
        for tickets in self.whole.try_iter().take(self.whole.len()) {
            take(tickets);
        }
    }

    /// Takes every ticket that was handed over before the call, tier by tier, FIFO inside a tier.
    pub fn drain(&self, mut take: impl FnMut(Box<Ticket>)) {
        for channel in &self.channels {
            // Bounded by what lies there now: arrivals must not keep the holder here for ever.
            for ticket in channel.try_iter().take(channel.len()) {
                take(ticket);
            }
        }
    }
}

/// The tickets that wait, in the order in which they are claimed. Only ever touched under the collector's lock.
///
/// Each ticket is numbered when it is seated in a lane, and every deque ascends by that number. Two GPUs may give their
/// batches back in the order opposite to that in which they bound them; the numbers say who was first.
#[derive(Debug, Default)]
pub struct WaitingRoom {
    lanes: [[VecDeque<Box<Ticket>>; Tier::COUNT]; 2],
    /// Batches that arrived whole, first come first served.
    whole: VecDeque<Vec<Box<Ticket>>>,
    seats: u64,
}

/// Husks that are tolerated before a sweep is worth its walk.
const HUSKS_TOLERATED: usize = 1024;

impl WaitingRoom {
    fn queue(&mut self, lane: Lane, tier: Tier) -> &mut VecDeque<Box<Ticket>> {
        &mut self.lanes[lane.index()][tier.index()]
    }

    /// Seats a ticket behind those of its tier.
    pub fn push_back(&mut self, lane: Lane, mut ticket: Box<Ticket>) {
        self.seats += 1;
        ticket.seat = self.seats;
        self.queue(lane, ticket.tier).push_back(ticket);
    }

    /// Seats a ticket that was bound from `lane` and not launched where it sat before. O(log n), and O(1) moves for a
    /// batch that is returned last first.
    pub fn put_back(&mut self, lane: Lane, ticket: Box<Ticket>) {
        let queue = self.queue(lane, ticket.tier);
        let place = queue.partition_point(|seated| seated.seat < ticket.seat);
        queue.insert(place, ticket);
    }

    /// Seats a batch that arrived whole behind the others.
    pub fn push_whole(&mut self, tickets: Vec<Box<Ticket>>) {
        self.whole.push_back(tickets);
    }

    /// Seats a whole batch that was bound and not launched in front of the others.
    pub fn put_back_whole(&mut self, tickets: Vec<Box<Ticket>>) {
        self.whole.push_front(tickets);
    }

    /// The next whole batch, husks included.
    pub fn pop_whole(&mut self) -> Option<Vec<Box<Ticket>>> {
        self.whole.pop_front()
    }

    /// Whether a whole batch waits.
    pub fn has_whole(&self) -> bool {
        !self.whole.is_empty()
    }

    /// Tickets and husks in `lane`, whole batches aside.
    pub fn len(&self, lane: Lane) -> usize {
        self.lanes[lane.index()].iter().map(VecDeque::len).sum()
    }

    /// Whether nobody is seated, not even a husk.
    pub fn is_empty(&self) -> bool {
        !self.has_whole() && Lane::ALL.into_iter().all(|lane| self.len(lane) == 0)
    }

    /// The next living ticket of `tier`, dropping husks on the way. Amortised O(1).
    pub fn pop(&mut self, lane: Lane, tier: Tier) -> Option<Box<Ticket>> {
        let queue = self.queue(lane, tier);
        loop {
            let ticket = queue.pop_front()?;
            if ticket.is_waiting() {
                return Some(ticket);
            }
        }
    }

    /// When the oldest living ticket of `lane` arrived, of those that are first in their tier: in the retry lane, where
    /// whoever was lost first sits first, others may have arrived earlier still. Drops the husks at the head of each
    /// tier's queue.
    pub fn oldest(&mut self, lane: Lane) -> Option<Time> {
        let queues = &mut self.lanes[lane.index()];
        queues.iter_mut().filter_map(oldest_of).min()
    }

    /// Drops husks if they outnumber the `living` tickets of `lane` by enough to be worth it.
    pub fn sweep(&mut self, lane: Lane, living: usize) {
        if self.len(lane) > 2 * living + HUSKS_TOLERATED {
            self.lanes[lane.index()]
                .iter_mut()
                .for_each(|queue| queue.retain(|ticket| ticket.is_waiting()));
        }
    }

    /// Keeps those of `tier` for whom `keep` says so: the retry lane first, as retried tickets are claimed first.
    pub fn retain(&mut self, tier: Tier, mut keep: impl FnMut(&mut Ticket) -> bool) {
        for lane in [Lane::Retry, Lane::Fresh] {
            self.queue(lane, tier).retain_mut(|ticket| keep(ticket));
        }
    }

    /// Empties the room.
    pub fn take_all(&mut self) -> impl Iterator<Item = Box<Ticket>> + '_ {
        let seated = self.lanes.iter_mut().flatten();
        let whole = self.whole.drain(..).flatten();
        seated.flat_map(|queue| queue.drain(..)).chain(whole)
    }

    /// Every seated ticket of `tier` in `lane`, in order, husks included.
    pub fn seated(&self, lane: Lane, tier: Tier) -> impl Iterator<Item = &Ticket> {
        self.lanes[lane.index()][tier.index()]
            .iter()
            .map(|ticket| &**ticket)
    }
}

fn oldest_of(queue: &mut VecDeque<Box<Ticket>>) -> Option<Time> {
    while let Some(head) = queue.front() {
        if head.is_waiting() {
            return Some(head.arrived);
        }
        queue.pop_front();
    }
    None
}

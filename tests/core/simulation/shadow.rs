//! Where every ticket is, in plain lists: what the core is compared with. Slow, and simple enough to be right.

use std::collections::BTreeSet;
use std::sync::Arc;

use funicular::batch::policy::Policy;
use funicular::batch::promise::Promises;
use funicular::clock::Time;
use funicular::queue::Lane;
use funicular::ticket::TicketSlot;
use funicular::tier::Tier;
use may::sync::Blocker;

use super::device::Mark;

/// How a ticket ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Answered,
    Failed(Why),
    Expired,
    Gone,
}

/// Why a ticket was not answered with an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The batch function can't stand it.
    Rejected,
    TooLarge,
    LostTwice,
    /// A search for bad inputs had no time for it.
    NoTime,
    /// Searches had had their share.
    NoBudget,
    /// Judged again.
    Shed,
    NoGpu,
    Draining,
}

/// Where a ticket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Waiting(Lane),
    /// In a batch of this GPU, staged or running.
    Bound(usize),
    Ended(End),
}

/// One ticket.
pub struct Record {
    pub tier: Tier,
    pub arrived: Time,
    pub deadline: Time,
    /// When its core's timer fires: a little after the deadline.
    pub timer: Time,
    /// Whether its connection is closed already.
    pub hung_up: bool,
    /// What its input does to the batch function.
    pub mark: Mark,
    pub place: Place,
    pub launches: u8,
    /// Its place in the order of its lane.
    pub order: usize,
    pub slot: Arc<TicketSlot>,
    pub blocker: Arc<Blocker>,
}

/// What was counted in and out of one tier and lane.
#[derive(Clone, Copy, Debug, Default)]
pub struct Books {
    pub admitted: usize,
    pub returned: usize,
    pub claimed: usize,
    pub abandoned: usize,
}

/// Whom a claim takes, and whom it finds dead on the way.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Claim {
    pub bound: Vec<usize>,
    pub expired: Vec<usize>,
    pub gone: Vec<usize>,
}

/// See the module's text. Tickets are known by the order in which they were admitted.
pub struct Shadow {
    pub policy: Policy,
    pub records: Vec<Record>,
    /// Per GPU: whether its last batch was a retry batch.
    pub retried_last: Vec<bool>,
    /// Ended since anybody looked.
    pub ended: Vec<usize>,
    live: BTreeSet<usize>,
    lanes: [[Vec<usize>; Tier::COUNT]; 2],
    books: [[Books; Tier::COUNT]; 2],
    promises: [Promises; 2],
    retries: usize,
}

impl Shadow {
    pub fn new(policy: Policy, gpus: usize, min_share: [f64; Tier::COUNT]) -> Shadow {
        Shadow {
            policy,
            records: Vec::new(),
            retried_last: vec![false; gpus],
            ended: Vec::new(),
            live: BTreeSet::new(),
            lanes: Default::default(),
            books: Default::default(),
            promises: [Promises::new(min_share); 2],
            retries: 0,
        }
    }

    /// The living who wait in `lane`, in the order in which they must be claimed inside their tier.
    pub fn waiting(&self, lane: Lane, tier: Tier) -> &[usize] {
        &self.lanes[lane as usize][tier.index()]
    }

    /// How many wait in `lane`.
    pub fn waiting_in(&self, lane: Lane) -> usize {
        Tier::ALL
            .into_iter()
            .map(|tier| self.waiting(lane, tier).len())
            .sum()
    }

    /// Everybody who waits, in the order in which they are judged again.
    pub fn waiting_by_tier(&self, tier: Tier) -> Vec<usize> {
        let lanes = [Lane::Retry, Lane::Fresh].into_iter();
        lanes
            .flat_map(|lane| self.waiting(lane, tier))
            .copied()
            .collect()
    }

    /// Ids of all who wait.
    pub fn waiting_ids(&self) -> Vec<usize> {
        self.lanes.iter().flatten().flatten().copied().collect()
    }

    /// Whether ticket `id` is still to be resolved.
    pub fn is_live(&self, id: usize) -> bool {
        self.live.contains(&id)
    }

    /// Whether ticket `id` is in a batch of `gpu` and somebody still waits for it.
    pub fn is_bound(&self, id: usize, gpu: usize) -> bool {
        self.records[id].place == Place::Bound(gpu)
    }

    /// Everybody who waits, as records.
    pub fn all_waiting(&self) -> impl Iterator<Item = &Record> {
        self.lanes
            .iter()
            .flatten()
            .flatten()
            .map(|&id| &self.records[id])
    }

    pub fn books(&self, lane: Lane, tier: Tier) -> &Books {
        &self.books[lane as usize][tier.index()]
    }

    fn books_mut(&mut self, lane: Lane, id: usize) -> &mut Books {
        &mut self.books[lane as usize][self.records[id].tier.index()]
    }

    /// The largest batch of `lane`.
    pub fn batch_max(&self, lane: Lane) -> usize {
        match lane {
            Lane::Fresh => self.policy.batch_max,
            Lane::Retry => (self.policy.batch_max / 4).max(1),
        }
    }

    /// Ids of tickets that are still to be resolved.
    pub fn live(&self) -> Vec<usize> {
        self.live.iter().copied().collect()
    }

    pub fn admit(&mut self, record: Record) {
        let id = self.records.len();
        self.records.push(record);
        self.live.insert(id);
        self.books_mut(Lane::Fresh, id).admitted += 1;
        self.seat(id, Lane::Fresh);
    }

    fn seat(&mut self, id: usize, lane: Lane) {
        self.records[id].place = Place::Waiting(lane);
        let records = &self.records;
        let queue = &mut self.lanes[lane as usize][records[id].tier.index()];
        queue.push(id);
        queue.sort_by_key(|&id| records[id].order);
    }

    fn unseat(&mut self, id: usize) -> Option<Lane> {
        let Place::Waiting(lane) = self.records[id].place else {
            return None;
        };
        self.lanes[lane as usize][self.records[id].tier.index()].retain(|&other| other != id);
        Some(lane)
    }

    /// Whom a batch of `lane` must take at `now`, skipping the dead: strictly by tier, in order, but for the places that
    /// are promised to those below; and then whoever is left, for places that nobody took.
    pub fn claimable(&self, lane: Lane, now: Time) -> Claim {
        let mut claim = Claim::default();
        let room = self.batch_max(lane);
        let mut queues = Tier::ALL.map(|tier| self.waiting(lane, tier).iter());
        let limits = Tier::ALL.map(|tier| room.saturating_sub(self.promised_below(lane, tier)));
        for (tier, limit) in (0..Tier::COUNT)
            .zip(limits)
            .chain((0..Tier::COUNT).map(|tier| (tier, room)))
        {
            while claim.bound.len() < limit {
                let Some(&id) = queues[tier].next() else {
                    break;
                };
                self.look_at(id, now, &mut claim);
            }
        }
        claim
    }

    fn look_at(&self, id: usize, now: Time, claim: &mut Claim) {
        let record = &self.records[id];
        if record.deadline <= now {
            claim.expired.push(id);
        } else if record.hung_up {
            claim.gone.push(id);
        } else {
            claim.bound.push(id);
        }
    }

    fn promised_below(&self, lane: Lane, tier: Tier) -> usize {
        let below = Tier::ALL.into_iter().filter(|below| *below > tier);
        let promises = &self.promises[lane as usize];
        below
            .map(|tier| promises.places(tier, self.batch_max(lane), self.waiting(lane, tier).len()))
            .sum()
    }

    /// `claim` was made for `gpu`.
    pub fn claimed(&mut self, claim: &Claim, lane: Lane, gpu: usize) {
        for &id in &claim.bound {
            self.unseat(id);
            self.records[id].place = Place::Bound(gpu);
            self.books_mut(lane, id).claimed += 1;
        }
        claim
            .expired
            .iter()
            .for_each(|&id| self.resolve(id, End::Expired));
        claim
            .gone
            .iter()
            .for_each(|&id| self.resolve(id, End::Gone));
        let of_tier = |tier: Tier| {
            claim
                .bound
                .iter()
                .filter(|&&id| self.records[id].tier == tier)
                .count()
        };
        let (took, waiting) = (
            Tier::ALL.map(of_tier),
            Tier::ALL.map(|tier| self.waiting(lane, tier).len()),
        );
        self.promises[lane as usize].settle(took, waiting);
    }

    /// A bound ticket was returned unlaunched, to where it was. Nothing happens if it has ended meanwhile.
    pub fn give_back(&mut self, id: usize, lane: Lane) {
        if let Place::Bound(_) = self.records[id].place {
            self.books_mut(lane, id).returned += 1;
            self.seat(id, lane);
        }
    }

    /// A bound ticket's batch was lost: behind those who are retried already.
    pub fn retry(&mut self, id: usize) {
        self.retries += 1;
        self.records[id].order = self.retries;
        self.give_back(id, Lane::Retry);
    }

    /// A ticket ends, once.
    pub fn resolve(&mut self, id: usize, end: End) {
        if let Some(lane) = self.unseat(id) {
            self.books_mut(lane, id).abandoned += 1;
        }
        let place = &mut self.records[id].place;
        assert!(
            !matches!(place, Place::Ended(_)),
            "ticket {id} ended as {place:?} and again as {end:?}"
        );
        *place = Place::Ended(end);
        self.live.remove(&id);
        self.ended.push(id);
    }
}

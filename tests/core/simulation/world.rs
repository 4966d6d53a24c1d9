//! The world: the clock, the callers and their timers, and the holder of the token.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use funicular::admission::{Admission, Load, Reason, Verdict};
use funicular::batch::budget::SearchBudget;
use funicular::clock::Time;
use funicular::peer::Peer;
use funicular::queue::Lane;
use funicular::slot::{Slot, State};
use funicular::ticket::Ticket;
use funicular::tier::Tier;
use funicular::wake::Handler;
use may::sync::Blocker;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::action::{self, Action};
use super::device::{Mark, Trap};
use super::door::Door;
use super::gpus::{Gpu, Phase};
use super::searching::Spending;
use super::settings::Settings;
use super::shadow::{End, Place, Record, Shadow};
use super::tally::{Event, Tally};
use super::watching::Rounds;
use crate::support::random::Random;
use crate::support::rig::Rig;

/// A core's timer fires at most so late.
const TIMER_LATENESS_MS: f64 = 3.0;

/// See the module's text.
pub struct World {
    pub(super) settings: Settings,
    pub(super) random: Random,
    pub(super) now: Time,
    pub(super) rig: Rig,
    pub(super) admission: Admission,
    pub(super) budget: SearchBudget,
    pub(super) shadow: Shadow,
    pub(super) door: Door,
    pub(super) spending: Spending,
    pub(super) gpus: Vec<Gpu>,
    pub(super) holder: Option<usize>,
    pub(super) rounds: Rounds,
    /// Until when the grace period lasts, if the server is to end.
    pub(super) draining: Option<Time>,
    pub(super) closed: bool,
    pub(super) tally: Tally,
    timers: BinaryHeap<Reverse<(Time, usize)>>,
    /// A connection whose peer has closed it.
    hung_up: OwnedFd,
}

fn hung_up() -> OwnedFd {
    let (closed, peer) = socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::empty(),
        None,
    )
    .expect("a pair of sockets");
    drop(peer);
    closed
}

fn new_rig(settings: &Settings) -> Rig {
    let rig = Rig::new(
        settings.policy,
        settings.gpus,
        settings.queue_max,
        settings.looks,
    );
    rig.with_min_share(settings.rules.min_share)
}

impl World {
    /// The world of `seed`, in which some of the GPUs are in service.
    pub fn new(seed: u32) -> World {
        let mut random = Random::new(seed);
        let settings = Settings::random(&mut random);
        let now = Time::from_millis_f64(1000.0);
        let mut world = World {
            rig: new_rig(&settings),
            admission: Admission::new(settings.rules.clone()),
            budget: SearchBudget::default(),
            shadow: Shadow::new(settings.policy, settings.gpus, settings.rules.min_share),
            door: Door::new(settings.rules.clone()),
            spending: Spending::default(),
            gpus: (0..settings.gpus).map(|_| Gpu::new(now)).collect(),
            holder: None,
            rounds: Rounds::new(now),
            draining: None,
            closed: false,
            tally: Tally::default(),
            timers: BinaryHeap::new(),
            now,
            hung_up: hung_up(),
            random,
            settings,
        };
        world.begin_service();
        world
    }

    /// Another server in the same world.
    pub(super) fn restart(&mut self) {
        let settings = &self.settings;
        self.rig = new_rig(settings);
        self.admission = Admission::new(settings.rules.clone());
        self.budget = SearchBudget::default();
        self.shadow = Shadow::new(settings.policy, settings.gpus, settings.rules.min_share);
        self.door = Door::new(settings.rules.clone());
        self.spending = Spending::default();
        self.gpus = (0..settings.gpus).map(|_| Gpu::new(self.now)).collect();
        self.holder = None;
        self.rounds = Rounds::new(self.now);
        self.draining = None;
        self.closed = false;
        self.timers.clear();
        self.begin_service();
    }

    fn begin_service(&mut self) {
        for gpu in 0..self.settings.gpus {
            if gpu == 0 || self.random.chance(0.9) {
                self.start_serving(gpu);
            }
        }
    }

    /// What happens next.
    pub fn pick_action(&mut self) -> Action {
        action::pick(&mut self.random)
    }

    /// Performs `action` and checks everything.
    pub fn perform(&mut self, action: Action) {
        match action {
            Action::Arrive => self.arrive(),
            Action::Pause => self.pause(),
            Action::Leave => self.leave(),
            Action::LeaveInDroves => self.leave_in_droves(),
            Action::Lose => self.lose_any(),
            Action::Hang => {
                let trap = self.any_hang();
                self.trap_any(trap);
            }
            Action::Slow => {
                let trap = Trap::Slow(self.random.count(2, 10) as u32);
                self.trap_any(trap);
            }
            Action::Occupy => self.occupy_any(),
            Action::Raise => self.raise_any(),
            Action::Recover => self.repair_any(),
            Action::Lull => self.lull(),
            Action::Impatience => self.impatience(),
            Action::Stall => self.stall(),
            Action::Check => self.check_devices(),
            Action::Stage => self.stage(),
            Action::Unstage => self.unstage_any(),
            Action::Remove => self.remove_any(),
            Action::Join => self.join_any(),
            Action::Drain => self.drain(),
        }
        self.settle();
        self.check();
        self.end_if_due();
    }

    /// No more arrivals: whatever can come back does, and serves whoever is left. Returns what has happened.
    pub fn wind_down(mut self) -> Tally {
        self.gpus
            .iter_mut()
            .for_each(|gpu| gpu.device.broken = false);
        while !self.shadow.live().is_empty() {
            let at = self
                .next_event()
                .expect("whoever lives waits for something");
            self.advance(at);
            self.check();
        }
        assert_eq!(self.rig.backlog().total(), 0);
        self.tally
    }

    pub(super) fn load(&self) -> Load {
        Load::of(self.rig.backlog(), self.rig.scheduler.pool().capacity())
    }

    fn arrive(&mut self) {
        for _ in 0..self.random.count(1, self.settings.burst) {
            if self.draining.is_none() || self.random.chance(0.1) {
                let limit = self.time_limit();
                self.knock(limit);
            }
            // A holder that is woken by an arrival looks before the next one comes, or after.
            if self.random.chance(0.5) {
                self.settle();
            }
        }
    }

    /// A request that is judged, and becomes a ticket if it is let in.
    fn knock(&mut self, limit: Duration) {
        let tier = self.random.pick(&Tier::ALL);
        if !self.settings.judges {
            return self.enter(tier, limit);
        }
        let (now, load) = (self.now, self.load());
        let verdict = self.admission.judge(now, tier, limit, &load);
        self.door.check(now, tier, limit, &load, verdict);
        self.tally.note(match verdict {
            Verdict::Admit => return self.enter(tier, limit),
            Verdict::NoHealthyGpu { .. } => Event::RefusedWithoutGpu,
            Verdict::DeadlineTooShort { .. } => Event::RefusedAsTooShort,
            Verdict::Shed { reason, .. } => match reason {
                Reason::Infeasible => Event::RefusedAsInfeasible,
                Reason::ZoneYellow => Event::RefusedInYellow,
                Reason::ZoneRed => Event::RefusedInRed,
                Reason::Limit => Event::RefusedAtLimit,
            },
        });
    }

    /// A request that was judged before anybody else was counted.
    pub(super) fn arrive_one(&mut self) {
        let tier = self.random.pick(&Tier::ALL);
        let limit = self.time_limit();
        self.enter(tier, limit);
    }

    /// Sometimes tickets have just come that the holder of the token has not seen yet.
    fn stage(&mut self) {
        if self.random.chance(0.2) {
            for _ in 0..self.random.count(1, 2 * self.settings.policy.batch_max) {
                self.arrive_one();
            }
        }
        self.stage_any();
    }

    fn enter(&mut self, tier: Tier, limit: Duration) {
        let id = self.shadow.records.len();
        let blocker = Blocker::current();
        let slot = Arc::new(Slot::new(Handler::new(Arc::clone(&blocker), 0)));
        let deadline = self.now + limit;
        let hung_up = self.random.chance(self.settings.hung_up);
        let mark = self.any_mark();
        let mut ticket = Ticket::new(mark.input(id), tier, self.now, deadline, Arc::clone(&slot));
        if hung_up {
            ticket.peer = Peer::new(self.hung_up.as_raw_fd());
        }
        if !self.offer(ticket) {
            return;
        }
        let lateness = self.random.between(0.0, TIMER_LATENESS_MS);
        let timer = deadline + Duration::from_secs_f64(lateness / 1e3);
        self.timers.push(Reverse((timer, id)));
        self.shadow.admit(Record {
            tier,
            arrived: self.now,
            deadline,
            timer,
            hung_up,
            mark,
            place: Place::Waiting(Lane::Fresh),
            launches: 0,
            order: id,
            slot,
            blocker,
        });
    }

    /// Whether `ticket` finds room in its tier's queue.
    fn offer(&mut self, ticket: Ticket) -> bool {
        let waiting = self.shadow.waiting(Lane::Fresh, ticket.tier).len();
        let fits = waiting < self.settings.queue_max;
        if let Err(refused) = self.rig.intake.offer(Box::new(ticket)) {
            // The channel may be full of husks although the count is not.
            assert!(
                !fits || self.husks_may_fill_the_channel(),
                "refused although there was room"
            );
            refused.withdraw();
            self.tally.note(Event::QueueFull);
            return false;
        }
        assert!(fits, "admitted over the bound");
        true
    }

    fn any_mark(&mut self) -> Mark {
        if self.random.chance(self.settings.bad) {
            Mark::Bad
        } else if self.random.chance(0.01) {
            Mark::Long
        } else {
            Mark::Good
        }
    }

    /// Nobody drains the hand-over while every GPU is away.
    fn husks_may_fill_the_channel(&self) -> bool {
        let idle = self.gpus.iter().any(|gpu| gpu.phase() == Phase::Idle);
        !idle || !self.rig.is_drained()
    }

    /// Mostly enough for many batches, sometimes for less than one.
    fn time_limit(&mut self) -> Duration {
        let batches = if self.random.chance(0.15) {
            (0.0, 1.2)
        } else {
            (2.0, 30.0)
        };
        self.settings
            .batch_time
            .mul_f64(self.random.between(batches.0, batches.1))
    }

    fn pause(&mut self) {
        let mean = self.settings.pause.as_secs_f64();
        let span = self.random.exponential(1.0 / mean);
        self.let_pass(Duration::from_secs_f64(span));
    }

    fn let_pass(&mut self, span: Duration) {
        let until = self.now + span;
        while let Some(at) = self.next_event().filter(|&at| at <= until) {
            self.advance(at);
        }
        self.now = until;
    }

    /// So long that GPUs come back from their longest back-off, or until all are back.
    fn lull(&mut self) {
        let until = self.now + Duration::from_secs(12);
        let down = |gpu: &Gpu| gpu.phase() == Phase::Down && !gpu.device.broken && !gpu.is_leaving;
        while self.gpus.iter().any(down) {
            let Some(at) = self.next_event().filter(|&at| at <= until) else {
                return;
            };
            self.advance(at);
        }
    }

    /// Callers who can't wait for a batch are refused, so no batch says whether they are right: it takes a probe.
    fn impatience(&mut self) {
        for _ in 0..10 {
            self.let_pass(Duration::from_millis(150));
            if self.draining.is_none() {
                self.knock(self.settings.batch_time.mul_f64(0.2));
            }
        }
        self.check_devices();
    }

    /// Nobody does anything for a while, and then everybody at once.
    fn stall(&mut self) {
        let batches = self.random.between(0.1, 6.0);
        self.advance(self.now + self.settings.batch_time.mul_f64(batches));
    }

    fn next_event(&self) -> Option<Time> {
        let timer = self.timers.peek().map(|&Reverse((at, _))| at);
        let again = Some(self.rig.again());
        let acts = self.gpus.iter().map(Gpu::acts_at).min();
        [timer, again, acts, self.watches_at()]
            .into_iter()
            .flatten()
            .filter(|&at| at != Time::MAX)
            .min()
            .map(|at| at.max(self.now))
    }

    /// Lets everything happen that happens at `at`.
    fn advance(&mut self, at: Time) {
        let watches = self.watches_at().is_some_and(|round| round <= at);
        self.now = at;
        while let Some(&Reverse((_, id))) = self
            .timers
            .peek()
            .filter(|Reverse((timer, _))| *timer <= at)
        {
            self.timers.pop();
            self.resolve_from_outside(id, End::Expired);
        }
        if watches {
            self.watch();
        }
        for gpu in 0..self.gpus.len() {
            if self.gpus[gpu].acts_at() <= at {
                self.act(gpu);
            }
        }
        self.settle();
        self.check_waits();
    }

    fn leave(&mut self) {
        let live = self.shadow.live();
        if !live.is_empty() {
            let id = self.random.pick(&live);
            self.resolve_from_outside(id, End::Gone);
        }
    }

    fn leave_in_droves(&mut self) {
        for id in self.shadow.live() {
            if self.random.chance(0.5) {
                self.resolve_from_outside(id, End::Gone);
            }
        }
    }

    /// A caller's core or its timer resolves the ticket, wherever that is.
    fn resolve_from_outside(&mut self, id: usize, end: End) {
        let record = &self.shadow.records[id];
        let expected = match record.place {
            Place::Waiting(lane) => Some(lane.state()),
            Place::Bound(_) => Some(State::Bound),
            Place::Ended(_) => None,
        };
        let from = if end == End::Gone {
            record.slot.leave()
        } else {
            record.slot.expire()
        };
        assert_eq!(from, expected, "ticket {id}");
        if let Some(from) = from {
            self.rig.backlog().left(from, record.tier);
            record.slot.waiter().unpark();
            self.shadow.resolve(id, end);
        }
    }
}

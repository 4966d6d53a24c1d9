//! The world: the clock, the callers and their timers, and the holder of the token.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use funicular::clock::Time;
use funicular::peer::Peer;
use funicular::queue::Lane;
use funicular::slot::{Slot, State};
use funicular::ticket::{Input, Ticket};
use funicular::tier::Tier;
use funicular::wake::Handler;
use may::sync::Blocker;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::action::{self, Action};
use super::gpus::Gpu;
use super::settings::Settings;
use super::shadow::{End, Place, Record, Shadow};
use super::tally::{Event, Tally};
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
    pub(super) shadow: Shadow,
    pub(super) gpus: Vec<Gpu>,
    pub(super) holder: Option<usize>,
    pub(super) tally: Tally,
    timers: BinaryHeap<Reverse<(Time, usize)>>,
    /// A connection whose peer has closed it.
    closed: OwnedFd,
}

impl World {
    /// The world of `seed`, in which some of the GPUs are in service.
    pub fn new(seed: u32) -> World {
        let mut random = Random::new(seed);
        let settings = Settings::random(&mut random);
        let (closed, peer) = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::empty(),
            None,
        )
        .expect("a pair of sockets");
        drop(peer);
        let rig = Rig::new(
            settings.policy,
            settings.gpus,
            settings.queue_max,
            settings.looks,
        );
        let mut world = World {
            rig: rig.with_min_share(settings.min_share),
            shadow: Shadow::new(settings.policy, settings.gpus, settings.min_share),
            gpus: (0..settings.gpus).map(|_| Gpu::Down).collect(),
            holder: None,
            tally: Tally::default(),
            timers: BinaryHeap::new(),
            now: Time::from_millis_f64(1000.0),
            closed,
            random,
            settings,
        };
        for gpu in 0..world.settings.gpus {
            if gpu == 0 || world.random.chance(0.9) {
                world.enter_service(gpu);
            }
        }
        world
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
            Action::Recover => self.recover_any(),
            Action::Stage => self.stage(),
            Action::Unstage => self.unstage_any(),
        }
        self.settle();
        self.check();
    }

    /// No more arrivals: all GPUs come back and serve whoever is left. Returns what has happened.
    pub fn wind_down(mut self) -> Tally {
        for gpu in 0..self.gpus.len() {
            if matches!(self.gpus[gpu], Gpu::Down) {
                self.enter_service(gpu);
            }
        }
        self.settle();
        while let Some(at) = self.next_event() {
            self.advance(at);
            self.check();
        }
        assert_eq!(
            self.shadow.live(),
            Vec::<usize>::new(),
            "everybody was resolved"
        );
        assert_eq!(self.rig.backlog().total(), 0);
        assert_eq!(funicular::ticket::dropped_total(), 0);
        self.tally
    }

    fn arrive(&mut self) {
        for _ in 0..self.random.count(1, self.settings.burst) {
            self.arrive_one();
            // A holder that is woken by an arrival looks before the next one comes, or after.
            if self.random.chance(0.5) {
                self.settle();
            }
        }
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

    fn arrive_one(&mut self) {
        let tier = self.random.pick(&Tier::ALL);
        let id = self.shadow.records.len();
        let blocker = Blocker::current();
        let slot = Arc::new(Slot::new(Handler::new(Arc::clone(&blocker), 0)));
        let deadline = self.now + self.time_limit();
        let hung_up = self.random.chance(self.settings.hung_up);
        let mut ticket = Ticket::new(
            Input::new(id.to_string()),
            tier,
            self.now,
            deadline,
            Arc::clone(&slot),
        );
        if hung_up {
            ticket.peer = Peer::new(self.closed.as_raw_fd());
        }
        let fits = self.shadow.waiting(Lane::Fresh, tier).len() < self.settings.queue_max;
        if let Err(refused) = self.rig.intake.offer(Box::new(ticket)) {
            // The channel may be full of husks although the count is not.
            assert!(
                !fits || self.husks_may_fill_the_channel(),
                "refused although there was room"
            );
            refused.withdraw();
            self.tally.note(Event::Refused);
            return;
        }
        assert!(fits, "admitted over the bound");
        let lateness = self.random.between(0.0, TIMER_LATENESS_MS);
        let timer = deadline + Duration::from_secs_f64(lateness / 1e3);
        self.timers.push(Reverse((timer, id)));
        let (arrived, place) = (self.now, Place::Waiting(Lane::Fresh));
        let order = id;
        let record = Record {
            tier,
            arrived,
            deadline,
            timer,
            hung_up,
            place,
            launches: 0,
            order,
            slot,
            blocker,
        };
        self.shadow.admit(record);
    }

    /// Nobody drains the hand-over while every GPU is away.
    fn husks_may_fill_the_channel(&self) -> bool {
        !self.gpus.iter().any(|gpu| matches!(gpu, Gpu::Idle)) || !self.rig.is_drained()
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
        let until = self.now + Duration::from_secs_f64(self.random.exponential(1.0 / mean));
        while let Some(at) = self.next_event().filter(|&at| at <= until) {
            self.advance(at);
        }
        self.now = until;
    }

    fn next_event(&self) -> Option<Time> {
        let timer = self.timers.peek().map(|&Reverse((at, _))| at);
        let again = Some(self.rig.again()).filter(|&at| at != Time::MAX);
        let back = self.gpus.iter().filter_map(Gpu::back).min();
        [timer, again, back]
            .into_iter()
            .flatten()
            .min()
            .map(|at| at.max(self.now))
    }

    /// Lets everything happen that happens at `at`.
    fn advance(&mut self, at: Time) {
        self.now = at;
        while let Some(&Reverse((_, id))) = self
            .timers
            .peek()
            .filter(|Reverse((timer, _))| *timer <= at)
        {
            self.timers.pop();
            self.resolve_from_outside(id, End::Expired);
        }
        for gpu in 0..self.gpus.len() {
            if self.gpus[gpu].back().is_some_and(|back| back <= at) {
                self.finish(gpu);
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

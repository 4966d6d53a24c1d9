//! The watchdog thread of the world: it judges those who wait again, and fails GPUs whose executors block.

use std::time::Duration;

use funicular::admission::{Load, REJUDGE_EVERY};
use funicular::clock::Time;
use funicular::gpu::activity::Sample;
use funicular::gpu::watchdog::{LOOK_EVERY, Look};
use funicular::slot::State;
use funicular::ticket::Failure;
use funicular::tier::Tier;

use super::gpus::Phase;
use super::shadow::{End, Why};
use super::tally::Event;
use super::world::World;

/// When the watchdog looks.
#[derive(Clone, Copy, Debug)]
pub struct Rounds {
    last: Time,
    rejudged: Time,
}

impl Rounds {
    pub fn new(now: Time) -> Rounds {
        Rounds {
            last: now,
            rejudged: now,
        }
    }
}

/// The first round at or after `at`.
fn on_the_grid(at: Time) -> Time {
    let pause = LOOK_EVERY.as_nanos() as u64;
    Time::from_nanos(at.as_nanos().div_ceil(pause) * pause)
}

impl World {
    /// When the watchdog next looks and finds something; its other looks change nothing.
    pub(super) fn watches_at(&self) -> Option<Time> {
        let from = self.now.max(self.rounds.last + Duration::from_nanos(1));
        let waits = self.somebody_is_seated();
        let judges = waits.then(|| from.max(self.rounds.rejudged + REJUDGE_EVERY));
        let seizes = (0..self.gpus.len())
            .filter(|&gpu| !self.gpus[gpu].seized && self.blocks(gpu))
            .filter_map(|gpu| self.gpus[gpu].cell.overdue(Time::MAX))
            .map(|due| from.max(due + Duration::from_nanos(1)));
        judges.into_iter().chain(seizes).min().map(on_the_grid)
    }

    /// Somebody waits, or lies in the hand-over, be it a husk.
    fn somebody_is_seated(&self) -> bool {
        self.rig.backlog().total() > 0 || !self.rig.is_drained()
    }

    pub(super) fn watch(&mut self) {
        self.rounds.last = self.now;
        if self.now.since(self.rounds.rejudged) >= REJUDGE_EVERY {
            self.rounds.rejudged = self.now;
            self.rejudge();
        }
        for gpu in 0..self.gpus.len() {
            let it = &mut self.gpus[gpu];
            let overdue = it.cell.overdue(self.now);
            let look = Look {
                now: self.now,
                late: Duration::ZERO,
            };
            // Its thread is blocked in the executor, for as long as that blocks.
            if it.suspicion.confirmed_by(overdue, look, Sample::default) {
                self.seize(gpu);
            }
        }
    }

    fn rejudge(&mut self) {
        if !self.somebody_is_seated() {
            return;
        }
        let (now, load) = (self.now, self.load());
        self.rig.drain(|_| {});
        if let Some(failure) = self.rig.scheduler.hopeless(false) {
            assert_eq!(failure, Failure::NoGpu);
            assert!(self.gpus.iter().all(|gpu| gpu.phase() == Phase::Down));
            self.rig.fail_waiting(&failure);
            return self.all_waiting_fail(Why::NoGpu);
        }
        let before = Tier::ALL.map(|tier| self.shadow.waiting_by_tier(tier));
        let mut wakes = self.rig.mailboxes.gather();
        let scheduler = &mut self.rig.scheduler;
        let shed = scheduler.rejudge(now, &self.admission, &load, &mut wakes);
        drop(wakes);
        let mut ahead = 0;
        for (tier, ids) in Tier::ALL.into_iter().zip(before) {
            let judged = ids
                .into_iter()
                .filter(|&id| self.judged_again(id, &mut ahead, &load));
            assert_eq!(
                judged.count(),
                shed[tier.index()],
                "{tier}: how many are shed"
            );
        }
    }

    /// Follows what has become of ticket `id`, behind `ahead` others. Returns whether it was shed.
    fn judged_again(&mut self, id: usize, ahead: &mut usize, load: &Load) -> bool {
        let record = &self.shadow.records[id];
        let state = record.slot.state();
        if record.deadline <= self.now {
            assert_eq!(state, State::Expired, "ticket {id} is past its deadline");
            self.tally.note(Event::ExpiredAtRejudge);
            self.shadow.resolve(id, End::Expired);
            return false;
        }
        if record.hung_up {
            assert_eq!(state, State::Gone, "ticket {id} is gone");
            self.tally.note(Event::GoneAtRejudge);
            self.shadow.resolve(id, End::Gone);
            return false;
        }
        let shed = state == State::Failed;
        assert!(shed || state.is_waiting(), "ticket {id} is {state:?}");
        let remaining = record.deadline.since(self.now);
        self.door
            .check_again(self.now, record.tier, (*ahead, remaining), load, shed);
        if shed {
            self.tally.note(Event::Rejudged);
            self.shadow.resolve(id, End::Failed(Why::Shed));
        } else {
            *ahead += 1;
        }
        shed
    }
}

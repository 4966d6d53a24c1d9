//! How GPUs fail, what becomes of what they had in hand, and how they come back: reset after a back-off, canary, service.

use std::time::Duration;

use funicular::batch::pool::Activity;
use funicular::clock::Time;
use funicular::gpu::cell::Held;
use funicular::gpu::executor::Outcome;
use funicular::gpu::fate::{self, Rescued};
use funicular::gpu::watchdog::LOOK_EVERY;
use funicular::gpu::{CALL_MAX, NOTICE_MAX};
use funicular::ticket::{Input, Ticket};

use super::device::{CANARY, Run, Trap};
use super::gpus::{Phase, Thread, cut_short, id_of};
use super::shadow::{End, Why};
use super::tally::Event;
use super::world::World;

/// The failures of one GPU, kept by hand.
#[derive(Clone, Copy, Debug, Default)]
pub struct Failures {
    in_a_row: u32,
    any: bool,
    serving_since: Time,
}

impl Failures {
    /// Another one. Returns how long the GPU must rest: 100 ms, twice as long after each failure, at most 10 s; ten seconds
    /// of service and all is forgotten.
    fn add(&mut self, now: Time, served: bool) -> Duration {
        if served && now.since(self.serving_since) >= Duration::from_secs(10) {
            self.in_a_row = 0;
        }
        let pause = 100u64 << self.in_a_row.min(10);
        self.in_a_row += 1;
        Duration::from_millis(pause.min(10_000))
    }
}

impl World {
    /// The thread of `gpu` finds that its GPU has failed.
    pub(super) fn fail(&mut self, gpu: usize) {
        self.take_down(gpu);
        self.rest(gpu);
    }

    /// The watchdog fails `gpu`, whose thread does not come back from its executor.
    pub(super) fn seize(&mut self, gpu: usize) {
        assert!(
            self.blocks(gpu),
            "the watchdog stepped in for a thread that was only late"
        );
        self.tally.note(Event::Seized);
        self.take_down(gpu);
    }

    fn take_down(&mut self, gpu: usize) {
        let (it, now) = (&mut self.gpus[gpu], self.now);
        let served = it.phase_of_thread() != Phase::Down;
        let pause = it.failures.add(now, served);
        it.seized = true;
        if it.is_leaving {
            self.tally.note(Event::LostOnItsWayOut);
        }
        let first = !std::mem::replace(&mut it.failures.any, true);
        let (held, is_news) = it.cell.fail("as scripted", now, false);
        assert_eq!(is_news, served || first, "the same failure again");
        assert_eq!(it.cell.look().0.reset_due(), now + pause, "the back-off");
        self.out_of_service(gpu);
        held.into_iter().for_each(|held| self.rescue(held));
    }

    pub(super) fn out_of_service(&mut self, gpu: usize) {
        self.rig.set_activity(gpu, Activity::Down);
        self.returned();
    }

    /// The thread turns to bringing its GPU back.
    pub(super) fn rest(&mut self, gpu: usize) {
        let it = &mut self.gpus[gpu];
        it.seized = false;
        it.generation = it.cell.generation();
        it.cell.expect_by(Time::MAX);
        it.thread = Thread::Resting;
        if it.is_leaving {
            self.has_left(gpu);
        }
    }

    /// What was launched waits once more, each ticket for itself; what was only staged goes back to where it came from.
    fn rescue(&mut self, held: Held) {
        let launched = held.launched.is_some();
        match fate::rescue(held) {
            Rescued::Unlaunched(batch) => {
                assert!(!launched, "an attempt is spent by a launch");
                self.give_back(batch);
            }
            Rescued::Launched { again, spent, .. } => {
                assert!(launched, "an attempt is spent by a launch");
                self.retry(again);
                self.lost_twice(spent);
            }
        }
    }

    fn retry(&mut self, tickets: Vec<Box<Ticket>>) {
        for id in tickets.iter().map(|ticket| id_of(ticket)) {
            assert_eq!(self.shadow.records[id].launches, 1, "one retry");
            self.shadow.retry(id);
            self.tally.note(Event::Retried);
        }
        self.rig.scheduler.retry(tickets);
        self.returned();
    }

    fn lost_twice(&mut self, tickets: Vec<Box<Ticket>>) {
        let ids: Vec<usize> = tickets.iter().map(|ticket| id_of(ticket)).collect();
        let mut wakes = self.rig.mailboxes.gather();
        let failed = fate::give_up(tickets, &fate::lost_twice(), &mut wakes);
        drop(wakes);
        let live = ids.iter().filter(|id| self.shadow.is_live(**id)).count();
        assert_eq!(failed, live);
        for id in ids {
            assert_eq!(self.shadow.records[id].launches, 2, "two attempts");
            if self.shadow.is_live(id) {
                self.shadow.resolve(id, End::Failed(Why::LostTwice));
                self.tally.note(Event::LostTwice);
            }
        }
    }

    /// A device is lost: in the middle of a run, or unnoticed.
    pub(super) fn lose_any(&mut self) {
        let now = self.now;
        let Some(gpu) = self.any_gpu(|gpu| gpu.phase_of_thread() != Phase::Down) else {
            return;
        };
        let broken = self.random.chance(0.3);
        let idle = self.gpus[gpu].phase() == Phase::Idle;
        // A thread that waits for its batch hears of it at once, but for one that does not come back from its executor.
        let unnoticed = idle || self.random.chance(0.3);
        let device = &mut self.gpus[gpu].device;
        device.lost = true;
        device.broken = broken;
        if idle {
            self.will_check(gpu);
        }
        let blocks = self.blocks(gpu);
        if let Some(run) = self.gpus[gpu].run_mut().filter(|_| !unnoticed && !blocks) {
            cut_short(run, now);
            self.act(gpu);
        }
    }

    /// Whether the executor of `gpu` stays away past its time.
    pub(super) fn blocks(&self, gpu: usize) -> bool {
        self.gpus[gpu].cell.overdue(Time::MAX).is_some_and(|due| {
            let run = self.gpus[gpu].run();
            run.is_some_and(|run| run.returns > due)
        })
    }

    /// The idle thread asks its executor whether it is there within a tenth of a second.
    pub(super) fn will_check(&mut self, gpu: usize) {
        let pause = Duration::from_secs_f64(self.random.between(0.0, 0.1));
        self.gpus[gpu].thread = Thread::Idle(self.now + pause);
    }

    pub(super) fn trap_any(&mut self, trap: Trap) {
        if let Some(gpu) = self.any_gpu(|gpu| gpu.phase() != Phase::Down) {
            self.gpus[gpu].device.trap = Some(trap);
        }
    }

    pub(super) fn occupy_any(&mut self) {
        if let Some(gpu) = self.any_gpu(|gpu| gpu.phase() != Phase::Down) {
            self.gpus[gpu].device.occupied = true;
        }
    }

    pub(super) fn any_hang(&mut self) -> Trap {
        if self.random.chance(0.5) {
            return Trap::Hang;
        }
        // Sometimes it is back before the watchdog has made up its mind.
        let after = NOTICE_MAX + LOOK_EVERY.mul_f64(self.random.between(0.5, 12.0));
        Trap::Block(after)
    }

    pub(super) fn raise_any(&mut self) {
        let Some(gpu) = self.any_gpu(|gpu| gpu.phase() != Phase::Down) else {
            return;
        };
        let sticky = self.random.chance(0.4);
        let device = &mut self.gpus[gpu].device;
        if sticky {
            device.sticky = true;
        } else {
            device.moody = true;
        }
    }

    pub(super) fn repair_any(&mut self) {
        if let Some(gpu) = self.any_gpu(|gpu| gpu.device.broken) {
            self.gpus[gpu].device.broken = false;
        }
    }

    /// The time has come at which the thread of `gpu` does something by itself.
    pub(super) fn act(&mut self, gpu: usize) {
        let thread = std::mem::replace(&mut self.gpus[gpu].thread, Thread::Acting);
        match thread {
            Thread::Resting => self.reset(gpu),
            Thread::Resetting(_) => self.try_out(gpu),
            Thread::Trying(run) => self.tried(gpu, run),
            Thread::Idle(_) => self.check_device(gpu),
            Thread::Probing(run) => self.probed(gpu, run),
            Thread::Riding(ride) => self.back_from_ride(gpu, ride),
            Thread::TurnedAway(_) => {
                let half = self.gpus[gpu].half;
                self.turn_idle(gpu, half);
            }
            Thread::Searching(trial) => self.back_from_search(gpu, *trial),
            Thread::Ended => unreachable!("a thread that has ended does nothing"),
            Thread::Acting => unreachable!("a thread does one thing at a time"),
        }
    }

    fn reset(&mut self, gpu: usize) {
        let span = self.any_batch_time();
        let until = self.now + self.settings.gpu.reset_max;
        let it = &mut self.gpus[gpu];
        assert!(self.now >= it.cell.look().0.reset_due(), "no rest");
        it.cell.expect_by(until);
        it.thread = Thread::Resetting(self.now + span);
    }

    /// The reset is over: the canary is next, if it worked.
    fn try_out(&mut self, gpu: usize) {
        let now = self.now;
        let it = &mut self.gpus[gpu];
        // For the failure of a reset to count, the GPU must not be in service meanwhile.
        it.thread = Thread::Resting;
        if !it.device.reset() {
            self.tally.note(Event::ResetFailed);
            return self.fail(gpu);
        }
        let passed = it
            .cell
            .health(it.generation, |health| health.reset_passed(now));
        passed.expect("nobody seizes a thread that does not block");
        it.device.sticky = self.random.chance(0.1);
        let run = self.canary_run(gpu);
        self.gpus[gpu].thread = Thread::Trying(run);
    }

    fn canary_run(&mut self, gpu: usize) -> Run {
        let limit = 4 * self.settings.batch_time;
        let run = self.run_on(gpu, &[Input::new(CANARY)], limit);
        let until = self.now + self.settings.gpu.reset_max;
        self.gpus[gpu].cell.expect_by(until);
        run
    }

    /// Whether the canary came back right.
    fn sings(outcome: &Outcome) -> bool {
        matches!(outcome, Outcome::Done(results) if matches!(results[..], [Ok(_)]))
    }

    fn tried(&mut self, gpu: usize, run: Run) {
        self.gpus[gpu].thread = Thread::Resting;
        if World::sings(&run.outcome) {
            self.enter_service(gpu, self.now.since(run.launched));
        } else {
            self.tally.note(Event::CanaryFailed);
            self.fail(gpu);
        }
    }

    fn enter_service(&mut self, gpu: usize, canary_took: Duration) {
        let (it, now) = (&mut self.gpus[gpu], self.now);
        it.failures.serving_since = now;
        let passed = it
            .cell
            .health(it.generation, |health| health.canary_passed(now));
        passed.expect("nobody seizes a thread that does not block");
        self.begin_anew(gpu, canary_took);
        self.tally.note(Event::CameBack);
        let half = self.gpus[gpu].half;
        self.turn_idle(gpu, half);
    }

    fn begin_anew(&mut self, gpu: usize, canary_took: Duration) {
        self.rig.scheduler.canary(gpu, canary_took);
        self.gpus[gpu].canary(canary_took);
    }

    /// A GPU that serves from the beginning.
    pub(super) fn start_serving(&mut self, gpu: usize) {
        let (it, now) = (&mut self.gpus[gpu], self.now);
        let passed = it
            .cell
            .health(it.generation, |health| health.reset_passed(now));
        passed.expect("nobody has failed it");
        let took = self.any_batch_time();
        self.enter_service(gpu, took);
    }

    fn check_device(&mut self, gpu: usize) {
        self.gpus[gpu].thread = Thread::Idle(Time::MAX);
        self.gpus[gpu].cell.expect_by(self.now + CALL_MAX);
        if self.gpus[gpu].device.lost {
            self.tally.note(Event::LostWhenChecked);
            return self.fail(gpu);
        }
        self.gpus[gpu].cell.expect_by(Time::MAX);
        self.probe_if_due(gpu);
    }

    fn probe_if_due(&mut self, gpu: usize) {
        let Activity::Idle(since) = self.rig.scheduler.pool().activity(gpu) else {
            panic!("an idle thread's GPU is idle");
        };
        let due = self.admission.probe_due(self.now, since);
        self.door.check_probe(self.now, since, due);
        if due {
            self.tally.note(Event::Probed);
            self.rig.scheduler.launched(gpu, self.now);
            let batch_time = self.rig.scheduler.batch_time(gpu);
            let expected = self.now + batch_time;
            let run = self.canary_run(gpu);
            self.gpus[gpu].thread = Thread::Probing(Run { expected, ..run });
        }
    }

    fn probed(&mut self, gpu: usize, run: Run) {
        if World::sings(&run.outcome) {
            self.begin_anew(gpu, self.now.since(run.launched));
            let half = self.gpus[gpu].half;
            self.turn_idle(gpu, half);
        } else {
            self.fail(gpu);
        }
    }

    /// Every idle thread looks at its device.
    pub(super) fn check_devices(&mut self) {
        for gpu in 0..self.gpus.len() {
            if self.gpus[gpu].phase() == Phase::Idle {
                self.act(gpu);
            }
        }
    }
}

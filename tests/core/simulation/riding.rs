//! A GPU thread's way with a batch that nothing is wrong with: it boards, launches, waits and alights as the real one does.
//! What goes wrong goes on to [`super::failing`] and [`super::searching`].

use std::time::Duration;

use funicular::batch::Batch;
use funicular::batch::pool::Activity;
use funicular::clock::Time;
use funicular::gpu::NOTICE_MAX;
use funicular::gpu::cell::Seized;
use funicular::gpu::executor::{Half, Outcome};
use funicular::gpu::fate::{self, Returned};
use funicular::queue::Lane;
use funicular::ticket::{Input, Output, Ticket};

use super::device::{Function, Run};
use super::gpus::{Ride, Thread, id_of, ids_of};
use super::shadow::{End, Place, Why};
use super::tally::Event;
use super::world::World;

/// How a launch went.
pub enum Departure {
    Runs(Run),
    /// Nobody of the batch is left alive.
    NotNeeded,
    DeviceLost,
}

impl World {
    /// The idle `gpu` has claimed `batch`.
    pub(super) fn ride(&mut self, gpu: usize, batch: Batch) {
        let most = self.shadow.batch_max(batch.lane);
        assert!((1..=most).contains(&batch.tickets.len()));
        let half = self.gpus[gpu].half;
        if self.board(gpu, half, batch) {
            let departure = self.depart(gpu, half);
            self.go_on(gpu, half, departure);
        }
    }

    /// Stages `batch`. False if that was the end of the device.
    pub(super) fn board(&mut self, gpu: usize, half: Half, batch: Batch) -> bool {
        let it = &self.gpus[gpu];
        it.cell
            .put(it.generation, half, batch)
            .expect("nobody seizes a thread that does not block");
        if it.device.lost {
            self.tally.note(Event::LostWhenStaged);
            self.fail(gpu);
            return false;
        }
        true
    }

    /// Launches what is staged in `half`, unless nobody of it is left alive.
    pub(super) fn depart(&mut self, gpu: usize, half: Half) -> Departure {
        let (it, now) = (&self.gpus[gpu], self.now);
        let mut wakes = self.rig.mailboxes.gather();
        let mut launched = Vec::new();
        let goes = it.cell.launch(it.generation, half, now, |batch| {
            let alive = fate::launch(batch, now, &mut wakes);
            let tickets = batch.tickets.iter();
            launched.extend(tickets.map(|ticket| (id_of(ticket), ticket.launches, batch.lane)));
            alive > 0
        });
        drop(wakes);
        let inputs = self.inputs(gpu, half);
        let alive = launched.into_iter().fold(0, |alive, (id, launches, lane)| {
            alive + usize::from(self.launched_one(gpu, id, launches, lane))
        });
        assert_eq!(goes, Ok(alive > 0), "a batch runs for those who live");
        if alive == 0 {
            let it = &self.gpus[gpu];
            drop(it.cell.take(it.generation, half).expect("not seized"));
            return Departure::NotNeeded;
        }
        let Some(mut run) = self.start(gpu, &inputs) else {
            return Departure::DeviceLost;
        };
        if std::mem::take(&mut self.gpus[gpu].device.occupied) {
            run.returns = self.now;
            run.outcome = Outcome::Busy(self.any_batch_time());
        }
        Departure::Runs(run)
    }

    fn inputs(&self, gpu: usize, half: Half) -> Vec<Input> {
        let it = &self.gpus[gpu];
        let inputs = it.cell.edit(it.generation, half, |batch| {
            let tickets = batch.tickets.iter();
            tickets.map(|ticket| ticket.input.clone()).collect()
        });
        inputs.expect("not seized")
    }

    /// Ticket `id` of a batch of `lane` was launched for the `launches`th time. Returns whether somebody waits for it.
    fn launched_one(&mut self, gpu: usize, id: usize, launches: u8, lane: Lane) -> bool {
        let record = &mut self.shadow.records[id];
        record.launches += 1;
        let expected = 1 + u8::from(lane == Lane::Retry);
        assert_eq!(
            (launches, record.launches),
            (expected, expected),
            "ticket {id}"
        );
        match record.place {
            Place::Bound(bound_to) => assert_eq!(bound_to, gpu, "ticket {id} is elsewhere"),
            Place::Ended(_) => return false,
            Place::Waiting(_) => panic!("ticket {id} is launched while it waits"),
        }
        if record.deadline <= self.now {
            self.shadow.resolve(id, End::Expired);
            self.tally.note(Event::ExpiredAtLaunch);
            return false;
        }
        assert!(record.slot.state().is_live());
        true
    }

    /// Starts a run of `inputs` on `gpu`. `None` if that was the end of the device.
    pub(super) fn start(&mut self, gpu: usize, inputs: &[Input]) -> Option<Run> {
        let batch_time = self.rig.scheduler.batch_time(gpu);
        let limit = self.settings.gpu.batch_timeout(batch_time);
        self.gpus[gpu].cell.expect_by(self.now + limit + NOTICE_MAX);
        self.rig.scheduler.launched(gpu, self.now);
        if self.gpus[gpu].device.lost {
            return None;
        }
        let expected = self.now + batch_time;
        let run = self.run_on(gpu, inputs, limit);
        Some(Run { expected, ..run })
    }

    /// A run on the device of `gpu`, whatever that is worth.
    pub(super) fn run_on(&mut self, gpu: usize, inputs: &[Input], limit: Duration) -> Run {
        let span = self.any_batch_time();
        let function = self.settings.function;
        let device = &mut self.gpus[gpu].device;
        device.run(function, inputs, (self.now, span, limit))
    }

    pub(super) fn any_batch_time(&mut self) -> Duration {
        let jitter = self.settings.jitter;
        let factor = if self.random.chance(0.02) {
            1.8
        } else {
            self.random.between(1.0 - jitter, 1.0 + jitter)
        };
        self.settings.batch_time.mul_f64(factor)
    }

    /// What the thread is about after it has tried to launch what is in `half`.
    fn go_on(&mut self, gpu: usize, half: Half, departure: Departure) {
        match departure {
            Departure::Runs(run) => {
                let ahead = false;
                self.gpus[gpu].thread = Thread::Riding(Ride { half, run, ahead });
            }
            Departure::NotNeeded => self.turn_idle(gpu, half),
            Departure::DeviceLost => {
                self.tally.note(Event::LostWhenLaunched);
                self.fail(gpu);
            }
        }
    }

    /// The thread has nothing in hand and goes to the collector.
    pub(super) fn turn_idle(&mut self, gpu: usize, half: Half) {
        if self.gpus[gpu].is_leaving {
            return self.has_left(gpu);
        }
        let it = &mut self.gpus[gpu];
        it.cell.expect_by(Time::MAX);
        it.half = half;
        it.thread = Thread::Idle(Time::MAX);
        self.rig.set_activity(gpu, Activity::Idle(self.now));
        if self.gpus[gpu].device.lost {
            self.will_check(gpu);
        }
    }

    /// The executor returns from the batch of `ride`.
    pub(super) fn back_from_ride(&mut self, gpu: usize, ride: Ride) {
        let Ride { half, run, ahead } = ride;
        if let (&Outcome::Busy(again), false) = (&run.outcome, self.gpus[gpu].seized) {
            return self.turned_away(gpu, half, run, ahead, again);
        }
        let took = self.now.since(run.launched);
        let inputs = run.inputs;
        let Some(returned) = self.returned_by(gpu, run) else {
            return;
        };
        let departure = match (ahead, &returned) {
            (false, _) => None,
            (true, _) if self.gpus[gpu].is_leaving => {
                self.tally.note(Event::LeftWithout);
                self.disembark(gpu, half.other());
                None
            }
            (true, Ok(_)) => {
                self.tally.note(Event::LaunchedAhead);
                Some(self.depart(gpu, half.other()))
            }
            (true, Err(_)) => {
                self.disembark(gpu, half.other());
                None
            }
        };
        match returned {
            Ok(results) => {
                self.measured(gpu, took);
                let it = &self.gpus[gpu];
                let held = it.cell.take(it.generation, half).expect("not seized");
                self.alight(gpu, held.batch.tickets, results);
                self.go_on(gpu, half.other(), departure.unwrap_or(Departure::NotNeeded));
            }
            Err(message) => self.search(gpu, half, inputs, message),
        }
    }

    /// The device did not take the batch: everybody goes back to wait, no attempt spent, and the device is left in peace.
    fn turned_away(&mut self, gpu: usize, half: Half, mut run: Run, ahead: bool, again: Duration) {
        self.tally.note(Event::TurnedAway);
        if ahead {
            self.disembark(gpu, half.other());
        }
        self.send_back(gpu, half);
        if self.gpus[gpu].device.lost {
            return self.fail(gpu);
        }
        let it = &mut self.gpus[gpu];
        it.cell.expect_by(Time::MAX);
        it.half = half;
        run.returns = self.now + again;
        it.thread = Thread::TurnedAway(run);
    }

    /// Sends a batch that was launched and not taken back to wait.
    pub(super) fn send_back(&mut self, gpu: usize, half: Half) {
        let it = &self.gpus[gpu];
        let mut held = it.cell.take(it.generation, half).expect("not seized");
        fate::turned_away(&mut held.batch);
        for id in ids_of(&held.batch) {
            self.shadow.records[id].launches -= 1;
        }
        self.give_back(held.batch);
    }

    /// What came back from `run`; `None` if that was the end of the GPU, or of the thread's claim to it.
    pub(super) fn returned_by(&mut self, gpu: usize, run: Run) -> Option<Returned> {
        if self.gpus[gpu].seized {
            // Whatever it brings but a whole batch of outputs says nothing about how long a batch takes.
            if matches!(&run.outcome, Outcome::Done(results) if results.len() == run.inputs) {
                self.measured(gpu, self.now.since(run.launched));
            }
            self.went_nowhere(gpu);
            return None;
        }
        if run.outcome == Outcome::Pending {
            self.tally.note(Event::TimedOut);
            self.fail(gpu);
            return None;
        }
        let Ok(returned) = fate::returned(run.outcome, run.inputs) else {
            self.tally.note(Event::LostInRun);
            self.fail(gpu);
            return None;
        };
        Some(returned)
    }

    /// The thread comes back late, and finds that everything has been taken away from it.
    fn went_nowhere(&mut self, gpu: usize) {
        let it = &self.gpus[gpu];
        for half in Half::ALL {
            assert_eq!(it.cell.take(it.generation, half).err(), Some(Seized));
            let launched = it.cell.launch(it.generation, half, self.now, |_| true);
            assert_eq!(launched, Err(Seized));
        }
        self.tally.note(Event::WentNowhere);
        self.out_of_service(gpu);
        self.rest(gpu);
    }

    pub(super) fn measured(&mut self, gpu: usize, took: Duration) {
        self.rig.scheduler.measured(gpu, took);
        self.gpus[gpu].measured(took);
    }

    /// Gives ticket i result i.
    pub(super) fn alight(
        &mut self,
        gpu: usize,
        tickets: Vec<Box<Ticket>>,
        results: Vec<Result<Output, String>>,
    ) {
        let now = self.now;
        let ids: Vec<usize> = tickets.iter().map(|ticket| id_of(ticket)).collect();
        let failed: Vec<Option<Why>> = results.iter().map(|result| self.why(result)).collect();
        let mut wakes = self.rig.mailboxes.gather();
        let output_max = self.settings.gpu.output_max;
        let late = fate::demux(tickets, results, now, output_max, &mut wakes);
        drop(wakes);
        let mut late_expected = 0;
        for (id, why) in ids.into_iter().zip(failed) {
            if self.shadow.is_bound(id, gpu) {
                self.shadow
                    .resolve(id, why.map_or(End::Answered, End::Failed));
            } else {
                late_expected += 1;
                self.tally.note(Event::Late);
            }
        }
        assert_eq!(late, late_expected, "results for nobody");
    }

    fn why(&mut self, result: &Result<Output, String>) -> Option<Why> {
        match result {
            Ok(output) if output.text.len() > self.settings.gpu.output_max => {
                self.tally.note(Event::TooLarge);
                Some(Why::TooLarge)
            }
            Ok(_) => None,
            Err(_) => {
                if self.settings.function == Function::Names {
                    self.tally.note(Event::Named);
                }
                Some(Why::Rejected)
            }
        }
    }
}

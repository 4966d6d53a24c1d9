//! The world's GPUs: what GPU threads do with their batches.

use std::time::Duration;

use funicular::batch::Batch;
use funicular::batch::pool::Activity;
use funicular::clock::Time;
use funicular::queue::Lane;
use funicular::ticket::{Failure, Input, Output, Ticket};

use super::rule;
use super::shadow::{End, Place};
use super::tally::Event;
use super::world::World;

/// A ticket is launched at most so often.
const LAUNCHES_MAX: u8 = 2;

/// One GPU.
pub enum Gpu {
    Down,
    Idle,
    Busy(Run),
}

/// A batch that runs, and the one that boards meanwhile.
pub struct Run {
    launched: Time,
    pub expected: Time,
    back: Time,
    inputs: Vec<Input>,
    batch: Batch,
    staged: Option<Batch>,
}

impl Gpu {
    /// When its batch comes back.
    pub fn back(&self) -> Option<Time> {
        self.run().map(|run| run.back)
    }

    pub fn run(&self) -> Option<&Run> {
        match self {
            Gpu::Busy(run) => Some(run),
            Gpu::Down | Gpu::Idle => None,
        }
    }
}

/// The number by which the shadow knows `ticket`.
pub fn id_of(ticket: &Ticket) -> usize {
    ticket
        .input
        .text
        .parse()
        .expect("an input is the ticket's number")
}

/// The numbers of the tickets of `batch`.
pub fn ids_of(batch: &Batch) -> Vec<usize> {
    batch.tickets.iter().map(|ticket| id_of(ticket)).collect()
}

impl World {
    /// Launches a bound batch, unless nobody of it is left alive.
    pub(super) fn launch(&mut self, gpu: usize, mut batch: Batch) {
        assert!((1..=self.shadow.batch_max(batch.lane)).contains(&batch.tickets.len()));
        let mut alive = 0;
        for ticket in &mut batch.tickets {
            alive += usize::from(self.launch_one(gpu, batch.lane, ticket));
        }
        if alive == 0 {
            self.gpus[gpu] = Gpu::Idle;
            return self.rig.set_activity(gpu, Activity::Idle(self.now));
        }
        self.rig.scheduler.launched(gpu, self.now);
        let expected = self.now + self.rig.scheduler.batch_time(gpu);
        let back = self.now + self.any_batch_time();
        let inputs = batch
            .tickets
            .iter()
            .map(|ticket| ticket.input.clone())
            .collect();
        self.gpus[gpu] = Gpu::Busy(Run {
            launched: self.now,
            expected,
            back,
            inputs,
            batch,
            staged: None,
        });
    }

    fn launch_one(&mut self, gpu: usize, lane: Lane, ticket: &mut Ticket) -> bool {
        let id = id_of(ticket);
        if ticket.deadline <= self.now {
            let mut wakes = self.rig.mailboxes.gather();
            if ticket.expire(&mut wakes).is_some() {
                self.shadow.resolve(id, End::Expired);
                self.tally.note(Event::ExpiredAtLaunch);
            }
        }
        let record = &mut self.shadow.records[id];
        let launches_before = u8::from(lane == Lane::Retry);
        assert_eq!(
            (ticket.launches, record.launches),
            (launches_before, launches_before),
            "ticket {id}"
        );
        ticket.launches += 1;
        record.launches += 1;
        match record.place {
            Place::Bound(bound_to) => {
                assert_eq!(bound_to, gpu, "ticket {id} is bound to another GPU")
            }
            Place::Ended(_) => {}
            Place::Waiting(_) => panic!("ticket {id} is launched while it waits"),
        }
        ticket.state().is_live()
    }

    fn any_batch_time(&mut self) -> Duration {
        let jitter = self.settings.jitter;
        let factor = if self.random.chance(0.02) {
            4.0
        } else {
            self.random.between(1.0 - jitter, 1.0 + jitter)
        };
        self.settings.batch_time.mul_f64(factor)
    }

    /// The batch of `gpu` comes back.
    pub(super) fn finish(&mut self, gpu: usize) {
        let Gpu::Busy(run) = std::mem::replace(&mut self.gpus[gpu], Gpu::Idle) else {
            panic!("only a busy GPU finishes")
        };
        self.rig
            .scheduler
            .measured(gpu, self.now.since(run.launched));
        match run.staged {
            Some(batch) => self.launch(gpu, batch),
            None => self.rig.set_activity(gpu, Activity::Idle(self.now)),
        }
        let mut wakes = self.rig.mailboxes.gather();
        for (ticket, input) in run.batch.tickets.into_iter().zip(run.inputs) {
            let id = id_of(&ticket);
            let output = Output {
                text: format!("answer to {}", input.text),
                tokens: None,
            };
            let won = ticket.answer(output, &mut wakes).is_some();
            let live = matches!(self.shadow.records[id].place, Place::Bound(_));
            assert_eq!(won, live, "the answer of ticket {id}");
            if won {
                self.shadow.resolve(id, End::Answered);
            } else {
                self.tally.note(Event::Late);
            }
        }
    }

    /// `gpu` has passed its canary.
    pub(super) fn enter_service(&mut self, gpu: usize) {
        self.rig.scheduler.forget(gpu);
        let took = self.any_batch_time();
        self.rig.scheduler.measured(gpu, took);
        self.gpus[gpu] = Gpu::Idle;
        self.rig.set_activity(gpu, Activity::Idle(self.now));
    }

    fn any_gpu(&mut self, fits: impl Fn(&Gpu) -> bool) -> Option<usize> {
        let fit: Vec<usize> = (0..self.gpus.len())
            .filter(|&gpu| fits(&self.gpus[gpu]))
            .collect();
        (!fit.is_empty()).then(|| self.random.pick(&fit))
    }

    pub(super) fn recover_any(&mut self) {
        if let Some(gpu) = self.any_gpu(|gpu| matches!(gpu, Gpu::Down)) {
            self.enter_service(gpu);
        }
    }

    pub(super) fn stage_any(&mut self) {
        let Some(gpu) = self.any_gpu(|gpu| gpu.run().is_some_and(|run| run.staged.is_none()))
        else {
            return;
        };
        self.rig.drain(|_| {});
        let lane = rule::next_lane(&self.shadow, gpu);
        let full = |lane: &Lane| self.shadow.waiting_in(*lane) >= self.shadow.batch_max(*lane);
        let tries = lane.filter(|lane| self.pool(gpu).idle == 0 && full(lane));
        let mut wakes = self.rig.mailboxes.gather();
        let bound = self.rig.scheduler.bind_ahead(gpu, self.now, &mut wakes);
        drop(wakes);
        match (bound, tries) {
            (Some(batch), Some(_)) => {
                assert_eq!(Some(batch.lane), lane);
                assert_eq!(
                    batch.tickets.len(),
                    self.shadow.batch_max(batch.lane),
                    "only a full batch is bound ahead"
                );
                self.claim_is_right(gpu, &batch);
                self.shadow.retried_last[gpu] = batch.lane == Lane::Retry;
                let Gpu::Busy(run) = &mut self.gpus[gpu] else {
                    unreachable!("it was busy")
                };
                run.staged = Some(batch);
                self.tally.note(Event::Staged);
            }
            (None, Some(lane)) => {
                // Enough were counted, but some turned out to be dead, and the rest waits on.
                let claim = self.shadow.claimable(lane, self.now);
                assert!(
                    claim.bound.len() < self.shadow.batch_max(lane),
                    "a full batch was not bound"
                );
                self.shadow.claimed(&claim, lane, gpu);
                claim
                    .bound
                    .iter()
                    .for_each(|&id| self.shadow.give_back(id, lane));
                self.tally.note(Event::StagedInVain);
            }
            (bound, None) => assert!(
                bound.is_none(),
                "bound ahead although a GPU is idle or the batch is not full"
            ),
        }
    }

    pub(super) fn unstage_any(&mut self) {
        if let Some(gpu) = self.any_gpu(|gpu| gpu.run().is_some_and(|run| run.staged.is_some())) {
            let Gpu::Busy(run) = &mut self.gpus[gpu] else {
                unreachable!("it was busy")
            };
            let staged = run.staged.take();
            staged.into_iter().for_each(|batch| self.give_back(batch));
        }
    }

    fn give_back(&mut self, batch: Batch) {
        ids_of(&batch)
            .into_iter()
            .for_each(|id| self.shadow.give_back(id, batch.lane));
        self.rig.scheduler.give_back(batch);
        self.tally.note(Event::GivenBack);
        self.rig.ring();
    }

    pub(super) fn lose_any(&mut self) {
        let Some(gpu) = self.any_gpu(|gpu| !matches!(gpu, Gpu::Down)) else {
            return;
        };
        let was = std::mem::replace(&mut self.gpus[gpu], Gpu::Down);
        self.rig.set_activity(gpu, Activity::Down);
        self.rig.ring();
        let Gpu::Busy(run) = was else { return };
        let staged_first = self.random.chance(0.5);
        let (first, last) = if staged_first {
            (run.staged, None)
        } else {
            (None, run.staged)
        };
        first.into_iter().for_each(|batch| self.give_back(batch));
        self.rescue(run.batch);
        last.into_iter().for_each(|batch| self.give_back(batch));
    }

    /// Sends the tickets of a lost batch back to wait, once each.
    fn rescue(&mut self, batch: Batch) {
        let (again, spent): (Vec<_>, Vec<_>) = batch
            .tickets
            .into_iter()
            .partition(|ticket| ticket.launches < LAUNCHES_MAX);
        again
            .iter()
            .for_each(|ticket| self.shadow.retry(id_of(ticket)));
        again.iter().for_each(|_| self.tally.note(Event::Retried));
        self.rig.scheduler.retry(again);
        self.rig.ring();
        let mut wakes = self.rig.mailboxes.gather();
        for ticket in spent {
            let id = id_of(&ticket);
            let failure = Failure::Unavailable {
                why: "lost twice",
                retry_after: Duration::from_secs(1),
            };
            if ticket.fail(failure, &mut wakes).is_some() {
                self.shadow.resolve(id, End::Failed);
                self.tally.note(Event::LostTwice);
            }
        }
    }
}

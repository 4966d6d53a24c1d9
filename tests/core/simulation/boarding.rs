//! Batches that are bound, and not launched: those that board while another one runs, and those that are given back.

use funicular::batch::Batch;
use funicular::gpu::executor::Half;
use funicular::queue::Lane;
use funicular::ticket::Failure;

use super::gpus::{Gpu, Phase, Thread, ids_of};
use super::rule;
use super::shadow::{End, Why};
use super::tally::Event;
use super::world::World;

impl World {
    fn boards(gpu: &Gpu, ahead: bool) -> bool {
        !gpu.seized && matches!(&gpu.thread, Thread::Riding(ride) if ride.ahead == ahead)
    }

    pub(super) fn stage_any(&mut self) {
        let Some(gpu) = self.any_gpu(|gpu| World::boards(gpu, false)) else {
            return;
        };
        let Some(batch) = self.bind_ahead(gpu) else {
            return;
        };
        self.tally.note(Event::Staged);
        let Thread::Riding(ride) = &mut self.gpus[gpu].thread else {
            unreachable!("it was picked for riding")
        };
        ride.ahead = true;
        let half = ride.half.other();
        self.board(gpu, half, batch);
    }

    /// Binds the next batch of the busy `gpu`: a full one if no GPU is idle and one waits, or none.
    pub(super) fn bind_ahead(&mut self, gpu: usize) -> Option<Batch> {
        self.rig.drain(|_| {});
        let lane = rule::next_lane(&self.shadow, gpu);
        let full = |lane: &Lane| self.shadow.waiting_in(*lane) >= self.shadow.batch_max(*lane);
        let is_leaving = self.gpus[gpu].is_leaving;
        let tries = lane.filter(|lane| !is_leaving && self.pool(gpu).idle == 0 && full(lane));
        let mut wakes = self.rig.mailboxes.gather();
        let bound = self.rig.scheduler.bind_ahead(gpu, self.now, &mut wakes);
        drop(wakes);
        match (&bound, tries) {
            (Some(batch), Some(_)) => self.bound_ahead(gpu, batch, lane),
            (None, Some(lane)) => self.staged_in_vain(gpu, lane),
            (bound, None) => assert!(
                bound.is_none(),
                "bound ahead although a GPU is idle or the batch is not full"
            ),
        }
        bound
    }

    fn bound_ahead(&mut self, gpu: usize, batch: &Batch, lane: Option<Lane>) {
        assert_eq!(Some(batch.lane), lane);
        assert_eq!(
            batch.tickets.len(),
            self.shadow.batch_max(batch.lane),
            "only a full batch is bound ahead"
        );
        self.claim_is_right(gpu, batch);
        self.shadow.retried_last[gpu] = batch.lane == Lane::Retry;
    }

    /// Enough were counted, but some turned out to be dead, and the rest waits on.
    fn staged_in_vain(&mut self, gpu: usize, lane: Lane) {
        let claim = self.shadow.claimable(lane, self.now);
        assert!(
            claim.bound.len() < self.shadow.batch_max(lane),
            "a full batch was not bound"
        );
        self.shadow.claimed(&claim, lane, gpu);
        let bound = claim.bound.iter();
        bound.for_each(|&id| self.shadow.give_back(id, lane));
        self.tally.note(Event::StagedInVain);
    }

    pub(super) fn unstage_any(&mut self) {
        let Some(gpu) = self.any_gpu(|gpu| World::boards(gpu, true)) else {
            return;
        };
        let Thread::Riding(ride) = &mut self.gpus[gpu].thread else {
            unreachable!("it was picked for riding")
        };
        ride.ahead = false;
        let half = ride.half.other();
        self.disembark(gpu, half);
    }

    /// Sends what is staged in `half` back to wait, unlaunched.
    pub(super) fn disembark(&mut self, gpu: usize, half: Half) {
        let it = &self.gpus[gpu];
        let held = it.cell.take(it.generation, half).expect("not seized");
        assert_eq!(held.launched, None);
        self.give_back(held.batch);
    }

    pub(super) fn give_back(&mut self, batch: Batch) {
        let ids = ids_of(&batch).into_iter();
        ids.for_each(|id| self.shadow.give_back(id, batch.lane));
        self.rig.scheduler.give_back(batch);
        self.tally.note(Event::GivenBack);
        self.returned();
    }

    /// Tickets came back to wait, or a GPU went: if nobody is left to wait for, everybody is told.
    pub(super) fn returned(&mut self) {
        let expected = if self.closed {
            Some((Failure::Draining, Why::Draining))
        } else if self.gpus.iter().all(|gpu| gpu.phase() == Phase::Down) {
            Some((Failure::NoGpu, Why::NoGpu))
        } else {
            None
        };
        let told = self.rig.returned();
        assert_eq!(told, expected.as_ref().map(|(failure, _)| failure.clone()));
        if let Some((_, why)) = expected {
            self.all_waiting_fail(why);
        }
    }

    /// The shadow of everybody who waits being told why they need not.
    pub(super) fn all_waiting_fail(&mut self, why: Why) {
        for id in self.shadow.waiting_ids() {
            self.shadow.resolve(id, End::Failed(why));
            if why == Why::NoGpu {
                self.tally.note(Event::WithoutGpu);
            }
        }
    }
}

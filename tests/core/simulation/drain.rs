//! The end of the server: it takes leave, serves whoever is left for a while, and then everybody is told.

use funicular::batch::Batch;
use funicular::batch::policy::Launch;
use funicular::gpu::cell::{Held, Seized};
use funicular::gpu::executor::Half;
use funicular::gpu::fate;
use funicular::queue::Lane;
use funicular::ticket::Failure;

use super::gpus::{Phase, Thread, id_of};
use super::shadow::{End, Why};
use super::tally::Event;
use super::world::World;

impl World {
    /// From now on hardly anybody gets in, and when the grace period is over or nobody is left the server ends.
    pub(super) fn drain(&mut self) {
        if self.draining.is_none() {
            let grace = self.random.between(0.0, 4.0);
            self.draining = Some(self.now + self.settings.batch_time.mul_f64(grace));
        }
    }

    /// Ends the server if its time has come.
    pub(super) fn end_if_due(&mut self) {
        let over = |grace| self.now >= grace || self.shadow.live().is_empty();
        if self.draining.is_some_and(over) {
            self.end();
            self.check();
            self.restart();
        }
    }

    fn end(&mut self) {
        if !self.shadow.live().is_empty() {
            self.tally.note(Event::Drained);
        }
        let boarding = self.claimed_at_the_last_moment();
        self.closed = true;
        self.rig.close();
        self.tell_waiting();
        (0..self.gpus.len()).for_each(|gpu| self.retire(gpu));
        if let Some((gpu, batch)) = boarding {
            let it = &self.gpus[gpu];
            let refused = it.cell.put(it.generation, Half::A, batch);
            self.give_back(refused.expect_err("a cell that was seized takes nothing"));
        }
        // A request that was just being let in when everybody was told.
        let straggler = self.random.chance(0.5);
        if straggler {
            self.arrive_one();
        }
        self.tell_waiting();
        self.come_back_to_nothing();
        assert_eq!(self.shadow.live(), Vec::<usize>::new(), "everybody is told");
        assert_eq!(self.rig.backlog().total(), 0);
    }

    fn tell_waiting(&mut self) {
        self.rig.fail_waiting(&Failure::Draining);
        self.all_waiting_fail(Why::Draining);
    }

    /// A thread may have claimed a batch and not boarded it when the server ends.
    fn claimed_at_the_last_moment(&mut self) -> Option<(usize, Batch)> {
        let gpu = self.any_gpu(|gpu| gpu.phase() == Phase::Idle)?;
        self.rig.drain(|_| {});
        let mut wakes = self.rig.mailboxes.gather();
        let (scheduler, now) = (&mut self.rig.scheduler, self.now);
        let batch = scheduler.claim(gpu, Lane::Fresh, Launch::Hold, now, &mut wakes);
        drop(wakes);
        self.claim_is_right(gpu, &batch);
        (!batch.tickets.is_empty()).then_some((gpu, batch))
    }

    fn retire(&mut self, gpu: usize) {
        let it = &mut self.gpus[gpu];
        let (held, _) = it.cell.fail("the server ends", self.now, true);
        it.seized = true;
        self.out_of_service(gpu);
        held.into_iter().for_each(|held| self.give_up(held));
    }

    fn give_up(&mut self, held: Held) {
        let ids: Vec<usize> = held
            .batch
            .tickets
            .iter()
            .map(|ticket| id_of(ticket))
            .collect();
        let mut wakes = self.rig.mailboxes.gather();
        let failed = fate::give_up(held.batch.tickets, &Failure::Draining, &mut wakes);
        drop(wakes);
        let live = ids.into_iter().filter(|id| self.shadow.is_live(*id));
        let live: Vec<usize> = live.collect();
        assert_eq!(failed, live.len());
        live.into_iter()
            .for_each(|id| self.shadow.resolve(id, End::Failed(Why::Draining)));
    }

    /// Whatever runs comes back to a cell that is not its own any more.
    fn come_back_to_nothing(&mut self) {
        for it in &mut self.gpus {
            for half in Half::ALL {
                assert_eq!(it.cell.take(it.generation, half).err(), Some(Seized));
            }
            it.thread = Thread::Resting;
        }
    }
}

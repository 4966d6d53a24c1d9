//! The holder of the token: what the collector does with the core, and what it must be told.

use funicular::batch::Batch;
use funicular::batch::policy::Launch;
use funicular::queue::Lane;

use super::gpus::{Gpu, Phase, ids_of};
use super::rule::{self, Pool, Verdict};
use super::tally::Event;
use super::world::World;
use crate::support::rig::Hold;

impl World {
    /// The holder of the token looks, if there is one and it is due, and GPUs launch until one holds.
    pub(super) fn settle(&mut self) {
        while let Some(gpu) = self.token_holder() {
            if !self.rig.is_due(self.now) {
                return;
            }
            self.rig.drain(|_| {});
            let verdict = rule::verdict(
                &self.shadow,
                gpu,
                self.now,
                &self.pool(gpu),
                self.arrival_rate(),
            );
            match self.rig.look(gpu, self.now) {
                Err(hold) => return self.hold(hold, verdict),
                Ok(batch) => self.claimed(gpu, batch, verdict),
            }
        }
        self.rig.leave_token();
    }

    fn token_holder(&mut self) -> Option<usize> {
        let idle: Vec<usize> = (0..self.gpus.len())
            .filter(|&gpu| self.gpus[gpu].phase() == Phase::Idle)
            .collect();
        if self.holder.is_none_or(|gpu| !idle.contains(&gpu)) {
            self.rig.pass_token();
            self.holder = (!idle.is_empty()).then(|| self.random.pick(&idle));
        }
        self.holder
    }

    fn arrival_rate(&self) -> f64 {
        self.rig.scheduler.arrival_rate(self.now)
    }

    pub(super) fn pool(&self, gpu: usize) -> Pool {
        let phases = || self.gpus.iter().map(Gpu::phase);
        Pool {
            healthy: phases().filter(|phase| *phase != Phase::Down).count(),
            idle: phases().filter(|phase| *phase == Phase::Idle).count(),
            expected: self
                .gpus
                .iter()
                .filter(|gpu| gpu.phase() == Phase::Busy)
                .filter_map(|gpu| Some(gpu.run()?.expected))
                .collect(),
            batch_time: self.rig.scheduler.batch_time(gpu),
        }
    }

    fn hold(&mut self, hold: Hold, verdict: Verdict) {
        assert!(
            matches!(verdict, Verdict::Hold | Verdict::Either(_)),
            "held instead of {verdict:?}"
        );
        assert!(
            hold.need > self.shadow.waiting_in(Lane::Fresh),
            "needs {}, which wait already",
            hold.need
        );
        assert!(
            hold.again > self.now,
            "a holder never looks twice at the same time"
        );
        self.rig.sleep(hold);
        self.tally.note(Event::Held);
    }

    fn claimed(&mut self, gpu: usize, batch: Batch, verdict: Verdict) {
        let fits = match verdict {
            Verdict::Launch(lane, reason) => (lane, reason) == (batch.lane, batch.reason),
            Verdict::Either(lane) => (lane, Launch::Paced) == (batch.lane, batch.reason),
            Verdict::Hold => false,
        };
        assert!(
            fits,
            "launched {:?} {:?} instead of {verdict:?}",
            batch.lane, batch.reason
        );
        self.claim_is_right(gpu, &batch);
        self.rig.pass_token();
        if !batch.tickets.is_empty() {
            self.holder = None;
            self.tally.note(match (batch.lane, batch.reason) {
                (Lane::Retry, _) => Event::LaunchedRetry,
                (Lane::Fresh, Launch::Full) => Event::LaunchedFull,
                (Lane::Fresh, Launch::Hold) => Event::LaunchedHold,
                (Lane::Fresh, Launch::Paced) => Event::LaunchedPaced,
                (Lane::Fresh, Launch::Whole) => unreachable!("nobody offers a whole batch here"),
            });
            self.shadow.retried_last[gpu] = batch.lane == Lane::Retry;
            self.ride(gpu, batch);
        }
    }

    /// Compares a claim with what it must take, and notes it.
    pub(super) fn claim_is_right(&mut self, gpu: usize, batch: &Batch) {
        let claim = self.shadow.claimable(batch.lane, self.now);
        assert_eq!(
            ids_of(batch),
            claim.bound,
            "the claim of gpu {gpu} from {:?}",
            batch.lane
        );
        self.shadow.claimed(&claim, batch.lane, gpu);
        claim
            .expired
            .iter()
            .for_each(|_| self.tally.note(Event::ExpiredAtClaim));
        claim
            .gone
            .iter()
            .for_each(|_| self.tally.note(Event::GoneAtClaim));
    }
}

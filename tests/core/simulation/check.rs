//! The comparison of the core with its shadow, and the invariants.

use std::time::Duration;

use funicular::admission::RETRY_AFTER_MAX;
use funicular::gpu::case::{NO_BUDGET, NO_TIME};
use funicular::gpu::fate::lost_twice;
use funicular::queue::Lane;
use funicular::slot::{Resolution, State};
use funicular::ticket::{Failure, Output};
use funicular::tier::Tier;

use super::device::{Mark, answer_to};
use super::gpus::Phase;
use super::shadow::{Books, End, Place, Why};
use super::world::World;

/// The server keeps its means in whole nanoseconds.
const ROUNDING: f64 = 2e-5;

impl World {
    /// Everything that must be true between two steps.
    pub(super) fn check(&mut self) {
        self.check_waits();
        self.check_pool();
        for lane in Lane::ALL {
            Tier::ALL
                .into_iter()
                .for_each(|tier| self.check_queue(lane, tier));
        }
        self.check_resolutions();
    }

    /// Nobody waits as long as `hold_max` while a GPU is idle, nor past its deadline and a late timer ever.
    pub(super) fn check_waits(&self) {
        let idle = self.gpus.iter().any(|gpu| gpu.phase() == Phase::Idle);
        for record in self.shadow.all_waiting() {
            let waited = self.now.since(record.arrived);
            assert!(
                !idle || waited < self.settings.policy.hold_max,
                "waited {waited:?} while a GPU is idle"
            );
            assert!(self.now <= record.timer, "waited past its deadline");
        }
    }

    /// What is published of the pool is what the GPUs that serve can do, and nothing of those that do not.
    fn check_pool(&self) {
        (0..self.gpus.len()).for_each(|gpu| self.check_gpu(gpu));
        let serving = || self.gpus.iter().filter(|gpu| gpu.phase() != Phase::Down);
        let idle = serving().filter(|gpu| gpu.phase() == Phase::Idle).count();
        let healthy = serving().count();
        let load = self.load();
        assert_eq!((load.healthy, load.idle_gpus), (healthy, idle));
        let means: Vec<f64> = serving().filter_map(|gpu| gpu.mean).collect();
        assert_eq!(means.len(), healthy, "whoever serves was measured");
        let batch_max = self.settings.policy.batch_max as f64;
        let capacity: f64 = means.iter().map(|mean| batch_max / mean).sum();
        assert!(
            (load.capacity - capacity).abs() <= ROUNDING * capacity,
            "a capacity of {} instead of {capacity}",
            load.capacity
        );
        let waiting = Tier::ALL.map(|tier| self.shadow.waiting_by_tier(tier).len() as u32);
        assert_eq!(load.waiting, waiting);
        if healthy > 0 {
            let mean = means.iter().sum::<f64>() / healthy as f64;
            let found = load.batch_time.as_secs_f64();
            assert!((found - mean).abs() <= ROUNDING * mean, "L is {found}");
        }
    }

    /// The live count is what went in less what went out, and those seated sit in order.
    fn check_queue(&self, lane: Lane, tier: Tier) {
        let waiting = self.shadow.waiting(lane, tier);
        let Books {
            admitted,
            returned,
            claimed,
            abandoned,
        } = *self.shadow.books(lane, tier);
        let counted = self.rig.backlog().waiting(lane, tier);
        assert_eq!(
            counted,
            admitted + returned - claimed - abandoned,
            "{lane:?} {tier}"
        );
        assert_eq!(counted, waiting.len(), "{lane:?} {tier}");
        let mut expected = waiting.iter().map(|&id| &self.shadow.records[id].slot);
        let mut seated = 0;
        for ticket in self.rig.scheduler.seated(lane, tier) {
            seated += 1;
            if ticket.is_waiting() {
                let next = expected.next().expect("nobody is seated who does not wait");
                assert!(
                    std::sync::Arc::ptr_eq(ticket.slot(), next),
                    "{lane:?} {tier} is out of order"
                );
            }
        }
        assert!(
            expected.all(|slot| slot.state() == State::Fresh),
            "only the hand-over holds others who wait"
        );
        assert!(
            seated <= 2 * counted + self.husks_max(),
            "{seated} seated for {counted} who wait"
        );
    }

    /// A lane is swept when husks outnumber the living by 1024; until somebody claims, a hand-over may come on top.
    fn husks_max(&self) -> usize {
        1024 + 2 * Tier::COUNT * self.settings.queue_max
    }

    /// Whoever ended was woken and finds its own resolution.
    fn check_resolutions(&mut self) {
        self.rig.mailboxes.core(0).deliver();
        for id in std::mem::take(&mut self.shadow.ended) {
            let record = &self.shadow.records[id];
            assert!(
                record.blocker.park(Some(Duration::ZERO)).is_ok(),
                "ticket {id} was not woken"
            );
            let (state, resolution) = (record.slot.state(), record.slot.wait());
            let Place::Ended(end) = record.place else {
                panic!("ticket {id} has not ended")
            };
            let right = match (end, state, resolution) {
                (End::Answered, State::Done, Resolution::Answered(reply)) => {
                    record.mark == Mark::Good && answers(id, &reply.result)
                }
                (End::Failed(why), State::Failed, Resolution::Answered(reply)) => {
                    self.explains(id, why, reply.result)
                }
                (End::Expired, State::Expired, Resolution::Expired) => true,
                (End::Gone, State::Gone, Resolution::Gone) => true,
                _ => false,
            };
            assert!(
                right,
                "ticket {id} is {state:?} and should have ended as {end:?}"
            );
        }
    }

    /// Whether `result` tells ticket `id` that it failed for `why`. Only a bad input is ever rejected, in its own words.
    fn explains(&self, id: usize, why: Why, result: Result<Output, Failure>) -> bool {
        let mark = self.shadow.records[id].mark;
        let Err(failure) = result else { return false };
        match (why, failure) {
            (Why::Rejected, Failure::Rejected(message)) => {
                mark == Mark::Bad && message == self.settings.function.says_of(id)
            }
            (Why::TooLarge, Failure::OutputTooLarge(max)) => {
                mark == Mark::Long && max == self.settings.gpu.output_max
            }
            (Why::LostTwice, failure) => failure == lost_twice(),
            (Why::NoTime, Failure::Unavailable { why, .. }) => why == NO_TIME,
            (Why::NoBudget, Failure::Unavailable { why, .. }) => why == NO_BUDGET,
            (Why::Shed, Failure::Shed { retry_after }) => retry_after <= RETRY_AFTER_MAX,
            (Why::NoGpu, failure) => failure == Failure::NoGpu,
            (Why::Draining, failure) => failure == Failure::Draining,
            _ => false,
        }
    }
}

fn answers(id: usize, result: &Result<Output, Failure>) -> bool {
    let own = answer_to(&id.to_string());
    result.as_ref().is_ok_and(|output| output.text == own)
}

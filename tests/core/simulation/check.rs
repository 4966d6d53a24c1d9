//! The comparison of the core with its shadow, and the invariants.

use std::time::Duration;

use funicular::queue::Lane;
use funicular::slot::{Resolution, State};
use funicular::tier::Tier;

use super::gpus::Gpu;
use super::shadow::{Books, End, Place};
use super::world::World;

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
        let idle = self.gpus.iter().any(|gpu| matches!(gpu, Gpu::Idle));
        for record in self.shadow.all_waiting() {
            let waited = self.now.since(record.arrived);
            assert!(
                !idle || waited < self.settings.policy.hold_max,
                "waited {waited:?} while a GPU is idle"
            );
            assert!(self.now <= record.timer, "waited past its deadline");
        }
    }

    fn check_pool(&self) {
        let idle = self
            .gpus
            .iter()
            .filter(|gpu| matches!(gpu, Gpu::Idle))
            .count();
        let healthy = self
            .gpus
            .iter()
            .filter(|gpu| !matches!(gpu, Gpu::Down))
            .count();
        let published = self.rig.scheduler.pool().capacity();
        assert_eq!((published.healthy(), published.idle()), (healthy, idle));
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
                (End::Answered, State::Done, Resolution::Answered(reply)) => reply
                    .result
                    .is_ok_and(|output| output.text == format!("answer to {id}")),
                (End::Failed, State::Failed, Resolution::Answered(reply)) => reply.result.is_err(),
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
}

//! Those who wait and are not to be served: they are told as soon as it is known.

use crate::admission::{Admission, Load};
use crate::batch::schedule::Scheduler;
use crate::clock::Time;
use crate::ticket::Failure;
use crate::tier::Tier;
use crate::wake::Wakes;

impl Scheduler {
    /// What everybody who waits must be told, if there is nobody to wait for: nobody will ever look at them again because
    /// the server is `closed`, or no GPU is in service.
    pub fn hopeless(&self, closed: bool) -> Option<Failure> {
        if closed {
            Some(Failure::Draining)
        } else if self.pool.healthy() == 0 {
            Some(Failure::NoGpu)
        } else {
            None
        }
    }

    /// Answers everybody who is seated with `failure`.
    pub fn fail_waiting(&mut self, failure: &Failure, wakes: &mut Wakes<'_>) {
        for ticket in self.room.take_all() {
            let tier = ticket.tier;
            if let Some(from) = ticket.fail(failure.clone(), wakes) {
                self.backlog.left(from, tier);
            }
        }
    }

    /// Judges everybody who waits again, in the order in which they are claimed: drops those whose deadlines have passed or
    /// whose callers left, and sheds those who can't make their deadline any more. Returns how many were shed, by tier.
    pub fn rejudge(
        &mut self,
        now: Time,
        admission: &Admission,
        load: &Load,
        wakes: &mut Wakes<'_>,
    ) -> [usize; Tier::COUNT] {
        let mut shed = [0; Tier::COUNT];
        let mut position = 0;
        let backlog = &self.backlog;
        for tier in Tier::ALL {
            let Some(sweep) = admission.sweep(now, tier, load) else {
                continue;
            };
            self.room.retain(tier, |ticket| {
                if !ticket.is_waiting() {
                    return false;
                }
                let left = if ticket.deadline <= now {
                    // Its timer is about to say so too, or the whole machine stood still.
                    ticket.expire(wakes)
                } else if ticket.peer.is_gone() {
                    ticket.leave(wakes)
                } else if let Some(refusal) = sweep.judge(position + 1, ticket.deadline.since(now))
                {
                    let retry_after = refusal.retry_after;
                    let left = ticket.refuse(Failure::Shed { retry_after }, wakes);
                    shed[tier.index()] += usize::from(left.is_some());
                    left
                } else {
                    position += 1;
                    return true;
                };
                left.into_iter().for_each(|from| backlog.left(from, tier));
                false
            });
        }
        shed
    }
}

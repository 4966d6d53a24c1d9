//! A worker's way with a batch: admitted whole, run whole, answered whole.
//!
//! The batch becomes tickets like any other requests, all of them this connection's, which waits for one after the other.
//! Unlike a single request a batch is not given up when its sender hangs up: the sender lost the connection, not the wish,
//! and will ask again under the same id. So the handler stays to the end and leaves the answer in the ledger.

use std::sync::Arc;
use std::time::Duration;

use super::Phase;
use super::answer::{Outcome, record_timeline};
use super::batch::{BatchCall, write_results};
use super::connection::{Connection, unless_panicking};
use super::core::CoreRef;
use super::ledger::{Answer, Entrance};
use super::reject::{Rejection, UnavailableReason};
use super::request::Call;
use crate::clock::{self, Time};
use crate::metrics::{self, Stage};
use crate::slot::{Resolution, Slot};
use crate::ticket::{Failure, Output, Reply, Ticket, TicketSlot};
use crate::wake::Handler;

/// A batch that takes longer is given up. How long one may take is for the batch time-outs to say, here and where it comes
/// from; this is the bound for what neither of them bounds.
const BATCH_MAX: Duration = Duration::from_secs(600);

const LOST: &str = "the GPU failed while it ran the batch";

/// A batch in the ledger that this connection runs. Dropped unanswered, it leaves the ledger: sent again, it is new.
struct Claim {
    core: CoreRef,
    id: Box<str>,
    answer: Option<Answer>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let waiting = self
            .core
            .shared
            .ledger
            .finish(&self.id, self.answer.take(), clock::now());
        let mut wakes = self.core.mailboxes().gather();
        for slot in waiting {
            let reply = Reply {
                result: Ok(Output::default()),
                timeline: Default::default(),
            };
            if slot.answer(reply, true).is_some() {
                wakes.wake(slot);
            }
        }
    }
}

impl Connection {
    /// Runs a batch, unless it has run or runs already, and waits for its results.
    pub(super) fn run_batch(
        &mut self,
        call: &Call,
        batch: BatchCall,
        begun: Time,
        arrived: Time,
    ) -> Outcome {
        let core = self.core.clone();
        let deadline = arrived + BATCH_MAX;
        let entrance = core
            .shared
            .ledger
            .enter(&batch.id, &batch.fingerprint, arrived, || {
                let slot = self.slot();
                // It has no ticket and is in no queue: nobody is to count it out of one.
                let _ = slot.bind();
                slot
            });
        let answer = match entrance {
            Entrance::Run => {
                let claim = Claim {
                    core,
                    id: batch.id.clone(),
                    answer: None,
                };
                self.run_claimed(claim, call, batch, (begun, arrived, deadline))
            }
            Entrance::Ran(answer) => answer,
            Entrance::Runs(slot) => match self.wait_for(&slot, call.tier, arrived, deadline) {
                Resolution::Expired => Err(Rejection::DeadlinePassed),
                _ => core
                    .shared
                    .ledger
                    .answer(&batch.id)
                    .unwrap_or_else(|| Err(self.busy())),
            },
            Entrance::Other => Err(Rejection::OtherBatch(batch.id)),
            Entrance::Full => Err(self.busy()),
        };
        match answer {
            Ok(results) => Outcome::Ran(results),
            Err(rejection) => Outcome::Refused(rejection),
        }
    }

    fn slot(&self) -> Arc<TicketSlot> {
        let handler = Handler::new(Arc::clone(self.wire.blocker()), self.core.index);
        Arc::new(Slot::new(handler))
    }

    /// As many batches as there may be are here; half a batch time from now there may be room.
    fn busy(&self) -> Rejection {
        Rejection::Unavailable {
            reason: UnavailableReason::Busy,
            retry_after: self.core.shared.door.batch_time() / 2,
        }
    }

    fn run_claimed(
        &mut self,
        mut claim: Claim,
        call: &Call,
        batch: BatchCall,
        (begun, arrived, deadline): (Time, Time, Time),
    ) -> Answer {
        let admitted = unless_panicking(|| self.admit_batch(call, &batch, arrived, deadline));
        let slots = admitted.unwrap_or(Err(Rejection::Internal))?;
        let core = self.core.clone();
        core.recorder().stage(Stage::Parse, arrived.since(begun));
        let mut ends = Vec::with_capacity(slots.len());
        for slot in &slots {
            ends.push(self.wait_for(slot, call.tier, arrived, deadline));
        }
        let now = clock::now();
        for end in &ends {
            if let Resolution::Answered(Reply {
                result: Ok(_),
                timeline,
            }) = end
            {
                record_timeline(timeline, arrived, core.recorder(), call.tier, now);
            }
        }
        let (answer, ran) = conclude(&batch, ends);
        if ran {
            claim.answer = Some(answer.clone());
        }
        answer
    }

    /// Makes the batch's tickets and queues them, all or none.
    #[inline(never)]
    fn admit_batch(
        &self,
        call: &Call,
        batch: &BatchCall,
        arrived: Time,
        deadline: Time,
    ) -> Result<Vec<Arc<TicketSlot>>, Rejection> {
        let shared = &self.core.shared;
        let recorder = self.core.recorder();
        if shared.phase() == Phase::Draining {
            recorder.shed(call.tier, metrics::ShedReason::Draining);
            return Err(Rejection::draining());
        }
        if !shared.door.is_ready() {
            recorder.shed(call.tier, metrics::ShedReason::NoGpu);
            return Err(no_gpu());
        }
        let slots: Vec<_> = batch.inputs.iter().map(|_| self.slot()).collect();
        let tickets = batch.inputs.iter().zip(&slots).map(|(input, slot)| {
            let slot = Arc::clone(slot);
            Box::new(Ticket::new(
                input.clone(),
                call.tier,
                arrived,
                deadline,
                slot,
            ))
        });
        match shared.intake.offer_whole(tickets.collect()) {
            Ok(()) => Ok(slots),
            Err(refused) => {
                refused.into_iter().for_each(|ticket| ticket.withdraw());
                recorder.shed(call.tier, metrics::ShedReason::QueueFull);
                Err(self.busy())
            }
        }
    }
}

fn no_gpu() -> Rejection {
    Rejection::Unavailable {
        reason: UnavailableReason::NoGpu,
        retry_after: Duration::from_secs(1),
    }
}

/// The answer to the whole batch, and whether it ran: results for every input, or one reason why there are none.
fn conclude(batch: &BatchCall, ends: Vec<Resolution<Reply>>) -> (Answer, bool) {
    let mut results = Vec::with_capacity(ends.len());
    for end in ends {
        let (result, launched) = match end {
            Resolution::Answered(Reply { result, timeline }) => {
                (result, timeline.launched != Time::ZERO)
            }
            Resolution::Expired | Resolution::Gone => {
                return (Err(Rejection::DeadlinePassed), true);
            }
        };
        results.push(match result {
            Ok(output) => Ok(output),
            Err(Failure::Rejected(message)) => Err(message),
            Err(failure) => return (Err(refusal(failure, launched)), launched),
        });
    }
    (Ok(write_results(batch, &results).into()), true)
}

/// Why there are no results. What did not run gets 503, and the sender may send it elsewhere at no cost.
fn refusal(failure: Failure, launched: bool) -> Rejection {
    match failure {
        Failure::Raised(message) => Rejection::BatchRaised(message.into()),
        Failure::Draining if !launched => Rejection::draining(),
        _ if launched => Rejection::BatchLost(LOST),
        _ => no_gpu(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ticket::Timeline;

    fn end(result: Result<&str, Failure>, launched: bool) -> Resolution<Reply> {
        let output = |text: &str| Output {
            text: text.to_owned(),
            tokens: None,
        };
        let launched = if launched {
            Time::from_nanos(1)
        } else {
            Time::ZERO
        };
        let timeline = Timeline {
            launched,
            ..Timeline::default()
        };
        Resolution::Answered(Reply {
            result: result.map(output),
            timeline,
        })
    }

    fn batch() -> BatchCall {
        BatchCall {
            id: "b".into(),
            request_ids: vec!["1".into(), "2".into()],
            inputs: Vec::new(),
            fingerprint: [0; 32],
            output_max: usize::MAX,
        }
    }

    fn status(ends: Vec<Resolution<Reply>>) -> (u16, bool) {
        let (answer, ran) = conclude(&batch(), ends);
        (
            answer.map_or_else(|rejection| rejection.status(), |_| 200),
            ran,
        )
    }

    #[test]
    fn a_batch_is_answered_whole_or_not_at_all() {
        let good = || end(Ok("x"), true);
        let rejected = Failure::Rejected("too rude".to_owned());
        assert_eq!(status(vec![good(), good()]), (200, true));
        assert_eq!(status(vec![good(), end(Err(rejected), true)]), (200, true));
        let raised = || end(Err(Failure::Raised("ValueError".to_owned())), true);
        assert_eq!(status(vec![raised(), raised()]), (422, true));
        assert_eq!(
            status(vec![good(), end(Err(Failure::NoGpu), true)]),
            (502, true)
        );
        assert_eq!(
            status(vec![good(), end(Err(Failure::Dropped), true)]),
            (502, true)
        );
        assert_eq!(status(vec![good(), Resolution::Expired]), (504, true));
    }

    #[test]
    fn what_did_not_run_is_said_not_to_have() {
        for failure in [Failure::NoGpu, Failure::Draining, Failure::Dropped] {
            assert_eq!(status(vec![end(Err(failure), false)]), (503, false));
        }
    }
}

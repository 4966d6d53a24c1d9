//! What becomes of the tickets of a batch: when it is launched, when it comes back, when its GPU fails. Pure: no clock, no
//! lock, no device. GPU threads call this between the calls that touch those, and so does the deterministic simulation.

use std::time::Duration;

use crate::batch::Batch;
use crate::clock::Time;
use crate::config::units::counted;
use crate::gpu::cell::Held;
use crate::gpu::executor::{Lost, Outcome};
use crate::ticket::{Failure, Output, Ticket};
use crate::wake::Wakes;

/// So many requests are named in one line of the log.
const NAMED_MAX: usize = 8;

/// A ticket is launched at most so often. Runs of a search don't count.
const LAUNCHES_MAX: u8 = 2;

/// What came back: result i belongs to input i; or what the batch function raised.
pub type Returned = Result<Vec<Result<Output, String>>, String>;

/// `batch` is launched at `now`: whoever is past its deadline is answered now and not by this batch (its place in the
/// buffer is taken all the same), and everybody has spent an attempt. Returns how many still wait for an answer; if
/// nobody does, the batch need not run.
pub fn launch(batch: &mut Batch, now: Time, wakes: &mut Wakes<'_>) -> usize {
    let mut alive = 0;
    for ticket in &mut batch.tickets {
        if ticket.deadline <= now {
            let _ = ticket.expire(wakes);
        }
        alive += usize::from(ticket.state().is_live());
        ticket.launches += 1;
        ticket.timeline.launched = now;
    }
    alive
}

/// The device did not take `batch` when it was launched: no attempt was spent.
pub fn turned_away(batch: &mut Batch) {
    for ticket in &mut batch.tickets {
        ticket.launches -= 1;
        ticket.timeline.launched = Time::ZERO;
    }
}

/// What the outcome of a batch of `inputs` inputs means. A wrong number of outputs can't be told apart by input, so it
/// counts as raised.
///
/// # Errors
/// [`Lost`] if the device is.
///
/// # Panics
/// If the batch still runs, or its results were not collected.
pub fn returned(outcome: Outcome, inputs: usize) -> Result<Returned, Lost> {
    match outcome {
        Outcome::Done(results) if results.len() == inputs => Ok(Ok(results)),
        Outcome::Done(results) => {
            let outputs = results.len();
            Ok(Err(format!(
                "the batch function returned {outputs} outputs for a batch of {inputs}"
            )))
        }
        Outcome::Raised(message) => Ok(Err(message)),
        Outcome::Lost(lost) => Err(lost),
        Outcome::Busy(_) => Err(Lost(
            "it was busy with the batches of others for too long".to_owned(),
        )),
        Outcome::Pending | Outcome::Ended => {
            unreachable!("only a batch that came back is looked at")
        }
    }
}

/// Gives ticket i result i, of which there are as many, finished at `finished`; outputs over `output_max` bytes are
/// refused. Returns how many came too late for their callers.
pub fn demux(
    tickets: Vec<Box<Ticket>>,
    results: Vec<Result<Output, String>>,
    finished: Time,
    output_max: usize,
    wakes: &mut Wakes<'_>,
) -> usize {
    assert_eq!(
        tickets.len(),
        results.len(),
        "a result for each ticket and no other"
    );
    let mut late = 0;
    for (mut ticket, result) in tickets.into_iter().zip(results) {
        ticket.timeline.finished = finished;
        let won = match result {
            Ok(output) if output.text.len() > output_max => {
                ticket.fail(Failure::OutputTooLarge(output_max), wakes)
            }
            Ok(output) => ticket.answer(output, wakes),
            Err(message) => ticket.fail(Failure::Rejected(message), wakes),
        };
        late += usize::from(won.is_none());
    }
    late
}

/// What a GPU that failed had in hand.
#[derive(Debug)]
pub enum Rescued {
    /// It was only staged: it goes back to where it came from, no attempt spent.
    Unlaunched(Batch),
    /// It ran.
    Launched {
        /// Since when.
        since: Time,
        /// They wait for their second attempt, each for itself.
        again: Vec<Box<Ticket>>,
        /// They have had it: see [`lost_twice`].
        spent: Vec<Box<Ticket>>,
    },
}

/// Sorts what a failed GPU had in hand by what is to become of it.
pub fn rescue(held: Held) -> Rescued {
    let Some(since) = held.launched else {
        return Rescued::Unlaunched(held.batch);
    };
    let tickets = held.batch.tickets.into_iter();
    let (again, spent) = tickets.partition(|ticket| ticket.launches < LAUNCHES_MAX);
    Rescued::Launched {
        since,
        again,
        spent,
    }
}

/// What a ticket is told whose second batch was lost as well.
pub fn lost_twice() -> Failure {
    Failure::Unavailable {
        why: "the GPU failed while it ran this request, twice",
        retry_after: Duration::from_secs(1),
    }
}

/// For the log: the ids of the requests behind `tickets`, of many only the first. An input that kills its process isn't
/// searched for, so this is what its culprit can be found by.
pub fn ids_of(tickets: &[Box<Ticket>]) -> String {
    let ids = tickets
        .iter()
        .map(|ticket| ticket.input.request_id.as_deref().unwrap_or("unnamed"));
    listed(ids)
}

fn listed<'a>(ids: impl ExactSizeIterator<Item = &'a str>) -> String {
    let all = ids.len();
    let ids = ids.take(NAMED_MAX).collect::<Vec<&str>>().join(", ");
    match all.saturating_sub(NAMED_MAX) {
        0 => ids,
        more => format!("{ids} and {}", counted(more as u64, "other")),
    }
}

/// Answers `tickets` with `failure`. Returns how many of them were still to be answered.
pub fn give_up(tickets: Vec<Box<Ticket>>, failure: &Failure, wakes: &mut Wakes<'_>) -> usize {
    let failed = tickets
        .into_iter()
        .filter_map(|ticket| ticket.fail(failure.clone(), wakes));
    failed.count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_requests_only_the_first_are_named() {
        let ids = |count: usize| listed(["a", "b", "c"].repeat(4)[..count].iter().copied());
        assert_eq!(ids(1), "a");
        assert_eq!(ids(8), "a, b, c, a, b, c, a, b");
        assert_eq!(ids(9), "a, b, c, a, b, c, a, b and 1 other");
        assert_eq!(ids(12), "a, b, c, a, b, c, a, b and 4 others");
    }
}

//! What a GPU thread does with a batch on which the batch function raised: it runs the halving [`Search`] on its own
//! executor, one run at a time, and answers everybody as they are settled.
//!
//! The tickets stay in the cell all the while, as a launched batch that shrinks. So whatever happens to the GPU in the
//! middle of it, and even if this thread never returns from its executor, whoever fails the GPU finds all that are left,
//! tested or not, and sends them back for their retry. Runs of a search don't count as launches of a ticket.
//!
//! Before each run those part who can't or needn't wait for it: callers who left, deadlines that have passed (504) or that
//! come sooner than the run would end (503), and everybody (503) once searches have taken their share of the pool while
//! others wait for it; see [`crate::batch::budget`].
//!
//! Between two runs a full batch of others may have the GPU, as long as the search can spare the time before its first
//! deadline. Or else a few searches at a time would fill the pool: with one bad input in a thousand at 40 % load, three of
//! four GPUs search together often enough to turn away 0.3 % of the callers. If the function raises on such a batch too,
//! it waits in the other half, and its search follows.

use std::time::Duration;

use crate::batch::Batch;
use crate::clock::{self, Time};
use crate::config::units::counted;
use crate::gpu::executor::{Half, Outcome};
use crate::gpu::ride::{CALL_MAX, Returned, returned, tolerance};
use crate::gpu::search::{Culprit, Search, Seat, Step};
use crate::gpu::{Driver, Trouble};
use crate::metrics::labels::{Abandonment, Isolation, LaunchReason};
use crate::queue::Lane;
use crate::ticket::{Failure, Input, Ticket};
use crate::wake::Wakes;

const NO_TIME: &str = "an input of its batch made the batch function fail, and its deadline left no time to find out which";
const NO_BUDGET: &str =
    "an input of its batch made the batch function fail, and too many others do to find out which";

/// So much of the batch function's message goes into the log.
const LOGGED_MAX: usize = 200;

/// A batch under search, as its thread knows it. Its tickets lie in the cell.
#[derive(Debug)]
struct Case {
    half: Half,
    /// Its size when it failed.
    inputs: usize,
    /// What the function said then, for the log.
    cause: String,
    search: Search,
    /// The seat that each ticket in the cell had in the failed batch, in the cell's order.
    seats: Vec<Seat>,
    cleared: usize,
    blamed: usize,
    stopped: usize,
}

impl Case {
    fn new(half: Half, inputs: usize, message: String) -> Case {
        Case {
            half,
            inputs,
            cause: shortened(&message),
            search: Search::new(inputs, message),
            seats: (0..inputs).collect(),
            cleared: 0,
            blamed: 0,
            stopped: 0,
        }
    }

    /// Takes those for whom `leaves` says so out of the cell's `batch`, in order.
    fn draw(
        &mut self,
        batch: &mut Batch,
        mut leaves: impl FnMut(Seat, &mut Ticket) -> bool,
    ) -> (Vec<Seat>, Vec<Box<Ticket>>) {
        let seated = self.seats.drain(..).zip(batch.tickets.drain(..));
        let (mut leaving, mut staying) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
        for (seat, mut ticket) in seated {
            let to = if leaves(seat, &mut ticket) {
                &mut leaving
            } else {
                &mut staying
            };
            to.0.push(seat);
            to.1.push(ticket);
        }
        (self.seats, batch.tickets) = staying;
        leaving
    }

    /// The inputs of `seats`, which are all there.
    fn inputs(&self, batch: &Batch, seats: &[Seat]) -> Vec<Input> {
        let seated = self.seats.iter().zip(&batch.tickets);
        let chosen = seated.filter(|(seat, _)| seats.binary_search(seat).is_ok());
        chosen.map(|(_, ticket)| ticket.input.clone()).collect()
    }
}

impl Driver {
    /// Settles the batch of `inputs` inputs in `half`, on which the batch function raised `message`.
    pub(super) fn isolate(
        &mut self,
        half: Half,
        inputs: usize,
        message: String,
    ) -> Result<(), Trouble> {
        self.left_waiting_at = None;
        let mut next = Some(Case::new(half, inputs, message));
        while let Some(mut case) = next.take() {
            let ended = self.run_search(&mut case, &mut next);
            self.report(&case, ended.as_ref().err());
            ended?;
        }
        self.left_waiting_at = self.full_batch_waits(false).then(clock::now);
        Ok(())
    }

    /// Leaves in `next` the batch that failed in between, to be searched next.
    fn run_search(&mut self, case: &mut Case, next: &mut Option<Case>) -> Result<(), Trouble> {
        // When the server ends, whoever is left is answered as the GPU retires.
        while !self.gpu.collector.is_closed() {
            if next.is_none() && self.can_spare_a_run(case)? {
                *next = self.run_others(case.half.other())?;
            }
            // Those who wait for the next search must not find out by their deadlines that it comes too late for them.
            next.as_mut().map_or(Ok(()), |next| self.part(next))?;
            self.part(case)?;
            match case.search.step() {
                Step::Run(seats) => self.run_seats(case, &seats)?,
                Step::Canary => self.run_canary(case)?,
                Step::Finished => {
                    let held = self.gpu.cell.take(self.generation, case.half)?;
                    assert!(
                        held.batch.tickets.is_empty(),
                        "a finished search has settled everybody"
                    );
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Whether everybody in the case has time for a run more than the search may need, and for another that something
    /// slipped by.
    fn can_spare_a_run(&self, case: &Case) -> Result<bool, Trouble> {
        let (gpu, now) = (&self.gpu, clock::now());
        let deadlines =
            |batch: &mut Batch| batch.tickets.iter().map(|ticket| ticket.deadline).min();
        let first = gpu.cell.edit(self.generation, case.half, deadlines)?;
        let batch_time = gpu.collector.batch_time(gpu.index);
        let needed = (batch_time + tolerance(batch_time)) * (case.search.runs_left() + 2);
        Ok(first.is_some_and(|first| now + needed < first))
    }

    /// Runs a full batch of others in `half`, if one waits and no GPU is free for it. Gives it if the function raised.
    fn run_others(&mut self, half: Half) -> Result<Option<Case>, Trouble> {
        let Some(batch) = self.gpu.collector.bind_ahead(self.gpu.index) else {
            return Ok(None);
        };
        self.board(half, batch)?;
        let Some(times) = self.depart(half)? else {
            return Ok(None);
        };
        let outcome = self.wait_out(times)?;
        if let Outcome::Busy(again) = outcome {
            self.turned_away(half, times, false, again)?;
            return Ok(None);
        }
        let finished = clock::now();
        let returned = returned(outcome, times.inputs)?;
        self.came_back(finished.since(times.launched), &returned);
        match returned {
            Ok(results) => {
                let held = self.gpu.cell.take(self.generation, half)?;
                self.demux(held.batch.tickets, results, finished);
                Ok(None)
            }
            Err(message) => Ok(Some(Case::new(half, times.inputs, message))),
        }
    }

    /// Takes out who can't or needn't wait for another run.
    fn part(&mut self, case: &mut Case) -> Result<(), Trouble> {
        let (gpu, now) = (&self.gpu, clock::now());
        let pause = self.over_budget(now);
        let batch_time = gpu.collector.batch_time(gpu.index);
        // With what a run may exceed its time by: better a 503 now, with the time to come back, than a 504 then.
        let run_ends = now + batch_time + tolerance(batch_time);
        let mut wakes = gpu.collector.mailboxes().gather();
        let (seats, tickets) = gpu.cell.edit(self.generation, case.half, |batch| {
            case.draw(batch, |_, ticket| {
                !lives(ticket, now, &mut wakes) || pause.is_some() || ticket.deadline < run_ends
            })
        })?;
        case.search.leave(&seats);
        let failure = Failure::Unavailable {
            why: pause.map_or(NO_TIME, |_| NO_BUDGET),
            retry_after: pause.unwrap_or_default() + self.drain_time(),
        };
        for ticket in tickets {
            if ticket.fail(failure.clone(), &mut wakes).is_some() {
                gpu.recorder()
                    .tickets()
                    .abandoned(Abandonment::SearchStopped);
                case.stopped += 1;
            }
        }
        Ok(())
    }

    /// Whether others wait for the GPU and searches have had their share; then for how long they must rest.
    fn over_budget(&self, now: Time) -> Option<Duration> {
        let collector = &self.gpu.collector;
        if collector.backlog().waiting_in(Lane::Fresh) == 0 {
            return None;
        }
        let gpus = collector.capacity().healthy();
        collector.search_budget().exceeded(now, gpus)
    }

    /// How long the pool needs for those who wait now.
    fn drain_time(&self) -> Duration {
        let collector = &self.gpu.collector;
        let seconds = collector.backlog().total() as f64 / collector.capacity().per_second();
        // No capacity left is a division by zero: a second, as for every failure of a GPU.
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(1))
    }

    fn run_seats(&mut self, case: &mut Case, seats: &[Seat]) -> Result<(), Trouble> {
        let (cell, generation) = (&self.gpu.cell, self.generation);
        let inputs = cell.edit(generation, case.half, |batch| case.inputs(batch, seats))?;
        let (returned, finished, took) = self.attempt(case.half, LaunchReason::Search, &inputs)?;
        self.came_back(took, &returned);
        match returned {
            Err(message) => case.search.failed(message),
            Ok(results) => {
                let verdict = case.search.passed();
                let (_, tickets) = self.gpu.cell.edit(self.generation, case.half, |batch| {
                    case.draw(batch, |seat, _| {
                        verdict.cleared.binary_search(&seat).is_ok()
                    })
                })?;
                case.cleared += tickets.len();
                self.demux(tickets, results, finished);
                self.blame(case, &verdict.blamed, finished)?;
            }
        }
        Ok(())
    }

    fn run_canary(&mut self, case: &mut Case) -> Result<(), Trouble> {
        let canary = [self.settings.canary.clone()];
        let (returned, finished, took) = self.attempt(case.half, LaunchReason::Probe, &canary)?;
        let failure = match &returned {
            Ok(results) => results.iter().find_map(|result| result.as_ref().err()),
            Err(message) => Some(message),
        };
        if let Some(message) = failure {
            // Counted by whoever fails the GPU, as the batch that was lost.
            return Err(Trouble::Suspect(message.clone()));
        }
        self.came_back(took, &returned);
        let verdict = case.search.passed();
        self.blame(case, &verdict.blamed, finished)
    }

    /// One run that nothing boards behind: what came back, when, and how long it took.
    fn attempt(
        &mut self,
        half: Half,
        reason: LaunchReason,
        inputs: &[Input],
    ) -> Result<(Returned, Time, Duration), Trouble> {
        let begun = clock::now();
        let (now, outcome) = loop {
            self.gpu.cell.expect_by(clock::now() + CALL_MAX);
            self.executor.stage(half, inputs)?;
            let now = clock::now();
            self.gpu.cell.launch(self.generation, half, now, |_| true)?;
            let times = self.start(half, now, inputs.len())?;
            // Its slots were filled, and counted, when the failed batch was launched.
            self.gpu.recorder().batch_launched(reason, 0);
            match self.wait_out(times) {
                Ok(Outcome::Busy(again)) if clock::now().since(begun) < times.timeout() => {
                    self.executor.check()?;
                    self.gpu.cell.expect_by(Time::MAX);
                    self.rest(again);
                }
                outcome => break (now, outcome),
            }
        };
        let finished = clock::now();
        let took = finished.since(now);
        self.gpu.collector.search_budget().charge(finished, took);
        Ok((returned(outcome?, inputs.len())?, finished, took))
    }

    /// Answers those whose guilt is proven with what the batch function said about each.
    fn blame(&self, case: &mut Case, culprits: &[Culprit], finished: Time) -> Result<(), Trouble> {
        for culprit in culprits {
            let (_, tickets) = self.gpu.cell.edit(self.generation, case.half, |batch| {
                case.draw(batch, |seat, _| seat == culprit.seat)
            })?;
            case.blamed += tickets.len();
            let results = tickets
                .iter()
                .map(|_| Err(culprit.message.clone()))
                .collect();
            self.demux(tickets, results, finished);
        }
        Ok(())
    }

    /// One line and one count per search, however many inputs it was about.
    fn report(&self, case: &Case, trouble: Option<&Trouble>) {
        let result = match trouble {
            Some(Trouble::Suspect(_)) => Isolation::SuspectDevice,
            Some(_) => Isolation::Lost,
            None if !case.seats.is_empty() => return,
            None if case.stopped > 0 => Isolation::Stopped,
            None if case.blamed > 0 => Isolation::Blamed,
            None => Isolation::Innocent,
        };
        self.gpu.recorder().isolation(result);
        log::info!(
            "gpu {}: the batch function failed on a batch of {} ({}): {} after {}; {} answered, {} to \
             blame, {} given up, {} left",
            self.gpu.index,
            case.inputs,
            case.cause,
            result.name(),
            counted(case.search.runs() as u64, "run"),
            case.cleared,
            case.blamed,
            case.stopped,
            case.seats.len(),
        );
    }
}

/// Whether somebody still waits for `ticket` and may; if not, it is resolved.
fn lives(ticket: &mut Ticket, now: Time, wakes: &mut Wakes<'_>) -> bool {
    if ticket.deadline <= now {
        let _ = ticket.expire(wakes);
    } else if ticket.peer.is_gone() {
        let _ = ticket.leave(wakes);
    }
    ticket.state().is_live()
}

/// The first line of `message`, or so much of it as the log can take.
fn shortened(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default();
    line.chars().take(LOGGED_MAX).collect()
}

#[cfg(test)]
mod tests;

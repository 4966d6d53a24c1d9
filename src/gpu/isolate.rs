//! What a GPU thread does with a batch on which the batch function raised: it runs the halving search (`super::search`) on its own
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

use crate::clock::{self, Time};
use crate::config::units::counted;
use crate::gpu::case::{Case, stopped};
use crate::gpu::executor::{Half, Outcome};
use crate::gpu::fate::{self, Returned, returned};
use crate::gpu::ride::{CALL_MAX, tolerance};
use crate::gpu::search::{Seat, Step};
use crate::gpu::{Driver, Trouble};
use crate::metrics::labels::{Abandonment, Isolation, LaunchReason};
use crate::queue::Lane;
use crate::ticket::{Input, Output};

/// So much of the batch function's message goes into the log.
const LOGGED_MAX: usize = 200;

/// A case on this thread: where its tickets lie, and what has become of those that are settled.
#[derive(Debug)]
struct Trial {
    half: Half,
    /// Its size when it failed.
    inputs: usize,
    /// What the function said then, for the log.
    cause: String,
    case: Case,
    cleared: usize,
    blamed: usize,
    stopped: usize,
}

impl Trial {
    fn new(half: Half, inputs: usize, message: String) -> Trial {
        Trial {
            half,
            inputs,
            cause: shortened(&message),
            case: Case::new(inputs, message),
            cleared: 0,
            blamed: 0,
            stopped: 0,
        }
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
        let mut next = Some(Trial::new(half, inputs, message));
        while let Some(mut trial) = next.take() {
            let ended = self.run_search(&mut trial, &mut next);
            self.report(&trial, ended.as_ref().err());
            ended?;
        }
        self.left_waiting_at = self.full_batch_waits(false).then(clock::now);
        Ok(())
    }

    /// Leaves in `next` the batch that failed in between, to be searched next.
    fn run_search(&mut self, trial: &mut Trial, next: &mut Option<Trial>) -> Result<(), Trouble> {
        // When the server ends, whoever is left is answered as the GPU retires.
        while !self.gpu.collector.is_closed() {
            if next.is_none() && self.can_spare_a_run(trial)? {
                *next = self.run_others(trial.half.other())?;
            }
            // Those who wait for the next search must not find out by their deadlines that it comes too late for them.
            next.as_mut().map_or(Ok(()), |next| self.part(next))?;
            self.part(trial)?;
            match trial.case.step() {
                Step::Run(seats) => self.run_seats(trial, &seats)?,
                Step::Canary => self.run_canary(trial)?,
                Step::Finished => {
                    let held = self.gpu.cell.take(self.generation, trial.half)?;
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

    /// Whether everybody in the case has time for a run of others.
    fn can_spare_a_run(&self, trial: &Trial) -> Result<bool, Trouble> {
        let (gpu, now) = (&self.gpu, clock::now());
        let batch_time = gpu.collector.batch_time(gpu.seat);
        let run = batch_time + tolerance(batch_time);
        let spares = gpu.cell.edit(self.generation, trial.half, |batch| {
            trial.case.spares_a_run(batch, now, run)
        })?;
        Ok(spares)
    }

    /// Runs a full batch of others in `half`, if one waits and no GPU is free for it. Gives it if the function raised.
    fn run_others(&mut self, half: Half) -> Result<Option<Trial>, Trouble> {
        let Some(batch) = self.gpu.collector.bind_ahead(self.gpu.seat) else {
            return Ok(None);
        };
        self.board(half, batch)?;
        let Some(times) = self.depart(half)? else {
            return Ok(None);
        };
        let waited = self.wait_back(times);
        self.count_taken(times, matches!(waited, Ok(Outcome::Busy(_))));
        let outcome = waited?;
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
            Err(message) => Ok(Some(Trial::new(half, times.inputs, message))),
        }
    }

    /// Takes out who can't or needn't wait for another run.
    fn part(&mut self, trial: &mut Trial) -> Result<(), Trouble> {
        let (gpu, now) = (&self.gpu, clock::now());
        let pause = self.over_budget(now);
        let batch_time = gpu.collector.batch_time(gpu.seat);
        // With what a run may exceed its time by: better a 503 now, with the time to come back, than a 504 then.
        let run_ends = now + batch_time + tolerance(batch_time);
        let mut wakes = gpu.collector.mailboxes().gather();
        let tickets = gpu.cell.edit(self.generation, trial.half, |batch| {
            trial
                .case
                .part(batch, (now, run_ends), pause.is_some(), &mut wakes)
        })?;
        let given_up = fate::give_up(tickets, &stopped(pause, self.drain_time()), &mut wakes);
        (0..given_up).for_each(|_| {
            let tickets = gpu.recorder().tickets();
            tickets.abandoned(Abandonment::SearchStopped);
        });
        trial.stopped += given_up;
        Ok(())
    }

    /// Whether others wait for the GPU and searches have had their share; then for how long they must rest.
    fn over_budget(&self, now: Time) -> Option<Duration> {
        let collector = &self.gpu.collector;
        let waiting = collector.backlog().waiting_in(Lane::Fresh);
        let gpus = collector.capacity().healthy();
        collector.search_budget().exceeded(now, waiting, gpus)
    }

    /// How long the pool needs for those who wait now.
    fn drain_time(&self) -> Duration {
        let collector = &self.gpu.collector;
        let seconds = collector.backlog().total() as f64 / collector.capacity().per_second();
        // No capacity left is a division by zero: a second, as for every failure of a GPU.
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(1))
    }

    fn run_seats(&mut self, trial: &mut Trial, seats: &[Seat]) -> Result<(), Trouble> {
        let (cell, generation) = (&self.gpu.cell, self.generation);
        let case = &trial.case;
        let inputs = cell.edit(generation, trial.half, |batch| case.inputs(batch, seats))?;
        let (returned, finished, took) = self.attempt(trial.half, LaunchReason::Search, &inputs)?;
        self.came_back(took, &returned);
        match returned {
            Err(message) => {
                trial.case.failed(message);
                Ok(())
            }
            Ok(results) => self.settle(trial, results, finished),
        }
    }

    fn run_canary(&mut self, trial: &mut Trial) -> Result<(), Trouble> {
        let canary = [self.settings.canary.clone()];
        let (returned, finished, took) = self.attempt(trial.half, LaunchReason::Probe, &canary)?;
        let failure = match &returned {
            Ok(results) => results.iter().find_map(|result| result.as_ref().err()),
            Err(message) => Some(message),
        };
        if let Some(message) = failure {
            // Counted by whoever fails the GPU, as the batch that was lost.
            return Err(Trouble::Suspect(message.clone()));
        }
        self.came_back(took, &returned);
        self.settle(trial, Vec::new(), finished)
    }

    /// Gives those whom a run cleared its `results`, and those whose guilt it proves what the batch function said.
    fn settle(
        &mut self,
        trial: &mut Trial,
        results: Vec<Result<Output, String>>,
        finished: Time,
    ) -> Result<(), Trouble> {
        let case = &mut trial.case;
        let settled = self
            .gpu
            .cell
            .edit(self.generation, trial.half, |batch| case.passed(batch))?;
        trial.cleared += settled.cleared.len();
        trial.blamed += settled.blamed.len();
        self.demux(settled.cleared, results, finished);
        let (blamed, reasons) = settled
            .blamed
            .into_iter()
            .map(|(ticket, message)| (ticket, Err(message)))
            .unzip();
        self.demux(blamed, reasons, finished);
        Ok(())
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
            // Its slots were filled, and counted, when the failed batch was launched.
            let times = self.start(half, now, inputs.len(), (reason, 0))?;
            let waited = self.wait_back(times);
            self.count_taken(times, matches!(waited, Ok(Outcome::Busy(_))));
            match waited {
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

    /// One line and one count per search, however many inputs it was about.
    fn report(&self, trial: &Trial, trouble: Option<&Trouble>) {
        let result = match trouble {
            Some(Trouble::Suspect(_)) => Isolation::SuspectDevice,
            Some(_) => Isolation::Lost,
            None if trial.case.unsettled() > 0 => return,
            None if trial.stopped > 0 => Isolation::Stopped,
            None if trial.blamed > 0 => Isolation::Blamed,
            None => Isolation::Innocent,
        };
        self.gpu.recorder().isolation(result);
        log::info!(
            "gpu {}: the batch function failed on a batch of {} ({}): {} after {}; {} answered, {} to \
             blame, {} given up, {} left",
            self.gpu.index,
            trial.inputs,
            trial.cause,
            result.name(),
            counted(trial.case.runs() as u64, "run"),
            trial.cleared,
            trial.blamed,
            trial.stopped,
            trial.case.unsettled(),
        );
    }
}

/// The first line of `message`, or so much of it as the log can take.
fn shortened(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default();
    line.chars().take(LOGGED_MAX).collect()
}

#[cfg(test)]
mod tests;

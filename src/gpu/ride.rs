//! A GPU thread's way with a batch, and with the one that boards while it runs.

use std::time::Duration;

use crate::batch::Batch;
use crate::batch::policy::Launch;
use crate::clock::{self, Time};
use crate::gpu::cell::Held;
use crate::gpu::executor::{Half, Outcome};
use crate::gpu::{Driver, Trouble};
use crate::metrics::labels::{BatchOutcome, LaunchReason};
use crate::queue::Lane;
use crate::ticket::{Failure, Input, Output, Ticket};

/// Longest time that a call which only copies or looks may take before the watchdog steps in.
pub(super) const CALL_MAX: Duration = Duration::from_millis(500);

/// The watchdog steps in this long after the thread itself should have noticed that a batch timed out.
const NOTICE_MAX: Duration = Duration::from_millis(100);

/// A batch counts as overrunning when it exceeds its expected time by this or a tenth, whichever is more.
const OVERRUN_MIN: Duration = Duration::from_millis(5);

/// How long before the expected end of the running batch the next one is bound and staged.
///
/// Early enough to be staged by the end, and no earlier: a bound ticket can't be overtaken. Twice the mean staging time
/// plus what the wake-up of a thread may be late by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lead {
    staging: Duration,
}

/// A timed wait wakes up to about this late on a busy machine.
const WAKE_LATENESS: Duration = Duration::from_millis(1);

impl Default for Lead {
    /// 2 ms until something was measured.
    fn default() -> Lead {
        Lead { staging: Duration::from_micros(500) }
    }
}

impl Lead {
    fn span(self) -> Duration {
        2 * self.staging + WAKE_LATENESS
    }

    fn measured(&mut self, staging: Duration) {
        self.staging = (7 * self.staging + staging) / 8;
    }
}

/// The times of a batch that runs.
#[derive(Clone, Copy, Debug)]
struct Times {
    launched: Time,
    expected: Time,
    overrun: Time,
    timeout: Duration,
}

impl Driver {
    /// Runs `batch`, and then every batch that was bound ahead while the one before it ran.
    pub(super) fn ride(&mut self, batch: Batch) -> Result<(), Trouble> {
        let mut half = self.half;
        self.board(half, batch)?;
        let mut times = self.depart(half)?;
        while let Some(running) = times {
            let (outcome, ahead) = self.wait(half, running)?;
            let finished = clock::now();
            if let Outcome::Lost(lost) = outcome {
                return Err(lost.into());
            }
            // The device first: what was boarded leaves before anybody of this batch is answered.
            self.left_waiting_at = self.full_batch_waits(ahead).then_some(finished);
            let departed = if ahead { self.depart(half.other()) } else { Ok(None) };
            self.alight(half, running, finished, outcome)?;
            half = half.other();
            times = departed?;
        }
        self.half = half;
        Ok(())
    }

    fn full_batch_waits(&self, ahead: bool) -> bool {
        let collector = &self.gpu.collector;
        ahead || collector.backlog().waiting_in(Lane::Fresh) >= collector.batch_max()
    }

    /// Stages a bound batch into `half`.
    fn board(&mut self, half: Half, batch: Batch) -> Result<(), Trouble> {
        let inputs: Vec<Input> = batch.tickets.iter().map(|ticket| ticket.input.clone()).collect();
        if let Err(batch) = self.gpu.cell.put(self.generation, half, batch) {
            self.gpu.collector.give_back(batch);
            return Err(Trouble::Seized);
        }
        let started = clock::now();
        self.executor.stage(half, &inputs)?;
        self.lead.measured(clock::now().since(started));
        Ok(())
    }

    /// Launches what is staged in `half`; `None` if nobody of it is left alive.
    fn depart(&mut self, half: Half) -> Result<Option<Times>, Trouble> {
        let gpu = &self.gpu;
        let batch_time = gpu.collector.batch_time(gpu.index);
        let timeout = self.settings.batch_timeout(batch_time);
        let now = clock::now();
        gpu.cell.expect_by(now + timeout + NOTICE_MAX);
        let mut wakes = gpu.collector.mailboxes().gather();
        let mut launched = (LaunchReason::Full, 0);
        let goes = gpu.cell.launch(self.generation, half, now, |batch| {
            launched = (reason(batch), batch.tickets.len());
            let mut alive = 0;
            for ticket in &mut batch.tickets {
                // Its place in the buffer is taken; what counts is that it is answered now and not by this batch.
                if ticket.deadline <= now {
                    let _ = ticket.expire(&mut wakes);
                }
                alive += usize::from(ticket.state().is_live());
                ticket.launches += 1;
                ticket.timeline.launched = now;
            }
            alive > 0
        })?;
        drop(wakes);
        if !goes {
            drop(gpu.cell.take(self.generation, half)?);
            return Ok(None);
        }
        gpu.collector.launched(gpu.index, now);
        self.executor.launch(half)?;
        gpu.recorder().batch_launched(launched.0, launched.1);
        if let Some(left) = self.left_waiting_at.take() {
            gpu.recorder().batch_gap(clock::now().since(left));
        }
        let expected = now + batch_time;
        let overrun = expected + OVERRUN_MIN.max(batch_time / 10);
        Ok(Some(Times { launched: now, expected, overrun, timeout }))
    }

    /// Waits for the batch in `half`, and boards the next one meanwhile if a full one waits. Says whether it did.
    fn wait(&mut self, half: Half, times: Times) -> Result<(Outcome, bool), Trouble> {
        let outcome = self.executor.wait(times.expected - self.lead.span());
        if outcome != Outcome::Pending {
            return Ok((outcome, false));
        }
        if let Some(batch) = self.gpu.collector.bind_ahead(self.gpu.index) {
            self.board(half.other(), batch)?;
            let outcome = self.executor.wait(times.overrun);
            if outcome != Outcome::Pending {
                return Ok((outcome, true));
            }
            // Another GPU may be free before this one is.
            let held = self.gpu.cell.take(self.generation, half.other())?;
            self.gpu.collector.give_back(held.batch);
        }
        self.wait_out(times).map(|outcome| (outcome, false))
    }

    fn wait_out(&mut self, times: Times) -> Result<Outcome, Trouble> {
        let outcome = self.executor.wait(times.launched + times.timeout);
        if outcome != Outcome::Pending {
            return Ok(outcome);
        }
        // If the whole machine stood still, the time is up but the batch may be back: one more look decides.
        match self.executor.wait(clock::now()) {
            Outcome::Pending => Err(Trouble::TimedOut(times.timeout)),
            outcome => Ok(outcome),
        }
    }

    /// Gives each ticket of the batch in `half` its own output.
    fn alight(&mut self, half: Half, times: Times, finished: Time, outcome: Outcome) -> Result<(), Trouble> {
        let took = finished.since(times.launched);
        let held = self.gpu.cell.take(self.generation, half)?;
        let (label, results) = match outcome {
            Outcome::Done(results) if results.len() == held.batch.tickets.len() => (BatchOutcome::Done, Ok(results)),
            Outcome::Done(results) => (BatchOutcome::Raised, Err(wrong_count(results.len(), &held))),
            Outcome::Raised(message) => (BatchOutcome::Raised, Err(message)),
            Outcome::Pending | Outcome::Lost(_) => unreachable!("only a batch that came back alights"),
        };
        let recorder = self.gpu.recorder();
        recorder.batch_finished(label, took);
        recorder.gpu_busy(took);
        self.gpu.batches.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.gpu.collector.measured(self.gpu.index, took);
        match results {
            Ok(results) => self.demux(held.batch.tickets, results, finished),
            Err(message) => self.reject_all(held.batch.tickets, &message),
        }
        Ok(())
    }

    fn demux(&self, tickets: Vec<Box<Ticket>>, results: Vec<Result<Output, String>>, finished: Time) {
        let mut wakes = self.gpu.collector.mailboxes().gather();
        for (mut ticket, result) in tickets.into_iter().zip(results) {
            ticket.timeline.finished = finished;
            let won = match result {
                Ok(output) if output.text.len() > self.settings.output_max => {
                    ticket.fail(Failure::OutputTooLarge(output.text.len()), &mut wakes)
                }
                Ok(output) => ticket.answer(output, &mut wakes),
                Err(message) => ticket.fail(Failure::Rejected(message), &mut wakes),
            };
            if won.is_none() {
                self.gpu.recorder().tickets().late_result();
            }
        }
    }
}

fn wrong_count(outputs: usize, held: &Held) -> String {
    format!("the batch function returned {outputs} outputs for {} inputs", held.batch.tickets.len())
}

fn reason(batch: &Batch) -> LaunchReason {
    match (batch.lane, batch.reason) {
        (Lane::Retry, _) => LaunchReason::Retry,
        (Lane::Fresh, Launch::Full) => LaunchReason::Full,
        (Lane::Fresh, Launch::Hold) => LaunchReason::Hold,
        (Lane::Fresh, Launch::Paced) => LaunchReason::Paced,
    }
}

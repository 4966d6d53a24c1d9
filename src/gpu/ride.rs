//! A GPU thread's way with a batch, and with the one that boards while it runs. What the batch function rejects goes on to
//! [`super::isolate`].

use std::time::Duration;

use crate::batch::Batch;
use crate::batch::policy::Launch;
use crate::clock::{self, Time};
use crate::gpu::executor::{Half, Lost, Outcome};
use crate::gpu::fate::{self, Returned, returned};
use crate::gpu::{Driver, Trouble};
use crate::metrics::labels::{BatchOutcome, LaunchReason};
use crate::queue::Lane;
use crate::ticket::{Failure, Input, Output, Ticket};

/// Longest time that a call which only copies or looks may take before the watchdog steps in.
pub const CALL_MAX: Duration = Duration::from_millis(500);

/// The watchdog steps in this long after the thread itself should have noticed that a batch timed out.
pub const NOTICE_MAX: Duration = Duration::from_millis(100);

/// A batch counts as overrunning when it exceeds its expected time by this or a tenth, whichever is more.
const OVERRUN_MIN: Duration = Duration::from_millis(5);

/// How much longer than its expected time a batch may take before it counts as overrunning.
pub fn tolerance(batch_time: Duration) -> Duration {
    OVERRUN_MIN.max(batch_time / 10)
}

/// How long before the expected end of the running batch the next one is bound and staged.
///
/// Early enough to be staged by the end, and no earlier: a bound ticket can't be overtaken. Twice the mean staging time plus
/// what the wake-up of a thread may be late by, and as much more as batches end early or late on average, twice: of those that
/// keep to their usual spread few end before the next one has boarded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lead {
    staging: Duration,
    /// Mean distance between the end of a batch and its expected end.
    spread: Duration,
}

/// A timed wait wakes up to about this late on a busy machine.
const WAKE_LATENESS: Duration = Duration::from_millis(1);

impl Default for Lead {
    /// 2 ms until something was measured.
    fn default() -> Lead {
        Lead {
            staging: Duration::from_micros(500),
            spread: Duration::ZERO,
        }
    }
}

impl Lead {
    /// Its length for a batch that takes about `batch_time`; for the spread's sake not longer than what a batch may be late by.
    fn span(self, batch_time: Duration) -> Duration {
        2 * self.staging + WAKE_LATENESS + (2 * self.spread).min(tolerance(batch_time))
    }

    fn staged(&mut self, took: Duration) {
        self.staging = (7 * self.staging + took) / 8;
    }

    fn ended(&mut self, at: Time, expected: Time) {
        let distance = at.since(expected).max(expected.since(at));
        self.spread = (7 * self.spread + distance) / 8;
    }
}

/// The times of a batch that runs, and how many inputs it has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) inputs: usize,
    /// How the launch is counted: why, and how many slots it filled.
    counted_as: (LaunchReason, usize),
    pub(super) launched: Time,
    expected: Time,
    overrun: Time,
    timeout: Duration,
}

impl Times {
    /// How long it may take.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }
}

impl Driver {
    /// Runs `batch`, and then every batch that was bound ahead while the one before it ran.
    pub(super) fn ride(&mut self, batch: Batch) -> Result<(), Trouble> {
        let mut half = self.half;
        self.gpu.cell.expect_by(clock::now() + CALL_MAX);
        self.board(half, batch)?;
        let mut times = self.depart(half)?;
        while let Some(running) = times {
            let waited = self.wait(half, running);
            let was_turned_away = matches!(waited, Ok((Outcome::Busy(_), _)));
            self.count_taken(running, was_turned_away);
            let (outcome, ahead) = waited?;
            if let Outcome::Busy(again) = outcome {
                self.half = half;
                return self.turned_away(half, running, ahead, again);
            }
            let finished = clock::now();
            self.lead.ended(finished, running.expected);
            let known = match outcome {
                Outcome::Ended => None,
                outcome => Some(returned(outcome, running.inputs)?),
            };
            // The device first: what was boarded leaves before anybody of this batch is answered. But if the function
            // raised, this batch needs the device once more, and another GPU may be free sooner for the one that boarded.
            self.left_waiting_at = self.full_batch_waits(ahead).then_some(finished);
            let departed = match (ahead, &known) {
                (false, _) => Ok(None),
                (true, Some(Err(_))) => self.disembark(half.other()).map(|()| None),
                // What runs when a GPU is told to leave is its last batch.
                (true, _) if self.gpu.is_leaving() => self.disembark(half.other()).map(|()| None),
                (true, None | Some(Ok(_))) => self.depart(half.other()),
            };
            let returned = match known {
                Some(returned) => returned,
                None => self.results(running)?,
            };
            self.alight(half, running, finished, returned)?;
            half = half.other();
            times = departed?;
        }
        self.half = half;
        Ok(())
    }

    /// Whether a full batch waits, or has boarded `ahead`.
    pub(super) fn full_batch_waits(&self, ahead: bool) -> bool {
        let collector = &self.gpu.collector;
        ahead || collector.backlog().waiting_in(Lane::Fresh) >= collector.batch_max()
    }

    /// Stages a bound batch into `half`.
    pub(super) fn board(&mut self, half: Half, batch: Batch) -> Result<(), Trouble> {
        let inputs: Vec<Input> = batch
            .tickets
            .iter()
            .map(|ticket| ticket.input.clone())
            .collect();
        if let Err(batch) = self.gpu.cell.put(self.generation, half, batch) {
            self.gpu.collector.give_back(batch);
            return Err(Trouble::Seized);
        }
        let started = clock::now();
        self.executor.stage(half, &inputs)?;
        self.lead.staged(clock::now().since(started));
        Ok(())
    }

    /// Sends what is staged in `half` back to wait, unlaunched.
    fn disembark(&mut self, half: Half) -> Result<(), Trouble> {
        let held = self.gpu.cell.take(self.generation, half)?;
        self.gpu.collector.give_back(held.batch);
        Ok(())
    }

    /// The device did not take the batch in `half`: everybody who is bound goes back to wait, no attempt spent, perhaps for
    /// another GPU, and this one rests.
    pub(super) fn turned_away(
        &mut self,
        half: Half,
        times: Times,
        ahead: bool,
        again: Duration,
    ) -> Result<(), Trouble> {
        let took = clock::now().since(times.launched);
        self.gpu
            .recorder()
            .batch_finished(BatchOutcome::TurnedAway, took);
        self.left_waiting_at = None;
        if ahead {
            self.disembark(half.other())?;
        }
        let mut held = self.gpu.cell.take(self.generation, half)?;
        fate::turned_away(&mut held.batch);
        self.gpu.collector.give_back(held.batch);
        self.gpu.cell.expect_by(clock::now() + CALL_MAX);
        self.executor.check()?;
        self.gpu.cell.expect_by(Time::MAX);
        self.rest(again);
        Ok(())
    }

    /// Launches what is staged in `half`; `None` if nobody of it is left alive.
    pub(super) fn depart(&mut self, half: Half) -> Result<Option<Times>, Trouble> {
        let gpu = &self.gpu;
        let now = clock::now();
        let mut wakes = gpu.collector.mailboxes().gather();
        let mut launched = (LaunchReason::Full, 0);
        let goes = gpu.cell.launch(self.generation, half, now, |batch| {
            launched = (reason(batch), batch.tickets.len());
            fate::launch(batch, now, &mut wakes) > 0
        })?;
        drop(wakes);
        if !goes {
            drop(gpu.cell.take(self.generation, half)?);
            return Ok(None);
        }
        let times = self.start(half, now, launched.1, launched)?;
        if let Some(left) = self.left_waiting_at.take() {
            self.gpu.recorder().batch_gap(clock::now().since(left));
        }
        Ok(Some(times))
    }

    /// Starts the executor on the `inputs` inputs staged in `half`, whose launch the cell saw at `now`. It is counted
    /// for `counted_as.0`, and to have filled `counted_as.1` slots.
    pub(super) fn start(
        &mut self,
        half: Half,
        now: Time,
        inputs: usize,
        counted_as: (LaunchReason, usize),
    ) -> Result<Times, Trouble> {
        let gpu = &self.gpu;
        let batch_time = gpu.collector.batch_time(gpu.seat);
        let timeout = self.settings.batch_timeout(batch_time);
        gpu.cell.expect_by(now + timeout + NOTICE_MAX);
        gpu.collector.launched(gpu.seat, now);
        self.executor.launch(half)?;
        if !self.executor.may_be_busy() {
            gpu.recorder().batch_launched(counted_as.0, counted_as.1);
        }
        let expected = now + batch_time;
        let overrun = expected + tolerance(batch_time);
        Ok(Times {
            inputs,
            counted_as,
            launched: now,
            expected,
            overrun,
            timeout,
        })
    }

    /// Counts a launch once it is known whether the device took the batch. Where it takes every batch, that was known
    /// at the launch, and [`Driver::start`] has counted it.
    pub(super) fn count_taken(&self, times: Times, was_turned_away: bool) {
        if self.executor.may_be_busy() && !was_turned_away {
            let (reason, slots) = times.counted_as;
            self.gpu.recorder().batch_launched(reason, slots);
        }
    }

    /// Waits for the batch in `half`, and boards the next one meanwhile if a full one waits. Says whether it did.
    fn wait(&mut self, half: Half, times: Times) -> Result<(Outcome, bool), Trouble> {
        let lead = self.lead.span(times.expected.since(times.launched));
        let outcome = self.executor.wait(times.expected - lead);
        if outcome != Outcome::Pending {
            return Ok((outcome, false));
        }
        if let Some(batch) = self.gpu.collector.bind_ahead(self.gpu.seat) {
            self.board(half.other(), batch)?;
            let outcome = self.executor.wait(times.overrun);
            if outcome != Outcome::Pending {
                return Ok((outcome, true));
            }
            // Another GPU may be free before this one is.
            self.disembark(half.other())?;
        }
        self.wait_out(times).map(|outcome| (outcome, false))
    }

    /// Waits until the batch has ended or its time is up.
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

    /// Waits until the batch is back, results and all, or its time is up. Nothing boards behind it.
    pub(super) fn wait_back(&mut self, times: Times) -> Result<Outcome, Trouble> {
        let outcome = self.wait_out(times)?;
        Ok(self.collected(outcome, times.launched + times.timeout))
    }

    /// `outcome`, and if that is only that the batch ended, with its results, which are part of it: they too are to be here by
    /// `until`, the end of its time. In any case they get the time of a copy, and the watchdog waits for it.
    pub(super) fn collected(&mut self, outcome: Outcome, until: Time) -> Outcome {
        if outcome != Outcome::Ended {
            return outcome;
        }
        let until = until.max(clock::now() + CALL_MAX);
        self.gpu.cell.expect_no_earlier(until + NOTICE_MAX);
        let collected = self.executor.collect(until);
        collected.map_or_else(Outcome::Lost, Outcome::Done)
    }

    /// The results of a batch that ended, while the next one may run already: so there can be no search among its inputs.
    fn results(&mut self, times: Times) -> Result<Returned, Trouble> {
        let outcome = self.collected(Outcome::Ended, times.launched + times.timeout);
        match returned(outcome, times.inputs)? {
            Ok(results) => Ok(Ok(results)),
            Err(message) => Err(Lost(message).into()),
        }
    }

    /// Gives each ticket of the batch in `half` its own output, or finds out whose input made the function raise.
    fn alight(
        &mut self,
        half: Half,
        times: Times,
        finished: Time,
        returned: Returned,
    ) -> Result<(), Trouble> {
        self.came_back(finished.since(times.launched), &returned);
        match returned {
            Ok(results) => {
                let held = self.gpu.cell.take(self.generation, half)?;
                self.demux(held.batch.tickets, results, finished);
                Ok(())
            }
            Err(message) if self.settings.search => self.isolate(half, times.inputs, message),
            Err(message) => {
                let held = self.gpu.cell.take(self.generation, half)?;
                self.gpu
                    .give_up(held.batch.tickets, &Failure::Raised(message));
                Ok(())
            }
        }
    }

    /// Counts a batch that came back after it `took` so long.
    pub(super) fn came_back(&self, took: Duration, returned: &Returned) {
        let (gpu, recorder) = (&self.gpu, self.gpu.recorder());
        let outcome = if returned.is_ok() {
            BatchOutcome::Done
        } else {
            BatchOutcome::Raised
        };
        recorder.batch_finished(outcome, took);
        recorder.gpu_busy(took);
        gpu.batches
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        // A function that raises may do so at once: that says nothing about L.
        if returned.is_ok() {
            gpu.collector.measured(gpu.seat, took);
        }
    }

    /// Gives each ticket its own output.
    pub(super) fn demux(
        &self,
        tickets: Vec<Box<Ticket>>,
        results: Vec<Result<Output, String>>,
        finished: Time,
    ) {
        let mut wakes = self.gpu.collector.mailboxes().gather();
        let output_max = self.settings.output_max;
        let late = fate::demux(tickets, results, finished, output_max, &mut wakes);
        let counted = self.gpu.recorder().tickets();
        (0..late).for_each(|_| counted.late_result());
    }
}

fn reason(batch: &Batch) -> LaunchReason {
    match (batch.lane, batch.reason) {
        (Lane::Retry, _) => LaunchReason::Retry,
        (Lane::Fresh, Launch::Full) => LaunchReason::Full,
        (Lane::Fresh, Launch::Hold) => LaunchReason::Hold,
        (Lane::Fresh, Launch::Paced) => LaunchReason::Paced,
        (Lane::Fresh, Launch::Whole) => LaunchReason::Whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_lead_grows_with_staging_and_spread_within_bounds() {
        let mut lead = Lead::default();
        assert_eq!(lead.span(100 * MS), 2 * MS);
        let expected = Time::from_millis_f64(1_000.0);
        for distance in [3 * MS, 3 * MS, 3 * MS, 3 * MS].repeat(20) {
            lead.ended(expected + distance, expected);
            lead.ended(expected - distance, expected);
        }
        assert!(lead.span(100 * MS).abs_diff(8 * MS) < MS / 10);
        (0..100).for_each(|_| lead.ended(expected + 500 * MS, expected));
        assert_eq!(lead.span(100 * MS), 2 * MS + 10 * MS);
        (0..100).for_each(|_| lead.staged(4 * MS));
        assert!(lead.span(20 * MS).abs_diff(9 * MS + 5 * MS) < MS / 10);
    }
}

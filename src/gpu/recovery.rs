//! How a GPU comes into service, at the start and after a failure: back-off, reset, canary.

use std::time::Duration;

use crate::clock::{self, Time};
use crate::config::units::counted;
use crate::gpu::executor::{ABOUT_OUTPUTS, Half, Lost, Outcome};
use crate::gpu::health::State;
use crate::gpu::{Driver, Trouble};
use crate::metrics::labels::LaunchReason;
use crate::ticket::Output;

/// Longest time that a canary may take unless the batch time-out is longer: first batches are slow.
const CANARY_MAX: Duration = Duration::from_secs(60);
/// A thread that waits for a reset or a canary looks up so often, to see whether the server ends.
const LOOK_UP_EVERY: Duration = Duration::from_millis(100);
/// What the watchdog grants on top.
const GRACE: Duration = Duration::from_secs(1);

impl Driver {
    pub(super) fn recover(&mut self) -> Result<(), Trouble> {
        let (health, _) = self.gpu.cell.look();
        if health.state() == State::Down {
            // Whoever failed it has said so; but this thread may have called itself idle in the moment after that.
            self.gpu.collector.down(self.gpu.seat);
        }
        let collector = &self.gpu.collector;
        let is_voided = || self.gpu.cell.generation() != self.generation;
        collector.wait_closed_or(health.reset_due(), is_voided);
        if self.is_cut_short() {
            return Ok(());
        }
        let until = clock::now() + self.settings.reset_max;
        self.gpu.cell.expect_by(until + GRACE);
        self.executor.reset(until)?;
        self.gpu
            .cell
            .health(self.generation, |health| health.reset_passed(clock::now()))?;
        let limit = self.canary_limit();
        let until = clock::now() + limit;
        let took = loop {
            match self.canary(until)? {
                Ok(took) => break took,
                Err(_) if clock::now() >= until => return Err(Trouble::TimedOut(limit)),
                Err(again) => self.rest(again),
            }
            if self.is_cut_short() {
                return Ok(());
            }
        };
        self.enter_service(took)
    }

    /// Whether there is no need to go on: the server ends, the GPU was told to leave, or the watchdog has failed it.
    fn is_cut_short(&self) -> bool {
        self.gpu.collector.is_closed() || self.gpu.cell.generation() != self.generation
    }

    fn canary_limit(&self) -> Duration {
        let timeout = self.settings.batch_timeout.unwrap_or_default();
        timeout.max(CANARY_MAX)
    }

    /// Runs a batch of one input whose output nobody waits for, and returns the time it took, or after which time a busy
    /// device is worth another try.
    fn canary(&mut self, until: Time) -> Result<Result<Duration, Duration>, Trouble> {
        let launched = clock::now();
        self.gpu.cell.expect_by(until + GRACE);
        self.half = Half::A;
        self.executor
            .stage(self.half, std::slice::from_ref(&self.settings.canary))?;
        self.executor.launch(self.half)?;
        let outcome = self.canary_outcome(until);
        // As of every batch: until the device is free, not until the results are here.
        let took = clock::now().since(launched);
        if !matches!(outcome, Outcome::Busy(_)) {
            self.gpu.recorder().batch_launched(LaunchReason::Probe, 0);
        }
        match self.collected(outcome, until) {
            Outcome::Done(results) if matches!(results[..], [Ok(_)]) => Ok(Ok(took)),
            Outcome::Busy(again) => {
                self.executor.check()?;
                Ok(Err(again))
            }
            Outcome::Done(results) => Err(self.canary_failed(&complaint(&results)).into()),
            Outcome::Raised(message) => Err(self.canary_failed(&message).into()),
            Outcome::Lost(lost) => Err(lost.into()),
            Outcome::Pending | Outcome::Ended => Err(Trouble::TimedOut(until.since(launched))),
        }
    }

    /// The batch function failed on the canary, in the words of `message`.
    fn canary_failed(&self, message: &str) -> Lost {
        let canary = &self.settings.canary.text;
        let advice = if message.starts_with(ABOUT_OUTPUTS) {
            // Another canary would fare no better.
            ""
        } else {
            "; if it can't take that, set --canary to an input that it can"
        };
        Lost(format!(
            "the batch function failed on its canary, the input {canary:?}: {message}{advice}"
        ))
    }

    fn canary_outcome(&mut self, until: Time) -> Outcome {
        loop {
            let now = clock::now();
            let outcome = self.executor.wait(until.min(now + LOOK_UP_EVERY));
            let over = now >= until || self.is_cut_short();
            if outcome != Outcome::Pending || over {
                return outcome;
            }
        }
    }

    /// Runs a canary on a GPU in service, so that its batch time is measured although no batch is let in.
    pub(super) fn probe(&mut self) -> Result<(), Trouble> {
        let now = clock::now();
        self.gpu.collector.launched(self.gpu.seat, now);
        let Ok(took) = self.canary(now + self.canary_limit())? else {
            // Whoever keeps it busy will be gone before the next probe is due.
            return Ok(());
        };
        self.gpu.collector.canary(self.gpu.seat, took);
        Ok(())
    }

    fn enter_service(&mut self, canary_took: Duration) -> Result<(), Trouble> {
        let gpu = &self.gpu;
        gpu.cell
            .health(self.generation, |health| health.canary_passed(clock::now()))?;
        gpu.collector.canary(gpu.seat, canary_took);
        self.left_waiting_at = None;
        log::info!(
            "gpu {} is ready: its canary took {:.1} ms",
            gpu.index,
            canary_took.as_secs_f64() * 1e3
        );
        Ok(())
    }
}

/// What is wrong with the results of a canary that was not answered with one output.
fn complaint(results: &[Result<Output, String>]) -> String {
    match results {
        [Err(message)] => message.clone(),
        _ => {
            let outputs = counted(results.len() as u64, "output");
            format!("{ABOUT_OUTPUTS} returned {outputs} for 1 input")
        }
    }
}

//! One OS thread per GPU: the loop stage → launch → wait → demux.
//!
//! ```text
//!  collector ──batch──► board: stage into a half ──► depart: launch ──► wait ───────────────► alight: output i → ticket i
//!                                                                        │ `lead` before the end:       ▲
//!                                                                        └ bind and stage the next full ┘ batch; it departs
//!                                                                          the moment this one is back
//! ```
//!
//! [`fate`] says what becomes of a batch's tickets at its launch, its return and its loss (pure). A batch that a busy
//! device turned away goes back to wait. One on which the function raised is searched for the inputs at fault: [`search`]
//! and [`case`] are pure, `isolate` runs them. [`executor`] is the trait behind which a GPU hides, [`simulated`] the one
//! that needs none, [`python`] the one with a worker process, [`cuda`] the one that drives the device itself, [`remote`] the
//! one whose GPU is on another machine; [`health`] says whether a GPU may serve (pure); [`cell`] is what the thread shares
//! with the [`watchdog`]. A [`Gpu`] is everything about one GPU that is not its thread's own, and the [`fleet`] is all of
//! them: those that came, and those that were told to leave.
//!
//! Nothing that goes wrong here reaches a caller twice: a batch lies in the cell while it is in hand, and whoever takes
//! it out — this thread with the results, or whoever fails the GPU — answers it or sends it back to wait.

pub mod activity;
pub mod case;
pub mod cell;
pub mod cuda;
pub mod executor;
pub mod fate;
pub mod faults;
pub mod fleet;
pub mod health;
mod isolate;
pub mod python;
mod recovery;
pub mod remote;
mod ride;
pub mod search;
pub mod simulated;
pub mod watchdog;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_utils::CachePadded;

use crate::batch::collector::{Collector, Work};
use crate::clock::{self, Time};
use crate::gpu::activity::Thread;
use crate::gpu::cell::{Cell, Held, Seized};
use crate::gpu::executor::{Executor, Half, Lost};
use crate::gpu::fate::Rescued;
use crate::gpu::health::State;
use crate::metrics::Metrics;
use crate::metrics::labels::{Abandonment, BatchOutcome};
use crate::metrics::record::GpuRecorder;
use crate::ticket::{Failure, Input, Ticket};

pub use self::ride::{CALL_MAX, NOTICE_MAX, tolerance};

/// A device that turned a batch away is left in peace for this long at most.
const REST_MAX: Duration = Duration::from_secs(1);

/// Why a GPU that was told to leave is out of service.
const REMOVED: &str = "removed from the configuration";

/// An idle executor is asked so often whether it is still there.
const CHECK_EVERY: Duration = Duration::from_millis(100);

/// What GPU threads need to know of the configuration.
#[derive(Clone, Debug)]
pub struct GpuSettings {
    /// Time after which a batch has failed; by default max(500 ms, 5 L).
    pub batch_timeout: Option<Duration>,
    /// Longest time that a reset (a cold start, a model that loads) may take.
    pub reset_max: Duration,
    /// Largest output in bytes.
    pub output_max: usize,
    /// The input of canary batches.
    pub canary: Input,
    /// Whether the inputs at fault are searched for when the batch function raises. A worker leaves that to whoever sent
    /// the batch, and answers for all of it that the function raised.
    pub search: bool,
}

/// Shortest batch time-out that is chosen by itself.
const BATCH_TIMEOUT_MIN: Duration = Duration::from_millis(500);

impl GpuSettings {
    /// Time after which a batch has failed on a GPU with batch time `batch_time`.
    pub fn batch_timeout(&self, batch_time: Duration) -> Duration {
        self.batch_timeout
            .unwrap_or_else(|| BATCH_TIMEOUT_MIN.max(5 * batch_time))
    }
}

/// What went wrong on a GPU thread.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Trouble {
    /// The device is lost.
    Lost(Lost),
    /// The batch did not come back in time.
    TimedOut(Duration),
    /// The batch function raises whatever it is given on this device. In its own words.
    Suspect(String),
    /// Somebody else failed the GPU meanwhile and has dealt with everything.
    Seized,
}

impl From<Lost> for Trouble {
    fn from(lost: Lost) -> Trouble {
        Trouble::Lost(lost)
    }
}

impl From<Seized> for Trouble {
    fn from(Seized: Seized) -> Trouble {
        Trouble::Seized
    }
}

/// One GPU, as its thread, the watchdog and the status page share it.
#[derive(Debug)]
pub struct Gpu {
    /// Its number: in the order in which they came, never that of another.
    pub index: usize,
    /// Its seat at the collector, which was and will be another's.
    seat: usize,
    /// Where it is, if that is on another machine.
    worker: Option<String>,
    cell: Cell,
    collector: Arc<Collector>,
    recorder: Arc<CachePadded<GpuRecorder>>,
    batches: AtomicU64,
}

impl Gpu {
    /// GPU number `index`, in the seat of the same number, not yet in service.
    pub fn new(index: usize, collector: Arc<Collector>, metrics: &Metrics) -> Gpu {
        Gpu {
            index,
            seat: index,
            worker: None,
            cell: Cell::new(clock::now()),
            collector,
            recorder: metrics.gpu(index),
            batches: AtomicU64::new(0),
        }
    }

    /// The same in another seat, and perhaps on another machine.
    #[must_use]
    pub fn seated(self, seat: usize, worker: Option<String>) -> Gpu {
        Gpu {
            seat,
            worker,
            ..self
        }
    }

    /// Its seat at the collector.
    pub fn seat(&self) -> usize {
        self.seat
    }

    /// Where it is, if that is on another machine.
    pub fn worker(&self) -> Option<&str> {
        self.worker.as_deref()
    }

    /// The batches in hand and the health.
    pub fn cell(&self) -> &Cell {
        &self.cell
    }

    /// Batches that came back.
    pub fn batches(&self) -> u64 {
        self.batches.load(Ordering::Relaxed)
    }

    /// Where its thread records.
    pub fn recorder(&self) -> &GpuRecorder {
        &self.recorder
    }

    /// Whether it was told to leave, and has something in hand yet.
    fn is_leaving(&self) -> bool {
        self.cell.state() == State::Draining
    }

    /// Tells it to leave: it is out of service at once, what it runs comes back and is answered, what is staged goes back
    /// to wait, and its thread ends.
    pub fn leave(&self) {
        self.cell.leave(REMOVED, clock::now());
        self.collector.leave(self.seat);
    }

    /// Takes the GPU out of service and sends its tickets back to wait: what was launched as a retry, once, what was only
    /// staged to where it came from.
    pub fn fail(&self, why: &str, outcome: BatchOutcome) {
        let (health, _) = self.cell.look();
        if health.state() == State::Gone {
            // Its seat may be another's already.
            return;
        }
        let (held, is_news) = self.cell.fail(why, clock::now(), false);
        self.collector.down(self.seat);
        match (is_news, health.is_kept_down()) {
            _ if health.state() == State::Draining => {
                log::warn!("gpu {} failed on its way out: {why}", self.index);
            }
            (false, _) => log::debug!("gpu {} stays down: {why}", self.index),
            (true, true) => log::warn!("gpu {} stays down: {why}", self.index),
            (true, false) => log::error!(
                "gpu {} is down: {why}; it is reset and tested until it works",
                self.index
            ),
        }
        held.into_iter().for_each(|held| self.rescue(held, outcome));
    }

    fn rescue(&self, held: Held, outcome: BatchOutcome) {
        let (since, again, spent) = match fate::rescue(held) {
            Rescued::Unlaunched(batch) => return self.collector.give_back(batch),
            Rescued::Launched {
                since,
                again,
                spent,
            } => (since, again, spent),
        };
        self.recorder()
            .batch_finished(outcome, clock::now().since(since));
        again.iter().for_each(|_| self.recorder().tickets().retry());
        self.collector.retry(again);
        if !spent.is_empty() {
            log::warn!(
                "gpu {}: given up with 503, since a second GPU failed while it ran them: {}; if an input kills the process that \
                 runs it, it is one of these",
                self.index,
                fate::ids_of(&spent)
            );
        }
        let lost = self.give_up(spent, &fate::lost_twice());
        (0..lost).for_each(|_| {
            self.recorder()
                .tickets()
                .abandoned(Abandonment::RetryFailed)
        });
    }

    /// Takes the GPU out of service for good and answers what it has in hand with 503: the server ends.
    pub fn retire(&self) {
        let (held, _) = self.cell.fail("the server ends", clock::now(), true);
        self.collector.down(self.seat);
        for held in held {
            self.give_up(held.batch.tickets, &Failure::Draining);
        }
    }

    /// It was told to leave, and has nothing in hand any more.
    fn gone(&self) {
        let (held, _) = self.cell.fail(REMOVED, clock::now(), true);
        assert!(held.is_empty(), "it leaves with nothing in hand");
        log::info!("gpu {} has left", self.index);
    }

    /// Answers `tickets` with `failure`, and returns how many of them were still to be answered.
    fn give_up(&self, tickets: Vec<Box<Ticket>>, failure: &Failure) -> usize {
        let mut wakes = self.collector.mailboxes().gather();
        fate::give_up(tickets, failure, &mut wakes)
    }
}

/// What a GPU's thread owns.
pub struct Driver {
    gpu: Arc<Gpu>,
    executor: Box<dyn Executor>,
    settings: GpuSettings,
    /// The generation of the cell that this thread acts in.
    generation: u64,
    /// The half that the next batch is staged into.
    half: Half,
    lead: ride::Lead,
    /// When the last batch ended, if a full batch waited then.
    left_waiting_at: Option<Time>,
}

impl Driver {
    /// The driver of `gpu`, which owns `executor` from now on.
    pub fn new(gpu: Arc<Gpu>, executor: Box<dyn Executor>, settings: GpuSettings) -> Driver {
        let generation = gpu.cell.generation();
        Driver {
            gpu,
            executor,
            settings,
            generation,
            half: Half::A,
            lead: ride::Lead::default(),
            left_waiting_at: None,
        }
    }

    /// The thread's whole life: until the collector closes, or the GPU has left.
    pub fn run(mut self) {
        self.gpu.cell.runs_on(Thread::current());
        while !self.gpu.collector.is_closed() {
            if self.gpu.cell.state() == State::Gone {
                return;
            }
            // A panic fails this GPU's batch and costs it a reset; it must not end the thread, let alone the process.
            if catch_unwind(AssertUnwindSafe(|| self.step())).is_err() {
                self.gpu.fail("its thread panicked", BatchOutcome::Failed);
            }
        }
        self.gpu.retire();
    }

    fn step(&mut self) {
        self.generation = self.gpu.cell.generation();
        let done = match self.gpu.cell.state() {
            State::Ready | State::Busy => self.serve(),
            State::Warming | State::Down | State::Probing => self.recover(),
            State::Draining => return self.gpu.gone(),
            State::Gone => return,
        };
        self.gpu.cell.expect_by(Time::MAX);
        // A thread that comes back late brings stale news: whoever failed the GPU meanwhile has dealt with it.
        let is_seized = self.gpu.cell.generation() != self.generation;
        match done {
            Err(_) if is_seized => self.gpu.collector.down(self.gpu.seat),
            Ok(()) => {}
            // Whoever seized it has taken it out of service, but this thread may have entered the collector since.
            Err(Trouble::Seized) => self.gpu.collector.down(self.gpu.seat),
            Err(Trouble::Lost(lost)) => self.gpu.fail(&lost.0, BatchOutcome::Lost),
            Err(Trouble::TimedOut(limit)) => {
                let why = format!("a batch did not come back within {} ms", limit.as_millis());
                self.gpu.fail(&why, BatchOutcome::TimedOut);
            }
            Err(Trouble::Suspect(message)) => {
                let why = format!(
                    "the batch function raises on everything, its canary included: {message}"
                );
                self.gpu.fail(&why, BatchOutcome::Raised);
            }
        }
    }

    /// Leaves a busy device in peace.
    fn rest(&self, span: Duration) {
        self.gpu
            .collector
            .wait_closed(clock::now() + span.min(REST_MAX));
    }

    /// One turn at the collector.
    fn serve(&mut self) -> Result<(), Trouble> {
        match self
            .gpu
            .collector
            .next(self.gpu.seat, clock::now() + CHECK_EVERY)
        {
            Work::Batch(batch) => self.ride(batch),
            Work::Nothing => {
                self.left_waiting_at = None;
                self.gpu.cell.expect_by(clock::now() + ride::CALL_MAX);
                self.executor.check()?;
                if self.gpu.collector.probe_due(self.gpu.seat) {
                    self.probe()
                } else {
                    Ok(())
                }
            }
            Work::Leave | Work::Closed => Ok(()),
        }
    }
}

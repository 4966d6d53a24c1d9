//! The Python executor: the user's own batch function, unmodified, in one worker process for each GPU.
//!
//! ```text
//!  GPU thread ──► Python (this) ──► Worker ─┬─ Link ══ orders, results ══► worker.py: the main thread calls batchstring
//!                                           ├─ Link ══ batches ahead ════►            another decodes the next batch
//!                                           └─ Process: stdout, stderr ──► the log
//! ```
//!
//! `frame` is the protocol (pure), `link` moves its bytes, `process` starts, names and kills the worker, `output`
//! turns what the user's code prints into lines of the log, `worker` is all of these in one hand. What runs in the
//! worker is `signals.py` and `worker.py`, which are part of this binary and need nothing but Python's standard library.
//!
//! Nothing here blocks past its time: every wait is one `poll` over the sockets, both pipes and the process itself.
//!
//! What lies between two batches is one small frame each way. The next batch is sent and decoded while the present one
//! runs, over a socket of its own, so that the order to run it wakes the worker's main thread and no other. And a worker
//! that has a batch staged says that the present one [`Outcome::Ended`] before it encodes the outputs, which it does while
//! the order is on its way.
//!
//! A worker that dies, hangs or talks nonsense is [`Lost`]: the GPU goes down, its batch is retried elsewhere, and
//! [`Executor::reset`] starts a new worker when the old one is really gone — it may still hold the GPU's memory. The
//! kernel kills workers when the thread that started them ends, and they end by themselves when their socket does.

mod complaints;
mod frame;
mod hidden;
mod link;
mod output;
mod process;
pub mod strays;
mod worker;

use std::fmt;
use std::time::Duration;

use crate::clock::{self, Time};
use crate::config::PythonConfig;
use crate::config::units::span;
use crate::gpu::executor::{Executor, Half, Lost, Outcome};
use crate::ticket::{Input, Output};

use self::complaints::Complaints;
use self::frame::Frame;
use self::worker::Worker;

/// A killed process that holds a GPU may take seconds to end; longer, and it hangs in its driver.
const BURIAL_MAX: Duration = Duration::from_secs(10);

/// How far a start has come is told so often.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// Told how far the start of a worker has come.
pub type Progress = Box<dyn Fn(&str) + Send>;

/// See the module's text.
pub struct Python {
    config: PythonConfig,
    gpu: usize,
    /// Longest output that is of use to anybody, in bytes.
    output_max: usize,
    progress: Progress,
    complaints: Complaints,
    /// The present one, or one that is lost and has to be buried first.
    worker: Option<Worker>,
}

impl fmt::Debug for Python {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Python {
            config,
            gpu,
            worker,
            ..
        } = self;
        f.debug_struct("Python")
            .field("gpu", gpu)
            .field("config", config)
            .field("worker", worker)
            .finish_non_exhaustive()
    }
}

impl Python {
    /// The executor of GPU number `gpu`. Its worker is started by the first reset. Of outputs longer than `output_max`
    /// bytes it gives only so much that they are seen to be.
    pub fn new(config: PythonConfig, gpu: usize, output_max: usize, progress: Progress) -> Python {
        Python {
            config,
            gpu,
            output_max,
            progress,
            complaints: Complaints::new(gpu),
            worker: None,
        }
    }

    fn worker(&mut self) -> Result<&mut Worker, Lost> {
        self.worker
            .as_mut()
            .ok_or_else(|| Lost("it has no worker process".to_owned()))
    }

    /// Has nothing more to do with the present worker, dead or alive. Does not wait for its end: those whose batch it
    /// had are waiting.
    fn abandon<T>(&mut self, result: Result<T, Lost>) -> Result<T, Lost> {
        if result.is_err()
            && let Some(worker) = &mut self.worker
        {
            worker.kill();
        }
        result
    }

    fn bury(&mut self, until: Time) -> Result<(), Lost> {
        if let Some(worker) = &mut self.worker {
            worker.kill();
            if !worker.wait_ended(until) {
                return Err(Lost(
                    "its old worker process was killed and does not end: its GPU driver hangs"
                        .to_owned(),
                ));
            }
        }
        self.worker = None;
        Ok(())
    }

    /// Waits for a new worker to be ready.
    fn warm_up(&mut self, due: Time, limit: Duration) -> Result<(), Lost> {
        let since = clock::now();
        let mut doing = "starting Python".to_owned();
        loop {
            let now = clock::now();
            let told_next = due.min(now + TELL_EVERY);
            match self.worker()?.next(told_next)? {
                Some(Frame::Progress(text)) => {
                    doing = text;
                    self.tell(&doing, since);
                }
                Some(Frame::Ready {
                    version,
                    takes,
                    other_name,
                }) => {
                    self.worker()?.ready(takes);
                    let (gpu, id, took) =
                        (self.gpu, self.worker()?.id(), clock::now().since(since));
                    let given = takes.in_words();
                    let took = took.as_secs_f64();
                    let other_name = named_otherwise(&other_name);
                    log::info!(
                        "gpu {gpu}: worker {id} (Python {version}) started in {took:.1} s; it is given {given}{other_name}"
                    );
                    return Ok(());
                }
                Some(Frame::Failed(complaint)) => {
                    self.complaints.started(&complaint);
                    return Err(Lost(complaint.message));
                }
                Some(other) => return Err(unexpected(&other)),
                None if now >= due => {
                    let limit = span(limit);
                    return Err(Lost(format!(
                        "its worker process was not ready within {limit}: it was still {doing}; if that takes so long, \
                         raise --python-start-timeout-s"
                    )));
                }
                None => self.tell(&doing, since),
            }
        }
    }

    /// Says how far the start has come: for `/status`.
    fn tell(&self, doing: &str, since: Time) {
        let mut text = format!("{doing} for {} s", clock::now().since(since).as_secs());
        if let Some(worker) = self
            .worker
            .as_ref()
            .filter(|worker| !worker.last_words().is_empty())
        {
            text.push_str(&format!("; it printed: {}", worker.last_words()));
        }
        (self.progress)(&text);
    }

    fn outcome(&mut self, frame: Frame) -> Outcome {
        let (number, outcome) = match frame {
            Frame::Done { number, results } => (number, Outcome::Done(results)),
            Frame::Raised { number, complaint } => {
                self.complaints.raised(&complaint);
                (number, Outcome::Raised(complaint.message))
            }
            Frame::Ended { number } => (number, Outcome::Ended),
            other => return Outcome::Lost(unexpected(&other)),
        };
        let expected = self.worker.as_mut().is_some_and(|worker| match outcome {
            Outcome::Ended => worker.ended(number),
            _ => worker.finished(number),
        });
        if expected {
            outcome
        } else {
            Outcome::Lost(not_running())
        }
    }

    /// The results of the batch that ended, if its worker sends them by `until`.
    fn results(&mut self, until: Time) -> Result<Vec<Result<Output, String>>, Lost> {
        let worker = self.worker()?;
        match worker.next(until)? {
            Some(Frame::Done { number, results }) if worker.collected(number) => Ok(results),
            Some(Frame::Done { .. }) => Err(not_running()),
            Some(other) => Err(unexpected(&other)),
            None => Err(Lost(
                "its worker process did not send the outputs of a batch that had ended".to_owned(),
            )),
        }
    }
}

/// What is said of an argument that gets the parameters under another name.
fn named_otherwise(name: &str) -> String {
    if name.is_empty() {
        return String::new();
    }
    format!(" (its argument `{name}` is given the parameters)")
}

fn not_running() -> Lost {
    Lost("its worker process answered a batch that was not running".to_owned())
}

fn unexpected(frame: &Frame) -> Lost {
    log::debug!("an unexpected frame: {frame:?}");
    Lost("its worker process said something that nobody had asked".to_owned())
}

impl Executor for Python {
    fn stage(&mut self, half: Half, inputs: &[Input]) -> Result<(), Lost> {
        // One that died since the last look costs nobody an attempt if it is noticed now.
        let alive = self.worker().and_then(Worker::look);
        self.abandon(alive)?;
        self.worker()?.stage(half, inputs);
        Ok(())
    }

    fn launch(&mut self, half: Half) -> Result<(), Lost> {
        self.worker()?.launch(half);
        Ok(())
    }

    fn wait(&mut self, until: Time) -> Outcome {
        let next = self.worker().and_then(|worker| worker.next(until));
        match self.abandon(next) {
            Ok(None) => Outcome::Pending,
            Ok(Some(frame)) => self.outcome(frame),
            Err(lost) => Outcome::Lost(lost),
        }
    }

    fn collect(&mut self, until: Time) -> Result<Vec<Result<Output, String>>, Lost> {
        let results = self.results(until);
        self.abandon(results)
    }

    fn check(&mut self) -> Result<(), Lost> {
        let next = self.worker().and_then(|worker| worker.next(Time::ZERO));
        match self.abandon(next)? {
            None => Ok(()),
            Some(frame) => self.abandon(Err(unexpected(&frame))),
        }
    }

    fn reset(&mut self, until: Time) -> Result<(), Lost> {
        self.bury(until.min(clock::now() + BURIAL_MAX))?;
        let limit = self.config.start_timeout;
        let due = until.min(clock::now() + limit);
        self.worker = Some(Worker::start(&self.config, self.gpu, self.output_max)?);
        let ready = self.warm_up(due, limit);
        self.abandon(ready)
    }
}

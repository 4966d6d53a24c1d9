//! The remote executor: a GPU on another machine, behind a `funicular worker` or anything else that serves
//! `POST /internal/batch`.
//!
//! ```text
//!  stage    ids and JSON: [message]
//!  launch   one request on the connection that is kept: [link]
//!  wait     its response ([response]), or the same batch again, and what that means: below
//! ```
//!
//! One batch is at the worker at a time. A batch is asked for under one id until its time is up: after a lost connection
//! the same request goes to the same worker again, which then gives the results of the first one, or waits for them. So a
//! batch does not run twice because the network failed; only when its time is up does the driver fail this GPU, and send
//! the tickets elsewhere. (A batch that could not even be sent has not run; its tickets go elsewhere at once.) Nothing of
//! an answer is believed unless it is whole: the batch's id, every request once, nothing else. One answer that makes no
//! sense may be the network's doing and is asked for again; two are the worker's.
//!
//! | the worker says | which means |
//! | --- | --- |
//! | 200, and results that fit | the batch ran; a result is an output or what is wrong with that input |
//! | 400, 413, 422 | unreadable, too much at once, or the batch function raised on it; the driver searches by halves |
//! | 503 | it did not run. Busy, or not in service: then [`Executor::check`] says so |
//! | anything else | the worker is no use: lost |
//!
//! While idle, `GET /v2/health/ready` asks every second whether the worker still serves; a worker without that route is
//! believed to as long as it takes connections.

mod link;
mod message;
mod probe;
mod response;
mod target;

use std::time::Duration;

use rustix::event::{Timespec, poll};
use serde::Deserialize;

use self::link::{Exchange, Link, Step};
use self::message::BatchId;
pub use self::message::random_word;
use self::probe::Probe;
use self::response::Response;
pub use self::target::Target;
use crate::clock::{self, Time};
use crate::gpu::executor::{Executor, Half, Lost, Outcome};
use crate::keys::Secret;
use crate::ticket::Input;

/// The route that runs a batch.
pub const BATCH_PATH: &str = "/internal/batch";

/// Time in which a launch sends what it can; the rest is sent while the batch is waited for.
const SEND_MAX: Duration = Duration::from_millis(50);
/// Pauses between two attempts to ask for the same batch, doubling.
const AGAIN_MIN: Duration = Duration::from_millis(5);
const AGAIN_MAX: Duration = Duration::from_millis(100);
/// How long a busy worker is left in peace if it does not say.
const BUSY_PAUSE: Duration = Duration::from_millis(50);
/// Attempts to send a batch. If the worker can't have got it, somebody else may run it, no attempt spent.
const UNSENT_MAX: u32 = 2;
/// Answers to one batch that make no sense before the worker is given up.
const NONSENSE_MAX: u32 = 2;

/// Bytes of an answer beside its outputs: ids, statuses, members that we don't know.
const ANSWER_BYTES_BASE: usize = 64 << 10;
const ANSWER_BYTES_PER_RESULT: usize = 512;
/// The longest that JSON makes of one byte: `\u0000`.
const ESCAPED_BYTES: usize = 6;

/// What a remote executor needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// Where it is.
    pub target: Target,
    /// What it wants to be shown.
    pub secret: Option<Secret>,
    /// Largest output in bytes.
    pub output_max: usize,
}

#[derive(Debug)]
struct Staged {
    id: BatchId,
    inputs: usize,
    request: Vec<u8>,
}

/// A batch at the worker.
#[derive(Debug)]
struct Running {
    id: BatchId,
    inputs: usize,
    exchange: Exchange,
    /// When it is asked for (again).
    due: Time,
    pause: Duration,
    /// Whether the worker may have got it: then nobody knows what it did.
    sent: bool,
    /// Times that the connection was lost.
    broken: u32,
    /// Answers that made no sense.
    nonsense: u32,
}

/// See the module's text.
#[derive(Debug)]
pub struct Remote {
    worker: Worker,
    link: Link,
    staged: [Option<Staged>; 2],
    running: Option<Running>,
    probe: Option<Probe>,
    probe_due: Time,
    /// Why the worker turned a batch away, if not because it is busy.
    out_of_service: Option<String>,
}

impl Remote {
    /// The executor that runs its batches on `worker`.
    pub fn new(worker: Worker) -> Remote {
        Remote {
            worker,
            link: Link::default(),
            staged: [None, None],
            running: None,
            probe: None,
            probe_due: Time::ZERO,
            out_of_service: None,
        }
    }

    fn lost(&self, why: impl std::fmt::Display) -> Lost {
        Lost(format!("worker {}: {why}", self.worker.target))
    }

    fn head(&self, method: &str, route: &str, more: &str) -> Vec<u8> {
        let target = &self.worker.target;
        let (path, host) = (target.path(route), target.authority());
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{more}");
        if let Some(secret) = &self.worker.secret {
            head.push_str("Authorization: Bearer ");
            head.push_str(secret.expose());
            head.push_str("\r\n");
        }
        head.push_str("\r\n");
        head.into_bytes()
    }

    fn answer_bytes_max(&self, inputs: usize) -> usize {
        let result = ANSWER_BYTES_PER_RESULT + ESCAPED_BYTES.saturating_mul(self.worker.output_max);
        ANSWER_BYTES_BASE.saturating_add(result.saturating_mul(inputs))
    }

    /// What an answer means for the batch that it answers; `Err` if it makes no sense.
    fn judge(&mut self, run: &Running, response: &Response) -> Result<Outcome, String> {
        let detail = || detail(response);
        Ok(match response.status {
            200 => Outcome::Done(message::decode(&run.id, run.inputs, &response.body)?),
            // One input that the worker can't read makes it refuse the whole batch: its caller's fault, not the GPU's.
            400 | 413 | 422 => Outcome::Raised(detail()),
            503 => self.turned_away(response),
            401 | 403 => Outcome::Lost(self.lost(self.unwelcome(&detail()))),
            404 | 405 => {
                let why = format!("it does not serve POST {BATCH_PATH}: {}", detail());
                Outcome::Lost(self.lost(why))
            }
            _ => Outcome::Lost(self.lost(detail())),
        })
    }

    /// What to do about a worker that does not take our secret; `detail` is what it says itself.
    fn unwelcome(&self, detail: &str) -> String {
        let advice = match self.worker.secret {
            Some(_) => {
                "it does not take our secret: the one here and the one there must be the same"
            }
            None => {
                "it wants a secret, and there is none here: name its file with --worker-secret-file"
            }
        };
        format!("{advice} (it says: {detail})")
    }

    fn turned_away(&mut self, response: &Response) -> Outcome {
        let problem = Problem::of(response);
        if matches!(problem.reason.as_deref(), Some("no_gpu" | "draining")) {
            self.out_of_service = Some(format!("it takes no batch: {}", detail(response)));
            return Outcome::Busy(Duration::ZERO);
        }
        let asked = problem.retry_after_ms.map(Duration::from_millis);
        let pause = asked.or(response.retry_after).unwrap_or(BUSY_PAUSE);
        Outcome::Busy(pause.max(AGAIN_MIN))
    }

    /// One step of the running batch: `None` while it goes on.
    fn proceed(&mut self, run: &mut Running, until: Time) -> Option<Outcome> {
        let now = clock::now();
        if now < run.due {
            pass(run.due.min(until).since(now));
            return (until < run.due).then_some(Outcome::Pending);
        }
        let trouble = match self.link.drive(&mut run.exchange, until) {
            Step::Pending => return Some(Outcome::Pending),
            Step::Answered(response) => match self.judge(run, &response) {
                Ok(outcome) => return Some(outcome),
                Err(why) => {
                    run.nonsense += 1;
                    why
                }
            },
            Step::Nonsense(why) => {
                run.nonsense += 1;
                why
            }
            Step::Broken(why) => {
                run.broken += 1;
                why
            }
        };
        run.sent |= run.exchange.is_sent();
        if !run.sent && run.broken >= UNSENT_MAX {
            self.out_of_service = Some(trouble);
            return Some(Outcome::Busy(Duration::ZERO));
        }
        if run.nonsense >= NONSENSE_MAX {
            return Some(Outcome::Lost(self.lost(trouble)));
        }
        self.ask_again(run, &trouble);
        None
    }

    /// The same batch, on a new connection. The first time at once: the old one may have been closed for being idle.
    fn ask_again(&mut self, run: &mut Running, trouble: &str) {
        let target = &self.worker.target;
        if run.broken + run.nonsense == 1 {
            log::debug!("worker {target}: {trouble}; asking for the same batch again");
        } else {
            if run.pause.is_zero() {
                log::warn!(
                    "worker {target}: {trouble}; asking for the same batch until its time is up"
                );
            }
            run.pause = (2 * run.pause).clamp(AGAIN_MIN, AGAIN_MAX);
        }
        self.link.close();
        run.exchange.rewind();
        run.due = clock::now() + run.pause;
    }
}

impl Executor for Remote {
    fn stage(&mut self, half: Half, inputs: &[Input]) -> Result<(), Lost> {
        let id = BatchId::next();
        let body = message::encode(&id, inputs, self.worker.output_max);
        let (length, name) = (body.len(), id.as_str());
        let more = format!(
            "Content-Type: application/json\r\nContent-Length: {length}\r\nX-Request-Id: {name}\r\n"
        );
        let mut request = self.head("POST", BATCH_PATH, &more);
        request.extend_from_slice(&body);
        self.staged[half.index()] = Some(Staged {
            id,
            inputs: inputs.len(),
            request,
        });
        Ok(())
    }

    fn launch(&mut self, half: Half) -> Result<(), Lost> {
        let Some(Staged {
            id,
            inputs,
            request,
        }) = self.staged[half.index()].take()
        else {
            return Err(self.lost("nothing was staged"));
        };
        if self.probe.take().is_some() {
            // Its answer would be the first on this connection.
            self.link.close();
        }
        self.link.tidy();
        let now = clock::now();
        let mut run = Running {
            exchange: Exchange::new(request, self.answer_bytes_max(inputs)),
            id,
            inputs,
            due: now,
            pause: Duration::ZERO,
            sent: false,
            broken: 0,
            nonsense: 0,
        };
        if let Err(Step::Broken(why)) = self.link.send(&mut run.exchange, now + SEND_MAX) {
            (run.broken, run.sent) = (1, run.exchange.is_sent());
            self.ask_again(&mut run, &why);
        }
        self.running = Some(run);
        Ok(())
    }

    fn may_be_busy(&self) -> bool {
        true
    }

    fn wait(&mut self, until: Time) -> Outcome {
        let Some(mut run) = self.running.take() else {
            return Outcome::Lost(self.lost("nothing was launched"));
        };
        let outcome = loop {
            if let Some(outcome) = self.proceed(&mut run, until) {
                break outcome;
            }
        };
        if outcome == Outcome::Pending {
            self.running = Some(run);
        }
        outcome
    }

    fn check(&mut self) -> Result<(), Lost> {
        match self.out_of_service.take() {
            Some(why) => Err(self.lost(why)),
            None => self.look_after(),
        }
    }

    fn reset(&mut self, until: Time) -> Result<(), Lost> {
        self.staged = [None, None];
        (self.running, self.probe, self.out_of_service) = (None, None, None);
        let target = &self.worker.target;
        let addresses = target.resolve().map_err(|error| self.lost(error))?;
        self.link.point_at(addresses);
        self.first_probe(until)
    }
}

/// Lets time pass.
fn pass(span: Duration) {
    let timeout = Timespec::try_from(span).ok();
    // An interrupted wait is a shorter one; the caller looks at the clock.
    let _ = poll(&mut [], timeout.as_ref());
}

/// The members of a problem document (RFC 9457) that matter here.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Problem {
    detail: Option<String>,
    reason: Option<String>,
    retry_after_ms: Option<u64>,
}

impl Problem {
    fn of(response: &Response) -> Problem {
        serde_json::from_slice(&response.body).unwrap_or_default()
    }
}

/// What the worker says is wrong, for people.
fn detail(response: &Response) -> String {
    const BYTES_MAX: usize = 2000;
    let status = response.status;
    match Problem::of(response).detail {
        Some(detail) if !detail.trim().is_empty() => detail.chars().take(BYTES_MAX).collect(),
        _ => format!("it answered with status {status}"),
    }
}

#[cfg(test)]
mod tests;

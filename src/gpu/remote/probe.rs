//! Whether an idle worker still serves: it is asked now and then, on the connection that its batches use.
//!
//! No look takes long, because this thread has batches to fetch: an answer that is not there yet is looked for again at the
//! next one. A batch that comes meanwhile goes on a new connection.

use std::time::Duration;

use super::link::{Exchange, Step};
use super::response::Response;
use super::{Remote, detail};
use crate::clock::{self, Time};
use crate::gpu::executor::Lost;

/// The route that says whether the worker serves.
const READY_PATH: &str = "/v2/health/ready";

/// An idle worker is asked so often whether it serves.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// A lost connection is made again within this time, or the worker is lost.
const CONNECT_MAX: Duration = Duration::from_millis(250);
/// A look at the answer takes this long at most: other batches wait for this thread.
const PROBE_LOOK: Duration = Duration::from_millis(20);
/// A worker that takes longer to answer is lost.
const PROBE_MAX: Duration = Duration::from_secs(5);
const PROBE_BYTES_MAX: usize = 64 << 10;

/// A question that an idle worker was asked.
#[derive(Debug)]
pub(super) struct Probe {
    exchange: Exchange,
    since: Time,
    /// Whether it is the second attempt: the connection may have been closed for having been idle.
    again: bool,
}

impl Remote {
    /// Looks whether the idle worker is still there.
    pub(super) fn look_after(&mut self) -> Result<(), Lost> {
        let now = clock::now();
        match &self.probe {
            None => {
                self.link.tidy();
                let gone = self.link.connect(now + CONNECT_MAX);
                if let Err(Step::Broken(why)) = gone {
                    return Err(self.lost(why));
                }
                if now >= self.probe_due {
                    self.begin_probe();
                }
                self.look_at_probe(now + PROBE_LOOK)
            }
            Some(probe) => {
                let waited = now.since(probe.since);
                self.look_at_probe(now + PROBE_LOOK)?;
                if self.probe.is_some() && waited > PROBE_MAX {
                    return Err(self.lost(format!(
                        "it does not answer within {} s",
                        PROBE_MAX.as_secs()
                    )));
                }
                Ok(())
            }
        }
    }

    /// Asks a worker that was just reset, and waits for the answer, at most until `until`.
    pub(super) fn first_probe(&mut self, until: Time) -> Result<(), Lost> {
        self.begin_probe();
        self.look_at_probe(until.min(clock::now() + PROBE_MAX))?;
        match self.probe.take() {
            None => Ok(()),
            Some(_) => Err(self.lost("it takes connections but does not answer")),
        }
    }

    fn begin_probe(&mut self) {
        let request = self.head("GET", READY_PATH, "");
        self.probe = Some(Probe {
            exchange: Exchange::new(request, PROBE_BYTES_MAX),
            since: clock::now(),
            again: false,
        });
    }

    /// Looks for the answer to the probe, at most until `until`.
    fn look_at_probe(&mut self, until: Time) -> Result<(), Lost> {
        while let Some(mut probe) = self.probe.take() {
            match self.link.drive(&mut probe.exchange, until) {
                Step::Pending => {
                    self.probe = Some(probe);
                    return Ok(());
                }
                Step::Answered(response) => return self.judge_probe(&response),
                Step::Broken(why) | Step::Nonsense(why) if probe.again => {
                    return Err(self.lost(why));
                }
                Step::Broken(_) | Step::Nonsense(_) => {
                    probe.again = true;
                    probe.exchange.rewind();
                    self.probe = Some(probe);
                }
            }
        }
        Ok(())
    }

    fn judge_probe(&mut self, response: &Response) -> Result<(), Lost> {
        self.probe_due = clock::now() + PROBE_EVERY;
        match response.status {
            // It has no such route.
            200..300 | 404 | 405 | 501 => Ok(()),
            _ => Err(self.lost(format!("it is not ready: {}", detail(response)))),
        }
    }
}

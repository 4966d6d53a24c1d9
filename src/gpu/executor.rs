//! What runs a batch. One executor per GPU, owned by its GPU thread.
//!
//! An executor has two halves: one may be staged while the other runs. The order of calls is
//! `stage(a) launch(a) [stage(b)] wait(a)… launch(b) …`; `wait` is called until it stops saying [`Outcome::Pending`].
//! Where results take their time to come back after the function is through with them, `wait` may say [`Outcome::Ended`]:
//! then `launch(b)` may come before `collect()`, which fetches the results of `a`.
//! No call may block past the time it is given, `stage`, `launch` and `check` not for longer than a copy takes. One that
//! does anyway costs its GPU, nobody else: the watchdog takes the batch away from it.

use std::time::Duration;

use crate::clock::Time;
use crate::ticket::{Input, Output};

/// How a message begins that is about what the batch function returned, not about the inputs it was given. What it raised
/// begins with the exception's name.
pub const ABOUT_OUTPUTS: &str = "the batch function";

/// One of an executor's two staging buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// The first.
    A,
    /// The second.
    B,
}

impl Half {
    /// Both halves.
    pub const ALL: [Half; 2] = [Half::A, Half::B];

    /// The other one.
    pub const fn other(self) -> Half {
        match self {
            Half::A => Half::B,
            Half::B => Half::A,
        }
    }

    /// 0 or 1.
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// The device, process or worker behind an executor is gone or can't be trusted any more; it takes a reset to use it
/// again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Lost(pub String);

/// How a batch stands or ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It still runs.
    Pending,
    /// The function is through with it, and the device free for the other half. [`Executor::collect`] has the results;
    /// the function can't have raised.
    Ended,
    /// It ended: result i belongs to input i. `Err` names an input that the function rejects, in its own words.
    Done(Vec<Result<Output, String>>),
    /// The batch function raised, or returned something that is not one string per input; the device is fine.
    Raised(String),
    /// The device is gone, and the batch with it.
    Lost(Lost),
    /// The batch did not run: somebody else's is in the way. The device is fine, unless the next [`Executor::check`] says
    /// otherwise, and worth another try after this time.
    Busy(Duration),
}

/// Makes a GPU's executor on that GPU's thread, which it never leaves: what it holds may be bound to the thread.
pub type MakeExecutor = Box<dyn FnOnce() -> Box<dyn Executor> + Send>;

/// See the module's text.
pub trait Executor {
    /// Copies `inputs` into `half`, which does not run.
    ///
    /// # Errors
    /// [`Lost`] if the device failed.
    fn stage(&mut self, half: Half, inputs: &[Input]) -> Result<(), Lost>;

    /// Starts what was staged in `half`. The other half does not run.
    ///
    /// # Errors
    /// [`Lost`] if the device failed; the batch did not run.
    fn launch(&mut self, half: Half) -> Result<(), Lost>;

    /// Whether a launched batch may come back [`Outcome::Busy`]: then only its return tells that it ran.
    fn may_be_busy(&self) -> bool {
        false
    }

    /// Waits until the running batch ends, at most until `until` (which may have passed: then it only looks).
    fn wait(&mut self, until: Time) -> Outcome;

    /// The results of the batch of which `wait` said that it had [`Outcome::Ended`], result i for input i. Asked for once,
    /// before the other half's batch is waited for.
    ///
    /// # Errors
    /// [`Lost`] if the device failed, or the results did not come by `until`.
    fn collect(&mut self, until: Time) -> Result<Vec<Result<Output, String>>, Lost> {
        let _ = until;
        Err(Lost("it has no results to collect".to_owned()))
    }

    /// Whether the idle device is still there. Called at least every 100 ms while idle.
    ///
    /// # Errors
    /// [`Lost`] if it is not.
    fn check(&mut self) -> Result<(), Lost>;

    /// Brings the device to a state in which it can run batches, from any other; whatever ran or was staged is gone.
    /// Also the first call of all.
    ///
    /// # Errors
    /// [`Lost`] if it can't be done by `until`; it is tried again later.
    fn reset(&mut self, until: Time) -> Result<(), Lost>;
}

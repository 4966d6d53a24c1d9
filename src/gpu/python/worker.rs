//! A worker as the GPU thread has it in hand: process and link together, and what it was given to do.

use std::os::fd::AsRawFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::frame::{self, Extras, Frame};
use super::link::{KEPT_BYTES, Link};
use super::process::Process;
use crate::clock::{self, Time};
use crate::config::PythonConfig;
use crate::gpu::executor::{Half, Lost};
use crate::ticket::Input;

/// What a worker runs.
const SOURCE: &str = concat!(include_str!("signals.py"), include_str!("worker.py"));

/// So often is a dead worker's output read, 64 KiB at a time.
const LAST_READS_MAX: usize = 16;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Worker {
    gpu: usize,
    process: Process,
    /// Whether it has said anything yet: then it is a Python that works.
    has_spoken: bool,
    /// Orders and batches that run at once; results.
    link: Link,
    /// Batches that are staged ahead.
    ahead: Link,
    /// The number of the batch staged in each half.
    staged: [u32; 2],
    /// The frame of a batch that was staged while nothing ran, and its number: it goes when it is launched.
    at_hand: (Vec<u8>, u32),
    /// The number of the batch that runs.
    running: Option<u32>,
    /// The number of one that ended before, and of which the results are still to come.
    ended: Option<u32>,
    batches: u32,
    /// What its function takes beside the inputs.
    takes: Extras,
}

/// What a poll found.
#[derive(Debug, Default)]
struct Ready {
    link: bool,
    stdout: bool,
    stderr: bool,
    ended: bool,
}

impl Worker {
    /// Starts a worker and hands it its source. Outputs longer than `output_max` bytes come cut, but longer than that.
    ///
    /// # Errors
    /// [`Lost`] if there is no such Python, or the system has nothing left.
    pub(super) fn start(
        config: &PythonConfig,
        gpu: usize,
        output_max: usize,
    ) -> Result<Worker, Lost> {
        let pair = || {
            Link::pair().map_err(|error| Lost(format!("can't connect a worker process: {error}")))
        };
        let ((mut link, first), (ahead, second)) = (pair()?, pair()?);
        let descriptor = second.as_raw_fd().unsigned_abs();
        let process = Process::start(config, gpu, first, second).map_err(|error| {
            let bin = config.bin.display();
            Lost(format!(
                "can't run {bin}: {error}; name the Python to use with --python-bin"
            ))
        })?;
        frame::source(link.outbox(), SOURCE);
        frame::terms(link.outbox(), descriptor, output_max);
        link.flush();
        Ok(Worker {
            gpu,
            process,
            has_spoken: false,
            link,
            ahead,
            staged: [0; 2],
            at_hand: (Vec::new(), 0),
            running: None,
            ended: None,
            batches: 0,
            takes: Extras::default(),
        })
    }

    /// It is ready, and its function takes these beside the inputs.
    pub(super) fn ready(&mut self, takes: Extras) {
        self.takes = takes;
        // Most of what it ever starts it has started by now.
        self.process.note_hidden();
    }

    /// Its process id.
    pub(super) fn id(&self) -> i32 {
        self.process.id()
    }

    /// The last line that it printed.
    pub(super) fn last_words(&self) -> &str {
        let (out, err) = (self.process.stdout.last(), self.process.stderr.last());
        if err.is_empty() { out } else { err }
    }

    /// Puts `inputs` into its hands. While nothing runs they stay here until [`Worker::launch`]: then they are the order to
    /// run them as well.
    pub(super) fn stage(&mut self, half: Half, inputs: &[Input]) {
        self.batches = self.batches.wrapping_add(1);
        let number = self.batches;
        self.staged[half.index()] = number;
        if self.running.is_some() {
            frame::batch(self.ahead.outbox(), half, number, inputs, self.takes);
            self.ahead.flush();
            return;
        }
        self.at_hand.0.clear();
        frame::batch(&mut self.at_hand.0, half, number, inputs, self.takes);
        self.at_hand.1 = number;
    }

    /// Has it run what is staged in `half`.
    pub(super) fn launch(&mut self, half: Half) {
        assert!(self.running.is_none(), "a GPU runs one batch at a time");
        let number = self.staged[half.index()];
        self.running = Some(number);
        if self.at_hand.1 == number {
            self.link.outbox().append(&mut self.at_hand.0);
            self.at_hand.0.shrink_to(KEPT_BYTES);
        } else {
            frame::go(self.link.outbox(), half, number);
        }
        self.link.flush();
    }

    /// Whether the batch with this number is the one that runs; then it runs no more, and its results are still to come.
    pub(super) fn ended(&mut self, number: u32) -> bool {
        self.ended = Some(number);
        self.finished(number)
    }

    /// Whether the batch with this number is the one that runs; then it runs no more.
    pub(super) fn finished(&mut self, number: u32) -> bool {
        self.running.take() == Some(number)
    }

    /// Whether the batch with this number is the one that ended and of which the results were still to come.
    pub(super) fn collected(&mut self, number: u32) -> bool {
        self.ended.take() == Some(number)
    }

    /// Looks whether it is still there, unless a batch runs: then whoever waits for that will see.
    ///
    /// # Errors
    /// [`Lost`] if it is dead, in words.
    pub(super) fn look(&mut self) -> Result<(), Lost> {
        if self.running.is_some() {
            Ok(())
        } else {
            self.turn(Duration::ZERO)
        }
    }

    /// Waits for its next frame until `until`.
    ///
    /// # Errors
    /// [`Lost`] if it died or can't be trusted any more.
    pub(super) fn next(&mut self, until: Time) -> Result<Option<Frame>, Lost> {
        loop {
            if let Some(frame) = self.frame()? {
                return Ok(Some(frame));
            }
            let left = until.since(clock::now());
            let dead = self.turn(left);
            // A result that it sent before it died counts.
            let frame = self.frame()?;
            if frame.is_none() {
                dead?;
            }
            if frame.is_some() || left.is_zero() {
                return Ok(frame);
            }
        }
    }

    fn frame(&mut self) -> Result<Option<Frame>, Lost> {
        let frame = self.link.next();
        self.has_spoken |= matches!(frame, Ok(Some(_)));
        frame.map_err(|malformed| Lost(malformed.to_string()))
    }

    /// Waits until something happens, at most `left`, and deals with it.
    fn turn(&mut self, left: Duration) -> Result<(), Lost> {
        self.link.flush();
        self.ahead.flush();
        let ready = self.poll(left);
        let closed = ready.link && self.link.receive().is_err();
        if ready.stdout || ready.stderr {
            self.pass_on(&ready);
        }
        if closed || ready.ended && !ready.link {
            return Err(self.dead());
        }
        Ok(())
    }

    fn poll(&self, left: Duration) -> Ready {
        let process = &self.process;
        let mut for_link = PollFlags::IN;
        for_link.set(PollFlags::OUT, self.link.is_sending());
        let mut fds = vec![PollFd::new(&self.link, for_link)];
        let others = [process.stdout.fd(), process.stderr.fd(), process.pidfd()];
        for fd in others.iter().flatten() {
            fds.push(PollFd::from_borrowed_fd(*fd, PollFlags::IN));
        }
        // Only while there is something to send: nothing is ever said there.
        if self.ahead.is_sending() {
            fds.push(PollFd::new(&self.ahead, PollFlags::OUT));
        }
        // A span too long for the kernel is for ever.
        let left = Timespec::try_from(left).ok();
        if poll(&mut fds, left.as_ref()).is_err() {
            // Interrupted: the caller looks again.
            return Ready::default();
        }
        let happened: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        let readable =
            |flags: PollFlags| flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR);
        let mut rest = happened[1..].iter().map(|flags| readable(*flags));
        let mut next = |fd: &Option<_>| fd.is_some() && rest.next().unwrap_or(false);
        Ready {
            link: readable(happened[0]),
            stdout: next(&others[0]),
            stderr: next(&others[1]),
            ended: next(&others[2]),
        }
    }

    fn pass_on(&mut self, ready: &Ready) {
        let gpu = self.gpu;
        let tell = |line: &str| log::info!(target: "funicular::python", "gpu {gpu} | {line}");
        if ready.stdout {
            self.process.stdout.read(tell);
        }
        if ready.stderr {
            self.process.stderr.read(tell);
        }
    }

    /// Its death in words, after the last that it had to say.
    fn dead(&mut self) -> Lost {
        // Not without end: what it has started may live on and print.
        for _ in 0..LAST_READS_MAX {
            let ready = self.poll(Duration::ZERO);
            if !ready.stdout && !ready.stderr {
                break;
            }
            self.pass_on(&ready);
        }
        Lost(self.process.epitaph(self.has_spoken))
    }

    /// Kills it. Does not wait.
    pub(super) fn kill(&mut self) {
        self.process.kill();
    }

    /// Waits for its end until `until`; whether it has ended.
    pub(super) fn wait_ended(&mut self, until: Time) -> bool {
        self.process.wait_ended(until)
    }
}

//! The engine: threads that keep a schedule against a server, whatever the server does.
//!
//! ```text
//!  schedule (fixed) ──► perf-0 │ perf-1 │ …   one thread each: epoll, its share of schedule and connections
//!                          │       │          every second: an IntervalRecord; at the end: a Recorder
//!                          └───┬───┘
//!                         the caller's thread: merges, shows progress, scrapes the server
//! ```
//!
//! Threads share nothing while they run. Request n of the schedule belongs to thread n mod threads.

mod answers;
mod connection;
mod worker;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::clock::{self, MILLISECOND};
use crate::record::{IntervalRecord, Recorder, Window};
use crate::traffic::{Expect, Request, RequestError, RequestWriter, Traffic};

/// A server that refuses connections is asked so often, about three seconds long: it may have been started a moment ago. Counted
/// in looks, because on a machine that stands still time passes in which no server can start.
const SERVER_LOOKS: u32 = 60;
/// Pause between two looks.
const SERVER_LOOK: Duration = Duration::from_millis(50);
/// File descriptors beside connections: pollers, files, the admin port, a server's pipes.
pub const DESCRIPTORS_BESIDE: u64 = 64;
/// Between the moment when all threads are ready and the first request: time to pass the word on.
const HEAD_START_NS: u64 = 20 * MILLISECOND;

/// Who decides when a request leaves.
#[derive(Clone, Debug)]
pub enum Load {
    /// The schedule: nanoseconds after the start, ascending.
    Open(Arc<Vec<u64>>),
    /// The callers: as many as there are connections, each sending `think_ns` after its last answer.
    Closed {
        /// Think time.
        think_ns: u64,
    },
}

/// A run, fully decided.
#[derive(Clone, Debug)]
pub struct Job {
    /// Whom to drive.
    pub target: SocketAddr,
    /// How requests look.
    pub request: Request,
    /// What is in them.
    pub traffic: Traffic,
    /// How answers are checked.
    pub expect: Expect,
    /// When they leave.
    pub load: Load,
    /// Connections at most, over all threads.
    pub connections: usize,
    /// Generator threads; never more than connections.
    pub threads: usize,
    /// Nanoseconds after which the generator gives up on a request, counted from when it should have left.
    pub timeout_ns: u64,
    /// Warm-up and measured part.
    pub window: Window,
    /// Keep every sample.
    pub dump: bool,
}

/// The run could not be done.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The server does not answer the door.
    #[error(
        "cannot connect to {target}: {reason}; is the server running? start one with `funicular`"
    )]
    Connect {
        /// The server.
        target: SocketAddr,
        /// Why.
        reason: std::io::Error,
    },
    /// The system refused something that a generator thread needs.
    #[error("a generator thread could not be set up")]
    Setup(#[source] std::io::Error),
    /// The requests can't be written.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// More connections than file descriptors.
    #[error(
        "{wanted} connections need more file descriptors than the limit of {limit} allows: raise `ulimit -n`"
    )]
    Descriptors {
        /// Connections asked for.
        wanted: usize,
        /// The limit on descriptors.
        limit: u64,
    },
    /// A generator thread ended early.
    #[error("a generator thread panicked")]
    Panicked,
}

/// Sees the run while it goes on, on the thread that called [`run`].
pub trait Observer {
    /// All threads are ready; the schedule starts at this reading of the clock.
    fn started(&mut self, start: u64);
    /// About ten times a second.
    fn tick(&mut self);
    /// A second is over on all threads. Seconds come in order, none is left out.
    fn second(&mut self, interval: &IntervalRecord);
}

/// What threads tell the caller's thread.
enum Message {
    Ready,
    Interval(usize, Box<IntervalRecord>),
    Finished(usize, Box<Recorder>),
    Failed(EngineError),
}

/// Makes sure that there are descriptors for `job` and that its server answers the door; one that refuses is given some three
/// seconds to start. For those who want to know before they make files and open logs: [`run`] looks by itself.
///
/// # Errors
/// If the server can't be reached, or the system refuses descriptors.
pub fn prepare(job: &Job, stop: &AtomicBool) -> Result<(), EngineError> {
    allow_descriptors(job.connections)?;
    let mut looks_left = SERVER_LOOKS;
    loop {
        looks_left -= 1;
        let probe = std::net::TcpStream::connect_timeout(&job.target, Duration::from_secs(5));
        let reason = match probe {
            Ok(_) => return Ok(()),
            Err(reason) => reason,
        };
        let starting = reason.kind() == std::io::ErrorKind::ConnectionRefused;
        if !starting || looks_left == 0 || stop.load(Ordering::Relaxed) {
            return Err(EngineError::Connect {
                target: job.target,
                reason,
            });
        }
        // Nobody unparks this thread: a server that comes up tells nobody.
        std::thread::park_timeout(SERVER_LOOK);
    }
}

/// Runs `job`; `stop` ends it early, keeping what was measured.
///
/// # Errors
/// If the server can't be reached, or the system refuses threads, descriptors or pollers.
pub fn run(
    job: &Job,
    stop: &Arc<AtomicBool>,
    observer: &mut dyn Observer,
) -> Result<Recorder, EngineError> {
    prepare(job, stop)?;
    let (sender, messages) = mpsc::channel();
    let mut threads = Threads::default();
    for index in 0..job.threads {
        threads.spawn(index, job, stop, &sender)?;
    }
    drop(sender);
    let outcome = conduct(job, &messages, &threads, observer);
    if outcome.is_err() {
        stop.store(true, Ordering::Relaxed);
    }
    threads.join()?;
    outcome
}

#[derive(Default)]
struct Threads {
    handles: Vec<JoinHandle<()>>,
    starts: Vec<Sender<u64>>,
}

impl Threads {
    fn spawn(
        &mut self,
        index: usize,
        job: &Job,
        stop: &Arc<AtomicBool>,
        messages: &Sender<Message>,
    ) -> Result<(), EngineError> {
        let (start_sender, start) = mpsc::channel();
        let writer = RequestWriter::new(&job.request, &job.traffic)?;
        let (job, stop, messages) = (job.clone(), Arc::clone(stop), messages.clone());
        let body = move || worker::main(index, &job, writer, &stop, &start, &messages);
        let handle = std::thread::Builder::new()
            .name(format!("perf-{index}"))
            .spawn(body);
        self.handles.push(handle.map_err(EngineError::Setup)?);
        self.starts.push(start_sender);
        Ok(())
    }

    fn start(&self) -> u64 {
        let start = clock::now() + HEAD_START_NS;
        for sender in &self.starts {
            // A thread that is gone has sent its reason, which is read next.
            let _ = sender.send(start);
        }
        start
    }

    fn join(self) -> Result<(), EngineError> {
        // A thread that waits for its start sees the channel close.
        drop(self.starts);
        let panicked = self
            .handles
            .into_iter()
            .map(JoinHandle::join)
            .filter(Result::is_err)
            .count();
        if panicked == 0 {
            Ok(())
        } else {
            Err(EngineError::Panicked)
        }
    }
}

/// Starts the threads together and gathers what they report.
fn conduct(
    job: &Job,
    messages: &Receiver<Message>,
    threads: &Threads,
    observer: &mut dyn Observer,
) -> Result<Recorder, EngineError> {
    let mut total = Recorder::new(job.traffic.mix.names().len(), job.window, job.dump);
    let mut seconds = Seconds::new(job.threads);
    let (mut ready, mut finished) = (0, 0);
    while finished < job.threads {
        match messages.recv_timeout(Duration::from_millis(100)) {
            Ok(Message::Ready) => {
                ready += 1;
                if ready == job.threads {
                    observer.started(threads.start());
                }
            }
            Ok(Message::Interval(thread, interval)) => seconds.add(thread, *interval),
            Ok(Message::Finished(thread, recorder)) => {
                total.merge(*recorder);
                seconds.finished(thread);
                finished += 1;
            }
            Ok(Message::Failed(error)) => return Err(error),
            Err(RecvTimeoutError::Timeout) => observer.tick(),
            Err(RecvTimeoutError::Disconnected) => return Err(EngineError::Panicked),
        }
        while let Some(interval) = seconds.next_complete() {
            observer.second(&interval);
        }
    }
    Ok(total)
}

/// Seconds that some threads have handed over and others have not.
struct Seconds {
    /// Per thread, the first second that it has not handed over; all the rest is behind it once it has finished.
    reached: Vec<u32>,
    next: u32,
    waiting: BTreeMap<u32, IntervalRecord>,
}

impl Seconds {
    fn new(threads: usize) -> Seconds {
        Seconds {
            reached: vec![0; threads],
            next: 0,
            waiting: BTreeMap::new(),
        }
    }

    fn add(&mut self, thread: usize, interval: IntervalRecord) {
        self.reached[thread] = interval.second + 1;
        match self.waiting.get_mut(&interval.second) {
            Some(merged) => merged.merge(&interval),
            None => {
                self.waiting.insert(interval.second, interval);
            }
        }
    }

    fn finished(&mut self, thread: usize) {
        self.reached[thread] = u32::MAX;
    }

    fn next_complete(&mut self) -> Option<IntervalRecord> {
        if self.reached.iter().any(|&reached| reached <= self.next) {
            return None;
        }
        let interval = self.waiting.remove(&self.next)?;
        self.next += 1;
        Some(interval)
    }
}

/// Raises the soft limit on descriptors as far as is needed and allowed.
fn allow_descriptors(connections: usize) -> Result<(), EngineError> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let needed = connections as u64 + DESCRIPTORS_BESIDE;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    if limit.maximum.is_some_and(|maximum| maximum < needed) {
        return Err(EngineError::Descriptors {
            wanted: connections,
            limit: limit.maximum.unwrap_or_default(),
        });
    }
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(needed),
            maximum: limit.maximum,
        },
    )
    .map_err(|errno| EngineError::Setup(errno.into()))
}

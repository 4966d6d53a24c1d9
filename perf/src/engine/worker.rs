//! One generator thread: its share of the schedule over its share of the connections.
//!
//! The loop is: send what is due, give up on what takes too long, sleep until the next thing is due or a socket has news. A
//! request that finds no free connection waits in line, and its latency goes on counting. Connections are used in turn,
//! the one longest idle first, so that all of them are kept busy.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use super::connection::{Connection, InFlight, State, Written};
use super::{EngineError, Job, Load, Message};
use crate::clock::{self, MILLISECOND, SECOND};
use crate::record::{Outcome, Recorder, Sample};
use crate::traffic::RequestWriter;

/// Connects in progress at a time before the start: less than the backlog of any server.
const CONNECTING_MAX: usize = 64;
/// Connections that may fail before the start in a row until the thread goes on with what it has.
const CONNECT_FAILURES_MAX: usize = 16;
/// How often requests are looked through for time-outs.
const SWEEP_NS: u64 = 10 * MILLISECOND;
/// After the last answer, how long idle connections are watched for answers that nobody asked for.
const SETTLE_NS: u64 = 50 * MILLISECOND;
/// A closed-loop caller that could not connect waits this long, rather than spin.
const RETRY_NS: u64 = 10 * MILLISECOND;
/// One read; more than nearly every answer.
const READ_BYTES: usize = 64 * 1024;
const EVENTS_MAX: usize = 1024;

/// The body of a generator thread.
pub(super) fn main(
    index: usize,
    job: &Job,
    writer: RequestWriter,
    stop: &AtomicBool,
    start: &Receiver<u64>,
    messages: &Sender<Message>,
) {
    // Without this the kernel may wake us 50 µs late. Should it refuse, the lateness shows in the report.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let mut worker = match Worker::new(index, job, writer) {
        Ok(worker) => worker,
        Err(error) => {
            let _ = messages.send(Message::Failed(EngineError::Setup(error.into())));
            return;
        }
    };
    if job.request.keep_alive {
        worker.open_all();
    }
    let _ = messages.send(Message::Ready);
    let Ok(start) = start.recv() else { return };
    worker.run(start, stop, messages);
    let _ = messages.send(Message::Finished(index, Box::new(worker.recorder)));
}

/// What a timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// A closed-loop caller has thought enough.
    Caller,
    /// The caller of this connection's request hangs up, unless it has got its answer.
    HangUp { connection: u32, generation: u32 },
}

/// The state of a generator thread.
pub(super) struct Worker<'j> {
    pub job: &'j Job,
    index: usize,
    poller: OwnedFd,
    pub connections: Vec<Connection>,
    /// Connections without a request, longest idle first; some may be closed.
    free: VecDeque<u32>,
    /// Requests that are due and have no connection yet.
    line: VecDeque<InFlight>,
    timers: BinaryHeap<Reverse<(u64, Timer)>>,
    in_flight: usize,
    /// The next request of the schedule, or the next number of a closed loop.
    next: u64,
    /// Reading of the clock at which the schedule's time 0 lies.
    start: u64,
    writer: RequestWriter,
    pub recorder: Recorder,
    /// Set by a stop from outside: nothing new leaves.
    stopped: bool,
    events: Vec<epoll::Event>,
    pub read_buffer: Vec<u8>,
    pub text: String,
}

impl<'j> Worker<'j> {
    fn new(index: usize, job: &'j Job, writer: RequestWriter) -> Result<Worker<'j>, Errno> {
        let share =
            job.connections / job.threads + usize::from(index < job.connections % job.threads);
        let share_u32 = u32::try_from(share).map_err(|_| Errno::MFILE)?;
        Ok(Worker {
            job,
            index,
            poller: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            connections: (0..share).map(|_| Connection::default()).collect(),
            free: (0..share_u32).collect(),
            line: VecDeque::new(),
            timers: BinaryHeap::new(),
            in_flight: 0,
            next: index as u64,
            start: 0,
            writer,
            recorder: Recorder::new(job.traffic.mix.names().len(), job.window, job.dump),
            stopped: false,
            events: Vec::with_capacity(EVENTS_MAX),
            read_buffer: vec![0; READ_BYTES],
            text: String::new(),
        })
    }

    /// Opens the connections before the start. What can't be opened now is tried again when it is needed.
    fn open_all(&mut self) {
        let deadline = clock::now() + 30 * SECOND;
        let (mut opened, mut failures) = (0, 0);
        while clock::now() < deadline && failures < CONNECT_FAILURES_MAX {
            let mut connecting = self
                .connections
                .iter()
                .filter(|c| c.state == State::Connecting)
                .count();
            while opened < self.connections.len() && connecting < CONNECTING_MAX {
                match self.connections[opened].open(&self.poller, opened as u32, self.job.target) {
                    Ok(()) => connecting += 1,
                    Err(_) => failures += 1,
                }
                opened += 1;
            }
            if opened == self.connections.len() && connecting == 0 {
                return;
            }
            self.handle_events(10 * MILLISECOND);
        }
    }

    fn run(&mut self, start: u64, stop: &AtomicBool, messages: &Sender<Message>) {
        self.start = start;
        let cpu_before = thread_cpu_seconds();
        if let Load::Closed { .. } = self.job.load {
            self.timers
                .extend(self.free.iter().map(|_| Reverse((start, Timer::Caller))));
        }
        let mut next_sweep = start;
        loop {
            let now = clock::now();
            if stop.load(Ordering::Relaxed) {
                self.stop(now);
            }
            self.send_due(now);
            self.fire_timers(now);
            if now >= next_sweep {
                self.give_up(now);
                next_sweep = now + SWEEP_NS;
            }
            self.hand_over_seconds(now, messages);
            self.assign();
            if self.is_finished(now) {
                break;
            }
            let until = self.next_wake(next_sweep);
            self.handle_events(until.saturating_sub(clock::now()));
        }
        self.settle();
        let wall = clock::seconds(clock::now().saturating_sub(start)).max(f64::MIN_POSITIVE);
        self.recorder.cpu_seconds = thread_cpu_seconds() - cpu_before;
        self.recorder.busy_fraction_max = self.recorder.cpu_seconds / wall;
        let last = self.recorder.take_interval();
        let _ = messages.send(Message::Interval(self.index, Box::new(last)));
    }

    /// Puts all requests of the schedule that are due in line.
    fn send_due(&mut self, now: u64) {
        let Load::Open(schedule) = &self.job.load else {
            return;
        };
        if self.stopped {
            return;
        }
        while let Some(&offset) = schedule.get(self.next as usize) {
            let due = self.start + offset;
            if due > now {
                break;
            }
            self.enqueue(due, now);
        }
        self.assign();
    }

    /// Puts the next request in line.
    fn enqueue(&mut self, due: u64, now: u64) {
        let number = self.next;
        self.next += self.job.threads as u64;
        self.recorder.noticed(due - self.start, now - self.start);
        let plan = self.job.traffic.plan(number);
        let waiting_since = (self.free.len() <= self.line.len()).then_some(now);
        let hangup_after_ns = plan.hangup_after_ns;
        self.line.push_back(InFlight {
            number,
            tier: plan.tier,
            due,
            written: None,
            hangup_after_ns,
            waiting_since,
        });
    }

    /// Gives free connections to the requests in line.
    fn assign(&mut self) {
        while !self.line.is_empty() {
            let Some(id) = self.free.pop_front() else {
                return;
            };
            let Some(request) = self.line.pop_front() else {
                return;
            };
            self.begin(id, request);
        }
    }

    fn begin(&mut self, id: u32, request: InFlight) {
        self.in_flight += 1;
        let connection = &mut self.connections[id as usize];
        connection.generation = connection.generation.wrapping_add(1);
        connection.request = Some(request);
        if connection.state == State::Open && connection.was_left() {
            connection.close();
        }
        connection.clear();
        self.writer.write(
            &self.job.traffic,
            request.number,
            request.tier,
            &mut connection.outbox,
        );
        if connection.state == State::Closed
            && let Err(error) = connection.open(&self.poller, id, self.job.target)
        {
            return self.connect_failed(id, error);
        }
        if connection.state == State::Open {
            self.write(id);
        }
    }

    /// Writes what is left of the request; its first call is the moment of the write.
    pub fn write(&mut self, id: u32) {
        let connection = &mut self.connections[id as usize];
        let Some(request) = &mut connection.request else {
            return;
        };
        if request.written.is_none() {
            let now = clock::now();
            request.written = Some(now);
            let wait = request.waiting_since.map(|since| now - since);
            self.recorder.written(request.due - self.start, wait);
            if let Some(after) = request.hangup_after_ns {
                let generation = connection.generation;
                self.timers.push(Reverse((
                    now + after,
                    Timer::HangUp {
                        connection: id,
                        generation,
                    },
                )));
            }
        }
        if connection.flush() == Written::Broken {
            // The server may have answered before it closed; the read that follows tells.
            self.read(id, true);
        }
    }

    fn fire_timers(&mut self, now: u64) {
        while let Some(&Reverse((at, timer))) = self.timers.peek() {
            if at > now {
                return;
            }
            self.timers.pop();
            match timer {
                Timer::Caller => {
                    if now < self.end_of_schedule() {
                        self.enqueue(at, now);
                        self.assign();
                    }
                }
                Timer::HangUp {
                    connection,
                    generation,
                } => {
                    let concerned = &self.connections[connection as usize];
                    if concerned.generation == generation && concerned.request.is_some() {
                        self.connections[connection as usize].close();
                        self.end(connection, Outcome::HangUp, now);
                    }
                }
            }
        }
    }

    /// Ends requests whose time is up, sent or not.
    fn give_up(&mut self, now: u64) {
        let timeout = self.job.timeout_ns;
        for id in 0..self.connections.len() {
            let connection = &mut self.connections[id];
            if connection
                .request
                .is_some_and(|request| request.due + timeout <= now)
            {
                connection.close();
                self.end(id as u32, Outcome::Timeout, now);
            }
        }
        while self
            .line
            .front()
            .is_some_and(|request| request.due + timeout <= now)
        {
            let Some(request) = self.line.pop_front() else {
                return;
            };
            self.recorder
                .ended(self.sample(&request, Outcome::Timeout, now));
            self.caller_goes_on(Outcome::Timeout, now);
        }
    }

    /// Ends the request of a connection and puts the connection among the free ones.
    pub fn end(&mut self, id: u32, outcome: Outcome, now: u64) {
        let connection = &mut self.connections[id as usize];
        let Some(request) = connection.request.take() else {
            return;
        };
        if !self.job.request.keep_alive {
            connection.close();
        }
        self.in_flight -= 1;
        self.free.push_back(id);
        self.recorder.ended(self.sample(&request, outcome, now));
        self.caller_goes_on(outcome, now);
    }

    fn sample(&self, request: &InFlight, outcome: Outcome, now: u64) -> Sample {
        Sample {
            number: request.number,
            tier: request.tier,
            outcome,
            due_ns: request.due - self.start,
            written_ns: request.written.map(|written| written - self.start),
            done_ns: now - self.start,
        }
    }

    /// In a closed loop, the caller that got its answer thinks and asks again.
    fn caller_goes_on(&mut self, outcome: Outcome, now: u64) {
        let Load::Closed { think_ns } = self.job.load else {
            return;
        };
        if self.stopped {
            return;
        }
        let pause = if outcome == Outcome::Connect {
            think_ns.max(RETRY_NS)
        } else {
            think_ns
        };
        if pause > 0 {
            self.timers.push(Reverse((now + pause, Timer::Caller)));
        } else if now < self.end_of_schedule() {
            self.enqueue(now, now);
        }
    }

    fn handle_events(&mut self, wait_ns: u64) {
        let timeout = Timespec {
            tv_sec: (wait_ns / SECOND).cast_signed(),
            tv_nsec: (wait_ns % SECOND).cast_signed(),
        };
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        // An interrupted wait is a short one.
        let _ = epoll::wait(&self.poller, spare_capacity(&mut events), Some(&timeout));
        for event in &events {
            let token = event.data.u64();
            let (id, epoch) = (token as u32, (token >> 32) as u32);
            // An event of a socket that was closed earlier in this batch of events says nothing about its successor.
            if self.connections[id as usize].epoch == epoch {
                self.event(id, event.flags);
                self.assign();
            }
        }
        self.events = events;
    }

    fn hand_over_seconds(&mut self, now: u64, messages: &Sender<Message>) {
        let second = self.job.window.second(now.saturating_sub(self.start));
        while self.recorder.second() < second {
            let interval = self.recorder.take_interval();
            let _ = messages.send(Message::Interval(self.index, Box::new(interval)));
        }
    }

    fn end_of_schedule(&self) -> u64 {
        self.start + self.job.window.to_ns
    }

    /// No new requests from now on; what is in line is dropped.
    fn stop(&mut self, now: u64) {
        if !self.stopped {
            self.recorder.stopped(now.saturating_sub(self.start));
        }
        self.stopped = true;
        self.line.clear();
        self.timers
            .retain(|Reverse((_, timer))| *timer != Timer::Caller);
    }

    fn is_finished(&self, now: u64) -> bool {
        let all_sent = match &self.job.load {
            Load::Open(schedule) => self.next >= schedule.len() as u64,
            Load::Closed { .. } => now >= self.end_of_schedule(),
        };
        (all_sent || self.stopped) && self.line.is_empty() && self.in_flight == 0
    }

    fn next_wake(&self, next_sweep: u64) -> u64 {
        let next_due = match &self.job.load {
            _ if self.stopped => None,
            Load::Open(schedule) => schedule
                .get(self.next as usize)
                .map(|offset| self.start + offset),
            Load::Closed { .. } => Some(self.end_of_schedule()).filter(|&end| end > clock::now()),
        };
        let next_timer = self.timers.peek().map(|&Reverse((at, _))| at);
        let next_second =
            self.start + self.job.window.from_ns + (u64::from(self.recorder.second()) + 1) * SECOND;
        // A stop from outside is noticed at the sweep, too.
        [next_due, next_timer, Some(next_second), Some(next_sweep)]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or_default()
    }

    fn settle(&mut self) {
        let until = clock::now() + SETTLE_NS;
        while clock::now() < until {
            self.handle_events(until.saturating_sub(clock::now()));
        }
    }
}

fn thread_cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

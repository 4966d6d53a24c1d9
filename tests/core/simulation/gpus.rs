//! The world's GPUs: their real cells, their fake devices, and what their threads are about.

use std::time::Duration;

use funicular::batch::Batch;
use funicular::batch::pool::{Activity, BATCH_TIME_MIN};
use funicular::clock::Time;
use funicular::gpu::cell::Cell;
use funicular::gpu::executor::Half;
use funicular::gpu::health::State;
use funicular::gpu::watchdog::Suspicion;
use funicular::ticket::{Input, Ticket};

use super::device::{Device, Run, lost};
use super::failing::Failures;
use super::searching::Trial;
use super::world::World;

/// What a GPU's thread is about.
#[derive(Debug)]
pub enum Thread {
    /// Its GPU is down, and waits for its reset.
    Resting,
    /// Its executor is reset, until then.
    Resetting(Time),
    /// It runs a canary before it serves.
    Trying(Run),
    /// At the collector. It asks its executor whether it is still there at the time given.
    Idle(Time),
    /// It runs a canary although it serves.
    Probing(Run),
    Riding(Ride),
    /// Its device turned a batch away, and is left in peace until the run that was none returns.
    TurnedAway(Run),
    Searching(Box<Trial>),
    /// It has ended: its GPU has left, and the seat is free.
    Ended,
    /// In the middle of a step.
    Acting,
}

/// A batch that runs, and whether the next one has boarded.
#[derive(Debug)]
pub struct Ride {
    pub half: Half,
    pub run: Run,
    pub ahead: bool,
}

/// What a GPU does for the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Down,
    Idle,
    Busy,
}

/// One GPU.
pub struct Gpu {
    pub cell: Cell,
    pub device: Device,
    pub thread: Thread,
    /// The generation of the cell that the thread acts in.
    pub generation: u64,
    /// The half that the next batch is staged into.
    pub half: Half,
    /// Whether the watchdog has failed it while the thread was away.
    pub seized: bool,
    /// Whether it was told to leave.
    pub is_leaving: bool,
    pub suspicion: Suspicion,
    pub failures: Failures,
    /// The mean batch time in seconds, kept by hand.
    pub mean: Option<f64>,
    /// Batches that count in it.
    pub batches: f64,
}

impl Gpu {
    pub fn new(now: Time) -> Gpu {
        Gpu {
            cell: Cell::new(now),
            device: Device::default(),
            thread: Thread::Resting,
            generation: 0,
            half: Half::A,
            seized: false,
            is_leaving: false,
            suspicion: Suspicion::default(),
            failures: Failures::default(),
            mean: None,
            batches: 0.0,
        }
    }

    pub fn phase(&self) -> Phase {
        if self.is_leaving {
            Phase::Down
        } else {
            self.phase_of_thread()
        }
    }

    /// The same of one that may be leaving: it counts for the pool no more, but has something in hand yet.
    pub fn phase_of_thread(&self) -> Phase {
        match self.thread {
            _ if self.seized => Phase::Down,
            Thread::Resting | Thread::Resetting(_) | Thread::Trying(_) | Thread::Ended => {
                Phase::Down
            }
            Thread::Idle(_) => Phase::Idle,
            Thread::Probing(_)
            | Thread::Riding(_)
            | Thread::TurnedAway(_)
            | Thread::Searching(_)
            | Thread::Acting => Phase::Busy,
        }
    }

    pub fn run(&self) -> Option<&Run> {
        match &self.thread {
            Thread::Trying(run) | Thread::Probing(run) | Thread::TurnedAway(run) => Some(run),
            Thread::Riding(ride) => Some(&ride.run),
            Thread::Searching(trial) => Some(&trial.run),
            _ => None,
        }
    }

    pub fn run_mut(&mut self) -> Option<&mut Run> {
        match &mut self.thread {
            Thread::Trying(run) | Thread::Probing(run) | Thread::TurnedAway(run) => Some(run),
            Thread::Riding(ride) => Some(&mut ride.run),
            Thread::Searching(trial) => Some(&mut trial.run),
            _ => None,
        }
    }

    /// When its thread does something by itself.
    pub fn acts_at(&self) -> Time {
        match self.thread {
            Thread::Resting => self.cell.look().0.reset_due(),
            Thread::Resetting(at) | Thread::Idle(at) => at,
            _ => self.run().map_or(Time::MAX, |run| run.returns),
        }
    }

    pub fn measured(&mut self, took: Duration) {
        let took = took.max(BATCH_TIME_MIN).as_secs_f64();
        self.batches = (self.batches + 1.0).min(10.0);
        let before = self.mean.unwrap_or_default();
        self.mean = Some(before + (took - before) / self.batches);
    }

    pub fn canary(&mut self, took: Duration) {
        self.mean = Some(took.max(BATCH_TIME_MIN).as_secs_f64());
        self.batches = 0.0;
    }
}

/// The number by which the shadow knows the ticket of `input`.
pub fn id_in(input: &Input) -> usize {
    let id = input.text.split(' ').next().unwrap_or_default();
    id.parse()
        .expect("an input begins with its ticket's number")
}

/// The number by which the shadow knows `ticket`.
pub fn id_of(ticket: &Ticket) -> usize {
    id_in(&ticket.input)
}

/// The numbers of the tickets of `batch`.
pub fn ids_of(batch: &Batch) -> Vec<usize> {
    batch.tickets.iter().map(|ticket| id_of(ticket)).collect()
}

impl World {
    pub(super) fn any_gpu(&mut self, fits: impl Fn(&Gpu) -> bool) -> Option<usize> {
        let fit: Vec<usize> = (0..self.gpus.len())
            .filter(|&gpu| fits(&self.gpus[gpu]))
            .collect();
        (!fit.is_empty()).then(|| self.random.pick(&fit))
    }

    /// The GPU's health, its activity in the pool and what its thread is about are one.
    pub(super) fn check_gpu(&self, gpu: usize) {
        let it = &self.gpus[gpu];
        let activity = self.rig.scheduler.pool().activity(gpu);
        let state = it.cell.state();
        let one = match it.phase() {
            Phase::Down if it.is_leaving => {
                let has_left = it.seized || matches!(it.thread, Thread::Ended);
                let right = if has_left {
                    State::Gone
                } else {
                    State::Draining
                };
                // One that failed on its way out is seized, and not gone before its thread is back.
                let late = it.seized && state == State::Draining;
                activity == Activity::Down && (state == right || late)
            }
            Phase::Down => activity == Activity::Down && !state.in_service(),
            Phase::Idle => matches!(activity, Activity::Idle(_)) && state == State::Ready,
            Phase::Busy => {
                let no_batch = matches!(it.thread, Thread::Probing(_) | Thread::TurnedAway(_));
                let as_it_runs = if no_batch { State::Ready } else { State::Busy };
                matches!(activity, Activity::Busy(_)) && state == as_it_runs
            }
        };
        assert!(
            one,
            "gpu {gpu} is {state:?}, {activity:?} in the pool, and its thread at {:?}",
            it.thread
        );
    }
}

/// Takes the device of `run` away in the middle of it.
pub fn cut_short(run: &mut Run, now: Time) {
    run.returns = now;
    run.outcome = lost();
}

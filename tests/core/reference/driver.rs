//! Replays arrivals through the real hand-over, doorbell and scheduler on a virtual clock: an event loop over arrivals,
//! ends of batches and the holder's wake-ups.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use funicular::batch::Batch;
use funicular::batch::policy::Policy;
use funicular::batch::pool::Activity;
use funicular::clock::Time;
use funicular::slot::Slot;
use funicular::ticket::{Input, Ticket};
use funicular::tier::Tier;
use funicular::wake::Handler;
use may::sync::Blocker;

use crate::support::rig::{Looks, Rig};

const BATCH_TIME: Duration = Duration::from_millis(100);
const BATCH_MAX: usize = 100;
const HOLD_MAX: Duration = Duration::from_millis(40);
const QUEUE_MAX: usize = 65_536;

/// What a replay measured.
pub struct Outcome {
    requests: usize,
    batches: usize,
    /// Of all but the first tenth of the arrivals, sorted.
    latencies: Vec<Duration>,
}

impl Outcome {
    /// The latency that a share `share` of the requests stay under.
    pub fn quantile_ms(&self, share: f64) -> f64 {
        let rank = (self.latencies.len() as f64 * share) as usize;
        self.latencies[rank.min(self.latencies.len() - 1)].as_secs_f64() * 1e3
    }

    /// Requests in a batch.
    pub fn batch_size_mean(&self) -> f64 {
        self.requests as f64 / self.batches as f64
    }
}

/// Serves `arrivals` (in ms, ascending) on `gpus` GPUs.
pub fn replay(arrivals: &[f64], gpus: usize, patience: f64, looks: Looks) -> Outcome {
    let policy = Policy {
        batch_max: BATCH_MAX,
        hold_max: HOLD_MAX,
        patience,
    };
    let mut replay = Replay::new(
        policy,
        gpus,
        looks,
        Time::from_millis_f64(arrivals[arrivals.len() / 10]),
    );
    let mut arrivals = arrivals
        .iter()
        .map(|&at| Time::from_millis_f64(at))
        .peekable();
    loop {
        replay.launch_what_is_due();
        let arrival = arrivals.peek().copied().unwrap_or(Time::MAX);
        let back = replay.next_back();
        let now = arrival.min(back).min(replay.rig.again());
        if now == Time::MAX {
            return replay.finish();
        }
        replay.now = now;
        if now == back {
            replay.free_one();
        } else if now == arrival {
            arrivals.next();
            replay.arrive();
        }
    }
}

struct Replay {
    rig: Rig,
    now: Time,
    idle: Vec<usize>,
    busy: BinaryHeap<Reverse<(Time, usize)>>,
    input: Input,
    handler: Handler,
    warm_from: Time,
    outcome: Outcome,
}

impl Replay {
    fn new(policy: Policy, gpus: usize, looks: Looks, warm_from: Time) -> Replay {
        let mut rig = Rig::new(policy, gpus, QUEUE_MAX, looks);
        for gpu in 0..gpus {
            rig.scheduler.measured(gpu, BATCH_TIME);
            rig.set_activity(gpu, Activity::Idle(Time::ZERO));
        }
        Replay {
            rig,
            now: Time::ZERO,
            idle: (0..gpus).collect(),
            busy: BinaryHeap::new(),
            input: Input::new("input"),
            handler: Handler::new(Blocker::current(), 0),
            warm_from,
            outcome: Outcome {
                requests: 0,
                batches: 0,
                latencies: Vec::new(),
            },
        }
    }

    fn next_back(&self) -> Time {
        self.busy
            .peek()
            .map_or(Time::MAX, |&Reverse((back, _))| back)
    }

    fn arrive(&mut self) {
        let slot = Arc::new(Slot::new(self.handler.clone()));
        let ticket = Ticket::new(self.input.clone(), Tier::Paid, self.now, Time::MAX, slot);
        self.rig
            .intake
            .offer(Box::new(ticket))
            .expect("the queue holds the whole backlog");
        self.outcome.requests += 1;
    }

    fn free_one(&mut self) {
        if let Some(Reverse((_, gpu))) = self.busy.pop() {
            self.idle.push(gpu);
            self.rig.scheduler.measured(gpu, BATCH_TIME);
            self.rig.set_activity(gpu, Activity::Idle(self.now));
        }
    }

    fn launch_what_is_due(&mut self) {
        while let Some(&gpu) = self.idle.last() {
            if !self.rig.is_due(self.now) {
                return;
            }
            self.rig.drain(|_| {});
            match self.rig.look(gpu, self.now) {
                Ok(batch) => self.launch(gpu, batch),
                Err(hold) => return self.rig.sleep(hold),
            }
        }
        self.rig.leave_token();
    }

    fn launch(&mut self, gpu: usize, batch: Batch) {
        self.idle.pop();
        let back = self.now + BATCH_TIME;
        self.busy.push(Reverse((back, gpu)));
        self.rig.pass_token();
        self.outcome.batches += 1;
        for ticket in batch.tickets {
            if ticket.arrived >= self.warm_from {
                self.outcome.latencies.push(back.since(ticket.arrived));
            }
            ticket.withdraw();
        }
    }

    fn finish(mut self) -> Outcome {
        assert_eq!(self.rig.backlog().total(), 0, "everybody was served");
        self.outcome.latencies.sort_unstable();
        self.outcome
    }
}

//! Callers in numbers: the load generator of `perf/`, run inside the test, and what its callers saw.
//!
//! The scenarios built on it come in two sizes. By default they are small enough for a debug build on a shared machine,
//! and assert what must hold at any speed. With `FUNICULAR_FULL=1` they have the size that they are judged by (100 ms
//! batches of 100 on 4 GPUs), assert the promised latencies too, and print a line of figures each.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use funicular_perf::engine::{self, Observer};
use funicular_perf::options::RunOptions;
use funicular_perf::record::{IntervalRecord, Outcome, Recorder, Sample};
use funicular_perf::traffic::Traffic;
use funicular_perf::units::Span;

use crate::support::server::PATIENT;
use crate::support::traffic::wait_answered;
use crate::support::{BOUND, Server, Until};

/// The answer with a status.
pub const fn status(code: u16) -> Outcome {
    Outcome::Status(code)
}

/// Whether the scenarios run in full size.
pub fn is_full() -> bool {
    std::env::var_os("FUNICULAR_FULL").is_some()
}

/// The size of a scenario.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    gpus: u32,
    /// Tickets in a full batch.
    batch_max: u32,
    batch_ms: u32,
    /// Whether the promised latencies are asserted.
    pub full: bool,
}

impl Scale {
    /// The size that this run is asked for.
    pub fn chosen() -> Scale {
        if is_full() {
            Scale {
                gpus: 4,
                batch_max: 100,
                batch_ms: 100,
                full: true,
            }
        } else {
            Scale {
                gpus: 4,
                batch_max: 10,
                batch_ms: 40,
                full: false,
            }
        }
    }

    /// The size for a scenario that floods the server: small enough that the clients, who share its machine, are not the
    /// bottleneck.
    pub fn for_a_flood() -> Scale {
        let scale = Scale::chosen();
        let (gpus, batch_max) = if scale.full {
            (2, scale.batch_max)
        } else {
            (4, 3)
        };
        Scale {
            gpus,
            batch_max,
            ..scale
        }
    }

    /// The part of capacity at which failures are tried: 70 %, and less where a stall of the machine could be taken
    /// for the server's.
    pub fn usual_load(self) -> f64 {
        self.capacity() * if self.full { 0.7 } else { 0.5 }
    }

    /// A server of this size on which small scenarios shed nobody, whatever the machine does to them: for failures, which
    /// are not to be told from a machine that stands still otherwise.
    pub fn start_patient(self, flags: &[&str]) -> Server {
        let patience: &[&str] = if self.full { &[] } else { &PATIENT };
        self.start(&[patience, flags].concat())
    }

    /// A server of this size, with further flags. `/faults` is open. In full size its deadline is the one that everybody
    /// gets.
    pub fn start(self, flags: &[&str]) -> Server {
        let [gpus, batch_max, batch_ms] =
            [self.gpus, self.batch_max, self.batch_ms].map(|number| number.to_string());
        let mut all = vec![
            "--gpus",
            &gpus,
            "--batch-max",
            &batch_max,
            "--sim-latency-ms",
            &batch_ms,
            "--sim-faults-admin",
        ];
        if self.full {
            all.extend(["--deadline-ms", "auto"]);
        }
        all.extend(flags);
        Server::start(&all)
    }

    /// What its GPUs can do, in requests per second.
    pub fn capacity(self) -> f64 {
        f64::from(self.gpus) * f64::from(self.batch_max) * 1e3 / f64::from(self.batch_ms)
    }

    /// Lets the load go on: in full size until it has been on for `seconds`, else until it was served for a while.
    pub fn go_on(self, server: &Server, began: Began, seconds: f64) {
        if self.full {
            began.wait(Duration::from_secs_f64(seconds));
        } else {
            wait_answered(server, 100);
        }
    }

    /// A length of time for a phase of a scenario: `full` seconds in full size, `small` otherwise.
    pub fn seconds(self, full: f64, small: f64) -> Duration {
        Duration::from_secs_f64(if self.full { full } else { small })
    }
}

/// Load on its way to a server.
#[derive(Clone, Debug)]
pub struct Load(RunOptions);

impl Load {
    /// Requests that come when they come: Poisson, `rate` a second.
    pub fn open(rate: f64, duration: Duration) -> Load {
        Load(RunOptions {
            rate: Some(rate),
            arrivals: Some("poisson".to_owned()),
            duration: Some(Span(duration)),
            connections: Some(2000),
            threads: Some(1),
            timeout: Some(Span(BOUND)),
            ..RunOptions::default()
        })
    }

    /// As many callers as `connections`, each of which sends its next request when it has its answer.
    pub fn closed(connections: usize, duration: Duration) -> Load {
        Load(RunOptions {
            duration: Some(Span(duration)),
            connections: Some(connections),
            threads: Some(1),
            timeout: Some(Span(BOUND)),
            ..RunOptions::default()
        })
    }

    /// Changes whatever else can be asked for.
    pub fn with(mut self, change: impl FnOnce(&mut RunOptions)) -> Load {
        change(&mut self.0);
        self
    }

    /// Drives `server` and says what its callers saw.
    ///
    /// # Panics
    /// If the generator can't do its work, or a caller got an answer that was not its own, or two.
    pub fn run(&self, server: &Server) -> Seen {
        self.run_beside(server, |_| ())
    }

    /// Drives `server` while `meanwhile` runs on this thread. `meanwhile` is given the time at which the load began.
    ///
    /// # Panics
    /// As [`Load::run`].
    pub fn run_beside(&self, server: &Server, meanwhile: impl FnOnce(Began)) -> Seen {
        self.drive(server, |began, _| meanwhile(began))
    }

    /// Drives `server` until `meanwhile` is over, and no longer: what happens in it happens under load, however slow the
    /// machine is.
    ///
    /// # Panics
    /// As [`Load::run`].
    pub fn run_until(&self, server: &Server, meanwhile: impl FnOnce(Began)) -> Seen {
        self.drive(server, |began, stop| {
            let _over = Until(stop);
            meanwhile(began);
        })
    }

    fn drive(&self, server: &Server, meanwhile: impl FnOnce(Began, &AtomicBool)) -> Seen {
        static RUNS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(1);
        let run = RUNS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let url = format!("http://{}", server.listen());
        let plan = self
            .0
            .plan(&url, run, true, 2)
            .expect("the options make sense");
        let tiers = plan.job.traffic.mix.names().to_vec();
        let traffic = plan.job.traffic.clone();
        let (sender, began) = std::sync::mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let recorder = std::thread::scope(|scope| {
            let load = scope.spawn(|| {
                let mut start = Start(Some(sender));
                engine::run(&plan.job, &stop, &mut start)
            });
            began.recv().expect("the load begins");
            meanwhile(Began(funicular::clock::now()), &stop);
            load.join().expect("the generator does not panic")
        });
        Seen::new(
            recorder.expect("the generator can do its work"),
            tiers,
            traffic,
        )
    }
}

/// When the load began.
#[derive(Clone, Copy, Debug)]
pub struct Began(funicular::clock::Time);

impl Began {
    /// Waits until the load has been on for `span`: what happens then is part of the scenario.
    pub fn wait(self, span: Duration) {
        let due = self.0 + span;
        loop {
            let left = due.since(funicular::clock::now());
            if left.is_zero() {
                return;
            }
            std::thread::park_timeout(left);
        }
    }
}

/// Passes the start on.
struct Start(Option<std::sync::mpsc::Sender<()>>);

impl Observer for Start {
    fn started(&mut self, _start: u64) {
        if let Some(sender) = self.0.take() {
            let _ = sender.send(());
        }
    }

    fn tick(&mut self) {}

    fn second(&mut self, _interval: &IntervalRecord) {}
}

/// What the callers saw.
#[derive(Debug)]
pub struct Seen {
    /// Every request, by the time at which it was due.
    pub samples: Vec<Sample>,
    tiers: Vec<String>,
    traffic: Traffic,
    /// The generator's own 99th percentile of lateness.
    lateness: Duration,
    /// The most that it was late: on a machine that stands still, so long.
    pub lateness_max: Duration,
}

impl Seen {
    fn new(mut recorder: Recorder, tiers: Vec<String>, traffic: Traffic) -> Seen {
        let mismatches = &recorder.mismatches;
        assert!(
            mismatches.is_clean(),
            "{mismatches:?}; {:?}",
            recorder.notes
        );
        let mut samples = recorder.dump.take().unwrap_or_default();
        samples.sort_unstable_by_key(|sample| sample.due_ns);
        let lateness = Duration::from_nanos(recorder.lateness.percentile_ns(99.0));
        let lateness_max = Duration::from_nanos(recorder.lateness.max_ns());
        let seen = Seen {
            samples,
            tiers,
            traffic,
            lateness,
            lateness_max,
        };
        eprintln!("{}", seen.describe());
        seen
    }

    /// The requests that `chosen` likes.
    pub fn filter(&self, chosen: impl Fn(&Sample) -> bool) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(move |sample| chosen(sample))
    }

    /// How many ended so.
    pub fn count(&self, outcome: Outcome) -> usize {
        self.filter(|sample| sample.outcome == outcome).count()
    }

    /// How many ended otherwise than in the ways of `allowed`.
    pub fn others(&self, allowed: &[Outcome]) -> usize {
        self.filter(|sample| !allowed.contains(&sample.outcome))
            .count()
    }

    /// Those of one tier.
    pub fn tier<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a Sample> {
        let index = self
            .tiers
            .iter()
            .position(|tier| tier == name)
            .expect("a tier of the mix");
        self.samples
            .iter()
            .filter(move |sample| sample.tier == index)
    }

    /// The input of a request.
    pub fn input(&self, sample: &Sample) -> String {
        let mut text = String::new();
        self.traffic.input(sample.number, &mut text);
        text
    }

    /// Every outcome with how often it was seen, and the latencies of good answers.
    pub fn describe(&self) -> String {
        let mut outcomes: BTreeMap<Outcome, usize> = BTreeMap::new();
        self.samples
            .iter()
            .for_each(|sample| *outcomes.entry(sample.outcome).or_default() += 1);
        let mut text = format!("{} requests:", self.samples.len());
        for (outcome, count) in outcomes {
            let _ = write!(text, " {outcome} {count}");
            let latencies = Latencies::of(self.filter(|sample| sample.outcome == outcome));
            let _ = write!(text, " ({latencies})");
        }
        let _ = write!(
            text,
            "; generator late by {:.1} ms at p99",
            self.lateness.as_secs_f64() * 1e3
        );
        text
    }
}

/// Latencies as callers saw them, in milliseconds.
#[derive(Clone, Debug)]
pub struct Latencies(Vec<f64>);

impl Latencies {
    /// Those of `samples`, from when each was due.
    pub fn of<'a>(samples: impl Iterator<Item = &'a Sample>) -> Latencies {
        let mut all: Vec<_> = samples
            .map(|sample| sample.corrected_ns() as f64 / 1e6)
            .collect();
        all.sort_unstable_by(f64::total_cmp);
        Latencies(all)
    }

    /// Those of the good ones among `samples`.
    pub fn of_good<'a>(samples: impl Iterator<Item = &'a Sample>) -> Latencies {
        Latencies::of(samples.filter(|sample| sample.outcome.is_good()))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The latency that this percentage of them does not exceed; 0 if there are none.
    pub fn percentile(&self, percent: f64) -> f64 {
        let rank = (percent / 100.0 * self.0.len() as f64).ceil() as usize;
        self.0.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
    }

    /// The worst.
    pub fn max(&self) -> f64 {
        self.0.last().copied().unwrap_or(0.0)
    }

    /// The `count` worst of them.
    pub fn worst(&self, count: usize) -> Latencies {
        Latencies(self.0[self.0.len().saturating_sub(count)..].to_vec())
    }
}

impl std::fmt::Display for Latencies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [p50, p95, p99] = [50.0, 95.0, 99.0].map(|percent| self.percentile(percent));
        write!(
            f,
            "p50 {p50:.1} p95 {p95:.1} p99 {p99:.1} max {:.1} ms",
            self.max()
        )
    }
}

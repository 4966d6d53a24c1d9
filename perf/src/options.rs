//! The options of a run as they are written, on the command line or in the `[run]` table of a scenario; and the checked
//! [`Job`] that they become.

use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;

use crate::arrivals::{Arrivals, Profile, ProfileError, Spacing, TooLong, Trace, TraceError};
use crate::clock::{MILLISECOND, nanos};
use crate::engine::{DESCRIPTORS_BESIDE, Job, Load};
use crate::machine;
use crate::record::Window;
use crate::report::number;
use crate::result::{Configuration, TierShare};
use crate::target::{Target, TargetError};
use crate::traffic::{
    Answer, Expect, ExpectError, Inputs, InputsError, Request, RequestError, TierMix, TierMixError,
    Traffic,
};
use crate::units::{self, Share, Span};

const DURATION_DEFAULT: f64 = 30.0;
const CONNECTIONS_OPEN_DEFAULT: usize = 1000;
const CONNECTIONS_CLOSED_DEFAULT: usize = 100;
const CONNECTIONS_MAX: usize = 1_000_000;
const THREADS_MAX: usize = 1024;

/// What a run may be told. Everything has a default.
#[derive(Clone, Debug, Default, clap::Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RunOptions {
    /// Requests per second (open loop). Without --rate, --trace or --profile the loop is closed
    #[arg(short, long, value_name = "R", help_heading = "Arrivals", value_parser = units::rate)]
    pub rate: Option<f64>,
    /// Spacing of --rate and --profile: `constant` (a metronome) or `poisson` (independent callers) [default: constant]
    #[arg(long, value_name = "SPACING", help_heading = "Arrivals")]
    pub arrivals: Option<String>,
    /// Replay recorded arrivals: an Azure trace (CSV, first column TIMESTAMP) or one timestamp a line, in seconds or
    /// as date and time, ascending. Scaled in time to --rate where that is given; starts over if it is shorter than --duration
    #[arg(long, value_name = "FILE", help_heading = "Arrivals")]
    pub trace: Option<PathBuf>,
    /// Rate over time, TIME:RATE points joined by straight lines; two points at one time make a step:
    /// `0:100,30s:10000,60s:10000`
    #[arg(long, value_name = "POINTS", help_heading = "Arrivals", conflicts_with_all = ["rate", "trace"])]
    pub profile: Option<String>,
    /// How long to measure [default: 30s; the length of the trace or profile]
    #[arg(short, long, value_name = "TIME", help_heading = "Arrivals")]
    pub duration: Option<Span>,
    /// Time before that, in which requests are sent and checked but not counted [default: 0s]
    #[arg(long, value_name = "TIME", help_heading = "Arrivals")]
    pub warmup: Option<Span>,
    /// Seed of arrivals, tiers, sizes and hang-ups: the same seed sends the same traffic [default: 1]
    #[arg(long, value_name = "N", help_heading = "Arrivals", value_parser = units::whole::<u64>)]
    pub seed: Option<u64>,

    /// Connections at most. In a closed loop: callers, each waiting for its answer [default: 1000 open, 100 closed; fewer
    /// where `ulimit -Hn` allows only fewer]
    #[arg(
        short,
        long,
        value_name = "N",
        help_heading = "Connections",
        value_parser = units::whole::<usize>
    )]
    pub connections: Option<usize>,
    /// Generator threads [default: half of the cores]
    #[arg(long, value_name = "N", help_heading = "Connections", value_parser = units::whole::<usize>)]
    pub threads: Option<usize>,
    /// Open a connection for each request instead of keeping connections alive
    #[arg(long, help_heading = "Connections")]
    pub new_connections: bool,
    /// Closed loop: time between an answer and the caller's next request [default: 0s]
    #[arg(long, value_name = "TIME", help_heading = "Connections")]
    pub think: Option<Span>,
    /// Give up on a request this long after it should have left [default: 10s]
    #[arg(long, value_name = "TIME", help_heading = "Connections")]
    pub timeout: Option<Span>,

    /// Tier mix by weight, sent as X-Tier: `enterprise=10,paid=30,free=60` [default: no tier is sent]
    #[arg(long, value_name = "MIX", help_heading = "Traffic")]
    pub tiers: Option<String>,
    /// Input size in bytes, `64` or `16-4096` (evenly spread); each input is unique [default: 64]
    #[arg(
        long,
        value_name = "BYTES",
        help_heading = "Traffic",
        conflicts_with = "lines"
    )]
    pub size: Option<String>,
    /// Take inputs from the lines of a file, in random order, each with a unique prefix
    #[arg(long, value_name = "FILE", help_heading = "Traffic")]
    pub lines: Option<PathBuf>,
    /// Deadline sent as X-Request-Timeout-Ms [default: none]
    #[arg(long, value_name = "TIME", help_heading = "Traffic")]
    pub deadline: Option<Span>,
    /// Share of callers that hang up before their answer: `1%` [default: 0%]
    #[arg(long, value_name = "SHARE", help_heading = "Traffic")]
    pub hangup: Option<Share>,
    /// Those hang up at a random time up to this long after their request was written [default: 100ms]
    #[arg(long, value_name = "TIME", help_heading = "Traffic")]
    pub hangup_within: Option<Span>,

    /// Path of the requests [default: that of the URL, else /v1/inference]
    #[arg(long, value_name = "PATH", help_heading = "Other servers")]
    pub path: Option<String>,
    /// Body of the requests, or @FILE; `{input}` is replaced, escaped if the content type is JSON
    /// [default: {"input": "{input}"}]
    #[arg(long, value_name = "BODY", help_heading = "Other servers")]
    pub request_template: Option<String>,
    /// Content type of the requests [default: application/json]
    #[arg(long, value_name = "TYPE", help_heading = "Other servers")]
    pub content_type: Option<String>,
    /// One more header, `Name: value`; may be repeated
    #[arg(long = "header", value_name = "HEADER", help_heading = "Other servers")]
    #[serde(rename = "headers")]
    pub headers: Vec<String>,
    /// Where the output stands in an answer: a JSON pointer, or `body` [default: /output]
    #[arg(long, value_name = "POINTER", help_heading = "Other servers")]
    pub expect: Option<String>,
    /// What the output must be: `upper` (the input in upper case), `echo`, or `any` [default: upper]
    #[arg(long, value_name = "ANSWER", help_heading = "Other servers")]
    pub answer: Option<String>,

    /// Fail (exit code 3) if this holds: `p95{tier=enterprise}>300ms`; see `funicular-perf conditions`. May be repeated
    #[arg(long, value_name = "CONDITION", help_heading = "Verdict")]
    pub fail_if: Vec<String>,
}

/// The options contradict each other or the world.
#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    /// The URL.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// A number outside what makes sense.
    #[error("{0}")]
    Range(&'static str),
    /// Not a spacing.
    #[error("`{0}` is no spacing: it is constant or poisson")]
    Spacing(String),
    /// The template file can't be read.
    #[error("cannot read the request template {path}")]
    Template {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The tier mix.
    #[error(transparent)]
    Tiers(#[from] TierMixError),
    /// The inputs.
    #[error(transparent)]
    Inputs(#[from] InputsError),
    /// The profile.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The trace.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The schedule.
    #[error(transparent)]
    TooLong(#[from] TooLong),
    /// The check of answers.
    #[error(transparent)]
    Expect(#[from] ExpectError),
    /// The shape of the requests.
    #[error(transparent)]
    Request(#[from] RequestError),
}

impl OptionsError {
    /// True if the options would do, but a file or a host that they name can't be had.
    pub fn is_about_the_world(&self) -> bool {
        match self {
            OptionsError::Template { .. }
            | OptionsError::Target(TargetError::Resolve { .. })
            | OptionsError::Inputs(InputsError::Io { .. })
            | OptionsError::Trace(TraceError::Io { .. }) => true,
            OptionsError::Target(_)
            | OptionsError::Range(_)
            | OptionsError::Spacing(_)
            | OptionsError::Tiers(_)
            | OptionsError::Inputs(_)
            | OptionsError::Profile(_)
            | OptionsError::Trace(_)
            | OptionsError::TooLong(_)
            | OptionsError::Expect(_)
            | OptionsError::Request(_) => false,
        }
    }
}

/// A run, decided, with the words that describe it.
#[derive(Clone, Debug)]
pub struct Plan {
    /// For the engine.
    pub job: Job,
    /// For the result.
    pub configuration: Configuration,
    /// What was decided otherwise than by default, in words; for the warnings of the result.
    pub notes: Vec<String>,
}

impl RunOptions {
    /// Checks the options and fixes the schedule. `run` sets the inputs of this run apart from those of others; `dump` keeps
    /// every sample; `cores` is what the machine has.
    ///
    /// # Errors
    /// If an option makes no sense, a file can't be read, or the host has no address.
    pub fn plan(
        &self,
        url: &str,
        run: u32,
        dump: bool,
        cores: usize,
    ) -> Result<Plan, OptionsError> {
        let Target {
            authority,
            address,
            path,
        } = Target::parse(url)?;
        let arrivals = self.arrivals()?;
        let warmup_ns = self.warmup.map_or(0, |span| nanos(span.0));
        let window = self.window(arrivals.as_ref(), warmup_ns)?;
        let seed = self.seed.unwrap_or(1);
        let think_ns = self.think.map_or(0, |span| nanos(span.0));
        let load = match &arrivals {
            Some(arrivals) => Load::Open(Arc::new(arrivals.schedule(window.to_ns, seed)?)),
            None => Load::Closed { think_ns },
        };
        if matches!(&load, Load::Open(schedule) if schedule.is_empty()) {
            return Err(OptionsError::Range(
                "no request falls into the run: make it longer or the rate higher",
            ));
        }
        let (connections, note) =
            self.connections(arrivals.is_some(), machine::descriptors_max())?;
        let request = self.request(&authority, path)?;
        request.check()?;
        let job = Job {
            target: address,
            request,
            traffic: self.traffic(seed, run)?,
            expect: self.expect()?,
            load,
            connections,
            threads: self.threads(cores)?.min(connections),
            timeout_ns: self
                .timeout
                .map_or(10_000 * MILLISECOND, |span| nanos(span.0)),
            window,
            dump,
        };
        if job.timeout_ns == 0 {
            return Err(OptionsError::Range(
                "a --timeout of zero would give up on every request",
            ));
        }
        let describe = arrivals
            .as_ref()
            .map_or_else(|| "closed loop".to_owned(), Arrivals::describe);
        let configuration = configuration(&job, &authority, describe);
        Ok(Plan {
            job,
            configuration,
            notes: note.into_iter().collect(),
        })
    }

    fn arrivals(&self) -> Result<Option<Arrivals>, OptionsError> {
        if self
            .rate
            .is_some_and(|rate| !(rate.is_finite() && rate > 0.0))
        {
            return Err(OptionsError::Range("the rate must be positive"));
        }
        let spacing = match self.arrivals.as_deref() {
            None | Some("constant") => Spacing::Constant,
            Some("poisson") => Spacing::Poisson,
            Some(other) => return Err(OptionsError::Spacing(other.to_owned())),
        };
        if let Some(path) = &self.trace {
            return Ok(Some(Arrivals::Trace {
                trace: Trace::read(path)?,
                rate: self.rate,
            }));
        }
        let profile = match (&self.profile, self.rate) {
            (Some(text), _) => text.parse::<Profile>()?,
            (None, Some(rate)) => Profile::constant(rate),
            (None, None) => return Ok(None),
        };
        if self.think.is_some() {
            return Err(OptionsError::Range(
                "think time belongs to a closed loop: leave out --think or the rate",
            ));
        }
        Ok(Some(Arrivals::Rate { profile, spacing }))
    }

    fn window(&self, arrivals: Option<&Arrivals>, warmup_ns: u64) -> Result<Window, OptionsError> {
        let natural = arrivals
            .and_then(Arrivals::natural_seconds)
            .map(|seconds| (seconds * 1e9) as u64);
        let to_ns = match (self.duration, natural) {
            (Some(span), _) => nanos(span.0).saturating_add(warmup_ns),
            (None, Some(natural_ns)) => natural_ns,
            (None, None) => (DURATION_DEFAULT * 1e9) as u64 + warmup_ns,
        };
        if to_ns <= warmup_ns || to_ns > 7 * 86_400 * 1_000_000_000 {
            return Err(OptionsError::Range(
                "a run lasts longer than its warm-up and at most a week",
            ));
        }
        Ok(Window {
            from_ns: warmup_ns,
            to_ns,
        })
    }

    /// How many connections, and a note where that is fewer than by default because the process may have only so many
    /// descriptors. A number that was asked for is not touched: the engine refuses what it can't have.
    fn connections(
        &self,
        open_loop: bool,
        descriptors_max: Option<u64>,
    ) -> Result<(usize, Option<String>), OptionsError> {
        let default = if open_loop {
            CONNECTIONS_OPEN_DEFAULT
        } else {
            CONNECTIONS_CLOSED_DEFAULT
        };
        let Some(connections) = self.connections else {
            return Ok(affordable(default, descriptors_max));
        };
        if (1..=CONNECTIONS_MAX).contains(&connections) {
            Ok((connections, None))
        } else {
            Err(OptionsError::Range("connections: between 1 and 1,000,000"))
        }
    }

    fn threads(&self, cores: usize) -> Result<usize, OptionsError> {
        let threads = self.threads.unwrap_or((cores / 2).max(1));
        if (1..=THREADS_MAX).contains(&threads) {
            Ok(threads)
        } else {
            Err(OptionsError::Range("threads: between 1 and 1,024"))
        }
    }

    fn request(&self, authority: &str, url_path: Option<String>) -> Result<Request, OptionsError> {
        let mut request = Request::inference(authority);
        if let Some(path) = self.path.clone().or(url_path) {
            request.path = path;
        }
        if let Some(template) = &self.request_template {
            request.template = match template.strip_prefix('@') {
                None => template.clone(),
                Some(path) => {
                    std::fs::read_to_string(path).map_err(|source| OptionsError::Template {
                        path: path.to_owned(),
                        source,
                    })?
                }
            };
        }
        if let Some(content_type) = &self.content_type {
            request.content_type.clone_from(content_type);
        }
        request.headers.clone_from(&self.headers);
        request.deadline_ms = self
            .deadline
            .map(|span| nanos(span.0).div_ceil(MILLISECOND));
        request.keep_alive = !self.new_connections;
        Ok(request)
    }

    fn traffic(&self, seed: u64, run: u32) -> Result<Traffic, OptionsError> {
        Ok(Traffic {
            mix: self
                .tiers
                .as_deref()
                .map_or_else(|| Ok(TierMix::untiered()), str::parse)?,
            inputs: match &self.lines {
                Some(path) => Inputs::lines(path)?,
                None => Inputs::sizes(self.size.as_deref().unwrap_or("64"))?,
            },
            hangup_share: self.hangup.map_or(0.0, |share| share.0),
            hangup_within_ns: self
                .hangup_within
                .map_or(100 * MILLISECOND, |span| nanos(span.0)),
            seed,
            run,
        })
    }

    fn expect(&self) -> Result<Expect, OptionsError> {
        let answer = self
            .answer
            .as_deref()
            .map_or(Ok(Answer::default()), str::parse)?;
        Ok(Expect::new(
            self.expect.as_deref().unwrap_or("/output"),
            answer,
        )?)
    }
}

/// As many connections as `default` says, or as descriptors allow, with a note.
fn affordable(default: usize, descriptors_max: Option<u64>) -> (usize, Option<String>) {
    let Some(limit) = descriptors_max else {
        return (default, None);
    };
    let affordable = limit.saturating_sub(DESCRIPTORS_BESIDE).max(1);
    let connections = usize::try_from(affordable).map_or(default, |most| most.min(default));
    let note = (connections < default).then(|| {
        format!(
            "{} instead of {}, because a process may have only {} open files here; `ulimit -n` raises that",
            number::plural(connections as u64, "connection"),
            number::count(default as u64),
            number::count(limit)
        )
    });
    (connections, note)
}

fn configuration(job: &Job, authority: &str, arrivals: String) -> Configuration {
    let mix = &job.traffic.mix;
    let tier = |(index, name): (usize, &String)| TierShare {
        name: name.clone(),
        share: mix.share(index),
    };
    let think_ms = match job.load {
        Load::Closed { think_ns } => Some(think_ns as f64 / 1e6),
        Load::Open(_) => None,
    };
    Configuration {
        target: format!("http://{authority}{}", job.request.path),
        arrivals,
        open_loop: matches!(job.load, Load::Open(_)),
        seed: job.traffic.seed,
        connections: job.connections as u32,
        threads: job.threads as u32,
        keep_alive: job.request.keep_alive,
        tiers: mix.names().iter().enumerate().map(tier).collect(),
        input: job.traffic.inputs.to_string(),
        expect: job.expect.place().to_owned(),
        deadline_ms: job.request.deadline_ms.map(|deadline| deadline as f64),
        timeout_ms: job.timeout_ns as f64 / 1e6,
        think_ms,
        hangup_share: job.traffic.hangup_share,
        warmup_seconds: job.window.from_ns as f64 / 1e9,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(change: impl FnOnce(&mut RunOptions)) -> Result<Plan, OptionsError> {
        let mut options = RunOptions::default();
        change(&mut options);
        options.plan("http://127.0.0.1:8080", 1, false, 4)
    }

    #[test]
    fn no_rate_means_a_closed_loop() {
        let closed = plan(|_| {}).expect("a plan");
        assert!(matches!(closed.job.load, Load::Closed { think_ns: 0 }));
        assert!(!closed.configuration.open_loop);
        assert_eq!((closed.job.connections, closed.job.threads), (100, 2));

        let open = plan(|options| {
            options.rate = Some(100.0);
            options.duration = Some(Span(std::time::Duration::from_secs(2)));
            options.warmup = Some(Span(std::time::Duration::from_secs(1)));
        })
        .expect("a plan");
        assert!(matches!(&open.job.load, Load::Open(schedule) if schedule.len() == 300));
        assert_eq!(open.configuration.arrivals, "constant 100/s");
    }

    #[test]
    fn a_profile_lasts_as_long_as_it_says() {
        let profile =
            plan(|options| options.profile = Some("0:100,5s:100".into())).expect("a plan");
        assert_eq!(profile.job.window.to_ns, 5_000_000_000);
    }

    #[test]
    fn few_descriptors_mean_fewer_connections_by_default_and_a_note() {
        assert_eq!(affordable(1000, None), (1000, None));
        assert_eq!(affordable(1000, Some(1064)), (1000, None));
        let (connections, note) = affordable(1000, Some(1024));
        assert_eq!(connections, 960);
        let note = note.expect("a note");
        assert!(note.contains("960 connections instead of 1,000"), "{note}");
        assert_eq!(affordable(100, Some(10)).0, 1);
        let asked = RunOptions {
            connections: Some(5000),
            ..RunOptions::default()
        };
        let decided = asked.connections(true, Some(10)).expect("a number");
        assert_eq!(decided, (5000, None));
    }

    #[test]
    fn a_request_that_can_not_be_written_is_refused_with_the_options() {
        let template = plan(|o| o.request_template = Some("{\"x\":1}".into()));
        assert!(
            matches!(&template, Err(error @ OptionsError::Request(_)) if !error.is_about_the_world())
        );
        let header = plan(|o| o.headers = vec!["X-Tier enterprise".into()]);
        assert!(matches!(header, Err(OptionsError::Request(_))));
        let file = plan(|o| o.lines = Some("/does/not/exist".into()));
        assert!(file.is_err_and(|error| error.is_about_the_world()));
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(matches!(
            plan(|o| o.rate = Some(0.0)),
            Err(OptionsError::Range(_))
        ));
        assert!(matches!(
            plan(|o| o.connections = Some(0)),
            Err(OptionsError::Range(_))
        ));
        assert!(matches!(
            plan(|o| o.arrivals = Some("bursty".into())),
            Err(OptionsError::Spacing(_))
        ));
        assert!(matches!(
            plan(|o| o.trace = Some("/does/not/exist".into())),
            Err(OptionsError::Trace(_))
        ));
        assert!(matches!(
            plan(|o| o.answer = Some("lower".into())),
            Err(OptionsError::Expect(_))
        ));
        let think = |o: &mut RunOptions| {
            (o.rate, o.think) = (Some(1.0), Some(Span(std::time::Duration::ZERO)))
        };
        assert!(matches!(plan(think), Err(OptionsError::Range(_))));
    }
}

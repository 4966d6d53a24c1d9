//! One run from plan to files: drives the engine, watches the server, and puts the result together.

use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use crate::clock;
use crate::engine::{self, EngineError, Load, Observer};
use crate::fail_if::Condition;
use crate::files::{self, IntervalLog};
use crate::latencies::Latencies;
use crate::machine;
use crate::monitor::Monitor;
use crate::options::Plan;
use crate::progress::Progress;
use crate::record::{IntervalRecord, Outcome, Recorder, TierRecord, Window};
use crate::report;
use crate::result::{
    Generator, Interval, IntervalTier, Latency, RunResult, SCHEMA_VERSION, StatusResult,
    TierResult, Totals,
};

/// The generator is to blame if its 99th percentile of lateness is above this share of the median latency…
const LATE_SHARE_MAX: f64 = 0.05;
/// …and above this.
const LATE_MS_MIN: f64 = 1.0;
/// A generator thread that is busier than this has no room for a burst.
const BUSY_MAX: f64 = 0.9;
/// Waiting for connections is worth a word from this share of the requests on.
const CONNECTION_WAITS_WARN: f64 = 0.01;

/// Files to write. Nothing is written by default.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Outputs {
    /// Write NAME.json, NAME.html, NAME.hgrm (and one per tier and view) and NAME.hlog into this directory
    #[arg(short, long = "out", value_name = "DIR", help_heading = "Output")]
    pub directory: Option<PathBuf>,
    /// Write the result as JSON
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub json: Option<PathBuf>,
    /// Write the report as one self-contained HTML page
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub html: Option<PathBuf>,
    /// Write the corrected percentile distribution in HdrHistogram's text format
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub hgrm: Option<PathBuf>,
    /// Write an interval log, one histogram per tier and second, in HdrHistogram's log format
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub hlog: Option<PathBuf>,
    /// Write every request as a line of CSV with its raw times
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub dump: Option<PathBuf>,
}

/// What a run needs beside its plan.
#[derive(Debug, Default)]
pub struct Session {
    /// Name of the run.
    pub name: String,
    /// The question that it answers.
    pub question: Option<String>,
    /// Our own command line.
    pub command: Vec<String>,
    /// That of the server.
    pub server_command: Option<Vec<String>>,
    /// Watches the server.
    pub monitor: Monitor,
    /// Conditions under which the run has failed.
    pub conditions: Vec<Condition>,
    /// Files to write.
    pub outputs: Outputs,
    /// No live line.
    pub quiet: bool,
    /// Ends the run early when set.
    pub stop: Arc<AtomicBool>,
}

/// The run could not be done, or not be written down.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A file can't be written.
    #[error("cannot write {path}")]
    Write {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
}

fn writing(path: &Path) -> impl FnOnce(io::Error) -> SessionError {
    let path = path.display().to_string();
    move |source| SessionError::Write { path, source }
}

/// Runs the plan, writes the files and returns the result.
///
/// # Errors
/// If the server can't be driven or a file can't be written. Wrong answers and failed conditions are no errors here: they stand
/// in the result.
pub fn run(plan: &Plan, mut session: Session) -> Result<RunResult, SessionError> {
    session.outputs.resolve(&session.name)?;
    let started_at = clock::wall();
    let mut live = Live::new(plan, &mut session, started_at)?;
    let recorder = engine::run(&plan.job, &session.stop, &mut live);
    live.progress.finish();
    let mut recorder = recorder?;
    live.monitor.read();
    if let Some(log) = live.hlog.take() {
        let path = session.outputs.hlog.clone().unwrap_or_default();
        log.finish().map_err(writing(&path))?;
    }
    let result = assemble(plan, &session, started_at, live, &recorder);
    write_files(&result, &mut recorder, &session.outputs)?;
    Ok(result)
}

/// Follows the run second by second.
struct Live<'p> {
    plan: &'p Plan,
    monitor: Monitor,
    progress: Progress,
    hlog: Option<IntervalLog>,
    intervals: Vec<Interval>,
    /// Reading of the clock at the end of the warm-up, until the monitor has been told.
    measuring_from: Option<u64>,
}

impl<'p> Live<'p> {
    fn new(
        plan: &'p Plan,
        session: &mut Session,
        started_at: SystemTime,
    ) -> Result<Live<'p>, SessionError> {
        let window = plan.job.window;
        let tiers = plan.job.traffic.mix.names().to_vec();
        let measured_at = started_at + Duration::from_nanos(window.from_ns);
        let hlog = session.outputs.hlog.as_ref();
        let hlog = hlog
            .map(|path| IntervalLog::create(path, tiers, measured_at).map_err(writing(path)))
            .transpose()?;
        Ok(Live {
            plan,
            monitor: std::mem::take(&mut session.monitor),
            progress: Progress::new(&session.name, seconds(window), session.quiet),
            hlog,
            intervals: Vec::new(),
            measuring_from: None,
        })
    }

    fn first_reading_if_due(&mut self) {
        if self.measuring_from.is_some_and(|from| clock::now() >= from) {
            self.measuring_from = None;
            self.monitor.read();
        }
    }

    fn offered(&self, record: &IntervalRecord) -> u64 {
        let Load::Open(schedule) = &self.plan.job.load else {
            return record.sent;
        };
        let window = self.plan.job.window;
        let from = window.from_ns + u64::from(record.second) * clock::SECOND;
        let before = |at: u64| schedule.partition_point(|&due| due < at);
        (before((from + clock::SECOND).min(window.to_ns)).saturating_sub(before(from))) as u64
    }
}

impl Observer for Live<'_> {
    fn started(&mut self, start: u64) {
        let from = self.plan.job.window.from_ns;
        if from == 0 {
            self.monitor.read();
        } else {
            self.measuring_from = Some(start + from);
        }
    }

    fn tick(&mut self) {
        self.first_reading_if_due();
        self.progress.tick();
    }

    fn second(&mut self, record: &IntervalRecord) {
        self.first_reading_if_due();
        self.monitor.read();
        if let Some(log) = &self.hlog {
            log.add(record);
        }
        let interval = interval(record, self.plan, self.offered(record));
        self.progress.second(&interval);
        self.intervals.push(interval);
    }
}

fn seconds(window: Window) -> f64 {
    clock::seconds(window.to_ns - window.from_ns)
}

fn interval(record: &IntervalRecord, plan: &Plan, offered: u64) -> Interval {
    let start_seconds = f64::from(record.second);
    let rest = seconds(plan.job.window) - start_seconds;
    let mut all = Latencies::default();
    record.tiers.iter().for_each(|tier| all.merge(tier));
    let names = plan.job.traffic.mix.names();
    let tier = |index: usize| {
        let latencies = &record.tiers[index];
        IntervalTier {
            tier: names[index].clone(),
            ok: latencies.count(),
            errors: record.tier_errors[index],
            p50_ms: clock::millis(latencies.percentile_ns(50.0)),
            p95_ms: clock::millis(latencies.percentile_ns(95.0)),
            p99_ms: clock::millis(latencies.percentile_ns(99.0)),
        }
    };
    Interval {
        start_seconds,
        // After the schedule, the last answers are waited for.
        length_seconds: if rest > 0.0 { rest.min(1.0) } else { 1.0 },
        offered,
        sent: record.sent,
        latency: all.summary(),
        tiers: (0..names.len()).map(tier).collect(),
        errors: record
            .errors
            .iter()
            .map(|(class, count)| ((*class).to_owned(), *count))
            .collect(),
    }
}

/// Drops the seconds after the schedule's end, unless the server went on answering for more than one.
fn without_epilogue(mut intervals: Vec<Interval>, duration: f64) -> Vec<Interval> {
    let measured = intervals
        .iter()
        .filter(|interval| interval.start_seconds < duration)
        .count();
    let busy = |interval: &Interval| interval.latency.count > 0 || !interval.errors.is_empty();
    while intervals.len() > measured && intervals.last().is_some_and(|last| !busy(last)) {
        intervals.pop();
    }
    if intervals.len() == measured + 1 {
        intervals.pop();
    }
    intervals
}

fn assemble(
    plan: &Plan,
    session: &Session,
    started_at: SystemTime,
    live: Live<'_>,
    recorder: &Recorder,
) -> RunResult {
    let job = &plan.job;
    let duration_seconds = seconds(job.window);
    let (corrected, uncorrected) = recorder.all_tiers();
    let totals = totals(plan, recorder);
    let answered = recorder.count(|outcome| matches!(outcome, Outcome::Status(_) | Outcome::Wrong));
    let findings = live.monitor.findings(answered, totals.achieved_rate);
    let names = job.traffic.mix.names();
    let tiers = names
        .iter()
        .zip(&recorder.tiers)
        .map(|(name, record)| tier(name, record, plan, recorder));
    let mut result = RunResult {
        schema_version: SCHEMA_VERSION,
        name: session.name.clone(),
        question: session.question.clone(),
        started_at: machine::rfc3339(started_at),
        machine: machine::machine(),
        commit: machine::commit(),
        command: session.command.clone(),
        server_command: session.server_command.clone(),
        configuration: plan.configuration.clone(),
        duration_seconds,
        latency: Latency {
            corrected: corrected.view(),
            uncorrected: uncorrected.view(),
        },
        tiers: tiers.collect(),
        intervals: without_epilogue(live.intervals, duration_seconds),
        generator: generator(recorder, &corrected),
        server: findings.server,
        gpu: findings.gpu,
        stages: findings.stages,
        zones: findings.zones,
        mismatches: recorder.mismatches.clone(),
        fail_if: Vec::new(),
        warnings: findings.warning.into_iter().collect(),
        totals,
    };
    result.fail_if = session
        .conditions
        .iter()
        .map(|condition| condition.judge(&result, recorder))
        .collect();
    let warnings = warnings(&result, recorder, session.stop.load(Ordering::Relaxed));
    result.warnings.extend(warnings);
    result
}

fn totals(plan: &Plan, recorder: &Recorder) -> Totals {
    let duration = seconds(plan.job.window);
    let scheduled = recorder.count(|_| true);
    let offered = match &plan.job.load {
        Load::Open(schedule) => {
            schedule.len() - schedule.partition_point(|&due| due < plan.job.window.from_ns)
        }
        Load::Closed { .. } => recorder.sent as usize,
    };
    let good: u64 = recorder.tiers.iter().map(|tier| tier.good_in_window).sum();
    let answered = recorder.count(|outcome| matches!(outcome, Outcome::Status(_)));
    let ok = recorder.count(Outcome::is_good);
    let achieved_rate = good as f64 / window_of_answers(plan, recorder);
    Totals {
        offered_rate: offered as f64 / duration,
        achieved_rate,
        // Statuses other than 2xx are counted by when they were due: the same up to the run's edges.
        answered_rate: achieved_rate + (answered - ok) as f64 / duration,
        scheduled,
        sent: recorder.sent,
        ok,
        errors: recorder.count(Outcome::is_error),
        hung_up: recorder.count(|outcome| outcome == Outcome::HangUp),
    }
}

/// Seconds in which answers could come. After a warm-up that is the measured part; without one, nothing can come in before
/// the first answer, and an open loop should not be blamed for that.
fn window_of_answers(plan: &Plan, recorder: &Recorder) -> f64 {
    let window = plan.job.window;
    let open = matches!(plan.job.load, Load::Open(_));
    let from = if open && window.from_ns == 0 {
        recorder.first_good_ns.min(window.to_ns)
    } else {
        window.from_ns
    };
    clock::seconds(window.to_ns - from).max(1e-9)
}

fn tier(name: &str, record: &TierRecord, plan: &Plan, recorder: &Recorder) -> TierResult {
    let status = |(outcome, latencies): (&Outcome, &Latencies)| StatusResult {
        status: outcome.to_string(),
        count: latencies.count(),
        latency: latencies.summary(),
    };
    TierResult {
        tier: name.to_owned(),
        scheduled: record.count(|_| true),
        achieved_rate: record.good_in_window as f64 / window_of_answers(plan, recorder),
        latency: Latency {
            corrected: record.corrected.view(),
            uncorrected: record.uncorrected.view(),
        },
        statuses: record.outcomes.iter().map(status).collect(),
    }
}

fn generator(recorder: &Recorder, corrected: &Latencies) -> Generator {
    let lateness = recorder.lateness.summary();
    let late_max = (clock::millis(corrected.percentile_ns(50.0)) * LATE_SHARE_MAX).max(LATE_MS_MIN);
    let mut why = Vec::new();
    if lateness.p99_ms > late_max {
        why.push(format!(
            "it noticed 1 % of the requests more than {:.1} ms after they were due (tolerated: {late_max:.1} ms)",
            lateness.p99_ms
        ));
    }
    if recorder.busy_fraction_max > BUSY_MAX {
        why.push(format!(
            "a thread used {:.0} % of a core",
            recorder.busy_fraction_max * 100.0
        ));
    }
    Generator {
        lateness,
        connection_wait: recorder.connection_wait.summary(),
        connection_waits: recorder.connection_wait.count(),
        cpu_seconds: recorder.cpu_seconds,
        busy_fraction_max: recorder.busy_fraction_max,
        generator_bound: !why.is_empty(),
        why: (!why.is_empty()).then(|| why.join("; ")),
    }
}

fn warnings(result: &RunResult, recorder: &Recorder, stopped: bool) -> Vec<String> {
    let mut warnings = Vec::new();
    let generator = &result.generator;
    if let Some(why) = &generator.why {
        warnings.push(format!(
            "the generator was the bottleneck: {why}; use more --threads or another machine"
        ));
    }
    let waits = generator.connection_waits as f64 / result.totals.scheduled.max(1) as f64;
    if waits > CONNECTION_WAITS_WARN {
        warnings.push(format!(
            "{:.1} % of the requests waited for a free connection; that is part of the corrected latency, \
             and more --connections would show the server alone",
            waits * 100.0
        ));
    }
    if stopped {
        warnings.push("stopped early: the rates are over the planned time".to_owned());
    }
    if !result.configuration.open_loop {
        warnings.push(
            "closed loop: callers wait for the server, so a stall holds back the requests that would have shown it; \
             use --rate for latency, this for throughput"
                .to_owned(),
        );
    }
    warnings.extend(recorder.notes.iter().cloned());
    warnings
}

impl Outputs {
    /// Turns the directory into the files that go into it and makes it.
    fn resolve(&mut self, name: &str) -> Result<(), SessionError> {
        let Some(directory) = &self.directory else {
            return Ok(());
        };
        std::fs::create_dir_all(directory).map_err(writing(directory))?;
        let stem: String = name
            .chars()
            .map(|char| {
                if char.is_alphanumeric() || "-_.".contains(char) {
                    char
                } else {
                    '-'
                }
            })
            .collect();
        let file = |ending: &str| directory.join(format!("{stem}.{ending}"));
        self.json.get_or_insert_with(|| file("json"));
        self.html.get_or_insert_with(|| file("html"));
        self.hgrm.get_or_insert_with(|| file("hgrm"));
        self.hlog.get_or_insert_with(|| file("hlog"));
        Ok(())
    }
}

fn write_files(
    result: &RunResult,
    recorder: &mut Recorder,
    outputs: &Outputs,
) -> Result<(), SessionError> {
    if let Some(path) = &outputs.json {
        write(path, |out| {
            serde_json::to_writer_pretty(&mut *out, result)?;
            writeln!(out)
        })?;
    }
    if let Some(path) = &outputs.html {
        write(path, |out| out.write_all(report::html(result).as_bytes()))?;
    }
    if let Some(path) = &outputs.hgrm {
        write_distributions(path, result, recorder)?;
    }
    if let (Some(path), Some(samples)) = (&outputs.dump, &mut recorder.dump) {
        let tiers: Vec<String> = result.tiers.iter().map(|tier| tier.tier.clone()).collect();
        write(path, |out| files::write_dump(samples, &tiers, out))?;
    }
    Ok(())
}

/// `x.hgrm` for all tiers, beside it `x.uncorrected.hgrm`, and `x.TIER.hgrm` where there are tiers.
fn write_distributions(
    path: &Path,
    result: &RunResult,
    recorder: &Recorder,
) -> Result<(), SessionError> {
    let (corrected, uncorrected) = recorder.all_tiers();
    write(path, |out| files::write_hgrm(&corrected, out))?;
    write(&path.with_extension("uncorrected.hgrm"), |out| {
        files::write_hgrm(&uncorrected, out)
    })?;
    if result.tiers.len() > 1 {
        for (tier, record) in result.tiers.iter().zip(&recorder.tiers) {
            let path = path.with_extension(format!("{}.hgrm", tier.tier));
            write(&path, |out| files::write_hgrm(&record.corrected, out))?;
        }
    }
    Ok(())
}

type Out = BufWriter<std::fs::File>;

fn write(
    path: &Path,
    content: impl FnOnce(&mut Out) -> io::Result<()>,
) -> Result<(), SessionError> {
    let attempt = || {
        let mut out = BufWriter::new(std::fs::File::create(path)?);
        content(&mut out)?;
        out.flush()
    };
    attempt().map_err(writing(path))
}

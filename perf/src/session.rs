//! One run from plan to files: drives the engine, watches the server, and puts the result together.

use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use crate::assemble;
use crate::clock;
use crate::engine::{self, EngineError, Observer};
use crate::fail_if::Condition;
use crate::files::{self, IntervalLog};
use crate::monitor::{Monitor, MonitorError};
use crate::options::Plan;
use crate::progress::Progress;
use crate::record::{IntervalRecord, Recorder};
use crate::report;
use crate::result::{Interval, RunResult};

/// Files to write. Nothing is written by default.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Outputs {
    /// Write NAME.json, NAME.html, NAME.hgrm (and one per tier and view) and NAME.hlog into this directory
    #[arg(short = 'o', long = "out", value_name = "DIR", help_heading = "Output")]
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
    /// What is to be watched.
    #[error(transparent)]
    Monitor(#[from] MonitorError),
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

/// Runs the plan, writes the files and returns the result with the files' names. Nothing is written unless the server is there.
///
/// # Errors
/// If the server can't be driven or watched, or a file can't be written. Wrong answers and failed conditions are no errors here:
/// they stand in the result.
pub fn run(plan: &Plan, mut session: Session) -> Result<(RunResult, Vec<PathBuf>), SessionError> {
    engine::prepare(&plan.job, &session.stop)?;
    session.monitor.check()?;
    session.outputs.resolve(&session.name)?;
    let started_at = clock::wall();
    let mut live = Live::new(plan, &mut session, started_at)?;
    let recorder = engine::run(&plan.job, &session.stop, &mut live);
    live.progress.finish();
    let mut recorder = recorder?;
    live.monitor.read_end();
    if let Some(log) = live.hlog.take() {
        let path = session.outputs.hlog.clone().unwrap_or_default();
        log.finish().map_err(writing(&path))?;
    }
    let Live {
        intervals, monitor, ..
    } = live;
    let result = assemble::assemble(plan, &session, started_at, intervals, monitor, &recorder);
    let files = write_files(&result, &mut recorder, &session.outputs)?;
    Ok((result, files))
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
            progress: Progress::new(&session.name, assemble::seconds(window), session.quiet),
            hlog,
            intervals: Vec::new(),
            measuring_from: None,
        })
    }

    fn first_reading_if_due(&mut self) {
        if self.measuring_from.is_some_and(|from| clock::now() >= from) {
            self.measuring_from = None;
            self.monitor.read_end();
        }
    }
}

impl Observer for Live<'_> {
    fn started(&mut self, start: u64) {
        let from = self.plan.job.window.from_ns;
        if from == 0 {
            self.monitor.read_end();
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
        let interval = assemble::interval(record, self.plan);
        self.progress.second(&interval);
        self.intervals.push(interval);
    }
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

/// Writes all files but the interval log, which has been written by now; returns the names of all, the report first.
fn write_files(
    result: &RunResult,
    recorder: &mut Recorder,
    outputs: &Outputs,
) -> Result<Vec<PathBuf>, SessionError> {
    let mut files = Vec::new();
    if let Some(path) = &outputs.json {
        write(path, |out| {
            serde_json::to_writer_pretty(&mut *out, result)?;
            writeln!(out)
        })?;
        files.push(path.clone());
    }
    if let Some(path) = &outputs.html {
        write(path, |out| out.write_all(report::html(result).as_bytes()))?;
        files.insert(0, path.clone());
    }
    if let Some(path) = &outputs.hgrm {
        files.extend(write_distributions(path, result, recorder)?);
    }
    files.extend(outputs.hlog.clone());
    if let (Some(path), Some(samples)) = (&outputs.dump, &mut recorder.dump) {
        let tiers: Vec<String> = result.tiers.iter().map(|tier| tier.tier.clone()).collect();
        write(path, |out| files::write_dump(samples, &tiers, out))?;
        files.push(path.clone());
    }
    Ok(files)
}

/// `x.hgrm` for all tiers, beside it `x.uncorrected.hgrm`, and `x.TIER.hgrm` where there are tiers.
fn write_distributions(
    path: &Path,
    result: &RunResult,
    recorder: &Recorder,
) -> Result<Vec<PathBuf>, SessionError> {
    let (corrected, uncorrected) = recorder.all_tiers();
    write(path, |out| files::write_hgrm(&corrected, out))?;
    let beside = path.with_extension("uncorrected.hgrm");
    write(&beside, |out| files::write_hgrm(&uncorrected, out))?;
    let mut written = vec![path.to_owned(), beside];
    if result.tiers.len() > 1 {
        for (tier, record) in result.tiers.iter().zip(&recorder.tiers) {
            let path = path.with_extension(format!("{}.hgrm", tier.tier));
            write(&path, |out| files::write_hgrm(&record.corrected, out))?;
            written.push(path);
        }
    }
    Ok(written)
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

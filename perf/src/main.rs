//! `funicular-perf`: arguments to a run, a set of scenarios, or a report; and the exit code.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use clap::{Parser, Subcommand};

use funicular_perf::fail_if::{self, Condition, ConditionError};
use funicular_perf::monitor::Monitor;
use funicular_perf::options::{OptionsError, RunOptions};
use funicular_perf::result::RunResult;
use funicular_perf::scenario::{self, Circumstances, Scenario, ScenarioError};
use funicular_perf::session::{self, Outputs, Session};
use funicular_perf::target::TargetError;
use funicular_perf::units::{self, Span};
use funicular_perf::{clock, machine, report, server, summary};

const RESULTS_DEFAULT: &str = "perf/RESULTS.md";
/// As clap has it.
const EXIT_ARGUMENTS: u8 = 2;
const EXIT_FAIL_IF: u8 = 3;
const EXIT_WRONG_ANSWERS: u8 = 4;

const AFTER_HELP: &str = "\
EXIT CODES
  0  done
  1  could not be done: no server, no such file; or done without one good answer where no --fail-if says what to expect
  2  bad arguments
  3  a --fail-if condition held
  4  wrong or double answers (stronger than 3)

EXAMPLES
  What do callers see at 700 requests a second?
    funicular-perf run http://127.0.0.1:8080 --rate 700 --arrivals poisson --duration 30s \\
        --tiers enterprise=10,paid=30,free=60 --admin http://127.0.0.1:9090 --out perf/reports
  How much can it do?
    funicular-perf run http://127.0.0.1:8080 --connections 800 --warmup 2s     (200 for each of 4 GPUs)
  Two builds side by side
    funicular-perf report before.json after.json
  All questions of perf/scenarios, against a server that it starts itself
    funicular-perf scenarios --server target/release/funicular";

/// An open-loop load generator with HDR latency reports
#[derive(Parser)]
#[command(name = "funicular-perf", version, after_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Drive a server and report the latencies that its callers see
    #[command(after_help = AFTER_HELP)]
    Run(Box<Run>),
    /// Run scenarios, each against a server that is started for it
    Scenario(OneScenario),
    /// Run all scenarios and rewrite their section of RESULTS.md
    Scenarios(AllScenarios),
    /// Make reports of results: one as a page, several side by side with ratios to the first
    Report(Report),
    /// Explain the conditions of --fail-if
    Conditions,
}

#[derive(clap::Args)]
struct Run {
    /// Whom to drive
    #[arg(default_value = "http://127.0.0.1:8080")]
    url: String,
    #[command(flatten)]
    options: RunOptions,

    /// Admin port of the server, for `/metrics`: http://127.0.0.1:9090
    #[arg(long, value_name = "URL", help_heading = "Server")]
    admin: Option<String>,
    /// Process id of a local server, for its CPU time and memory
    #[arg(long, value_name = "PID", help_heading = "Server", value_parser = units::whole::<u32>)]
    server_pid: Option<u32>,

    /// Name of the run
    #[arg(long, default_value = "run", help_heading = "Output")]
    name: String,
    /// The question that the run answers; stands on top of the report
    #[arg(long, value_name = "TEXT", help_heading = "Output")]
    question: Option<String>,
    #[command(flatten)]
    outputs: Outputs,
    /// No live progress
    #[arg(short, long, help_heading = "Output")]
    quiet: bool,
}

#[derive(clap::Args)]
struct OneScenario {
    /// Names of scenarios, or paths of their files; without one, those that there are are listed
    #[arg(value_name = "SCENARIO")]
    scenarios: Vec<String>,
    /// Where scenarios are looked up by name
    #[arg(long, value_name = "DIR", default_value = "perf/scenarios")]
    dir: PathBuf,
    #[command(flatten)]
    common: Common,
}

#[derive(clap::Args)]
struct AllScenarios {
    /// Where the scenarios are
    #[arg(long, value_name = "DIR", default_value = "perf/scenarios")]
    dir: PathBuf,
    /// The page whose scenario section is rewritten; it stands between two marker lines [default: perf/RESULTS.md; none with
    /// --duration, whose quick looks are no results]
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

#[derive(clap::Args)]
struct Common {
    /// The server's program [default: target/release/funicular, else funicular beside this program, else from the path]
    #[arg(long, value_name = "PROGRAM")]
    server: Option<PathBuf>,
    /// Recorded arrivals for the scenarios that replay them; they are not part of the tree
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Duration of each run instead of its own, for a quick look; profiles and traces keep theirs. RESULTS.md is then
    /// written only where --results names it
    #[arg(short, long, value_name = "TIME")]
    duration: Option<Span>,
    /// Where JSON, HTML, .hgrm and .hlog files go
    #[arg(short, long, value_name = "DIR", default_value = "perf/reports")]
    out: PathBuf,
    /// No live progress
    #[arg(short, long)]
    quiet: bool,
}

#[derive(clap::Args)]
struct Report {
    /// Results, as --json wrote them; ratios are to the first
    #[arg(required = true, value_name = "RESULT.json")]
    results: Vec<PathBuf>,
    /// Write a self-contained HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Run(run) => drive(*run),
        Command::Scenario(arguments) => some_scenarios(&arguments),
        Command::Scenarios(arguments) => all_scenarios(&arguments),
        Command::Report(arguments) => make_report(&arguments),
        Command::Conditions => {
            print!("{}", fail_if::HELP);
            Ok(ExitCode::SUCCESS)
        }
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("funicular-perf: {error:#}");
        if is_about_arguments(&error) {
            ExitCode::from(EXIT_ARGUMENTS)
        } else {
            ExitCode::FAILURE
        }
    })
}

/// True if other arguments would help; false if the world would have to change: a file or server that is not there.
fn is_about_arguments(error: &anyhow::Error) -> bool {
    if let Some(error) = error.downcast_ref::<OptionsError>() {
        return !error.is_about_the_world();
    }
    if let Some(error) = error.downcast_ref::<TargetError>() {
        return matches!(error, TargetError::Url(_));
    }
    match error.downcast_ref::<ScenarioError>() {
        Some(ScenarioError::Unknown { .. } | ScenarioError::NotNamed(_)) => true,
        Some(ScenarioError::Options(error)) => !error.is_about_the_world(),
        Some(_) => false,
        None => error.is::<ConditionError>(),
    }
}

fn drive(run: Run) -> anyhow::Result<ExitCode> {
    let number = machine::run_number(clock::wall());
    let plan = run.options.plan(
        &run.url,
        number,
        run.outputs.dump.is_some(),
        machine::cores(),
    )?;
    let mut conditions = Vec::new();
    for text in &run.options.fail_if {
        let condition: Condition = text.parse()?;
        condition.check(plan.job.traffic.mix.names())?;
        conditions.push(condition);
    }
    let session = Session {
        name: run.name,
        question: run.question,
        command: std::env::args().collect(),
        server_command: run.server_pid.and_then(machine::command_of),
        monitor: Monitor::new(run.admin.as_deref(), run.server_pid)?,
        conditions,
        outputs: run.outputs,
        quiet: run.quiet,
        stop: stop_on_interrupt()?,
    };
    let (result, files) = session::run(&plan, session)?;
    print!("{}", summary::text(&result));
    // Not to the standard output, which is the summary alone, the same as `report` prints.
    if !files.is_empty() {
        let files: Vec<String> = files
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        eprintln!("wrote {}", files.join(", "));
    }
    Ok(exit_code(&[result]))
}

fn some_scenarios(arguments: &OneScenario) -> anyhow::Result<ExitCode> {
    if arguments.scenarios.is_empty() {
        let known = scenario::list(&Scenario::read_all(&arguments.dir)?);
        return Err(ScenarioError::NotNamed(known).into());
    }
    // A typing error in the last name is better found before the first one has run.
    let scenarios = arguments
        .scenarios
        .iter()
        .map(|name| Scenario::find(name, &arguments.dir))
        .collect::<Result<Vec<_>, _>>()?;
    let circumstances = arguments.common.circumstances()?;
    let mut results = Vec::new();
    for scenario in scenarios {
        let result = scenario.run(&circumstances)?;
        println!("{}", summary::text(&result));
        results.push(result);
        if circumstances.stop.load(Ordering::Relaxed) {
            break;
        }
    }
    print_outcomes(&results, &arguments.common.out);
    Ok(exit_code(&results))
}

fn all_scenarios(arguments: &AllScenarios) -> anyhow::Result<ExitCode> {
    let circumstances = arguments.common.circumstances()?;
    let results_page = arguments.results_page();
    // Rather now than after all the work.
    if let Some(page) = &results_page {
        anyhow::ensure!(
            page.exists(),
            "{} is not there to be rewritten; run this in the repository, or name a page with --results",
            page.display()
        );
    }
    let mut results = Vec::new();
    for scenario in Scenario::read_all(&arguments.dir)? {
        match scenario.run(&circumstances) {
            Ok(result) => {
                println!("{}", summary::text(&result));
                results.push(result);
            }
            Err(missing @ ScenarioError::NeedsTrace(_)) => {
                eprintln!("funicular-perf: left out: {missing}")
            }
            Err(error) => return Err(error).with_context(|| format!("scenario {}", scenario.name)),
        }
        anyhow::ensure!(
            !circumstances.stop.load(Ordering::Relaxed),
            "stopped; the results page was left as it was"
        );
    }
    print_outcomes(&results, &arguments.common.out);
    match &results_page {
        Some(page) => {
            scenario::rewrite_results(page, &report::results_markdown(&results))?;
            println!("{} rewritten", page.display());
        }
        None => println!(
            "{RESULTS_DEFAULT} is left as it was: runs of --duration go there only with --results {RESULTS_DEFAULT}"
        ),
    }
    Ok(exit_code(&results))
}

/// The outcomes of all runs, a line each: those of the first have long left the screen.
fn print_outcomes(results: &[RunResult], directory: &Path) {
    for result in results {
        println!("{}", summary::line(result));
    }
    println!("reports are in {}", directory.display());
}

impl AllScenarios {
    /// The page to rewrite; `None` for a quick look whose results nobody asked to keep.
    fn results_page(&self) -> Option<PathBuf> {
        let default = self
            .common
            .duration
            .is_none()
            .then(|| PathBuf::from(RESULTS_DEFAULT));
        self.results.clone().or(default)
    }
}

impl Common {
    fn circumstances(&self) -> anyhow::Result<Circumstances> {
        Ok(Circumstances {
            program: self
                .server
                .clone()
                .map_or_else(server::default_program, Ok)?,
            trace: self.trace.clone(),
            duration: self.duration,
            directory: self.out.clone(),
            quiet: self.quiet,
            command: std::env::args().collect(),
            stop: stop_on_interrupt()?,
        })
    }
}

/// The first interrupt ends the run and still reports it; the second ends the process.
fn stop_on_interrupt() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let interrupt = signal_hook::consts::SIGINT;
    signal_hook::flag::register_conditional_shutdown(interrupt, 130, Arc::clone(&stop))
        .and_then(|_| signal_hook::flag::register(interrupt, Arc::clone(&stop)))
        .context("cannot listen for interrupts")?;
    Ok(stop)
}

fn exit_code(results: &[RunResult]) -> ExitCode {
    let wrong = |result: &&RunResult| !result.mismatches.is_clean();
    if let Some(result) = results.iter().find(wrong) {
        let checked_nothing = result.totals.ok == 0 && result.mismatches.double == 0;
        let doubt = if checked_nothing {
            "--expect and --answer do not fit this server, or "
        } else {
            ""
        };
        eprintln!("funicular-perf: {doubt}callers got answers that were not theirs");
        ExitCode::from(EXIT_WRONG_ANSWERS)
    } else if results
        .iter()
        .flat_map(|result| &result.fail_if)
        .any(|condition| condition.failed)
    {
        ExitCode::from(EXIT_FAIL_IF)
    } else if let Some(result) = results.iter().find(|result| nothing_good(result)) {
        eprintln!("funicular-perf: {}: no good answer at all", result.name);
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// A run without a good answer, though nobody wrote down with --fail-if that this is how it should be.
fn nothing_good(result: &RunResult) -> bool {
    result.totals.ok == 0 && result.totals.errors > 0 && result.fail_if.is_empty()
}

fn make_report(arguments: &Report) -> anyhow::Result<ExitCode> {
    let results = arguments
        .results
        .iter()
        .map(|path| RunResult::read(path))
        .collect::<Result<Vec<_>, _>>()?;
    if let Some(path) = &arguments.html {
        let page = match &results[..] {
            [single] => report::html(single),
            several => report::compare_html(several),
        };
        std::fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))?;
    }
    match &results[..] {
        [single] => print!("{}", summary::text(single)),
        several => print!("{}", report::compare(several)),
    }
    Ok(ExitCode::SUCCESS)
}

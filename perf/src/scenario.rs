//! Scenarios: questions that are asked again of every build, as files under `perf/scenarios/`.
//!
//! A file states the question, the server that is started for it and the run; the conditions of its run are its pass mark. The
//! results go into the scenario section of `RESULTS.md`, between two markers, so that the rest of that page stays as people
//! wrote it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::Deserialize;

use crate::fail_if::{Condition, ConditionError};
use crate::monitor::Monitor;
use crate::options::{OptionsError, RunOptions};
use crate::result::RunResult;
use crate::server::{LocalServer, ServerError};
use crate::session::{self, Outputs, Session, SessionError};
use crate::target::TargetError;
use crate::units::Span;
use crate::{clock, machine};

/// The scenario section of `RESULTS.md` stands between these lines.
pub const MARKERS: (&str, &str) = ("<!-- scenarios: begin -->", "<!-- scenarios: end -->");

/// A question with the means to answer it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Scenario {
    /// The file's name without its ending.
    #[serde(skip)]
    pub name: String,
    /// What is asked.
    pub question: String,
    /// True if the arrivals are a recording, which is never part of the tree: whoever runs it says where it lies.
    #[serde(default)]
    pub needs_trace: bool,
    /// The server.
    pub server: ServerOptions,
    /// The run.
    pub run: RunOptions,
}

/// How the server is started.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ServerOptions {
    /// Simulated GPUs.
    pub gpus: u32,
    /// More arguments.
    #[serde(default)]
    pub args: Vec<String>,
}

/// What is the same for all scenarios of one go.
#[derive(Clone, Debug)]
pub struct Circumstances {
    /// The server's program.
    pub program: PathBuf,
    /// Recorded arrivals.
    pub trace: Option<PathBuf>,
    /// Instead of the scenarios' own durations; profiles and traces keep theirs.
    pub duration: Option<Span>,
    /// Where JSON, HTML, `.hgrm` and `.hlog` go.
    pub directory: PathBuf,
    /// No live progress.
    pub quiet: bool,
    /// Our own command line.
    pub command: Vec<String>,
    /// Ends the run early when set.
    pub stop: Arc<AtomicBool>,
}

/// A scenario can't be read or run.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file or directory can't be read.
    #[error("cannot read {path}")]
    Read {
        /// The path.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The folder of all scenarios can't be read.
    #[error(
        "cannot read the scenarios in {path}; run this in the repository, or name their folder with --dir"
    )]
    Folder {
        /// The folder.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The file is no scenario.
    #[error("{path} is no scenario")]
    Parse {
        /// The file.
        path: String,
        /// Where and why.
        source: toml::de::Error,
    },
    /// No such scenario.
    #[error(
        "there is no scenario `{name}`; name one of these, or a file that ends with .toml:\n{known}"
    )]
    Unknown {
        /// What was asked for.
        name: String,
        /// [`list`] of those that there are.
        known: String,
    },
    /// None was named.
    #[error("name a scenario, or a file that ends with .toml; there are:\n{0}")]
    NotNamed(String),
    /// No recording was given.
    #[error(
        "scenario {0} replays recorded arrivals, which are not part of this tree: give --trace FILE (an Azure LLM inference \
         trace, or one timestamp a line)"
    )]
    NeedsTrace(String),
    /// The results page has no place for the section.
    #[error("{path} has no line `{}` followed by a line `{}`", MARKERS.0, MARKERS.1)]
    Markers {
        /// The page.
        path: String,
    },
    /// The page can't be written.
    #[error("cannot write {path}")]
    Write {
        /// The page.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The options.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The address of the server's admin port.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The conditions.
    #[error(transparent)]
    Condition(#[from] ConditionError),
    /// The server.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The run.
    #[error(transparent)]
    Session(#[from] SessionError),
}

impl Scenario {
    /// Reads a scenario file.
    ///
    /// # Errors
    /// If it can't be read or is no scenario.
    pub fn read(path: &Path) -> Result<Scenario, ScenarioError> {
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|source| ScenarioError::Read {
            path: shown.clone(),
            source,
        })?;
        let mut scenario: Scenario =
            toml::from_str(&text).map_err(|source| ScenarioError::Parse {
                path: shown,
                source,
            })?;
        scenario.name = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        Ok(scenario)
    }

    /// Reads the scenario `name` of a directory; a name that ends with `.toml` is the path of its file.
    ///
    /// # Errors
    /// As [`Scenario::read`], and if there is none of that name; then the error lists those that there are.
    pub fn find(name: &str, directory: &Path) -> Result<Scenario, ScenarioError> {
        if name.ends_with(".toml") {
            return Scenario::read(Path::new(name));
        }
        let path = directory.join(format!("{name}.toml"));
        if !path.exists() {
            return Err(ScenarioError::Unknown {
                name: name.to_owned(),
                known: list(&Scenario::read_all(directory)?),
            });
        }
        Scenario::read(&path)
    }

    /// Reads all scenarios of a directory, by name.
    ///
    /// # Errors
    /// As [`Scenario::read`].
    pub fn read_all(directory: &Path) -> Result<Vec<Scenario>, ScenarioError> {
        let failed = |source| ScenarioError::Folder {
            path: directory.display().to_string(),
            source,
        };
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_some_and(|ending| ending == "toml") {
                paths.push(path);
            }
        }
        paths.sort();
        paths.iter().map(|path| Scenario::read(path)).collect()
    }

    /// Starts a server, drives it, stops it.
    ///
    /// # Errors
    /// If a recording is missing, or the server or the run fails. Conditions that hold are no errors: they stand in the result.
    pub fn run(&self, circumstances: &Circumstances) -> Result<RunResult, ScenarioError> {
        let options = self.options(circumstances)?;
        let conditions = self.conditions()?;
        let mut arguments = vec!["--gpus".to_owned(), self.server.gpus.to_string()];
        arguments.extend_from_slice(&self.server.args);
        let server = LocalServer::start(&circumstances.program, &arguments)?;
        let plan = options.plan(
            &server.url,
            machine::run_number(clock::wall()),
            false,
            machine::cores(),
        )?;
        for condition in &conditions {
            condition.check(plan.job.traffic.mix.names())?;
        }
        let session = Session {
            name: self.name.clone(),
            question: Some(self.question.clone()),
            command: circumstances.command.clone(),
            server_command: Some(server.command.clone()),
            monitor: Monitor::new(Some(&server.admin), Some(server.pid()))?,
            conditions,
            outputs: Outputs {
                directory: Some(circumstances.directory.clone()),
                ..Outputs::default()
            },
            quiet: circumstances.quiet,
            stop: Arc::clone(&circumstances.stop),
        };
        let (result, _) = session::run(&plan, session)?;
        server.stop()?;
        Ok(result)
    }

    /// The conditions of the run, read.
    ///
    /// # Errors
    /// If one is no condition.
    pub fn conditions(&self) -> Result<Vec<Condition>, ConditionError> {
        self.run.fail_if.iter().map(|text| text.parse()).collect()
    }

    fn options(&self, circumstances: &Circumstances) -> Result<RunOptions, ScenarioError> {
        let mut options = self.run.clone();
        if self.needs_trace {
            let trace = circumstances.trace.clone().or(options.trace);
            options.trace =
                Some(trace.ok_or_else(|| ScenarioError::NeedsTrace(self.name.clone()))?);
        } else if options.profile.is_none() {
            options.duration = circumstances.duration.or(options.duration);
        }
        Ok(options)
    }
}

/// Names and questions, a line each.
pub fn list(scenarios: &[Scenario]) -> String {
    let widest = scenarios.iter().map(|scenario| scenario.name.len()).max();
    let width = widest.unwrap_or_default();
    let line = |scenario: &Scenario| format!("  {:<width$}  {}", scenario.name, scenario.question);
    let lines: Vec<String> = scenarios.iter().map(line).collect();
    lines.join("\n")
}

/// Replaces what stands between the markers in `page` by `section`; `None` if the markers are not there.
pub fn replace_section(page: &str, section: &str) -> Option<String> {
    let (before, rest) = page.split_once(MARKERS.0)?;
    let (_, after) = rest.split_once(MARKERS.1)?;
    let (begin, end) = MARKERS;
    Some(format!(
        "{before}{begin}\n\n{}\n\n{end}{after}",
        section.trim()
    ))
}

/// Rewrites the scenario section of a page of results.
///
/// # Errors
/// If the page can't be read or written, or has no markers.
pub fn rewrite_results(path: &Path, section: &str) -> Result<(), ScenarioError> {
    let shown = path.display().to_string();
    let page = std::fs::read_to_string(path).map_err(|source| ScenarioError::Read {
        path: shown.clone(),
        source,
    })?;
    let page = replace_section(&page, section).ok_or_else(|| ScenarioError::Markers {
        path: shown.clone(),
    })?;
    std::fs::write(path, page).map_err(|source| ScenarioError::Write {
        path: shown,
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Load;

    fn ours() -> Vec<Scenario> {
        Scenario::read_all(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios")))
            .expect("our scenarios are read")
    }

    #[test]
    fn our_scenarios_are_the_promised_ones_and_make_plans() {
        let names: Vec<String> = ours().into_iter().map(|scenario| scenario.name).collect();
        let promised = [
            "launch-1000",
            "night",
            "overload-2x",
            "replay-conv",
            "saturation",
            "spike",
            "steady-700",
            "ten-thousand",
        ];
        assert_eq!(names, promised);
        for scenario in ours() {
            assert!(scenario.question.ends_with('?'), "{}", scenario.name);
            let conditions = scenario.conditions().expect("conditions");
            assert!(!conditions.is_empty(), "{} can't fail", scenario.name);
            if scenario.needs_trace {
                continue;
            }
            let plan = scenario
                .run
                .plan("http://127.0.0.1:1", 1, false, 2)
                .expect("a plan");
            for condition in conditions {
                condition
                    .check(plan.job.traffic.mix.names())
                    .expect("a tier of the mix");
            }
            assert_eq!(
                matches!(plan.job.load, Load::Closed { .. }),
                scenario.name == "saturation"
            );
        }
    }

    #[test]
    fn a_replay_without_a_recording_says_what_is_missing() {
        let scenario = ours()
            .into_iter()
            .find(|scenario| scenario.needs_trace)
            .expect("one replays");
        let circumstances = Circumstances {
            program: PathBuf::from("/does/not/exist"),
            trace: None,
            duration: None,
            directory: PathBuf::new(),
            quiet: true,
            command: Vec::new(),
            stop: Arc::default(),
        };
        let error = scenario.run(&circumstances).expect_err("no recording");
        assert!(error.to_string().contains("--trace FILE"), "{error}");
    }

    #[test]
    fn a_scenario_with_a_typing_error_is_refused_with_its_place() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("typo.toml");
        std::fs::write(
            &path,
            "question = \"?\"\n[server]\ngpus = 1\n[run]\nrat = 5\n",
        )
        .expect("written");
        let error = Scenario::read(&path).expect_err("no such option");
        let ScenarioError::Parse { source, .. } = error else {
            panic!("{error}")
        };
        assert!(source.to_string().contains("rat"), "{source}");
    }

    #[test]
    fn only_the_section_between_the_markers_changes() {
        let page = format!(
            "# Results\n\n{}\nold\n{}\n\n## Peers\n",
            MARKERS.0, MARKERS.1
        );
        let once = replace_section(&page, "## Scenarios\n\nnew\n").expect("markers");
        assert!(
            once.starts_with(
                "# Results\n\n<!-- scenarios: begin -->\n\n## Scenarios\n\nnew\n\n<!--"
            ),
            "{once}"
        );
        assert!(once.ends_with("\n\n## Peers\n"));
        assert_eq!(
            replace_section(&once, "## Scenarios\n\nnew\n"),
            Some(once.clone())
        );
        assert_eq!(replace_section("nothing", "x"), None);
    }
}

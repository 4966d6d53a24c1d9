//! The program as people and scripts use it: arguments, files, exit codes.

#[expect(
    dead_code,
    reason = "shared with the tests of the engine, which use all of it"
)]
mod support;

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use funicular_perf::result::RunResult;
use funicular_perf::scenario::MARKERS;
use support::{answer, json, serve};

const FAIL_IF: Option<i32> = Some(3);
const WRONG_ANSWERS: Option<i32> = Some(4);

fn perf(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_funicular-perf"))
        .args(arguments)
        .output()
        .expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn right() -> SocketAddr {
    serve(|asked| answer(200, &asked.right()))
}

/// A short run against `server`, with more arguments.
fn run(server: SocketAddr, more: &[&str]) -> Output {
    let url = format!("http://{server}");
    let mut arguments = vec![
        "run",
        &url,
        "--rate",
        "200",
        "--duration",
        "1s",
        "--connections",
        "20",
    ];
    arguments.extend_from_slice(more);
    perf(&arguments)
}

/// A run with all its files in a directory of its own.
struct Trial {
    directory: tempfile::TempDir,
    summary: String,
}

impl Trial {
    fn run() -> Trial {
        let directory = tempfile::tempdir().expect("a directory");
        let out = directory.path().to_str().expect("UTF-8");
        let dump = format!("{out}/dump.csv");
        let pid = std::process::id().to_string();
        let tiers = "enterprise=10,paid=30,free=60";
        let files = ["--out", out, "--dump", &dump];
        let more = ["--name", "trial", "--tiers", tiers, "--server-pid", &pid];
        let output = run(right(), &[&files[..], &more].concat());
        let (summary, said) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{summary}{said}");
        Trial { directory, summary }
    }

    fn path(&self, name: &str) -> String {
        let path = self.directory.path().join(name);
        path.to_str().expect("UTF-8").to_owned()
    }

    fn result(&self) -> RunResult {
        RunResult::read(Path::new(&self.path("trial.json"))).expect("a result")
    }
}

#[test]
fn a_run_is_summarised_and_written_as_json() {
    let trial = Trial::run();
    let summary = &trial.summary;
    assert!(summary.contains("enterprise"), "{summary}");
    assert!(summary.contains("200 good, 0 errors"), "{summary}");
    let result = trial.result();
    assert_eq!((result.name.as_str(), result.totals.ok), ("trial", 200));
    assert_eq!(result.tiers.len(), 3);
    assert_eq!(result.latency.corrected.summary.count, 200);
    let offered: u64 = result.intervals.iter().map(|second| second.offered).sum();
    assert_eq!(offered, 200);
    assert!((result.totals.offered_rate - 200.0).abs() < 0.01);
    assert!(result.configuration.open_loop);
    assert!(result.machine.cores > 0 && result.machine.memory_bytes > 0);
    assert!(result.server.expect("a local process").rss_bytes_max > 0);
    assert!(result.command.contains(&"trial".to_owned()));
}

#[test]
fn percentiles_agree_with_the_dump_that_lies_beside_them() {
    let trial = Trial::run();
    let dump = std::fs::read_to_string(trial.path("dump.csv")).expect("a dump");
    let corrected = |line: &str| line.split(',').nth(6).expect("a field").parse::<u64>();
    let mut latencies: Vec<u64> = dump.lines().skip(1).flat_map(corrected).collect();
    latencies.sort_unstable();
    assert_eq!(latencies.len(), 200);
    let summary = trial.result().latency.corrected.summary;
    for (found, rank) in [
        (summary.p50_ms, 100),
        (summary.p95_ms, 190),
        (summary.max_ms, 200),
    ] {
        let exact = latencies[rank - 1] as f64 / 1e6;
        assert!(
            (found - exact).abs() <= exact / 1000.0 + 0.001,
            "{found} for {exact}"
        );
    }
}

#[test]
fn the_files_of_a_run_can_be_made_into_reports() {
    let trial = Trial::run();
    for name in ["html", "hgrm", "uncorrected.hgrm", "paid.hgrm", "hlog"] {
        let file = std::fs::metadata(trial.path(&format!("trial.{name}")));
        assert!(file.is_ok_and(|file| file.len() > 100), "{name}");
    }
    let hgrm = std::fs::read_to_string(trial.path("trial.hgrm")).expect("a file");
    assert!(hgrm.contains("Total count    =          200]"), "{hgrm}");

    let (json, page) = (trial.path("trial.json"), trial.path("both.html"));
    let compared = perf(&["report", &json, &json, "--html", &page]);
    assert!(
        compared.status.success() && !compared.stdout.is_empty(),
        "{}",
        text(&compared.stderr)
    );
    assert!(
        std::fs::read_to_string(page)
            .expect("a page")
            .contains("</html>")
    );
    assert_eq!(text(&perf(&["report", &json]).stdout), trial.summary);
}

#[test]
fn conditions_decide_the_exit_code() {
    let server = right();
    assert_eq!(
        run(server, &["--fail-if", "p95>5s", "--fail-if", "errors>0"])
            .status
            .code(),
        Some(0)
    );
    let failed = run(server, &["--fail-if", "achieved>1"]);
    assert_eq!(failed.status.code(), FAIL_IF);
    assert!(
        text(&failed.stdout).contains("FAIL fail-if achieved>1"),
        "{}",
        text(&failed.stdout)
    );
    let unreadable = run(server, &["--fail-if", "p95>5"]);
    assert_eq!(unreadable.status.code(), Some(2));
    assert!(
        text(&unreadable.stderr).contains("`5` is no value"),
        "{}",
        text(&unreadable.stderr)
    );
    assert!(text(&perf(&["conditions"]).stdout).contains("error_rate"));
}

#[test]
fn wrong_answers_are_loud() {
    let server = serve(|_| answer(200, &json("SOMEBODY ELSE'S")));
    let output = run(server, &["--fail-if", "errors>0"]);
    assert_eq!(output.status.code(), WRONG_ANSWERS);
    assert!(
        text(&output.stdout).contains("WRONG ANSWERS: 200 wrong"),
        "{}",
        text(&output.stdout)
    );
    assert!(
        text(&output.stdout).contains("SOMEBODY ELSE"),
        "{}",
        text(&output.stdout)
    );
    assert!(
        text(&output.stderr).contains("not theirs"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn what_can_not_be_done_is_said() {
    for (arguments, code, words) in [
        (
            vec!["run", "http://127.0.0.1:1", "--rate", "1"],
            1,
            "cannot connect to 127.0.0.1:1",
        ),
        (vec!["run", "ftp://x"], 2, "is no URL"),
        (
            vec!["run", "--rate", "10", "--profile", "0:1"],
            2,
            "cannot be used with",
        ),
        (vec!["run", "--hangup", "2"], 2, "is no share"),
        (
            vec!["report", "/does/not/exist.json"],
            1,
            "cannot read /does/not/exist.json",
        ),
        (vec![], 2, "Usage"),
    ] {
        let output = perf(&arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        assert!(
            text(&output.stderr).contains(words),
            "{arguments:?}: {}",
            text(&output.stderr)
        );
    }
}

#[test]
fn the_help_explains_every_option_and_the_exit_codes() {
    let help = text(&perf(&["run", "--help"]).stdout);
    for words in [
        "--rate",
        "--trace",
        "--profile",
        "--fail-if",
        "EXIT CODES",
        "EXAMPLES",
        "Other servers:",
        "--expect",
    ] {
        assert!(help.contains(words), "{words}: {help}");
    }
}

/// A program that says where two servers of this test listen, in the words of the start-up screen, and ends on SIGTERM.
fn stand_in(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let server = serve(|asked| {
        support::wait(Duration::from_millis(5));
        answer(200, &asked.right())
    });
    let metrics = "funicular_capacity_requests_per_second 1000\nfunicular_zone 0\nfunicular_gpu_up{gpu=\"0\"} 1\n";
    let admin = serve(move |_| answer(200, metrics));
    let script = format!(
        "#!/bin/sh\ntrap 'exit 0' TERM\necho '  listening on http://{server}'\necho '  admin on http://{admin}' >&2\n\
         while :; do sleep 0.1; done\n"
    );
    std::fs::write(path, script).expect("written");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("ours");
}

/// A directory with two scenarios, a server, a recording and a page of results.
struct Workplace(tempfile::TempDir);

impl Workplace {
    fn new() -> Workplace {
        let place = Workplace(tempfile::tempdir().expect("a directory"));
        std::fs::create_dir(place.path("scenarios")).expect("made");
        let server = "[server]\ngpus = 1\n";
        let run = "[run]\nrate = 100\nduration = \"1s\"\nconnections = 20\n";
        let conditions = "fail-if = [\"errors>0\", \"p50<5ms\", \"p50>1s\"]\n";
        let easy = format!("question = \"Is it easy?\"\n{server}{run}{conditions}");
        place.write("scenarios/easy.toml", &easy);
        let replay = format!("question = \"Again?\"\nneeds-trace = true\n{server}{run}");
        place.write("scenarios/replay.toml", &replay);
        place.write("trace.txt", "0\n0.5\n1\n");
        let (begin, end) = MARKERS;
        place.write(
            "RESULTS.md",
            &format!("# Results\n\n{begin}\nold\n{end}\n\nThe end.\n"),
        );
        stand_in(Path::new(&place.path("server.sh")));
        place
    }

    fn path(&self, name: &str) -> String {
        let path = self.0.path().join(name);
        path.to_str().expect("UTF-8").to_owned()
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("written");
    }

    fn perf(&self, arguments: &[&str]) -> Output {
        let (server, scenarios) = (self.path("server.sh"), self.path("scenarios"));
        let reports = self.path("reports");
        let common = [
            "--server", &server, "--dir", &scenarios, "--out", &reports, "--quiet",
        ];
        perf(&[arguments, &common].concat())
    }

    /// Runs all scenarios; returns the page of results and what went to the terminal's error output.
    fn all(&self, more: &[&str]) -> (String, String) {
        let results = self.path("RESULTS.md");
        let output = self.perf(&[&["scenarios", "--results", &results], more].concat());
        let said = text(&output.stderr);
        assert!(output.status.success(), "{}{said}", text(&output.stdout));
        (std::fs::read_to_string(&results).expect("a page"), said)
    }
}

#[test]
fn all_scenarios_rewrite_their_section_and_nothing_else() {
    let place = Workplace::new();
    let (page, said) = place.all(&[]);
    assert!(
        page.starts_with("# Results\n\n") && page.ends_with("\n\nThe end.\n"),
        "{page}"
    );
    assert!(
        page.contains("Is it easy?") && !page.contains("old\n"),
        "{page}"
    );
    assert!(!page.contains("Again?"), "{page}");
    assert!(
        said.contains("left out: scenario replay replays recorded arrivals"),
        "{said}"
    );

    let (page, said) = place.all(&["--trace", &place.path("trace.txt")]);
    assert!(said.is_empty() && page.contains("Again?"), "{said}{page}");
}

#[test]
fn a_scenario_starts_its_server_and_watches_it() {
    let place = Workplace::new();
    let output = place.perf(&["scenario", "easy"]);
    assert!(
        output.status.success(),
        "{}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    let result = RunResult::read(Path::new(&place.path("reports/easy.json"))).expect("a result");
    let command = result.server_command.expect("we started it");
    let expected = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
        "--gpus",
        "1",
    ];
    assert_eq!(command[1..], expected);
    assert_eq!(result.gpu.expect("it has metrics").capacity, 1000.0);
    assert_eq!(result.zones[0].zone, "green");
    assert_eq!(result.fail_if.len(), 3);

    let alone = place.perf(&["scenario", "replay"]);
    assert_eq!(alone.status.code(), Some(1));
    assert!(
        text(&alone.stderr).contains("--trace FILE"),
        "{}",
        text(&alone.stderr)
    );
}

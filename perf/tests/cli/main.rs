//! The program as people and scripts use it: arguments, files, exit codes.

mod scenarios;
#[expect(
    dead_code,
    reason = "shared with the tests of the engine, which use all of it"
)]
#[path = "../support/mod.rs"]
mod support;

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use funicular_perf::result::RunResult;
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
    let load = ["--rate", "200", "--duration", "1s", "--connections", "20"];
    let mut arguments = vec!["run", &url, "--timeout", "60s"];
    arguments.extend_from_slice(&load);
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
        assert!(
            said.contains(&format!("wrote {out}/trial.html, ")),
            "{said}"
        );
        for name in ["trial.json", "trial.paid.hgrm", "trial.hlog", "dump.csv"] {
            assert!(said.contains(&format!("{out}/{name}")), "{name}: {said}");
        }
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
        run(server, &["--fail-if", "p95>50s", "--fail-if", "errors>0"])
            .status
            .code(),
        Some(0)
    );
    let failed = run(server, &["--fail-if", "achieved>1"]);
    assert_eq!(failed.status.code(), FAIL_IF);
    // How much exactly depends on when the last answers came.
    let said = text(&failed.stdout);
    assert!(
        said.contains("FAILED: achieved is ") && said.contains(", must not be > 1\n"),
        "{said}"
    );
    let unreadable = run(server, &["--fail-if", "p95>5"]);
    assert_eq!(unreadable.status.code(), Some(2));
    assert!(
        text(&unreadable.stderr)
            .contains("`5` is no value for this metric: it needs a unit, as in 5ms"),
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
            "cannot connect to 127.0.0.1:1: Connection refused (os error 111); is the server running?",
        ),
        (vec!["run", "ftp://x"], 2, "is no URL"),
        (
            vec!["run", "--rate", "10", "--profile", "0:1"],
            2,
            "cannot be used with",
        ),
        (vec!["run", "--hangup", "2"], 2, "is no share"),
        (vec!["run", "--hangup", "1"], 2, "write a percentage"),
        (vec!["run", "--rate", "abc"], 2, "write requests per second"),
        (vec!["run", "--threads", "x"], 2, "is no whole number"),
        (vec!["run", "--server-pid", "me"], 2, "is no whole number"),
        (
            vec!["run", "--request-template", "{\"x\":1}"],
            2,
            "has no {input}",
        ),
        (
            vec!["run", "--header", "X-Tier enterprise"],
            2,
            "is no header",
        ),
        (
            vec!["run", "--trace", "/does/not/exist"],
            1,
            "cannot read the trace /does/not/exist",
        ),
        (
            vec!["run", "--lines", "/does/not/exist"],
            1,
            "cannot read the inputs in /does/not/exist",
        ),
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
fn a_server_that_is_just_starting_is_waited_for() {
    let (socket, address) = support::refusing();
    std::thread::spawn(move || {
        support::wait(Duration::from_millis(400));
        let listener = support::listen(socket);
        support::serve_on(listener, |asked| answer(200, &asked.right()))
    });
    let output = run(address, &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn a_run_that_can_not_begin_leaves_no_files_and_says_what_is_not_there() {
    let directory = tempfile::tempdir().expect("a directory");
    let out = directory.path().join("reports");
    let out = out.to_str().expect("UTF-8");
    let server = right();
    let nobody = perf(&["run", "http://127.0.0.1:1", "--rate", "1", "--out", out]);
    assert_eq!(nobody.status.code(), Some(1));
    for (watch, words) in [
        (
            ["--admin", "http://127.0.0.1:1"],
            "cannot read http://127.0.0.1:1/metrics: connection refused; --admin wants",
        ),
        (
            ["--server-pid", "999999999"],
            "there is no process 999999999",
        ),
    ] {
        let output = run(server, &[&watch[..], &["--out", out]].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(words), "{said}");
    }
    assert!(!Path::new(out).exists());
}

#[test]
fn a_run_in_which_nothing_worked_is_no_success() {
    let server = serve(|_| answer(404, "{\"title\":\"there is no such path\"}"));
    let output = run(server, &[]);
    let summary = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{summary}");
    assert!(
        summary.contains("the first 404: {\"title\":\"there is no such path\"}"),
        "{summary}"
    );
    assert!(
        summary.contains("warning: no good answer at all"),
        "{summary}"
    );
    assert!(summary.contains("p50 –  p95 –"), "{summary}");
    assert!(text(&output.stderr).contains("no good answer at all"));
    let expected = run(server, &["--fail-if", "count{status=404}<200"]);
    assert_eq!(expected.status.code(), Some(0), "it was to be so");
}

#[test]
fn a_check_that_does_not_fit_is_doubted_before_the_server() {
    let output = run(right(), &["--expect", "/foo"]);
    let summary = text(&output.stdout);
    assert_eq!(output.status.code(), WRONG_ANSWERS);
    assert!(
        summary.contains("200 answers have no /foo; see --expect."),
        "{summary}"
    );
    let output = run(right(), &["--answer", "echo"]);
    assert!(
        text(&output.stdout).contains("are --expect and --answer right for this server?"),
        "{}",
        text(&output.stdout)
    );
}

#[test]
fn few_descriptors_are_no_reason_to_fail_by_default() {
    let url = format!("http://{}", right());
    let limited = |more: &[&str]| {
        Command::new("sh")
            .args(["-c", "ulimit -n 256; exec \"$0\" \"$@\""])
            .arg(env!("CARGO_BIN_EXE_funicular-perf"))
            .args(["run", &url, "--rate", "50", "--duration", "1s"])
            .args(more)
            .output()
            .expect("a shell")
    };
    let output = limited(&[]);
    let summary = text(&output.stdout);
    assert!(
        output.status.success() && summary.contains("192 connections instead of 1,000"),
        "{summary}{}",
        text(&output.stderr)
    );
    let asked = limited(&["--connections", "1000"]);
    assert_eq!(asked.status.code(), Some(1));
    assert!(text(&asked.stderr).contains("ulimit -n"));
}

#[test]
fn an_interrupt_ends_a_run_with_rates_over_the_time_that_passed() {
    use rustix::process::{Pid, Signal, kill_process};
    let (seen, enough) = std::sync::mpsc::channel();
    let seen = std::sync::Mutex::new((0, seen));
    let server = serve(move |asked| {
        let mut seen = seen.lock().expect("no panics under the lock");
        seen.0 += 1;
        if seen.0 == 150 {
            let _ = seen.1.send(());
        }
        answer(200, &asked.right())
    });
    let url = format!("http://{server}");
    let child = Command::new(env!("CARGO_BIN_EXE_funicular-perf"))
        .args(["run", &url, "--rate", "100", "--duration", "60s"])
        .args(["--connections", "20"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the program starts");
    enough
        .recv_timeout(Duration::from_secs(60))
        .expect("150 requests");
    let pid = Pid::from_raw(child.id().cast_signed()).expect("a process");
    kill_process(pid, Signal::INT).expect("it is ours");
    let output = child.wait_with_output().expect("it ends");
    let summary = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(summary.contains(" of 60 s, 20 connections"), "{summary}");
    assert!(summary.contains("offered 100."), "{summary}");
    assert!(summary.contains("stopped early, after "), "{summary}");
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

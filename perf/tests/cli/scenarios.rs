//! Scenarios, from the file to the page of results: the server is a stand-in of a few lines.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use funicular_perf::result::RunResult;
use funicular_perf::scenario::MARKERS;

use crate::support::{self, answer, serve};
use crate::{perf, text};

/// A program that says where two servers of this test listen, in the words of the start-up screen, and ends on SIGTERM.
fn stand_in(path: &Path) {
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
    let plain = path.with_extension("txt");
    std::fs::write(&plain, script).expect("written");
    // A program can't be started while somebody has it open for writing, which a child that another thread starts just now
    // might have from us. So a process of its own writes it.
    let installed = Command::new("install")
        .args(["-m", "755"])
        .args([&plain, path])
        .status();
    assert!(installed.is_ok_and(|status| status.success()));
}

/// A directory with two scenarios, a server, a recording and a page of results.
struct Workplace(tempfile::TempDir);

impl Workplace {
    fn new() -> Workplace {
        let place = Workplace(tempfile::tempdir().expect("a directory"));
        std::fs::create_dir(place.path("scenarios")).expect("made");
        let server = "[server]\ngpus = 1\n";
        let run = "[run]\nrate = 100\nduration = \"1s\"\nconnections = 20\ntimeout = \"60s\"\n";
        let conditions = "fail-if = [\"errors>0\", \"p50<5ms\", \"p50>50s\"]\n";
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

#[test]
fn the_server_beside_the_program_is_found_and_a_missing_one_explained() {
    let place = Workplace::new();
    let beside = place.path("funicular-perf");
    let copied = Command::new("cp")
        .args([env!("CARGO_BIN_EXE_funicular-perf"), &beside])
        .status();
    assert!(copied.is_ok_and(|status| status.success()));
    let run = |path: &str| {
        let output = Command::new(&beside)
            .current_dir(place.path(""))
            .env("PATH", path)
            .args([
                "scenario",
                "easy",
                "--dir",
                "scenarios",
                "--out",
                "reports",
                "--quiet",
            ])
            .output();
        output.expect("the program starts")
    };
    let missing = run(&place.path("scenarios"));
    let said = text(&missing.stderr);
    assert_eq!(missing.status.code(), Some(1), "{said}");
    assert!(
        said.contains("there is no target/release/funicular here, no funicular beside"),
        "{said}"
    );
    assert!(said.contains("--server"), "{said}");

    // The stand-in starts others, by absolute paths.
    stand_in(Path::new(&place.path("funicular")));
    let path = std::env::var("PATH").expect("a path");
    let found = run(&path);
    assert!(
        found.status.success(),
        "{}{}",
        text(&found.stdout),
        text(&found.stderr)
    );
}

#[test]
fn scenarios_are_listed_where_none_or_an_unknown_one_is_named() {
    let place = Workplace::new();
    for names in [&["scenario"][..], &["scenario", "easy", "hard"]] {
        let output = place.perf(names);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.contains("  easy    Is it easy?\n  replay  Again?"),
            "{said}"
        );
        assert!(output.stdout.is_empty(), "nothing was run");
    }
}

#[test]
fn several_scenarios_end_with_a_line_each() {
    let place = Workplace::new();
    let trace = place.path("trace.txt");
    let output = place.perf(&["scenario", "easy", "replay", "--trace", &trace]);
    let (summary, said) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{summary}{said}");
    let last: Vec<&str> = summary.lines().rev().take(3).collect();
    assert!(
        last[2].starts_with("easy: ") && last[2].contains("passed; good "),
        "{summary}"
    );
    assert!(
        last[1].starts_with("replay: ") && last[0].starts_with("reports are in "),
        "{summary}"
    );
}

#[test]
fn a_quick_look_leaves_the_results_page_alone() {
    let place = Workplace::new();
    let before = std::fs::read_to_string(place.path("RESULTS.md")).expect("a page");
    std::fs::create_dir(place.path("perf")).expect("made");
    place.write("perf/RESULTS.md", &before);
    let (server, scenarios) = (place.path("server.sh"), place.path("scenarios"));
    let output = Command::new(env!("CARGO_BIN_EXE_funicular-perf"))
        .current_dir(place.path(""))
        .args(["scenarios", "-d", "1s", "--quiet", "--server", &server])
        .args(["--dir", &scenarios, "--out", "reports"])
        .output()
        .expect("the program starts");
    let summary = text(&output.stdout);
    assert!(output.status.success(), "{summary}{}", text(&output.stderr));
    assert!(
        summary.contains("perf/RESULTS.md is left as it was"),
        "{summary}"
    );
    let after = std::fs::read_to_string(place.path("perf/RESULTS.md")).expect("a page");
    assert_eq!(after, before);

    let (page, _) = place.all(&["-d", "1s"]);
    assert!(page.contains("Is it easy?"), "named, it is written");
}

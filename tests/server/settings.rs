//! The command line and the configuration file, as operators meet them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::support::server::{command, run};
use crate::support::{Client, Server, wait_for};

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("funicular.example.toml")
}

/// Runs the binary, which must refuse, and gives what it says.
fn refused(arguments: &[&str], code: i32) -> String {
    let output = run(arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    assert!(!said.contains("panicked"), "{said}");
    said
}

/// What `check` prints.
fn check(arguments: &[&str]) -> String {
    let output = run(&[&["check"], arguments].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    String::from_utf8(output.stdout).expect("text")
}

fn file(text: &str) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("funicular.toml");
    std::fs::write(&path, text).expect("writable");
    let path = path.to_str().expect("text").to_owned();
    (directory, path)
}

#[test]
fn without_a_gpu_the_cuda_executor_says_what_is_missing() {
    let output = run(&["devices", "--json"]);
    let listing: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    if output.status.success() {
        eprintln!("skipped: this machine has a GPU");
        assert!(listing["devices"][0]["name"].is_string(), "{listing}");
        return;
    }
    let problem = listing["problem"].as_str().expect("a reason");
    assert_eq!(listing["devices"], serde_json::json!([]));
    assert!(refused(&["devices"], 1).contains(problem));
    for command in ["serve", "worker", "check"] {
        let said = refused(&[command, "--executor", "cuda"], 2);
        let expected = format!("--executor: executor is cuda, but {problem}");
        assert_eq!(said.trim_end(), expected);
    }
}

#[test]
fn nonsense_is_refused_with_a_reason() {
    for (flags, reason) in [
        (&["--nonsense"][..], "--nonsense"),
        (&["--gpus", "0"], "gpus"),
        (&["--gpus", "many"], "gpus"),
        (&["--batch-max", "-5"], "batch"),
        (&["--patience", "-1"], "patience"),
        (&["--sim-jitter", "2"], "jitter"),
        (&["--listen", "nowhere"], "listen"),
        (&["--executor", "abacus"], "abacus"),
        (&["--deadline-ms", "0"], "deadline"),
        (&["--queue-bound", "10"], "queue"),
        (&["--hold-max-ms", "5000"], "hold"),
        (&["--max-connections", "100000000"], "connections"),
        (&["--sim-fault", "kind=tired"], "tired"),
        (&["--config", "/nonexistent.toml"], "/nonexistent.toml"),
    ] {
        let said = refused(flags, 2);
        assert!(said.contains(reason), "{flags:?}: {said}");
    }
}

#[test]
fn a_misspelt_setting_is_refused_with_the_nearest_name() {
    for (text, wanted) in [
        ("gpu = 3\n", "gpus"),
        ("[batch]\nbatch_mx = 10\n", "batch_max"),
        ("[timeout]\nidle_ms = 10\n", "timeouts"),
    ] {
        let (_directory, path) = file(text);
        let said = refused(&["--config", &path], 2);
        assert!(said.contains(wanted) && said.contains(&path), "{said}");
    }
    let (_directory, path) = file("gpus = \n");
    refused(&["--config", &path], 2);
    let (_directory, path) = file("gpus = \"four\"\n");
    refused(&["--config", &path], 2);
}

#[test]
fn a_worker_is_checked_with_its_own_defaults() {
    let checked = |arguments: &[&str]| {
        let output = run(&[&["worker", "--check"], arguments].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let printed = checked(&["--canary", "hm"]);
    assert!(
        printed.contains("the effective configuration of a worker"),
        "{printed}"
    );
    let table: toml::Table = printed.parse().expect("a file that --config takes");
    assert_eq!(table["listen"].as_str(), Some("127.0.0.1:8081"));
    assert_eq!(table["gpus"].as_integer(), Some(1));
    assert_eq!(table["canary"].as_str(), Some("hm"));
    let folder = tempfile::tempdir().expect("a folder");
    let copy = folder.path().join("copy.toml");
    std::fs::write(&copy, &printed).expect("written");
    let copy = copy.to_str().expect("text");
    assert_eq!(checked(&["--config", copy]), printed);
    let refused = run(&["worker", "--check", "--gpus", "2"]);
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn check_prints_what_would_hold_and_its_output_is_a_configuration() {
    let (_directory, path) = file("gpus = 3\n[batch]\nbatch_max = 50\n");
    let printed = check(&["--config", &path, "--gpus", "5"]);
    let table: toml::Table = printed.parse().expect("TOML");
    assert_eq!(
        table["gpus"].as_integer(),
        Some(5),
        "the flag beats the file"
    );
    assert_eq!(table["batch"]["batch_max"].as_integer(), Some(50));
    let (_directory, copy) = file(&printed);
    assert_eq!(check(&["--config", &copy]), printed);
}

#[test]
fn flags_may_stand_before_the_command() {
    let after = check(&["--gpus", "2"]);
    let before = run(&["--gpus", "2", "check"]);
    let said = String::from_utf8_lossy(&before.stderr);
    assert!(before.status.success(), "{said}");
    assert_eq!(String::from_utf8_lossy(&before.stdout), after);
}

#[test]
fn the_example_file_says_what_holds_without_it() {
    let example = example();
    let example = example.to_str().expect("text");
    assert_eq!(check(&["--config", example]), check(&[]));
}

#[test]
fn the_version_is_that_of_the_package() {
    for arguments in [&["--version"][..], &["version"]] {
        let output = run(arguments);
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(
            text.trim(),
            format!("funicular {}", env!("CARGO_PKG_VERSION"))
        );
    }
    let help = run(&["--help"]);
    let help = String::from_utf8_lossy(&help.stdout);
    for name in ["serve", "check", "--listen", "--gpus", "--config"] {
        assert!(help.contains(name), "{name} is missing in\n{help}");
    }
}

#[test]
fn serve_is_what_it_does_without_a_command() {
    let flags = ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let server = Server::start_with(&[&flags[..], &["--sim-latency-ms", "1"]].concat());
    server.infer("x").expect_output("x");
}

#[test]
fn a_second_server_on_the_same_port_is_refused_and_the_first_one_goes_on() {
    let server = Server::start(&["--sim-latency-ms", "1"]);
    let (listen, admin) = (
        server.listen().to_string(),
        server.admin().expect("on").to_string(),
    );
    let said = refused(&["--listen", &listen, "--admin", "127.0.0.1:0"], 1);
    let way_out = "is in use by another process; choose another with";
    let free = "(port 0 takes a free one)";
    assert_eq!(
        said.trim(),
        format!("funicular: {listen} {way_out} --listen {free}")
    );
    let said = refused(&["--listen", "127.0.0.1:0", "--admin", &admin], 1);
    assert_eq!(
        said.trim(),
        format!("funicular: {admin} {way_out} --admin {free}")
    );
    let said = refused(&["--listen", "192.0.2.1:80", "--admin", "off"], 1);
    let wanted = "funicular: 192.0.2.1:80 is not an address of this machine; choose one of its own with --listen";
    assert!(said.starts_with(wanted), "{said}");
    for _ in 0..20 {
        server.infer("x").expect_output("x");
        assert_eq!(server.admin_get("/healthz").status, 200);
    }
}

#[test]
fn the_screen_is_the_last_thing_at_the_start() {
    let shown = tempfile::NamedTempFile::new().expect("a file");
    // Both streams append to one file, as they would to one terminal.
    let appending = || {
        let file = File::options().append(true).open(shown.path());
        Stdio::from(file.expect("the file"))
    };
    // Canaries that come back one after another.
    let slow = [
        "--gpus",
        "8",
        "--sim-latency-ms",
        "300",
        "--sim-jitter",
        "1",
    ];
    let ports = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let mut child = command(&[&ports[..], &slow].concat())
        .stdout(appending())
        .stderr(appending())
        .spawn()
        .expect("the binary can be run");
    let text = || std::fs::read_to_string(shown.path()).unwrap_or_default();
    wait_for("the screen and all GPUs", || {
        let text = text();
        text.contains("\n  curl ") && text.matches("is ready").count() == 8
    });
    let _ = child.kill();
    child.wait().expect("it ends");
    let text = text();
    let (_, after) = text.split_once("\n  curl ").expect("a curl line");
    assert!(!after.contains("INFO"), "{text}");
}

#[test]
fn the_admin_plane_can_be_off() {
    let server = Server::start(&["--sim-latency-ms", "1", "--admin", "off"]);
    assert_eq!(server.admin(), None);
    assert!(server.screen().contains("admin off"));
    server.infer("x").expect_output("x");
}

#[test]
fn port_0_takes_a_free_port_and_says_which() {
    let server = Server::start(&["--sim-latency-ms", "1"]);
    let (listen, admin) = (server.listen(), server.admin().expect("on"));
    assert!(listen.port() != 0 && admin.port() != 0 && listen != admin);
    let status = server.status();
    assert_eq!(status["listen"], listen.to_string());
    assert_eq!(status["admin"], admin.to_string());
}

#[test]
fn it_listens_on_ipv6_and_on_every_address() {
    let server = Server::start(&[
        "--listen",
        "0.0.0.0:0",
        "--admin",
        "127.0.0.1:0",
        "--sim-latency-ms",
        "1",
    ]);
    assert!(
        server.screen().contains("beyond this machine"),
        "X-Tier is believed of anybody: {}",
        server.screen()
    );
    let local = std::net::SocketAddr::from(([127, 0, 0, 1], server.listen().port()));
    Client::connect(local).infer("x").expect_output("x");
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        eprintln!("skipped: this machine has no IPv6");
        return;
    }
    let server = Server::start(&[
        "--listen",
        "[::1]:0",
        "--admin",
        "[::1]:0",
        "--sim-latency-ms",
        "1",
    ]);
    server.infer("x").expect_output("x");
    assert_eq!(server.admin_get("/healthz").status, 200);
}

#[test]
fn acceptor_cores_can_be_chosen() {
    for cores in ["1", "0-0", "auto"] {
        let server = Server::start(&["--cores", cores, "--sim-latency-ms", "1"]);
        for _ in 0..5 {
            server.infer("x").expect_output("x");
        }
    }
}

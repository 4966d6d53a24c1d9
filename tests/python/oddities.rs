//! Functions whose outputs bite, that fork, that leave alarms behind: nobody but their own callers must notice.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout};

use rustix::process::Signal;

use crate::failures::send;
use crate::model::{Model, workers};
use crate::steady::widened;
use crate::support::server::command;
use crate::support::tools::is_there;
use crate::support::{Client, heavy, in_parallel, unique, wait_for, wait_some};

/// Outputs that are strings and tuples by name, and raise when they are looked at: their own inputs pay for that.
#[test]
fn outputs_that_raise_when_they_are_looked_at_cost_nobody_else() {
    if !is_there("python3") {
        return;
    }
    let source = r#"
class Text(str):
    def encode(self, *how):
        raise KeyboardInterrupt("encode")
class Pair(tuple):
    def __len__(self):
        raise SystemExit(3)
class Number:
    def __index__(self):
        raise KeyboardInterrupt("index")
class Hidden:
    @property
    def __class__(self):
        raise RuntimeError("class")
ODD = {"pair": Pair(("a", 1)), "number": ("a", Number()), "hidden": Hidden(), "half": Text("\ud800")}
def batchstring(inputs):
    return [ODD.get(text, Text(text.upper())) for text in inputs]
"#;
    let flags = [
        "--batch-max",
        "20",
        "--hold-max-ms",
        "20000",
        "--patience",
        "inf",
    ];
    let server = Model::new(source).serve(1, &flags);
    let odd = [
        ("pair", "can't be read: SystemExit: 3"),
        ("number", "can't be read: KeyboardInterrupt: index"),
        ("hidden", "can't be read: RuntimeError: class"),
        ("half", "lone surrogate U+D800"),
    ];
    in_parallel(20, |index| match odd.get(index) {
        Some((input, says)) => {
            let problem = server.infer(input).expect_problem(422);
            let detail = problem["detail"].as_str().expect("text");
            assert!(detail.contains(says), "{input}: {detail}");
        }
        None => {
            let text = unique("clean");
            server.infer(&text).expect_output(&text);
        }
    });
    assert!(!server.log().contains(" is down: "));
}

/// 160 MB of them: the server must neither hold them nor send them on.
#[test]
fn outputs_that_are_far_too_long_fill_no_memory() {
    if !is_there("python3") {
        return;
    }
    let _alone = heavy();
    let source = "def batchstring(inputs):\n    return ['é' * 4_000_000 if text == 'long' else text.upper() for text in inputs]\n";
    let flags = [
        "--batch-max",
        "21",
        "--hold-max-ms",
        "20000",
        "--patience",
        "inf",
    ];
    let server = Model::new(source).serve(1, &flags);
    in_parallel(21, |index| {
        if index == 7 {
            server.infer("short").expect_output("short");
        } else {
            let problem = server.infer("long").expect_problem(500);
            let detail = problem["detail"].as_str().expect("text");
            assert_eq!(detail, "the output is longer than 262144 bytes");
        }
    });
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid()));
    let Ok(status) = status else {
        eprintln!("skipped in part: no /proc tells how much memory was used");
        return;
    };
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
    let peak_kib: u64 = peak.and_then(|kib| kib.parse().ok()).expect("a peak");
    assert!(peak_kib < 120 << 10, "{peak_kib} KiB");
}

#[test]
fn a_forked_process_that_comes_back_answers_nobody() {
    if !is_there("python3") {
        return;
    }
    let source = r#"
import os, sys
def batchstring(inputs):
    if "fork" in inputs and os.fork() == 0:
        return ["from the child"] * len(inputs)
    if "raise" in inputs and os.fork() == 0:
        raise ValueError("from the child")
    if "exit" in inputs:
        child = os.fork()
        if child == 0:
            sys.exit(7)
        return [str(os.waitpid(child, 0)[1] >> 8)] * len(inputs)
    return [text.upper() for text in inputs]
"#;
    let server = Model::new(source).serve(1, &[]);
    for _ in 0..3 {
        server.infer("fork").expect_output("fork");
        server.infer("raise").expect_output("raise");
        assert_eq!(server.infer("exit").output(), "7");
        server.infer("a").expect_output("a");
    }
    server.wait_log("a process that the batch function forked came back from it");
    let log = server.log();
    assert!(!log.contains(" is down: "), "{log}");
    assert!(!log.contains("the batch function raised"), "{log}");
}

/// As a time limit of the function's own that strikes too late: the worker is lost, and says why.
#[test]
fn what_a_signal_handler_raises_between_two_batches_is_named() {
    if !is_there("python3") {
        return;
    }
    let source = r#"
import signal
def late(*what):
    raise TimeoutError("too late")
signal.signal(signal.SIGALRM, late)
def batchstring(inputs):
    return [text.upper() for text in inputs]
"#;
    let server = Model::new(source).serve(1, &[]);
    server.infer("before").expect_output("before");
    // Whoever has its answer knows that the function has returned.
    send(workers(&server)[0], Signal::ALARM);
    server.wait_log("is down: its worker process exited with status 4");
    server.wait_log("its last words: outside of the batch function: TimeoutError: too late");
    wait_for("its return", || server.infer("a").status == 200);
}

/// A server whose standard error is a pipe that nobody reads; killed when dropped.
struct Unread {
    child: Child,
    /// Or the server's next line there would be one too many.
    _screen: BufReader<ChildStdout>,
    address: SocketAddr,
}

impl Unread {
    fn start(arguments: &[&str]) -> Unread {
        let mut child = command(arguments).spawn().expect("it starts");
        let mut screen = BufReader::new(child.stdout.take().expect("piped"));
        let mut lines = screen.by_ref().lines().map_while(Result::ok);
        let address = lines.find_map(|line| {
            line.trim()
                .strip_prefix("listening on http://")?
                .parse()
                .ok()
        });
        let Some(address) = address else {
            let _ = child.kill();
            panic!("it ended without a screen: {:?}", child.wait());
        };
        Unread {
            child,
            _screen: screen,
            address,
        }
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Standard error is a pipe that nobody reads, and what the function prints is more than it holds.
#[test]
fn a_log_that_nobody_reads_holds_nobody_up() {
    if !is_there("python3") {
        return;
    }
    let source = "def batchstring(inputs):\n    print('x' * 300_000)\n    return [text.upper() for text in inputs]\n";
    let model = Model::new(source);
    let target = model.target("");
    let flags = [
        "--python",
        &target,
        "--gpus",
        "2",
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "off",
    ];
    let mut server = Unread::start(&widened(&flags));
    let mut client = Client::connect(server.address);
    wait_for("a GPU", || client.infer("a").status == 200);
    for _ in 0..20 {
        let text = unique("unread");
        client.infer(&text).expect_output(&text);
    }
    send(server.child.id(), Signal::TERM);
    let ended = || server.child.try_wait().expect("a child");
    assert!(wait_some("the server's end", ended).success());
}

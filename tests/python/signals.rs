//! Signals that reach more than the server, and processes that are hard to find when all is to end.

use rustix::process::Signal;

use crate::failures::send;
use crate::model::{Model, children, is_alive, wait_gone, workers};
use crate::steady::{fresh_status, wait_all_back};
use crate::support::tools::is_there;
use crate::support::{Client, Server, heavy, post, unique, wait_for};

/// Batches wait for a file.
const GATED: &str = r#"
import os, time
gate = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gate")

def batchstring(inputs):
    while any(text.startswith("gated") for text in inputs) and not os.path.exists(gate):
        time.sleep(0.01)
    return [text.upper() for text in inputs]
"#;

/// To the server, its workers and its guard, as supervisors do that end a whole service.
fn send_all(server: &Server, signal: Signal) {
    let children = children(server.pid());
    assert!(children.len() >= 3, "two workers and the guard");
    server.signal(signal);
    children.iter().for_each(|pid| send(*pid, signal));
}

#[test]
fn a_signal_to_all_processes_of_a_service_costs_no_answer() {
    if !is_there("python3") {
        return;
    }
    let _alone = heavy();
    for signal in [Signal::TERM, Signal::INT] {
        let flags = [
            "--batch-max",
            "1",
            "--batch-timeout-ms",
            "60000",
            "--drain-grace-ms",
            "60000",
            // For the last of them, if the server has yet to read it.
            "--drain-delay-ms",
            "2000",
        ];
        let mut server = Model::new(GATED).serve(2, &flags);
        let all = children(server.pid());
        let texts: Vec<String> = (0..40).map(|_| unique("gated")).collect();
        let ask = |text: &String| {
            let mut client = server.connect();
            client.send(post("", text));
            client
        };
        let clients: Vec<Client> = texts.iter().map(ask).collect();
        server.wait_for(
            "both workers to be busy and all others in the server",
            |server| {
                let status = fresh_status(server);
                let gpus = status["gpus"].as_array().expect("GPUs");
                // One more for each worker may be on its way to it.
                gpus.iter().all(|gpu| gpu["running"] == 1)
                    && server.metric("funicular_queue_depth", &[]) >= 36.0
            },
        );
        send_all(&server, signal);
        server.model.write("gate", "");
        for (mut client, text) in clients.into_iter().zip(&texts) {
            client.response().expect_output(text);
        }
        assert_eq!(server.wait_exit().code(), Some(0));
        all.iter().for_each(|pid| wait_gone(*pid));
    }
}

/// Ends processes by SIGTERM that it has forked, from two threads, and started; tells how they ended.
const PARENT: &str = r#"
import multiprocessing, subprocess, threading, time
context = multiprocessing.get_context("fork")

def one():
    process = context.Process(target=time.sleep, args=(1000,))
    process.start()
    process.terminate()
    process.join()
    return process.exitcode

def batchstring(inputs):
    codes = [one() for _ in range(20)]
    thread = threading.Thread(target=lambda: codes.extend(one() for _ in range(20)))
    thread.start()
    thread.join()
    program = subprocess.Popen(["sleep", "1000"])
    program.terminate()
    codes.append(program.wait())
    return [" ".join(map(str, sorted(set(codes)))) for _ in inputs]
"#;

#[test]
fn what_user_code_starts_ends_by_sigterm_as_ever() {
    if !is_there("python3") {
        return;
    }
    let server = Model::new(PARENT).serve(1, &["--batch-timeout-ms", "60000"]);
    assert_eq!(server.infer("how").output(), "-15");
}

#[test]
fn user_code_that_handles_sigterm_itself_goes_on_doing_so() {
    if !is_there("python3") {
        return;
    }
    let source = "import os, signal\nsignal.signal(signal.SIGTERM, lambda *_: os._exit(77))\n\
                  def batchstring(inputs):\n    return [text.upper() for text in inputs]\n";
    let server = Model::new(source).serve(1, &[]);
    send(workers(&server)[0], Signal::TERM);
    server.wait_log("exited with status 77");
}

/// Starts, in sessions of their own, one process that overwrites its environment and one whose first thread has ended; tells
/// their numbers.
const HIDDEN: &str = r#"
import subprocess, sys

OVERWRITES = """
import ctypes, time
start, end = map(int, open("/proc/self/stat").read().rsplit(") ", 1)[1].split()[47:49])
ctypes.memset(start, 0, end - start)
print("done", flush=True)
time.sleep(1000)
"""

FIRST_ENDS = """
import ctypes, os, threading, time
main = os.getpid()
def other():
    while open(f"/proc/{main}/stat").read().rsplit(") ", 1)[1][0] != "Z":
        time.sleep(0.01)
    print("done", flush=True)
    time.sleep(1000)
threading.Thread(target=other).start()
ctypes.CDLL(None).syscall({"x86_64": 60}.get(os.uname().machine, 93), 0)
"""

def start(code):
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout.readline() == b"done\n"
    return str(process.pid)

pids = [start(OVERWRITES), start(FIRST_ENDS)]

def batchstring(inputs):
    return [" ".join(pids) for _ in inputs]
"#;

#[test]
fn what_hides_its_mark_ends_with_the_worker_and_with_the_server() {
    if !is_there("python3") {
        return;
    }
    let mut server = Model::new(HIDDEN).serve(1, &[]);
    let hidden = |server: &Server| {
        let told = server.infer("who").output();
        let pids = told.split(' ').map(|pid| pid.parse().expect("a pid"));
        pids.collect::<Vec<u32>>()
    };
    let first = hidden(&server);
    assert!(is_alive(first[0]));
    let worker = workers(&server)[0];
    send(worker, Signal::KILL);
    wait_for("its successor", || {
        workers(&server).iter().any(|pid| *pid != worker)
    });
    wait_all_back(&server);
    let second = hidden(&server);
    server.end();
    [first, second].concat().into_iter().for_each(wait_ended);
}

/// Waits until none of a process's threads is left: the first one may have ended long ago.
fn wait_ended(pid: u32) {
    wait_for("the end of all threads", || {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
        let left = threads.map_or(0, |threads| threads.flatten().count());
        left <= 1 && !is_alive(pid)
    });
}

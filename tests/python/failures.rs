//! Workers that die, hang and raise under traffic: whoever had nothing to do with it must not notice.

use rustix::process::{Pid, Signal, kill_process};

use crate::model::{Model, children, guard, holdings, is_alive, wait_gone, workers};
use crate::steady::{fresh_status, under_traffic, wait_all_back};
use crate::support::tools::is_there;
use crate::support::{Server, heavy, in_parallel, unique, wait_for, wait_some};

const SLOW_UPPER: &str = "import time\ndef batchstring(inputs):\n    time.sleep(0.05)\n    return [text.upper() for text in inputs]\n";

/// Flags for a batch that leaves only when all hundred callers are in it.
const ALL_HUNDRED: [&str; 6] = [
    "--batch-max",
    "100",
    "--hold-max-ms",
    "20000",
    "--patience",
    "inf",
];

pub fn send(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("not 0");
    kill_process(pid, signal).expect("it is there");
}

/// Waits until `pid` is gone, there are four workers without it, and all of them serve.
fn wait_replaced(server: &Server, pid: u32) {
    wait_gone(pid);
    wait_for("a new worker", || {
        let workers = workers(server);
        !workers.contains(&pid) && workers.len() == 4
    });
    wait_all_back(server);
}

#[test]
fn workers_killed_in_mid_batch_are_replaced_and_nobody_notices() {
    if !is_there("python3") {
        return;
    }
    let _alone = heavy();
    let server = Model::new(SLOW_UPPER).serve(4, &[]);
    under_traffic(&server, 40, |callers| {
        for _ in 0..3 {
            let victim = workers(&server)[1];
            send(victim, Signal::KILL);
            wait_replaced(&server, victim);
            // Or the next one's death would be the second for whoever is retried there.
            callers.wait_round();
        }
    });
    server.wait_log("killed by SIGKILL");
}

#[test]
fn a_worker_that_stands_still_is_killed_and_replaced_and_nobody_notices() {
    if !is_there("python3") {
        return;
    }
    let _alone = heavy();
    let server = Model::new(SLOW_UPPER).serve(4, &["--batch-timeout-ms", "5000"]);
    under_traffic(&server, 40, |_| {
        let victim = workers(&server)[2];
        send(victim, Signal::STOP);
        wait_replaced(&server, victim);
    });
    server.wait_log("a batch did not come back within");
}

#[test]
fn a_worker_that_dies_idle_is_missed_before_anybody_asks() {
    if !is_there("python3") {
        return;
    }
    let server = Model::new(SLOW_UPPER).serve(2, &[]);
    let victim = workers(&server)[0];
    send(victim, Signal::KILL);
    server.wait_log("is down: its worker process was killed by SIGKILL");
}

#[test]
fn one_input_that_raises_costs_its_caller_alone() {
    if !is_there("python3") {
        return;
    }
    let _alone = heavy();
    let source = "def batchstring(inputs):\n    if 'poison' in inputs:\n        raise ValueError('poison')\n    return [text.upper() for text in inputs]\n";
    let mut server = Model::new(source).serve(1, &ALL_HUNDRED);
    let statuses = in_parallel(100, |index| {
        let text = if index == 42 {
            "poison".to_owned()
        } else {
            unique("clean")
        };
        let response = server.infer(&text);
        if index != 42 {
            response.expect_output(&text);
        }
        response.status
    });
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 99);
    assert_eq!(statuses[42], 422);
    // All of the log is there only at the end.
    assert_eq!(
        server.end().matches("raise ValueError('poison')").count(),
        1,
        "one traceback for the whole search"
    );
}

#[test]
fn inputs_that_the_function_names_need_no_search() {
    if !is_there("python3") {
        return;
    }
    let _alone = heavy();
    let source = "class Refused(Exception):\n    def __init__(self, indices):\n        super().__init__(f'{len(indices)} refused')\n        \
                  self.indices = indices\ndef batchstring(inputs):\n    bad = [i for i, text in enumerate(inputs) if text.startswith('bad')]\n    \
                  if bad:\n        raise Refused(bad)\n    return [text.upper() for text in inputs]\n";
    let flags = [
        "--hold-max-ms",
        "20000",
        "--patience",
        "inf",
        "--batch-max",
        "20",
    ];
    let server = Model::new(source).serve(1, &flags);
    in_parallel(20, |index| {
        let text = unique(if index % 7 == 0 { "bad" } else { "good" });
        let response = server.infer(&text);
        if index % 7 == 0 {
            let problem = response.expect_problem(422);
            assert!(
                problem["detail"]
                    .as_str()
                    .expect("text")
                    .contains("Refused: "),
                "{problem}"
            );
        } else {
            response.expect_output(&text);
        }
    });
    // The whole batch was one launch, whatever the function was called.
    assert_eq!(
        server
            .fresh_metrics()
            .value("funicular_batch_launches_total", &[("reason", "search")]),
        0.0
    );
}

#[test]
fn too_few_outputs_never_shift_an_answer_to_a_neighbour() {
    if !is_there("python3") {
        return;
    }
    let _alone = heavy();
    let source = "def batchstring(inputs):\n    return [text.upper() for text in inputs][:99] if len(inputs) > 10 else [text.upper() for text in inputs]\n";
    let server = Model::new(source).serve(1, &ALL_HUNDRED);
    let statuses = in_parallel(100, |_| {
        let text = unique("counted");
        let response = server.infer(&text);
        if response.status == 200 {
            response.expect_output(&text);
        }
        response.status
    });
    // Every batch small enough to be answered right is; nothing is ever answered wrong.
    assert!(
        statuses
            .iter()
            .all(|status| [200, 422, 503].contains(status)),
        "{statuses:?}"
    );
}

#[test]
fn restarts_leak_neither_descriptors_nor_threads_nor_processes() {
    if !is_there("python3") {
        return;
    }
    let _alone = heavy();
    let source = "import subprocess\nsubprocess.Popen(['sleep', '1000'])\ndef batchstring(inputs):\n    return [text.upper() for text in inputs]\n";
    let mut server = Model::new(source).serve(1, &[]);
    let before = holdings(server.pid());
    let mut dead = Vec::new();
    for _ in 0..5 {
        let worker = workers(&server)[0];
        dead.push(worker);
        // The kernel's list of children may miss one while others come and go.
        dead.push(wait_some("the worker's child", || {
            children(worker).first().copied()
        }));
        send(worker, Signal::KILL);
        wait_gone(worker);
        wait_for("its successor", || {
            workers(&server).iter().any(|pid| *pid != worker)
        });
        wait_all_back(&server);
    }
    dead.iter().for_each(|pid| wait_gone(*pid));
    assert_eq!(workers(&server).len(), 1);
    // Before, it may have had connections to the admin port that had ended already.
    server.wait_for("no more descriptors and threads than before", |server| {
        let now = holdings(server.pid());
        now.0 <= before.0 && now.1 <= before.1
    });
}

#[test]
fn a_guard_that_is_killed_is_replaced_and_said_to_be() {
    if !is_there("python3") {
        return;
    }
    let source = "def batchstring(inputs):\n    return inputs\n";
    let mut server = Model::new(source).serve(1, &[]);
    let first = wait_some("the guard", || guard(&server));
    send(first, Signal::KILL);
    server.wait_log("another one is started");
    let second = wait_some("its successor", || {
        guard(&server).filter(|pid| *pid != first)
    });
    // It is the one that does the work, and ends with the server.
    server.signal(Signal::KILL);
    server.wait_exit();
    wait_gone(second);
}

#[test]
fn workers_end_with_the_server_however_it_ends() {
    if !is_there("python3") {
        return;
    }
    let source = "import signal, threading\nfor number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):\n    \
                  signal.signal(number, signal.SIG_IGN)\ndef batchstring(inputs):\n    \
                  if 'for ever' in inputs:\n        threading.Event().wait()\n    return inputs\n";
    for signal in [Signal::KILL, Signal::TERM] {
        let mut server = Model::new(source).serve(
            2,
            &["--drain-grace-ms", "100", "--batch-timeout-ms", "60000"],
        );
        let mut client = server.connect();
        client.send(crate::support::post("", "for ever"));
        wait_for("a running batch", || {
            let status = fresh_status(&server);
            let gpus = status["gpus"].as_array().expect("GPUs");
            gpus.iter().any(|gpu| gpu["running"] == 1)
        });
        let all = workers(&server);
        assert_eq!(all.len(), 2);
        server.signal(signal);
        server.wait_exit();
        all.iter().for_each(|pid| wait_gone(*pid));
        assert!(all.iter().all(|pid| !is_alive(*pid)));
    }
}

/// Starts a process in a session of its own, and one that is nobody's child any more; tells their numbers.
const STRAYS: &str = r#"
import os, subprocess, sys

def orphan():
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(write, str(os.getpid()).encode())
            os.close(write)
            os.execvp("sleep", ["sleep", "1000"])
        os._exit(0)
    os.wait()
    os.close(write)
    return os.read(read, 20).decode()

strays = [str(subprocess.Popen(["sleep", "1000"], start_new_session=True).pid), orphan()]

def batchstring(inputs):
    return [" ".join(strays) for _ in inputs]
"#;

#[test]
fn what_has_left_the_workers_group_ends_with_the_worker_and_with_the_server() {
    if !is_there("python3") {
        return;
    }
    let mut server = Model::new(STRAYS).serve(1, &[]);
    let strays = |server: &Server| {
        let told = server.infer("who").output();
        let pids = told.split(' ').map(|pid| pid.parse().expect("a pid"));
        let pids: Vec<u32> = pids.collect();
        assert!(pids.len() == 2 && pids.iter().all(|pid| is_alive(*pid)));
        pids
    };
    let first = strays(&server);
    let worker = workers(&server)[0];
    send(worker, Signal::KILL);
    first.iter().for_each(|pid| wait_gone(*pid));
    wait_for("its successor", || {
        workers(&server).iter().any(|pid| *pid != worker)
    });
    wait_all_back(&server);
    let second = strays(&server);
    server.signal(Signal::KILL);
    server.wait_exit();
    second.iter().for_each(|pid| wait_gone(*pid));
}

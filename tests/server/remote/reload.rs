//! Workers that come and go while the server runs and its callers call.

use std::net::SocketAddr;
use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::tools::Reserved;
use crate::support::{Server, heavy, light, wait_for};

use super::{
    SHORT_BATCH_TIMEOUT, answered, batches, described, failed, traffic, wait_answered, wait_up,
    worker,
};

const CALLERS: usize = 24;

/// The file that lists a server's workers.
struct List {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl List {
    fn new(workers: &[&Server]) -> List {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("workers");
        let list = List {
            _folder: folder,
            path,
        };
        list.set(workers);
        list
    }

    /// All at once, as an operator should: the server may read it at any moment.
    fn write(&self, text: &str) {
        let new = self.path.with_extension("new");
        std::fs::write(&new, text).expect("written");
        std::fs::rename(new, &self.path).expect("renamed");
    }

    fn set(&self, workers: &[&Server]) {
        let addresses: Vec<_> = workers.iter().map(|worker| worker.listen()).collect();
        self.set_addresses(&addresses);
    }

    fn set_addresses(&self, addresses: &[SocketAddr]) {
        let lines = addresses
            .iter()
            .map(|address| format!("http://{address}\n"));
        self.write(&format!("# all\n{}", lines.collect::<String>()));
    }

    /// A server for the workers of this list, of which `up` are there.
    fn server(&self, up: usize, flags: &[&str]) -> Server {
        let path = self.path.to_str().expect("text");
        let mut server = Server::start(&super::flags(&["--workers-file", path], flags));
        wait_up(&mut server, up);
        server
    }

    fn change(&self, server: &Server, workers: &[&Server]) {
        self.set(workers);
        reload(server);
    }
}

/// Times that the configuration was read again.
fn reloads(server: &Server, result: &str) -> f64 {
    server.metric("funicular_reloads_total", &[("result", result)])
}

/// Has the server read its configuration again, and waits until it has.
fn reload(server: &Server) {
    let count = || server.metric("funicular_reloads_total", &[]);
    let before = server.fresh_metrics().value("funicular_reloads_total", &[]);
    server.signal(Signal::HUP);
    wait_for("the configuration to be read again", || count() > before);
}

/// The GPUs of `/status` that are this worker.
fn gpus_of(server: &Server, worker: &Server) -> Vec<Value> {
    let url = format!("http://{}", worker.listen());
    let status = server.status();
    let gpus = status["gpus"].as_array().expect("a list").iter();
    gpus.filter(|gpu| gpu["worker"] == *url).cloned().collect()
}

fn state_of(server: &Server, worker: &Server) -> String {
    let gpus = gpus_of(server, worker);
    let state = gpus.last().map(|gpu| gpu["state"].as_str().expect("text"));
    state.unwrap_or("none").to_owned()
}

fn wait_state(server: &Server, worker: &Server, state: &str) {
    wait_for(state, || state_of(server, worker) == state);
}

/// Descriptors and threads.
fn held_by(server: &Server) -> (usize, usize) {
    let count = |what: &str| {
        let folder = format!("/proc/{}/{what}", server.pid());
        std::fs::read_dir(folder).expect("it runs").count()
    };
    (count("fd"), count("task"))
}

#[test]
fn all_workers_are_replaced_one_by_one_and_no_caller_notices() {
    let _machine = heavy();
    let old = [(); 3].map(|()| worker("40", &[]));
    let new = [(); 3].map(|()| worker("40", &[]));
    let list = List::new(&old.each_ref());
    let server = list.server(3, &["--batch-max", "16"]);
    let statuses = traffic(&server, CALLERS, || {
        wait_answered(&server, 50);
        let mut present: Vec<&Server> = old.iter().collect();
        for (place, fresh) in new.iter().enumerate() {
            let gone = std::mem::replace(&mut present[place], fresh);
            list.change(&server, &present);
            wait_state(&server, gone, "gone");
            wait_for("the new one to serve", || {
                gpus_of(&server, fresh).iter().any(|gpu| gpu["up"] == true)
            });
            wait_answered(&server, 50);
        }
    });
    assert_eq!(failed(&statuses), 0, "{}", described(&statuses));
    let metrics = server.fresh_metrics();
    assert_eq!(metrics.value("funicular_retries_total", &[]), 0.0);
    assert_eq!(metrics.value("funicular_gpu_up", &[]), 3.0);
    let before = old.each_ref().map(batches);
    let url = format!("http://{}", new[2].listen());
    let last = metrics.value("funicular_worker_info", &[("gpu", "5"), ("worker", &url)]);
    assert_eq!(last, 1.0, "numbers go on, and none is used twice");
    traffic(&server, 4, || wait_answered(&server, 20));
    assert_eq!(
        old.each_ref().map(batches),
        before,
        "who has left gets nothing"
    );
}

#[test]
fn all_workers_are_replaced_at_once_and_capacity_never_falls_to_nothing() {
    let _machine = heavy();
    let old = [(); 2].map(|()| worker("40", &[]));
    let new = [(); 2].map(|()| worker("40", &[]));
    let list = List::new(&old.each_ref());
    let mut server = list.server(2, &["--workers-max", "3"]);
    let statuses = traffic(&server, CALLERS, || {
        wait_answered(&server, 50);
        list.change(&server, &new.each_ref());
        // The seat of one of them goes to one of the new ones.
        let has_left = |worker| matches!(&*state_of(&server, worker), "gone" | "none");
        wait_for("the old ones to leave", || old.iter().all(has_left));
        wait_for("the new ones to serve", || {
            server.metric("funicular_gpu_up", &[]) == 2.0
        });
        wait_answered(&server, 50);
    });
    assert_eq!(failed(&statuses), 0, "{}", described(&statuses));
    let log = server.end();
    assert!(!log.contains("last one in service"), "{log}");
}

#[test]
fn a_worker_that_is_killed_or_hangs_is_removed_and_no_caller_notices() {
    let _machine = heavy();
    let [stays, mut dead, stuck] = [(); 3].map(|()| worker("40", &[]));
    let list = List::new(&[&stays, &dead, &stuck]);
    let mut server = list.server(3, &SHORT_BATCH_TIMEOUT);
    let statuses = traffic(&server, CALLERS, || {
        wait_answered(&server, 50);
        dead.signal(Signal::KILL);
        dead.wait_exit();
        list.change(&server, &[&stays, &stuck]);
        wait_state(&server, &dead, "gone");
        wait_answered(&server, 50);
        stuck.signal(Signal::STOP);
        list.change(&server, &[&stays]);
        // Its batch is given up at its time-out, and runs elsewhere.
        wait_state(&server, &stuck, "gone");
        wait_answered(&server, 50);
    });
    assert_eq!(failed(&statuses), 0, "{}", described(&statuses));
    wait_up(&mut server, 1);
}

#[test]
fn a_worker_that_is_not_there_yet_is_added_and_serves_once_it_comes() {
    let _machine = light();
    let first = worker("10", &[]);
    let list = List::new(&[&first]);
    let mut server = list.server(1, &[]);
    let reserved = Reserved::new();
    let address = reserved.address();
    list.set_addresses(&[first.listen(), address]);
    reload(&server);
    server.wait_for("it to be known and missed", |server| {
        let gpus = server.status()["gpus"].clone();
        gpus[1]["state"] == "down" && gpus[1]["worker"] == format!("http://{address}")
    });
    server.infer("a").expect_output("a");
    let late = worker("10", &["--listen", &address.to_string()]);
    wait_up(&mut server, 2);
    // It may leave as well, and come again under another number.
    list.change(&server, &[&first]);
    wait_state(&server, &late, "gone");
    list.change(&server, &[&first, &late]);
    wait_up(&mut server, 2);
    let numbers: Vec<_> = gpus_of(&server, &late);
    let numbers: Vec<_> = numbers.iter().map(|gpu| gpu["gpu"].clone()).collect();
    assert_eq!(numbers, [1, 2]);
}

#[test]
fn a_list_that_makes_no_sense_changes_nothing() {
    let _machine = light();
    let [one, two] = [(); 2].map(|()| worker("10", &[]));
    let list = List::new(&[&one]);
    let mut server = list.server(1, &["--workers-max", "2"]);
    let url = |worker: &Server| format!("http://{}", worker.listen());
    let mine = url(&one);
    let nonsense = [
        (
            format!("{mine}\nhttp://\n"),
            "workers:2: remote.workers_file: \"http://\" has no port",
        ),
        (format!("{mine}\n{mine}\n"), "stands there twice"),
        (
            format!("{mine}\nhttp://h:1\nhttp://h:2\n"),
            "remote.workers_max is 2, but there are 3 workers",
        ),
        ("\u{0}".to_owned(), "does not begin with http://"),
    ];
    for (text, said) in nonsense {
        list.write(&text);
        reload(&server);
        server.wait_log(said);
        server.infer("a").expect_output("a");
    }
    std::fs::remove_file(&list.path).expect("it was there");
    reload(&server);
    server.wait_log(
        "reload refused, everything stays as it was: --workers-file: can't read the workers in ",
    );
    list.write("");
    reload(&server);
    server.wait_log("is empty: if no worker is meant for a while");
    assert_eq!(reloads(&server, "refused"), 6.0);
    assert_eq!(server.status()["gpus"].as_array().expect("a list").len(), 1);
    list.change(&server, &[&one, &two]);
    wait_up(&mut server, 2);
    server.wait_log(&format!("2 workers, new {}", url(&two)));
}

#[test]
fn no_worker_at_all_is_a_503_and_the_next_one_is_welcome() {
    let _machine = light();
    let [first, next] = [(); 2].map(|()| worker("10", &[]));
    let list = List::new(&[&first]);
    let mut server = list.server(1, &[]);
    list.change(&server, &[]);
    wait_state(&server, &first, "gone");
    assert_eq!(server.get("/v2/health/ready").status, 503);
    assert_eq!(server.get("/v2/health/live").status, 200);
    server.infer("a").expect_problem(503);
    assert_eq!(server.status()["capacity_requests_per_second"], 0.0);
    list.change(&server, &[&next]);
    wait_up(&mut server, 1);
    server.infer("b").expect_output("b");
    // A server may begin with none as well.
    list.set(&[]);
    let mut bare = list.server(0, &[]);
    assert!(bare.screen().contains("no worker yet"), "{}", bare.screen());
    list.change(&bare, &[&next]);
    wait_up(&mut bare, 1);
    bare.infer("c").expect_output("c");
    // One whose workers are flags says why it finds nothing new.
    let fixed = super::server(&[next.listen()], &[]);
    reload(&fixed);
    fixed.wait_log("nothing has changed; workers given as --worker can't");
}

#[test]
fn fifty_reloads_under_traffic_cost_nobody_anything_and_leave_nothing_behind() {
    let _machine = heavy();
    let workers = [(); 3].map(|()| worker("10", &[]));
    let [a, b, c] = workers.each_ref();
    let list = List::new(&[a, b]);
    let mut server = list.server(2, &["--workers-max", "4"]);
    let mut before = (0, 0);
    let statuses = traffic(&server, 8, || {
        wait_answered(&server, 50);
        before = held_by(&server);
        for round in 0..50 {
            let present: &[&Server] = match round % 4 {
                0 => &[b, c],
                1 => &[c, a],
                2 => &[a],
                _ => &[a, b],
            };
            list.set(present);
            server.signal(Signal::HUP);
            if round % 5 == 0 {
                wait_answered(&server, 5);
            }
        }
        list.change(&server, &[a, b]);
        wait_for("c to be gone", || {
            matches!(&*state_of(&server, c), "gone" | "none")
        });
        wait_answered(&server, 50);
        wait_for("nothing to be left behind", || {
            let now = held_by(&server);
            now.0 <= before.0 && now.1 <= before.1
        });
    });
    assert_eq!(failed(&statuses), 0, "{}", described(&statuses));
    wait_up(&mut server, 2);
    let shown = server.status()["gpus"].as_array().expect("a list").len();
    assert!(shown <= 4, "{shown} GPUs are shown in 4 seats");
    let launched = server
        .fresh_metrics()
        .value("funicular_slots_filled_total", &[]);
    assert!(launched >= answered(&server), "the sums keep what has gone");
}

#[test]
fn the_configuration_file_names_workers_too_and_tells_what_needs_a_restart() {
    let _machine = light();
    let [one, two] = [(); 2].map(|()| worker("10", &[]));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("funicular.toml");
    let write = |more: &str, workers: &[&Server]| {
        let urls: Vec<_> = workers
            .iter()
            .map(|worker| format!("'http://{}'", worker.listen()))
            .collect();
        let text = format!("{more}[remote]\nworkers = [{}]\n", urls.join(", "));
        std::fs::write(&path, text).expect("written");
    };
    write("", &[&one]);
    let config = ["--config", path.to_str().expect("text")];
    let mut server = Server::start(&super::flags(&config, &[]));
    wait_up(&mut server, 1);
    write("canary = 'hm'\nqueue_bound = 500\n", &[&one, &two]);
    reload(&server);
    wait_up(&mut server, 2);
    server
        .wait_log("changed in the configuration, and needs a restart to hold: queue_bound, canary");
    write("qeue_bound = 5\n", &[]);
    reload(&server);
    server.wait_log("there is no setting qeue_bound");
    write("executor = 'simulated'\n", &[]);
    reload(&server);
    server.wait_log("it names no worker, and would be for the executor simulated");
    assert_eq!(server.metric("funicular_gpu_up", &[]), 2.0);
    write("executor = 'remote'\n", &[]);
    reload(&server);
    wait_state(&server, &two, "gone");
    server.infer("a").expect_problem(503);
}

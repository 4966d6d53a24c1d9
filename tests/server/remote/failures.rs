//! Workers that are killed, stopped, drained, restarted and shared.

use rustix::process::Signal;

use crate::support::tools::Reserved;
use crate::support::{Server, heavy, in_parallel, light, unique, wait_for};

use super::{
    SHORT_BATCH_TIMEOUT, answered, described, failed, flags, server, traffic, wait_answered,
    wait_up, worker,
};

/// Callers of most tests here.
const CALLERS: usize = 24;

fn is_running(worker: &Server) -> bool {
    worker.status()["gpus"][0]["running"].is_u64()
}

#[test]
fn two_workers_serve_as_two_gpus_would() {
    let _machine = light();
    let workers = [worker("50", &[]), worker("50", &[])];
    let server = server(
        &workers.each_ref().map(Server::listen),
        &["--batch-max", "4"],
    );
    let outputs = in_parallel(40, |_| {
        let input = unique("Two");
        server.infer(&input).expect_output(&input).status
    });
    assert_eq!(outputs.len(), 40);
    for worker in &workers {
        let metrics = worker.fresh_metrics();
        assert!(metrics.value("funicular_slots_filled_total", &[]) > 0.0);
    }
    assert_eq!(server.status()["executor"], "remote");
}

#[test]
fn a_worker_killed_in_mid_batch_costs_no_caller_an_error_and_serves_again_once_it_is_back() {
    let _machine = heavy();
    let port = Reserved::new();
    let address = port.address().to_string();
    let workers = [worker_at("100", &address), worker("100", &[])];
    let addresses = workers.each_ref().map(Server::listen);
    let mut server = server(&addresses, &SHORT_BATCH_TIMEOUT);
    let [mut victim, other] = workers;
    let statuses = traffic(&server, CALLERS, || {
        wait_answered(&server, 100);
        wait_for("a batch at the worker", || is_running(&victim));
        victim.signal(Signal::KILL);
        wait_for("the loss to be noticed", || {
            server.metric("funicular_gpu_up", &[]) == 1.0
        });
        wait_answered(&server, 100);
    });
    assert_eq!(failed(&statuses), 0, "{}", described(&statuses));
    victim.wait_exit();
    let back = worker_at("100", &address);
    wait_up(&mut server, 2);
    let before = server
        .fresh_metrics()
        .value("funicular_batches_total", &[("gpu", "0")]);
    let statuses = traffic(&server, CALLERS, || {
        wait_for("the worker to serve again", || {
            server.metric("funicular_batches_total", &[("gpu", "0")]) > before + 2.0
        });
    });
    assert_eq!(failed(&statuses), 0, "{}", described(&statuses));
    drop((back, other));
}

fn worker_at(latency_ms: &str, address: &str) -> Server {
    worker(latency_ms, &["--listen", address])
}

#[test]
fn a_worker_that_is_restarted_in_the_middle_of_traffic_is_hardly_noticed() {
    let _machine = heavy();
    let port = Reserved::new();
    let address = port.address().to_string();
    let mut only = worker_at("20", &address);
    let server = server(&[only.listen()], &[]);
    let mut back = None;
    let statuses = traffic(&server, 4, || {
        wait_answered(&server, 20);
        wait_for("a batch at the worker", || is_running(&only));
        only.signal(Signal::KILL);
        only.wait_exit();
        // Its port, its place, none of its memory: the batch that is asked for again runs there.
        back = Some(worker_at("20", &address));
        wait_answered(&server, 20);
    });
    let told = statuses.iter().filter(|&&status| status == 503).count();
    assert_eq!(
        failed(&statuses),
        told,
        "nobody else is told anything but 503"
    );
}

#[test]
fn a_worker_that_stands_still_is_left_after_the_batch_time_out_and_taken_back() {
    let _machine = heavy();
    let workers = [worker("100", &[]), worker("100", &[])];
    let addresses = workers.each_ref().map(Server::listen);
    let mut server = server(&addresses, &SHORT_BATCH_TIMEOUT);
    let statuses = traffic(&server, CALLERS, || {
        wait_answered(&server, 100);
        workers[1].signal(Signal::STOP);
        wait_for("the loss to be noticed", || {
            server.metric("funicular_gpu_up", &[]) == 1.0
        });
        wait_answered(&server, 50);
        workers[1].signal(Signal::CONT);
    });
    assert_eq!(failed(&statuses), 0, "{}", described(&statuses));
    wait_up(&mut server, 2);
}

#[test]
fn a_worker_that_drains_costs_nobody_an_error_or_an_attempt() {
    let _machine = heavy();
    let workers = [worker("50", &[]), worker("50", &[])];
    let mut server = server(&workers.each_ref().map(Server::listen), &[]);
    let [mut leaver, _stays] = workers;
    let statuses = traffic(&server, CALLERS, || {
        wait_answered(&server, 100);
        leaver.terminate();
        assert!(leaver.wait_exit().success());
        wait_answered(&server, 100);
    });
    assert_eq!(failed(&statuses), 0, "{}", described(&statuses));
    server.wait_for("the worker to be missed", |server| {
        server.metric("funicular_gpu_up", &[]) == 1.0
    });
    let metrics = server.fresh_metrics();
    assert_eq!(
        metrics.value("funicular_retries_total", &[]),
        0.0,
        "no batch was lost"
    );
}

#[test]
fn three_servers_share_a_worker() {
    let _machine = heavy();
    let shared = worker("30", &[]);
    let servers = [(); 3].map(|()| server(&[shared.listen()], &[]));
    let turned_away = || {
        let count = |server: &Server| {
            server.metric("funicular_batches_total", &[("outcome", "turned_away")])
        };
        servers.iter().map(count).sum::<f64>()
    };
    let statuses = in_parallel(3, |index| {
        let server = &servers[index];
        traffic(server, 6, || {
            wait_for("answers, and a third batch to find no room", || {
                answered(server) > 60.0 && turned_away() > 0.0
            })
        })
    });
    assert_eq!(
        statuses
            .iter()
            .map(|statuses| failed(statuses))
            .sum::<usize>(),
        0
    );
    for server in &servers {
        let retries = server.fresh_metrics();
        let retries = retries.value("funicular_retries_total", &[]);
        assert_eq!(retries, 0.0, "to be turned away is no attempt");
    }
    assert_eq!(
        shared.metric("funicular_requests_total", &[("code", "409")]),
        0.0,
        "ids of different servers differ"
    );
}

#[test]
fn a_bad_input_is_found_by_the_server_and_blamed_alone() {
    let _machine = light();
    let workers = [
        worker("10", &["--sim-fault", "kind=raise,marker=poison,every=1"]),
        worker("10", &["--sim-fault", "kind=raise,marker=poison,every=1"]),
    ];
    // Wait for company, so that the bad one has some.
    let server = server(
        &workers.each_ref().map(Server::listen),
        &[
            "--patience",
            "inf",
            "--hold-max-ms",
            "500",
            "--batch-max",
            "16",
        ],
    );
    let statuses = in_parallel(16, |index| {
        let input = unique(if index == 5 { "poison" } else { "good" });
        let response = server.infer(&input);
        match response.status {
            200 => drop(response.expect_output(&input)),
            _ => assert!(response.text().contains("ValueError"), "{response:?}"),
        }
        (index, response.status)
    });
    let blamed: Vec<_> = statuses
        .iter()
        .filter(|(_, status)| *status != 200)
        .collect();
    assert_eq!(blamed, [&(5, 422)]);
    assert_eq!(server.metric("funicular_gpu_up", &[]), 2.0);
}

#[test]
fn a_server_whose_workers_are_not_there_yet_waits_for_them() {
    let _machine = light();
    let reserved = Reserved::new();
    let address = reserved.address();
    let url = format!("http://{address}");
    let mut server = Server::start(&flags(&["--worker", &url], &[]));
    server.infer("a").expect_problem(503);
    let _late = worker("10", &["--listen", &address.to_string()]);
    wait_up(&mut server, 1);
    server.infer("b").expect_output("b");
    server.wait_log("gpu 0 is ready");
}

//! Deadlines: kept on time whatever the GPUs do, and late results go to nobody.

use std::time::Duration;

use crate::support::server::{HOLDABLE, PATIENT};
use crate::support::{Client, Server, in_parallel, light, post, timed, unique, wait_for};

/// Batches that don't end, on more GPUs than a test has requests, and the deadline of requests that name none.
fn stuck(deadline_ms: &str) -> Server {
    let many = ["--gpus", "16", "--sim-latency-ms", "10"];
    let flags = [&many[..], &["--deadline-ms", deadline_ms], &HOLDABLE].concat();
    let server = Server::start(&flags);
    // A stall that is taken for the batch time would be a reason to refuse who has little time.
    wait_for("a short batch time to be measured", || {
        let asked = server.connect().infer_with(SHORT, "short");
        asked.status == 200
    });
    server.hold();
    server
}

const SHORT: &str = "X-Request-Timeout-Ms: 300\r\n";

/// Asks, and is told that the time is over: not before it is, and long before any other time would be.
fn expect_expiry(server: &Server, headers: &str, deadline_ms: u64) {
    let mut client = server.connect();
    let (elapsed, response) = timed(|| client.infer_with(headers, "never"));
    response.expect_problem(504);
    assert!(!response.closes(), "the connection is as good as before");
    let deadline = Duration::from_millis(deadline_ms);
    assert!(elapsed >= deadline, "{elapsed:?} is before {deadline:?}");
    assert_eq!(client.get("/v2/health/live").status, 200);
}

/// Each of these requests expires, side by side, and all of them are counted.
fn expect_expiries(server: &Server, cases: &[(&str, u64)]) {
    let (answers, tickets) = ("funicular_requests_total", "funicular_abandoned_total");
    let told = [("code", "504")];
    let before = server.fresh_metrics();
    in_parallel(cases.len(), |case| {
        expect_expiry(server, cases[case].0, cases[case].1);
    });
    let count = cases.len() as f64;
    server.expect_count(answers, &told, before.value(answers, &told) + count);
    let after = server.expect_count(tickets, &[], before.value(tickets, &[]) + count);
    assert_eq!(after.value("funicular_queue_depth", &[]), 0.0);
}

#[test]
fn the_smallest_of_all_deadlines_is_kept_whatever_the_gpus_do() {
    let _machine = light();
    // Whoever went by another one than the smallest would not answer before the test has lost its patience.
    let server = stuck("600000");
    let cases = [
        (SHORT, 300),
        ("X-Request-Timeout-Ms: 400\r\n", 400),
        ("grpc-timeout: 600m\r\n", 600),
        ("grpc-timeout: 1S\r\n", 1_000),
        ("x-envoy-expected-rq-timeout-ms: 500\r\n", 500),
        (
            "X-Request-Timeout-Ms: 300000\r\ngrpc-timeout: 700000u\r\nx-envoy-expected-rq-timeout-ms: 400000\r\n",
            700,
        ),
        (
            "X-Request-Timeout-Ms: 450\r\ngrpc-timeout: 5M\r\nx-envoy-expected-rq-timeout-ms: 400000\r\n",
            450,
        ),
    ];
    expect_expiries(&server, &cases);
}

#[test]
fn nobody_gets_more_time_than_the_server_gives() {
    let _machine = light();
    let server = stuck("1500");
    let cases = [("", 1_500), ("X-Request-Timeout-Ms: 300000\r\n", 1_500)];
    expect_expiries(&server, &cases);
}

#[test]
fn a_result_that_comes_too_late_is_not_given_to_the_next_request() {
    let _machine = light();
    // Every second batch takes 800 ms instead of 20. Which of them are probes can't be known from outside.
    let server = Server::start(&[
        "--gpus",
        "1",
        "--sim-latency-ms",
        "20",
        "--sim-fault",
        "kind=slow,batch=2,every=2,times=0,factor=40",
        "--batch-timeout-ms",
        "10000",
    ]);
    let mut client = server.connect();
    let late = || server.metric("funicular_late_results_total", &[]);
    let mut expired = 0;
    wait_for("a request to meet a slow batch", || {
        let input = unique("too late");
        let response = client.infer_with(SHORT, &input);
        match response.status {
            200 => drop(response.expect_output(&input)),
            status => assert!(matches!(status, 429 | 504), "{response:?}"),
        }
        expired += u32::from(response.status == 504);
        // On a machine that stands still its time may be over before it is in any batch.
        expired > 0 && late() > 0.0
    });
    wait_for("the next answer on the same connection", || {
        let input = unique("next");
        let response = client.infer(&input);
        match response.status {
            200 => drop(response.expect_output(&input)),
            _ => drop(response.expect_problem(429)),
        }
        response.status == 200
    });
    assert!(!client.has_news(), "something came unasked for");
    assert!(late() <= f64::from(expired), "{} late", late());
}

#[test]
fn callers_that_have_gone_take_no_place_in_a_batch() {
    let _machine = light();
    let one = ["--gpus", "1", "--sim-latency-ms", "5"];
    let server = Server::start(&[&one[..], &PATIENT, &HOLDABLE].concat());
    server.hold();
    let mut first = server.connect();
    first.send(post("", "first"));
    server.wait_running(1);
    let mut leaving: Vec<_> = (0..10).map(|_| server.connect()).collect();
    for client in &mut leaving {
        client.send(post("", &unique("leaving")));
    }
    server.wait_waiting(10);
    leaving.drain(..5).for_each(Client::reset);
    drop(leaving);
    let mut last = server.connect();
    last.send(post("", "last"));
    wait_for(
        "the last one to wait as well, or some to be found gone",
        || server.metric("funicular_queue_depth", &[]) != 10.0,
    );
    server.release();
    first.response().expect_output("first");
    last.response().expect_output("last");
    let metrics = server.expect_count("funicular_requests_total", &[("code", "499")], 10.0);
    assert_eq!(metrics.value("funicular_slots_filled_total", &[]), 2.0);
    let abandoned = metrics.value("funicular_abandoned_total", &[("reason", "gone")]);
    assert_eq!(abandoned, 10.0);
}

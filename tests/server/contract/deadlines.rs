//! Deadlines: kept on time whatever the GPUs do, and late results go to nobody.

use std::time::Duration;

use crate::support::{Client, Server, in_parallel, light, post, timed, unique, wait_for};

/// Batches that never end, on as many GPUs as a test has requests.
fn stuck() -> Server {
    Server::start(&[
        "--gpus",
        "8",
        "--sim-latency-ms",
        "10",
        "--batch-timeout-ms",
        "60000",
        "--deadline-ms",
        "1500",
        "--sim-fault",
        "kind=hang,batch=2,every=1,times=0",
    ])
}

fn expect_on_time(elapsed: Duration, deadline_ms: u64) {
    let deadline = Duration::from_millis(deadline_ms);
    assert!(elapsed >= deadline, "{elapsed:?} is before {deadline:?}");
    let late = deadline + deadline.max(Duration::from_millis(500));
    assert!(elapsed < late, "{elapsed:?} is long after {deadline:?}");
}

#[test]
fn the_smallest_of_all_deadlines_is_kept_on_time() {
    let _machine = light();
    let server = stuck();
    let cases = [
        ("", 1_500),
        ("X-Request-Timeout-Ms: 400\r\n", 400),
        ("grpc-timeout: 600m\r\n", 600),
        ("grpc-timeout: 1S\r\n", 1_000),
        ("x-envoy-expected-rq-timeout-ms: 500\r\n", 500),
        (
            "X-Request-Timeout-Ms: 900\r\ngrpc-timeout: 700000u\r\nx-envoy-expected-rq-timeout-ms: 800\r\n",
            700,
        ),
        ("X-Request-Timeout-Ms: 99999\r\n", 1_500),
    ];
    in_parallel(cases.len(), |case| {
        let (headers, deadline_ms) = cases[case];
        let mut client = server.connect();
        let (elapsed, response) = timed(|| client.infer_with(headers, "never"));
        response.expect_problem(504);
        assert!(!response.closes(), "the connection is as good as before");
        expect_on_time(elapsed, deadline_ms);
        assert_eq!(client.get("/v2/health/live").status, 200);
    });
    let metrics = server.fresh_metrics();
    let timed_out = metrics.value("funicular_requests_total", &[("code", "504")]);
    assert_eq!(timed_out, cases.len() as f64);
    let abandoned = metrics.value("funicular_abandoned_total", &[]);
    assert_eq!(abandoned, cases.len() as f64, "{}", metrics.text());
    assert_eq!(metrics.value("funicular_queue_depth", &[]), 0.0);
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
    wait_for("a request to meet a slow batch", || {
        let input = unique("too late");
        let response = client.infer_with("X-Request-Timeout-Ms: 300\r\n", &input);
        match response.status {
            200 => drop(response.expect_output(&input)),
            status => assert!(matches!(status, 429 | 504), "{response:?}"),
        }
        response.status == 504
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
    let late = server
        .fresh_metrics()
        .value("funicular_late_results_total", &[]);
    assert_eq!(late, 1.0);
}

#[test]
fn callers_that_have_gone_take_no_place_in_a_batch() {
    let _machine = light();
    let server = Server::start(&[
        "--gpus",
        "1",
        "--sim-latency-ms",
        "2000",
        "--deadline-ms",
        "20000",
        "--target-latency-ms",
        "10000",
    ]);
    let mut first = server.connect();
    first.send(post("", "first"));
    wait_for("the first batch to run", || {
        server.status()["gpus"][0]["running"].as_u64() == Some(1)
    });
    let mut leaving: Vec<_> = (0..10).map(|_| server.connect()).collect();
    for client in &mut leaving {
        client.send(post("", &unique("leaving")));
    }
    wait_for("them to wait", || {
        server.metric("funicular_queue_depth", &[("tier", "free")]) == 10.0
    });
    leaving.drain(..5).for_each(Client::reset);
    drop(leaving);
    let mut last = server.connect();
    last.send(post("", "last"));
    first.response().expect_output("first");
    last.response().expect_output("last");
    let metrics = server.fresh_metrics();
    let gone = metrics.value("funicular_requests_total", &[("code", "499")]);
    assert_eq!(gone, 10.0);
    assert_eq!(metrics.value("funicular_slots_filled_total", &[]), 2.0);
    let abandoned = metrics.value("funicular_abandoned_total", &[("reason", "gone")]);
    assert_eq!(abandoned, 10.0);
}

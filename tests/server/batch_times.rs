//! Executors whose batches take much longer, or much less, than the defaults are made for.

use crate::support::server::PATIENT;
use crate::support::{Server, in_parallel, light, unique};

/// Every one of these callers gets its answer: nobody is shed or timed out by a server that has nothing else to do.
fn serve_well(server: &Server, callers: usize, requests: usize) {
    in_parallel(callers, |_| {
        let mut client = server.connect();
        for _ in 0..requests {
            let input = unique("any time");
            client.infer(&input).expect_output(&input);
        }
    });
}

#[test]
fn batches_of_two_seconds_are_no_reason_to_shed_or_to_time_out() {
    let _machine = light();
    let server = Server::start(&["--sim-latency-ms", "2000", "--deadline-ms", "20000"]);
    // One alone, then more than fit into one batch.
    serve_well(&server, 1, 1);
    serve_well(&server, 150, 1);
    let metrics = server.fresh_metrics();
    assert_eq!(metrics.value("funicular_shed_total", &[]), 0.0);
    assert_eq!(metrics.value("funicular_gpu_up", &[]), 4.0);
}

#[test]
fn batches_of_a_millisecond_are_no_reason_either() {
    let _machine = light();
    let server = Server::start(&["--sim-latency-ms", "1"]);
    serve_well(&server, 1, 200);
    serve_well(&server, 30, 30);
    let metrics = server.fresh_metrics();
    assert_eq!(metrics.value("funicular_shed_total", &[]), 0.0);
    assert_eq!(metrics.value("funicular_gpu_up", &[]), 4.0);
}

#[test]
fn batches_that_take_no_time_work() {
    let server = Server::start(&[&PATIENT[..], &["--sim-latency-ms", "0", "--gpus", "1"]].concat());
    serve_well(&server, 20, 30);
}

#[test]
fn jitter_and_a_cold_start_are_survived() {
    let odd = [
        "--sim-latency-ms",
        "20",
        "--sim-jitter",
        "0.9",
        "--sim-cold-start-ms",
        "300",
    ];
    let server = Server::start(&[&PATIENT[..], &odd].concat());
    serve_well(&server, 20, 10);
}

#[test]
fn one_ticket_a_batch_is_a_batch() {
    // A stall that is taken for the batch time makes seven who wait, one to a batch, look like too many.
    let single = ["--batch-max", "1", "--sim-latency-ms", "2", "--gpus", "2"];
    let server = Server::start(&[&PATIENT[..], &single].concat());
    serve_well(&server, 8, 20);
    server.expect_count("funicular_batch_size_count", &[], 160.0);
}

#[test]
fn every_patience_serves_a_lone_caller() {
    for (patience, at_least) in [("0", 0.0), ("1", 0.0), ("inf", 40.0)] {
        let server = Server::start(&["--patience", patience, "--sim-latency-ms", "5"]);
        let response = server.infer("alone");
        response.expect_output("alone");
        let wait_ms = response.json()["metadata"]["queue_wait_ms"].as_f64();
        assert!(wait_ms >= Some(at_least), "{patience}: {wait_ms:?}");
    }
}

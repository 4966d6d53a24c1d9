//! The admin plane: what operators and scrapers get to see.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::{Client, Server, in_parallel, tools, wait_for, wait_some};

const TIERS: [&str; 3] = ["enterprise", "paid", "free"];

#[test]
fn every_page_is_there_and_nothing_else() {
    let server = Server::start(&["--sim-latency-ms", "1"]);
    let metrics = server.admin_get("/metrics");
    assert_eq!(metrics.status, 200);
    let content_type = metrics.header("Content-Type").expect("there");
    assert!(
        content_type.starts_with("text/plain; version=0.0.4"),
        "{content_type}"
    );
    assert_eq!(server.admin_get("/healthz").text(), "ok\n");
    assert_eq!(server.admin_get("/").status, 200);
    assert_eq!(server.admin_get("/nope").status, 404);
    let post = "POST /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
    let response = Client::connect(server.admin().expect("on")).request(post);
    assert_eq!(
        (response.status, response.header("Allow")),
        (405, Some("GET"))
    );
    // The planes do not leak into each other.
    assert_eq!(server.get("/metrics").status, 404);
    assert_eq!(server.admin_get("/v1/inference").status, 404);
}

#[test]
fn the_status_tells_what_a_person_wants_to_know() {
    let mut server = Server::start(&["--sim-latency-ms", "10", "--gpus", "3"]);
    server.wait_for("all GPUs to be up", |server| {
        server.metric("funicular_gpu_up", &[]) == 3.0
    });
    server.infer("x").expect_output("x");
    // A page of the time of that request may show it waiting; and a stall that is taken for the batch time, less capacity.
    let at_rest = |status: &Value| {
        let waits = |tier: &&str| status["queues"][tier]["waiting"] != 0;
        let capacity = status["capacity_requests_per_second"].as_f64();
        !TIERS.iter().any(waits) && capacity > Some(1_000.0)
    };
    let status = wait_some("a status of a server at rest", || {
        server.infer("x").expect_output("x");
        Some(server.status()).filter(at_rest)
    });
    assert_eq!(status["ready"], true);
    assert_eq!(status["draining"], false);
    assert_eq!(status["zone"], "green");
    assert_eq!(status["executor"], "simulated");
    assert_eq!(status["batch_max"], 100);
    let gpus = status["gpus"].as_array().expect("a list");
    assert_eq!(gpus.len(), 3);
    assert!(gpus.iter().all(|gpu| gpu["up"] == true), "{status}");
    let capacity = status["capacity_requests_per_second"]
        .as_f64()
        .expect("a number");
    assert!(capacity <= 30_000.0, "{capacity}");
}

#[test]
fn promtool_finds_nothing_to_complain_about() {
    if !tools::is_there("promtool") {
        return;
    }
    let server = Server::start(&["--sim-latency-ms", "1"]);
    in_parallel(4, |_| server.infer("x").output());
    server.get("/nope");
    let text = server.fresh_metrics().text().to_owned();
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it is there");
    let mut stdin = promtool.stdin.take().expect("piped");
    stdin.write_all(text.as_bytes()).expect("it reads");
    drop(stdin);
    let output = promtool.wait_with_output().expect("it ends");
    let said = [output.stdout, output.stderr].concat();
    assert!(
        output.status.success() && said.is_empty(),
        "{}",
        String::from_utf8_lossy(&said)
    );
}

#[test]
fn a_request_leaves_its_trace_in_every_family() {
    let server = Server::start(&["--sim-latency-ms", "20", "--gpus", "1"]);
    server
        .connect()
        .infer_with("X-Tier: paid\r\n", "x")
        .expect_output("x");
    // The last that is counted of a request.
    let duration = "funicular_request_duration_seconds_count";
    let metrics = server.expect_count(duration, &[("tier", "paid")], 1.0);
    let value = |name, labels: &[(&str, &str)]| metrics.value(name, labels);
    assert_eq!(
        value(
            "funicular_request_duration_seconds_count",
            &[("tier", "paid")]
        ),
        1.0
    );
    assert!(
        value(
            "funicular_request_duration_seconds_sum",
            &[("tier", "paid")]
        ) >= 0.02
    );
    assert_eq!(
        value("funicular_queue_wait_seconds_count", &[("tier", "paid")]),
        1.0
    );
    for stage in [
        "parse", "queue", "hold", "stage", "execute", "demux", "write",
    ] {
        let labels = [("stage", stage)];
        assert_eq!(
            value("funicular_stage_seconds_count", &labels),
            1.0,
            "{stage}"
        );
    }
    assert!(value("funicular_stage_seconds_sum", &[("stage", "execute")]) >= 0.02);
    let launches = |labels: &[(&str, &str)]| value("funicular_batch_launches_total", labels);
    assert_eq!(launches(&[]) - launches(&[("reason", "probe")]), 1.0);
    assert_eq!(value("funicular_batch_size_sum", &[]), 1.0);
    assert!(value("funicular_batch_duration_seconds_count", &[("gpu", "0")]) >= 1.0);
    assert!(value("funicular_gpu_busy_seconds_total", &[("gpu", "0")]) >= 0.02);
    assert_eq!(
        value(
            "funicular_build_info",
            &[("version", env!("CARGO_PKG_VERSION"))]
        ),
        1.0
    );
    assert!(value("process_resident_memory_bytes", &[]) > 1e6);
    assert!(value("process_open_fds", &[]) > 3.0);
    wait_for("the connection to be gone", || {
        server.metric("funicular_connections", &[]) == 0.0
    });
}

//! GPUs on other machines: servers, workers, and a network between them that does its worst.

mod failures;
mod liars;
mod network;
mod protocol;
mod proxy;
mod python;
mod reload;
mod stranger;

use std::net::SocketAddr;

use crate::support::Server;
use crate::support::traffic::{answered, described, failed, traffic, wait_answered};

/// So that neither a deadline nor admission decides anything on a machine that is busy with other tests.
const PATIENT: [&str; 10] = [
    "--deadline-ms",
    "30000",
    "--target-latency-ms",
    "30000",
    "--backlog-yellow-s",
    "98",
    "--backlog-red-s",
    "99",
    "--backlog-limit-s",
    "100",
];

/// A worker whose batches take `latency_ms`.
fn worker(latency_ms: &str, flags: &[&str]) -> Server {
    let simulated = ["--sim-latency-ms", latency_ms, "--cores", "1"];
    Server::start_worker(&[&simulated, flags].concat())
}

/// A server whose GPUs are behind these addresses.
fn server(workers: &[SocketAddr], flags: &[&str]) -> Server {
    let urls: Vec<String> = workers
        .iter()
        .map(|address| format!("http://{address}"))
        .collect();
    let named = urls.iter().flat_map(|url| ["--worker", url]);
    let all: Vec<&str> = PATIENT
        .into_iter()
        .chain(named)
        .chain(flags.iter().copied())
        .collect();
    let mut server = Server::start(&all);
    wait_up(&mut server, workers.len());
    server
}

fn wait_up(server: &mut Server, gpus: usize) {
    server.wait_for("every worker to be up", |server| {
        server.metric("funicular_gpu_up", &[]) as usize == gpus
    });
}

/// Batches that a worker has run.
fn batches(worker: &Server) -> f64 {
    worker.fresh_metrics().value("funicular_batches_total", &[])
}

/// A batch as it stands on the wire.
fn batch(id: &str, inputs: &[&str]) -> String {
    let requests: Vec<_> = inputs
        .iter()
        .enumerate()
        .map(
            |(place, input)| serde_json::json!({ "request_id": place.to_string(), "input": input }),
        )
        .collect();
    serde_json::json!({ "batch_id": id, "requests": requests }).to_string()
}

/// The request that asks for it. `headers` are whole lines.
fn post_batch(headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST /internal/batch HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n{headers}\r\n{body}"
    )
}

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
use crate::support::server::PATIENT;
use crate::support::traffic::{answered, described, failed, traffic, wait_answered};

/// The batch time-out of a server whose test names none: a worker that gets no processor for some seconds has not lost its
/// batch.
const BATCH_TIMEOUT: [&str; 2] = ["--batch-timeout-ms", "20000"];

/// That of tests whose worker is lost in mid-batch, which shows only when it has passed.
const SHORT_BATCH_TIMEOUT: [&str; 2] = ["--batch-timeout-ms", "4000"];

/// The flags of a server whose workers are named by `workers`; neither admission nor the machine decides anything.
fn flags<'a>(workers: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    let mut all = [&PATIENT[..], workers, more].concat();
    if !all.contains(&BATCH_TIMEOUT[0]) {
        all.extend(BATCH_TIMEOUT);
    }
    all
}

/// A worker whose batches take `latency_ms`.
fn worker(latency_ms: &str, flags: &[&str]) -> Server {
    let simulated = ["--sim-latency-ms", latency_ms, "--cores", "1"];
    Server::start_worker(&[&simulated, flags].concat())
}

/// A server whose GPUs are behind these addresses.
fn server(workers: &[SocketAddr], more: &[&str]) -> Server {
    let urls: Vec<String> = workers
        .iter()
        .map(|address| format!("http://{address}"))
        .collect();
    let named = urls.iter().flat_map(|url| ["--worker", url]);
    let mut server = Server::start(&flags(&named.collect::<Vec<_>>(), more));
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

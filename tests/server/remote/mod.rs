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
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::support::{Client, Server, output_of, unique};

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

/// What callers saw: the status of every request. An output that is not its input's fails the test at once.
fn traffic(server: &Server, callers: usize, meanwhile: impl FnOnce()) -> Vec<u16> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let call = || {
            let mut client = server.connect();
            let mut statuses = Vec::new();
            while !over.load(Ordering::Relaxed) {
                statuses.push(one(server, &mut client));
            }
            statuses
        };
        let threads: Vec<_> = (0..callers).map(|_| scope.spawn(call)).collect();
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(meanwhile));
        over.store(true, Ordering::Relaxed);
        let statuses = threads
            .into_iter()
            .flat_map(|thread| thread.join().expect("no wrong answer"));
        let statuses = statuses.collect();
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        statuses
    })
}

fn one(server: &Server, client: &mut Client) -> u16 {
    let input = unique("Remote");
    let response = client.infer(&input);
    if response.status == 200 {
        assert_eq!(
            response.output(),
            output_of(&input),
            "somebody else's answer"
        );
    }
    if response.closes() {
        *client = server.connect();
    }
    response.status
}

/// How many of the requests were not answered with 200.
fn failed(statuses: &[u16]) -> usize {
    statuses.iter().filter(|&&status| status != 200).count()
}

/// The requests that a server has answered with 200.
fn answered(server: &Server) -> f64 {
    server.metric("funicular_requests_total", &[("code", "200")])
}

/// Waits until the server has answered so many more.
fn wait_answered(server: &Server, more: usize) {
    let before = answered(server);
    crate::support::wait_for("more answers", || answered(server) >= before + more as f64);
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

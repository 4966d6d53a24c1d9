//! `/status`: the snapshot and the totals as JSON, for people and scripts.
//!
//! Pure but for the wall clock, which dates the GPUs' states. Durations and rates carry their unit in the name, as in
//! the metrics. A number that is not finite (the backlog without capacity) is `null`.

use serde::{Serialize, Serializer};
use std::net::SocketAddr;

use crate::clock::{self, Time};
use crate::metrics::{GpuSnapshot, Metrics, QueueSnapshot, Snapshot, Totals};
use crate::tier::Tier;

#[derive(Serialize)]
struct Status<'a> {
    version: &'static str,
    uptime_seconds: f64,
    listen: Option<SocketAddr>,
    admin: Option<SocketAddr>,
    executor: &'a str,
    batch_max: usize,
    ready: bool,
    draining: bool,
    zone: &'static str,
    capacity_requests_per_second: f64,
    arrival_rate_requests_per_second: f64,
    backlog_seconds: f64,
    connections: u64,
    #[serde(serialize_with = "by_tier")]
    queues: &'a [QueueSnapshot; Tier::COUNT],
    gpus: Vec<Gpu<'a>>,
    totals: Totals,
}

#[derive(Serialize)]
struct Gpu<'a> {
    gpu: usize,
    state: &'static str,
    up: bool,
    /// Wall clock, as in an HTTP date.
    since: String,
    for_seconds: f64,
    why: &'a str,
    batch_time_ms: Option<f64>,
    batches: u64,
    running: Option<usize>,
}

/// The text of `/status`, with a line feed at its end.
pub(super) fn render(snapshot: &Snapshot, metrics: &Metrics) -> serde_json::Result<String> {
    let gpus = snapshot.gpus.iter().enumerate();
    let status = Status {
        version: env!("CARGO_PKG_VERSION"),
        uptime_seconds: snapshot.now.since(snapshot.started).as_secs_f64(),
        listen: snapshot.listen,
        admin: snapshot.admin,
        executor: &snapshot.executor,
        batch_max: snapshot.batch_max,
        ready: snapshot.ready,
        draining: snapshot.draining,
        zone: snapshot.zone,
        capacity_requests_per_second: snapshot.capacity_rps,
        arrival_rate_requests_per_second: snapshot.arrival_rate_rps,
        backlog_seconds: snapshot.backlog_seconds,
        connections: metrics.connections(),
        queues: &snapshot.queues,
        gpus: gpus
            .map(|(number, gpu)| gpu_status(number, gpu, snapshot.now))
            .collect(),
        totals: metrics.totals(),
    };
    let mut text = serde_json::to_string_pretty(&status)?;
    text.push('\n');
    Ok(text)
}

fn gpu_status(number: usize, gpu: &GpuSnapshot, now: Time) -> Gpu<'_> {
    let age = now.since(gpu.since);
    let since = clock::wall().checked_sub(age).map(httpdate::fmt_http_date);
    Gpu {
        gpu: number,
        state: gpu.state,
        up: gpu.up,
        since: since.unwrap_or_default(),
        for_seconds: age.as_secs_f64(),
        why: &gpu.why,
        batch_time_ms: gpu.batch_time_ms,
        batches: gpu.batches,
        running: gpu.running,
    }
}

/// As an object whose keys are the tiers, highest priority first.
fn by_tier<S: Serializer>(
    queues: &[QueueSnapshot; Tier::COUNT],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(
        Tier::ALL
            .iter()
            .zip(queues)
            .map(|(tier, queue)| (tier.name(), queue)),
    )
}

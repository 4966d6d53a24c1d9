//! `/status`: the snapshot and the totals as JSON, for people and scripts.
//!
//! Pure but for the wall clock, which dates the GPUs' states. Durations and rates carry their unit in the name, as in
//! the metrics. They are rounded to thousandths: more would be noise. A number that is not finite (the backlog without
//! capacity) is `null`.

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
    request_memory_bytes: usize,
    request_memory_limit_bytes: usize,
    #[serde(serialize_with = "by_tier")]
    queues: &'a [QueueSnapshot; Tier::COUNT],
    gpus: Vec<Gpu<'a>>,
    totals: Totals,
}

#[derive(Serialize)]
struct Gpu<'a> {
    gpu: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<&'a str>,
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
    let gpus = snapshot.gpus.iter();
    let status = Status {
        version: env!("CARGO_PKG_VERSION"),
        uptime_seconds: rounded(snapshot.now.since(snapshot.started).as_secs_f64()),
        listen: snapshot.listen,
        admin: snapshot.admin,
        executor: &snapshot.executor,
        batch_max: snapshot.batch_max,
        ready: snapshot.ready,
        draining: snapshot.draining,
        zone: snapshot.zone,
        capacity_requests_per_second: rounded(snapshot.capacity_rps),
        arrival_rate_requests_per_second: rounded(snapshot.arrival_rate_rps),
        backlog_seconds: rounded(snapshot.backlog_seconds),
        connections: metrics.connections(),
        request_memory_bytes: snapshot.request_memory_bytes.0,
        request_memory_limit_bytes: snapshot.request_memory_bytes.1,
        queues: &snapshot.queues,
        gpus: gpus.map(|gpu| gpu_status(gpu, snapshot.now)).collect(),
        totals: metrics.totals(),
    };
    let mut text = serde_json::to_string_pretty(&status)?;
    text.push('\n');
    Ok(text)
}

fn gpu_status(gpu: &GpuSnapshot, now: Time) -> Gpu<'_> {
    let age = now.since(gpu.since);
    let since = clock::wall().checked_sub(age).map(httpdate::fmt_http_date);
    Gpu {
        gpu: gpu.gpu,
        device: gpu.device.as_deref(),
        worker: gpu.worker.as_deref(),
        state: gpu.state,
        up: gpu.up,
        since: since.unwrap_or_default(),
        for_seconds: rounded(age.as_secs_f64()),
        why: &gpu.why,
        batch_time_ms: gpu.batch_time_ms.map(rounded),
        batches: gpu.batches,
        running: gpu.running,
    }
}

/// To thousandths; what is not finite, or has none at that size, stays as it is.
fn rounded(number: f64) -> f64 {
    let thousandths = (number * 1e3).round();
    if thousandths.abs() < 1e15 {
        // No sum of nothing is shown as -0.
        thousandths / 1e3 + 0.0
    } else {
        number
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

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(value: &serde_json::Value, found: &mut Vec<f64>) {
        match value {
            serde_json::Value::Number(number) => found.extend(number.as_f64()),
            serde_json::Value::Array(values) => {
                values.iter().for_each(|value| numbers(value, found))
            }
            serde_json::Value::Object(members) => {
                members.values().for_each(|value| numbers(value, found));
            }
            _ => {}
        }
    }

    #[test]
    fn no_number_has_more_than_three_decimals() {
        let third = 1.0 / 3.0;
        let gpu = GpuSnapshot {
            gpu: 0,
            worker: None,
            state: "ready",
            device: None,
            up: true,
            since: Time::from_nanos(1_234_567_891),
            why: String::new(),
            batch_time_ms: Some(100.0 + third),
            batches: 7,
            running: None,
        };
        let snapshot = Snapshot {
            now: Time::from_nanos(9_876_543_219),
            started: Time::from_nanos(1),
            executor: "simulated".to_owned(),
            batch_max: 100,
            listen: None,
            admin: None,
            ready: true,
            draining: false,
            zone: "green",
            backlog_seconds: third,
            capacity_rps: 1e3 * third,
            arrival_rate_rps: 6.6e-14,
            request_memory_bytes: (4_096, 1 << 30),
            queues: [QueueSnapshot::default(); Tier::COUNT],
            gpus: vec![gpu],
        };
        let text = render(&snapshot, &Metrics::new(1, 1)).expect("encoded");
        let status: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(status["arrival_rate_requests_per_second"], 0.0);
        assert_eq!(status["capacity_requests_per_second"], 333.333);
        assert_eq!(status["uptime_seconds"], 9.877);
        let mut found = Vec::new();
        numbers(&status, &mut found);
        assert!(found.len() > 10);
        for number in found {
            let decimals = number.to_string();
            let decimals = decimals
                .split_once('.')
                .map_or(0, |(_, digits)| digits.len());
            assert!(decimals <= 3, "{number}");
        }
    }

    #[test]
    fn what_can_not_be_rounded_is_left_alone() {
        assert_eq!(rounded(f64::INFINITY), f64::INFINITY);
        assert!(rounded(f64::NAN).is_nan());
        assert_eq!(rounded(1e300), 1e300);
        assert_eq!(rounded(-0.0005), -0.001);
    }
}

//! Every metric of the server, by family: name, kind, labels and help text.
//!
//! Nothing else in the server spells a metric's name; `expose` takes them from here, and a test there compares
//! what is exposed with [`ALL`] both ways. The unit is part of the name and is a base unit (seconds, never
//! milliseconds). Labels are bounded: tiers, status codes, GPUs and the words of [`super::labels`].
//!
//! The `process_*` metrics are not listed: their names belong to the `prometheus` crate and are the same in every
//! program.

/// What kind of metric a family is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only rises; starts at 0 with the process.
    Counter,
    /// Rises and falls.
    Gauge,
    /// Counts by upper bound, with a sum.
    Histogram,
}

/// A metric's name and what it means.
#[derive(Debug, PartialEq, Eq)]
pub struct Family {
    /// Full name, unit included.
    pub name: &'static str,
    /// Counter, gauge or histogram.
    pub kind: Kind,
    /// Label names, in the order in which they are exposed.
    pub labels: &'static [&'static str],
    /// One sentence for the operator.
    pub help: &'static str,
}

const fn counter(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Family {
    let kind = Kind::Counter;
    Family {
        name,
        kind,
        labels,
        help,
    }
}

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Family {
    let kind = Kind::Gauge;
    Family {
        name,
        kind,
        labels,
        help,
    }
}

const fn histogram(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Family {
    let kind = Kind::Histogram;
    Family {
        name,
        kind,
        labels,
        help,
    }
}

// Requests.

/// Answers given.
pub const REQUESTS: Family = counter(
    "funicular_requests_total",
    &["tier", "code"],
    "Requests by tier and status code; tier none: refused before its tier was known, or of a route without one (health, readiness, openapi.json); code 499: the caller left first.",
);
/// Time from the first byte of a request to the last byte of its answer.
pub const REQUEST_DURATION: Family = histogram(
    "funicular_request_duration_seconds",
    &["tier"],
    "Time from reading a request to having written its answer.",
);
/// Where the time of a ticket goes.
pub const STAGE: Family = histogram(
    "funicular_stage_seconds",
    &["stage"],
    "A ticket's own time line: parse, queue, hold, stage, execute, demux, write.",
);
/// Requests whose caller did not get a result although they had been admitted.
pub const ABANDONED: Family = counter(
    "funicular_abandoned_total",
    &["reason"],
    "Admitted tickets that were given up before their result could be delivered.",
);
/// Results that nobody waited for any more.
pub const LATE_RESULTS: Family = counter(
    "funicular_late_results_total",
    &[],
    "Results dropped because their caller had gone or timed out.",
);
/// Tickets given a second attempt.
pub const RETRIES: Family = counter(
    "funicular_retries_total",
    &[],
    "Tickets put into a retry lane after their GPU failed.",
);

// Queues and admission.

/// Tickets waiting, first attempts.
pub const QUEUE_DEPTH: Family = gauge(
    "funicular_queue_depth",
    &["tier"],
    "Live tickets waiting for their first launch.",
);
/// Tickets waiting, second attempts.
pub const RETRY_QUEUE_DEPTH: Family = gauge(
    "funicular_retry_queue_depth",
    &["tier"],
    "Live tickets waiting in the retry lane.",
);
/// Time between admission and claim.
pub const QUEUE_WAIT: Family = histogram(
    "funicular_queue_wait_seconds",
    &["tier"],
    "Time a ticket waited before a batch claimed it.",
);
/// Requests refused.
pub const SHED: Family = counter(
    "funicular_shed_total",
    &["tier", "reason"],
    "Requests refused, by tier and reason.",
);
/// Depth of the backlog.
pub const BACKLOG: Family = gauge(
    "funicular_backlog_seconds",
    &[],
    "Live waiting tickets divided by capacity.",
);
/// Zone of the backlog.
pub const ZONE: Family = gauge(
    "funicular_zone",
    &[],
    "Admission zone: 0 green, 1 yellow, 2 red, 3 limit (nobody is let in).",
);
/// What the healthy GPUs can serve.
pub const CAPACITY: Family = gauge(
    "funicular_capacity_requests_per_second",
    &[],
    "Healthy GPUs times batch cap divided by the measured batch time.",
);
/// What callers ask for.
pub const ARRIVAL_RATE: Family = gauge(
    "funicular_arrival_rate_requests_per_second",
    &[],
    "Estimated arrival rate of admitted requests.",
);

// Batches.

/// Batches finished.
pub const BATCHES: Family = counter(
    "funicular_batches_total",
    &["gpu", "outcome"],
    "Batches finished, by GPU and outcome.",
);
/// Batches launched.
pub const BATCH_LAUNCHES: Family = counter(
    "funicular_batch_launches_total",
    &["reason"],
    "Batches launched, by what made them leave.",
);
/// Searches for bad inputs.
pub const ISOLATIONS: Family = counter(
    "funicular_isolations_total",
    &["result"],
    "Searches for bad inputs after the batch function raised, by how they ended.",
);
/// Tickets per batch.
pub const BATCH_SIZE: Family =
    histogram("funicular_batch_size", &[], "Tickets in a launched batch.");
/// Tickets launched.
pub const SLOTS_FILLED: Family = counter(
    "funicular_slots_filled_total",
    &[],
    "Batch slots filled with tickets; their rate divided by capacity is slot utilisation.",
);
/// How long a batch ran.
pub const BATCH_DURATION: Family = histogram(
    "funicular_batch_duration_seconds",
    &["gpu"],
    "Time from launching a batch to its completion.",
);
/// What double buffering is there to remove.
pub const BATCH_GAP: Family = histogram(
    "funicular_batch_gap_seconds",
    &["gpu"],
    "Time from the end of one batch to the start of the next while tickets waited.",
);

// GPUs.

/// Time a GPU spent running batches.
pub const GPU_BUSY: Family = counter(
    "funicular_gpu_busy_seconds_total",
    &["gpu"],
    "Time a GPU ran batches, however full; this is not slot utilisation.",
);
/// Whether a GPU is healthy.
pub const GPU_UP: Family = gauge(
    "funicular_gpu_up",
    &["gpu"],
    "1 if the GPU is healthy, else 0.",
);
/// Which worker a GPU is.
pub const WORKER_INFO: Family = gauge(
    "funicular_worker_info",
    &["gpu", "worker"],
    "Always 1; which worker, by its URL, the GPU of this number is.",
);
/// The state a GPU is in.
pub const GPU_STATE: Family = gauge(
    "funicular_gpu_state",
    &["gpu", "state"],
    "1 for the state that the GPU is in, 0 for all others.",
);
/// The measured batch time L.
pub const GPU_BATCH_TIME: Family = gauge(
    "funicular_gpu_batch_time_seconds",
    &["gpu"],
    "Decayed mean of the batch time, on which launch rule and capacity rest; absent until measured.",
);

/// Where the time of a batch goes with the CUDA executor.
pub const CUDA_PHASE: Family = histogram(
    "funicular_cuda_phase_seconds",
    &["gpu", "phase"],
    "With the CUDA executor only: stage and demux by the host's clock; h2d, kernel, d2h and gap by the device's.",
);

// Connections and process.

/// Open connections.
pub const CONNECTIONS: Family = gauge(
    "funicular_connections",
    &[],
    "Open connections of the data plane.",
);
/// Connections accepted.
pub const CONNECTIONS_OPENED: Family = counter(
    "funicular_connections_opened_total",
    &[],
    "Connections accepted by the data plane.",
);
/// Connections turned away.
pub const CONNECTIONS_REFUSED: Family = counter(
    "funicular_connections_refused_total",
    &[],
    "Connections turned away because the connection cap was reached.",
);
/// Memory that requests hold.
pub const REQUEST_MEMORY: Family = gauge(
    "funicular_request_memory_bytes",
    &[],
    "Memory that heads, bodies, unanswered inputs and untaken answers hold, beyond 4 KiB for each connection.",
);
/// Memory that requests may hold.
pub const REQUEST_MEMORY_LIMIT: Family = gauge(
    "funicular_request_memory_limit_bytes",
    &[],
    "Memory that requests may hold; one that would exceed it gets 503.",
);
/// Readiness, as a load balancer sees it.
pub const READY: Family = gauge(
    "funicular_ready",
    &[],
    "1 if at least one GPU is healthy and the server is not draining, else 0.",
);
/// The configuration was read again.
pub const RELOADS: Family = counter(
    "funicular_reloads_total",
    &["result"],
    "Times that the configuration was read again (SIGHUP), by what became of it.",
);
/// Time since the start, as of this reading.
pub const UPTIME: Family = gauge(
    "funicular_uptime_seconds",
    &[],
    "Time from the server's start to this reading; readings are cached, so rates are best taken over this.",
);
/// What is running.
pub const BUILD_INFO: Family = gauge(
    "funicular_build_info",
    &["version", "profile", "os", "arch"],
    "Always 1; the labels say what is running.",
);

/// All families, in the order in which they are exposed.
pub const ALL: &[&Family] = &[
    &REQUESTS,
    &REQUEST_DURATION,
    &STAGE,
    &ABANDONED,
    &LATE_RESULTS,
    &RETRIES,
    &QUEUE_DEPTH,
    &RETRY_QUEUE_DEPTH,
    &QUEUE_WAIT,
    &SHED,
    &BACKLOG,
    &ZONE,
    &CAPACITY,
    &ARRIVAL_RATE,
    &BATCHES,
    &BATCH_LAUNCHES,
    &ISOLATIONS,
    &BATCH_SIZE,
    &SLOTS_FILLED,
    &BATCH_DURATION,
    &BATCH_GAP,
    &GPU_BUSY,
    &GPU_UP,
    &WORKER_INFO,
    &GPU_STATE,
    &GPU_BATCH_TIME,
    &CUDA_PHASE,
    &CONNECTIONS,
    &CONNECTIONS_OPENED,
    &CONNECTIONS_REFUSED,
    &REQUEST_MEMORY,
    &REQUEST_MEMORY_LIMIT,
    &READY,
    &RELOADS,
    &UPTIME,
    &BUILD_INFO,
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Gauges and histograms that count things or answer yes or no: they have no unit.
    const UNITLESS: &[&Family] = &[
        &QUEUE_DEPTH,
        &RETRY_QUEUE_DEPTH,
        &ZONE,
        &BATCH_SIZE,
        &GPU_UP,
        &WORKER_INFO,
        &GPU_STATE,
        &CONNECTIONS,
        &READY,
        &BUILD_INFO,
    ];

    #[test]
    fn no_name_is_used_twice() {
        let names: HashSet<_> = ALL.iter().map(|family| family.name).collect();
        assert_eq!(names.len(), ALL.len());
    }

    #[test]
    fn every_family_of_this_file_is_listed() {
        let declared = include_str!("names.rs")
            .lines()
            .filter(|line| line.starts_with("pub const") && line.contains(": Family ="))
            .count();
        assert_eq!(declared, ALL.len(), "a family is missing from ALL");
    }

    #[test]
    fn every_family_is_documented_by_one_sentence() {
        for family in ALL {
            assert!(
                family.help.len() > 20 && family.help.ends_with('.'),
                "{}",
                family.name
            );
            assert!(!family.help.contains('\n'), "{}", family.name);
        }
    }

    #[test]
    fn every_name_carries_prefix_and_unit() {
        for family in ALL {
            let name = family.name;
            assert!(name.starts_with("funicular_"), "{name}");
            assert!(
                name.bytes()
                    .all(|byte| byte == b'_' || byte.is_ascii_lowercase()),
                "{name}"
            );
            let is_total = name.ends_with("_total");
            assert_eq!(
                is_total,
                family.kind == Kind::Counter,
                "{name}: _total is for counters, and only for them"
            );
            let has_unit = ["_seconds", "_per_second", "_bytes"]
                .iter()
                .any(|unit| name.ends_with(unit));
            if family.kind != Kind::Counter {
                assert_eq!(
                    !has_unit,
                    UNITLESS.contains(family),
                    "{name}: unit missing or unexpected"
                );
            }
            for wrong in [
                "_ms", "milli", "micro", "nano", "_count", "_sum", "_bucket", "_info_",
            ] {
                assert!(!name.contains(wrong), "{name}: {wrong}");
            }
        }
    }

    #[test]
    fn no_label_collides_with_those_of_the_format() {
        for label in ALL.iter().flat_map(|family| family.labels) {
            assert!(
                !["le", "quantile", "job", "instance"].contains(label),
                "{label}"
            );
            assert!(
                label
                    .bytes()
                    .all(|byte| byte == b'_' || byte.is_ascii_lowercase()),
                "{label}"
            );
        }
    }
}

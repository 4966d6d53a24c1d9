//! A run's result: what `--json` writes, what the reports read, what two builds are compared by.
//!
//! The structures are the contract between the engine, which fills them in, and the reports, which only read them. Whatever
//! may be missing (no admin port, no process id, no trace) is an `Option` or an empty list and is left out of the JSON.
//! Latencies are in milliseconds here, because people read them; the engine records nanoseconds. Times on the run's own
//! time line are seconds after its start.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The version this build writes. It grows when a field changes its meaning or goes away, not when one is added.
pub const SCHEMA_VERSION: u32 = 1;

/// Everything one run found out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// [`SCHEMA_VERSION`] of the build that wrote this.
    pub schema_version: u32,
    /// Name of the run: the scenario's, the one given by `--name`, or one made from the arrivals.
    pub name: String,
    /// The question that the run answers, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// Wall-clock start, RFC 3339 in UTC.
    pub started_at: String,
    /// Where the generator ran.
    pub machine: Machine,
    /// Git commit of the tree in which the generator ran, with `-dirty` appended where it had changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The generator's command line.
    pub command: Vec<String>,
    /// The command line of the server, where the generator started it or could read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_command: Option<Vec<String>>,
    /// The settings that the run used, after defaults.
    pub configuration: Configuration,
    /// Seconds of the measured part (without warm-up and without waiting for the last answers).
    pub duration_seconds: f64,
    /// What that was to be, where the run was stopped early.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned_seconds: Option<f64>,
    /// Offered and achieved rate and the totals.
    pub totals: Totals,
    /// Latency of good (2xx, right) answers of all tiers.
    pub latency: Latency,
    /// The same per tier, in the order of the tier mix.
    pub tiers: Vec<TierResult>,
    /// One element per second of the measured part.
    #[serde(default)]
    pub intervals: Vec<Interval>,
    /// How well the generator kept its own schedule.
    pub generator: Generator,
    /// What the server's process cost, when it is local or its admin port says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<Server>,
    /// What the GPUs did, from `/metrics`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Gpu>,
    /// A request's time line, stage by stage, in the order of the path; from `stage_seconds`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<Stage>,
    /// Zone and backlog over time, from `/metrics`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<ZonePoint>,
    /// Wrong and double answers. Anything but zeros makes the run worthless.
    pub mismatches: Mismatches,
    /// The conditions of `--fail-if` and what came of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fail_if: Vec<FailIfResult>,
    /// The start of the first answer of each status that was not good.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub refusals: BTreeMap<String, String>,
    /// Warnings that belong beside the numbers, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// The machine the generator ran on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// CPU model as the kernel names it.
    pub cpu_model: String,
    /// Cores that the process may use.
    pub cores: u32,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Kernel name and release.
    pub kernel: String,
}

/// The settings of a run after defaults; enough to run it again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Configuration {
    /// `http://host:port/path` that was driven.
    pub target: String,
    /// Arrivals in words: `constant 700/s`, `poisson 10000/s`, `profile 0:100,30s:10000`, `closed loop`.
    pub arrivals: String,
    /// True if the arrivals follow a schedule; false in a closed loop, where coordinated omission can't be corrected.
    pub open_loop: bool,
    /// Seed of arrivals, tiers, sizes and hang-ups.
    pub seed: u64,
    /// Connections at most.
    pub connections: u32,
    /// Generator threads.
    pub threads: u32,
    /// False if each request opened a connection of its own.
    pub keep_alive: bool,
    /// The tier mix: name and weight.
    pub tiers: Vec<TierShare>,
    /// Input sizes in words: `64 bytes`, `16-4096 bytes`, `lines of FILE`.
    pub input: String,
    /// Where the output was looked for in an answer: a JSON pointer, or `body`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub expect: String,
    /// Deadline sent with each request, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<f64>,
    /// Milliseconds after which the generator gives up on an answer.
    pub timeout_ms: f64,
    /// Think time of a closed loop, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub think_ms: Option<f64>,
    /// Share of requests whose caller hangs up early, 0 to 1.
    #[serde(default)]
    pub hangup_share: f64,
    /// Seconds at the start that are sent but not measured.
    #[serde(default)]
    pub warmup_seconds: f64,
}

/// One tier of the mix.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TierShare {
    /// Name as sent in `X-Tier`.
    pub name: String,
    /// Share of the requests, 0 to 1.
    pub share: f64,
}

/// Totals of the measured part.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// Requests per second that the schedule asked for; in a closed loop, what was sent.
    pub offered_rate: f64,
    /// Good answers per second.
    pub achieved_rate: f64,
    /// Answers of any status per second.
    pub answered_rate: f64,
    /// Requests that the schedule held.
    pub scheduled: u64,
    /// Requests written to a connection.
    pub sent: u64,
    /// Good answers: 2xx and right.
    pub ok: u64,
    /// Answers with other statuses, time-outs and broken connections; hang-ups of our own are not among them.
    pub errors: u64,
    /// Requests that we hung up on purpose.
    pub hung_up: u64,
}

/// Latency of good answers, twice.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// From the moment the request should have left: what callers see.
    pub corrected: LatencyView,
    /// From the moment the request was written: what a generator that waits for the server would report.
    pub uncorrected: LatencyView,
}

/// A summary and the whole curve.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyView {
    /// The usual percentiles.
    pub summary: LatencySummary,
    /// Points of the percentile curve, ascending, for the log-nines plot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub curve: Vec<CurvePoint>,
}

/// The usual percentiles, in milliseconds; zeros when `count` is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencySummary {
    /// Number of values.
    pub count: u64,
    /// Mean.
    pub mean_ms: f64,
    /// Smallest value.
    pub min_ms: f64,
    /// Median.
    pub p50_ms: f64,
    /// 75th percentile.
    pub p75_ms: f64,
    /// 90th percentile.
    pub p90_ms: f64,
    /// 95th percentile.
    pub p95_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// 99.9th percentile.
    pub p999_ms: f64,
    /// Largest value.
    pub max_ms: f64,
}

/// A point of a percentile curve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Latency in milliseconds.
    pub value_ms: f64,
    /// Percentile, 0 to 100: this share of values is at most `value_ms`. The last point is 100.
    pub percentile: f64,
    /// Number of values up to here.
    pub count: u64,
}

/// What one tier saw.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TierResult {
    /// The tier, `untiered` when the run sent no tier.
    pub tier: String,
    /// Requests that the schedule held for this tier.
    pub scheduled: u64,
    /// Good answers per second.
    pub achieved_rate: f64,
    /// Latency of good answers.
    pub latency: Latency,
    /// Every outcome that occurred, by status, ascending; then `timeout`, `closed`, `connect`, `malformed`, `wrong`, `hangup`.
    pub statuses: Vec<StatusResult>,
}

/// One outcome of one tier.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StatusResult {
    /// `200`, `429`, …; or `timeout`, `closed`, `connect`, `malformed`, `wrong`, `hangup`.
    pub status: String,
    /// How many.
    pub count: u64,
    /// Corrected latency until this outcome.
    pub latency: LatencySummary,
}

/// One second of the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Start of the second, in seconds after the start of the measured part.
    pub start_seconds: f64,
    /// Length in seconds (the last one may be short).
    pub length_seconds: f64,
    /// Requests that the schedule held in this second.
    pub offered: u64,
    /// Requests written in this second.
    pub sent: u64,
    /// Corrected latency of good answers of all tiers that came in this second.
    pub latency: LatencySummary,
    /// Per tier, in the order of the tier mix.
    pub tiers: Vec<IntervalTier>,
    /// Outcomes that are not good answers, by class: `4xx` (without 429), `429`, `5xx`, `timeout`, `closed`, `connect`,
    /// `malformed`, `wrong`. Hang-ups of our own are not among them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub errors: BTreeMap<String, u64>,
}

/// One tier in one second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct IntervalTier {
    /// The tier.
    pub tier: String,
    /// Good answers.
    pub ok: u64,
    /// Outcomes that are not good answers.
    pub errors: u64,
    /// Corrected median in milliseconds, of good answers.
    pub p50_ms: f64,
    /// Corrected 95th percentile in milliseconds.
    pub p95_ms: f64,
    /// Corrected 99th percentile in milliseconds.
    pub p99_ms: f64,
}

/// How the generator itself did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Generator {
    /// How late the generator noticed that a request was due: its own fault.
    pub lateness: LatencySummary,
    /// How long due requests waited for a free connection: the fault of the server, or of too few connections.
    pub connection_wait: LatencySummary,
    /// Requests that had to wait for a free connection.
    pub connection_waits: u64,
    /// CPU seconds that the generator's threads used.
    pub cpu_seconds: f64,
    /// CPU seconds over threads x wall seconds, 0 to 1; the busiest thread's.
    pub busy_fraction_max: f64,
    /// True if the generator, not the server, limited what was measured.
    pub generator_bound: bool,
    /// Why, in words, where it is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// What the server's process cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Server {
    /// Its process id, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// `pid` or `metrics`: where the numbers come from.
    pub source: String,
    /// Version from `build_info`, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// CPU seconds over the measured part.
    pub cpu_seconds: f64,
    /// CPU seconds per 1,000 requests that it answered.
    pub cpu_seconds_per_1000_requests: f64,
    /// Resident memory at the start, in bytes.
    pub rss_bytes_start: u64,
    /// Largest resident memory seen, in bytes.
    pub rss_bytes_max: u64,
    /// Resident memory at the end, in bytes.
    pub rss_bytes_end: u64,
}

/// What the GPUs did over the measured part.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// GPUs that were up at the end.
    pub gpus: u32,
    /// Capacity in requests per second, at the end.
    pub capacity: f64,
    /// Slot utilisation: requests served per second / capacity. Not the busy fraction.
    pub slot_utilisation: f64,
    /// Mean number of tickets in a batch.
    pub batch_size_mean: f64,
    /// Batches.
    pub batches: u64,
    /// Share of the time in which a batch ran, mean over GPUs, 0 to 1. Not utilisation: it reads 1 at 5 % fill.
    pub busy_fraction: f64,
    /// Batch sizes, ascending. Not cumulative.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub batch_sizes: Vec<SizeBucket>,
    /// Median gap between batches while tickets wait, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap_p50_ms: Option<f64>,
    /// 99th percentile of the gap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap_p99_ms: Option<f64>,
    /// Launches by reason: `full`, `hold`, `paced`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub launches: BTreeMap<String, u64>,
}

/// A bucket of the batch-size histogram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SizeBucket {
    /// Largest size in this bucket; `null` for the one without a bound. The smallest is the previous bucket's plus one.
    pub up_to: Option<u32>,
    /// Batches.
    pub count: u64,
}

/// One stage of a request's time line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// `parse`, `queue`, `hold`, `stage`, `execute`, `demux`, `write`.
    pub stage: String,
    /// Tickets observed.
    pub count: u64,
    /// Mean in milliseconds.
    pub mean_ms: f64,
    /// Median in milliseconds, interpolated inside a bucket.
    pub p50_ms: f64,
    /// 95th percentile in milliseconds, interpolated inside a bucket.
    pub p95_ms: f64,
    /// 99th percentile in milliseconds, interpolated inside a bucket.
    pub p99_ms: f64,
}

/// Zone and backlog at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ZonePoint {
    /// Seconds after the start of the measured part.
    pub at_seconds: f64,
    /// `green`, `yellow`, `red`, `limit` (nobody is let in), or `unknown`.
    pub zone: String,
    /// Backlog in seconds of capacity.
    pub backlog_seconds: f64,
    /// Waiting tickets per tier.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub queue_depth: BTreeMap<String, u64>,
    /// GPUs up.
    pub gpus_up: u32,
}

/// Answers that were not the caller's own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Mismatches {
    /// Good statuses whose output was not this request's.
    pub wrong: u64,
    /// Those of them that had nothing where the output should stand.
    #[serde(default)]
    pub without_output: u64,
    /// Bytes that came on a connection on which no answer was due.
    pub double: u64,
    /// The first few, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub examples: Vec<String>,
}

impl Mismatches {
    /// True if every answer was its own, once.
    pub fn is_clean(&self) -> bool {
        self.wrong == 0 && self.double == 0
    }
}

/// One condition of `--fail-if`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FailIfResult {
    /// The condition as it was written.
    pub condition: String,
    /// The value found, in the unit of the condition; `None` if there was nothing to measure, which fails too.
    pub value: Option<f64>,
    /// The same in words, with its unit.
    pub found: String,
    /// True if the condition held, and so the run failed.
    pub failed: bool,
    /// Both as a sentence: `p95{tier=enterprise} is 2,645 ms, must not be > 300 ms`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sentence: String,
}

/// A result file that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file can't be read.
    #[error("cannot read {path}")]
    Io {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The file is no result of this tool.
    #[error("{path} is not a result of funicular-perf")]
    Json {
        /// The file.
        path: String,
        /// Where and why.
        source: serde_json::Error,
    },
    /// The file was written by a newer build.
    #[error("{path} has schema version {found}; this build reads up to {SCHEMA_VERSION}")]
    Version {
        /// The file.
        path: String,
        /// Its version.
        found: u32,
    },
}

impl RunResult {
    /// Reads a result file.
    ///
    /// # Errors
    /// If the file can't be read, is no result, or was written by a newer build.
    pub fn read(path: &Path) -> Result<RunResult, ReadError> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|source| ReadError::Io {
            path: name.clone(),
            source,
        })?;
        let result: RunResult = serde_json::from_str(&text).map_err(|source| ReadError::Json {
            path: name.clone(),
            source,
        })?;
        if result.schema_version > SCHEMA_VERSION {
            return Err(ReadError::Version {
                path: name,
                found: result.schema_version,
            });
        }
        Ok(result)
    }
}

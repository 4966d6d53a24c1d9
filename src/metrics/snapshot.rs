//! What the server looks like at one moment: the numbers that are computed when somebody asks, not counted.
//!
//! The server hands the admin plane a closure that makes a [`Snapshot`]; the gauges of `/metrics` and all of `/status`
//! come from it. The closure runs on the `admin` thread, at most a few times a second, and may take short locks.

use std::net::SocketAddr;

use crate::clock::Time;
use crate::tier::Tier;

/// Makes a [`Snapshot`]; called by the `admin` thread.
pub type SnapshotFn = Box<dyn Fn() -> Snapshot + Send + Sync>;

/// The server at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// When this was taken.
    pub now: Time,
    /// When the server started.
    pub started: Time,
    /// The executor's kind: `simulated`, `cuda`, `python` or `remote`.
    pub executor: String,
    /// Most tickets in a batch.
    pub batch_max: usize,
    /// Address of the data plane.
    pub listen: Option<SocketAddr>,
    /// Address of the admin plane.
    pub admin: Option<SocketAddr>,
    /// At least one GPU is healthy and the server is not draining.
    pub ready: bool,
    /// A drain has begun.
    pub draining: bool,
    /// `green`, `yellow` or `red`.
    pub zone: &'static str,
    /// Live waiting tickets / capacity, in seconds; infinite without capacity.
    pub backlog_seconds: f64,
    /// Healthy GPUs × `batch_max` / measured batch time, in requests per second.
    pub capacity_rps: f64,
    /// Estimated arrival rate, in requests per second.
    pub arrival_rate_rps: f64,
    /// Bytes that requests hold, and may, see [`crate::http::budget`].
    pub request_memory_bytes: (usize, usize),
    /// By [`Tier::index`].
    pub queues: [QueueSnapshot; Tier::COUNT],
    /// In the order in which they came.
    pub gpus: Vec<GpuSnapshot>,
}

/// A tier's queue at one moment.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct QueueSnapshot {
    /// Live tickets waiting for their first launch.
    pub waiting: usize,
    /// Live tickets in the retry lane.
    pub retry: usize,
}

/// A GPU at one moment.
#[derive(Clone, Debug)]
pub struct GpuSnapshot {
    /// Its number.
    pub gpu: usize,
    /// Where it is, if that is on another machine.
    pub worker: Option<String>,
    /// One of [`super::labels::GPU_STATES`].
    pub state: &'static str,
    /// Which device it is, where the server knows.
    pub device: Option<String>,
    /// Whether it counts towards capacity.
    pub up: bool,
    /// When it came into this state.
    pub since: Time,
    /// Why it is in this state; may be empty.
    pub why: String,
    /// Decayed mean of its batch times, in milliseconds, once measured.
    pub batch_time_ms: Option<f64>,
    /// Batches it has finished.
    pub batches: u64,
    /// Tickets in the batch it is running.
    pub running: Option<usize>,
}

//! What the admin plane shows of a running server.

use std::net::SocketAddr;
use std::time::Duration;

use super::Core;
use crate::clock::{self, Time};
use crate::gpu::Gpu;
use crate::gpu::health::State;
use crate::http::{Door, Phase};
use crate::metrics::{GpuSnapshot, QueueSnapshot, Snapshot};
use crate::queue::Lane;
use crate::tier::Tier;

/// A GPU that has left is shown for so long, if its seat is not another's before: its last counts are to be scraped, and
/// Prometheus looks back for as long.
const GONE_SHOWN: Duration = Duration::from_secs(300);

impl Core {
    pub(super) fn snapshot(&self, listen: SocketAddr, admin: SocketAddr) -> Snapshot {
        let (now, load) = (clock::now(), self.gate.load());
        let backlog = self.collector.backlog();
        let leaving = self.shared.phase() >= Phase::Leaving;
        Snapshot {
            now,
            started: self.started,
            executor: self.config.executor.name().to_owned(),
            batch_max: self.config.batch.batch_max,
            listen: Some(listen),
            admin: Some(admin),
            ready: self.gate.is_ready() && self.shared.is_listening() && !leaving,
            draining: leaving,
            zone: self.gate.admission().zone(&load).label(),
            backlog_seconds: backlog_seconds(backlog.total(), load.capacity),
            capacity_rps: load.capacity,
            arrival_rate_rps: self.collector.arrival_rate(),
            request_memory_bytes: self.shared.request_memory_bytes(),
            queues: Tier::ALL.map(|tier| QueueSnapshot {
                waiting: backlog.waiting(Lane::Fresh, tier),
                retry: backlog.waiting(Lane::Retry, tier),
            }),
            gpus: self.gpu_snapshots(now),
        }
    }

    fn gpu_snapshots(&self, now: Time) -> Vec<GpuSnapshot> {
        let gpus = self.fleet.gpus().into_iter();
        let all = gpus.map(|gpu| self.gpu_snapshot(&gpu));
        let is_old = |gpu: &GpuSnapshot| {
            gpu.state == State::Gone.label() && now.since(gpu.since) > GONE_SHOWN
        };
        all.filter(|gpu| !is_old(gpu)).collect()
    }

    fn gpu_snapshot(&self, gpu: &Gpu) -> GpuSnapshot {
        let (health, running) = gpu.cell().look();
        // A GPU that comes into service calls itself ready a moment before its capacity counts, and only then is anybody let in.
        let in_service = health.state().in_service() && self.collector.counts(gpu.seat());
        let batch_time = self.collector.batch_time(gpu.seat());
        GpuSnapshot {
            gpu: gpu.index,
            worker: gpu.worker().map(str::to_owned),
            state: health.state().label(),
            device: self.devices.get(gpu.index).map(ToString::to_string),
            up: in_service,
            since: health.since(),
            why: health.why().to_owned(),
            batch_time_ms: in_service.then_some(batch_time.as_secs_f64() * 1e3),
            batches: gpu.batches(),
            running,
        }
    }
}

fn backlog_seconds(waiting: usize, capacity: f64) -> f64 {
    match (waiting, capacity > 0.0) {
        (0, _) => 0.0,
        (_, false) => f64::INFINITY,
        (waiting, true) => waiting as f64 / capacity,
    }
}

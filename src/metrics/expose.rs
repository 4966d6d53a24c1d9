//! Reading: adds up the recorders and puts them, the snapshot and the process's numbers into the Prometheus text format.
//!
//! Called by the `admin` thread only. Every bounded combination of labels is exposed from the start, with 0, so that
//! rates are right from the first sample.

mod page;
mod process;

use std::collections::BTreeMap;
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use prometheus::proto::Metric;

use page::{Page, counter, gauge, histogram};
pub(super) use process::Process;

use super::labels::{
    Abandonment, BatchOutcome, CODES, CudaPhase, GPU_STATES, Isolation, LaunchReason, NO_TIER,
    OTHER_CODE, Reload, ShedReason, Stage, ZONES,
};
use super::names::{self, Family};
use super::record::{GpuRecorder, Histogram, Reading, Recorder};
use super::{Metrics, Snapshot};
use crate::config::values::ExecutorKind;
use crate::tier::Tier;

const NANOS_PER_SECOND: f64 = 1e9;

/// What `/status` tells of the counters: sums since the start, zeros left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Totals {
    /// Requests answered, with any status.
    pub requests: u64,
    /// Requests by status code.
    pub requests_by_code: BTreeMap<String, u64>,
    /// Requests refused, by reason.
    pub shed: BTreeMap<&'static str, u64>,
    /// Tickets given up, by reason.
    pub abandoned: BTreeMap<&'static str, u64>,
    /// Tickets given a second attempt.
    pub retries: u64,
    /// Results that nobody waited for.
    pub late_results: u64,
    /// Batches finished, by outcome.
    pub batches: BTreeMap<&'static str, u64>,
    /// Batches launched, by reason.
    pub launches: BTreeMap<&'static str, u64>,
    /// Searches for bad inputs, by how they ended.
    pub isolations: BTreeMap<&'static str, u64>,
    /// Tickets launched.
    pub slots_filled: u64,
    /// Connections turned away.
    pub connections_refused: u64,
}

impl Metrics {
    /// The Prometheus text format of everything recorded so far, with the gauges of `snapshot`.
    ///
    /// # Errors
    /// If the encoder refuses a family, which would be a bug of ours.
    pub fn render(&self, snapshot: &Snapshot) -> prometheus::Result<String> {
        let mut page = Page::default();
        self.requests(&mut page);
        self.admission(&mut page, snapshot);
        self.batches(&mut page, snapshot);
        self.gpus(&mut page, snapshot);
        self.server(&mut page, snapshot);
        page.extend(self.process.families());
        page.into_text()
    }

    /// Sums for `/status`.
    pub fn totals(&self) -> Totals {
        let by_code = |code: usize| -> u64 {
            (0..=Tier::COUNT)
                .map(|tier| self.total(|r| &r.requests[tier][code]))
                .sum()
        };
        let by_shed = |reason: usize| -> u64 {
            (0..Tier::COUNT)
                .map(|tier| self.total(|r| &r.shed[tier][reason]))
                .sum()
        };
        let requests_by_code =
            non_zero((0..=CODES.len()).map(|code| (code_name(code), by_code(code))));
        Totals {
            requests: requests_by_code.values().sum(),
            requests_by_code,
            shed: non_zero(
                ShedReason::ALL
                    .iter()
                    .map(|reason| (reason.name(), by_shed(reason.index()))),
            ),
            abandoned: non_zero(
                Abandonment::ALL
                    .iter()
                    .map(|reason| (reason.name(), self.total(|r| &r.abandoned[reason.index()]))),
            ),
            retries: self.total(|r| &r.retries),
            late_results: self.total(|r| &r.late_results),
            batches: non_zero(BatchOutcome::ALL.iter().map(|outcome| {
                (
                    outcome.name(),
                    self.total_of_gpus(|gpu| &gpu.outcomes[outcome.index()]),
                )
            })),
            launches: non_zero(
                LaunchReason::ALL
                    .iter()
                    .map(|reason| (reason.name(), self.launches(*reason))),
            ),
            isolations: non_zero(
                Isolation::ALL
                    .iter()
                    .map(|result| (result.name(), self.isolations(*result))),
            ),
            slots_filled: self.sizes().sum,
            connections_refused: self.total(|r| &r.connections_refused),
        }
    }

    fn requests(&self, page: &mut Page) {
        let tiers = || {
            Tier::ALL
                .iter()
                .map(|tier| tier.name())
                .chain([NO_TIER])
                .enumerate()
        };
        let mut answers = Vec::new();
        for (tier, tier_name) in tiers() {
            for code in 0..=CODES.len() {
                let count = self.total(|r| &r.requests[tier][code]);
                answers.push(counter(
                    &names::REQUESTS,
                    &[tier_name, &code_name(code)],
                    count as f64,
                ));
            }
        }
        page.push(&names::REQUESTS, answers);
        let durations = tiers().map(|(tier, name)| {
            let reading = self.merged(|r| &r.request_duration[tier]);
            histogram(
                &names::REQUEST_DURATION,
                &[name],
                &reading,
                NANOS_PER_SECOND,
            )
        });
        page.push(&names::REQUEST_DURATION, durations.collect());
        let stages = Stage::ALL.iter().map(|stage| {
            let reading = self.merged(|r| &r.stages[stage.index()]);
            histogram(&names::STAGE, &[stage.name()], &reading, NANOS_PER_SECOND)
        });
        page.push(&names::STAGE, stages.collect());
        let abandoned = Abandonment::ALL.iter().map(|reason| {
            let count = self.total(|r| &r.abandoned[reason.index()]);
            counter(&names::ABANDONED, &[reason.name()], count as f64)
        });
        page.push(&names::ABANDONED, abandoned.collect());
        page.count(&names::LATE_RESULTS, self.total(|r| &r.late_results));
        page.count(&names::RETRIES, self.total(|r| &r.retries));
    }

    fn admission(&self, page: &mut Page, snapshot: &Snapshot) {
        let depths = |family: &'static Family, depth: fn(&super::QueueSnapshot) -> usize| {
            let tiers = Tier::ALL.iter().zip(&snapshot.queues);
            tiers
                .map(|(tier, queue)| gauge(family, &[tier.name()], depth(queue) as f64))
                .collect()
        };
        page.push(
            &names::QUEUE_DEPTH,
            depths(&names::QUEUE_DEPTH, |queue| queue.waiting),
        );
        page.push(
            &names::RETRY_QUEUE_DEPTH,
            depths(&names::RETRY_QUEUE_DEPTH, |queue| queue.retry),
        );
        let mut waits = Vec::new();
        let mut shed = Vec::new();
        for tier in Tier::ALL {
            let reading = self.merged(|r| &r.queue_wait[tier.index()]);
            waits.push(histogram(
                &names::QUEUE_WAIT,
                &[tier.name()],
                &reading,
                NANOS_PER_SECOND,
            ));
            for reason in ShedReason::ALL {
                let count = self.total(|r| &r.shed[tier.index()][reason.index()]);
                shed.push(counter(
                    &names::SHED,
                    &[tier.name(), reason.name()],
                    count as f64,
                ));
            }
        }
        page.push(&names::QUEUE_WAIT, waits);
        page.push(&names::SHED, shed);
        page.set(&names::BACKLOG, snapshot.backlog_seconds);
        let zone = ZONES.iter().position(|zone| *zone == snapshot.zone);
        debug_assert!(zone.is_some(), "no such zone: {}", snapshot.zone);
        page.set(&names::ZONE, zone.map_or(f64::NAN, |zone| zone as f64));
        page.set(&names::CAPACITY, snapshot.capacity_rps);
        page.set(&names::ARRIVAL_RATE, snapshot.arrival_rate_rps);
    }

    /// The GPUs of `snapshot`, by their numbers as they label series.
    fn of_snapshot(&self, snapshot: &Snapshot) -> Vec<(String, Arc<CachePadded<GpuRecorder>>)> {
        let gpus = self.gpus.lock();
        let shown = snapshot.gpus.iter().filter_map(|gpu| {
            let recorder = gpus.present.get(&gpu.gpu)?;
            Some((gpu.gpu.to_string(), Arc::clone(recorder)))
        });
        shown.collect()
    }

    fn batches(&self, page: &mut Page, snapshot: &Snapshot) {
        let (mut outcomes, mut durations, mut gaps) = (Vec::new(), Vec::new(), Vec::new());
        for (number, gpu) in self.of_snapshot(snapshot) {
            for outcome in BatchOutcome::ALL {
                let count = gpu.outcomes[outcome.index()].get();
                outcomes.push(counter(
                    &names::BATCHES,
                    &[&number, outcome.name()],
                    count as f64,
                ));
            }
            durations.push(histogram(
                &names::BATCH_DURATION,
                &[&number],
                &read(&gpu.duration),
                NANOS_PER_SECOND,
            ));
            gaps.push(histogram(
                &names::BATCH_GAP,
                &[&number],
                &read(&gpu.gap),
                NANOS_PER_SECOND,
            ));
        }
        page.push(&names::BATCHES, outcomes);
        let launches = LaunchReason::ALL.iter().map(|reason| {
            counter(
                &names::BATCH_LAUNCHES,
                &[reason.name()],
                self.launches(*reason) as f64,
            )
        });
        page.push(&names::BATCH_LAUNCHES, launches.collect());
        let isolations = Isolation::ALL.iter().map(|result| {
            let count = self.isolations(*result);
            counter(&names::ISOLATIONS, &[result.name()], count as f64)
        });
        page.push(&names::ISOLATIONS, isolations.collect());
        let sizes = self.sizes();
        page.push(
            &names::BATCH_SIZE,
            vec![histogram(&names::BATCH_SIZE, &[], &sizes, 1.0)],
        );
        page.count(&names::SLOTS_FILLED, sizes.sum);
        page.push(&names::BATCH_DURATION, durations);
        page.push(&names::BATCH_GAP, gaps);
    }

    fn gpus(&self, page: &mut Page, snapshot: &Snapshot) {
        let busy = self.of_snapshot(snapshot).into_iter();
        let busy = busy.map(|(number, gpu)| {
            let seconds = gpu.busy_nanos.get() as f64 / NANOS_PER_SECOND;
            counter(&names::GPU_BUSY, &[&number], seconds)
        });
        page.push(&names::GPU_BUSY, busy.collect());
        let (mut up, mut states, mut times) = (Vec::new(), Vec::new(), Vec::new());
        let mut workers = Vec::new();
        for gpu in &snapshot.gpus {
            debug_assert!(
                GPU_STATES.contains(&gpu.state),
                "no such GPU state: {}",
                gpu.state
            );
            let number = gpu.gpu.to_string();
            if let Some(worker) = &gpu.worker {
                workers.push(gauge(&names::WORKER_INFO, &[&number, worker], 1.0));
            }
            up.push(gauge(
                &names::GPU_UP,
                &[&number],
                f64::from(u8::from(gpu.up)),
            ));
            for state in GPU_STATES {
                let is_in = f64::from(u8::from(gpu.state == state));
                states.push(gauge(&names::GPU_STATE, &[&number, state], is_in));
            }
            if let Some(millis) = gpu.batch_time_ms {
                times.push(gauge(&names::GPU_BATCH_TIME, &[&number], millis / 1e3));
            }
        }
        page.push(&names::GPU_UP, up);
        page.push(&names::WORKER_INFO, workers);
        page.push(&names::GPU_STATE, states);
        page.push(&names::GPU_BATCH_TIME, times);
        if snapshot.executor == ExecutorKind::Cuda.name() {
            page.push(&names::CUDA_PHASE, self.cuda_phases(snapshot));
        }
    }

    fn cuda_phases(&self, snapshot: &Snapshot) -> Vec<Metric> {
        let gpus = self.of_snapshot(snapshot).into_iter();
        let phases = gpus.flat_map(|(number, gpu)| {
            CudaPhase::ALL.iter().map(move |phase| {
                let reading = read(&gpu.cuda_phases[phase.index()]);
                let labels = [&*number, phase.name()];
                histogram(&names::CUDA_PHASE, &labels, &reading, NANOS_PER_SECOND)
            })
        });
        phases.collect()
    }

    fn server(&self, page: &mut Page, snapshot: &Snapshot) {
        page.set(&names::CONNECTIONS, self.connections() as f64);
        page.count(
            &names::CONNECTIONS_OPENED,
            self.total(|r| &r.connections_opened),
        );
        page.count(
            &names::CONNECTIONS_REFUSED,
            self.total(|r| &r.connections_refused),
        );
        let (held, limit) = snapshot.request_memory_bytes;
        page.set(&names::REQUEST_MEMORY, held as f64);
        page.set(&names::REQUEST_MEMORY_LIMIT, limit as f64);
        page.set(&names::READY, f64::from(u8::from(snapshot.ready)));
        let reloads = Reload::ALL.iter().map(|result| {
            let count = self.reloads[result.index()].get();
            counter(&names::RELOADS, &[result.name()], count as f64)
        });
        page.push(&names::RELOADS, reloads.collect());
        page.set(
            &names::UPTIME,
            snapshot.now.since(snapshot.started).as_secs_f64(),
        );
        let profile = if cfg!(debug_assertions) {
            "debug"
        } else {
            "release"
        };
        let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
        let labels = [env!("CARGO_PKG_VERSION"), profile, os, arch];
        page.push(
            &names::BUILD_INFO,
            vec![gauge(&names::BUILD_INFO, &labels, 1.0)],
        );
    }

    fn isolations(&self, result: Isolation) -> u64 {
        self.total_of_gpus(|gpu| &gpu.isolations[result.index()])
    }

    fn launches(&self, reason: LaunchReason) -> u64 {
        self.total_of_gpus(|gpu| &gpu.launches[reason.index()])
    }

    /// Sizes of all batches launched; the sum is the number of slots filled.
    fn sizes(&self) -> Reading {
        let mut reading = Reading::default();
        let gpus = self.gpus.lock();
        gpus.all().for_each(|gpu| gpu.size.add_to(&mut reading));
        reading
    }

    fn merged<const N: usize>(&self, pick: impl Fn(&Recorder) -> &Histogram<N>) -> Reading {
        let mut reading = Reading::default();
        self.for_each_recorder(|recorder| pick(recorder).add_to(&mut reading));
        reading
    }
}

fn read<const N: usize>(histogram: &Histogram<N>) -> Reading {
    let mut reading = Reading::default();
    histogram.add_to(&mut reading);
    reading
}

fn non_zero<K: Ord>(counts: impl Iterator<Item = (K, u64)>) -> BTreeMap<K, u64> {
    counts.filter(|(_, count)| *count > 0).collect()
}

fn code_name(index: usize) -> String {
    CODES
        .get(index)
        .map_or_else(|| OTHER_CODE.to_owned(), u16::to_string)
}

#[cfg(test)]
mod tests;

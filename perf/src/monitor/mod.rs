//! What the server says about itself while it is driven: `/metrics` of its admin port, and its process when it is local.
//!
//! Readings are taken at the start of the measured part, every second, and at the end. A server renders its metrics at most
//! once a second, so everything derived here is a ratio of two numbers from the same pages wherever it can be.
//!
//! A busy machine makes a scrape fail now and then. What is said about the server then comes from the first and the last page
//! that could be read, and the warning says how many could not.

mod scrape;

use std::collections::BTreeMap;

use crate::clock::{self, SECOND};
use crate::prometheus::Snapshot;
use crate::report::number;
use crate::result::{Gpu, Server, SizeBucket, Stage, ZonePoint};
use crate::target::{Target, TargetError};
use scrape::{reason_of, url_of};

/// Kernel ticks per second, in which `/proc` counts CPU time: 100 on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;
/// What the server's numbers of zones mean.
const ZONES: [&str; 4] = ["green", "yellow", "red", "limit"];

/// CPU and memory of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Process {
    cpu_seconds: f64,
    rss_bytes: u64,
}

/// `/metrics` at one moment.
#[derive(Clone, Debug, Default)]
struct Page {
    /// Reading of the clock.
    at: u64,
    metrics: Snapshot,
}

/// The first and the last of what could be read.
#[derive(Clone, Debug)]
struct Ends<T> {
    first: T,
    last: T,
}

impl<T: Clone> Ends<T> {
    fn put(ends: &mut Option<Ends<T>>, value: T) {
        match ends {
            Some(ends) => ends.last = value,
            None => {
                let first = value.clone();
                *ends = Some(Ends { first, last: value });
            }
        }
    }
}

/// Takes readings and draws conclusions.
#[derive(Debug, Default)]
pub struct Monitor {
    admin: Option<Target>,
    pid: Option<u32>,
    /// Reading of the clock at the first reading, successful or not.
    start: Option<u64>,
    pages: Option<Ends<Page>>,
    processes: Option<Ends<Process>>,
    /// Largest resident memory seen.
    rss_max: u64,
    zones: Vec<ZonePoint>,
    scrapes: u32,
    /// Scrapes that failed, and why the last of them did.
    failures: u32,
    failure: Option<String>,
}

/// What was to be watched is not there.
#[derive(Debug, thiserror::Error)]
pub enum MonitorError {
    /// The admin port gives no metrics.
    #[error("cannot read {url}: {reason}; --admin wants the server's admin port")]
    Admin {
        /// What was asked for.
        url: String,
        /// Why.
        reason: String,
    },
    /// No such process.
    #[error("there is no process {0}; --server-pid wants the process id of the server")]
    Process(u32),
}

/// What was found out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Findings {
    /// Cost of the process.
    pub server: Option<Server>,
    /// What the GPUs did.
    pub gpu: Option<Gpu>,
    /// A request's time line.
    pub stages: Vec<Stage>,
    /// Zones over time.
    pub zones: Vec<ZonePoint>,
    /// What went wrong, in words.
    pub warning: Option<String>,
}

impl Monitor {
    /// Watches an admin port (`http://host:port`), a local process, both or nothing.
    ///
    /// # Errors
    /// If the URL can't be used.
    pub fn new(admin: Option<&str>, pid: Option<u32>) -> Result<Monitor, TargetError> {
        let admin = admin.map(Target::parse).transpose()?;
        Ok(Monitor {
            admin,
            pid,
            ..Monitor::default()
        })
    }

    /// True if there is something to watch.
    pub fn is_watching(&self) -> bool {
        self.admin.is_some() || self.pid.is_some()
    }

    /// Looks whether what is to be watched is there, so that a wrong port or process is found before the run and not after.
    ///
    /// # Errors
    /// If the admin port gives no metrics or the process does not exist.
    pub fn check(&self) -> Result<(), MonitorError> {
        if let Some(pid) = self.pid.filter(|&pid| read_process(pid).is_none()) {
            return Err(MonitorError::Process(pid));
        }
        let Some(admin) = &self.admin else {
            return Ok(());
        };
        let text = scrape::try_to_get(admin).map_err(|error| reason_of(&error));
        let metrics = text.and_then(|text| metrics_in(&text));
        metrics.map(drop).map_err(|reason| MonitorError::Admin {
            url: url_of(admin),
            reason,
        })
    }

    /// Takes a reading; the first one is the start of the measured part.
    pub fn read(&mut self) {
        self.take_reading(scrape::get);
    }

    /// Takes a reading that matters more than others, the first or the last one, and so tries a few times.
    pub fn read_end(&mut self) {
        self.take_reading(scrape::try_to_get);
    }

    fn take_reading(&mut self, scrape: impl FnOnce(&Target) -> std::io::Result<String>) {
        if !self.is_watching() {
            return;
        }
        let start = *self.start.get_or_insert_with(clock::now);
        let page = self.page(scrape);
        let by_page = page.as_ref().and_then(|page| process_of(&page.metrics));
        let process = self.pid.map_or(by_page, read_process);
        if let Some(process) = process {
            self.rss_max = self.rss_max.max(process.rss_bytes);
            Ends::put(&mut self.processes, process);
        }
        if let Some(page) = page {
            let after_start = page.at.saturating_sub(start);
            self.zones.extend(zone_point(&page.metrics, after_start));
            Ends::put(&mut self.pages, page);
        }
    }

    fn page(&mut self, scrape: impl FnOnce(&Target) -> std::io::Result<String>) -> Option<Page> {
        let admin = self.admin.as_ref()?;
        self.scrapes += 1;
        let text = scrape(admin).map_err(|error| reason_of(&error));
        match text.and_then(|text| metrics_in(&text)) {
            Ok(metrics) => Some(Page {
                at: clock::now(),
                metrics,
            }),
            Err(reason) => {
                self.failures += 1;
                self.failure = Some(reason);
                None
            }
        }
    }

    /// What the readings say. `answered` is what the generator counted, `served_rate` good answers per second.
    pub fn findings(self, answered: u64, served_rate: f64) -> Findings {
        // One page alone tells nothing about what happened between two.
        let pages = self
            .pages
            .as_ref()
            .filter(|pages| pages.last.at > pages.first.at);
        Findings {
            server: self.server(answered),
            gpu: pages.and_then(|pages| gpu(&pages.first, &pages.last, served_rate)),
            stages: pages.map_or_else(Vec::new, |pages| {
                stages(&pages.first.metrics, &pages.last.metrics)
            }),
            warning: self.warning(),
            zones: self.zones,
        }
    }

    fn warning(&self) -> Option<String> {
        let (failure, admin) = (self.failure.as_ref()?, self.admin.as_ref()?);
        Some(format!(
            "{} of {} of {} failed ({failure})",
            self.failures,
            number::plural(u64::from(self.scrapes), "scrape"),
            url_of(admin)
        ))
    }

    fn server(&self, answered: u64) -> Option<Server> {
        let processes = self.processes.as_ref()?;
        let (before, after) = (processes.first, processes.last);
        let cpu_seconds = after.cpu_seconds - before.cpu_seconds;
        // Without a process id the CPU time is as old as the page, and so must be the answers it is divided by.
        let by_page = self.pages.as_ref().map_or(0.0, |pages| {
            requests_of(&pages.last.metrics) - requests_of(&pages.first.metrics)
        });
        let answered = if self.pid.is_none() && by_page > 0.0 {
            by_page
        } else {
            answered as f64
        };
        Some(Server {
            pid: self.pid,
            source: if self.pid.is_some() { "pid" } else { "metrics" }.to_owned(),
            version: self
                .pages
                .as_ref()
                .and_then(|pages| pages.last.metrics.label("funicular_build_info", "version")),
            cpu_seconds,
            cpu_seconds_per_1000_requests: if answered > 0.0 {
                cpu_seconds / answered * 1000.0
            } else {
                0.0
            },
            rss_bytes_start: before.rss_bytes,
            rss_bytes_max: self.rss_max,
            rss_bytes_end: after.rss_bytes,
        })
    }
}

/// The metrics of a page; an error says that it has none, like any other page of the web.
fn metrics_in(text: &str) -> Result<Snapshot, String> {
    let metrics = Snapshot::parse(text);
    if metrics.is_empty() {
        return Err("there are no metrics in it".to_owned());
    }
    Ok(metrics)
}

fn requests_of(page: &Snapshot) -> f64 {
    page.sum("funicular_requests_total", &[])
        .unwrap_or_default()
}

fn process_of(page: &Snapshot) -> Option<Process> {
    let cpu_seconds = page.sum("process_cpu_seconds_total", &[])?;
    let rss_bytes = page.sum("process_resident_memory_bytes", &[])? as u64;
    Some(Process {
        cpu_seconds,
        rss_bytes,
    })
}

/// CPU time and memory of a local process; `None` once it is gone.
fn read_process(pid: u32) -> Option<Process> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name is in brackets and may hold anything, so fields are counted after the last bracket.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let rss = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let rss_kib: u64 = rss.split_whitespace().next()?.parse().ok()?;
    Some(Process {
        cpu_seconds: ticks / TICKS_PER_SECOND,
        rss_bytes: rss_kib * 1024,
    })
}

fn zone_point(page: &Snapshot, after_start: u64) -> Option<ZonePoint> {
    let zone = page.sum("funicular_zone", &[])?;
    let depth = page.by_label("funicular_queue_depth", "tier");
    Some(ZonePoint {
        at_seconds: clock::seconds(after_start),
        zone: ZONES
            .get(zone as usize)
            .copied()
            .unwrap_or("unknown")
            .to_owned(),
        backlog_seconds: page
            .sum("funicular_backlog_seconds", &[])
            .filter(|b| b.is_finite())
            .unwrap_or_default(),
        queue_depth: depth
            .into_iter()
            .map(|(tier, depth)| (tier, depth as u64))
            .collect(),
        gpus_up: page.sum("funicular_gpu_up", &[]).unwrap_or_default() as u32,
    })
}

fn gpu(first: &Page, last: &Page, served_rate: f64) -> Option<Gpu> {
    let (before, after) = (&first.metrics, &last.metrics);
    let sizes = after
        .buckets("funicular_batch_size", &[])
        .since(&before.buckets("funicular_batch_size", &[]));
    let capacity = after.sum("funicular_capacity_requests_per_second", &[])?;
    let gpus = after.sum("funicular_gpu_up", &[]).unwrap_or_default();
    let busy = "funicular_gpu_busy_seconds_total";
    let busy = after.sum(busy, &[]).unwrap_or_default() - before.sum(busy, &[]).unwrap_or_default();
    let wall = last.at.saturating_sub(first.at) as f64 / SECOND as f64;
    let gap = "funicular_batch_gap_seconds";
    let gaps = after.buckets(gap, &[]).since(&before.buckets(gap, &[]));
    Some(Gpu {
        gpus: gpus as u32,
        capacity,
        slot_utilisation: if capacity > 0.0 {
            served_rate / capacity
        } else {
            0.0
        },
        batch_size_mean: sizes.mean().unwrap_or_default(),
        batches: sizes.count() as u64,
        busy_fraction: if gpus * wall > 0.0 {
            (busy / (gpus * wall)).clamp(0.0, 1.0)
        } else {
            0.0
        },
        batch_sizes: size_buckets(&sizes.cumulative),
        gap_p50_ms: gaps.quantile(0.5).map(|seconds| seconds * 1e3),
        gap_p99_ms: gaps.quantile(0.99).map(|seconds| seconds * 1e3),
        launches: launches(before, after),
    })
}

fn size_buckets(cumulative: &[(f64, f64)]) -> Vec<SizeBucket> {
    let mut before = 0.0;
    let mut buckets = Vec::new();
    for &(bound, upto) in cumulative {
        let up_to = bound.is_finite().then_some(bound as u32);
        // The bucket without a bound is left out where it is empty, as it should be.
        if up_to.is_some() || upto > before {
            buckets.push(SizeBucket {
                up_to,
                count: (upto - before) as u64,
            });
        }
        before = upto;
    }
    buckets
}

fn launches(before: &Snapshot, after: &Snapshot) -> BTreeMap<String, u64> {
    let earlier = before.by_label("funicular_batch_launches_total", "reason");
    let count = |(reason, count): (String, f64)| {
        let already = earlier
            .iter()
            .find(|(other, _)| *other == reason)
            .map_or(0.0, |(_, count)| *count);
        (reason, (count - already) as u64)
    };
    let launches = after
        .by_label("funicular_batch_launches_total", "reason")
        .into_iter()
        .map(count);
    launches.filter(|(_, count)| *count > 0).collect()
}

fn stages(before: &Snapshot, after: &Snapshot) -> Vec<Stage> {
    let name = "funicular_stage_seconds";
    let stage = |(stage, _): (String, f64)| {
        let label = [("stage", stage.as_str())];
        let buckets = after
            .buckets(name, &label)
            .since(&before.buckets(name, &label));
        let millis = |seconds: Option<f64>| seconds.map_or(0.0, |seconds| seconds * 1e3);
        (buckets.count() > 0.0).then(|| Stage {
            count: buckets.count() as u64,
            mean_ms: millis(buckets.mean()),
            p50_ms: millis(buckets.quantile(0.5)),
            p95_ms: millis(buckets.quantile(0.95)),
            p99_ms: millis(buckets.quantile(0.99)),
            stage: stage.clone(),
        })
    };
    after
        .by_label(&format!("{name}_count"), "stage")
        .into_iter()
        .filter_map(stage)
        .collect()
}

#[cfg(test)]
mod tests;

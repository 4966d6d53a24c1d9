//! What the server says about itself while it is driven: `/metrics` of its admin port, and its process when it is local.
//!
//! Readings are taken at the start of the measured part, every second, and at the end. A server renders its metrics at most
//! once a second, so everything derived here is a ratio of two numbers from the same pages wherever it can be.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use crate::clock::{self, SECOND};
use crate::http;
use crate::prometheus::Snapshot;
use crate::result::{Gpu, Server, SizeBucket, Stage, ZonePoint};
use crate::target::{Target, TargetError};

/// A scrape may take this long; the generator's threads go on meanwhile.
const SCRAPE_TIMEOUT: Duration = Duration::from_millis(500);
/// Kernel ticks per second, in which `/proc` counts CPU time: 100 on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;
const ZONES: [&str; 3] = ["green", "yellow", "red"];

/// CPU and memory of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Process {
    cpu_seconds: f64,
    rss_bytes: u64,
}

/// Everything at one moment.
#[derive(Clone, Debug)]
struct Reading {
    /// Reading of the clock.
    at: u64,
    page: Snapshot,
    process: Option<Process>,
}

/// Takes readings and draws conclusions.
#[derive(Debug, Default)]
pub struct Monitor {
    admin: Option<Target>,
    pid: Option<u32>,
    first: Option<Reading>,
    last: Option<Reading>,
    /// Largest resident memory seen.
    rss_max: u64,
    zones: Vec<ZonePoint>,
    /// Scrapes that failed.
    failures: u32,
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

    /// Takes a reading; the first one is the start of the measured part.
    pub fn read(&mut self) {
        if !self.is_watching() {
            return;
        }
        let page = self.scrape();
        let process = self
            .pid
            .and_then(read_process)
            .or_else(|| process_of(&page));
        let reading = Reading {
            at: clock::now(),
            page,
            process,
        };
        self.rss_max = self
            .rss_max
            .max(process.map_or(0, |process| process.rss_bytes));
        let first = self.first.get_or_insert_with(|| reading.clone());
        let after_start = reading.at.saturating_sub(first.at);
        self.zones.extend(zone_point(&reading.page, after_start));
        self.last = Some(reading);
    }

    fn scrape(&mut self) -> Snapshot {
        let Some(admin) = &self.admin else {
            return Snapshot::default();
        };
        match get(admin, "/metrics") {
            Ok(text) => Snapshot::parse(&text),
            Err(_) => {
                self.failures += 1;
                Snapshot::default()
            }
        }
    }

    /// What the readings say. `answered` is what the generator counted, `served_rate` good answers per second.
    pub fn findings(self, answered: u64, served_rate: f64) -> Findings {
        let warning = (self.failures > 0)
            .then(|| format!("{} scrapes of the admin port failed", self.failures));
        let (Some(first), Some(last)) = (&self.first, &self.last) else {
            return Findings::default();
        };
        Findings {
            server: self.server(first, last, answered),
            gpu: gpu(first, last, served_rate),
            stages: stages(&first.page, &last.page),
            zones: self.zones,
            warning,
        }
    }

    fn server(&self, first: &Reading, last: &Reading, answered: u64) -> Option<Server> {
        let (before, after) = (first.process?, last.process?);
        let cpu_seconds = after.cpu_seconds - before.cpu_seconds;
        // Without a process id the CPU time is as old as the page, and so must be the answers it is divided by.
        let by_page = requests_of(&last.page) - requests_of(&first.page);
        let answered = if self.pid.is_none() && by_page > 0.0 {
            by_page
        } else {
            answered as f64
        };
        Some(Server {
            pid: self.pid,
            source: if self.pid.is_some() { "pid" } else { "metrics" }.to_owned(),
            version: last.page.label("funicular_build_info", "version"),
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

/// A plain GET on a connection of its own.
fn get(target: &Target, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&target.address, SCRAPE_TIMEOUT)?;
    stream.set_read_timeout(Some(SCRAPE_TIMEOUT))?;
    stream.set_write_timeout(Some(SCRAPE_TIMEOUT))?;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
        target.authority
    );
    stream.write_all(request.as_bytes())?;
    let mut bytes = Vec::new();
    let mut buffer = [0; 64 * 1024];
    loop {
        let count = stream.read(&mut buffer)?;
        bytes.extend_from_slice(&buffer[..count]);
        let answer = http::read(&bytes, count == 0).map_err(std::io::Error::other)?;
        match answer {
            Some(answer) if answer.status == 200 => {
                return Ok(String::from_utf8_lossy(&answer.body).into_owned());
            }
            Some(answer) => return Err(std::io::Error::other(format!("status {}", answer.status))),
            None if count == 0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            None => {}
        }
    }
}

fn zone_point(page: &Snapshot, after_start: u64) -> Option<ZonePoint> {
    let zone = page.sum("funicular_zone", &[])?;
    let depth = page.by_label("funicular_queue_depth", "tier");
    Some(ZonePoint {
        at_seconds: clock::seconds(after_start),
        zone: ZONES
            .get(zone as usize)
            .copied()
            .unwrap_or("red")
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

fn gpu(first: &Reading, last: &Reading, served_rate: f64) -> Option<Gpu> {
    let (before, after) = (&first.page, &last.page);
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
mod tests {
    use super::*;

    fn reading(at_seconds: u64, page: &str) -> Reading {
        let page = Snapshot::parse(page);
        let process = process_of(&page);
        Reading {
            at: at_seconds * SECOND,
            page,
            process,
        }
    }

    #[test]
    fn two_pages_tell_what_happened_between_them() {
        let page = |batches: u64, seconds: f64| {
            format!(
                "funicular_batch_size_bucket{{le=\"10\"}} 1\nfunicular_batch_size_bucket{{le=\"100\"}} {0}\n\
                 funicular_batch_size_bucket{{le=\"+Inf\"}} {0}\nfunicular_batch_size_sum {1}\n\
                 funicular_capacity_requests_per_second 2000\nfunicular_gpu_up{{gpu=\"0\"}} 1\nfunicular_gpu_up{{gpu=\"1\"}} 1\n\
                 funicular_gpu_busy_seconds_total{{gpu=\"0\"}} {2}\nfunicular_gpu_busy_seconds_total{{gpu=\"1\"}} 0\n\
                 funicular_batch_launches_total{{reason=\"full\"}} {0}\nfunicular_batch_launches_total{{reason=\"hold\"}} 3\n\
                 funicular_stage_seconds_bucket{{stage=\"queue\",le=\"0.01\"}} {0}\n\
                 funicular_stage_seconds_bucket{{stage=\"queue\",le=\"+Inf\"}} {0}\n\
                 funicular_stage_seconds_sum{{stage=\"queue\"}} {3}\nfunicular_stage_seconds_count{{stage=\"queue\"}} {0}\n\
                 process_cpu_seconds_total {2}\nprocess_resident_memory_bytes 1000\nfunicular_requests_total{{code=\"200\"}} {1}\n\
                 funicular_zone 1\nfunicular_backlog_seconds 0.3\nfunicular_queue_depth{{tier=\"free\"}} 7\n",
                batches,
                batches * 50,
                seconds,
                batches as f64 * 0.004,
            )
        };
        let (first, last) = (reading(0, &page(10, 1.0)), reading(10, &page(110, 9.0)));
        let monitor = Monitor {
            zones: zone_point(&last.page, 10 * SECOND).into_iter().collect(),
            first: Some(first),
            last: Some(last),
            rss_max: 1000,
            ..Monitor::default()
        };
        let found = monitor.findings(5000, 500.0);

        let gpu = found.gpu.expect("GPUs");
        assert_eq!((gpu.gpus, gpu.batches, gpu.batch_size_mean), (2, 100, 50.0));
        assert_eq!((gpu.slot_utilisation, gpu.busy_fraction), (0.25, 0.4));
        assert_eq!(
            gpu.batch_sizes[1],
            SizeBucket {
                up_to: Some(100),
                count: 100
            }
        );
        assert_eq!(gpu.batch_sizes.len(), 2);
        assert_eq!(gpu.launches, BTreeMap::from([("full".into(), 100)]));
        assert_eq!(found.stages.len(), 1);
        assert!((found.stages[0].mean_ms - 4.0).abs() < 1e-9);
        let server = found.server.expect("a server");
        assert_eq!(
            (server.cpu_seconds, server.cpu_seconds_per_1000_requests),
            (8.0, 1.6)
        );
        assert_eq!(found.zones[0].zone, "yellow");
        assert_eq!(
            found.zones[0].queue_depth,
            BTreeMap::from([("free".into(), 7)])
        );
    }

    #[test]
    fn our_own_process_can_be_read() {
        let process = read_process(std::process::id()).expect("we are here");
        assert!(process.rss_bytes > 100_000);
        assert!(read_process(0).is_none());
    }
}

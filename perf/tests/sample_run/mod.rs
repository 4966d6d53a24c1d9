//! Made-up runs that look like real ones, and some that look like nothing on earth, for the tests of the reports.
//!
//! They are computed, not recorded, so every shape that a report may meet is a call away: calm, overloaded, hostile, empty.

use std::collections::BTreeMap;

use funicular_perf::result::{
    Configuration, CurvePoint, FailIfResult, Generator, Gpu, Interval, IntervalTier, Latency,
    LatencySummary, LatencyView, Machine, Mismatches, RunResult, SCHEMA_VERSION, Server,
    SizeBucket, Stage, StatusResult, TierResult, TierShare, Totals, ZonePoint,
};

/// The tiers with their shares of the traffic.
const TIERS: [(&str, f64); 3] = [("enterprise", 0.1), ("paid", 0.3), ("free", 0.6)];

/// What a made-up load is like.
pub struct Load {
    /// Name of the run.
    pub name: &'static str,
    /// Requests per second at `t` seconds.
    pub rate: fn(f64) -> f64,
    /// Requests per second that can be served.
    pub capacity: f64,
    /// Length in seconds.
    pub seconds: u32,
}

/// A calm run: everything is served.
pub fn steady() -> RunResult {
    make(&Load {
        name: "steady-700",
        rate: |_| 700.0,
        capacity: 1_000.0,
        seconds: 60,
    })
}

/// Twelve times the load for a while: most of the free tier is shed.
pub fn spike() -> RunResult {
    let rate = |t: f64| {
        if (60.0..120.0).contains(&t) {
            12_000.0
        } else {
            1_000.0
        }
    };
    let mut run = make(&Load {
        name: "spike",
        rate,
        capacity: 4_000.0,
        seconds: 240,
    });
    run.warnings.push(
        "The server restarted its metrics during the run; its CPU seconds are a lower bound."
            .to_owned(),
    );
    run.fail_if = vec![
        condition("p95{tier=enterprise}>300ms", "171 ms", false),
        condition("errors{tier=free}>50%", "64.2 %", true),
    ];
    run
}

/// Five requests a second: few samples, a short percentile axis.
pub fn night() -> RunResult {
    make(&Load {
        name: "night",
        rate: |_| 5.0,
        capacity: 1_000.0,
        seconds: 30,
    })
}

/// A run that must not be believed, with hostile text wherever text comes from outside.
pub fn hostile() -> RunResult {
    let evil =
        "</title><script>document.body.dataset.owned='1'</script><img src=x onerror=\"x\">&'|`"
            .to_owned();
    let mut run = steady();
    run.name = evil.clone();
    run.question = Some(evil.clone());
    run.started_at = evil.clone();
    run.machine.cpu_model = evil.clone();
    run.commit = Some(evil.clone());
    run.command = vec![evil.clone(), "x".repeat(400)];
    run.server_command = Some(vec![evil.clone()]);
    run.configuration.target = format!("http://{}/{evil}", "long".repeat(40));
    run.configuration.arrivals = evil.clone();
    run.tiers[0].tier = evil.clone();
    run.tiers[1].statuses[0].status = evil.clone();
    run.stages[0].stage = evil.clone();
    run.zones[0].zone = evil.clone();
    run.warnings = vec![evil.clone()];
    run.generator.generator_bound = true;
    run.generator.why = Some(evil.clone());
    run.mismatches = Mismatches {
        wrong: 3,
        without_output: 0,
        double: 1,
        examples: vec![evil.clone()],
    };
    run.fail_if = vec![condition(&evil, &evil, true)];
    run
}

/// A run in which nothing was answered and nothing is known about the server.
pub fn nothing() -> RunResult {
    RunResult {
        name: "nothing".to_owned(),
        ..RunResult::default()
    }
}

fn condition(condition: &str, found: &str, failed: bool) -> FailIfResult {
    FailIfResult {
        sentence: String::new(),
        condition: condition.to_owned(),
        value: None,
        found: found.to_owned(),
        failed,
    }
}

/// A run under `load`.
pub fn make(load: &Load) -> RunResult {
    let intervals: Vec<Interval> = (0..load.seconds)
        .map(|s| interval(load, f64::from(s)))
        .collect();
    let tiers: Vec<TierResult> = (0..TIERS.len())
        .map(|i| tier(load, i, &intervals))
        .collect();
    let seconds = f64::from(load.seconds);
    let ok: u64 = intervals.iter().flat_map(|i| &i.tiers).map(|t| t.ok).sum();
    let errors: u64 = intervals
        .iter()
        .flat_map(|i| &i.tiers)
        .map(|t| t.errors)
        .sum();
    RunResult {
        schema_version: SCHEMA_VERSION,
        name: load.name.to_owned(),
        question: Some("What do callers see, tier by tier, and do the GPUs keep up?".to_owned()),
        started_at: "2024-05-31T12:00:05Z".to_owned(),
        machine: machine(),
        commit: Some("4f5c9d1e0b7a4f5c9d1e0b7a4f5c9d1e0b7a4f5c-dirty".to_owned()),
        command: words(
            "funicular-perf run --scenario perf/scenarios/steady-700.toml --fail-if p95{tier=enterprise}>300ms",
        ),
        server_command: Some(words(
            "funicular serve --listen 127.0.0.1:0 --gpus 1 --executor simulated",
        )),
        configuration: configuration(load),
        duration_seconds: seconds,
        totals: Totals {
            offered_rate: (ok + errors) as f64 / seconds,
            achieved_rate: ok as f64 / seconds,
            answered_rate: (ok + errors) as f64 / seconds,
            scheduled: ok + errors,
            sent: ok + errors,
            ok,
            errors,
            hung_up: 0,
        },
        latency: latency(ok, 120.0, 1.0),
        tiers,
        intervals,
        generator: generator(),
        server: Some(server()),
        gpu: Some(gpu(load)),
        stages: stages(load),
        zones: (0..load.seconds)
            .map(|s| zone(load, f64::from(s)))
            .collect(),
        ..RunResult::default()
    }
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// A reproducible wobble between -1 and 1.
fn wobble(t: f64, salt: usize) -> f64 {
    ((t + 1.0) * 12.9898 + salt as f64 * 78.233).sin()
}

/// How much of each tier is served at `t`: the highest tier takes first.
fn served_share(load: &Load, t: f64, tier: usize) -> f64 {
    let above: f64 = TIERS[..tier].iter().map(|t| t.1).sum();
    let (rate, share) = ((load.rate)(t), TIERS[tier].1);
    ((load.capacity - above * rate) / (share * rate)).clamp(0.0, 1.0)
}

fn interval(load: &Load, t: f64) -> Interval {
    let offered = ((load.rate)(t) * (1.0 + 0.04 * wobble(t, 9))).round();
    let tiers: Vec<IntervalTier> = TIERS
        .iter()
        .enumerate()
        .map(|(i, (name, share))| {
            let served = served_share(load, t, i);
            let ok = (offered * share * served).round() as u64;
            let errors = (offered * share).round() as u64 - ok;
            let p50_ms = if ok == 0 {
                0.0
            } else {
                118.0 + 6.0 * wobble(t, i) + 260.0 * (1.0 - served)
            };
            let name = (*name).to_owned();
            IntervalTier {
                tier: name,
                ok,
                errors,
                p50_ms,
                p95_ms: p50_ms * 1.3,
                p99_ms: p50_ms * 1.45 + 4.0,
            }
        })
        .collect();
    let shed: u64 = tiers.iter().map(|t| t.errors).sum();
    let errors = if shed == 0 {
        BTreeMap::new()
    } else {
        [("429", shed - shed / 20), ("timeout", shed / 20)].into()
    };
    Interval {
        start_seconds: t,
        length_seconds: 1.0,
        offered: offered as u64,
        sent: offered as u64,
        latency: summary(tiers.iter().map(|t| t.ok).sum(), 120.0, 1.0),
        tiers,
        errors: errors
            .into_iter()
            .map(|(kind, count)| (kind.to_owned(), count))
            .collect(),
    }
}

fn tier(load: &Load, position: usize, intervals: &[Interval]) -> TierResult {
    let of = |i: &Interval| (i.tiers[position].ok, i.tiers[position].errors);
    let (ok, errors) = intervals
        .iter()
        .map(of)
        .fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
    let status = |status: &str, count: u64, p50: f64| StatusResult {
        status: status.to_owned(),
        count,
        latency: summary(count, p50, 1.0),
    };
    let mut statuses = vec![status("200", ok, 118.0)];
    if errors > 0 {
        statuses.push(status("429", errors - errors / 20, 0.4));
        statuses.push(status("timeout", errors / 20, 2_000.0));
    }
    TierResult {
        tier: TIERS[position].0.to_owned(),
        scheduled: ok + errors,
        achieved_rate: ok as f64 / f64::from(load.seconds),
        latency: latency(
            ok,
            116.0 + 2.0 * position as f64,
            if errors > 0 { 3.0 } else { 1.0 },
        ),
        statuses,
    }
}

fn latency(count: u64, p50_ms: f64, tail: f64) -> Latency {
    Latency {
        corrected: LatencyView {
            summary: summary(count, p50_ms, tail),
            curve: curve(count, p50_ms, tail),
        },
        uncorrected: LatencyView {
            summary: summary(count, p50_ms - 3.0, 0.6),
            curve: curve(count, p50_ms - 3.0, 0.6),
        },
    }
}

/// The made-up latency distribution: 100 ms of batch, then a tail that grows with each nine.
fn value_at(percentile: f64, p50_ms: f64, tail: f64) -> f64 {
    let nines = -(1.0 - percentile / 100.0).max(1e-7).log10();
    100.0
        + (p50_ms - 100.0) * (percentile / 50.0).min(1.0)
        + tail * 14.0 * (nines - 0.301).max(0.0).powf(1.3)
}

fn curve(count: u64, p50_ms: f64, tail: f64) -> Vec<CurvePoint> {
    if count == 0 {
        return Vec::new();
    }
    let mut curve: Vec<CurvePoint> = (0..)
        .map(|i| 100.0 - 100.0 * 0.93_f64.powi(i))
        .take_while(|p| (100.0 - p) / 100.0 * count as f64 >= 1.0)
        .map(|percentile| CurvePoint {
            percentile,
            value_ms: value_at(percentile, p50_ms, tail),
            count: (count as f64 * percentile / 100.0) as u64,
        })
        .collect();
    let last = curve.last().map_or(0.0, |p| p.value_ms);
    curve.push(CurvePoint {
        value_ms: last * 1.02,
        percentile: 100.0,
        count,
    });
    curve
}

fn summary(count: u64, p50_ms: f64, tail: f64) -> LatencySummary {
    if count == 0 {
        return LatencySummary::default();
    }
    let at = |p: f64| value_at(p, p50_ms, tail);
    LatencySummary {
        count,
        mean_ms: at(55.0),
        min_ms: 100.2,
        p50_ms: at(50.0),
        p75_ms: at(75.0),
        p90_ms: at(90.0),
        p95_ms: at(95.0),
        p99_ms: at(99.0),
        p999_ms: at(99.9),
        max_ms: at(100.0 - 100.0 / count as f64) * 1.02,
    }
}

fn machine() -> Machine {
    Machine {
        cpu_model: "Example 9000 at 3.2 GHz".to_owned(),
        cores: 16,
        memory_bytes: 64 << 30,
        kernel: "Linux 6.1.0".to_owned(),
    }
}

fn configuration(load: &Load) -> Configuration {
    Configuration {
        target: "http://127.0.0.1:8080/v1/inference".to_owned(),
        arrivals: format!("poisson {}/s", (load.rate)(0.0)),
        open_loop: true,
        seed: 7,
        connections: 3_000,
        threads: 2,
        keep_alive: true,
        tiers: TIERS
            .map(|(name, share)| TierShare {
                name: name.to_owned(),
                share,
            })
            .to_vec(),
        input: "16-256 bytes".to_owned(),
        timeout_ms: 10_000.0,
        warmup_seconds: 5.0,
        ..Configuration::default()
    }
}

fn generator() -> Generator {
    Generator {
        lateness: LatencySummary {
            count: 1,
            p50_ms: 0.02,
            p99_ms: 0.31,
            max_ms: 2.4,
            ..LatencySummary::default()
        },
        cpu_seconds: 11.2,
        busy_fraction_max: 0.19,
        ..Generator::default()
    }
}

fn server() -> Server {
    Server {
        pid: Some(4242),
        source: "pid".to_owned(),
        version: Some("0.1.0".to_owned()),
        cpu_seconds: 9.7,
        cpu_seconds_per_1000_requests: 0.0413,
        rss_bytes_start: 21 << 20,
        rss_bytes_max: 96 << 20,
        rss_bytes_end: 90 << 20,
    }
}

fn gpu(load: &Load) -> Gpu {
    let sizes = [
        (1, 3),
        (2, 2),
        (5, 4),
        (10, 6),
        (20, 12),
        (30, 15),
        (40, 18),
        (50, 24),
        (60, 61),
        (70, 190),
        (80, 310),
    ];
    let mut batch_sizes: Vec<SizeBucket> = sizes
        .into_iter()
        .map(|(size, count)| SizeBucket {
            up_to: Some(size),
            count,
        })
        .collect();
    batch_sizes.push(SizeBucket {
        up_to: Some(90),
        count: 170,
    });
    batch_sizes.push(SizeBucket {
        up_to: Some(100),
        count: 96,
    });
    batch_sizes.push(SizeBucket {
        up_to: None,
        count: 0,
    });
    Gpu {
        gpus: (load.capacity / 1_000.0) as u32,
        capacity: load.capacity,
        slot_utilisation: ((load.rate)(0.0) / load.capacity).min(1.0),
        batch_size_mean: 71.3,
        batches: batch_sizes.iter().map(|b| b.count).sum(),
        busy_fraction: 0.983,
        batch_sizes,
        gap_p50_ms: Some(0.21),
        gap_p99_ms: Some(0.94),
        launches: [("full", 310), ("paced", 580), ("hold", 21)]
            .map(|(k, v)| (k.to_owned(), v))
            .into(),
    }
}

fn stages(load: &Load) -> Vec<Stage> {
    let queue = if (load.rate)(90.0) > load.capacity {
        64.0
    } else {
        11.3
    };
    let means = [
        ("parse", 0.021),
        ("queue", queue),
        ("hold", 4.2),
        ("stage", 0.35),
        ("execute", 100.6),
        ("demux", 0.12),
        ("write", 0.09),
    ];
    means
        .map(|(stage, mean_ms)| Stage {
            stage: stage.to_owned(),
            count: 42_000,
            mean_ms,
            p50_ms: mean_ms * 0.9,
            p95_ms: if stage == "execute" {
                mean_ms * 1.02
            } else {
                mean_ms * 2.4
            },
            p99_ms: if stage == "execute" {
                mean_ms * 1.05
            } else {
                mean_ms * 3.6
            },
        })
        .to_vec()
}

fn zone(load: &Load, t: f64) -> ZonePoint {
    let over = (load.rate)(t) > load.capacity;
    let backlog_seconds = if over {
        0.46 + 0.08 * wobble(t, 3)
    } else {
        0.03 + 0.01 * wobble(t, 3)
    };
    let zone = if backlog_seconds >= 0.5 {
        "red"
    } else if backlog_seconds >= 0.2 {
        "yellow"
    } else {
        "green"
    };
    let waiting = backlog_seconds * load.capacity;
    let depth = |share: f64| (waiting * share) as u64;
    ZonePoint {
        at_seconds: t,
        zone: zone.to_owned(),
        backlog_seconds,
        queue_depth: [
            ("enterprise", depth(0.05)),
            ("paid", depth(0.15)),
            ("free", depth(0.8)),
        ]
        .map(|(k, v)| (k.to_owned(), v))
        .into(),
        gpus_up: (load.capacity / 1_000.0) as u32,
    }
}

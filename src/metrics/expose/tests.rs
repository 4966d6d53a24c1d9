//! What `/metrics` shows, read back from its text.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::super::{GpuSnapshot, QueueSnapshot};
use super::*;
use crate::clock::Time;

fn snapshot(gpus: usize) -> Snapshot {
    let gpu = |gpu| GpuSnapshot {
        gpu,
        worker: Some(format!("http://10.0.0.{gpu}:8081")),
        state: "ready",
        device: None,
        up: true,
        since: Time::ZERO,
        why: String::new(),
        batch_time_ms: Some(100.0),
        batches: 0,
        running: None,
    };
    Snapshot {
        now: Time::from_millis_f64(2_500.0),
        started: Time::from_millis_f64(1_000.0),
        executor: "simulated".to_owned(),
        batch_max: 100,
        listen: None,
        admin: None,
        ready: true,
        draining: false,
        zone: "yellow",
        backlog_seconds: 0.25,
        capacity_rps: 4_000.0,
        arrival_rate_rps: 1_234.5,
        request_memory_bytes: (4_096, 1 << 30),
        queues: [QueueSnapshot {
            waiting: 3,
            retry: 1,
        }; Tier::COUNT],
        gpus: (0..gpus).map(gpu).collect(),
    }
}

/// Value by series, name and labels as they stand in the text.
fn series(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (series, value) = line.rsplit_once(' ').expect("a series and its value");
            (series.to_owned(), value.parse().expect("a number"))
        })
        .collect()
}

fn family_names(text: &str) -> Vec<&str> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types.filter_map(|line| line.split(' ').next()).collect()
}

#[test]
fn exactly_the_named_families_are_exposed_and_those_of_the_process() {
    let cuda = Snapshot {
        executor: "cuda".to_owned(),
        ..snapshot(2)
    };
    let text = Metrics::new(2, 2).render(&cuda).expect("text");
    let (process, ours): (Vec<_>, Vec<_>) = family_names(&text)
        .into_iter()
        .partition(|name| name.starts_with("process_"));
    assert_eq!(
        ours,
        names::ALL
            .iter()
            .map(|family| family.name)
            .collect::<Vec<_>>()
    );
    if cfg!(target_os = "linux") {
        let expected = [
            "process_cpu_seconds_total",
            "process_open_fds",
            "process_max_fds",
            "process_virtual_memory_bytes",
            "process_resident_memory_bytes",
            "process_start_time_seconds",
            "process_threads",
        ];
        assert_eq!(
            process.into_iter().collect::<BTreeSet<_>>(),
            BTreeSet::from(expected)
        );
    }
}

#[test]
fn the_phases_of_cuda_are_exposed_only_where_there_are_any() {
    let metrics = Metrics::new(2, 1);
    metrics
        .gpu(1)
        .cuda_phase(CudaPhase::Gap, Duration::from_micros(12));
    let mut snapshot = snapshot(2);
    let text = metrics.render(&snapshot).expect("text");
    assert!(!text.contains("cuda"));
    snapshot.executor = "cuda".to_owned();
    let series = series(&metrics.render(&snapshot).expect("text"));
    let count = |gpu, phase| {
        series[&format!("funicular_cuda_phase_seconds_count{{gpu=\"{gpu}\",phase=\"{phase}\"}}")]
    };
    assert_eq!(
        (count(1, "gap"), count(0, "gap"), count(1, "kernel")),
        (1.0, 0.0, 0.0)
    );
}

#[test]
fn the_series_of_a_gpu_that_is_no_more_end_and_the_sums_keep_its_part() {
    let metrics = Metrics::new(2, 1);
    for gpu in 0..3 {
        let recorder = metrics.gpu(gpu);
        recorder.batch_launched(LaunchReason::Full, 100);
        recorder.batch_finished(BatchOutcome::Done, Duration::from_millis(5));
        recorder.tickets().retry();
        recorder
            .tickets()
            .queue_wait(Tier::Paid, Duration::from_millis(1));
    }
    metrics.forget_gpu(1);
    let mut seen = snapshot(3);
    seen.gpus.remove(1);
    let series = series(&metrics.render(&seen).expect("text"));
    let of = |gpu: usize| format!("funicular_batches_total{{gpu=\"{gpu}\",outcome=\"done\"}}");
    assert_eq!(
        (series[&of(0)], series.get(&of(1)), series[&of(2)]),
        (1.0, None, 1.0)
    );
    assert_eq!(series["funicular_slots_filled_total"], 300.0);
    assert_eq!(series["funicular_batch_size_count"], 3.0);
    assert_eq!(series["funicular_retries_total"], 3.0);
    assert_eq!(
        series["funicular_queue_wait_seconds_count{tier=\"paid\"}"],
        3.0
    );
    assert_eq!(
        series["funicular_worker_info{gpu=\"2\",worker=\"http://10.0.0.2:8081\"}"],
        1.0
    );
    assert_eq!(metrics.totals().batches["done"], 3);
}

#[test]
fn every_bounded_combination_is_there_from_the_start_with_zero() {
    let series = series(&Metrics::new(2, 2).render(&snapshot(2)).expect("text"));
    let tiers = ["enterprise", "paid", "free", "none"];
    for tier in tiers {
        for code in CODES.iter().map(u16::to_string).chain(["other".to_owned()]) {
            assert_eq!(
                series[&format!("funicular_requests_total{{tier=\"{tier}\",code=\"{code}\"}}")],
                0.0
            );
        }
        assert_eq!(
            series[&format!("funicular_request_duration_seconds_count{{tier=\"{tier}\"}}")],
            0.0
        );
    }
    for reason in ShedReason::ALL {
        assert_eq!(
            series[&format!(
                "funicular_shed_total{{tier=\"free\",reason=\"{}\"}}",
                reason.name()
            )],
            0.0
        );
    }
    for gpu in 0..2 {
        assert_eq!(
            series[&format!("funicular_batches_total{{gpu=\"{gpu}\",outcome=\"timeout\"}}")],
            0.0
        );
        assert_eq!(
            series[&format!("funicular_gpu_busy_seconds_total{{gpu=\"{gpu}\"}}")],
            0.0
        );
    }
    assert_eq!(
        series["funicular_batch_launches_total{reason=\"paced\"}"],
        0.0
    );
    assert_eq!(series["funicular_slots_filled_total"], 0.0);
}

/// Two GPUs and two cores with a little of everything.
fn some_of_everything() -> Metrics {
    let metrics = Metrics::new(2, 2);
    for core in [0, 1, 99] {
        let duration = Duration::from_millis(105);
        metrics
            .core(core)
            .request_finished(Some(Tier::Paid), 200, duration);
    }
    metrics
        .core(0)
        .request_finished(None, 418, Duration::from_micros(10));
    metrics.core(0).shed(Tier::Free, ShedReason::ZoneRed);
    metrics.core(1).late_result();
    metrics.gpu(0).tickets().retry();
    metrics
        .gpu(0)
        .tickets()
        .queue_wait(Tier::Free, Duration::from_secs(20));
    metrics.gpu(0).batch_launched(LaunchReason::Full, 100);
    metrics.gpu(0).batch_launched(LaunchReason::Probe, 0);
    metrics.gpu(0).isolation(Isolation::Blamed);
    let gpu = metrics.gpu(1);
    gpu.tickets()
        .stage_of_batch(Stage::Execute, Duration::from_millis(100), 70);
    gpu.tickets().abandoned(Abandonment::Gone);
    gpu.batch_launched(LaunchReason::Paced, 70);
    gpu.batch_finished(BatchOutcome::Done, Duration::from_millis(100));
    gpu.gpu_busy(Duration::from_millis(100));
    gpu.batch_gap(Duration::from_micros(25));
    metrics
}

#[test]
fn what_is_recorded_anywhere_is_added_up_in_base_units() {
    let text = some_of_everything().render(&snapshot(2)).expect("text");
    let shown = series(&text);
    let expected = r#"
        requests_total{tier="paid",code="200"} 3
        requests_total{tier="none",code="other"} 1
        request_duration_seconds_bucket{tier="paid",le="0.1025"} 0
        request_duration_seconds_bucket{tier="paid",le="0.105"} 3
        request_duration_seconds_bucket{tier="paid",le="+Inf"} 3
        request_duration_seconds_sum{tier="paid"} 0.315
        queue_wait_seconds_bucket{tier="free",le="10"} 0
        queue_wait_seconds_count{tier="free"} 1
        stage_seconds_count{stage="execute"} 70
        stage_seconds_sum{stage="execute"} 7
        shed_total{tier="free",reason="zone_red"} 1
        abandoned_total{reason="gone"} 1
        late_results_total 1
        retries_total 1
        batches_total{gpu="1",outcome="done"} 1
        batch_size_count 2
        batch_size_sum 170
        slots_filled_total 170
        batch_launches_total{reason="probe"} 1
        isolations_total{result="blamed"} 1
        isolations_total{result="stopped"} 0
        gpu_busy_seconds_total{gpu="1"} 0.1
        batch_gap_seconds_bucket{gpu="1",le="0.00002"} 0
        batch_gap_seconds_bucket{gpu="1",le="0.00003"} 1
    "#;
    for line in expected
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
    {
        let (name, value) = line.rsplit_once(' ').expect("a series and its value");
        let name = format!("funicular_{name}");
        assert_eq!(shown.get(&name), value.parse().ok().as_ref(), "{name}");
    }
}

#[test]
fn totals_leave_zeros_out() {
    let totals = some_of_everything().totals();
    let expected = Totals {
        requests: 4,
        requests_by_code: BTreeMap::from([("200".to_owned(), 3), ("other".to_owned(), 1)]),
        shed: BTreeMap::from([("zone_red", 1)]),
        abandoned: BTreeMap::from([("gone", 1)]),
        retries: 1,
        late_results: 1,
        batches: BTreeMap::from([("done", 1)]),
        launches: BTreeMap::from([("full", 1), ("paced", 1), ("probe", 1)]),
        isolations: BTreeMap::from([("blamed", 1)]),
        slots_filled: 170,
        connections_refused: 0,
    };
    assert_eq!(totals, expected);
}

#[test]
fn the_snapshot_becomes_gauges() {
    let mut snapshot = snapshot(2);
    snapshot.gpus[1].state = "down";
    snapshot.gpus[1].up = false;
    snapshot.gpus[1].batch_time_ms = None;
    snapshot.backlog_seconds = f64::INFINITY;
    let series = series(&Metrics::new(2, 1).render(&snapshot).expect("text"));
    assert_eq!(series["funicular_queue_depth{tier=\"paid\"}"], 3.0);
    assert_eq!(series["funicular_retry_queue_depth{tier=\"paid\"}"], 1.0);
    assert_eq!(series["funicular_zone"], 1.0);
    assert_eq!(series["funicular_backlog_seconds"], f64::INFINITY);
    assert_eq!(series["funicular_uptime_seconds"], 1.5);
    assert_eq!(series["funicular_gpu_up{gpu=\"0\"}"], 1.0);
    assert_eq!(series["funicular_gpu_up{gpu=\"1\"}"], 0.0);
    assert_eq!(series["funicular_gpu_state{gpu=\"1\",state=\"down\"}"], 1.0);
    assert_eq!(
        series["funicular_gpu_state{gpu=\"1\",state=\"ready\"}"],
        0.0
    );
    assert_eq!(series["funicular_gpu_batch_time_seconds{gpu=\"0\"}"], 0.1);
    assert!(!series.contains_key("funicular_gpu_batch_time_seconds{gpu=\"1\"}"));
}

#[test]
fn connections_are_those_opened_and_not_closed_on_any_core() {
    let metrics = Metrics::new(1, 2);
    metrics.core(0).connection_opened();
    metrics.core(0).connection_opened();
    metrics.core(1).connection_opened();
    metrics.core(1).connection_closed();
    assert_eq!(metrics.connections(), 2);
    metrics.core(1).connection_closed();
    metrics.core(1).connection_closed();
    metrics.core(1).connection_closed();
    assert_eq!(
        metrics.connections(),
        0,
        "an excess of closes must not wrap around"
    );
}

#[test]
fn the_cpu_time_is_finer_than_a_second() {
    if !cfg!(target_os = "linux") {
        return;
    }
    let told = || {
        let text = Metrics::new(1, 1).render(&snapshot(1)).expect("text");
        series(&text)["process_cpu_seconds_total"]
    };
    let measured = || {
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9
    };
    // Other tests burn time in this process meanwhile, so how much it is in between can't be said.
    let readings = [measured(), told(), measured(), told(), measured()];
    assert!(
        readings.is_sorted() && readings[1] < readings[3],
        "{readings:?}"
    );
}

#[test]
fn promtool_finds_nothing_to_complain_about() {
    let metrics = Metrics::new(3, 2);
    metrics
        .core(0)
        .request_finished(Some(Tier::Free), 200, Duration::from_millis(100));
    metrics.gpu(2).batch_launched(LaunchReason::Full, 100);
    let mut snapshot = snapshot(3);
    snapshot.backlog_seconds = f64::INFINITY;
    let text = metrics.render(&snapshot).expect("text");

    let child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            println!("skipped: promtool (Debian package prometheus) can't be started: {error}");
            return;
        }
    };
    let mut stdin = child.stdin.take().expect("piped");
    stdin
        .write_all(text.as_bytes())
        .expect("promtool reads its input");
    drop(stdin);
    let output = child.wait_with_output().expect("promtool ends");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert!(output.status.success());
}

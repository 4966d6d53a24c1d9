//! From what was recorded to the result: rates, tables, curves and the warnings that belong beside them. Pure, but for looking
//! at the machine.

use std::sync::atomic::Ordering;
use std::time::SystemTime;

use crate::clock;
use crate::engine::Load;
use crate::latencies::Latencies;
use crate::machine;
use crate::monitor::Monitor;
use crate::options::Plan;
use crate::record::{IntervalRecord, Outcome, Recorder, TierRecord, Window};
use crate::result::{
    Generator, Interval, IntervalTier, Latency, RunResult, SCHEMA_VERSION, StatusResult,
    TierResult, Totals,
};
use crate::session::Session;

/// The generator is to blame if its 99th percentile of lateness is above this share of the median latency…
const LATE_SHARE_MAX: f64 = 0.05;
/// …and above this.
const LATE_MS_MIN: f64 = 1.0;
/// A generator thread that is busier than this has no room for a burst.
const BUSY_MAX: f64 = 0.9;
/// Waiting for connections is worth a word from this share of the requests on.
const CONNECTION_WAITS_WARN: f64 = 0.01;

/// Length of the measured part in seconds.
pub(crate) fn seconds(window: Window) -> f64 {
    clock::seconds(window.to_ns - window.from_ns)
}

/// One second of all threads, with the requests that the schedule held in it.
pub(crate) fn interval(record: &IntervalRecord, plan: &Plan, offered: u64) -> Interval {
    let start_seconds = f64::from(record.second);
    let rest = seconds(plan.job.window) - start_seconds;
    let mut all = Latencies::default();
    record.tiers.iter().for_each(|tier| all.merge(tier));
    let names = plan.job.traffic.mix.names();
    let tier = |index: usize| {
        let latencies = &record.tiers[index];
        IntervalTier {
            tier: names[index].clone(),
            ok: latencies.count(),
            errors: record.tier_errors[index],
            p50_ms: clock::millis(latencies.percentile_ns(50.0)),
            p95_ms: clock::millis(latencies.percentile_ns(95.0)),
            p99_ms: clock::millis(latencies.percentile_ns(99.0)),
        }
    };
    Interval {
        start_seconds,
        // After the schedule, the last answers are waited for.
        length_seconds: if rest > 0.0 { rest.min(1.0) } else { 1.0 },
        offered,
        sent: record.sent,
        latency: all.summary(),
        tiers: (0..names.len()).map(tier).collect(),
        errors: record
            .errors
            .iter()
            .map(|(class, count)| ((*class).to_owned(), *count))
            .collect(),
    }
}

/// Drops the seconds after the schedule's end, unless the server went on answering for more than one.
fn without_epilogue(mut intervals: Vec<Interval>, duration: f64) -> Vec<Interval> {
    let measured = intervals
        .iter()
        .filter(|interval| interval.start_seconds < duration)
        .count();
    let busy = |interval: &Interval| interval.latency.count > 0 || !interval.errors.is_empty();
    while intervals.len() > measured && intervals.last().is_some_and(|last| !busy(last)) {
        intervals.pop();
    }
    if intervals.len() == measured + 1 {
        intervals.pop();
    }
    intervals
}

/// The result of a run. `session` names it and judges it; `monitor` has taken its last reading.
pub(crate) fn assemble(
    plan: &Plan,
    session: &Session,
    started_at: SystemTime,
    intervals: Vec<Interval>,
    monitor: Monitor,
    recorder: &Recorder,
) -> RunResult {
    let job = &plan.job;
    let duration_seconds = seconds(job.window);
    let (corrected, uncorrected) = recorder.all_tiers();
    let totals = totals(plan, recorder);
    let answered = recorder.count(|outcome| matches!(outcome, Outcome::Status(_) | Outcome::Wrong));
    let findings = monitor.findings(answered, totals.achieved_rate);
    let names = job.traffic.mix.names();
    let tiers = names
        .iter()
        .zip(&recorder.tiers)
        .map(|(name, record)| tier(name, record, plan, recorder));
    let mut result = RunResult {
        schema_version: SCHEMA_VERSION,
        name: session.name.clone(),
        question: session.question.clone(),
        started_at: machine::rfc3339(started_at),
        machine: machine::machine(),
        commit: machine::commit(),
        command: machine::portable(session.command.clone()),
        server_command: session.server_command.clone().map(machine::portable),
        configuration: plan.configuration.clone(),
        duration_seconds,
        latency: Latency {
            corrected: corrected.view(),
            uncorrected: uncorrected.view(),
        },
        tiers: tiers.collect(),
        intervals: without_epilogue(intervals, duration_seconds),
        generator: generator(recorder, &corrected),
        server: findings.server,
        gpu: findings.gpu,
        stages: findings.stages,
        zones: findings.zones,
        mismatches: recorder.mismatches.clone(),
        fail_if: Vec::new(),
        warnings: findings.warning.into_iter().collect(),
        totals,
    };
    result.fail_if = session
        .conditions
        .iter()
        .map(|condition| condition.judge(&result, recorder))
        .collect();
    let warnings = warnings(&result, recorder, session.stop.load(Ordering::Relaxed));
    result.warnings.extend(warnings);
    result
}

fn totals(plan: &Plan, recorder: &Recorder) -> Totals {
    let duration = seconds(plan.job.window);
    let scheduled = recorder.count(|_| true);
    let offered = match &plan.job.load {
        Load::Open(schedule) => {
            schedule.len() - schedule.partition_point(|&due| due < plan.job.window.from_ns)
        }
        Load::Closed { .. } => recorder.sent as usize,
    };
    let good: u64 = recorder.tiers.iter().map(|tier| tier.good_in_window).sum();
    let answered = recorder.count(|outcome| matches!(outcome, Outcome::Status(_)));
    let ok = recorder.count(Outcome::is_good);
    let achieved_rate = good as f64 / window_of_answers(plan, recorder);
    Totals {
        offered_rate: offered as f64 / duration,
        achieved_rate,
        // Statuses other than 2xx are counted by when they were due: the same up to the run's edges.
        answered_rate: achieved_rate + (answered - ok) as f64 / duration,
        scheduled,
        sent: recorder.sent,
        ok,
        errors: recorder.count(Outcome::is_error),
        hung_up: recorder.count(|outcome| outcome == Outcome::HangUp),
    }
}

/// Seconds in which answers could come. After a warm-up that is the measured part; without one, nothing can come in before
/// the first answer, and an open loop should not be blamed for that.
fn window_of_answers(plan: &Plan, recorder: &Recorder) -> f64 {
    let window = plan.job.window;
    let open = matches!(plan.job.load, Load::Open(_));
    let from = if open && window.from_ns == 0 {
        recorder.first_good_ns.min(window.to_ns)
    } else {
        window.from_ns
    };
    clock::seconds(window.to_ns - from).max(1e-9)
}

fn tier(name: &str, record: &TierRecord, plan: &Plan, recorder: &Recorder) -> TierResult {
    let status = |(outcome, latencies): (&Outcome, &Latencies)| StatusResult {
        status: outcome.to_string(),
        count: latencies.count(),
        latency: latencies.summary(),
    };
    TierResult {
        tier: name.to_owned(),
        scheduled: record.count(|_| true),
        achieved_rate: record.good_in_window as f64 / window_of_answers(plan, recorder),
        latency: Latency {
            corrected: record.corrected.view(),
            uncorrected: record.uncorrected.view(),
        },
        statuses: record.outcomes.iter().map(status).collect(),
    }
}

fn generator(recorder: &Recorder, corrected: &Latencies) -> Generator {
    let lateness = recorder.lateness.summary();
    let late_max = (clock::millis(corrected.percentile_ns(50.0)) * LATE_SHARE_MAX).max(LATE_MS_MIN);
    let mut why = Vec::new();
    if lateness.p99_ms > late_max {
        why.push(format!(
            "it noticed 1 % of the requests more than {:.1} ms after they were due (tolerated: {late_max:.1} ms)",
            lateness.p99_ms
        ));
    }
    if recorder.busy_fraction_max > BUSY_MAX {
        why.push(format!(
            "a thread used {:.0} % of a core",
            recorder.busy_fraction_max * 100.0
        ));
    }
    Generator {
        lateness,
        connection_wait: recorder.connection_wait.summary(),
        connection_waits: recorder.connection_wait.count(),
        cpu_seconds: recorder.cpu_seconds,
        busy_fraction_max: recorder.busy_fraction_max,
        generator_bound: !why.is_empty(),
        why: (!why.is_empty()).then(|| why.join("; ")),
    }
}

fn warnings(result: &RunResult, recorder: &Recorder, stopped: bool) -> Vec<String> {
    let mut warnings = Vec::new();
    let generator = &result.generator;
    if let Some(why) = &generator.why {
        warnings.push(format!(
            "the generator was the bottleneck: {why}; use more --threads or another machine"
        ));
    }
    let waits = generator.connection_waits as f64 / result.totals.scheduled.max(1) as f64;
    if waits > CONNECTION_WAITS_WARN {
        warnings.push(format!(
            "{:.1} % of the requests waited for a free connection; that is part of the corrected latency, \
             and more --connections would show the server alone",
            waits * 100.0
        ));
    }
    if stopped {
        warnings.push("stopped early: the rates are over the planned time".to_owned());
    }
    if !result.configuration.open_loop {
        warnings.push(
            "closed loop: callers wait for the server, so a stall holds back the requests that would have shown it; \
             use --rate for latency, this for throughput"
                .to_owned(),
        );
    }
    warnings.extend(recorder.notes.iter().cloned());
    warnings
}

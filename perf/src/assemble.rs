//! From what was recorded to the result: rates, tables, curves and the warnings that belong beside them. Pure, but for looking
//! at the machine.

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
/// …and if so many requests were noticed that late: of a hundred requests, the 99th percentile is the worst one, and a machine
/// that stops for 8 ms once in a while is no bottleneck.
const LATE_COUNT_MIN: u64 = 10;
/// Lateness of a thread that had this much of its core to spare is the doing of other programs.
const BUSY_WITH_OTHERS: f64 = 0.5;
/// A closed loop that gets this share of 429s measures refusals.
const SHED_WARN: f64 = 0.5;
/// A generator thread that is busier than this has no room for a burst.
const BUSY_MAX: f64 = 0.9;
/// What rates are divided by at least: a run may be stopped in its warm-up.
const SECONDS_MIN: f64 = 1e-9;
/// Waiting for connections is worth a word from this share of the requests on.
const CONNECTION_WAITS_WARN: f64 = 0.01;

/// Length of the measured part in seconds.
pub(crate) fn seconds(window: Window) -> f64 {
    clock::seconds(window.to_ns - window.from_ns)
}

/// Requests that the schedule held in one second of `window`; in a closed loop, those that were sent.
fn offered(plan: &Plan, window: Window, second: u32, sent: u64) -> u64 {
    let Load::Open(schedule) = &plan.job.load else {
        return sent;
    };
    let from = window.from_ns + u64::from(second) * clock::SECOND;
    let before = |at: u64| schedule.partition_point(|&due| due < at.min(window.to_ns));
    (before(from + clock::SECOND) - before(from)) as u64
}

/// One second of all threads, with the requests that the schedule held in it.
pub(crate) fn interval(record: &IntervalRecord, plan: &Plan) -> Interval {
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
        offered: offered(plan, plan.job.window, record.second, record.sent),
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

/// Cuts the seconds of a run that was stopped early to what was measured; nothing changes for one that was not.
fn cut(intervals: &mut [Interval], plan: &Plan, window: Window) {
    let duration = seconds(window);
    for interval in intervals {
        let rest = duration - interval.start_seconds;
        if rest > 0.0 {
            interval.length_seconds = interval.length_seconds.min(rest);
        }
        let second = interval.start_seconds as u32;
        interval.offered = offered(plan, window, second, interval.sent);
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
    mut intervals: Vec<Interval>,
    monitor: Monitor,
    recorder: &Recorder,
) -> RunResult {
    let job = &plan.job;
    let duration_seconds = seconds(recorder.window());
    let stopped = recorder.window() != job.window;
    cut(&mut intervals, plan, recorder.window());
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
        planned_seconds: stopped.then(|| seconds(job.window)),
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
        refusals: recorder
            .refusals
            .iter()
            .map(|(status, text)| (status.to_string(), text.clone()))
            .collect(),
        warnings: plan.notes.iter().cloned().chain(findings.warning).collect(),
        totals,
    };
    result.fail_if = session
        .conditions
        .iter()
        .map(|condition| condition.judge(&result, recorder))
        .collect();
    let warnings = warnings(&result, recorder);
    result.warnings.extend(warnings);
    result
}

fn totals(plan: &Plan, recorder: &Recorder) -> Totals {
    let window = recorder.window();
    let duration = seconds(window).max(SECONDS_MIN);
    let scheduled = recorder.count(|_| true);
    let offered = match &plan.job.load {
        Load::Open(schedule) => {
            let before = |at: u64| schedule.partition_point(|&due| due < at);
            before(window.to_ns) - before(window.from_ns)
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
    let window = recorder.window();
    let open = matches!(plan.job.load, Load::Open(_));
    let from = if open && window.from_ns == 0 {
        recorder.first_good_ns.min(window.to_ns)
    } else {
        window.from_ns
    };
    clock::seconds(window.to_ns - from).max(SECONDS_MIN)
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
    let late = recorder.lateness.count_above((late_max * 1e6) as u64);
    let mut why = Vec::new();
    if lateness.p99_ms > late_max && late >= LATE_COUNT_MIN {
        why.push(format!(
            "it noticed 1 % of the requests more than {:.1} ms after they were due (tolerated: {late_max:.1} ms)",
            lateness.p99_ms
        ));
        if recorder.busy_fraction_max < BUSY_WITH_OTHERS {
            why.push("this machine's CPUs were busy with something else".to_owned());
        }
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

fn warnings(result: &RunResult, recorder: &Recorder) -> Vec<String> {
    let mut warnings = Vec::new();
    let generator = &result.generator;
    if let Some(why) = &generator.why {
        let advice = if generator.busy_fraction_max < BUSY_WITH_OTHERS {
            "leave it more of this machine, or use another one"
        } else {
            "use more --threads or another machine"
        };
        warnings.push(format!("the generator was the bottleneck: {why}; {advice}"));
    }
    warnings.extend(nothing_good(result));
    let waits = generator.connection_waits as f64 / result.totals.scheduled.max(1) as f64;
    if waits > CONNECTION_WAITS_WARN {
        warnings.push(format!(
            "{:.1} % of the requests waited for a free connection; that is part of the corrected latency, \
             and more --connections would show the server alone",
            waits * 100.0
        ));
    }
    if let Some(planned) = result.planned_seconds {
        warnings.push(format!(
            "stopped early, after {:.1} of {planned:.1} s; rates are over the time that passed",
            result.duration_seconds
        ));
    }
    if !result.configuration.open_loop {
        warnings.extend(mostly_shed(result, recorder));
        warnings.push(
            "closed loop: callers wait for the server, so a stall holds back the requests that would have shown it; \
             use --rate for latency, this for throughput"
                .to_owned(),
        );
    }
    warnings.extend(recorder.notes.iter().cloned());
    warnings
}

/// A run without a good answer, unless its callers all hung up, as they were told to.
fn nothing_good(result: &RunResult) -> Option<String> {
    let totals = &result.totals;
    (totals.ok == 0 && totals.errors > 0)
        .then(|| "no good answer at all, so there is no latency to report".to_owned())
}

/// A closed loop with more callers than the server admits sends them straight back into the next refusal.
fn mostly_shed(result: &RunResult, recorder: &Recorder) -> Option<String> {
    let shed = recorder.count(|outcome| outcome == Outcome::Status(429));
    let share = shed as f64 / (result.totals.ok + result.totals.errors).max(1) as f64;
    (share > SHED_WARN).then(|| {
        format!(
            "{:.0} % of the answers were 429: so many callers are more than the server admits, and this measures its refusals; \
             use fewer --connections, or a tier that is not shed (--tiers enterprise=1)",
            share * 100.0
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{MILLISECOND, SECOND};
    use crate::options::RunOptions;
    use crate::record::Sample;
    use crate::units::Span;
    use std::time::Duration;

    fn plan(rate: Option<f64>) -> Plan {
        let options = RunOptions {
            rate,
            duration: Some(Span(Duration::from_secs(20))),
            ..RunOptions::default()
        };
        options
            .plan("http://127.0.0.1:1", 1, false, 2)
            .expect("a plan")
    }

    /// One answer of this status every 10 ms, up to `until_ns`.
    fn recorded(plan: &Plan, status: u16, until_ns: u64) -> Recorder {
        let mut recorder = Recorder::new(1, plan.job.window, false);
        for number in 0..until_ns / (10 * MILLISECOND) {
            let due_ns = number * 10 * MILLISECOND;
            recorder.noticed(due_ns, due_ns);
            recorder.written(due_ns, None);
            recorder.ended(Sample {
                number,
                tier: 0,
                outcome: Outcome::Status(status),
                due_ns,
                written_ns: Some(due_ns),
                done_ns: due_ns + MILLISECOND,
            });
        }
        recorder
    }

    fn assembled(plan: &Plan, recorder: &Recorder, intervals: Vec<Interval>) -> RunResult {
        assemble(
            plan,
            &Session::default(),
            SystemTime::UNIX_EPOCH,
            intervals,
            Monitor::default(),
            recorder,
        )
    }

    #[test]
    fn a_run_that_was_stopped_has_rates_over_the_time_that_passed() {
        let plan = plan(Some(100.0));
        let stop_ns = 4 * SECOND + 105 * MILLISECOND;
        let mut recorder = recorded(&plan, 200, stop_ns);
        recorder.stopped(stop_ns);
        let intervals = (0..5)
            .map(|second| interval(&IntervalRecord::new(second, 1), &plan))
            .collect();
        let result = assembled(&plan, &recorder, intervals);
        assert_eq!(
            (result.duration_seconds, result.planned_seconds),
            (4.105, Some(20.0))
        );
        assert!((result.totals.offered_rate - 100.0).abs() < 0.5);
        assert!((result.totals.achieved_rate - 100.0).abs() < 0.5);
        let last = result.intervals.last().expect("five seconds");
        assert_eq!(last.offered, 11);
        assert!((last.length_seconds - 0.105).abs() < 1e-9);
        assert!(result.warnings[0].contains("4.1 of 20.0 s"));

        recorder.stopped(0);
        let nothing = assembled(&plan, &recorder, Vec::new());
        assert!(nothing.totals.offered_rate == 0.0 && nothing.totals.achieved_rate.is_finite());
    }

    #[test]
    fn a_late_request_among_a_few_is_no_bottleneck() {
        let plan = plan(Some(100.0));
        let mut recorder = recorded(&plan, 200, 300 * MILLISECOND);
        recorder.noticed(0, 8 * MILLISECOND);
        let calm = generator(&recorder, &recorder.all_tiers().0);
        assert!(!calm.generator_bound, "{:?}", calm.why);
        assert!(calm.lateness.p99_ms > 7.0);

        for _ in 0..LATE_COUNT_MIN {
            recorder.noticed(0, 8 * MILLISECOND);
        }
        let why = |recorder: &Recorder| {
            let bound = generator(recorder, &recorder.all_tiers().0);
            bound.why.expect("bound")
        };
        assert!(why(&recorder).contains("busy with something else"));
        recorder.busy_fraction_max = 0.95;
        let own = why(&recorder);
        assert!(!own.contains("something else") && own.contains("95 % of a core"));
    }

    #[test]
    fn refusals_are_no_success() {
        let closed = plan(None);
        let mut recorder = recorded(&closed, 429, SECOND);
        recorder.refused(429, || "{\"title\":\"shed\"}".to_owned());
        let shed = assembled(&closed, &recorder, Vec::new());
        let warnings = shed.warnings.join("\n");
        assert!(warnings.contains("no good answer at all"), "{warnings}");
        assert!(
            warnings.contains("100 % of the answers were 429"),
            "{warnings}"
        );
        assert_eq!(shed.refusals["429"], "{\"title\":\"shed\"}");
        let good = assembled(&closed, &recorded(&closed, 200, SECOND), Vec::new());
        let warnings = good.warnings.join("\n");
        assert!(
            !warnings.contains("429") && !warnings.contains("no good"),
            "{warnings}"
        );
    }
}

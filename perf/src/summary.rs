//! The summary that a run prints: text for a terminal, from the result alone.

use std::fmt::Write as _;

use crate::result::{Generator, LatencySummary, RunResult, Totals};

const HEADINGS: [&str; 10] = [
    "tier", "status", "count", "share", "mean", "p50", "p95", "p99", "p99.9", "max",
];

/// The summary, with a line feed at its end.
pub fn text(result: &RunResult) -> String {
    let mut out = String::new();
    let configuration = &result.configuration;
    head(&mut out, result);
    table(&mut out, result);
    if configuration.open_loop {
        comparison(&mut out, result);
    }
    generator(&mut out, &result.generator, &result.totals);
    server(&mut out, result);
    verdict(&mut out, result);
    out
}

/// Writing to a `String` does not fail.
macro_rules! line {
    ($out:expr, $($arguments:tt)*) => {
        writeln!($out, $($arguments)*).expect("a String takes everything")
    };
}

fn head(out: &mut String, result: &RunResult) {
    let (configuration, totals) = (&result.configuration, &result.totals);
    line!(out, "{}", result.name);
    if let Some(question) = &result.question {
        line!(out, "  {question}");
    }
    let keep_alive = if configuration.keep_alive {
        "kept alive"
    } else {
        "one per request"
    };
    line!(
        out,
        "  {} to {}",
        configuration.arrivals,
        configuration.target
    );
    line!(
        out,
        "  {:.1} s, {} connections {keep_alive}, {} threads, input {}",
        result.duration_seconds,
        configuration.connections,
        configuration.threads,
        configuration.input
    );
    line!(
        out,
        "  offered {:.1}/s, answered {:.1}/s, good {:.1}/s; {} requests, {} good, {} errors, {} hung up\n",
        totals.offered_rate,
        totals.answered_rate,
        totals.achieved_rate,
        totals.scheduled,
        totals.ok,
        totals.errors,
        totals.hung_up
    );
}

/// Latency in milliseconds per tier and outcome, from the scheduled time.
fn table(out: &mut String, result: &RunResult) {
    let mut rows = vec![HEADINGS.map(str::to_owned)];
    for tier in &result.tiers {
        for status in &tier.statuses {
            let share = status.count as f64 / tier.scheduled.max(1) as f64;
            rows.push(row(
                &tier.tier,
                &status.status,
                status.count,
                share,
                &status.latency,
            ));
        }
    }
    let latency = &result.latency.corrected.summary;
    let share = latency.count as f64 / result.totals.scheduled.max(1) as f64;
    rows.push(row("all", "good", latency.count, share, latency));
    let widths: Vec<usize> = (0..HEADINGS.len())
        .map(|column| {
            rows.iter()
                .map(|row| row[column].len())
                .max()
                .unwrap_or_default()
        })
        .collect();
    for row in &rows {
        let mut text = format!("  {:<1$}  {2:<3$}", row[0], widths[0], row[1], widths[1]);
        for (cell, width) in row.iter().zip(&widths).skip(2) {
            write!(text, "  {cell:>width$}").expect("a String takes everything");
        }
        line!(out, "{text}");
    }
    line!(
        out,
        "  latencies in ms, from the time the request should have left\n"
    );
}

fn row(tier: &str, status: &str, count: u64, share: f64, latency: &LatencySummary) -> [String; 10] {
    let ms = |value: f64| format!("{value:.2}");
    [
        tier.to_owned(),
        status.to_owned(),
        count.to_string(),
        format!("{:.2}%", share * 100.0),
        ms(latency.mean_ms),
        ms(latency.p50_ms),
        ms(latency.p95_ms),
        ms(latency.p99_ms),
        ms(latency.p999_ms),
        ms(latency.max_ms),
    ]
}

/// The uncorrected view in one line, so that nobody has to look for it.
fn comparison(out: &mut String, result: &RunResult) {
    let latency = &result.latency.uncorrected.summary;
    line!(
        out,
        "  from the actual write (uncorrected): p50 {:.2}  p95 {:.2}  p99 {:.2}  max {:.2} ms",
        latency.p50_ms,
        latency.p95_ms,
        latency.p99_ms,
        latency.max_ms
    );
}

fn generator(out: &mut String, generator: &Generator, totals: &Totals) {
    line!(
        out,
        "  generator: late p50 {:.3}  p99 {:.3}  max {:.2} ms; {:.1} us of CPU a request; busiest thread {:.0}%",
        generator.lateness.p50_ms,
        generator.lateness.p99_ms,
        generator.lateness.max_ms,
        generator.cpu_seconds / totals.sent.max(1) as f64 * 1e6,
        generator.busy_fraction_max * 100.0
    );
    if generator.connection_waits > 0 {
        line!(
            out,
            "  {} requests waited for a free connection: p50 {:.2}  max {:.2} ms",
            generator.connection_waits,
            generator.connection_wait.p50_ms,
            generator.connection_wait.max_ms
        );
    }
}

fn server(out: &mut String, result: &RunResult) {
    const MIB: f64 = 1024.0 * 1024.0;
    if let Some(server) = &result.server {
        line!(
            out,
            "  server: {:.2} s of CPU, {:.2} us a request; memory {:.1} MiB at most",
            server.cpu_seconds,
            server.cpu_seconds_per_1000_requests * 1000.0,
            server.rss_bytes_max as f64 / MIB
        );
    }
    if let Some(gpu) = &result.gpu {
        let gap = gpu
            .gap_p50_ms
            .map_or_else(String::new, |gap| format!("; median gap {gap:.2} ms"));
        line!(
            out,
            "  {} GPUs: slot utilisation {:.1}%, {} batches of {:.1} on average, busy {:.0}%{gap}",
            gpu.gpus,
            gpu.slot_utilisation * 100.0,
            gpu.batches,
            gpu.batch_size_mean,
            gpu.busy_fraction * 100.0
        );
    }
    if !result.stages.is_empty() {
        let stages: Vec<String> = result
            .stages
            .iter()
            .map(|stage| format!("{} {:.2}", stage.stage, stage.mean_ms))
            .collect();
        line!(out, "  stages, mean ms: {}", stages.join("  "));
    }
}

fn verdict(out: &mut String, result: &RunResult) {
    for condition in &result.fail_if {
        let word = if condition.failed { "FAIL" } else { "ok  " };
        line!(
            out,
            "  {word} fail-if {}: {}",
            condition.condition,
            condition.found
        );
    }
    for warning in &result.warnings {
        line!(out, "  warning: {warning}");
    }
    let mismatches = &result.mismatches;
    if !mismatches.is_clean() {
        line!(
            out,
            "\n  WRONG ANSWERS: {} wrong, {} double. Callers got what was not theirs; nothing above counts.",
            mismatches.wrong,
            mismatches.double
        );
        for example in &mismatches.examples {
            line!(out, "    {example}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{FailIfResult, Mismatches, StatusResult, TierResult};

    #[test]
    fn wrong_answers_and_failed_conditions_can_not_be_overlooked() {
        let status = |status: &str, count| StatusResult {
            status: status.into(),
            count,
            ..StatusResult::default()
        };
        let result = RunResult {
            name: "trial".into(),
            tiers: vec![TierResult {
                tier: "enterprise".into(),
                scheduled: 12,
                statuses: vec![status("200", 9), status("timeout", 3)],
                ..TierResult::default()
            }],
            fail_if: vec![FailIfResult {
                condition: "p95>1ms".into(),
                failed: true,
                ..FailIfResult::default()
            }],
            mismatches: Mismatches {
                wrong: 2,
                double: 1,
                examples: vec!["request 7".into()],
            },
            ..RunResult::default()
        };
        let text = text(&result);
        assert!(text.contains("WRONG ANSWERS: 2 wrong, 1 double"), "{text}");
        assert!(text.contains("FAIL fail-if p95>1ms"), "{text}");
        assert!(
            text.contains("  enterprise  timeout      3  25.00%"),
            "{text}"
        );
    }
}

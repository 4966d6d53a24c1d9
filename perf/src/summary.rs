//! The summary that a run prints: text for a terminal, from the result alone.

use std::fmt::Write as _;

use crate::report::verdict::{Verdict, check_text};
use crate::report::{escape, machine, number};
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

/// The outcome in one line without a line feed, for the end of several runs: `night: passed; p50 100 ms, …`.
pub fn line(result: &RunResult) -> String {
    let latency = &result.latency.corrected.summary;
    let time = |value: f64| match latency.count {
        0 => "–".to_owned(),
        _ => number::time(value),
    };
    format!(
        "{}: {}; good {}/s, p50 {}, p95 {}, p99 {}, {}",
        result.name,
        Verdict::words(result),
        number::short(result.totals.achieved_rate),
        time(latency.p50_ms),
        time(latency.p95_ms),
        time(latency.p99_ms),
        number::plural(result.totals.errors, "error")
    )
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
        "a new one for each request"
    };
    line!(
        out,
        "  {} to {}",
        configuration.arrivals,
        configuration.target
    );
    line!(
        out,
        "  {}, {} {keep_alive}, {}, input {}",
        machine::length(result),
        number::plural(u64::from(configuration.connections), "connection"),
        number::plural(u64::from(configuration.threads), "thread"),
        configuration.input
    );
    line!(
        out,
        "  offered {:.1}/s, answered {:.1}/s, good {:.1}/s; {}, {} good, {}, {} hung up\n",
        totals.offered_rate,
        totals.answered_rate,
        totals.achieved_rate,
        number::plural(totals.scheduled, "request"),
        number::count(totals.ok),
        number::plural(totals.errors, "error"),
        number::count(totals.hung_up)
    );
}

/// Latency in milliseconds per tier and outcome, corrected; below it what the server said where it refused.
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
                .map(|row| row[column].chars().count())
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
    let from = if result.configuration.open_loop {
        "from the time the request should have left"
    } else {
        "from the time the caller wanted to ask"
    };
    line!(out, "  latencies in ms, {from}");
    for (status, text) in &result.refusals {
        line!(out, "  the first {status}: {}", escape::terminal(text));
    }
    line!(out, "");
}

/// Milliseconds, or a dash where there is no value.
fn ms(latency: &LatencySummary, value: f64) -> String {
    if latency.count == 0 {
        "–".to_owned()
    } else {
        format!("{value:.2}")
    }
}

fn row(tier: &str, status: &str, count: u64, share: f64, latency: &LatencySummary) -> [String; 10] {
    let ms = |value: f64| ms(latency, value);
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
        "  from the actual write (uncorrected): p50 {}  p95 {}  p99 {}  max {} ms",
        ms(latency, latency.p50_ms),
        ms(latency, latency.p95_ms),
        ms(latency, latency.p99_ms),
        ms(latency, latency.max_ms)
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
            "  {} waited for a free connection: p50 {:.2}  max {:.2} ms",
            number::plural(generator.connection_waits, "request"),
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
            "  {}: slot utilisation {:.1}%, {} of {:.1} on average, busy {:.0}%{gap}",
            number::plural(u64::from(gpu.gpus), "GPU"),
            gpu.slot_utilisation * 100.0,
            number::plural(gpu.batches, "batch"),
            gpu.batch_size_mean,
            gpu.busy_fraction * 100.0
        );
    }
    if !result.stages.is_empty() {
        let stages: Vec<String> = result
            .stages
            .iter()
            .map(|stage| format!("{} {}", stage.stage, number::time(stage.mean_ms)))
            .collect();
        line!(out, "  stages, mean: {}", stages.join(", "));
    }
}

fn verdict(out: &mut String, result: &RunResult) {
    for condition in &result.fail_if {
        let word = if condition.failed { "FAILED" } else { "passed" };
        // Results of older builds have no sentence.
        let sentence = match condition.sentence.as_str() {
            "" => format!("{} (found: {})", condition.condition, condition.found),
            sentence => sentence.to_owned(),
        };
        line!(out, "  {word}: {sentence}");
    }
    for warning in &result.warnings {
        line!(out, "  warning: {warning}");
    }
    let mismatches = &result.mismatches;
    if !mismatches.is_clean() {
        line!(
            out,
            "\n  WRONG ANSWERS: {} wrong, {} double. {} Nothing above counts.",
            mismatches.wrong,
            mismatches.double,
            check_text(result).unwrap_or_else(|| "Callers got what was not theirs.".to_owned())
        );
        for example in &mismatches.examples {
            line!(out, "    {}", escape::terminal(example));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{FailIfResult, Gpu, Mismatches, Stage, StatusResult, TierResult};

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
                sentence: "p95 is 3 ms, must not be > 1 ms".into(),
                ..FailIfResult::default()
            }],
            mismatches: Mismatches {
                wrong: 2,
                double: 1,
                without_output: 0,
                examples: vec!["request 7".into()],
            },
            ..RunResult::default()
        };
        let text = text(&result);
        assert!(text.contains("WRONG ANSWERS: 2 wrong, 1 double"), "{text}");
        assert!(
            text.contains("FAILED: p95 is 3 ms, must not be > 1 ms"),
            "{text}"
        );
        assert!(
            text.contains("Every answer differs: are --expect and --answer right"),
            "{text}"
        );
        assert!(
            text.contains("  enterprise  timeout      3  25.00%"),
            "{text}"
        );
    }

    #[test]
    fn a_run_in_which_nothing_worked_shows_dashes_and_the_reason() {
        let result = RunResult {
            tiers: vec![TierResult {
                tier: "untiered".into(),
                scheduled: 3,
                statuses: vec![StatusResult {
                    status: "404".into(),
                    count: 3,
                    ..StatusResult::default()
                }],
                ..TierResult::default()
            }],
            refusals: [(
                "404".to_owned(),
                "{\"title\":\"no\u{1b} such path\"}".to_owned(),
            )]
            .into(),
            ..RunResult::default()
        };
        let text = text(&result);
        let all = text
            .lines()
            .find(|line| line.trim_start().starts_with("all"));
        let cells: Vec<&str> = all.expect("a line").split_whitespace().collect();
        assert_eq!(cells[4..], ["–"; 6], "{text}");
        assert!(
            text.contains("the first 404: {\"title\":\"no\u{fffd} such path\"}"),
            "{text}"
        );
        assert!(line(&result).contains("no good answers; good 0/s, p50 –"));
    }

    #[test]
    fn one_of_anything_is_said_so() {
        let mut result = RunResult {
            duration_seconds: 4.1,
            planned_seconds: Some(20.0),
            stages: vec![
                Stage {
                    stage: "parse".into(),
                    mean_ms: 0.0042,
                    ..Stage::default()
                },
                Stage {
                    stage: "execute".into(),
                    mean_ms: 101.0,
                    ..Stage::default()
                },
            ],
            gpu: Some(Gpu {
                gpus: 1,
                batches: 1,
                ..Gpu::default()
            }),
            ..RunResult::default()
        };
        (
            result.configuration.connections,
            result.configuration.threads,
        ) = (1, 1);
        result.totals.scheduled = 1;
        result.totals.errors = 1;
        let text = text(&result);
        for words in [
            "  4.1 of 20 s, 1 connection ",
            ", 1 thread, ",
            "; 1 request, 0 good, 1 error, 0 hung up",
            "  1 GPU: ",
            ", 1 batch of ",
            "stages, mean: parse 4.2 µs, execute 101 ms",
            "from the time the caller wanted to ask",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
}

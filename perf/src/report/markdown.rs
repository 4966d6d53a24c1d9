//! `RESULTS.md`: what the scenarios asked and what came out, for readers of the repository.

use super::escape::{markdown, markdown_code};
use super::verdict::{self, Verdict};
use super::{machine, number};
use crate::result::{LatencySummary, RunResult, TierResult};

/// The scenario section. It starts with a second-level heading and ends with a line feed.
pub fn results(runs: &[RunResult]) -> String {
    let mut out = String::from("## Scenarios\n\n");
    if runs.is_empty() {
        out.push_str("No scenario has been run.\n");
        return out;
    }
    out.push_str(&provenance(runs));
    out.push_str(
        "Latency is in milliseconds, of good answers, counted from the moment a request should have left. \
         CPU is the server's, in seconds for 1,000 requests; fill is the mean number of tickets in a batch.\n\n",
    );
    out.push_str(&overview(runs));
    for run in runs {
        out.push_str(&scenario(run));
    }
    out
}

/// Machine, day and commit, once if they are the same for all.
fn provenance(runs: &[RunResult]) -> String {
    let mut seen: Vec<String> = Vec::new();
    for run in runs {
        let commit = run.commit.as_deref().unwrap_or("unknown");
        let text = format!(
            "{}; {}; commit {}",
            machine::day(run),
            machine::line(run),
            commit
        );
        if !seen.contains(&text) {
            seen.push(text);
        }
    }
    let lines: Vec<String> = seen
        .iter()
        .map(|text| format!("* {}\n", markdown(text)))
        .collect();
    format!("Measured on\n\n{}\n", lines.concat())
}

fn overview(runs: &[RunResult]) -> String {
    let mut out = table_row(
        &[
            "scenario",
            "question",
            "offered/s",
            "achieved/s",
            "errors",
            "p50",
            "p95",
            "p99",
            "CPU s",
            "fill",
            "verdict",
        ]
        .map(str::to_owned),
    );
    out.push_str("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n");
    for run in runs {
        let s = &run.latency.corrected.summary;
        let [p50, p95, p99] = [s.p50_ms, s.p95_ms, s.p99_ms].map(|v| latency(s, v));
        out.push_str(&table_row(&[
            markdown(&run.name),
            markdown(run.question.as_deref().unwrap_or("–")),
            number::short(run.totals.offered_rate),
            number::short(run.totals.achieved_rate),
            errors(run),
            p50,
            p95,
            p99,
            optional(run.server.as_ref().map(|s| s.cpu_seconds_per_1000_requests)),
            optional(run.gpu.as_ref().map(|g| g.batch_size_mean)),
            verdict_cell(run),
        ]));
    }
    out.push('\n');
    out
}

fn scenario(run: &RunResult) -> String {
    let mut out = format!("### {}\n\n", markdown(&run.name));
    if let Some(question) = &run.question {
        out.push_str(&format!("{}\n\n", markdown(question)));
    }
    out.push_str(
        "| tier | scheduled | good/s | shed | other errors | p50 | p95 | p99 | p99.9 | max |\n",
    );
    out.push_str("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
    out.push_str(&run.tiers.iter().map(tier_row).collect::<String>());
    out.push('\n');
    for text in remarks(run) {
        out.push_str(&format!("* {text}\n"));
    }
    out.push('\n');
    out
}

fn tier_row(tier: &TierResult) -> String {
    let s = &tier.latency.corrected.summary;
    let total: u64 = tier.statuses.iter().map(|s| s.count).sum();
    let count = |wanted: fn(&str) -> bool| -> u64 {
        tier.statuses
            .iter()
            .filter(|s| wanted(&s.status))
            .map(|s| s.count)
            .sum()
    };
    let shed = count(|s| s == "429");
    let other = count(|s| s != "429" && s != "hangup" && !s.starts_with('2'));
    table_row(&[
        markdown(&tier.tier),
        number::count(tier.scheduled),
        number::short(tier.achieved_rate),
        cell(number::share(shed as f64, total as f64)),
        cell(number::share(other as f64, total as f64)),
        latency(s, s.p50_ms),
        latency(s, s.p95_ms),
        latency(s, s.p99_ms),
        latency(s, s.p999_ms),
        latency(s, s.max_ms),
    ])
}

/// What to know beside the numbers: load, machine time, conditions, warnings, commands.
fn remarks(run: &RunResult) -> Vec<String> {
    let c = &run.configuration;
    let mut texts = vec![format!(
        "{} for {}, {}, seed {}",
        markdown(&c.arrivals),
        machine::length(run),
        number::plural(u64::from(c.connections), "connection"),
        c.seed
    )];
    if let Some(gpu) = &run.gpu {
        texts.push(format!(
            "{}, capacity {} requests/s, slot utilisation {}",
            number::plural(u64::from(gpu.gpus), "GPU"),
            number::short(gpu.capacity),
            cell(number::percent(gpu.slot_utilisation))
        ));
    }
    for (verdict, text) in verdict::doubts(run) {
        texts.push(format!("**{}**: {}", verdict.word(), markdown(&text)));
    }
    texts.extend(run.fail_if.iter().map(|f| {
        let outcome = if f.failed { "**failed**" } else { "passed" };
        format!(
            "fails if {}: found {}, {outcome}",
            markdown_code(&f.condition),
            markdown(&f.found)
        )
    }));
    texts.extend(
        verdict::other_warnings(run)
            .iter()
            .map(|w| format!("warning: {}", markdown(w))),
    );
    texts.push(format!(
        "generator: {}",
        markdown_code(&machine::command(&run.command))
    ));
    if let Some(server) = &run.server_command {
        texts.push(format!(
            "server: {}",
            markdown_code(&machine::command(server))
        ));
    }
    texts
}

fn verdict_cell(run: &RunResult) -> String {
    match Verdict::of(run) {
        Verdict::Passed | Verdict::Measured => Verdict::words(run),
        _ => format!("**{}**", Verdict::words(run)),
    }
}

fn errors(run: &RunResult) -> String {
    cell(number::share(
        run.totals.errors as f64,
        (run.totals.ok + run.totals.errors) as f64,
    ))
}

fn latency(s: &LatencySummary, value: f64) -> String {
    if s.count == 0 {
        "–".to_owned()
    } else {
        cell(number::short(value))
    }
}

fn optional(value: Option<f64>) -> String {
    value.map_or("–".to_owned(), |v| cell(number::short(v)))
}

/// Our own numbers may hold `<`, as in `< 0.01 %`.
fn cell(text: String) -> String {
    markdown(&text)
}

fn table_row(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{FailIfResult, StatusResult};

    fn run() -> RunResult {
        let status = |status: &str, count| StatusResult {
            status: status.to_owned(),
            count,
            ..StatusResult::default()
        };
        RunResult {
            name: "a|b".to_owned(),
            question: Some("Does it\nhold?".to_owned()),
            command: ["funicular-perf", "run", "--fail-if", "p95{tier=free}>1s|x"]
                .map(str::to_owned)
                .to_vec(),
            tiers: vec![TierResult {
                tier: "free".to_owned(),
                statuses: vec![
                    status("200", 90),
                    status("429", 8),
                    status("504", 2),
                    status("hangup", 0),
                ],
                ..TierResult::default()
            }],
            fail_if: vec![FailIfResult {
                condition: "errors>1%".to_owned(),
                failed: true,
                ..FailIfResult::default()
            }],
            ..RunResult::default()
        }
    }

    #[test]
    fn every_row_has_as_many_cells_as_its_head() {
        let text = results(&[run(), run()]);
        let mut columns = 0;
        for line in text.lines() {
            let cells = line.replace("\\|", "").matches('|').count();
            assert!(cells == 0 || columns == 0 || cells == columns, "{line}");
            columns = if line.starts_with('|') { cells } else { 0 };
        }
        assert!(text.contains("| free | 0 | 0 | 8 % | 2 % |"), "{text}");
        assert!(text.contains("**failed**"));
    }

    #[test]
    fn a_run_that_measured_the_generator_is_marked() {
        let mut run = run();
        run.totals.ok = 1;
        run.generator.generator_bound = true;
        assert!(results(&[run]).contains("**generator-bound, failed**"));
    }

    #[test]
    fn nothing_run_is_said_plainly() {
        assert!(results(&[]).contains("No scenario has been run."));
    }
}

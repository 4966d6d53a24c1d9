//! Runs side by side, with ratios to the first: for two builds, or for two servers.
//!
//! Comparing is only fair between runs that differ in one thing, so what differs is said before the numbers. What is compared
//! stands here; `text` and `page` print it.

mod page;
mod text;

pub use page::page;
pub use text::text;

use super::verdict;
use super::{machine, number};
use crate::result::{Gpu, LatencySummary, RunResult, Server, TierResult};

/// Which direction is good news.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Better {
    Lower,
    Higher,
    Neither,
}

/// One measured quantity of every run; `None` where a run does not have it.
#[derive(Debug)]
struct Row {
    name: String,
    unit: &'static str,
    better: Better,
    values: Vec<Option<f64>>,
}

/// Something of a run in words.
type Aspect = fn(&RunResult) -> String;

/// One of the usual percentiles.
type Percentile = fn(&LatencySummary) -> f64;

/// What makes single runs doubtful.
fn cautions(runs: &[RunResult]) -> Vec<String> {
    let mut texts = Vec::new();
    for (i, run) in runs.iter().enumerate() {
        for (verdict, text) in verdict::doubts(run) {
            texts.push(format!("{}: {}. {text}", letter(i), verdict.word()));
        }
    }
    texts
}

/// What was not the same for all runs, though it bears on the numbers. The target and the command are expected to differ.
fn differences(runs: &[RunResult]) -> Vec<String> {
    let aspects: [(&str, Aspect); 7] = [
        ("machine", machine::line),
        ("arrivals", |r| r.configuration.arrivals.clone()),
        ("tier mix", |r| format!("{:?}", r.configuration.tiers)),
        ("connections", |r| {
            format!(
                "{}, keep-alive {}",
                r.configuration.connections, r.configuration.keep_alive
            )
        }),
        ("input", |r| r.configuration.input.clone()),
        ("deadline", |r| format!("{:?}", r.configuration.deadline_ms)),
        ("length", |r| number::duration(r.duration_seconds.round())),
    ];
    let differing: Vec<&str> = aspects
        .iter()
        .filter(|(_, of)| runs.windows(2).any(|w| of(&w[0]) != of(&w[1])))
        .map(|(name, _)| *name)
        .collect();
    if differing.is_empty() {
        Vec::new()
    } else {
        vec![format!(
            "Not the same in all runs: {}.",
            differing.join(", ")
        )]
    }
}

fn letter(i: usize) -> String {
    match u8::try_from(i) {
        Ok(i) if i < 26 => char::from(b'A' + i).to_string(),
        _ => format!("#{}", i + 1),
    }
}

/// A run's name with what tells it from another run of the same name.
fn title(run: &RunResult) -> String {
    let commit = run.commit.as_deref().map(short_commit);
    [Some(run.name.clone()), commit, Some(machine::start(run))]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(", ")
}

fn short_commit(commit: &str) -> String {
    let (hash, rest) = commit
        .split_once('-')
        .map_or((commit, ""), |(hash, rest)| (hash, rest));
    let hash: String = hash.chars().take(10).collect();
    if rest.is_empty() {
        hash
    } else {
        format!("{hash}-{rest}")
    }
}

/// Everything that is compared, in the order in which it is read; what no run has is left out.
fn rows(runs: &[RunResult]) -> Vec<Row> {
    let mut rows = vec![
        row(runs, "offered", "/s", Better::Neither, |r| {
            Some(r.totals.offered_rate)
        }),
        row(runs, "achieved", "/s", Better::Higher, |r| {
            Some(r.totals.achieved_rate)
        }),
        row(runs, "errors", "%", Better::Lower, error_percent),
    ];
    for tier in tiers(runs) {
        let summary = |r: &RunResult| tier_of(r, &tier).map(|t| t.latency.corrected.summary);
        rows.extend(latency_rows(runs, &tier, summary));
    }
    if tiers(runs).len() > 1 {
        rows.extend(latency_rows(runs, "all", |r| {
            Some(r.latency.corrected.summary)
        }));
    }
    rows.extend(server_rows(runs));
    rows.retain(|row| row.values.iter().any(Option::is_some));
    rows
}

/// What the server spent and how it filled its batches.
fn server_rows(runs: &[RunResult]) -> Vec<Row> {
    let server = |f: fn(&Server) -> f64| move |r: &RunResult| r.server.as_ref().map(f);
    let gpu = |f: fn(&Gpu) -> f64| move |r: &RunResult| r.gpu.as_ref().map(f);
    let (cpu, memory) = (
        server(|s| s.cpu_seconds_per_1000_requests),
        server(|s| s.rss_bytes_max as f64 / 1_048_576.0),
    );
    let (size, used) = (
        gpu(|g| g.batch_size_mean),
        gpu(|g| g.slot_utilisation * 100.0),
    );
    let gap = |r: &RunResult| r.gpu.as_ref().and_then(|g| g.gap_p99_ms);
    let mut rows = vec![
        row(runs, "server CPU per 1,000", "s", Better::Lower, cpu),
        row(runs, "server memory, most", "MiB", Better::Lower, memory),
        row(runs, "batch size, mean", "", Better::Neither, size),
        row(runs, "slot utilisation", "%", Better::Neither, used),
        row(runs, "batch gap p99", "ms", Better::Lower, gap),
    ];
    for stage in [
        "parse", "queue", "hold", "stage", "execute", "demux", "write",
    ] {
        let mean = |r: &RunResult| {
            r.stages
                .iter()
                .find(|s| s.stage == stage)
                .map(|s| s.mean_ms)
        };
        rows.push(row(
            runs,
            &format!("{stage}, mean"),
            "ms",
            Better::Lower,
            mean,
        ));
    }
    rows
}

fn row(
    runs: &[RunResult],
    name: &str,
    unit: &'static str,
    better: Better,
    value: impl Fn(&RunResult) -> Option<f64>,
) -> Row {
    Row {
        name: name.to_owned(),
        unit,
        better,
        values: runs.iter().map(value).collect(),
    }
}

fn latency_rows(
    runs: &[RunResult],
    name: &str,
    of: impl Fn(&RunResult) -> Option<LatencySummary>,
) -> Vec<Row> {
    let kinds: [(&str, Percentile); 5] = [
        ("p50", |s| s.p50_ms),
        ("p95", |s| s.p95_ms),
        ("p99", |s| s.p99_ms),
        ("p99.9", |s| s.p999_ms),
        ("max", |s| s.max_ms),
    ];
    kinds
        .into_iter()
        .map(|(kind, value)| {
            let found = |r: &RunResult| of(r).filter(|s| s.count > 0).map(|s| value(&s));
            row(runs, &format!("{name} {kind}"), "ms", Better::Lower, found)
        })
        .collect()
}

fn error_percent(run: &RunResult) -> Option<f64> {
    let answered = run.totals.ok + run.totals.errors;
    (answered > 0).then(|| run.totals.errors as f64 / answered as f64 * 100.0)
}

/// Every tier that occurs, in the order of the first run that has it.
fn tiers(runs: &[RunResult]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for tier in runs.iter().flat_map(|r| &r.tiers) {
        if !names.contains(&tier.tier) {
            names.push(tier.tier.clone());
        }
    }
    names
}

fn tier_of<'a>(run: &'a RunResult, tier: &str) -> Option<&'a TierResult> {
    run.tiers.iter().find(|t| t.tier == tier)
}

fn value_text(value: Option<f64>, unit: &str) -> String {
    let Some(value) = value else {
        return "–".to_owned();
    };
    match unit {
        "" => number::short(value),
        "%" => number::percent(value / 100.0),
        "/s" => format!("{}/s", number::short(value)),
        "ms" => number::time(value),
        unit => format!("{} {unit}", number::short(value)),
    }
}

fn ratio_text(row: &Row, i: usize) -> String {
    match (row.values[0], row.values[i]) {
        (Some(base), Some(value)) => number::ratio(value, base),
        _ => "–".to_owned(),
    }
}

fn heads(runs: usize) -> Vec<String> {
    let mut cells = vec![String::new()];
    cells.extend((0..runs).map(letter));
    cells.extend((1..runs).map(|i| format!("{}/A", letter(i))));
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{Latency, LatencyView, Totals};

    fn run(name: &str, p95_ms: f64, achieved_rate: f64) -> RunResult {
        let summary = LatencySummary {
            count: 10,
            p95_ms,
            ..LatencySummary::default()
        };
        let latency = Latency {
            corrected: LatencyView {
                summary,
                curve: Vec::new(),
            },
            ..Latency::default()
        };
        let tier = TierResult {
            tier: "free".to_owned(),
            latency: latency.clone(),
            ..TierResult::default()
        };
        RunResult {
            name: name.to_owned(),
            latency,
            tiers: vec![tier],
            totals: Totals {
                achieved_rate,
                offered_rate: 100.0,
                ..Totals::default()
            },
            ..RunResult::default()
        }
    }

    #[test]
    fn ratios_are_to_the_first_run() {
        let text = text(&[run("old", 100.0, 90.0), run("new", 125.0, 99.0)]);
        let line = text.lines().find(|l| l.starts_with("free p95")).unwrap();
        assert_eq!(
            line.split_whitespace().collect::<Vec<_>>(),
            ["free", "p95", "100", "ms", "125", "ms", "×1.25"]
        );
        assert!(!text.contains('!'), "{text}");
    }

    #[test]
    fn worse_is_said_in_words() {
        let page = page(&[run("old", 100.0, 90.0), run("new", 125.0, 99.0)]);
        assert!(page.contains("×1.25 worse") && page.contains("×1.10 better"));
    }

    #[test]
    fn unequal_and_doubtful_runs_are_called_out() {
        let mut other = run("b", 1.0, 1.0);
        other.configuration.connections = 7;
        other.mismatches.wrong = 1;
        let text = text(&[run("a", 1.0, 1.0), other]);
        assert!(text.contains("Not the same in all runs: connections."));
        assert!(text.contains("B: wrong answers."));
    }

    #[test]
    fn any_number_of_runs_will_do() {
        assert!(page(&[]).ends_with("</html>\n"));
        assert!(text(&[run("one", 1.0, 1.0)]).contains("free p95"));
        let many: Vec<RunResult> = (0..30).map(|i| run("r", f64::from(i), 1.0)).collect();
        assert!(text(&many).contains("#30/A"));
    }

    #[test]
    fn hostile_names_reach_neither_terminal_nor_page() {
        let runs = [run("\u{1b}[2J<script>", 1.0, 1.0)];
        assert!(!text(&runs).contains('\u{1b}'));
        assert!(!page(&runs).contains("<script"));
    }
}

//! The comparison as a page.

use super::{
    Better, Row, cautions, differences, heads, letter, ratio_text, rows, tier_of, tiers, title,
    value_text,
};
use crate::report::chart::{self, Axis, Dash, Line, Slot};
use crate::report::figures::{self, Curve};
use crate::report::shapes::{self, Cell};
use crate::report::verdict::Verdict;
use crate::report::{escape, machine, scale};
use crate::result::RunResult;

/// A ratio further than this from 1 is worth a colour.
const NOTABLE: f64 = 0.05;

/// The comparison as a page.
pub fn page(runs: &[RunResult]) -> String {
    let names: Vec<String> = runs.iter().map(|r| r.name.clone()).collect();
    let title = match names.split_first() {
        Some((first, rest)) if rest.iter().all(|n| n == first) => format!("{first}, compared"),
        _ => names.join(" and "),
    };
    let header = format!(
        r#"<header><p class="eyebrow">Comparison of load reports</p><h1>{}</h1>{}</header>"#,
        escape::html(&title),
        runs.first()
            .and_then(|r| r.question.as_deref())
            .map_or(String::new(), |q| shapes::paragraph("question", q))
    );
    let note =
        "Ratios are to the first run. Latency is corrected, of good answers, in milliseconds.";
    let sections = [
        header,
        alerts(runs),
        shapes::section("The runs", &run_table(runs)),
        shapes::section(
            "Side by side",
            &format!("{}{}", shapes::paragraph("note", note), side_by_side(runs)),
        ),
        shapes::section("Latency by percentile", &percentiles(runs)),
        shapes::section("Latency over time", &over_time(runs)),
        shapes::section("How to run them again", &commands(runs)),
    ];
    shapes::page(&format!("{title} – funicular-perf"), &sections.join("\n"))
}

fn alerts(runs: &[RunResult]) -> String {
    let mut out = String::new();
    let cautions = cautions(runs);
    if !cautions.is_empty() {
        out.push_str(&shapes::alert(
            "critical",
            "Not all of these runs can be trusted",
            &cautions,
        ));
    }
    let differences = differences(runs);
    if !differences.is_empty() {
        out.push_str(&shapes::alert(
            "warning",
            "The runs differ in more than what they measure",
            &differences,
        ));
    }
    out
}

fn run_table(runs: &[RunResult]) -> String {
    let rows: Vec<Vec<Cell>> = runs
        .iter()
        .enumerate()
        .map(|(i, run)| {
            vec![
                Cell::Named(letter(i), Slot::Colour(i)),
                Cell::Text(title(run)),
                Cell::Text(run.configuration.arrivals.clone()),
                Cell::Text(Verdict::words(run)),
            ]
        })
        .collect();
    shapes::table(&["", "run", "arrivals", "outcome"], &rows)
}

fn side_by_side(runs: &[RunResult]) -> String {
    let mut heads: Vec<String> = heads(runs.len());
    heads[0] = "quantity".to_owned();
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let rows: Vec<Vec<Cell>> = rows(runs)
        .iter()
        .map(|row| {
            let mut cells = vec![Cell::Text(row.name.clone())];
            cells.extend(
                row.values
                    .iter()
                    .map(|v| Cell::Number(value_text(*v, row.unit))),
            );
            cells.extend((1..runs.len()).map(|i| ratio_cell(row, i)));
            cells
        })
        .collect();
    shapes::table(&heads, &rows)
}

/// A ratio; a notable one says in words whether it is good news.
fn ratio_cell(row: &Row, i: usize) -> Cell {
    let text = ratio_text(row, i);
    let (Some(base), Some(value)) = (row.values[0], row.values[i]) else {
        return Cell::Number(text);
    };
    if base == 0.0 && value > 0.0 && row.better == Better::Lower {
        return Cell::Alarm("from 0, worse".to_owned());
    }
    let change = if base == 0.0 { 0.0 } else { value / base - 1.0 };
    if change.abs() < NOTABLE || row.better == Better::Neither {
        return Cell::Number(text);
    }
    let improved = (change > 0.0) == (row.better == Better::Higher);
    if improved {
        Cell::Good(format!("{text} better"))
    } else {
        Cell::Alarm(format!("{text} worse"))
    }
}

fn percentiles(runs: &[RunResult]) -> String {
    tiers(runs)
        .iter()
        .map(|tier| tier_percentiles(runs, tier))
        .collect()
}

fn tier_percentiles(runs: &[RunResult], tier: &str) -> String {
    let curves: Vec<Curve> = runs
        .iter()
        .enumerate()
        .filter_map(|(i, run)| {
            let view = &tier_of(run, tier)?.latency.corrected;
            Some(Curve {
                name: letter(i),
                slot: Slot::Colour(i),
                corrected: true,
                view,
            })
        })
        .collect();
    format!(
        "<h3>{}</h3>{}",
        escape::html(tier),
        figures::percentile_figure(&curves, "")
    )
}

fn over_time(runs: &[RunResult]) -> String {
    let dashes = [Dash::Solid, Dash::Long, Dash::Short, Dash::Dots];
    let lines: Vec<Line> = runs
        .iter()
        .enumerate()
        .map(|(i, run)| Line {
            name: format!("{}, p95", letter(i)),
            end_label: letter(i),
            slot: Slot::Colour(i),
            dash: dashes[i % 4],
            points: run
                .intervals
                .iter()
                .map(|s| {
                    let value = if s.latency.count == 0 {
                        f64::NAN
                    } else {
                        s.latency.p95_ms
                    };
                    (s.start_seconds + s.length_seconds / 2.0, value)
                })
                .collect(),
            marks: Vec::new(),
        })
        .collect();
    let end = runs.iter().map(|r| r.duration_seconds).fold(0.0, f64::max);
    let drawing = chart::both(260.0, |canvas| {
        let values: Vec<f64> = lines
            .iter()
            .flat_map(|l| l.points.iter().map(|p| p.1))
            .collect();
        let (scale, ticks) = scale::amounts_or_decades(&values, 40.0, 5);
        let y = Axis {
            title: figures::latency_title(&scale),
            scale,
            ticks,
        };
        let x = figures::time_axis(end, canvas);
        chart::lines(
            canvas,
            "95th percentile of latency over time, of each run",
            &x,
            &y,
            &lines,
        )
    });
    let caption = "Corrected 95th percentile of the good answers of all tiers in each second.";
    shapes::figure(&format!("{}{drawing}", chart::legend(&lines)), caption)
}

fn commands(runs: &[RunResult]) -> String {
    let names: Vec<[String; 3]> = (0..runs.len())
        .map(|i| ["", " server", " machine"].map(|what| format!("{}{what}", letter(i))))
        .collect();
    let mut facts = Vec::new();
    for (run, [own, server, place]) in runs.iter().zip(&names) {
        facts.push((own.as_str(), machine::command(&run.command), true));
        if let Some(command) = &run.server_command {
            facts.push((server.as_str(), machine::command(command), true));
        }
        facts.push((place.as_str(), machine::line(run), false));
    }
    shapes::facts(&facts)
}

//! The latency budget: where a request's time goes inside the server, beside where it was planned to go.
//!
//! The plan gives a request 180 of the 500 ms that its caller accepts: 20 in the queue, at most 40 held, 5 + 5 for
//! transfers, 100 for the batch, 10 to hand out results and for the network. The server measures slightly different pieces, so
//! they are grouped: `execute` is the batch and the way back from the device; `parse`, `demux` and `write` share the last 10.

use super::chart::{self, Axis, Canvas, Frame};
use super::number;
use super::scale;
use super::shapes::{self, Cell};
use super::svg::{Anchor, Svg, clipped, text_width};
use crate::result::{RunResult, Stage};

/// What callers accept, in milliseconds.
pub const TARGET_MS: f64 = 500.0;

/// One piece of the plan.
struct Planned {
    name: &'static str,
    what: &'static str,
    plan_ms: f64,
    at_most: bool,
    stages: &'static [&'static str],
}

const PLAN: [Planned; 5] = [
    Planned {
        name: "queue",
        what: "waiting for a GPU",
        plan_ms: 20.0,
        at_most: false,
        stages: &["queue"],
    },
    Planned {
        name: "hold",
        what: "waiting for company though a GPU is free",
        plan_ms: 40.0,
        at_most: true,
        stages: &["hold"],
    },
    Planned {
        name: "transfer in",
        what: "stage",
        plan_ms: 5.0,
        at_most: false,
        stages: &["stage"],
    },
    Planned {
        name: "batch",
        what: "execute and transfer out",
        plan_ms: 105.0,
        at_most: false,
        stages: &["execute"],
    },
    Planned {
        name: "hand out",
        what: "parse, demux, write, network",
        plan_ms: 10.0,
        at_most: false,
        stages: &["parse", "demux", "write"],
    },
];

/// The whole plan, in milliseconds: 180.
pub fn plan_total_ms() -> f64 {
    PLAN.iter().map(|p| p.plan_ms).sum()
}

/// The section on the budget.
pub fn section(run: &RunResult) -> String {
    let mut out = String::new();
    if let Some(text) = missing_text(&run.stages) {
        out.push_str(&shapes::paragraph("empty", &text));
    }
    let label = format!(
        "Latency budget: {} ms planned of {TARGET_MS} ms, {} ms measured on average",
        number::short(plan_total_ms()),
        measured_total(&run.stages).map_or("unknown".to_owned(), number::short)
    );
    let drawing = chart::both(190.0, |canvas| draw_totals(canvas, &label, run));
    let key: String = PLAN
        .iter()
        .enumerate()
        .map(|(i, p)| format!(r#"<li><span class="box b{i}"></span>{}</li>"#, p.name))
        .collect();
    let body = format!(r#"<ul class="legend">{key}</ul>{drawing}"#);
    out.push_str(&shapes::figure(&body, &caption(run)));
    out.push_str(&plan_table(run));
    if !run.stages.is_empty() {
        out.push_str(&stage_figure(run));
    }
    out
}

/// What the server left out, in words; `None` if it reported every stage of the plan.
fn missing_text(stages: &[Stage]) -> Option<String> {
    let missing: Vec<&str> = PLAN
        .iter()
        .flat_map(|p| p.stages)
        .copied()
        .filter(|name| mean_of(stages, &[name]).is_none())
        .collect();
    if stages.is_empty() {
        return Some(
            "No stages could be read from the server's metrics, so only the plan can be shown."
                .to_owned(),
        );
    }
    (!missing.is_empty()).then(|| {
        format!(
            "The server did not report these stages, so the sum is unknown: {}.",
            missing.join(", ")
        )
    })
}

fn caption(run: &RunResult) -> String {
    let plan = format!(
        "Planned: {} of the {TARGET_MS} ms that a caller accepts.",
        number::short(plan_total_ms())
    );
    let Some(inside) = measured_total(&run.stages) else {
        return plan;
    };
    let seen = run.latency.uncorrected.summary.mean_ms;
    let outside = seen - inside;
    let rest = if outside > 0.0 {
        format!(
            " The remaining {} ms passed in the network, the kernels and the generator.",
            number::short(outside)
        )
    } else {
        String::new()
    };
    format!(
        "{plan} Measured: a served request spent {} ms in the server on average; its caller, counting from the write, saw {} ms.{rest}",
        number::short(inside),
        number::short(seen)
    )
}

fn mean_of(stages: &[Stage], names: &[&str]) -> Option<f64> {
    let mut found = stages
        .iter()
        .filter(|s| names.contains(&s.stage.as_str()))
        .map(|s| s.mean_ms)
        .peekable();
    found.peek()?;
    Some(found.sum())
}

/// The mean of all stages together; `None` while one of the plan's is missing.
fn measured_total(stages: &[Stage]) -> Option<f64> {
    if missing_text(stages).is_some() {
        return None;
    }
    Some(PLAN.iter().filter_map(|p| mean_of(stages, p.stages)).sum())
}

/// The plan and the mean as two stacked bars.
fn draw_totals(canvas: Canvas, label: &str, run: &RunResult) -> String {
    let measured: Vec<f64> = PLAN
        .iter()
        .map(|p| mean_of(&run.stages, p.stages).unwrap_or(0.0))
        .collect();
    let planned: Vec<f64> = PLAN.iter().map(|p| p.plan_ms).collect();
    let ends = [planned.iter().sum::<f64>(), measured.iter().sum()];
    let (scale, ticks) = scale::amounts(ends, if canvas.narrow { 5 } else { 10 });
    let x = Axis {
        title: "milliseconds".to_owned(),
        scale,
        ticks,
    };
    let frame = Frame {
        left: 2.0,
        right: canvas.width - 16.0,
        top: 4.0,
        bottom: canvas.height - 42.0,
    };
    let mut svg = Svg::new("plot", canvas.width, canvas.height, label);
    frame.x_axis(&mut svg, &x);
    let bar = 26.0;
    let rows = [
        ("planned", &planned, Some(ends[0])),
        ("measured, mean", &measured, measured_total(&run.stages)),
    ];
    let step = (frame.bottom - frame.top) / 2.0;
    for (i, (name, parts, total)) in rows.into_iter().enumerate() {
        let top = frame.top + step * i as f64 + 18.0;
        let total = total.map_or("sum unknown".to_owned(), |ms| {
            format!("{} ms", number::short(ms))
        });
        let text = format!("{name}: {total}");
        svg.text(
            "value halo",
            (frame.left + 1.0, top - 5.0),
            Anchor::Start,
            &text,
        );
        draw_stack(&mut svg, &frame, &x, top, bar, parts);
    }
    svg.finish()
}

fn draw_stack(svg: &mut Svg, frame: &Frame, x: &Axis, top: f64, height: f64, parts: &[f64]) {
    let mut from = 0.0;
    for (i, part) in parts.iter().enumerate() {
        let (left, right) = (frame.x(x, from), frame.x(x, from + part));
        let title = format!("{}: {} ms", PLAN[i].name, number::short(*part));
        svg.rect(
            &format!("part b{i}"),
            (left, top),
            right - left,
            height,
            &title,
        );
        let named = format!("{} {}", PLAN[i].name, number::short(*part));
        let text = [named, number::short(*part)]
            .into_iter()
            .find(|t| text_width(t) + 8.0 < right - left);
        if let Some(text) = text {
            let at = ((left + right) / 2.0, top + height / 2.0 + 4.0);
            svg.text(&format!("inside i{i}"), at, Anchor::Middle, &text);
        }
        from += part;
    }
}

fn plan_table(run: &RunResult) -> String {
    let rows: Vec<Vec<Cell>> = PLAN
        .iter()
        .map(|p| plan_row(p, run))
        .chain([total_row(run)])
        .collect();
    shapes::table(
        &[
            "piece",
            "what happens",
            "planned, ms",
            "measured mean, ms",
            "of the plan",
        ],
        &rows,
    )
}

fn plan_row(p: &Planned, run: &RunResult) -> Vec<Cell> {
    let plan = format!(
        "{}{}",
        if p.at_most { "≤ " } else { "" },
        number::short(p.plan_ms)
    );
    let mut row = vec![
        Cell::Text(p.name.to_owned()),
        Cell::Note(p.what.to_owned()),
        Cell::Number(plan),
    ];
    row.extend(against_plan(mean_of(&run.stages, p.stages), p.plan_ms));
    row
}

fn total_row(run: &RunResult) -> Vec<Cell> {
    let total = measured_total(&run.stages);
    let what = format!("of {TARGET_MS} ms that a caller accepts");
    let mut row = vec![
        Cell::Text("all".to_owned()),
        Cell::Note(what),
        Cell::Number(number::short(plan_total_ms())),
    ];
    row.extend(against_plan(total, plan_total_ms()));
    row
}

fn against_plan(mean: Option<f64>, plan_ms: f64) -> [Cell; 2] {
    let Some(mean) = mean else {
        return [Cell::Number("–".to_owned()), Cell::Number("–".to_owned())];
    };
    let share = number::share(mean, plan_ms);
    let share = if mean > plan_ms {
        Cell::Alarm(format!("{share}, over"))
    } else {
        Cell::Number(share)
    };
    [Cell::Number(number::short(mean)), share]
}

/// Each stage by itself, from the median to the tail.
fn stage_figure(run: &RunResult) -> String {
    let rows: Vec<Vec<Cell>> = run
        .stages
        .iter()
        .map(|s| {
            let mut row = vec![
                Cell::Text(s.stage.clone()),
                Cell::Detail(number::count(s.count)),
            ];
            row.extend(
                [s.mean_ms, s.p50_ms, s.p95_ms, s.p99_ms].map(|v| Cell::Number(number::time(v))),
            );
            row
        })
        .collect();
    let table = shapes::table(&["stage", "tickets", "mean", "p50", "p95", "p99"], &rows);
    let height = 66.0 + 30.0 * run.stages.len() as f64;
    let drawing = chart::both(height, |canvas| {
        draw_stages(Canvas { height, ..canvas }, &run.stages)
    });
    let figure = shapes::figure(
        &drawing,
        "The bar ends at the mean; the ticks are p50, p95 and p99. The outline is the plan, where a stage has one to itself.",
    );
    format!("<h3>Stage by stage</h3>{figure}{table}")
}

fn draw_stages(canvas: Canvas, stages: &[Stage]) -> String {
    let ends = stages
        .iter()
        .map(|s| s.p99_ms.max(s.mean_ms))
        .chain(stages.iter().filter_map(own_plan));
    let (scale, ticks) = scale::amounts(ends, if canvas.narrow { 4 } else { 8 });
    let x = Axis {
        title: "milliseconds".to_owned(),
        scale,
        ticks,
    };
    let names = stages
        .iter()
        .map(|s| text_width(&clipped(&s.stage)))
        .fold(0.0, f64::max);
    let frame = Frame {
        left: names + 10.0,
        right: canvas.width - 16.0,
        top: 4.0,
        bottom: canvas.height - 42.0,
    };
    let mut svg = Svg::new("plot", canvas.width, canvas.height, "Time in each stage");
    frame.x_axis(&mut svg, &x);
    for (i, stage) in stages.iter().enumerate() {
        let middle = frame.top + 15.0 + 30.0 * i as f64;
        svg.text(
            "tick",
            (frame.left - 7.0, middle + 4.0),
            Anchor::End,
            &clipped(&stage.stage),
        );
        draw_stage(&mut svg, &frame, &x, middle, stage);
    }
    svg.finish()
}

fn draw_stage(svg: &mut Svg, frame: &Frame, x: &Axis, middle: f64, stage: &Stage) {
    let at = |ms: f64| frame.x(x, ms);
    if let Some(plan) = own_plan(stage) {
        let title = format!("planned: {} ms", number::short(plan));
        svg.rect(
            "plan",
            (frame.left, middle - 11.0),
            at(plan) - frame.left,
            22.0,
            &title,
        );
    }
    let group = PLAN
        .iter()
        .position(|p| p.stages.contains(&stage.stage.as_str()))
        .unwrap_or(PLAN.len() - 1);
    let title = format!("mean: {}", number::time(stage.mean_ms));
    svg.rect(
        &format!("part b{group}"),
        (frame.left, middle - 7.0),
        at(stage.mean_ms) - frame.left,
        14.0,
        &title,
    );
    svg.line(
        "whisker",
        (at(stage.p50_ms), middle),
        (at(stage.p99_ms), middle),
    );
    for (ms, half) in [
        (stage.p50_ms, 5.0),
        (stage.p95_ms, 7.0),
        (stage.p99_ms, 9.0),
    ] {
        svg.line("whisker", (at(ms), middle - half), (at(ms), middle + half));
    }
}

fn own_plan(stage: &Stage) -> Option<f64> {
    PLAN.iter()
        .find(|p| p.stages == [stage.stage.as_str()])
        .map(|p| p.plan_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(stage: &str, mean_ms: f64) -> Stage {
        Stage {
            stage: stage.to_owned(),
            mean_ms,
            ..Stage::default()
        }
    }

    #[test]
    fn the_plan_is_180_of_500() {
        assert_eq!(plan_total_ms(), 180.0);
    }

    #[test]
    fn stages_are_grouped_like_the_plan() {
        let stages = [
            stage("parse", 0.5),
            stage("demux", 0.25),
            stage("write", 0.25),
            stage("execute", 101.0),
        ];
        assert_eq!(mean_of(&stages, PLAN[4].stages), Some(1.0));
        assert_eq!(mean_of(&stages, &["queue"]), None);
        assert_eq!(measured_total(&stages), None);
        let rest = ["queue", "hold", "stage"].map(|name| stage(name, 10.0));
        assert_eq!(
            measured_total(&[&stages[..], &rest[..]].concat()),
            Some(132.0)
        );
    }

    #[test]
    fn a_piece_over_its_plan_is_called_out() {
        let run = RunResult {
            stages: vec![stage("queue", 30.0)],
            ..RunResult::default()
        };
        let text = section(&run);
        assert!(text.contains("150 %, over"));
        assert!(text.contains("the sum is unknown: hold, stage, execute, parse, demux, write."));
        assert!(section(&RunResult::default()).contains("only the plan can be shown"));
    }
}

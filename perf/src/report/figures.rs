//! The plots of a run over percentiles and over time. Each function gives one ready-made figure.

use std::collections::BTreeMap;

use super::chart::{self, Axis, Canvas, Dash, Line, Slot, slot_of_tier};
use super::number;
use super::scale::{self, Scale, Tick};
use super::shapes;
use crate::result::{Interval, IntervalTier, LatencyView, RunResult};

/// How often the largest latency may exceed the smallest before the axis turns logarithmic.
const LOG_SPREAD: f64 = 40.0;

/// Intervals shorter than this make rates of a handful of requests, so they are not drawn.
const INTERVAL_MIN_SECONDS: f64 = 0.5;

/// Percentiles that are marked on the curves.
const MARKED: [f64; 6] = [50.0, 90.0, 95.0, 99.0, 99.9, 99.99];

/// One percentile curve.
pub struct Curve<'a> {
    /// Its name in the legend and at its end.
    pub name: String,
    /// Colour and marker.
    pub slot: Slot,
    /// Corrected, or only from the write on: drawn dashed and without marks.
    pub corrected: bool,
    /// The values.
    pub view: &'a LatencyView,
}

/// Latency by percentile of every tier, corrected and uncorrected.
pub fn percentiles(run: &RunResult) -> String {
    let mut curves = Vec::new();
    for (i, tier) in run.tiers.iter().enumerate() {
        let slot = slot_of_tier(&tier.tier, i);
        curves.push(Curve {
            name: tier.tier.clone(),
            slot,
            corrected: true,
            view: &tier.latency.corrected,
        });
        curves.push(Curve {
            name: tier.tier.clone(),
            slot,
            corrected: false,
            view: &tier.latency.uncorrected,
        });
    }
    let caption = "Each step to the right leaves out nine tenths of what was left. Corrected latency (solid, marked) counts from \
                   the moment a request should have left: what callers see. Uncorrected latency (dashed) counts from the moment \
                   it was written; where the two part, requests waited before they could leave, and a generator that waits for \
                   the server would have hidden it.";
    percentile_figure(&curves, caption)
}

/// A figure of `curves` on the log-nines axis.
pub fn percentile_figure(curves: &[Curve], caption: &str) -> String {
    let curves: Vec<&Curve> = curves.iter().filter(|c| !c.view.curve.is_empty()).collect();
    if curves.is_empty() {
        return shapes::paragraph(
            "empty",
            "No request got a good answer, so there is no latency to show.",
        );
    }
    let values: Vec<f64> = curves
        .iter()
        .flat_map(|c| c.view.curve.iter().map(|p| p.value_ms))
        .collect();
    let samples = curves
        .iter()
        .map(|c| c.view.summary.count)
        .max()
        .unwrap_or(1);
    let lines: Vec<Line> = curves.iter().map(|c| percentile_line(c, samples)).collect();
    let label = percentile_label(&curves);
    let drawing = chart::both(360.0, |canvas| {
        let (x_scale, x_ticks) = scale::nines(samples);
        let (y_scale, y_ticks) = scale::amounts_or_decades(&values, LOG_SPREAD, 6);
        let x = Axis {
            title: "share of good answers that are at least as fast".to_owned(),
            scale: x_scale,
            ticks: x_ticks,
        };
        let y = Axis {
            title: latency_title(&y_scale),
            scale: y_scale,
            ticks: y_ticks,
        };
        chart::lines(canvas, &label, &x, &y, &lines)
    });
    shapes::figure(
        &format!("{}{drawing}", chart::legend(&percentile_legend(&lines))),
        caption,
    )
}

/// The solid lines by name; the dashed ones, which share their colours, together.
fn percentile_legend(lines: &[Line]) -> Vec<Line> {
    let mut entries: Vec<Line> = lines
        .iter()
        .filter(|l| l.dash == Dash::Solid)
        .cloned()
        .collect();
    if let Some(dashed) = lines.iter().find(|l| l.dash != Dash::Solid) {
        entries.push(Line {
            name: "the same, uncorrected".to_owned(),
            slot: Slot::Neutral,
            ..dashed.clone()
        });
    }
    entries
}

fn percentile_line(curve: &Curve, samples: u64) -> Line {
    let points: Vec<(f64, f64)> = curve
        .view
        .curve
        .iter()
        .map(|p| (p.percentile, p.value_ms))
        .collect();
    let enough = |p: &f64| {
        (100.0 - p) / 100.0 * curve.view.summary.count as f64 >= 1.0 && *p < axis_end(samples)
    };
    let marks = MARKED
        .into_iter()
        .filter(|p| curve.corrected && enough(p))
        .filter_map(|p| {
            let value = value_at(&points, p)?;
            let title = format!("{}: {} % within {} ms", curve.name, p, number::short(value));
            Some((p, value, title))
        })
        .collect();
    Line {
        name: curve.name.clone(),
        end_label: if curve.corrected {
            curve.name.clone()
        } else {
            String::new()
        },
        slot: curve.slot,
        dash: if curve.corrected {
            Dash::Solid
        } else {
            Dash::Short
        },
        points,
        marks,
    }
}

fn axis_end(samples: u64) -> f64 {
    match scale::nines(samples).0 {
        Scale::Nines(nines) => 100.0 - 10_f64.powf(2.0 - nines),
        _ => 100.0,
    }
}

/// The value at percentile `wanted`, along the straight line between the points around it.
fn value_at(points: &[(f64, f64)], wanted: f64) -> Option<f64> {
    let after = points.iter().position(|p| p.0 >= wanted)?;
    let (high_p, high) = points[after];
    let Some((low_p, low)) = after.checked_sub(1).map(|i| points[i]) else {
        return Some(high);
    };
    if high_p <= low_p {
        return Some(high);
    }
    // Along the axis as drawn, so that the mark lies on the line.
    let nines = |p: f64| -(1.0 - (p / 100.0).min(0.999_999_9)).log10();
    let part = (nines(wanted) - nines(low_p)) / (nines(high_p) - nines(low_p)).max(1e-12);
    Some(low + (high - low) * part.clamp(0.0, 1.0))
}

fn percentile_label(curves: &[&Curve]) -> String {
    let texts: Vec<String> = curves
        .iter()
        .filter(|c| c.corrected)
        .map(|c| {
            let s = c.view.summary;
            let [p50, p99, max] = [s.p50_ms, s.p99_ms, s.max_ms].map(number::short);
            format!("{}: p50 {p50} ms, p99 {p99} ms, maximum {max} ms", c.name)
        })
        .collect();
    format!("Latency by percentile. {}", texts.join("; "))
}

/// Latency over time: one panel for each tier, all on the same axes.
pub fn latency_over_time(run: &RunResult) -> String {
    let drawn = drawn_intervals(run);
    if drawn.is_empty() {
        return shapes::paragraph("empty", "The run was too short for a curve over time.");
    }
    let values: Vec<f64> = drawn
        .iter()
        .flat_map(|i| i.tiers.iter())
        .filter(|t| t.ok > 0)
        .flat_map(|t| [t.p50_ms, t.p99_ms])
        .collect();
    let panels: String = run
        .tiers
        .iter()
        .enumerate()
        .map(|(i, tier)| latency_panel(run, &drawn, &values, i, &tier.tier))
        .collect();
    shapes::figure(
        &panels,
        "Corrected latency of the good answers that came in each second. All panels share their axes.",
    )
}

fn latency_panel(
    run: &RunResult,
    drawn: &[&Interval],
    values: &[f64],
    position: usize,
    tier: &str,
) -> String {
    let slot = slot_of_tier(tier, position);
    let line = |name: &str, dash: Dash, value: fn(&IntervalTier) -> f64| {
        let points = drawn.iter().map(|i| {
            (
                middle(i),
                tier_of(i, tier)
                    .filter(|t| t.ok > 0)
                    .map_or(f64::NAN, value),
            )
        });
        Line {
            name: name.to_owned(),
            end_label: name.to_owned(),
            slot,
            dash,
            points: points.collect(),
            marks: Vec::new(),
        }
    };
    let lines = [
        line("p99", Dash::Dots, |t| t.p99_ms),
        line("p95", Dash::Short, |t| t.p95_ms),
        line("p50", Dash::Solid, |t| t.p50_ms),
    ];
    let label =
        format!("Latency of {tier} over time: median, 95th and 99th percentile of each second");
    let drawing = chart::both(190.0, |canvas| {
        let x = time_axis(run.duration_seconds, canvas);
        let (scale, ticks) = scale::amounts_or_decades(values, LOG_SPREAD, 4);
        let y = Axis {
            title: latency_title(&scale),
            scale,
            ticks,
        };
        chart::lines(canvas, &label, &x, &y, &lines)
    });
    let heading = format!(
        r#"<h3><span class="dot {}"></span>{}</h3>"#,
        slot.class(),
        super::escape::html(tier)
    );
    format!(r#"<div class="panel">{heading}{drawing}</div>"#)
}

/// Offered load, good answers of each tier and errors, per second.
pub fn throughput(run: &RunResult) -> String {
    let drawn = drawn_intervals(run);
    if drawn.is_empty() {
        return shapes::paragraph("empty", "The run was too short for a curve over time.");
    }
    let mut lines = vec![rate_line(
        "offered",
        Slot::Neutral,
        Dash::Solid,
        &drawn,
        |i| i.offered as f64,
    )];
    for (position, tier) in run.tiers.iter().enumerate() {
        let dash = [Dash::Solid, Dash::Long, Dash::Short][position % 3];
        let slot = slot_of_tier(&tier.tier, position);
        let name = format!("{}, good answers", tier.tier);
        let ok = |i: &Interval| tier_of(i, &tier.tier).map_or(0.0, |t| t.ok as f64);
        lines.push(Line {
            end_label: tier.tier.clone(),
            ..rate_line(&name, slot, dash, &drawn, ok)
        });
    }
    let errors = |i: &Interval| i.errors.values().sum::<u64>() as f64;
    lines.push(Line {
        end_label: "errors".to_owned(),
        ..rate_line("errors, all kinds", Slot::Bad, Dash::Dots, &drawn, errors)
    });
    let label = format!(
        "Throughput over time: {} requests a second offered, {} good answers a second",
        number::short(run.totals.offered_rate),
        number::short(run.totals.achieved_rate)
    );
    let caption = "What the schedule asked for in each second, and what came back in it.";
    rate_figure(run, &label, 300.0, &lines, caption)
}

/// Errors by kind over time; nothing if there were none.
pub fn errors(run: &RunResult) -> String {
    let drawn = drawn_intervals(run);
    let mut kinds: BTreeMap<&str, u64> = BTreeMap::new();
    for (kind, count) in drawn.iter().flat_map(|i| &i.errors) {
        *kinds.entry(kind).or_default() += count;
    }
    kinds.retain(|_, count| *count > 0);
    if kinds.is_empty() {
        return String::new();
    }
    // Not the colours of the tiers above.
    let dashes = [Dash::Solid, Dash::Long, Dash::Short, Dash::Dots];
    let lines: Vec<Line> = kinds
        .iter()
        .enumerate()
        .map(|(i, (kind, count))| {
            let of_kind =
                |interval: &Interval| interval.errors.get(*kind).copied().unwrap_or(0) as f64;
            let name = format!("{} ({} in all)", error_name(kind), number::count(*count));
            let line = rate_line(&name, Slot::Colour(3 + i), dashes[i % 4], &drawn, of_kind);
            Line {
                end_label: (*kind).to_owned(),
                ..line
            }
        })
        .collect();
    let figure = rate_figure(run, "Errors over time, by kind", 200.0, &lines, "");
    format!("<h3>Errors by kind</h3>{figure}")
}

/// The kind of an error, for people who don't know the schema.
pub fn error_name(kind: &str) -> &str {
    match kind {
        "429" => "429, shed",
        "4xx" => "other 4xx",
        "timeout" => "no answer in time",
        "closed" => "connection closed",
        "connect" => "could not connect",
        "malformed" => "malformed answer",
        "wrong" => "wrong answer",
        "hangup" => "hung up on purpose",
        other => other,
    }
}

fn rate_figure(run: &RunResult, label: &str, height: f64, lines: &[Line], caption: &str) -> String {
    let drawing = chart::both(height, |canvas| {
        let x = time_axis(run.duration_seconds, canvas);
        let (scale, ticks) =
            scale::amounts(lines.iter().flat_map(|l| l.points.iter().map(|p| p.1)), 5);
        let y = Axis {
            title: "requests per second".to_owned(),
            scale,
            ticks,
        };
        chart::lines(canvas, label, &x, &y, lines)
    });
    shapes::figure(&format!("{}{drawing}", chart::legend(lines)), caption)
}

fn rate_line(
    name: &str,
    slot: Slot,
    dash: Dash,
    drawn: &[&Interval],
    count: impl Fn(&Interval) -> f64,
) -> Line {
    Line {
        name: name.to_owned(),
        end_label: name.to_owned(),
        slot,
        dash,
        points: drawn
            .iter()
            .map(|i| (middle(i), count(i) / i.length_seconds))
            .collect(),
        marks: Vec::new(),
    }
}

/// The time axis of a run of `seconds`.
pub fn time_axis(seconds: f64, canvas: Canvas) -> Axis {
    let (scale, ticks): (Scale, Vec<Tick>) =
        scale::run_time(seconds, if canvas.narrow { 5 } else { 10 });
    Axis {
        title: format!("time since the start, {}", scale::run_time_unit(seconds)),
        scale,
        ticks,
    }
}

/// The title of a latency axis.
pub fn latency_title(scale: &Scale) -> String {
    let kind = if matches!(scale, Scale::Log(..)) {
        " (logarithmic)"
    } else {
        ""
    };
    format!("latency, ms{kind}")
}

fn drawn_intervals(run: &RunResult) -> Vec<&Interval> {
    run.intervals
        .iter()
        .filter(|i| i.length_seconds >= INTERVAL_MIN_SECONDS)
        .collect()
}

fn middle(interval: &Interval) -> f64 {
    interval.start_seconds + interval.length_seconds / 2.0
}

fn tier_of<'a>(interval: &'a Interval, tier: &str) -> Option<&'a IntervalTier> {
    interval.tiers.iter().find(|t| t.tier == tier)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_lie_on_the_curve() {
        let points = [(0.0, 10.0), (90.0, 20.0), (99.0, 40.0)];
        assert_eq!(value_at(&points, 90.0), Some(20.0));
        assert_eq!(value_at(&points, 99.5), None);
        // Halfway between one nine and two is 96.84 %.
        let halfway = value_at(&points, 100.0 - 10_f64.powf(0.5)).unwrap();
        assert!((halfway - 30.0).abs() < 1e-6, "{halfway}");
    }

    #[test]
    fn no_answers_give_words_and_not_an_empty_frame() {
        let run = RunResult::default();
        assert!(percentiles(&run).contains("no latency to show"));
        assert!(latency_over_time(&run).contains("too short"));
        assert!(throughput(&run).contains("too short"));
        assert_eq!(errors(&run), "");
    }
}

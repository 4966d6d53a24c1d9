//! What the GPUs did: batch sizes, zones, backlog.

use super::chart::{self, Axis, Canvas, Dash, Frame, Line, Slot, slot_of_tier};
use super::figures::time_axis;
use super::number;
use super::scale::{self, Scale, Tick};
use super::shapes;
use super::svg::{Anchor, Svg};
use crate::result::{Gpu, RunResult, SizeBucket, ZonePoint};

/// The zones from the bottom up, each with the class of its colour.
const ZONES: [(&str, &str); 4] = [
    ("green", "z-green"),
    ("yellow", "z-yellow"),
    ("red", "z-red"),
    ("limit", "z-limit"),
];

/// A bar's value needs this many pixels.
const VALUE_ROOM: f64 = 46.0;

/// The section on batches; says so where the server gave no numbers.
pub fn batches(run: &RunResult) -> String {
    let Some(gpu) = &run.gpu else {
        return shapes::paragraph(
            "empty",
            "The server's metrics could not be read at two moments (--admin), so nothing is known about its batches.",
        );
    };
    format!("{}{}", numbers(gpu), batch_sizes(gpu))
}

fn numbers(gpu: &Gpu) -> String {
    let gap = |ms: Option<f64>| ms.map_or("–".to_owned(), |v| format!("{} ms", number::short(v)));
    let mut rows = vec![
        ("GPUs up at the end", number::count(u64::from(gpu.gpus))),
        (
            "capacity",
            format!("{} requests/s", number::short(gpu.capacity)),
        ),
        (
            "slot utilisation (served / capacity)",
            number::percent(gpu.slot_utilisation),
        ),
        ("batches", number::count(gpu.batches)),
        (
            "tickets in a batch, mean",
            number::short(gpu.batch_size_mean),
        ),
        (
            "time in which a batch ran (not utilisation)",
            number::percent(gpu.busy_fraction),
        ),
    ];
    if gpu.gap_p50_ms.is_some() || gpu.gap_p99_ms.is_some() {
        let text = format!("{} · {}", gap(gpu.gap_p50_ms), gap(gpu.gap_p99_ms));
        rows.push(("gap between batches while tickets wait, p50 · p99", text));
    }
    let launches: u64 = gpu.launches.values().sum();
    if launches > 0 {
        let reasons: Vec<String> = gpu
            .launches
            .iter()
            .map(|(reason, count)| {
                let share = number::share(*count as f64, launches as f64);
                format!("{share} {}", launch_reason(reason))
            })
            .collect();
        rows.push(("why batches were launched", reasons.join(" · ")));
    }
    let rows: Vec<(&str, String, bool)> = rows
        .into_iter()
        .map(|(name, value)| (name, value, false))
        .collect();
    shapes::facts(&rows)
}

/// What the server means by a reason for a launch.
fn launch_reason(reason: &str) -> String {
    let meaning = match reason {
        "full" => "the batch was full",
        "hold" => "its oldest ticket had been held as long as it may be",
        "paced" => "there were enough tickets to keep the GPUs evenly busy",
        _ => return reason.to_owned(),
    };
    format!("{reason} ({meaning})")
}

/// A histogram bar.
struct Bar {
    label: String,
    share: f64,
    count: u64,
}

fn batch_sizes(gpu: &Gpu) -> String {
    let bars = bars(&gpu.batch_sizes);
    if bars.iter().all(|b| b.count == 0) {
        return String::new();
    }
    let label = format!(
        "Histogram of batch sizes, mean {}",
        number::short(gpu.batch_size_mean)
    );
    let drawing = chart::both(240.0, |canvas| draw_bars(canvas, &label, &bars));
    shapes::figure(
        &drawing,
        "How many tickets a batch held when it was launched.",
    )
}

fn bars(buckets: &[SizeBucket]) -> Vec<Bar> {
    let total: u64 = buckets.iter().map(|b| b.count).sum();
    let mut from = 1;
    let mut bars = Vec::new();
    for bucket in buckets {
        let label = match bucket.up_to {
            Some(to) if to <= from => to.to_string(),
            Some(to) => format!("{from}–{to}"),
            None => format!("> {}", from.saturating_sub(1)),
        };
        from = bucket.up_to.map_or(from, |to| to.saturating_add(1));
        let share = if total == 0 {
            0.0
        } else {
            bucket.count as f64 / total as f64
        };
        bars.push(Bar {
            label,
            share,
            count: bucket.count,
        });
    }
    // Empty buckets at the end only say that no batch broke the limit.
    let used = bars.iter().rposition(|b| b.count > 0).map_or(0, |i| i + 1);
    bars.truncate(used);
    bars
}

fn draw_bars(canvas: Canvas, label: &str, bars: &[Bar]) -> String {
    let (scale, mut ticks) = scale::amounts(bars.iter().map(|b| b.share * 100.0), 4);
    for tick in &mut ticks {
        tick.label.push_str(" %");
    }
    let y = Axis {
        title: "share of batches".to_owned(),
        scale,
        ticks,
    };
    let frame = Frame::new(canvas, &y, 0.0);
    let x = Axis {
        title: "tickets in a batch".to_owned(),
        scale: Scale::Linear(-0.5, bars.len() as f64 - 0.5),
        ticks: bar_ticks(bars),
    };
    let mut svg = Svg::new("plot bars", canvas.width, canvas.height, label);
    frame.axes(&mut svg, &x, &y);
    let step = (frame.right - frame.left) / bars.len() as f64;
    let most = bars.iter().map(|b| b.count).max().unwrap_or(0);
    let tallest = bars.iter().position(|b| b.count == most);
    for (i, bar) in bars.iter().enumerate() {
        let (middle, top) = (frame.x(&x, i as f64), frame.y(&y, bar.share * 100.0));
        let title = format!(
            "{} {}: {}",
            bar.label,
            if bar.label == "1" {
                "ticket"
            } else {
                "tickets"
            },
            number::plural(bar.count, "batch")
        );
        svg.rect(
            "bar",
            (middle - step * 0.4, top),
            step * 0.8,
            frame.bottom - top,
            &title,
        );
        // Where not all values fit, the tallest bar speaks for the scale of the rest.
        let text = number::percent(bar.share);
        let fits = step >= VALUE_ROOM || tallest == Some(i);
        if bar.count > 0 && fits {
            svg.text("value", (middle, top - 4.0), Anchor::Middle, &text);
        }
    }
    svg.finish()
}

/// The first and the last bucket are named before those between.
fn bar_ticks(bars: &[Bar]) -> Vec<Tick> {
    let last = bars.len().saturating_sub(1);
    let rank = |i: usize| match i {
        i if i == 0 || i == last => 0,
        i if i % 2 == 0 => 1,
        _ => 2,
    };
    bars.iter()
        .enumerate()
        .map(|(i, b)| Tick {
            value: i as f64,
            label: b.label.clone(),
            rank: rank(i),
        })
        .collect()
}

/// The section on zones and backlog; says so where the server gave no numbers.
pub fn zones(run: &RunResult) -> String {
    if run.zones.len() < 2 {
        return shapes::paragraph(
            "empty",
            "The server's metrics could not be read at two moments (--admin), so nothing is known about its zones.",
        );
    }
    let shares = zone_shares(&run.zones);
    let mut out = shapes::paragraph("lead", &zone_sentence(run, &shares));
    out.push_str(&backlog(run));
    if shares[0] < 1.0 {
        let drawing = chart::both(110.0, |canvas| draw_zones(canvas, run));
        out.push_str(&shapes::figure(
            &drawing,
            "Yellow sheds part of the free tier; red all of it and part of paid; at the limit nobody is let in.",
        ));
    }
    out.push_str(&queue_depths(run));
    out
}

/// The share of the time in each of [`ZONES`]: every point holds until the next.
fn zone_shares(points: &[ZonePoint]) -> [f64; ZONES.len()] {
    let mut seconds = [0.0; ZONES.len()];
    for pair in points.windows(2) {
        if let Some(level) = level_of(&pair[0].zone) {
            seconds[level] += (pair[1].at_seconds - pair[0].at_seconds).max(0.0);
        }
    }
    let total: f64 = seconds.iter().sum();
    if total > 0.0 {
        seconds.map(|s| s / total)
    } else {
        seconds
    }
}

fn zone_sentence(run: &RunResult, shares: &[f64; ZONES.len()]) -> String {
    let parts: Vec<String> = ZONES
        .iter()
        .zip(shares)
        .filter(|(_, share)| **share > 0.0)
        .map(|((name, _), share)| format!("{name} {} of the time", number::percent(*share)))
        .collect();
    let up = run.zones.iter().map(|z| z.gpus_up);
    let gpus = match (up.clone().min(), up.max()) {
        (Some(low), Some(high)) if low == high => {
            format!("{} up throughout", number::plural(u64::from(high), "GPU"))
        }
        (Some(low), Some(high)) => format!("between {low} and {high} GPUs up"),
        _ => String::new(),
    };
    let deepest = run
        .zones
        .iter()
        .map(|z| z.backlog_seconds)
        .fold(0.0, f64::max);
    format!(
        "Zone {}; {gpus}; backlog at most {} ms of capacity.",
        parts.join(", "),
        number::short(deepest * 1000.0)
    )
}

fn level_of(zone: &str) -> Option<usize> {
    ZONES.iter().position(|(name, _)| *name == zone)
}

fn backlog(run: &RunResult) -> String {
    let line = Line {
        name: "backlog".to_owned(),
        end_label: String::new(),
        slot: Slot::Colour(0),
        dash: Dash::Solid,
        points: run
            .zones
            .iter()
            .map(|z| (z.at_seconds, z.backlog_seconds * 1000.0))
            .collect(),
        marks: Vec::new(),
    };
    let drawing = chart::both(200.0, |canvas| {
        let x = time_axis(run.duration_seconds, canvas);
        let (scale, ticks) = scale::amounts(line.points.iter().map(|p| p.1), 4);
        let y = Axis {
            title: "backlog, ms of capacity".to_owned(),
            scale,
            ticks,
        };
        chart::lines(
            canvas,
            "Backlog over time",
            &x,
            &y,
            std::slice::from_ref(&line),
        )
    });
    shapes::figure(&drawing, "")
}

/// A strip whose height, not only its colour, is the zone.
fn draw_zones(canvas: Canvas, run: &RunResult) -> String {
    let ticks = ZONES.iter().enumerate().map(|(i, (name, _))| Tick {
        value: i as f64 + 1.0,
        label: (*name).to_owned(),
        rank: 0,
    });
    let y = Axis {
        title: "zone".to_owned(),
        scale: Scale::Linear(0.0, ZONES.len() as f64),
        ticks: ticks.collect(),
    };
    let x = time_axis(run.duration_seconds, canvas);
    let frame = Frame::new(canvas, &y, 0.0);
    let mut svg = Svg::new("plot", canvas.width, canvas.height, "Zone over time");
    frame.axes(&mut svg, &x, &y);
    for spell in run.zones.chunk_by(|a, b| a.zone == b.zone) {
        let Some(level) = level_of(&spell[0].zone) else {
            continue;
        };
        let last = spell[spell.len() - 1].at_seconds;
        let next = run.zones.iter().find(|z| z.at_seconds > last);
        let end = next.map_or(run.duration_seconds, |z| z.at_seconds);
        let (from, to) = (frame.x(&x, spell[0].at_seconds), frame.x(&x, end));
        let top = frame.y(&y, level as f64 + 1.0);
        svg.rect(
            ZONES[level].1,
            (from, top),
            to - from,
            frame.bottom - top,
            "",
        );
    }
    svg.finish()
}

fn queue_depths(run: &RunResult) -> String {
    if run
        .zones
        .iter()
        .all(|z| z.queue_depth.values().all(|depth| *depth == 0))
    {
        return String::new();
    }
    let dashes = [Dash::Solid, Dash::Long, Dash::Short];
    let tiers = run.tiers.iter().enumerate();
    let lines: Vec<Line> = tiers
        .filter(|(_, tier)| {
            run.zones
                .iter()
                .any(|z| z.queue_depth.contains_key(&tier.tier))
        })
        .map(|(i, tier)| Line {
            name: tier.tier.clone(),
            end_label: tier.tier.clone(),
            slot: slot_of_tier(&tier.tier, i),
            dash: dashes[i % 3],
            points: run
                .zones
                .iter()
                .map(|z| {
                    (
                        z.at_seconds,
                        z.queue_depth
                            .get(&tier.tier)
                            .map_or(f64::NAN, |d| *d as f64),
                    )
                })
                .collect(),
            marks: Vec::new(),
        })
        .collect();
    let drawing = chart::both(200.0, |canvas| {
        let x = time_axis(run.duration_seconds, canvas);
        let (scale, ticks) =
            scale::amounts(lines.iter().flat_map(|l| l.points.iter().map(|p| p.1)), 4);
        let y = Axis {
            title: "waiting tickets".to_owned(),
            scale,
            ticks,
        };
        chart::lines(
            canvas,
            "Waiting tickets of each tier over time",
            &x,
            &y,
            &lines,
        )
    });
    shapes::figure(&format!("{}{drawing}", chart::legend(&lines)), "")
}

/// What the server's process cost, as facts; empty where it was not measured.
pub fn server_facts(run: &RunResult) -> Vec<(&'static str, String, bool)> {
    let Some(server) = &run.server else {
        return Vec::new();
    };
    let mib = |bytes: u64| number::short(bytes as f64 / 1_048_576.0);
    let cpu = format!(
        "{} s; {} s for 1,000 requests",
        number::short(server.cpu_seconds),
        number::short(server.cpu_seconds_per_1000_requests)
    );
    let memory = format!(
        "{} MiB at the start, {} MiB at most, {} MiB at the end",
        mib(server.rss_bytes_start),
        mib(server.rss_bytes_max),
        mib(server.rss_bytes_end)
    );
    let mut facts = vec![
        ("server: CPU", cpu, false),
        ("server: resident memory", memory, false),
    ];
    if let Some(version) = &server.version {
        facts.push(("server: version", version.clone(), false));
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_become_ranges() {
        let sizes = [
            (Some(1), 3),
            (Some(2), 0),
            (Some(5), 4),
            (Some(9), 0),
            (None, 0),
        ];
        let buckets = sizes.map(|(up_to, count)| SizeBucket { up_to, count });
        let labels: Vec<String> = bars(&buckets).into_iter().map(|b| b.label).collect();
        assert_eq!(labels, ["1", "2", "3–5"]);
    }

    #[test]
    fn zones_count_the_time_not_the_points() {
        let at = |at_seconds: f64, zone: &str| ZonePoint {
            at_seconds,
            zone: zone.to_owned(),
            ..ZonePoint::default()
        };
        let points = [at(0.0, "green"), at(3.0, "limit"), at(4.0, "green")];
        assert_eq!(zone_shares(&points), [0.75, 0.0, 0.0, 0.25]);
        assert_eq!(zone_shares(&[]), [0.0; ZONES.len()]);
    }
}

//! Line charts: a frame with two axes, lines with names at their right ends, and a legend.
//!
//! Each chart is drawn twice, for a desk and for a phone, and the style sheet shows one of them: a single drawing scaled to a
//! phone would have labels of six pixels. Labels that don't fit are left out by rank, and names at line ends are pushed apart,
//! so that no two texts overlap, whatever the data.

use super::escape;
use super::scale::{Scale, Tick};
use super::svg::{Anchor, Svg, clipped, polyline, text_width};

/// How large a chart is drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Canvas {
    /// Width in pixels.
    pub width: f64,
    /// Height in pixels.
    pub height: f64,
    /// For a narrow screen: fewer ticks, short names only.
    pub narrow: bool,
}

/// One axis.
#[derive(Debug, Clone)]
pub struct Axis {
    /// What it shows, with the unit: `latency, ms`.
    pub title: String,
    /// The layout.
    pub scale: Scale,
    /// The marked values.
    pub ticks: Vec<Tick>,
}

/// How a line is drawn, beyond its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dash {
    /// Solid and strong.
    Solid,
    /// Long dashes.
    Long,
    /// Short dashes.
    Short,
    /// Dots.
    Dots,
}

/// One line of a chart.
#[derive(Debug, Clone)]
pub struct Line {
    /// What the legend says.
    pub name: String,
    /// What stands at its right end; empty for nothing.
    pub end_label: String,
    /// The colour slot: see [`slot_of_tier`]. Its marker shape too.
    pub slot: Slot,
    /// The stroke.
    pub dash: Dash,
    /// Values along the axes; NaN is a gap.
    pub points: Vec<(f64, f64)>,
    /// Points to be marked, each with its tooltip.
    pub marks: Vec<(f64, f64, String)>,
}

/// A colour with its marker shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot {
    /// One of the palette, modulo its size.
    Colour(usize),
    /// Neither good nor bad: offered load, totals.
    Neutral,
    /// Errors.
    Bad,
}

impl Slot {
    /// The CSS class that sets the colour.
    pub fn class(self) -> String {
        match self {
            Self::Colour(i) => format!("c{}", i % 5),
            Self::Neutral => "cn".to_owned(),
            Self::Bad => "cb".to_owned(),
        }
    }

    fn shape(self) -> usize {
        match self {
            Self::Colour(i) => i,
            Self::Neutral => 0,
            Self::Bad => 3,
        }
    }
}

impl Dash {
    fn class(self) -> &'static str {
        match self {
            Self::Solid => "solid",
            Self::Long => "long",
            Self::Short => "short",
            Self::Dots => "dots",
        }
    }
}

/// The colour slot of a tier: the product's own tiers always look the same, others take the slot of their position.
pub fn slot_of_tier(tier: &str, position: usize) -> Slot {
    match tier {
        "enterprise" => Slot::Colour(0),
        "paid" => Slot::Colour(1),
        "free" => Slot::Colour(2),
        "untiered" => Slot::Colour(0),
        _ => Slot::Colour(3 + position),
    }
}

/// Draws with `draw` for a desk and for a phone; the style sheet shows the one that fits.
pub fn both(height: f64, draw: impl Fn(Canvas) -> String) -> String {
    let wide = draw(Canvas {
        width: 860.0,
        height,
        narrow: false,
    });
    let narrow = draw(Canvas {
        width: 358.0,
        height: (height * 0.9).max(150.0),
        narrow: true,
    });
    format!(r#"<div class="wide">{wide}</div><div class="narrow">{narrow}</div>"#)
}

/// The legend of `lines` as HTML, which wraps by itself.
pub fn legend(lines: &[Line]) -> String {
    let entries: Vec<String> = lines.iter().map(legend_entry).collect();
    format!(r#"<ul class="legend">{}</ul>"#, entries.concat())
}

fn legend_entry(line: &Line) -> String {
    let mut swatch = String::new();
    let classes = format!("line {} {}", line.slot.class(), line.dash.class());
    let mut svg = Svg::new("swatch", 34.0, 12.0, "");
    svg.path(&classes, "M1 6H33");
    if !line.marks.is_empty() {
        svg.marker(
            &format!("mark {}", line.slot.class()),
            line.slot.shape(),
            (17.0, 6.0),
            "",
        );
    }
    swatch.push_str(&svg.finish());
    // The name stands beside it: a screen reader should not stop at the swatch.
    let swatch = swatch.replace(r#"role="img" aria-label="""#, r#"aria-hidden="true""#);
    format!("<li>{swatch}{}</li>", escape::html(&line.name))
}

/// The part of a canvas that data is drawn in.
#[derive(Debug, Clone, Copy)]
pub struct Frame {
    /// Left edge.
    pub left: f64,
    /// Right edge.
    pub right: f64,
    /// Upper edge.
    pub top: f64,
    /// Lower edge.
    pub bottom: f64,
}

impl Frame {
    /// The frame that leaves room for the ticks of `y`, for both titles, and for `right_room` pixels of names.
    pub fn new(canvas: Canvas, y: &Axis, right_room: f64) -> Self {
        let labels = y
            .ticks
            .iter()
            .map(|t| text_width(&t.label))
            .fold(0.0, f64::max);
        // On a desk all frames are alike, so that the same moment stands in the same place from plot to plot.
        let (left, right) = if canvas.narrow {
            (12.0, 14.0)
        } else {
            (56.0, 104.0)
        };
        Self {
            left: (labels + 12.0).max(left),
            right: canvas.width - right_room.max(right),
            top: 26.0,
            bottom: canvas.height - 42.0,
        }
    }

    /// Where `value` lies between left and right.
    pub fn x(&self, axis: &Axis, value: f64) -> f64 {
        if value.is_nan() {
            f64::NAN
        } else {
            self.left + axis.scale.at(value) * (self.right - self.left)
        }
    }

    /// Where `value` lies between bottom and top.
    pub fn y(&self, axis: &Axis, value: f64) -> f64 {
        if value.is_nan() {
            f64::NAN
        } else {
            self.bottom - axis.scale.at(value) * (self.bottom - self.top)
        }
    }

    /// Grid, tick labels and titles.
    pub fn axes(&self, svg: &mut Svg, x: &Axis, y: &Axis) {
        for tick in &y.ticks {
            let at = self.y(y, tick.value);
            svg.line("grid", (self.left, at), (self.right, at));
        }
        for tick in fitting_rows(&y.ticks, |t| self.y(y, t.value)) {
            svg.text(
                "tick",
                (self.left - 7.0, self.y(y, tick.value) + 4.0),
                Anchor::End,
                &tick.label,
            );
        }
        svg.text("title", (0.0, 13.0), Anchor::Start, &y.title);
        self.x_axis(svg, x);
    }

    /// The axis at the bottom alone.
    pub fn x_axis(&self, svg: &mut Svg, x: &Axis) {
        for tick in &x.ticks {
            let at = self.x(x, tick.value);
            svg.line("grid column", (at, self.top), (at, self.bottom));
        }
        svg.line("axis", (self.left, self.bottom), (self.right, self.bottom));
        let middle = (self.left + self.right) / 2.0;
        for (tick, at) in fitting_columns(&x.ticks, |t| self.x(x, t.value), self.right + 14.0) {
            svg.text(
                "tick",
                (at, self.bottom + 18.0),
                Anchor::Middle,
                &tick.label,
            );
        }
        svg.text(
            "title",
            (middle, self.bottom + 37.0),
            Anchor::Middle,
            &x.title,
        );
    }
}

/// Draws `lines` on axes `x` and `y`. `label` is for screen readers.
pub fn lines(canvas: Canvas, label: &str, x: &Axis, y: &Axis, lines: &[Line]) -> String {
    // On a phone names stand in the legend alone, unless all are as short as "p99".
    let roomy = !canvas.narrow || lines.iter().all(|l| l.end_label.chars().count() <= 4);
    let named = |line: &&Line| roomy && !line.end_label.is_empty();
    // Names are bold, so wider than the estimate.
    let width = |line: &Line| text_width(&clipped(&line.end_label)) * 1.15 + 14.0;
    let room = lines.iter().filter(named).map(width).fold(0.0, f64::max);
    let frame = Frame::new(canvas, y, room);
    let mut svg = Svg::new("plot", canvas.width, canvas.height, label);
    frame.axes(&mut svg, x, y);
    for line in lines {
        let points = line
            .points
            .iter()
            .map(|(px, py)| (frame.x(x, *px), frame.y(y, *py)));
        svg.path(
            &format!("line {} {}", line.slot.class(), line.dash.class()),
            &polyline(points),
        );
    }
    for line in lines {
        for (px, py, title) in &line.marks {
            let at = (frame.x(x, *px), frame.y(y, *py));
            svg.marker(
                &format!("mark {}", line.slot.class()),
                line.slot.shape(),
                at,
                title,
            );
        }
    }
    let ends: Vec<(f64, &Line)> = lines
        .iter()
        .filter(named)
        .filter_map(|line| Some((frame.y(y, last_value(line)?), line)))
        .collect();
    end_labels(&mut svg, &frame, ends);
    svg.finish()
}

fn last_value(line: &Line) -> Option<f64> {
    line.points
        .iter()
        .rev()
        .map(|p| p.1)
        .find(|v| v.is_finite())
}

/// Names at the right ends, pushed apart vertically and joined to their lines where they had to move.
fn end_labels(svg: &mut Svg, frame: &Frame, mut ends: Vec<(f64, &Line)>) {
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    let wanted: Vec<f64> = ends.iter().map(|e| e.0).collect();
    let placed = spread(&wanted, 15.0, frame.top, frame.bottom);
    for ((at, line), place) in ends.iter().zip(placed) {
        if (at - place).abs() > 3.0 {
            svg.line(
                "leader",
                (frame.right + 1.0, *at),
                (frame.right + 8.0, place),
            );
        }
        let class = format!("name {}", line.slot.class());
        svg.text(
            &class,
            (frame.right + 10.0, place + 4.0),
            Anchor::Start,
            &clipped(&line.end_label),
        );
    }
}

/// Moves ascending `wanted` places at least `gap` apart, staying inside `low..=high` where that is possible.
fn spread(wanted: &[f64], gap: f64, low: f64, high: f64) -> Vec<f64> {
    let mut placed: Vec<f64> = Vec::with_capacity(wanted.len());
    for &want in wanted {
        let floor = placed.last().map_or(low, |before| before + gap);
        placed.push(want.max(floor));
    }
    let mut ceiling = high;
    for place in placed.iter_mut().rev() {
        *place = place.min(ceiling);
        ceiling = *place - gap;
    }
    placed
}

/// The ticks along a horizontal axis whose labels fit, with their places: better ranks first, none past `limit`.
pub fn fitting_columns(ticks: &[Tick], at: impl Fn(&Tick) -> f64, limit: f64) -> Vec<(&Tick, f64)> {
    let mut order: Vec<&Tick> = ticks.iter().collect();
    order.sort_by_key(|t| t.rank);
    let mut taken: Vec<(f64, f64)> = Vec::new();
    let mut fitting = Vec::new();
    for tick in order {
        let half = text_width(&tick.label) / 2.0;
        let middle = at(tick).max(half).min(limit - half);
        let (from, to) = (middle - half - 4.0, middle + half + 4.0);
        if taken.iter().all(|(a, b)| to < *a || from > *b) {
            taken.push((from, to));
            fitting.push((tick, middle));
        }
    }
    fitting
}

fn fitting_rows(ticks: &[Tick], at: impl Fn(&Tick) -> f64) -> Vec<&Tick> {
    let mut order: Vec<&Tick> = ticks.iter().collect();
    order.sort_by_key(|t| t.rank);
    let mut taken: Vec<f64> = Vec::new();
    order.retain(|tick| {
        let place = at(tick);
        let fits = taken.iter().all(|other| (other - place).abs() >= 14.0);
        if fits {
            taken.push(place);
        }
        fits
    });
    order
}

#[cfg(test)]
mod tests {
    use super::super::scale;
    use super::*;
    use proptest::prelude::*;

    fn canvas() -> Canvas {
        Canvas {
            width: 358.0,
            height: 200.0,
            narrow: true,
        }
    }

    #[test]
    fn labels_that_do_not_fit_go_by_rank() {
        let (scale, ticks) = scale::nines(1_000_000);
        let kept = fitting_columns(&ticks, |t| scale.at(t.value) * 260.0, 300.0);
        let labels: Vec<&str> = kept.iter().map(|(t, _)| t.label.as_str()).collect();
        assert!(
            labels.contains(&"90 %") && labels.contains(&"99 %"),
            "{labels:?}"
        );
        assert!(!labels.contains(&"75 %"), "{labels:?}");
    }

    #[test]
    fn an_empty_chart_is_still_a_chart() {
        let (scale, ticks) = scale::amounts([], 4);
        let axis = Axis {
            title: "latency, ms".to_owned(),
            scale,
            ticks,
        };
        let svg = lines(canvas(), "nothing", &axis, &axis, &[]);
        assert!(svg.contains("latency, ms") && !svg.contains("NaN"));
    }

    #[test]
    fn the_products_tiers_keep_their_colours() {
        assert_eq!(slot_of_tier("free", 0), Slot::Colour(2));
        assert_eq!(slot_of_tier("gold", 1), Slot::Colour(4));
    }

    proptest! {
        #[test]
        fn names_at_line_ends_never_overlap(mut wanted in prop::collection::vec(26.0..200.0_f64, 0..9)) {
            wanted.sort_by(f64::total_cmp);
            let placed = spread(&wanted, 15.0, 26.0, 200.0);
            prop_assert!(placed.windows(2).all(|w| w[1] - w[0] >= 14.999));
            prop_assert!(placed.iter().all(|p| *p >= 26.0 - 1e-9 && *p <= 200.0));
        }

        #[test]
        fn tick_labels_never_overlap(width in 60.0..900.0_f64, samples in 1..u64::MAX) {
            let (scale, ticks) = scale::nines(samples);
            let mut kept: Vec<(f64, f64)> = fitting_columns(&ticks, |t| 30.0 + scale.at(t.value) * width, width + 60.0)
                .into_iter()
                .map(|(t, at)| (at, text_width(&t.label) / 2.0))
                .collect();
            kept.sort_by(|a, b| a.0.total_cmp(&b.0));
            prop_assert!(kept.windows(2).all(|w| w[0].0 + w[0].1 < w[1].0 - w[1].1));
        }
    }
}

//! A writer of inline SVG whose looks come from the page's style sheet alone.
//!
//! Every element carries a class and no colour, so that light, dark and paper are three sets of CSS variables. Text is
//! escaped here and nowhere else; coordinates are rounded to a tenth of a pixel, which halves the size of a page.

use std::fmt::Write as _;

use super::escape;

/// Which end of a text its position names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// The text begins there.
    Start,
    /// The text is centred there.
    Middle,
    /// The text ends there.
    End,
}

/// An SVG element under construction.
#[derive(Debug)]
pub struct Svg {
    out: String,
}

impl Svg {
    /// Opens a drawing of `width` by `height` pixels. `label` is what a screen reader says instead.
    pub fn new(class: &str, width: f64, height: f64, label: &str) -> Self {
        let mut out = String::with_capacity(8192);
        let label = escape::html(label);
        let _ = write!(
            out,
            r#"<svg class="{class}" viewBox="0 0 {} {}" role="img" aria-label="{label}">"#,
            px(width),
            px(height)
        );
        Self { out }
    }

    /// A straight line.
    pub fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let _ = write!(
            self.out,
            r#"<line class="{class}" x1="{}" y1="{}" x2="{}" y2="{}"/>"#,
            px(from.0),
            px(from.1),
            px(to.0),
            px(to.1)
        );
    }

    /// A rectangle with its left upper corner at `corner`; nothing if it has no area.
    pub fn rect(&mut self, class: &str, corner: (f64, f64), width: f64, height: f64, title: &str) {
        if width <= 0.0 || height <= 0.0 {
            return;
        }
        let _ = write!(
            self.out,
            r#"<rect class="{class}" x="{}" y="{}" width="{}" height="{}">"#,
            px(corner.0),
            px(corner.1),
            px(width),
            px(height)
        );
        self.title(title);
        self.out.push_str("</rect>");
    }

    /// A path of ready-made path data.
    pub fn path(&mut self, class: &str, data: &str) {
        if !data.is_empty() {
            let _ = write!(self.out, r#"<path class="{class}" d="{data}"/>"#);
        }
    }

    /// A line of text.
    pub fn text(&mut self, class: &str, at: (f64, f64), anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let _ = write!(
            self.out,
            r#"<text class="{class}" x="{}" y="{}" text-anchor="{anchor}">{}</text>"#,
            px(at.0),
            px(at.1),
            escape::html(text)
        );
    }

    /// The point marker of colour slot `slot`: each slot has a shape of its own, so colour is never the only difference.
    pub fn marker(&mut self, class: &str, slot: usize, at: (f64, f64), title: &str) {
        let _ = write!(
            self.out,
            r#"<path class="{class}" d="{}">"#,
            marker_path(slot, at)
        );
        self.title(title);
        self.out.push_str("</path>");
    }

    /// Closes the drawing.
    pub fn finish(mut self) -> String {
        self.out.push_str("</svg>");
        self.out
    }

    fn title(&mut self, title: &str) {
        if !title.is_empty() {
            let _ = write!(self.out, "<title>{}</title>", escape::html(title));
        }
    }
}

/// Path data of a polyline; a point that is no number breaks it, and a lone point becomes a dot.
///
/// Points that fall on the one before them are left out.
pub fn polyline(points: impl IntoIterator<Item = (f64, f64)>) -> String {
    let mut data = String::new();
    let mut last: Option<(f64, f64)> = None;
    let mut lone = false;
    for point in points {
        if !(point.0.is_finite() && point.1.is_finite()) {
            close_lone(&mut data, lone);
            (last, lone) = (None, false);
            continue;
        }
        match last {
            None => {
                let _ = write!(data, "M{} {}", px(point.0), px(point.1));
                lone = true;
            }
            Some(before)
                if (point.0 - before.0).abs() < 0.3 && (point.1 - before.1).abs() < 0.3 =>
            {
                continue;
            }
            Some(_) => {
                let _ = write!(data, "L{} {}", px(point.0), px(point.1));
                lone = false;
            }
        }
        last = Some(point);
    }
    close_lone(&mut data, lone);
    data
}

/// At most how wide `text` is in the page's 12-pixel axis font, whichever of the usual sans-serif fonts that is.
pub fn text_width(text: &str) -> f64 {
    let width = |c| match c {
        '.' | ',' | ':' | 'i' | 'l' | ' ' => 4.2,
        '%' | 'm' | 'w' | 'M' | 'W' | '…' => 11.8,
        _ => 7.8,
    };
    text.chars().map(width).sum()
}

/// `text`, cut after so many characters that it can stand beside a plot.
pub fn clipped(text: &str) -> String {
    const CHARACTERS: usize = 14;
    if text.chars().count() <= CHARACTERS {
        return text.to_owned();
    }
    let kept: String = text.chars().take(CHARACTERS - 1).collect();
    format!("{}…", kept.trim_end())
}

/// A coordinate, to a tenth of a pixel.
fn px(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

/// A zero-length stroke with round ends is a dot.
fn close_lone(data: &mut String, lone: bool) {
    if lone {
        data.push_str("h0.01");
    }
}

fn marker_path(slot: usize, (x, y): (f64, f64)) -> String {
    let outline: &[(f64, f64)] = match slot % 5 {
        0 => {
            return format!(
                "M{} {}a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0 -7.2 0Z",
                px(x - 3.6),
                px(y)
            );
        }
        1 => &[(-3.3, -3.3), (3.3, -3.3), (3.3, 3.3), (-3.3, 3.3)],
        2 => &[(0.0, -4.4), (4.2, 3.2), (-4.2, 3.2)],
        3 => &[(0.0, -4.8), (4.8, 0.0), (0.0, 4.8), (-4.8, 0.0)],
        _ => &[(0.0, 4.4), (4.2, -3.2), (-4.2, -3.2)],
    };
    let corners: Vec<String> = outline
        .iter()
        .map(|(dx, dy)| format!("{} {}", px(x + dx), px(y + dy)))
        .collect();
    format!("M{}Z", corners.join("L"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polyline_breaks_at_gaps_and_keeps_lone_points() {
        let nan = (1.0, f64::NAN);
        assert_eq!(
            polyline([(0.0, 0.0), (1.0, 2.0), nan, (3.0, 3.0)]),
            "M0 0L1 2M3 3h0.01"
        );
        assert_eq!(polyline([nan]), "");
        assert_eq!(polyline([(0.0, 0.0), (0.1, 0.1), (5.0, 5.04)]), "M0 0L5 5");
    }

    #[test]
    fn long_names_are_cut() {
        assert_eq!(clipped("enterprise"), "enterprise");
        assert_eq!(clipped("a name without end"), "a name withou…");
    }

    #[test]
    fn text_and_labels_are_escaped() {
        let mut svg = Svg::new("plot", 10.0, 20.5, "a \"b\"");
        svg.text("t", (1.0, 2.0), Anchor::End, "<b>");
        svg.rect("r", (0.0, 0.0), 1.0, 1.0, "x & y");
        svg.rect("r", (0.0, 0.0), 0.0, 1.0, "nothing");
        let text = svg.finish();
        assert!(text.starts_with(
            r#"<svg class="plot" viewBox="0 0 10 20.5" role="img" aria-label="a &quot;b&quot;">"#
        ));
        assert!(text.contains(r#"text-anchor="end">&lt;b&gt;</text>"#));
        assert!(text.contains("<title>x &amp; y</title>") && !text.contains("nothing"));
        assert!(text.ends_with("</svg>"));
    }

    #[test]
    fn markers_differ_by_slot() {
        let shapes: Vec<String> = (0..5).map(|slot| marker_path(slot, (0.0, 0.0))).collect();
        for (i, shape) in shapes.iter().enumerate() {
            assert!(!shapes[..i].contains(shape), "{shape}");
        }
    }
}

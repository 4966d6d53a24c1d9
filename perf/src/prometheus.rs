//! Reading the Prometheus text format: as much of it as a snapshot of `/metrics` needs. Pure.

/// One line: a name, labels and a value.
#[derive(Clone, Debug, PartialEq)]
struct Series {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
}

/// Everything that `/metrics` said at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    series: Vec<Series>,
}

/// Cumulative counts by upper bound, and the sum of all values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Buckets {
    /// (upper bound, values up to it), ascending; the last bound is infinite.
    pub cumulative: Vec<(f64, f64)>,
    /// Sum of all values.
    pub sum: f64,
}

impl Snapshot {
    /// Reads a page. Lines that do not parse are left out: a new kind of line must not spoil the rest.
    pub fn parse(text: &str) -> Snapshot {
        let lines = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        Snapshot {
            series: lines.filter_map(parse_line).collect(),
        }
    }

    /// True if nothing was read.
    pub fn is_empty(&self) -> bool {
        self.series.is_empty()
    }

    /// Sum over all series of this name that carry all of these labels; `None` if there is none.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let mut values = self
            .find(name, labels)
            .map(|series| series.value)
            .peekable();
        values.peek()?;
        Some(values.sum())
    }

    /// Values of this name by the value of one label, in the order of the page; equal ones are added up.
    pub fn by_label(&self, name: &str, label: &str) -> Vec<(String, f64)> {
        let mut totals: Vec<(String, f64)> = Vec::new();
        for series in self.find(name, &[]) {
            let Some(key) = series.label(label) else {
                continue;
            };
            match totals.iter_mut().find(|(other, _)| other == key) {
                Some((_, total)) => *total += series.value,
                None => totals.push((key.to_owned(), series.value)),
            }
        }
        totals
    }

    /// A histogram, added up over all label sets that carry these labels.
    pub fn buckets(&self, name: &str, labels: &[(&str, &str)]) -> Buckets {
        let mut cumulative: Vec<(f64, f64)> = Vec::new();
        for series in self.find(&format!("{name}_bucket"), labels) {
            let Some(bound) = series.label("le").and_then(parse_value) else {
                continue;
            };
            match cumulative.iter_mut().find(|(other, _)| *other == bound) {
                Some((_, count)) => *count += series.value,
                None => cumulative.push((bound, series.value)),
            }
        }
        cumulative.sort_by(|a, b| a.0.total_cmp(&b.0));
        Buckets {
            cumulative,
            sum: self.sum(&format!("{name}_sum"), labels).unwrap_or_default(),
        }
    }

    /// The value of a label of the only series of this name.
    pub fn label(&self, name: &str, label: &str) -> Option<String> {
        self.find(name, &[]).next()?.label(label).map(str::to_owned)
    }

    fn find<'a>(
        &'a self,
        name: &'a str,
        labels: &'a [(&'a str, &'a str)],
    ) -> impl Iterator<Item = &'a Series> {
        let carries = move |series: &&Series| {
            series.name == name
                && labels
                    .iter()
                    .all(|(key, value)| series.label(key) == Some(value))
        };
        self.series.iter().filter(carries)
    }
}

impl Series {
    fn label(&self, name: &str) -> Option<&str> {
        self.labels
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }
}

impl Buckets {
    /// What came in since an earlier snapshot of the same histogram.
    pub fn since(&self, earlier: &Buckets) -> Buckets {
        let before = |bound: f64| {
            earlier
                .cumulative
                .iter()
                .find(|(other, _)| *other == bound)
                .map_or(0.0, |b| b.1)
        };
        let cumulative = self
            .cumulative
            .iter()
            .map(|&(bound, count)| (bound, (count - before(bound)).max(0.0)));
        Buckets {
            cumulative: cumulative.collect(),
            sum: self.sum - earlier.sum,
        }
    }

    /// Number of values.
    pub fn count(&self) -> f64 {
        self.cumulative.last().map_or(0.0, |&(_, count)| count)
    }

    /// Mean; `None` if there is no value.
    pub fn mean(&self) -> Option<f64> {
        (self.count() > 0.0).then(|| self.sum / self.count())
    }

    /// The value at a quantile from 0 to 1, interpolated inside its bucket; the last finite bound if it lies beyond that.
    /// `None` if there is no value.
    pub fn quantile(&self, quantile: f64) -> Option<f64> {
        let rank = quantile * self.count();
        let index = self
            .cumulative
            .iter()
            .position(|&(_, count)| count >= rank && count > 0.0)?;
        let (upper, upto) = self.cumulative[index];
        let (lower, before) = if index == 0 {
            (0.0, 0.0)
        } else {
            self.cumulative[index - 1]
        };
        if upper.is_infinite() {
            return Some(lower);
        }
        let inside = if upto > before {
            ((rank - before) / (upto - before)).clamp(0.0, 1.0)
        } else {
            1.0
        };
        Some(lower + (upper - lower) * inside)
    }
}

fn parse_line(line: &str) -> Option<Series> {
    let name_end = line.find(['{', ' ', '\t'])?;
    let (name, rest) = line.split_at(name_end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => parse_labels(rest)?,
        None => (Vec::new(), rest),
    };
    // A timestamp may follow the value.
    let value = parse_value(rest.split_whitespace().next()?)?;
    Some(Series {
        name: name.to_owned(),
        labels,
        value,
    })
}

fn parse_value(text: &str) -> Option<f64> {
    match text {
        "+Inf" | "Inf" => Some(f64::INFINITY),
        "-Inf" => Some(f64::NEG_INFINITY),
        _ => text.parse().ok(),
    }
}

type Labels = Vec<(String, String)>;

/// Reads labels up to and with the closing brace; returns them and what follows.
fn parse_labels(mut rest: &str) -> Option<(Labels, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (key, after) = rest.split_once("=\"")?;
        let (value, after) = parse_quoted(after)?;
        labels.push((key.trim().to_owned(), value));
        rest = after;
    }
}

/// Reads up to the closing quote, undoing `\\`, `\"` and `\n`.
fn parse_quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = r#"
# HELP funicular_batch_size Tickets in a batch.
# TYPE funicular_batch_size histogram
funicular_batch_size_bucket{le="10"} 5
funicular_batch_size_bucket{le="100"} 25
funicular_batch_size_bucket{le="+Inf"} 25
funicular_batch_size_sum 1500
funicular_batch_size_count 25
gap_bucket{gpu="0",le="0.1"} 1
gap_bucket{gpu="0",le="+Inf"} 2
gap_bucket{gpu="1",le="0.1"} 3
gap_bucket{gpu="1",le="+Inf"} 3
up{gpu="0"} 1
up{gpu="1"} 0
odd{text="a\"b\\c\n}, d=\"",} 2.5 1395066363000
no_value
zone 1
nan NaN
"#;

    #[test]
    fn a_page_is_read() {
        let page = Snapshot::parse(PAGE);
        assert_eq!(page.sum("zone", &[]), Some(1.0));
        assert_eq!(page.sum("up", &[]), Some(1.0));
        assert_eq!(page.sum("up", &[("gpu", "1")]), Some(0.0));
        assert_eq!(page.sum("no_value", &[]), None);
        assert_eq!(
            page.label("odd", "text").as_deref(),
            Some("a\"b\\c\n}, d=\"")
        );
        assert_eq!(page.sum("odd", &[]), Some(2.5));
        assert_eq!(
            page.by_label("up", "gpu"),
            [("0".into(), 1.0), ("1".into(), 0.0)]
        );
        assert!(Snapshot::parse("<html>").is_empty());
    }

    #[test]
    fn histograms_add_up_and_subtract() {
        let page = Snapshot::parse(PAGE);
        assert_eq!(
            page.buckets("gap", &[]).cumulative,
            [(0.1, 4.0), (f64::INFINITY, 5.0)]
        );
        let sizes = page.buckets("funicular_batch_size", &[]);
        assert_eq!((sizes.count(), sizes.mean()), (25.0, Some(60.0)));
        assert_eq!(sizes.quantile(0.2), Some(10.0));
        assert_eq!(sizes.quantile(0.6), Some(55.0));
        assert_eq!(sizes.quantile(1.0), Some(100.0));
        assert_eq!(
            page.buckets("gap", &[]).quantile(1.0),
            Some(0.1),
            "beyond the last finite bound"
        );
        assert_eq!(sizes.since(&sizes).count(), 0.0);
        assert_eq!(sizes.since(&sizes).quantile(0.5), None);
        assert_eq!(page.buckets("missing", &[]).mean(), None);
    }
}

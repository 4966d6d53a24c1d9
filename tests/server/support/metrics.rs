//! The metrics as a scraper reads them.

/// One reading of the metrics.
pub struct Metrics(String);

impl Metrics {
    /// What a scrape has given.
    pub fn new(text: String) -> Metrics {
        Metrics(text)
    }

    /// The sum of all series of `name` whose labels contain `labels`; 0 if there is none.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.series(name, labels).map(|(_, value)| value).sum()
    }

    /// The text of those series and their values.
    pub fn series<'a>(
        &'a self,
        name: &'a str,
        labels: &'a [(&'a str, &'a str)],
    ) -> impl Iterator<Item = (&'a str, f64)> {
        self.0.lines().filter_map(move |line| {
            let rest = line.strip_prefix(name)?;
            let (series, value) = rest.rsplit_once(' ')?;
            let is_this_name = series.is_empty() || series.starts_with('{');
            let has_labels = labels.iter().all(|(label, wanted)| {
                let pair = format!("{label}=\"{wanted}\"");
                series
                    .match_indices(&pair)
                    .any(|(at, _)| matches!(series.as_bytes()[at - 1], b'{' | b','))
            });
            (is_this_name && has_labels).then(|| (series, value.parse().expect("a number")))
        })
    }

    /// The whole text.
    pub fn text(&self) -> &str {
        &self.0
    }
}

//! Families, metrics and labels in the data model of the `prometheus` crate, and from there to text.

use prometheus::proto::{self, MetricType};

use crate::metrics::names::{Family, Kind};
use crate::metrics::record::Reading;

/// The families of one rendering, in order.
#[derive(Default)]
pub(super) struct Page(Vec<proto::MetricFamily>);

impl Page {
    /// Adds a family; one without a metric is left out, as the format has no empty ones.
    pub(super) fn push(&mut self, family: &Family, metrics: Vec<proto::Metric>) {
        if metrics.is_empty() {
            return;
        }
        let mut exposed = proto::MetricFamily::default();
        exposed.set_name(family.name.to_owned());
        exposed.set_help(family.help.to_owned());
        exposed.set_field_type(match family.kind {
            Kind::Counter => MetricType::COUNTER,
            Kind::Gauge => MetricType::GAUGE,
            Kind::Histogram => MetricType::HISTOGRAM,
        });
        exposed.set_metric(metrics);
        self.0.push(exposed);
    }

    /// Adds families that others have made.
    pub(super) fn extend(&mut self, families: Vec<proto::MetricFamily>) {
        self.0.extend(families);
    }

    /// The text format.
    pub(super) fn into_text(self) -> prometheus::Result<String> {
        let mut text = String::with_capacity(128 * 1024);
        prometheus::TextEncoder::new().encode_utf8(&self.0, &mut text)?;
        Ok(text)
    }

    /// Adds a counter without labels.
    pub(super) fn count(&mut self, family: &Family, value: u64) {
        self.push(family, vec![counter(family, &[], value as f64)]);
    }

    /// Adds a gauge without labels.
    pub(super) fn set(&mut self, family: &Family, value: f64) {
        self.push(family, vec![gauge(family, &[], value)]);
    }
}

fn labelled(family: &Family, values: &[&str]) -> proto::Metric {
    debug_assert_eq!(family.labels.len(), values.len(), "{}", family.name);
    let pairs = family.labels.iter().zip(values).map(|(name, value)| {
        let mut pair = proto::LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    });
    proto::Metric::from_label(pairs.collect())
}

/// One counter of a family, with its label values in the order of the family's label names.
pub(super) fn counter(family: &Family, values: &[&str], count: f64) -> proto::Metric {
    let mut metric = labelled(family, values);
    let mut value = proto::Counter::default();
    value.set_value(count);
    metric.set_counter(value);
    metric
}

/// One gauge of a family.
pub(super) fn gauge(family: &Family, values: &[&str], level: f64) -> proto::Metric {
    let mut metric = labelled(family, values);
    let mut value = proto::Gauge::default();
    value.set_value(level);
    metric.set_gauge(value);
    metric
}

/// One histogram of a family; `scale` is how many of the recorded units make one of the exposed ones.
pub(super) fn histogram(
    family: &Family,
    values: &[&str],
    reading: &Reading,
    scale: f64,
) -> proto::Metric {
    let mut cumulative = 0;
    let buckets = reading
        .bounds
        .iter()
        .zip(&reading.counts)
        .map(|(&bound, count)| {
            cumulative += count;
            let mut bucket = proto::Bucket::default();
            bucket.set_upper_bound(bound as f64 / scale);
            bucket.set_cumulative_count(cumulative);
            bucket
        });
    let mut value = proto::Histogram::default();
    value.set_bucket(buckets.collect());
    value.set_sample_count(reading.counts.iter().sum());
    value.set_sample_sum(reading.sum as f64 / scale);
    let mut metric = labelled(family, values);
    metric.set_histogram(value);
    metric
}

//! A set of latencies: an HDR histogram with the exact mean, smallest and largest value beside it.
//!
//! Every generator thread fills its own; merging adds counts bucket by bucket, so nothing is lost that one histogram
//! would have kept. Values are nanoseconds from 0 to an hour with three significant digits: a percentile is at most 0.1 % (or
//! half a microsecond) off the raw value.

use hdrhistogram::Histogram;

use crate::clock::{SECOND, millis};
use crate::result::{CurvePoint, LatencySummary, LatencyView};

/// Values below are not told apart: 1 µs.
const LOWEST_NS: u64 = 1_000;
/// Values above count as this: an hour.
const HIGHEST_NS: u64 = 3600 * SECOND;
const SIGNIFICANT_DIGITS: u8 = 3;
/// Points of a curve for each halving of the distance to 100 %.
const CURVE_TICKS_PER_HALF: u32 = 10;

/// A set of latencies.
#[derive(Clone, Debug, PartialEq)]
pub struct Latencies {
    histogram: Histogram<u64>,
    sum_ns: u128,
    min_ns: u64,
    max_ns: u64,
}

impl Default for Latencies {
    fn default() -> Latencies {
        let histogram = Histogram::new_with_bounds(LOWEST_NS, HIGHEST_NS, SIGNIFICANT_DIGITS)
            .expect("the bounds are constants that the histogram takes");
        Latencies {
            histogram,
            sum_ns: 0,
            min_ns: u64::MAX,
            max_ns: 0,
        }
    }
}

impl Latencies {
    /// Adds one value in nanoseconds.
    pub fn record(&mut self, nanos: u64) {
        self.histogram.saturating_record(nanos);
        self.sum_ns += u128::from(nanos);
        self.min_ns = self.min_ns.min(nanos);
        self.max_ns = self.max_ns.max(nanos);
    }

    /// Adds all values of another set.
    pub fn merge(&mut self, other: &Latencies) {
        self.histogram
            .add(&other.histogram)
            .expect("both have the same bounds");
        self.sum_ns += other.sum_ns;
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// True if there is no value.
    pub fn is_empty(&self) -> bool {
        self.histogram.is_empty()
    }

    /// Number of values above `nanos`, as exactly as the histogram tells them apart.
    pub fn count_above(&self, nanos: u64) -> u64 {
        self.histogram
            .count_between(nanos.saturating_add(1).min(HIGHEST_NS), HIGHEST_NS)
    }

    /// Mean in nanoseconds; 0 if there is no value.
    pub fn mean_ns(&self) -> f64 {
        if self.is_empty() {
            0.0
        } else {
            self.sum_ns as f64 / self.count() as f64
        }
    }

    /// Smallest value in nanoseconds; 0 if there is none.
    pub fn min_ns(&self) -> u64 {
        if self.is_empty() { 0 } else { self.min_ns }
    }

    /// Largest value in nanoseconds; 0 if there is none.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The value that `percentile` (0 to 100) percent of all values do not exceed, in nanoseconds; 0 if there is none.
    pub fn percentile_ns(&self, percentile: f64) -> u64 {
        if self.is_empty() {
            return 0;
        }
        self.histogram
            .value_at_percentile(percentile)
            .clamp(self.min_ns, self.max_ns)
    }

    /// The underlying histogram, for the HdrHistogram formats.
    pub fn histogram(&self) -> &Histogram<u64> {
        &self.histogram
    }

    /// The usual percentiles.
    pub fn summary(&self) -> LatencySummary {
        let percentile = |percentile| millis(self.percentile_ns(percentile));
        LatencySummary {
            count: self.count(),
            mean_ms: self.mean_ns() / 1e6,
            min_ms: millis(self.min_ns()),
            p50_ms: percentile(50.0),
            p75_ms: percentile(75.0),
            p90_ms: percentile(90.0),
            p95_ms: percentile(95.0),
            p99_ms: percentile(99.0),
            p999_ms: percentile(99.9),
            max_ms: millis(self.max_ns()),
        }
    }

    /// Points of the percentile curve, ascending; the last one is 100 %.
    pub fn curve(&self) -> Vec<CurvePoint> {
        let mut count = 0;
        let mut points = Vec::new();
        for step in self.histogram.iter_quantiles(CURVE_TICKS_PER_HALF) {
            count += step.count_since_last_iteration();
            points.push(CurvePoint {
                value_ms: millis(step.value_iterated_to().clamp(self.min_ns, self.max_ns)),
                percentile: step.quantile_iterated_to() * 100.0,
                count,
            });
        }
        points
    }

    /// Summary and curve.
    pub fn view(&self) -> LatencyView {
        LatencyView {
            summary: self.summary(),
            curve: self.curve(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn collect(values: &[u64]) -> Latencies {
        let mut latencies = Latencies::default();
        values.iter().for_each(|&value| latencies.record(value));
        latencies
    }

    #[test]
    fn an_empty_set_is_all_zeros() {
        assert_eq!(Latencies::default().summary(), LatencySummary::default());
        assert!(Latencies::default().curve().is_empty());
    }

    #[test]
    fn the_largest_value_is_exact_even_beyond_the_range() {
        let latencies = collect(&[123_456_789, 2 * HIGHEST_NS]);
        assert_eq!(latencies.max_ns(), 2 * HIGHEST_NS);
        assert_eq!(latencies.min_ns(), 123_456_789);
        assert_eq!(latencies.count(), 2);
    }

    fn any_latency() -> impl Strategy<Value = u64> {
        prop_oneof![
            0u64..10_000,
            0u64..20_000_000,
            90_000_000u64..130_000_000,
            0u64..60_000_000_000
        ]
    }

    proptest! {
        #[test]
        fn percentiles_agree_with_the_sorted_values(
            mut values in prop::collection::vec(any_latency(), 1..400),
            percentile in 0.0f64..=100.0,
        ) {
            let latencies = collect(&values);
            values.sort_unstable();
            for percentile in [percentile, 50.0, 95.0, 99.0, 99.9, 100.0] {
                let rank = ((percentile / 100.0 * values.len() as f64).ceil() as usize).clamp(1, values.len());
                let (exact, found) = (values[rank - 1], latencies.percentile_ns(percentile));
                prop_assert!(found.abs_diff(exact) <= exact / 1000 + LOWEST_NS, "{percentile} %: {found} for {exact}");
            }
            let mean = values.iter().sum::<u64>() as f64 / values.len() as f64;
            prop_assert!((latencies.mean_ns() - mean).abs() <= mean * 1e-9);
            prop_assert_eq!(latencies.max_ns(), values[values.len() - 1]);
        }

        #[test]
        fn merging_loses_nothing(
            values in prop::collection::vec(any_latency(), 0..400),
            threads in 1usize..8,
        ) {
            let mut merged = Latencies::default();
            for thread in 0..threads {
                let part: Vec<u64> = values.iter().copied().skip(thread).step_by(threads).collect();
                merged.merge(&collect(&part));
            }
            prop_assert_eq!(merged, collect(&values));
        }

        #[test]
        fn a_curve_ascends_to_the_maximum(values in prop::collection::vec(any_latency(), 1..400)) {
            let latencies = collect(&values);
            let curve = latencies.curve();
            for pair in curve.windows(2) {
                prop_assert!(pair[0].percentile <= pair[1].percentile && pair[0].value_ms <= pair[1].value_ms);
            }
            let last = curve[curve.len() - 1];
            prop_assert_eq!((last.percentile, last.count), (100.0, values.len() as u64));
            prop_assert_eq!(last.value_ms, millis(latencies.max_ns()));
        }
    }
}

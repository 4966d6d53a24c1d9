//! Axes: from a value to a place on paper, and which values deserve a tick.
//!
//! Three kinds: linear, logarithmic, and the "nines" of latency plots, where 90, 99, 99.9 % are evenly spaced, because the
//! tail is what matters and would otherwise vanish in the last pixel. Pure functions of numbers.

use super::number;

/// A value marked on an axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Tick {
    /// Where, in the axis' own unit.
    pub value: f64,
    /// What is written beside it.
    pub label: String,
    /// Lower wins when two labels don't fit side by side.
    pub rank: u8,
}

/// How values are laid out along an axis.
#[derive(Debug, Clone, PartialEq)]
pub enum Scale {
    /// Evenly, from the first value to the second.
    Linear(f64, f64),
    /// Evenly in the logarithm; both ends above zero.
    Log(f64, f64),
    /// Percentiles from 0 to 100 − 10^(2 − nines): `Nines(3.0)` ends at 99.9.
    Nines(f64),
}

impl Scale {
    /// Where `value` lies, as a fraction of the axis; outside values are clamped to its ends.
    pub fn at(&self, value: f64) -> f64 {
        let fraction = match *self {
            Self::Linear(from, to) => (value - from) / (to - from),
            Self::Log(from, to) => (value.max(from) / from).ln() / (to / from).ln(),
            Self::Nines(nines) => nines_of(value) / nines,
        };
        if fraction.is_nan() {
            0.0
        } else {
            fraction.clamp(0.0, 1.0)
        }
    }
}

/// An axis of amounts: linear from zero, or logarithmic where the values span too much for that.
///
/// `values` may hold NaN, which is passed over. The end is a round number at or above the largest value.
pub fn amounts(values: impl IntoIterator<Item = f64>, wanted: usize) -> (Scale, Vec<Tick>) {
    let largest = values
        .into_iter()
        .filter(|v| v.is_finite())
        .fold(0.0, f64::max);
    let largest = if largest > 0.0 { largest } else { 1.0 };
    let step = round_step(largest / wanted.max(1) as f64);
    let steps = (largest / step - 1e-9).ceil().max(1.0);
    let ticks = (0..=steps as usize)
        .map(|i| tick(i as f64 * step, 0))
        .collect();
    (Scale::Linear(0.0, steps * step), ticks)
}

/// A logarithmic axis over the positive values, with ticks at 1, 2 and 5 in each decade.
pub fn decades(values: impl IntoIterator<Item = f64>) -> (Scale, Vec<Tick>) {
    let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
    for v in values.into_iter().filter(|v| v.is_finite() && *v > 0.0) {
        low = low.min(v);
        high = high.max(v);
    }
    if low > high {
        (low, high) = (1.0, 10.0);
    }
    let stops: Vec<(f64, u8)> = (low.log10().floor() as i32..=high.log10().ceil() as i32)
        .flat_map(|exponent| {
            [(1.0, 0), (2.0, 1), (5.0, 1)].map(|(m, rank)| (m * 10_f64.powi(exponent), rank))
        })
        .collect();
    let from = stops
        .iter()
        .rev()
        .find(|s| s.0 <= low * 1.000_001)
        .map_or(low, |s| s.0);
    let to = stops
        .iter()
        .find(|s| s.0 >= high * 0.999_999 && s.0 > from)
        .map_or(high, |s| s.0);
    let ticks = stops
        .into_iter()
        .filter(|s| s.0 >= from && s.0 <= to)
        .map(|(value, rank)| tick(value, rank))
        .collect();
    (Scale::Log(from, to), ticks)
}

/// Linear from zero, unless the largest value is over `spread` times the smallest: then logarithmic.
///
/// Zeros and NaN don't count as the smallest.
pub fn amounts_or_decades(values: &[f64], spread: f64, wanted: usize) -> (Scale, Vec<Tick>) {
    let positive = || values.iter().copied().filter(|v| v.is_finite() && *v > 0.0);
    let low = positive().fold(f64::INFINITY, f64::min);
    let high = positive().fold(0.0, f64::max);
    if high > low * spread {
        decades(values.iter().copied())
    } else {
        amounts(values.iter().copied(), wanted)
    }
}

/// The percentile axis for a histogram of `samples` values: one value is the last that can be told apart.
pub fn nines(samples: u64) -> (Scale, Vec<Tick>) {
    let nines = (samples.max(1) as f64).log10().ceil().clamp(2.0, 6.0);
    let mut ticks = vec![
        Tick {
            value: 0.0,
            label: "0 %".to_owned(),
            rank: 3,
        },
        Tick {
            value: 50.0,
            label: "50 %".to_owned(),
            rank: 1,
        },
        Tick {
            value: 75.0,
            label: "75 %".to_owned(),
            rank: 4,
        },
        Tick {
            value: 90.0,
            label: "90 %".to_owned(),
            rank: 0,
        },
        Tick {
            value: 95.0,
            label: "95 %".to_owned(),
            rank: 2,
        },
    ];
    for n in 2..=nines as usize {
        let label = if n == 2 {
            "99 %".to_owned()
        } else {
            format!("99.{} %", "9".repeat(n - 2))
        };
        ticks.push(Tick {
            value: 100.0 - 10_f64.powi(2 - n as i32),
            label,
            rank: 0,
        });
    }
    (Scale::Nines(nines), ticks)
}

/// The time axis of a run of `seconds`: seconds, or minutes and seconds for longer runs.
pub fn run_time(seconds: f64, wanted: usize) -> (Scale, Vec<Tick>) {
    const STEPS: [f64; 15] = [
        1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0,
        14400.0,
    ];
    let end = if seconds.is_finite() {
        seconds.max(1.0)
    } else {
        1.0
    };
    let ideal = end / wanted.max(1) as f64;
    let step = STEPS.into_iter().find(|s| *s >= ideal).unwrap_or(ideal);
    let ticks = (0..=(end / step + 1e-9) as usize)
        .map(|i| i as f64 * step)
        .map(|value| Tick {
            value,
            label: clock_label(value, end),
            rank: 0,
        })
        .collect();
    (Scale::Linear(0.0, end), ticks)
}

/// The unit that belongs into a time axis' title.
pub fn run_time_unit(seconds: f64) -> &'static str {
    if seconds > 180.0 { "min:s" } else { "s" }
}

fn clock_label(value: f64, end: f64) -> String {
    let whole = value.round() as u64;
    if run_time_unit(end) == "s" {
        whole.to_string()
    } else {
        format!("{}:{:02}", whole / 60, whole % 60)
    }
}

/// How many nines a percentile has: 90 → 1, 99 → 2, 99.9 → 3.
fn nines_of(percentile: f64) -> f64 {
    let outside = 1.0 - percentile / 100.0;
    if outside <= 0.0 {
        f64::INFINITY
    } else {
        -outside.log10()
    }
}

fn tick(value: f64, rank: u8) -> Tick {
    Tick {
        value,
        label: number::short(value),
        rank,
    }
}

/// The smallest of 1, 2, 5 times a power of ten that is at least `ideal`.
fn round_step(ideal: f64) -> f64 {
    let power = 10_f64.powf(ideal.log10().floor());
    [1.0, 2.0, 5.0]
        .into_iter()
        .map(|m| m * power)
        .find(|s| *s >= ideal * (1.0 - 1e-9))
        .unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn labels(ticks: &[Tick]) -> Vec<&str> {
        ticks.iter().map(|t| t.label.as_str()).collect()
    }

    #[test]
    fn linear_ticks_are_round_and_cover_the_data() {
        let (scale, ticks) = amounts([3.0, f64::NAN, 187.0], 5);
        assert_eq!(labels(&ticks), ["0", "50", "100", "150", "200"]);
        assert_eq!(scale, Scale::Linear(0.0, 200.0));
        assert_eq!(labels(&amounts([], 4).1), ["0", "0.5", "1"]);
    }

    #[test]
    fn log_ticks_are_one_two_five() {
        let (scale, ticks) = decades([0.7, 40.0]);
        assert_eq!(labels(&ticks), ["0.5", "1", "2", "5", "10", "20", "50"]);
        assert!((scale.at(5.0) - 0.5).abs() < 1e-9);
        assert_eq!(scale.at(0.0), 0.0);
    }

    #[test]
    fn wide_spreads_go_logarithmic() {
        assert!(matches!(
            amounts_or_decades(&[100.0, 300.0], 20.0, 5).0,
            Scale::Linear(..)
        ));
        assert!(matches!(
            amounts_or_decades(&[1.0, 900.0], 20.0, 5).0,
            Scale::Log(..)
        ));
        assert!(matches!(
            amounts_or_decades(&[], 20.0, 5).0,
            Scale::Linear(..)
        ));
    }

    #[test]
    fn nines_are_evenly_spaced() {
        let (scale, ticks) = nines(10_000);
        assert_eq!(
            labels(&ticks),
            [
                "0 %", "50 %", "75 %", "90 %", "95 %", "99 %", "99.9 %", "99.99 %"
            ]
        );
        for (percentile, at) in [
            (0.0, 0.0),
            (90.0, 0.25),
            (99.0, 0.5),
            (99.9, 0.75),
            (99.99, 1.0),
            (100.0, 1.0),
        ] {
            assert!((scale.at(percentile) - at).abs() < 1e-9, "{percentile}");
        }
    }

    #[test]
    fn time_is_told_in_seconds_then_minutes() {
        assert_eq!(
            labels(&run_time(60.0, 6).1),
            ["0", "10", "20", "30", "40", "50", "60"]
        );
        assert_eq!(
            labels(&run_time(600.0, 5).1),
            ["0:00", "2:00", "4:00", "6:00", "8:00", "10:00"]
        );
        assert_eq!(run_time(0.0, 5).0, Scale::Linear(0.0, 1.0));
    }

    proptest! {
        #[test]
        fn amounts_cover_everything_in_few_steps(values in prop::collection::vec(0.0..1e9_f64, 1..20), wanted in 2..9_usize) {
            let (scale, ticks) = amounts(values.iter().copied(), wanted);
            let Scale::Linear(_, end) = scale else { panic!("not linear") };
            prop_assert!(values.iter().all(|v| *v <= end * (1.0 + 1e-9)));
            prop_assert!(ticks.len() <= wanted + 2);
            prop_assert!(ticks.windows(2).all(|w| w[0].value < w[1].value));
        }

        #[test]
        fn every_scale_is_monotonic_and_stays_on_paper(a in 0.0..100.0_f64, b in 0.0..100.0_f64) {
            for scale in [Scale::Linear(0.0, 80.0), Scale::Log(0.1, 50.0), Scale::Nines(4.0)] {
                let (low, high) = (scale.at(a.min(b)), scale.at(a.max(b)));
                prop_assert!(low <= high && low >= 0.0 && high <= 1.0);
            }
        }

        #[test]
        fn decades_cover_everything(values in prop::collection::vec(1e-6..1e9_f64, 1..20)) {
            let (scale, ticks) = decades(values.iter().copied());
            let Scale::Log(from, to) = scale else { panic!("not logarithmic") };
            prop_assert!(values.iter().all(|v| *v >= from * 0.999 && *v <= to * 1.001));
            prop_assert!(!ticks.is_empty());
        }
    }
}

//! The arrivals of the reference's loads, in milliseconds since the start.

use std::ffi::OsString;
use std::fs;

use crate::support::random::Random;

/// Names a CSV file whose first column is the TIMESTAMP of a recorded request (`2023-11-16 18:15:46.6805900`).
const TRACE: &str = "FUNICULAR_TRACE";

/// How often a recorded trace is played.
const REPEATS: u32 = 2;

/// A Poisson stream of `rate` arrivals per second.
pub fn poisson(rate: u32) -> Vec<f64> {
    let mut random = Random::new(1);
    let count = (rate as usize * 10).clamp(20_000, 100_000);
    let per_ms = f64::from(rate) / 1000.0;
    let mut at = 0.0;
    (0..count)
        .map(|_| {
            at += random.exponential(per_ms);
            at
        })
        .collect()
}

/// Recorded arrivals: milliseconds after the first.
pub struct Trace(Vec<f64>);

impl Trace {
    /// The trace that the environment names. `None`, said aloud, if it names none.
    ///
    /// # Panics
    /// If it names one that can't be read.
    pub fn from_environment() -> Option<Trace> {
        let Some(path) = std::env::var_os(TRACE) else {
            eprintln!(
                "skipped: {TRACE} names no recorded trace (a CSV file with a TIMESTAMP column)"
            );
            return None;
        };
        Some(Trace::read(&path))
    }

    fn read(path: &OsString) -> Trace {
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let stamps: Vec<f64> = text
            .lines()
            .skip(1)
            .map(|line| milliseconds(line).unwrap_or_else(|| panic!("no timestamp in {line:?}")))
            .collect();
        let first = *stamps.first().expect("a trace holds a request");
        Trace(stamps.into_iter().map(|stamp| stamp - first).collect())
    }

    /// The trace, scaled in time to `rate` requests per second and played twice.
    pub fn at_rate(&self, rate: u32) -> Vec<f64> {
        let span = *self.0.last().expect("a trace holds a request");
        let scale = self.0.len() as f64 / span * 1000.0 / f64::from(rate);
        (0..REPEATS)
            .flat_map(|turn| {
                self.0
                    .iter()
                    .map(move |at| (f64::from(turn) * span + at) * scale)
            })
            .collect()
    }
}

/// Milliseconds since the start of the month in `2023-11-16 18:15:46.6805900,…`.
fn milliseconds(line: &str) -> Option<f64> {
    let (date, time) = line.split(',').next()?.split_once(' ')?;
    let day: f64 = date.rsplit('-').next()?.parse().ok()?;
    let seconds = time.split(':').try_fold(0.0, |sum, part| {
        Some(sum * 60.0 + part.parse::<f64>().ok()?)
    })?;
    Some((day * 86_400.0 + seconds) * 1000.0)
}

#[test]
fn a_timestamp_is_read_to_a_fraction_of_a_millisecond() {
    let at = |line| milliseconds(line).expect("a timestamp");
    let span = at("2023-11-17 00:00:01.5000000,1,2") - at("2023-11-16 23:59:59.2500000,374,44");
    assert!((span - 2250.0).abs() < 1e-3, "{span}");
    assert!(milliseconds("TIMESTAMP,ContextTokens").is_none());
}

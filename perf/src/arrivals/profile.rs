//! A rate over time: points joined by straight lines, and held after the last one.
//!
//! `0:100,30s:10000,60s:10000` climbs from 100 to 10,000 requests a second over 30 s and stays there for 30 more. Two points at
//! the same time make a step: `0:1000,20s:1000,20s:12000,40s:12000`.

use std::fmt;
use std::str::FromStr;

/// A piecewise linear rate.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// (seconds, requests per second); times ascend, rates are finite and not negative, at least one point.
    points: Vec<(f64, f64)>,
}

/// The text is no profile.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ProfileError {
    /// A point does not read `time:rate`.
    #[error("`{0}` is no point of a profile: write TIME:RATE, for example 30s:10000")]
    Point(String),
    /// Times go backwards.
    #[error("the times of a profile must not go backwards (at `{0}`)")]
    Backwards(String),
    /// The first point is not at 0.
    #[error("a profile starts at time 0")]
    Start,
    /// A profile without requests.
    #[error("the profile never sends anything")]
    Empty,
}

impl Profile {
    /// A constant rate in requests per second.
    ///
    /// # Panics
    /// If the rate is not positive and finite.
    pub fn constant(rate: f64) -> Profile {
        assert!(rate.is_finite() && rate > 0.0, "a rate is positive");
        Profile {
            points: vec![(0.0, rate)],
        }
    }

    /// The rate, if it never changes.
    pub fn constant_rate(&self) -> Option<f64> {
        match self.points[..] {
            [(_, rate)] => Some(rate),
            _ => None,
        }
    }

    /// Time of the last point in seconds; `None` for a constant rate, which has no end.
    pub fn end_seconds(&self) -> Option<f64> {
        (self.points.len() > 1).then(|| self.last().0)
    }

    /// Requests due before `seconds`: the integral of the rate.
    pub fn integral(&self, seconds: f64) -> f64 {
        let mut sum = 0.0;
        for pair in self.points.windows(2) {
            let (start, end) = (pair[0], pair[1]);
            if seconds <= start.0 {
                return sum;
            }
            let until = seconds.min(end.0);
            let width = until - start.0;
            sum += width * (start.1 + rate_between(start, end, until)) / 2.0;
        }
        let (time, rate) = self.last();
        sum + (seconds - time).max(0.0) * rate
    }

    /// A cursor that inverts [`Profile::integral`] for ascending positions.
    pub(super) fn cursor(&self) -> Cursor<'_> {
        Cursor {
            points: &self.points,
            segment: 0,
            before: 0.0,
        }
    }

    fn last(&self) -> (f64, f64) {
        *self
            .points
            .last()
            .expect("a profile has at least one point")
    }
}

fn rate_between(start: (f64, f64), end: (f64, f64), at: f64) -> f64 {
    let width = end.0 - start.0;
    if width <= 0.0 {
        end.1
    } else {
        start.1 + (end.1 - start.1) * (at - start.0) / width
    }
}

/// Walks the segments of a profile once, so that a long schedule costs linear time.
pub(super) struct Cursor<'a> {
    points: &'a [(f64, f64)],
    segment: usize,
    /// Integral up to the start of the segment.
    before: f64,
}

impl Cursor<'_> {
    /// The time at which the integral reaches `position`; `None` if it never does. Positions must ascend.
    pub(super) fn time_of(&mut self, position: f64) -> Option<f64> {
        while let Some(&end) = self.points.get(self.segment + 1) {
            let start = self.points[self.segment];
            let area = (end.0 - start.0) * (start.1 + end.1) / 2.0;
            // Arrival 0 of a segment that sends nothing belongs to a later one.
            if area > 0.0 && position < self.before + area {
                return Some(start.0 + time_in_segment(start, end, position - self.before));
            }
            self.before += area;
            self.segment += 1;
        }
        let (time, rate) = self.points[self.segment];
        (rate > 0.0).then(|| time + (position - self.before) / rate)
    }
}

/// Solves `rate₀·t + slope·t²/2 = area` for t, in the form that does not cancel.
fn time_in_segment(start: (f64, f64), end: (f64, f64), area: f64) -> f64 {
    let slope = (end.1 - start.1) / (end.0 - start.0);
    let root = (start.1 * start.1 + 2.0 * slope * area).max(0.0).sqrt();
    let denominator = start.1 + root;
    if denominator <= 0.0 {
        0.0
    } else {
        2.0 * area / denominator
    }
}

impl FromStr for Profile {
    type Err = ProfileError;

    fn from_str(text: &str) -> Result<Profile, ProfileError> {
        let mut points: Vec<(f64, f64)> = Vec::new();
        for part in text.split(',').map(str::trim) {
            let point = parse_point(part).ok_or_else(|| ProfileError::Point(part.to_owned()))?;
            if points.last().is_some_and(|last| point.0 < last.0) {
                return Err(ProfileError::Backwards(part.to_owned()));
            }
            points.push(point);
        }
        if points.first().is_none_or(|first| first.0 != 0.0) {
            return Err(ProfileError::Start);
        }
        if points.iter().all(|point| point.1 == 0.0) {
            return Err(ProfileError::Empty);
        }
        Ok(Profile { points })
    }
}

fn parse_point(text: &str) -> Option<(f64, f64)> {
    let (time, rate) = text.split_once(':')?;
    let rate: f64 = rate.trim().parse().ok()?;
    (rate.is_finite() && rate >= 0.0).then_some((parse_seconds(time.trim())?, rate))
}

/// A bare number is seconds; otherwise as in `1m30s`.
fn parse_seconds(text: &str) -> Option<f64> {
    match text.parse::<f64>() {
        Ok(seconds) => (seconds.is_finite() && seconds >= 0.0).then_some(seconds),
        Err(_) => humantime::parse_duration(text)
            .ok()
            .map(|duration| duration.as_secs_f64()),
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (time, rate)) in self.points.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{time}s:{rate}")?;
        }
        Ok(())
    }
}

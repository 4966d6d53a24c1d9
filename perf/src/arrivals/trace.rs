//! Recorded arrivals.
//!
//! Two formats, told apart line by line: the first field of a comma-separated line, or the whole line, is either a number of
//! seconds or a date and time (`2023-11-16 18:15:46.6805900`, also with a `T` and a `Z`). A first line that is neither is taken
//! for a heading; so the public Azure traces and a plain file with one timestamp a line both read as they are.

use std::path::Path;

use super::{SCHEDULE_MAX, TooLong};
use crate::clock::SECOND;

/// Arrivals in seconds after the first one.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    name: String,
    /// Ascending, the first is 0; at least two, not all at once.
    seconds: Vec<f64>,
}

/// The file holds no trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file can't be read.
    #[error("cannot read the trace {path}")]
    Io {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// A line is no timestamp.
    #[error("line {line} of the trace starts with `{text}`: neither seconds nor a date and time")]
    Line {
        /// Line number from 1.
        line: usize,
        /// What stood there.
        text: String,
    },
    /// A time before the one above it.
    #[error(
        "line {line} of the trace (`{text}`) is earlier than the one before it: arrivals come in order, so sort the file first"
    )]
    Backwards {
        /// Line number from 1.
        line: usize,
        /// What stood there.
        text: String,
    },
    /// Fewer than two distinct times.
    #[error("a trace needs at least two different timestamps")]
    TooShort,
}

impl Trace {
    /// Reads a trace file.
    ///
    /// # Errors
    /// If it can't be read, or holds a line that is no timestamp or earlier than the one before, or fewer than two distinct
    /// times.
    pub fn read(path: &Path) -> Result<Trace, TraceError> {
        let text = std::fs::read_to_string(path).map_err(|source| TraceError::Io {
            path: path.display().to_string(),
            source,
        })?;
        let name = path
            .file_name()
            .unwrap_or(path.as_os_str())
            .to_string_lossy();
        Trace::parse(&name, &text)
    }

    /// Reads a trace from text; `name` is what reports call it.
    ///
    /// # Errors
    /// As [`Trace::read`].
    pub fn parse(name: &str, text: &str) -> Result<Trace, TraceError> {
        let mut seconds: Vec<f64> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let field = line
                .split(',')
                .next()
                .unwrap_or_default()
                .trim()
                .trim_matches('"');
            if field.is_empty() || field.starts_with('#') {
                continue;
            }
            match parse_timestamp(field) {
                Some(value) if seconds.last().is_some_and(|&last| value < last) => {
                    return Err(TraceError::Backwards {
                        line: index + 1,
                        text: field.to_owned(),
                    });
                }
                Some(value) => seconds.push(value),
                None if index == 0 => {}
                None => {
                    return Err(TraceError::Line {
                        line: index + 1,
                        text: field.to_owned(),
                    });
                }
            }
        }
        let first = seconds.first().copied().unwrap_or_default();
        seconds.iter_mut().for_each(|value| *value -= first);
        if seconds.last().is_none_or(|&last| last <= 0.0) {
            return Err(TraceError::TooShort);
        }
        Ok(Trace {
            name: name.to_owned(),
            seconds,
        })
    }

    /// What reports call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Mean rate of the recording in requests per second.
    pub fn native_rate(&self) -> f64 {
        (self.seconds.len() - 1) as f64 / self.span()
    }

    /// Length in seconds when played at a mean rate (`None`: as recorded), one mean gap after the last arrival included.
    pub fn seconds_at(&self, rate: Option<f64>) -> f64 {
        self.seconds.len() as f64 / rate.unwrap_or(self.native_rate())
    }

    /// The schedule; a trace that is shorter than the run starts over, one mean gap after its last arrival.
    pub(super) fn schedule(
        &self,
        rate: Option<f64>,
        duration_ns: u64,
    ) -> Result<Vec<u64>, TooLong> {
        let scale = self.native_rate() / rate.unwrap_or(self.native_rate());
        let period = self.seconds_at(rate);
        let mut schedule = Vec::new();
        for round in 0u64.. {
            let offset = round as f64 * period;
            for &at in &self.seconds {
                let nanos = ((offset + at * scale) * SECOND as f64) as u64;
                if nanos >= duration_ns {
                    return Ok(schedule);
                }
                if schedule.len() == SCHEDULE_MAX {
                    return Err(TooLong);
                }
                schedule.push(nanos);
            }
        }
        Ok(schedule)
    }

    fn span(&self) -> f64 {
        self.seconds.last().copied().unwrap_or_default()
    }
}

fn parse_timestamp(text: &str) -> Option<f64> {
    match text.parse::<f64>() {
        Ok(seconds) => seconds.is_finite().then_some(seconds),
        Err(_) => parse_date_time(text),
    }
}

/// `YYYY-MM-DD hh:mm:ss[.fraction]` as seconds since 1970, without regard to zones: only differences matter.
fn parse_date_time(text: &str) -> Option<f64> {
    let text = text.trim_end_matches('Z').trim_end_matches("+00:00");
    let (date, time) = text.split_once([' ', 'T'])?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let mut time = time.splitn(3, ':');
    let hour: f64 = time.next()?.parse().ok()?;
    let minute: f64 = time.next()?.parse().ok()?;
    let second: f64 = time.next()?.parse().ok()?;
    let in_range = (1..=12).contains(&month) && (1..=31).contains(&day) && year.abs() < 100_000;
    let seconds = hour * 3600.0 + minute * 60.0 + second;
    (in_range && (0.0..=90_000.0).contains(&seconds))
        .then(|| days_from_civil(year, month, day) as f64 * 86_400.0 + seconds)
}

/// Days since 1970-01-01 in the Gregorian calendar; the year is taken to begin in March, so that the leap day is its last.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    year * 365 + leap_days + day_of_year - 719_468
}

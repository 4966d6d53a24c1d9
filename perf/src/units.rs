//! Values as people write them, on the command line and in scenario files alike: `250ms`, `1m30s`, `1%`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Deserialize, Deserializer, Visitor};

/// A time: `250ms`, `2s`, `1m30s`; a bare number is seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span(pub Duration);

/// A share from 0 to 1, written as a percentage: `1%`. A bare number is refused, because `1` may mean all or one in a
/// hundred; only `0` is the same either way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share(pub f64);

/// The text is no such value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// Not a time.
    #[error("`{0}` is no time: write 250ms, 2s or 1m30s")]
    Span(String),
    /// Not a share.
    #[error("`{0}` is no share: write a percentage from 0% to 100%, as in 1%")]
    Share(String),
    /// Not a rate.
    #[error("`{0}` is no rate: write requests per second, as in 700")]
    Rate(String),
    /// Not a whole number, or too large a one.
    #[error("`{0}` is no whole number: write digits alone, as in 3000")]
    Whole(String),
}

impl FromStr for Span {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Span, UnitError> {
        let text = text.trim();
        let parsed = match text.parse::<f64>() {
            Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
            Err(_) => humantime::parse_duration(text).ok(),
        };
        parsed
            .map(Span)
            .ok_or_else(|| UnitError::Span(text.to_owned()))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", humantime::format_duration(self.0))
    }
}

impl FromStr for Share {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Share, UnitError> {
        let text = text.trim();
        let share = match text.strip_suffix('%') {
            Some(percent) => percent.trim().parse::<f64>().ok().map(|p| p / 100.0),
            None => text.parse::<f64>().ok().filter(|number| *number == 0.0),
        };
        share
            .filter(|share| (0.0..=1.0).contains(share))
            .map(Share)
            .ok_or_else(|| UnitError::Share(text.to_owned()))
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0 * 100.0)
    }
}

/// Reads a rate in requests per second, for the command line.
///
/// # Errors
/// If it is no number. Whether it makes sense is checked with the other options.
pub fn rate(text: &str) -> Result<f64, UnitError> {
    let number = text.trim().parse::<f64>();
    number.map_err(|_| UnitError::Rate(text.to_owned()))
}

/// Reads a whole number, for the command line.
///
/// # Errors
/// If it is none, or larger than a `T`.
pub fn whole<T: FromStr>(text: &str) -> Result<T, UnitError> {
    let number = text.trim().parse::<T>();
    number.map_err(|_| UnitError::Whole(text.to_owned()))
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Span, D::Error> {
        deserializer.deserialize_any(Text("a time such as \"250ms\"", FromStr::from_str))
    }
}

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Share, D::Error> {
        deserializer.deserialize_any(Text("a share such as \"1%\"", FromStr::from_str))
    }
}

/// Takes a string or a number and parses it as the command line would.
struct Text<T>(&'static str, fn(&str) -> Result<T, UnitError>);

impl<T> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.1)(text).map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_shares_read_as_written() {
        assert_eq!("250ms".parse(), Ok(Span(Duration::from_millis(250))));
        assert_eq!("1m30s".parse(), Ok(Span(Duration::from_secs(90))));
        assert_eq!("2.5".parse(), Ok(Span(Duration::from_millis(2500))));
        assert_eq!("1%".parse(), Ok(Share(0.01)));
        assert_eq!("25 %".parse(), Ok(Share(0.25)));
        assert_eq!("0".parse(), Ok(Share(0.0)));
        for text in ["", "-1", "fast", "nan", "1e30"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
        for text in ["", "101%", "-1%", "nan", "2", "1", "0.25"] {
            assert!(text.parse::<Share>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_no_number_is_told_what_to_write() {
        assert_eq!(rate("1e3"), Ok(1000.0));
        assert_eq!(whole::<u32>("12"), Ok(12));
        let wrong = rate("abc").expect_err("no rate");
        assert!(wrong.to_string().contains("requests per second"), "{wrong}");
        for text in ["3,000", "-1", "4294967296", ""] {
            assert!(whole::<u32>(text).is_err(), "{text}");
        }
    }
}

//! Values as people write them, on the command line and in scenario files alike: `250ms`, `1m30s`, `1%`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Deserialize, Deserializer, Visitor};

/// A time: `250ms`, `2s`, `1m30s`; a bare number is seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span(pub Duration);

/// A share from 0 to 1: `1%`, `0.01`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share(pub f64);

/// The text is no such value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// Not a time.
    #[error("`{0}` is no time: write 250ms, 2s or 1m30s")]
    Span(String),
    /// Not a share.
    #[error("`{0}` is no share: write 1% or 0.01")]
    Share(String),
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
        let parsed = match text.strip_suffix('%') {
            Some(percent) => percent.trim().parse::<f64>().map(|percent| percent / 100.0),
            None => text.parse::<f64>(),
        };
        match parsed {
            Ok(share) if (0.0..=1.0).contains(&share) => Ok(Share(share)),
            _ => Err(UnitError::Share(text.to_owned())),
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0 * 100.0)
    }
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
        assert_eq!("0.25".parse(), Ok(Share(0.25)));
        for text in ["", "-1", "fast", "nan", "1e30"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
        for text in ["", "101%", "-1%", "nan", "2"] {
            assert!(text.parse::<Share>().is_err(), "{text}");
        }
    }
}

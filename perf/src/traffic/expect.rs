//! Whether an answer is the caller's own.
//!
//! The output is found in the body by a JSON pointer (RFC 6901) while the body is read once, without building a tree; the text
//! that should stand there is made again from the request's number.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::Traffic;

/// What the output should be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Answer {
    /// The input in upper case, as the simulated executor gives it.
    #[default]
    Upper,
    /// The input as it was.
    Echo,
    /// Any text: a real model. Only the presence of the output is checked.
    Any,
}

impl FromStr for Answer {
    type Err = ExpectError;

    fn from_str(text: &str) -> Result<Answer, ExpectError> {
        match text {
            "upper" => Ok(Answer::Upper),
            "echo" => Ok(Answer::Echo),
            "any" => Ok(Answer::Any),
            _ => Err(ExpectError::Answer(text.to_owned())),
        }
    }
}

/// Where the output stands in an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// The whole body is the output.
    Body,
    /// Steps of a JSON pointer.
    Pointer(Vec<String>),
}

/// The check of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expect {
    place: Place,
    /// The place as it was written.
    shown: String,
    answer: Answer,
}

/// What an answer turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    /// The caller's own.
    Right,
    /// Nothing stands where the output should: more often a wrong `--expect` than a wrong answer.
    NoOutput,
    /// An output that is not this request's.
    Different,
}

/// The check makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpectError {
    /// Neither `body` nor a JSON pointer.
    #[error(
        "`{0}` is no place of an output: write a JSON pointer such as /output or /data/0/text, or `body`"
    )]
    Place(String),
    /// Not an answer we know.
    #[error("`{0}` is no answer: it is upper, echo or any")]
    Answer(String),
}

impl Expect {
    /// `place` is a JSON pointer, or `body` for the whole body as text.
    ///
    /// # Errors
    /// If it is neither.
    pub fn new(place: &str, answer: Answer) -> Result<Expect, ExpectError> {
        let shown = place.to_owned();
        let place = match place {
            "body" => Place::Body,
            "" => Place::Pointer(Vec::new()),
            _ => {
                let steps = place
                    .strip_prefix('/')
                    .ok_or_else(|| ExpectError::Place(place.to_owned()))?;
                Place::Pointer(
                    steps
                        .split('/')
                        .map(|step| step.replace("~1", "/").replace("~0", "~"))
                        .collect(),
                )
            }
        };
        Ok(Expect {
            place,
            shown,
            answer,
        })
    }

    /// The output in `body`; `None` if there is none.
    fn output<'a>(&self, body: &'a [u8]) -> Option<Cow<'a, str>> {
        match &self.place {
            Place::Body => std::str::from_utf8(body).ok().map(Cow::Borrowed),
            Place::Pointer(steps) => {
                let mut json = serde_json::Deserializer::from_slice(body);
                let found = Pick { steps }.deserialize(&mut json).ok()?;
                json.end().ok()?;
                found
            }
        }
    }

    /// Where the output is looked for: the JSON pointer, or `body`.
    pub fn place(&self) -> &str {
        &self.shown
    }

    /// Whether `body` answers request `number`. `scratch` is overwritten.
    pub fn check(
        &self,
        body: &[u8],
        traffic: &Traffic,
        number: u64,
        scratch: &mut String,
    ) -> Checked {
        match self.output(body) {
            None => Checked::NoOutput,
            Some(output) if self.fits(&output, traffic, number, scratch) => Checked::Right,
            Some(_) => Checked::Different,
        }
    }

    fn fits(&self, output: &str, traffic: &Traffic, number: u64, scratch: &mut String) -> bool {
        match self.answer {
            Answer::Any => true,
            Answer::Echo => {
                traffic.input(number, scratch);
                *scratch == output
            }
            Answer::Upper => {
                traffic.input(number, scratch);
                if scratch.is_ascii() {
                    scratch.make_ascii_uppercase();
                    *scratch == output
                } else {
                    scratch.to_uppercase() == output
                }
            }
        }
    }
}

/// Follows the steps and skips everything beside them.
struct Pick<'p> {
    steps: &'p [String],
}

impl<'de> DeserializeSeed<'de> for Pick<'_> {
    type Value = Option<Cow<'de, str>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Pick<'_> {
    type Value = Option<Cow<'de, str>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value on the way to the output")
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(self.steps.is_empty().then_some(Cow::Borrowed(text)))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(self.steps.is_empty().then(|| Cow::Owned(text.to_owned())))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            match self.steps.split_first() {
                Some((step, steps)) if *step == key => {
                    found = map.next_value_seed(Pick { steps })?
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let wanted = self
            .steps
            .split_first()
            .and_then(|(step, rest)| Some((step.parse::<usize>().ok()?, rest)));
        let mut found = None;
        for index in 0usize.. {
            match wanted {
                Some((step, steps)) if step == index => {
                    match items.next_element_seed(Pick { steps })? {
                        Some(value) => found = value,
                        None => break,
                    }
                }
                _ => {
                    if items.next_element::<IgnoredAny>()?.is_none() {
                        break;
                    }
                }
            }
        }
        Ok(found)
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}

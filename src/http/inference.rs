//! The JSON of `POST /v1/inference`, both ways. Pure.
//!
//! The request is read into typed fields that borrow from the body, never into a `serde_json::Value`: an unknown
//! field is skipped without recursion, so no nesting can overflow a coroutine's stack, and nothing is built that is
//! not used. What is read of `parameters` is checked; the rest of it travels on as the text it came in, within `bounds`.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use serde::de::{Deserializer, Error, Unexpected, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::bounds;
use super::reject::Rejection;

/// A request body, read and checked. Borrows from the body where that needs no unescaping.
#[derive(Debug, PartialEq)]
pub struct InferenceRequest<'b> {
    /// The input.
    pub input: Cow<'b, str>,
    /// The model that the caller asks for.
    pub model: Option<Cow<'b, str>>,
    /// The parameters, as the JSON object they came in.
    pub parameters: Option<&'b str>,
}

/// Reads a request body.
///
/// # Errors
///
/// `Json` with the place of the first problem, or `InputTooLarge`.
pub fn parse_body(body: &[u8], input_bytes_max: usize) -> Result<InferenceRequest<'_>, Rejection> {
    let text = check_text(body)?;
    let mut fields = read_fields(text)?;
    if let Some(raw) = fields.parameters.map(RawValue::get) {
        if raw == "null" {
            fields.parameters = None;
        } else {
            check_parameters(raw, text)?;
        }
    }
    if fields.input.len() > input_bytes_max {
        return Err(Rejection::InputTooLarge {
            limit_bytes: input_bytes_max,
        });
    }
    Ok(InferenceRequest {
        input: fields.input,
        model: fields.model,
        parameters: fields.parameters.map(RawValue::get),
    })
}

// The deserialisers have large frames. They are kept out of their callers' frames, or they would add up: see the
// stack of a coroutine in `core`.
#[inline(never)]
fn read_fields(text: &str) -> Result<BodyFields<'_>, Rejection> {
    serde_json::from_str(text).map_err(|error| json_rejection(&error, (1, 0)))
}

/// UTF-8, no byte order mark, and an object: serde would take an array's elements for the fields in their order.
pub(super) fn check_text(body: &[u8]) -> Result<&str, Rejection> {
    let text = std::str::from_utf8(body).map_err(|error| {
        let before = &body[..error.valid_up_to()];
        at_place("the body is not UTF-8", place_after(before))
    })?;
    if text.starts_with('\u{feff}') {
        return Err(at_place("a byte order mark is not JSON", (1, 1)));
    }
    let start = text.trim_start_matches([' ', '\t', '\r', '\n']);
    if start.is_empty() {
        return Err(at_place(
            "the body is empty, expected a JSON object",
            (1, 0),
        ));
    }
    if !start.starts_with('{') {
        let before = &text.as_bytes()[..text.len() - start.len()];
        return Err(at_place("expected a JSON object", place_after(before)));
    }
    Ok(text)
}

/// Checks the parameters that are known here, and that any executor can read the others, which are its business.
#[inline(never)]
fn check_parameters(raw: &str, text: &str) -> Result<(), Rejection> {
    let offset = raw.as_ptr() as usize - text.as_ptr() as usize;
    let (line, column) = place_after(&text.as_bytes()[..offset]);
    if !raw.starts_with('{') {
        return Err(at_place("`parameters` must be an object", (line, column)));
    }
    serde_json::from_str::<KnownParameters>(raw)
        .map_err(|error| json_rejection(&error, (line, column - 1)))?;
    bounds::check(raw).map_err(|beyond| {
        let before = &text.as_bytes()[..offset + beyond.at];
        at_place(beyond.problem, place_after(before))
    })
}

/// Line and column (both from 1) of the byte that follows `before`.
fn place_after(before: &[u8]) -> (usize, usize) {
    let line_start = before
        .iter()
        .rposition(|&byte| byte == b'\n')
        .map_or(0, |newline| newline + 1);
    let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
    (line, before.len() - line_start + 1)
}

fn at_place(problem: &str, (line, column): (usize, usize)) -> Rejection {
    Rejection::Json {
        problem: shortened(problem),
        line,
        column,
    }
}

/// Turns serde's error into ours; `origin` is where in the body the text that was parsed begins (line from 1,
/// columns before it).
#[cold]
#[inline(never)]
pub(super) fn json_rejection(error: &serde_json::Error, origin: (usize, usize)) -> Rejection {
    let text = error.to_string();
    let problem = text
        .rsplit_once(" at line ")
        .map_or(text.as_str(), |(problem, _)| problem);
    let column = match error.line() {
        0 | 1 => error.column() + origin.1,
        _ => error.column(),
    };
    Rejection::Json {
        problem: shortened(problem),
        line: error.line().max(1) + origin.0 - 1,
        column,
    }
}

/// So much of a parser's message goes back to the caller. It repeats what was sent, however long that is.
const PROBLEM_CHARS_MAX: usize = 200;

fn shortened(problem: &str) -> Box<str> {
    match problem.char_indices().nth(PROBLEM_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &problem[..end]).into(),
        None => problem.into(),
    }
}

/// The fields of a body. Unknown ones are ignored, as a caller of another inference server would expect; a known one
/// that stands there twice is an error, since two readers could pick different ones.
#[derive(Deserialize)]
struct BodyFields<'b> {
    #[serde(borrow, deserialize_with = "input_text")]
    input: Cow<'b, str>,
    #[serde(borrow, default, deserialize_with = "model_text")]
    model: Option<Cow<'b, str>>,
    #[serde(borrow, default)]
    parameters: Option<&'b RawValue>,
}

/// Only what must be true of them; the values are used by nobody in the server itself.
#[derive(Deserialize)]
struct KnownParameters {
    #[serde(default, rename = "max_tokens", deserialize_with = "max_tokens")]
    _max_tokens: (),
    #[serde(default, rename = "temperature", deserialize_with = "temperature")]
    _temperature: (),
}

fn input_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Cow<'de, str>, D::Error> {
    let text = deserializer.deserialize_any(TextVisitor("`input` to be a string"))?;
    text.ok_or_else(|| D::Error::invalid_type(Unexpected::Unit, &"`input` to be a string"))
}

fn model_text<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Cow<'de, str>>, D::Error> {
    deserializer.deserialize_any(TextVisitor("`model` to be a string"))
}

fn max_tokens<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    deserializer.deserialize_any(MaxTokensVisitor)
}

fn temperature<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    deserializer.deserialize_any(TemperatureVisitor)
}

/// A string that is borrowed if it stands in the body as it is, or `null`.
struct TextVisitor(&'static str);

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Option<Cow<'de, str>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Some(Cow::Borrowed(text)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Some(Cow::Owned(text.to_owned())))
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}

struct MaxTokensVisitor;

impl Visitor<'_> for MaxTokensVisitor {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`max_tokens` to be an integer of at least 1")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<(), E> {
        match number {
            0 => Err(E::invalid_value(Unexpected::Unsigned(0), &self)),
            _ => Ok(()),
        }
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<(), E> {
        Err(E::invalid_value(Unexpected::Signed(number), &self))
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }
}

struct TemperatureVisitor;

impl Visitor<'_> for TemperatureVisitor {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`temperature` to be a number from 0 to 2")
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<(), E> {
        if (0.0..=2.0).contains(&number) {
            Ok(())
        } else {
            Err(E::invalid_value(Unexpected::Float(number), &self))
        }
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<(), E> {
        self.visit_f64(number as f64)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<(), E> {
        self.visit_f64(number as f64)
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }
}

/// The answer to one request.
#[derive(Clone, Copy, Debug)]
pub struct InferenceReply<'a> {
    /// The request's id.
    pub request_id: &'a str,
    /// What the batch function returned.
    pub output: &'a str,
    /// From the request's arrival to this answer.
    pub latency: Duration,
    /// From admission to the launch of the batch that answered.
    pub queue_wait: Duration,
    /// What the executor reports, or the count over input and output.
    pub tokens_used: u64,
}

impl InferenceReply<'_> {
    /// Appends the JSON to `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        #[derive(Serialize)]
        struct Body<'a> {
            request_id: &'a str,
            output: &'a str,
            metadata: Metadata,
        }
        #[derive(Serialize)]
        struct Metadata {
            latency_ms: f64,
            queue_wait_ms: f64,
            tokens_used: u64,
        }
        let body = Body {
            request_id: self.request_id,
            output: self.output,
            metadata: Metadata {
                latency_ms: tenths_of_ms(self.latency),
                queue_wait_ms: tenths_of_ms(self.queue_wait),
                tokens_used: self.tokens_used,
            },
        };
        serde_json::to_writer(out, &body).expect("strings and numbers always serialise");
    }
}

/// Milliseconds with one decimal: finer than the scheduling noise, and short on the wire.
fn tenths_of_ms(span: Duration) -> f64 {
    let tenths = (span.as_nanos() + 50_000) / 100_000;
    tenths as f64 / 10.0
}

#[cfg(test)]
#[path = "inference_tests.rs"]
mod tests;

//! The JSON of `POST /internal/batch` as a worker reads and writes it. Pure.
//!
//! The ids are the sender's; all that matters here is that each stands for one request of its batch. Members that are not
//! known are left to those who put them there.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::Terms;
use super::inference::{check_text, json_rejection};
use super::reject::Rejection;
use crate::ticket::{Input, Output};

/// Longest id of a batch or request.
const ID_BYTES_MAX: usize = 200;

/// A batch that was made elsewhere.
#[derive(Debug, PartialEq, Eq)]
pub struct BatchCall {
    /// Its id: the same batch, sent again, has the same.
    pub id: Box<str>,
    /// The ids of its requests, no two alike.
    pub request_ids: Vec<Box<str>>,
    /// Their inputs, in the same order.
    pub inputs: Vec<Input>,
    /// Tells it from every other batch.
    pub fingerprint: [u8; 32],
    /// Longest output that is of use to whoever sent it, in bytes.
    pub output_max: usize,
}

impl BatchCall {
    /// Bytes of memory that it takes.
    pub fn held_bytes(&self) -> usize {
        let ids: usize = self.request_ids.iter().map(|id| id.len()).sum();
        ids + self.inputs.iter().map(Input::held_bytes).sum::<usize>()
    }
}

#[derive(Deserialize)]
struct Body<'b> {
    #[serde(borrow)]
    batch_id: Cow<'b, str>,
    #[serde(borrow)]
    requests: Vec<Request<'b>>,
    output_max_bytes: Option<usize>,
}

#[derive(Deserialize)]
struct Request<'b> {
    #[serde(borrow)]
    request_id: Cow<'b, str>,
    #[serde(borrow)]
    input: Cow<'b, str>,
    #[serde(borrow)]
    parameters: Option<&'b RawValue>,
    #[serde(borrow, default)]
    caller_request_id: Option<Cow<'b, str>>,
}

/// Reads a request body.
///
/// # Errors
/// `Json` with the place of the first problem, `InputTooLarge` or `BatchTooLarge`.
#[inline(never)]
pub fn parse_body(body: &[u8], terms: &Terms) -> Result<BatchCall, Rejection> {
    let text = check_text(body)?;
    let body: Body<'_> =
        serde_json::from_str(text).map_err(|error| json_rejection(&error, (1, 0)))?;
    check(&body, terms)?;
    let fingerprint = fingerprint(&body);
    let output_max = body.output_max_bytes.unwrap_or(usize::MAX);
    let (request_ids, inputs) = body.requests.into_iter().map(Request::take).unzip();
    Ok(BatchCall {
        id: body.batch_id.into(),
        request_ids,
        inputs,
        fingerprint,
        output_max,
    })
}

fn check(body: &Body<'_>, terms: &Terms) -> Result<(), Rejection> {
    let limit = terms
        .worker
        .as_ref()
        .map_or(usize::MAX, |worker| worker.batch_max);
    if body.requests.len() > limit {
        return Err(Rejection::BatchTooLarge { limit });
    }
    if body.requests.is_empty() {
        return Err(wrong("`requests` is empty"));
    }
    let mut seen = HashSet::with_capacity(body.requests.len());
    for request in &body.requests {
        request
            .caller_request_id
            .as_deref()
            .map_or(Ok(()), check_id)?;
        let id = &request.request_id;
        check_id(id)?;
        if !seen.insert(id) {
            return Err(wrong(&format!(
                "the `request_id` {id:?} stands there twice"
            )));
        }
    }
    let limit_bytes = terms.limits.input_bytes_max;
    if body
        .requests
        .iter()
        .any(|request| request.input.len() > limit_bytes)
    {
        return Err(Rejection::InputTooLarge { limit_bytes });
    }
    check_id(&body.batch_id)
}

fn check_id(id: &str) -> Result<(), Rejection> {
    if (1..=ID_BYTES_MAX).contains(&id.len()) {
        return Ok(());
    }
    Err(wrong(&format!(
        "an id must be 1 to {ID_BYTES_MAX} bytes long"
    )))
}

fn wrong(problem: &str) -> Rejection {
    Rejection::Json {
        problem: problem.into(),
        line: 1,
        column: 1,
    }
}

/// Of everything that matters for the results; each part with its length, so that no two batches read alike.
fn fingerprint(body: &Body<'_>) -> [u8; 32] {
    let mut hash = Sha256::new();
    let mut put = |text: &str| {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    };
    for request in &body.requests {
        put(&request.request_id);
        put(&request.input);
        put(request.parameters.map_or("", RawValue::get));
        put(request.caller_request_id.as_deref().unwrap_or_default());
    }
    hash.finalize().into()
}

impl Request<'_> {
    fn take(self) -> (Box<str>, Input) {
        let parameters = self
            .parameters
            .map(RawValue::get)
            .filter(|text| *text != "null");
        let id = self.caller_request_id.as_ref();
        let input = Input {
            text: Arc::from(&*self.input),
            parameters: parameters.map(Arc::from),
            request_id: Some(Arc::from(&**id.unwrap_or(&self.request_id))),
        };
        (self.request_id.into(), input)
    }
}

/// The body that answers `batch`, whose results are `results`, in its order. Outputs that are too long for whoever sent the
/// batch are cut, but still too long: it refuses those alone, where an answer of any length would make it give up on all.
pub fn write_results(batch: &BatchCall, results: &[Result<Output, String>]) -> Vec<u8> {
    #[derive(Serialize)]
    struct Answer<'a> {
        batch_id: &'a str,
        results: Vec<Entry<'a>>,
    }
    #[derive(Serialize)]
    struct Entry<'a> {
        request_id: &'a str,
        output: Option<&'a str>,
        status: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        tokens_used: Option<u64>,
    }
    let pairs = batch.request_ids.iter().zip(results);
    let results = pairs.map(|(request_id, result)| {
        let (output, error) = (result.as_ref().ok(), result.as_ref().err());
        Entry {
            request_id,
            output: output.map(|output| cut(&output.text, batch.output_max)),
            status: if output.is_some() { "ok" } else { "error" },
            error: error.map(String::as_str),
            tokens_used: output.and_then(|output| output.tokens),
        }
    });
    let results = results.collect();
    let answer = Answer {
        batch_id: &batch.id,
        results,
    };
    serde_json::to_vec(&answer).expect("strings and numbers always serialise")
}

/// As much of `text` as shows that it is longer than `most` bytes, if it is.
fn cut(text: &str, most: usize) -> &str {
    &text[..text.ceil_char_boundary(most.saturating_add(1))]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::WorkerTerms;
    use serde_json::{Value, json};

    fn terms() -> Terms {
        let worker = WorkerTerms {
            batch_max: 3,
            secret: None,
        };
        Terms {
            worker: Some(worker),
            ..Terms::default()
        }
    }

    fn request(id: &str, input: &str) -> Value {
        json!({ "request_id": id, "input": input })
    }

    fn read(body: &Value) -> Result<BatchCall, Rejection> {
        parse_body(body.to_string().as_bytes(), &terms())
    }

    #[test]
    fn a_batch_is_read_with_what_belongs_to_it_and_whatever_else_is_there() {
        let body = json!({ "batch_id": "b", "hint": {}, "requests": [
            request("1", "é\n"),
            { "request_id": "2", "input": "", "parameters": { "x": [1] }, "tier": "paid",
              "caller_request_id": "mine" },
            { "request_id": "3", "input": "", "parameters": null, "caller_request_id": null },
        ] });
        let batch = read(&body).expect("sound");
        assert_eq!((&*batch.id, batch.request_ids.len()), ("b", 3));
        assert_eq!(&*batch.inputs[0].text, "é\n");
        assert_eq!(batch.inputs[1].parameters.as_deref(), Some("{\"x\":[1]}"));
        assert_eq!(batch.inputs[2].parameters, None);
        let ids = batch.inputs.iter().map(|input| input.request_id.as_deref());
        let ids: Vec<_> = ids.collect();
        assert_eq!(ids, [Some("1"), Some("mine"), Some("3")]);
    }

    #[test]
    fn batches_that_make_no_sense_are_refused() {
        let long = "x".repeat(ID_BYTES_MAX + 1);
        let input = "x".repeat(terms().limits.input_bytes_max + 1);
        let many = ["1", "2", "3", "4"].map(|id| request(id, ""));
        for (body, status) in [
            (json!({ "batch_id": "b", "requests": [] }), 400),
            (
                json!({ "batch_id": "", "requests": [request("1", "")] }),
                400,
            ),
            (
                json!({ "batch_id": long, "requests": [request("1", "")] }),
                400,
            ),
            (
                json!({ "batch_id": "b", "requests": [request("1", ""), request("1", "")] }),
                400,
            ),
            (
                json!({ "batch_id": "b", "requests": [request("", "")] }),
                400,
            ),
            (
                json!({ "batch_id": "b", "requests": [{ "input": "" }] }),
                400,
            ),
            (
                json!({ "batch_id": 1, "requests": [request("1", "")] }),
                400,
            ),
            (json!({ "requests": [request("1", "")] }), 400),
            (json!(["b", []]), 400),
            (
                json!({ "batch_id": "b", "requests": [
                    { "request_id": "1", "input": "", "caller_request_id": "x".repeat(201) }] }),
                400,
            ),
            (
                json!({ "batch_id": "b", "requests": [request("1", &input)] }),
                413,
            ),
            (json!({ "batch_id": "b", "requests": many }), 413),
        ] {
            assert_eq!(read(&body).expect_err("refused").status(), status);
        }
    }

    #[test]
    fn a_fingerprint_tells_batches_apart_and_knows_them_again() {
        let of = |requests: Value| {
            let body = json!({ "batch_id": "b", "requests": requests });
            read(&body).expect("sound").fingerprint
        };
        let all = [
            json!([request("1", "ab"), request("2", "c")]),
            json!([request("1", "a"), request("2", "bc")]),
            json!([request("2", "ab"), request("1", "c")]),
            json!([request("1", "ab")]),
            json!([{ "request_id": "1", "input": "ab", "parameters": { "x": 1 } }]),
        ];
        for (at, one) in all.iter().enumerate() {
            assert_eq!(of(one.clone()), of(one.clone()));
            for other in &all[at + 1..] {
                assert_ne!(of(one.clone()), of(other.clone()), "{one} and {other}");
            }
        }
    }

    #[test]
    fn outputs_that_are_too_long_stay_too_long_and_no_more() {
        for (text, most, left) in [
            ("", 0, ""),
            ("abc", 3, "abc"),
            ("abc", 2, "abc"),
            ("abc", 1, "ab"),
            ("aéé", 1, "aé"),
            ("aéé", 2, "aé"),
            ("aéé", 3, "aéé"),
            ("abc", usize::MAX, "abc"),
        ] {
            assert_eq!(cut(text, most), left, "{text} {most}");
            assert_eq!(cut(text, most).len() > most, text.len() > most);
        }
        let body =
            json!({ "batch_id": "b", "requests": [request("1", "")], "output_max_bytes": 9 });
        assert_eq!(read(&body).expect("sound").output_max, 9);
        let body = json!({ "batch_id": "b", "requests": [request("1", "")] });
        assert_eq!(read(&body).expect("sound").output_max, usize::MAX);
    }

    #[test]
    fn results_are_written_with_the_ids_that_came() {
        let body = json!({ "batch_id": "b", "requests": [request("one", ""), request("two", "")] });
        let batch = read(&body).expect("sound");
        let output = Output {
            text: "X".to_owned(),
            tokens: Some(3),
        };
        let written = write_results(&batch, &[Ok(output), Err("too rude".to_owned())]);
        let answer: Value = serde_json::from_slice(&written).expect("JSON");
        let expected = json!({ "batch_id": "b", "results": [
            { "request_id": "one", "output": "X", "status": "ok", "tokens_used": 3 },
            { "request_id": "two", "output": null, "status": "error", "error": "too rude" },
        ] });
        assert_eq!(answer, expected);
    }
}

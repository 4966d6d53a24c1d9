//! The JSON of `POST /internal/batch` as its caller writes and reads it. Pure.
//!
//! Ids on the wire are made here: a batch's is unique among all batches of all servers, a request's is the batch's
//! serial number and its own place. So an answer that belongs to another batch, whoever mixed it up, fits nowhere.

use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Deserialize;

use crate::ticket::{Input, Output};

/// 64 bits that nobody can guess, from the standard library's seed.
pub fn random_word() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// The ids of one batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchId {
    serial: u64,
    text: String,
}

impl BatchId {
    /// The next one: 128 random bits of this process, and a counter.
    pub fn next() -> BatchId {
        static BOOT: OnceLock<String> = OnceLock::new();
        static SERIAL: AtomicU64 = AtomicU64::new(1);
        let boot = BOOT.get_or_init(|| format!("{:016x}{:016x}", random_word(), random_word()));
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        BatchId {
            serial,
            text: format!("{boot}-{serial}"),
        }
    }

    /// The batch's id.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The id of the request at `place`.
    fn request(&self, place: usize) -> String {
        format!("{}.{place}", self.serial)
    }

    /// The place of the request with this id.
    fn place(&self, request_id: &str) -> Option<usize> {
        let (serial, place) = request_id.split_once('.')?;
        let place = place.parse().ok()?;
        // Other spellings of the same numbers are not what was sent.
        (serial.parse() == Ok(self.serial) && self.request(place) == request_id).then_some(place)
    }
}

/// The body that asks for `inputs` to be run, and tells the worker that outputs longer than `output_max` bytes are of no use.
pub fn encode(id: &BatchId, inputs: &[Input], output_max: usize) -> Vec<u8> {
    let length: usize = inputs.iter().map(|input| input.text.len() + 112).sum();
    let mut body = Vec::with_capacity(length + 128);
    body.extend_from_slice(b"{\"batch_id\":");
    put_text(&mut body, id.as_str());
    body.extend_from_slice(format!(",\"output_max_bytes\":{output_max}").as_bytes());
    body.extend_from_slice(b",\"requests\":[");
    for (place, input) in inputs.iter().enumerate() {
        if place > 0 {
            body.push(b',');
        }
        body.extend_from_slice(b"{\"request_id\":");
        put_text(&mut body, &id.request(place));
        body.extend_from_slice(b",\"input\":");
        put_text(&mut body, &input.text);
        if let Some(parameters) = &input.parameters {
            // JSON already: it was checked when it came in.
            body.extend_from_slice(b",\"parameters\":");
            body.extend_from_slice(parameters.as_bytes());
        }
        if let Some(known_as) = &input.request_id {
            body.extend_from_slice(b",\"caller_request_id\":");
            put_text(&mut body, known_as);
        }
        body.push(b'}');
    }
    body.extend_from_slice(b"]}");
    body
}

fn put_text(body: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(body, text).expect("a text always serialises");
}

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    batch_id: Cow<'a, str>,
    #[serde(borrow)]
    results: Vec<Entry<'a>>,
}

/// One result. Members that are not known are left to whoever put them there.
#[derive(Deserialize)]
struct Entry<'a> {
    #[serde(borrow)]
    request_id: Cow<'a, str>,
    output: Option<String>,
    #[serde(borrow)]
    status: Cow<'a, str>,
    error: Option<String>,
    tokens_used: Option<u64>,
}

/// The results of an answer to a batch of `inputs` inputs, in their order.
///
/// # Errors
/// It is not the answer to this batch, whole: says what is wrong. Nothing of it may be believed then.
pub fn decode(
    id: &BatchId,
    inputs: usize,
    body: &[u8],
) -> Result<Vec<Result<Output, String>>, String> {
    let answer: Answer<'_> = serde_json::from_slice(body)
        .map_err(|error| format!("its answer makes no sense: {error}"))?;
    if answer.batch_id != id.as_str() {
        return Err(format!(
            "it answered for the batch {:?}",
            shortened(&answer.batch_id)
        ));
    }
    let mut places: Vec<Option<Result<Output, String>>> = Vec::new();
    places.resize_with(inputs, || None);
    for result in answer.results {
        let request_id = shortened(&result.request_id);
        let place = id
            .place(&result.request_id)
            .and_then(|place| places.get_mut(place));
        let place =
            place.ok_or_else(|| format!("it answered for {request_id:?}, which was not asked"))?;
        if place.is_some() {
            return Err(format!("it answered twice for {request_id:?}"));
        }
        *place = Some(result.read()?);
    }
    let missing = places.iter().filter(|place| place.is_none()).count();
    let results: Option<Vec<_>> = places.into_iter().collect();
    results.ok_or_else(|| format!("{missing} of {inputs} results are missing"))
}

impl Entry<'_> {
    fn read(self) -> Result<Result<Output, String>, String> {
        match (&*self.status, self.output) {
            ("ok", Some(text)) => Ok(Ok(Output {
                text,
                tokens: self.tokens_used,
            })),
            ("ok", None) => Err(format!(
                "the output of {:?} is missing",
                shortened(&self.request_id)
            )),
            ("error", _) => {
                let silent = || "the batch function rejects this input".to_owned();
                Ok(Err(self
                    .error
                    .filter(|text| !text.is_empty())
                    .unwrap_or_else(silent)))
            }
            (status, _) => Err(format!("the status {:?} is unknown", shortened(status))),
        }
    }
}

/// What a stranger sent, cut to what fits into a sentence.
pub(super) fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn id() -> BatchId {
        BatchId {
            serial: 7,
            text: "boot-7".to_owned(),
        }
    }

    fn result(place: usize) -> Value {
        json!({ "request_id": format!("7.{place}"), "output": format!("o{place}"), "status": "ok" })
    }

    fn read(answer: &Value, inputs: usize) -> Result<Vec<Result<String, String>>, String> {
        let results = decode(&id(), inputs, answer.to_string().as_bytes())?;
        Ok(results
            .into_iter()
            .map(|result| result.map(|output| output.text))
            .collect())
    }

    #[test]
    fn a_batch_is_written_with_its_ids_and_parameters() {
        let mut with = Input::new("a\"b\n");
        with.parameters = Some("{\"max_tokens\":3}".into());
        with.request_id = Some("req_1".into());
        let body: Value =
            serde_json::from_slice(&encode(&id(), &[Input::new("é"), with], 9)).expect("JSON");
        let expected = json!({ "batch_id": "boot-7", "output_max_bytes": 9, "requests": [
            { "request_id": "7.0", "input": "é" },
            { "request_id": "7.1", "input": "a\"b\n", "parameters": { "max_tokens": 3 },
              "caller_request_id": "req_1" },
        ] });
        assert_eq!(body, expected);
    }

    #[test]
    fn ids_are_never_used_twice() {
        let (one, two) = (BatchId::next(), BatchId::next());
        assert_ne!(one, two);
        assert_ne!(one.request(0), two.request(0));
        assert!(one.as_str().len() > 32);
    }

    #[test]
    fn results_come_back_in_the_order_of_the_inputs_whatever_else_is_there() {
        let mut rejected =
            json!({ "request_id": "7.1", "status": "error", "error": "too rude", "output": null });
        rejected["colour"] = json!("blue");
        let answer = json!({ "batch_id": "boot-7", "more": [1], "results": [result(2), rejected, result(0)] });
        let expected = [
            Ok("o0".to_owned()),
            Err("too rude".to_owned()),
            Ok("o2".to_owned()),
        ];
        assert_eq!(read(&answer, 3).expect("sound"), expected);
    }

    #[test]
    fn an_answer_that_is_not_whole_and_ours_is_not_believed() {
        let lies = [
            (
                json!({ "batch_id": "boot-8", "results": [result(0), result(1)] }),
                "boot-8",
            ),
            (
                json!({ "batch_id": "boot-7", "results": [result(0)] }),
                "1 of 2 results are missing",
            ),
            (
                json!({ "batch_id": "boot-7", "results": [result(0), result(0)] }),
                "twice",
            ),
            (
                json!({ "batch_id": "boot-7", "results": [result(0), result(1), result(2)] }),
                "not asked",
            ),
            (
                json!({ "batch_id": "boot-7", "results": [result(0), { "request_id": "8.1", "output": "", "status": "ok" }] }),
                "not asked",
            ),
            (
                json!({ "batch_id": "boot-7", "results": [result(0), { "request_id": "7.01", "output": "", "status": "ok" }] }),
                "not asked",
            ),
            (
                json!({ "batch_id": "boot-7", "results": [result(0), { "request_id": "7.1", "status": "ok" }] }),
                "output of",
            ),
            (
                json!({ "batch_id": "boot-7", "results": [result(0), { "request_id": "7.1", "status": "fine" }] }),
                "status",
            ),
            (json!({ "results": [] }), "makes no sense"),
            (json!(["boot-7", []]), ""),
        ];
        for (answer, problem) in lies {
            let refused = read(&answer, 2).expect_err("a lie");
            assert!(refused.contains(problem), "{answer}: {refused}");
        }
        assert!(decode(&id(), 1, b"<html>").is_err());
    }

    proptest! {
        /// Whatever the order, each input gets its own output or the answer is refused.
        #[test]
        fn no_input_gets_another_ones_output(
            inputs in 1_usize..20,
            picks in proptest::collection::vec(0_usize..25, 0..30),
        ) {
            let results: Vec<_> = picks.iter().map(|&place| result(place)).collect();
            let answer = json!({ "batch_id": "boot-7", "results": results });
            let mut sorted = picks.clone();
            sorted.sort_unstable();
            let whole = sorted == (0..inputs).collect::<Vec<_>>();
            match read(&answer, inputs) {
                Ok(outputs) => {
                    prop_assert!(whole);
                    for (place, output) in outputs.into_iter().enumerate() {
                        prop_assert_eq!(output, Ok(format!("o{place}")));
                    }
                }
                Err(_) => prop_assert!(!whole),
            }
        }
    }
}

//! The executor against workers of a few lines: what it makes of what they say, and of what they don't.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};

use super::*;

/// What a worker does with one request of a connection: an answer, or nothing and the connection ends.
type Script = Box<dyn FnMut(usize, &Value) -> Option<String> + Send>;

/// At the end of an answer: the connection ends after it.
const CUT: &str = "<cut>";

/// A worker that answers probes itself and batches by `script`, which is told how many came before. Gives its URL and the
/// bodies of the batches that it got.
fn worker(mut script: Script) -> (Worker, Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let (seen, batches) = channel();
    thread::spawn(move || {
        let mut count = 0;
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            while let Some((head, body)) = request(&mut stream) {
                if head.starts_with("GET ") {
                    let _ = stream.write_all(answer(200, "{}").as_bytes());
                    continue;
                }
                assert!(
                    head.starts_with("POST /internal/batch HTTP/1.1\r\n"),
                    "{head}"
                );
                let body: Value = serde_json::from_slice(&body).expect("JSON");
                let _ = seen.send(body.clone());
                let said = script(count, &body);
                count += 1;
                let Some(text) = said else { break };
                let whole = text.strip_suffix(CUT);
                let _ = stream.write_all(whole.unwrap_or(&text).as_bytes());
                if whole.is_some() {
                    break;
                }
            }
        }
    });
    let target = url.parse().expect("a URL");
    (
        Worker {
            target,
            secret: None,
            output_max: 1000,
        },
        batches,
    )
}

/// Reads one request; `None` at the end of the connection.
fn request(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(b"\r\n\r\n") {
        if !matches!(stream.read(&mut byte), Ok(1)) {
            return None;
        }
        bytes.push(byte[0]);
    }
    let head = String::from_utf8(bytes).expect("text");
    let length = head
        .split("Content-Length: ")
        .nth(1)
        .and_then(|rest| rest.lines().next());
    let mut body = vec![0; length.map_or(0, |length| length.parse().expect("a number"))];
    stream.read_exact(&mut body).ok()?;
    Some((head, body))
}

fn answer(status: u16, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status} Said\r\nContent-Length: {length}\r\n\r\n{body}")
}

/// The answer of a good worker: the inputs in upper case, last first.
fn upper(batch: &Value) -> Value {
    let requests = batch["requests"].as_array().expect("requests").iter().rev();
    let results: Vec<_> = requests
        .map(|request| {
            let output = request["input"].as_str().expect("a text").to_uppercase();
            json!({ "request_id": request["request_id"], "output": output, "status": "ok" })
        })
        .collect();
    json!({ "batch_id": batch["batch_id"], "results": results })
}

fn good(batch: &Value) -> Option<String> {
    Some(answer(200, &upper(batch).to_string()))
}

/// An address where nobody listens, nor will as long as the socket that has it is held.
pub(super) fn nobody() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    socket.bind(&any.into()).expect("a free port");
    let address = socket.local_addr().expect("bound").as_socket();
    (socket, address.expect("of the internet"))
}

fn soon() -> Time {
    clock::now() + Duration::from_secs(20)
}

fn ready(worker: Worker) -> Remote {
    let mut remote = Remote::new(worker);
    remote.reset(soon()).expect("the worker is there");
    remote
}

fn run(remote: &mut Remote, texts: &[&str]) -> Outcome {
    let inputs: Vec<_> = texts.iter().map(|text| Input::new(*text)).collect();
    remote.stage(Half::A, &inputs).expect("staged");
    remote.launch(Half::A).expect("launched");
    remote.wait(soon())
}

fn outputs(outcome: Outcome) -> Vec<Result<String, String>> {
    match outcome {
        Outcome::Done(results) => results
            .into_iter()
            .map(|result| result.map(|output| output.text))
            .collect(),
        other => panic!("{other:?}"),
    }
}

fn said(script: impl FnMut(usize, &Value) -> Option<String> + Send + 'static) -> Outcome {
    let (worker, _batches) = worker(Box::new(script));
    run(&mut ready(worker), &["a", "b"])
}

#[test]
fn batches_run_one_after_the_other_on_one_connection() {
    let (worker, batches) = worker(Box::new(|_, batch| good(batch)));
    let mut remote = ready(worker);
    for _ in 0..3 {
        assert_eq!(
            outputs(run(&mut remote, &["a", "b"])),
            [Ok("A".to_owned()), Ok("B".to_owned())]
        );
        remote.check().expect("it is there");
    }
    let ids: Vec<Value> = batches
        .try_iter()
        .map(|mut batch| batch["batch_id"].take())
        .collect();
    assert_eq!(ids.len(), 3);
    assert!(ids[0] != ids[1] && ids[1] != ids[2]);
}

#[test]
fn a_lost_connection_means_the_same_batch_again() {
    let (worker, batches) = worker(Box::new(
        |count, batch| if count < 3 { None } else { good(batch) },
    ));
    let mut remote = ready(worker);
    assert_eq!(outputs(run(&mut remote, &["a"])), [Ok("A".to_owned())]);
    let asked: Vec<Value> = batches.try_iter().collect();
    assert_eq!(asked.len(), 4);
    assert!(asked.iter().all(|batch| *batch == asked[0]));
}

#[test]
fn an_answer_that_is_cut_off_is_asked_for_again() {
    let outcome = said(|count, batch| {
        let whole = good(batch)?;
        let cut = count * 25;
        if cut < whole.len() {
            Some(format!("{}{CUT}", &whole[..cut]))
        } else {
            Some(whole)
        }
    });
    assert_eq!(outputs(outcome), [Ok("A".to_owned()), Ok("B".to_owned())]);
}

#[test]
fn one_answer_that_makes_no_sense_is_asked_for_again_and_a_second_one_is_the_workers() {
    let lies: [fn(&Value) -> Value; 6] = [
        |batch| json!({ "batch_id": "another", "results": upper(batch)["results"] }),
        |batch| json!({ "batch_id": batch["batch_id"], "results": [] }),
        |batch| {
            let mut answer = upper(batch);
            answer["results"][0]["request_id"] = answer["results"][1]["request_id"].clone();
            answer
        },
        |batch| {
            let mut answer = upper(batch);
            answer["results"][0]["request_id"] = json!("999.0");
            answer
        },
        |batch| {
            let mut answer = upper(batch);
            let extra = json!({ "request_id": "999.7", "output": "", "status": "ok" });
            answer["results"]
                .as_array_mut()
                .expect("results")
                .push(extra);
            answer
        },
        |_| json!("nonsense"),
    ];
    for lie in lies {
        let once = said(move |count, batch| {
            if count == 0 {
                Some(answer(200, &lie(batch).to_string()))
            } else {
                good(batch)
            }
        });
        assert_eq!(outputs(once), [Ok("A".to_owned()), Ok("B".to_owned())]);
        let always = said(move |_, batch| Some(answer(200, &lie(batch).to_string())));
        assert!(matches!(always, Outcome::Lost(_)), "{always:?}");
    }
}

#[test]
fn what_is_no_http_or_too_long_ends_a_worker_too() {
    let garbage = said(|_, _| Some("\0\u{1}garbage\r\n\r\n".to_owned()));
    assert!(matches!(garbage, Outcome::Lost(_)), "{garbage:?}");
    let huge =
        said(|_, _| Some("HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n".to_owned()));
    assert!(
        matches!(&huge, Outcome::Lost(Lost(why)) if why.contains("longer")),
        "{huge:?}"
    );
}

#[test]
fn a_status_says_what_became_of_the_batch() {
    let detail = r#"{"detail":"ValueError: no"}"#;
    for status in [400, 413, 422] {
        let outcome = said(move |_, _| Some(answer(status, detail)));
        assert_eq!(outcome, Outcome::Raised("ValueError: no".to_owned()));
    }
    for (status, hint) in [
        (401, "secret"),
        (404, "does not serve"),
        (409, "no"),
        (500, "no"),
        (502, "no"),
    ] {
        let outcome = said(move |_, _| Some(answer(status, detail)));
        assert!(
            matches!(&outcome, Outcome::Lost(Lost(why)) if why.contains(hint)),
            "{status}: {outcome:?}"
        );
    }
    let bare = said(|_, _| Some(answer(500, "")));
    assert!(
        matches!(&bare, Outcome::Lost(Lost(why)) if why.contains("status 500")),
        "{bare:?}"
    );
}

#[test]
fn a_busy_worker_is_told_from_one_that_is_out_of_service() {
    let busy = |text: &'static str| {
        let (worker, _) = worker(Box::new(move |_, _| Some(text.to_owned())));
        let mut remote = ready(worker);
        (run(&mut remote, &["a"]), remote.check().is_ok())
    };
    let ms = Duration::from_millis;
    let plain = "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(busy(plain), (Outcome::Busy(BUSY_PAUSE), true));
    let seconds = "HTTP/1.1 503 Busy\r\nRetry-After: 2\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(busy(seconds), (Outcome::Busy(ms(2000)), true));
    let exact = "HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Length: 36\r\n\r\n{\"reason\":\"busy\",\"retry_after_ms\":7}";
    assert_eq!(busy(exact), (Outcome::Busy(ms(7)), true));
    let leaving = "HTTP/1.1 503 No\r\nContent-Length: 21\r\n\r\n{\"reason\":\"draining\"}";
    assert_eq!(busy(leaving), (Outcome::Busy(Duration::ZERO), false));
}

#[test]
fn a_rejected_input_is_its_own_affair() {
    let outcome = said(|_, batch| {
        let mut results = upper(batch);
        results["results"][0]["status"] = json!("error");
        results["results"][0]["error"] = json!("too rude");
        Some(answer(200, &results.to_string()))
    });
    assert_eq!(
        outputs(outcome),
        [Ok("A".to_owned()), Err("too rude".to_owned())]
    );
}

#[test]
fn nothing_waits_longer_than_it_may() {
    let (worker, _batches) = worker(Box::new(|_, _| {
        thread::park();
        None
    }));
    let mut remote = ready(worker);
    remote.stage(Half::A, &[Input::new("a")]).expect("staged");
    remote.launch(Half::A).expect("launched");
    for _ in 0..3 {
        let until = clock::now() + Duration::from_millis(10);
        assert_eq!(remote.wait(until), Outcome::Pending);
        assert!(clock::now() >= until);
    }
    assert_eq!(remote.wait(Time::ZERO), Outcome::Pending);
}

#[test]
fn a_worker_that_is_gone_is_lost_at_the_next_look() {
    let (_held, nobody) = nobody();
    let target: Target = format!("http://{nobody}").parse().expect("a URL");
    let mut remote = Remote::new(Worker {
        target,
        secret: None,
        output_max: 1,
    });
    assert!(remote.reset(soon()).is_err());
    assert!(remote.check().is_err());
    // Launched all the same, the batch did not run: others may.
    assert_eq!(run(&mut remote, &["a"]), Outcome::Busy(Duration::ZERO));
    assert!(remote.check().is_err());
}

#[test]
fn a_batch_that_the_worker_may_have_got_is_asked_for_until_its_time_is_up() {
    let (worker, batches) = worker(Box::new(|_, _| None));
    let mut remote = ready(worker);
    remote.stage(Half::A, &[Input::new("a")]).expect("staged");
    remote.launch(Half::A).expect("launched");
    while batches.try_iter().count() == 0 {
        assert_eq!(
            remote.wait(clock::now() + Duration::from_millis(10)),
            Outcome::Pending
        );
    }
    remote.link.point_at(Vec::new());
    assert_eq!(
        remote.wait(clock::now() + Duration::from_millis(100)),
        Outcome::Pending
    );
}

#[test]
fn the_secret_is_shown_with_every_request() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let target = format!("http://{}", listener.local_addr().expect("bound"))
        .parse()
        .expect("a URL");
    let heard = thread::spawn(move || {
        let mut stream = listener.accept().expect("a connection").0;
        let (probe, _) = request(&mut stream).expect("a probe");
        stream
            .write_all(answer(200, "").as_bytes())
            .expect("it reads");
        [probe, request(&mut stream).expect("a batch").0]
    });
    let secret = Some(Secret::new("s3cret").expect("a secret"));
    let mut remote = ready(Worker {
        target,
        secret,
        output_max: 1,
    });
    remote.stage(Half::B, &[Input::new("a")]).expect("staged");
    remote.launch(Half::B).expect("launched");
    for head in heard.join().expect("two requests") {
        assert!(
            head.contains("\r\nAuthorization: Bearer s3cret\r\n"),
            "{head}"
        );
    }
}

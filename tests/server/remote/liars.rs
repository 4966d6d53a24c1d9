//! Workers that answer anything but the truth. What they say is never passed on.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::{Value, json};

use crate::support::client::post_body;
use crate::support::{heavy, in_parallel, unique, wait_for};

use super::{failed, server, traffic, wait_answered, worker};

/// How to lie: the answer to a batch, as bytes.
type Lie = fn(&Value) -> Vec<u8>;

/// A worker that tells the truth to canaries only, and how often it has lied.
fn liar(lie: Lie) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    let lies = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&lies);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let count = Arc::clone(&count);
            thread::spawn(move || serve(stream, lie, &count));
        }
    });
    (address, lies)
}

fn serve(mut stream: TcpStream, lie: Lie, lies: &AtomicUsize) {
    while let Some((head, body)) = read(&mut stream) {
        let answer = if head.starts_with("GET ") {
            http(b"{}")
        } else {
            let batch: Value = serde_json::from_slice(&body).expect("JSON");
            if batch["requests"][0]["input"] == "funicular canary" {
                http(truth(&batch).to_string().as_bytes())
            } else {
                lies.fetch_add(1, Ordering::Relaxed);
                lie(&batch)
            }
        };
        if stream.write_all(&answer).is_err() {
            return;
        }
    }
}

fn read(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        if !matches!(stream.read(&mut byte), Ok(1)) {
            return None;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).ok()?;
    let length = head
        .split("Content-Length: ")
        .nth(1)
        .and_then(|rest| rest.lines().next());
    let mut body = vec![0; length.map_or(0, |length| length.parse().expect("a number"))];
    stream.read_exact(&mut body).ok()?;
    Some((head, body))
}

fn http(body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

fn truth(batch: &Value) -> Value {
    let requests = batch["requests"].as_array().expect("requests").iter();
    let results: Vec<_> = requests
        .map(|request| {
            // In lower case, so that it shows if an answer of a liar is passed on.
            let output = request["input"].as_str().expect("a text").to_lowercase();
            json!({ "request_id": request["request_id"], "output": output, "status": "ok" })
        })
        .collect();
    json!({ "batch_id": batch["batch_id"], "results": results })
}

fn changed(batch: &Value, change: impl FnOnce(&mut Vec<Value>)) -> Vec<u8> {
    let mut answer = truth(batch);
    change(answer["results"].as_array_mut().expect("results"));
    http(answer.to_string().as_bytes())
}

const LIES: &[(&str, Lie)] = &[
    ("a missing result", |batch| {
        changed(batch, |results| drop(results.pop()))
    }),
    ("a result too many", |batch| {
        changed(batch, |results| {
            let again = results[0].clone();
            results.push(again);
        })
    }),
    ("one twice instead of another", |batch| {
        changed(batch, |results| {
            let last = results.len() - 1;
            results[last]["request_id"] = results[0]["request_id"].clone();
            results[0]["request_id"] = json!("1.999");
        })
    }),
    ("a foreign id", |batch| {
        changed(batch, |results| results[0]["request_id"] = json!("0.0"))
    }),
    ("an id that is a number", |batch| {
        changed(batch, |results| results[0]["request_id"] = json!(0))
    }),
    ("a status nobody knows", |batch| {
        changed(batch, |results| results[0]["status"] = json!("maybe"))
    }),
    ("another batch", |batch| {
        let mut answer = truth(batch);
        answer["batch_id"] = json!("another");
        http(answer.to_string().as_bytes())
    }),
    ("a list", |batch| {
        http(truth(batch)["results"].to_string().as_bytes())
    }),
    ("no JSON", |_| http(b"<html>")),
    ("no HTTP", |_| b"220 ready\r\n\r\n".to_vec()),
    ("half of it", |batch| {
        let whole = http(truth(batch).to_string().as_bytes());
        let text = String::from_utf8(whole).expect("text");
        text.replace("Content-Length: ", "Content-Length: 1")
            .into_bytes()
    }),
    ("more than there can be", |_| {
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n".to_vec()
    }),
    ("more than there can be, without saying so", |_| {
        [b"HTTP/1.0 200 OK\r\n\r\n".as_slice(), &vec![b'x'; 8 << 20]].concat()
    }),
    ("an error of its own", |_| {
        b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n".to_vec()
    }),
];

#[test]
fn nothing_that_a_lying_worker_says_is_passed_on() {
    let _machine = heavy();
    let honest = worker("20", &[]);
    for (name, lie) in LIES {
        let (address, lies) = liar(*lie);
        let flags = [
            "--batch-max",
            "8",
            "--batch-timeout-ms",
            "3000",
            "--output-max-bytes",
            "1000",
        ];
        let server = server(&[address, honest.listen()], &flags);
        let statuses = traffic(&server, 8, || {
            wait_for("a lie", || lies.load(Ordering::Relaxed) >= 2);
            wait_answered(&server, 20);
        });
        // Whoever met the liar twice is told so: 503. Eight at a time can.
        let told = statuses.iter().filter(|&&status| status == 503).count();
        assert_eq!(failed(&statuses), told, "{name}: {statuses:?}");
        let lies = lies.load(Ordering::Relaxed);
        assert!(
            told <= 8 * lies,
            "{name}: {told} were told, for {lies} lies"
        );
    }
}

/// Workers that can't read one caller's parameters, and refuse whole batches for them. It costs that caller an answer, the
/// workers nothing.
#[test]
fn a_batch_that_workers_cannot_read_is_no_fault_of_theirs() {
    let _machine = heavy();
    let squeamish: Lie = |batch| {
        let requests = batch["requests"].as_array().expect("requests");
        if requests
            .iter()
            .all(|request| request["parameters"]["poison"].is_null())
        {
            return http(truth(batch).to_string().as_bytes());
        }
        let body = r#"{"detail": "this is no batch"}"#;
        let length = body.len();
        format!("HTTP/1.1 400 Bad Request\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes()
    };
    let workers = [liar(squeamish).0, liar(squeamish).0];
    let flags = ["--batch-max", "8", "--patience", "inf"];
    let mut server = server(&workers, &flags);
    for round in 0..3 {
        in_parallel(8, |index| {
            let input = unique("eater").to_lowercase();
            let parameters = json!({ if index == 0 { "poison" } else { "salt" }: round + 1 });
            let body = json!({ "input": input, "parameters": parameters }).to_string();
            let response = server.connect().request(post_body("", &body));
            if index == 0 {
                let problem = response.expect_problem(422);
                assert_eq!(problem["detail"], "this is no batch");
            } else {
                assert_eq!(response.output(), input);
            }
        });
    }
    let log = server.end();
    assert!(!log.contains(" is down: "), "{log}");
}

/// What breaks JSON readers does not get as far as a worker.
#[test]
fn parameters_that_break_readers_are_refused_at_the_door() {
    let (address, batches) = liar(|batch| http(truth(batch).to_string().as_bytes()));
    let server = server(&[address], &[]);
    let (digits, open, close) = ("1".repeat(5_000), "[".repeat(3_000), "]".repeat(3_000));
    for (poison, why) in [
        (digits.as_str(), "64 characters"),
        (&format!("{open}{close}"), "32 deep"),
        ("1e999", "64-bit"),
        (r#""\ud800""#, "surrogate"),
    ] {
        let body = format!(r#"{{"input": "a", "parameters": {{"seed": {poison}}}}}"#);
        let response = server.connect().request(post_body("", &body));
        let detail = response.expect_problem(400)["detail"].to_string();
        assert!(detail.contains(why), "{detail}");
    }
    assert_eq!(batches.load(Ordering::Relaxed), 0);
    assert_eq!(server.infer("a").output(), "a");
    assert_eq!(batches.load(Ordering::Relaxed), 1);
}

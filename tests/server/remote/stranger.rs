//! A worker in another language: the example in plain Python.

use std::path::Path;

use crate::support::tools::{Listening, Reserved, is_there};
use crate::support::{Client, in_parallel, light, unique};

use super::{batch, post_batch, server};

#[test]
fn the_worker_in_plain_python_serves() {
    if !is_there("python3") {
        return;
    }
    let _machine = light();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/worker.py");
    let source = std::fs::read_to_string(&example).expect("the example is there");
    let lines = source
        .lines()
        .filter(|line| !line.trim().is_empty())
        .count();
    assert!(lines <= 60, "{lines} lines are more than a reader wants");
    let reserved = Reserved::new();
    let address = reserved.address();
    let port = address.port().to_string();
    let _worker = Listening::start("python3", &[&example.display().to_string(), &port], address);
    let server = server(&[address], &["--batch-max", "10"]);
    in_parallel(30, |_| {
        let input = unique("Python");
        server.infer(&input).expect_output(&input).status
    });
    // The same batch again is not run again.
    let ask = |body: &str| Client::connect(address).request(post_batch("", body));
    let (once, again) = (ask(&batch("b", &["a"])), ask(&batch("b", &["a"])));
    assert_eq!((once.status, &once.body), (200, &again.body));
    assert_eq!(ask(&batch("b", &["other"])).status, 409);
    assert_eq!(ask("{").status, 400);
}

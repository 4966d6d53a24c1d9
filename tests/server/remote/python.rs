//! The user's own function, on workers.

use rustix::process::Signal;

use crate::support::model::Model;
use crate::support::tools::is_there;
use crate::support::{Client, Server, heavy, in_parallel, unique, wait_for};

use super::{
    BATCH_TIMEOUT, SHORT_BATCH_TIMEOUT, described, failed, post_batch, server, traffic,
    wait_answered, wait_up,
};

/// Upper case like the simulated executor, except for what it does not take; tells its parameters and ids.
const FUNCTION: &str = r#"
import time

def batchstring(inputs, parameters, request_ids):
    time.sleep(0.02)
    if any("poison" in text for text in inputs):
        raise ValueError("poison")
    outputs = []
    for text, known, name in zip(inputs, parameters, request_ids):
        if "rude" in text:
            outputs.append(ValueError("too rude"))
        elif text == "tell":
            outputs.append((f"{name} {known}", 7))
        else:
            outputs.append(text.upper())
    return outputs
"#;

/// One caller's output that is longer than all of the batch's may be together: the worker cuts it, and stays in service.
#[test]
fn an_output_that_is_far_too_long_is_its_callers_affair() {
    if !is_there("python3") {
        return;
    }
    let _machine = heavy();
    let source = "def batchstring(inputs):\n    return ['é' * 2_000_000 if text == 'long' else text.upper() for text in inputs]\n";
    let model = Model::new(source);
    let worker = worker(&model);
    let mut server = server(&[worker.listen()], &["--batch-timeout-ms", "30000"]);
    for _ in 0..2 {
        let problem = server.infer("long").expect_problem(500);
        let detail = problem["detail"].as_str().expect("text");
        assert_eq!(detail, "the output is longer than 262144 bytes");
        server.infer("a").expect_output("a");
    }
    let log = server.end();
    assert!(!log.contains(" is down: "), "{log}");
}

fn worker(model: &Model) -> Server {
    let target = model.target(":batchstring");
    // Neither has a Python process that gets no processor for a while lost its batch.
    let flags = [&["--python", &target, "--cores", "1"], &BATCH_TIMEOUT[..]].concat();
    let mut worker = Server::start_worker(&flags);
    wait_up(&mut worker, 1);
    worker
}

/// Whoever sends batches to a worker may let pass what Python's reader does not take. It is an error of that request alone.
#[test]
fn parameters_that_python_cannot_read_cost_their_own_request() {
    if !is_there("python3") {
        return;
    }
    let source = "def batchstring(inputs, parameters, request_ids):\n    \
                  return [f'{i} {p} {r} {len(inputs)}' for i, p, r in zip(inputs, parameters, request_ids)]\n";
    let model = Model::new(source);
    let mut worker = worker(&model);
    // Not every Python minds so many digits.
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(200_000), "]".repeat(200_000));
    let batch = |id: &str, all: &[&str]| {
        let requests = all.iter().enumerate().map(|(place, parameters)| {
            format!(r#"{{"request_id":"{place}","input":"x","parameters":{parameters}}}"#)
        });
        let requests = requests.collect::<Vec<_>>().join(",");
        let body = format!(r#"{{"batch_id":"{id}","requests":[{requests}]}}"#);
        let response = worker.connect().request(post_batch("", &body));
        assert_eq!(response.status, 200, "{response:?}");
        response.json()["results"].clone()
    };
    let mixed = batch("mixed", &["{\"k\": 1}", &deep, "null", "[1]", "{}"]);
    for (place, output) in [(0, "x {'k': 1} 0 3"), (2, "x {} 2 3"), (4, "x {} 4 3")] {
        assert_eq!(mixed[place]["output"], output);
    }
    for (place, why) in [(1, "RecursionError"), (3, "they are no JSON object")] {
        assert_eq!(mixed[place]["status"], "error");
        let error = mixed[place]["error"].as_str().expect("text");
        assert!(
            error.starts_with("the parameters can't be read: "),
            "{error}"
        );
        assert!(error.contains(why), "{error}");
    }
    let spoilt = batch("spoilt", &[&deep, "5"]);
    assert_eq!(
        (&spoilt[0]["status"], &spoilt[1]["status"]),
        (&"error".into(), &"error".into())
    );
    assert_eq!(batch("sound", &["{}"])[0]["output"], "x {} 0 1");
    let log = worker.end();
    assert!(!log.contains(" is down: "), "{log}");
}

#[test]
fn a_function_of_your_own_runs_on_workers() {
    if !is_there("python3") {
        return;
    }
    let _machine = heavy();
    let model = Model::new(FUNCTION);
    let workers = [worker(&model), worker(&model)];
    let flags = [
        "--patience",
        "inf",
        "--hold-max-ms",
        "300",
        "--batch-max",
        "12",
    ];
    let flags = [&flags[..], &SHORT_BATCH_TIMEOUT].concat();
    let mut server = server(&workers.each_ref().map(Server::listen), &flags);
    // Parameters and the caller's id on their way out, tokens on their way back.
    let body = r#"{"input": "tell", "parameters": {"max_tokens": 3}}"#;
    let told = Client::connect(server.listen()).request(crate::support::client::post_body(
        "X-Request-Id: mine-7\r\n",
        body,
    ));
    assert_eq!(told.output(), "mine-7 {'max_tokens': 3}");
    assert_eq!(told.json()["metadata"]["tokens_used"], 7);
    // One names itself, one has to be found, and the others get their answers.
    let statuses = in_parallel(12, |index| {
        let input = unique(["poison", "rude"].get(index).copied().unwrap_or("good"));
        let response = server.infer(&input);
        match response.status {
            200 => drop(response.expect_output(&input)),
            _ => assert!(response.text().contains("ValueError"), "{response:?}"),
        }
        response.status
    });
    assert_eq!(statuses[..2], [422, 422]);
    assert_eq!(failed(&statuses), 2, "{statuses:?}");
    // A worker that is killed takes its Python along and costs nobody an answer.
    let [mut victim, _other] = workers;
    let statuses = traffic(&server, 12, || {
        wait_answered(&server, 40);
        victim.signal(Signal::KILL);
        victim.wait_exit();
        wait_for("the loss to be noticed", || {
            server.metric("funicular_gpu_up", &[]) == 1.0
        });
        wait_answered(&server, 40);
    });
    assert_eq!(failed(&statuses), 0, "{}", described(&statuses));
    server.wait_for("the other one to serve", |server| {
        server.infer("a").status == 200
    });
}

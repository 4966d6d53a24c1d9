//! A worker as its protocol describes it, spoken to by hand.

use std::fs;

use crate::support::server::{HOLDABLE, run};
use crate::support::{Client, Response, Server, unique, wait_for};

use super::{batch, post_batch, server, worker};

fn ask(worker: &Server, id: &str, inputs: &[&str]) -> Response {
    worker.connect().request(post_batch("", &batch(id, inputs)))
}

/// The results as id, output and status.
fn results(response: &Response) -> Vec<(String, String, String)> {
    assert_eq!(response.status, 200, "{response:?}");
    let body = response.json();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let results = body["results"].as_array().expect("results");
    results
        .iter()
        .map(|result| {
            (
                text(&result["request_id"]),
                text(&result["output"]),
                text(&result["status"]),
            )
        })
        .collect()
}

fn ok(place: &str, output: &str) -> (String, String, String) {
    (place.to_owned(), output.to_owned(), "ok".to_owned())
}

#[test]
fn a_batch_runs_whole_and_comes_back_with_its_ids() {
    let worker = worker("50", &[]);
    let response = ask(&worker, "b-1", &["one", "two", ""]);
    assert_eq!(
        results(&response),
        [ok("0", "ONE"), ok("1", "TWO"), ok("2", "")]
    );
    assert_eq!(response.json()["batch_id"], "b-1");
    let whole = [("reason", "whole")];
    let metrics = worker.expect_count("funicular_batch_launches_total", &whole, 1.0);
    let paced = metrics.value("funicular_batch_launches_total", &[("reason", "paced")]);
    assert_eq!(paced, 0.0);
    assert_eq!(metrics.value("funicular_slots_filled_total", &[]), 3.0);
}

/// A worker whose batches end when the test says so.
fn held() -> Server {
    let worker = worker("10", &HOLDABLE);
    worker.hold();
    worker
}

#[test]
fn a_batch_sent_again_gets_the_same_results_and_runs_once() {
    let worker = worker("10", &HOLDABLE);
    let once = ask(&worker, "same", &["a", "b"]);
    let again = ask(&worker, "same", &["a", "b"]);
    assert_eq!((again.status, &again.body), (200, &once.body));
    // And while it runs: everybody waits for the same run.
    worker.hold();
    let send = |id: &str, inputs: &[&str]| {
        let mut client = worker.connect();
        client.send(post_batch("", &batch(id, inputs)));
        client
    };
    let mut many = [(); 8].map(|()| send("together", &["c", "d"]));
    worker.wait_running(2);
    worker.release();
    let first = many[0].response();
    assert_eq!(results(&first), [ok("0", "C"), ok("1", "D")]);
    for client in &mut many[1..] {
        assert_eq!(client.response().body, first.body);
    }
    // And although whoever sent it first is gone.
    worker.hold();
    let gone = send("left", &["e"]);
    worker.wait_running(1);
    gone.reset();
    worker.release();
    assert_eq!(results(&ask(&worker, "left", &["e"])), [ok("0", "E")]);
    worker.expect_count("funicular_batches_total", &[], 3.0);
}

#[test]
fn another_batch_under_a_known_id_is_refused() {
    let worker = worker("10", &[]);
    ask(&worker, "taken", &["a"]);
    for other in [&["b"][..], &["a", "a"], &["a", "b"]] {
        ask(&worker, "taken", other).expect_problem(409);
    }
    assert_eq!(results(&ask(&worker, "taken", &["a"])), [ok("0", "A")]);
    worker.expect_count("funicular_batches_total", &[], 1.0);
}

#[test]
fn one_batch_runs_one_waits_and_others_are_told_to_come_back() {
    let worker = held();
    let mut clients: Vec<_> = (0..6)
        .map(|index| {
            let mut client = worker.connect();
            client.send(post_batch("", &batch(&index.to_string(), &["a"])));
            client
        })
        .collect();
    wait_for("four to be told", || {
        clients.iter().filter(|client| client.has_news()).count() >= 4
    });
    worker.release();
    let answers: Vec<_> = clients.iter_mut().map(Client::response).collect();
    let (ran, told): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 200);
    assert_eq!((ran.len(), told.len()), (2, 4));
    for answer in told {
        let problem = answer.expect_problem(503);
        assert_eq!(problem["reason"], "busy", "{answer:?}");
        assert!(
            problem["retry_after_ms"].as_u64().expect("a number") <= 1500,
            "{answer:?}"
        );
    }
    for (index, answer) in answers
        .iter()
        .enumerate()
        .filter(|(_, answer)| answer.status == 503)
    {
        let again = ask(&worker, &index.to_string(), &["b"]);
        assert_ne!(again.status, 409, "{answer:?} did not run, so it is new");
    }
}

#[test]
fn what_is_no_batch_is_refused_in_words() {
    let worker = worker("10", &["--batch-max", "3"]);
    let mut client = worker.connect();
    let mut refused = |body: &str, status: u16| {
        let response = client.request(post_batch("", body));
        response.expect_problem(status)["detail"]
            .as_str()
            .expect("a text")
            .to_owned()
    };
    assert!(refused("{", 400).contains("line 1"));
    assert!(refused(r#"{"batch_id": "b", "requests": []}"#, 400).contains("empty"));
    assert!(refused(&batch("", &["a"]), 400).contains("id"));
    let twice = r#"{"batch_id":"b","requests":[{"request_id":"1","input":""},{"request_id":"1","input":""}]}"#;
    assert!(refused(twice, 400).contains("twice"));
    assert!(refused(&batch("b", &["a"; 4]), 413).contains("--batch-max"));
    assert!(refused(&batch("b", &[&"x".repeat(70_000)]), 413).contains("65536"));
    // What it does not know it leaves alone, on the same connection.
    let extra = r#"{"hint":1,"batch_id":"b","requests":[{"request_id":"1","input":"a","tier":"paid","parameters":{"x":[1]}}]}"#;
    assert_eq!(
        results(&client.request(post_batch("", extra))),
        [ok("1", "A")]
    );
}

#[test]
fn a_worker_serves_batches_and_health_and_nothing_else() {
    let worker = worker("10", &[]);
    assert_eq!(worker.get("/v2/health/ready").status, 200);
    assert_eq!(worker.get("/v2/health/live").status, 200);
    assert!(worker.get("/").text().contains("/internal/batch"));
    assert!(worker.get("/openapi.json").json()["paths"]["/internal/batch"].is_object());
    worker.infer("a").expect_problem(404);
    worker.get("/internal/batch").expect_problem(405);
    assert!(
        worker.screen().contains("worker for"),
        "{}",
        worker.screen()
    );
    let server = Server::start(&[]);
    server
        .connect()
        .request(post_batch("", &batch("b", &["a"])))
        .expect_problem(404);
}

#[test]
fn a_batch_on_which_the_function_raises_is_answered_as_one() {
    let worker = worker("10", &["--sim-fault", "kind=raise,marker=poison,every=1"]);
    let problem = ask(&worker, "b", &["good", "poison"]).expect_problem(422);
    assert!(
        problem["detail"]
            .as_str()
            .expect("a text")
            .contains("ValueError"),
        "{problem}"
    );
    assert_eq!(ask(&worker, "b", &["good", "poison"]).status, 422);
    assert_eq!(results(&ask(&worker, "c", &["good"])), [ok("0", "GOOD")]);
    // Nobody searched for it here.
    worker.expect_count("funicular_batches_total", &[], 2.0);
}

#[test]
fn a_worker_whose_gpu_is_gone_says_whether_the_batch_ran() {
    let worker = worker("50", &["--sim-fault", "kind=lost,batch=2,ms=600000"]);
    ask(&worker, "ran", &["a"]).expect_problem(502);
    let problem = ask(&worker, "did not", &["a"]).expect_problem(503);
    assert_eq!(problem["reason"], "no_gpu");
    worker.get("/v2/health/ready").expect_problem(503);
}

#[test]
fn a_worker_with_a_secret_wants_to_see_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("secret");
    fs::write(&file, "s3cret\n").expect("written");
    let path = file.display().to_string();
    let worker = worker("10", &["--worker-secret-file", &path]);
    let to_paste = format!("-H \"Authorization: Bearer $(cat '{path}')\"");
    assert!(worker.screen().contains(&to_paste), "{}", worker.screen());
    let body = batch("b", &["a"]);
    for headers in [
        "",
        "Authorization: Bearer wrong\r\n",
        "Authorization: Basic s3cret\r\n",
    ] {
        let response = worker.connect().request(post_batch(headers, &body));
        response.expect_problem(401);
        assert_eq!(response.header("WWW-Authenticate"), Some("Bearer"));
    }
    let shown = post_batch("Authorization: Bearer s3cret\r\n", &body);
    assert_eq!(results(&worker.connect().request(shown)), [ok("0", "A")]);
    assert_eq!(
        worker.get("/v2/health/ready").status,
        200,
        "health is nobody's secret"
    );

    let knows = server(&[worker.listen()], &["--worker-secret-file", &path]);
    knows.infer("shared").expect_output("shared");
    let url = format!("http://{}", worker.listen());
    let mut does_not = Server::start(&["--worker", &url]);
    does_not.wait_for("the reason", |server| {
        server.status()["gpus"][0]["why"]
            .as_str()
            .is_some_and(|why| why.contains("secret"))
    });
    does_not.infer("a").expect_problem(503);
}

#[test]
fn workers_that_cannot_start_say_why() {
    let said = |arguments: &[&str]| {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(said(&["worker", "--gpus", "2"]).contains("a worker has one GPU"));
    assert!(said(&["worker", "--worker", "http://a:1"]).contains("of its own"));
    assert!(said(&["--worker", "localhost:1"]).contains("http://HOST:PORT"));
    assert!(said(&["worker", "--worker-secret-file", "/no/such"]).contains("/no/such"));
    let help = run(&["worker", "--help"]);
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    assert!(
        help.contains("POST /internal/batch") && help.contains("--worker-secret-file"),
        "{help}"
    );
}

#[test]
fn inputs_parameters_and_outputs_pass_through_unharmed() {
    let worker = worker("5", &[]);
    let server = server(&[worker.listen()], &[]);
    let odd = [
        "",
        "\u{0}\u{1f}\"\\\n\u{7f}",
        "🚡 ß \u{202e}",
        &"x".repeat(60_000),
    ];
    for input in odd.map(|text| format!("{text}{}", unique(""))) {
        server.infer(&input).expect_output(&input);
    }
    let body = r#"{"input": "with", "parameters": {"max_tokens": 3, "other": [1, {"x": "y"}]}}"#;
    let response =
        Client::connect(server.listen()).request(crate::support::client::post_body("", body));
    response.expect_output("with");
}

//! What a well-formed request is answered with.

use std::collections::HashSet;

use crate::support::server::PATIENT;
use crate::support::tools;
use crate::support::{Client, Server, in_parallel, light, output_of, unique};

#[test]
fn the_curl_line_of_the_screen_works_when_pasted_and_takes_one_batch() {
    if !tools::is_there("curl") {
        return;
    }
    let _machine = light();
    let server = Server::start(&[]);
    let screen = server.screen();
    let line = screen
        .lines()
        .find(|line| line.starts_with("  curl "))
        .expect("on the screen");
    let tries = 5;
    for _ in 0..tries {
        let answer = tools::output("sh", &["-c", line]);
        let answer: serde_json::Value = serde_json::from_str(&answer).expect("JSON");
        assert_eq!(answer["output"], "HELLO, FUNICULAR!");
        let latency = answer["metadata"]["latency_ms"].as_f64();
        assert!(latency >= Some(99.0), "{latency:?}");
    }
    // One batch of 100 ms each, and no hold of 40 ms before it, unless the machine itself held one of them.
    let tries = f64::from(tries);
    let metrics = server.expect_count("funicular_requests_total", &[("code", "200")], tries);
    assert_eq!(metrics.value("funicular_slots_filled_total", &[]), tries);
    let batches = metrics.value("funicular_batch_size_count", &[]);
    let held = [("reason", "hold")];
    let held = metrics.value("funicular_batch_launches_total", &held);
    assert!(batches == tries && held < tries, "{batches}, {held} held");
}

#[test]
fn an_answer_has_every_promised_member() {
    let server = Server::start(&["--sim-latency-ms", "20"]);
    let response = server.infer("What is the capital of France?");
    assert_eq!(response.output(), "WHAT IS THE CAPITAL OF FRANCE?");
    assert_eq!(response.header("Content-Type"), Some("application/json"));
    let date = response.header("Date").expect("a date");
    assert!(date.ends_with(" GMT"), "{date}");
    let body = response.json();
    assert_eq!(body["request_id"].as_str(), response.header("X-Request-Id"));
    let metadata = &body["metadata"];
    // Six words and a mark, and the same again.
    assert_eq!(metadata["tokens_used"], 14);
    let latency_ms = metadata["latency_ms"].as_f64().expect("a number");
    let wait_ms = metadata["queue_wait_ms"].as_f64().expect("a number");
    assert!(
        latency_ms >= 19.9 && wait_ms >= 0.0 && wait_ms <= latency_ms,
        "{body}"
    );
    let members = body.as_object().expect("an object").len();
    assert_eq!(
        (members, metadata.as_object().expect("an object").len()),
        (3, 3),
        "{body}"
    );
}

#[test]
fn inputs_of_every_kind_come_back_whole() {
    let server = Server::start(&["--sim-latency-ms", "1"]);
    let mut client = server.connect();
    let long = "abc é ".repeat(9_000);
    for input in [
        "",
        " ",
        "\u{0}",
        "line\nbreak\t\"quoted\" \\",
        "straße",
        "🚡 and 𝔣",
        &long,
    ] {
        client.infer(input).expect_output(input);
    }
}

#[test]
fn many_callers_at_once_get_their_own_output_each() {
    let _machine = light();
    let server = Server::start(&[&PATIENT[..], &["--sim-latency-ms", "20"]].concat());
    let ids = in_parallel(40, |_| {
        let mut client = server.connect();
        let mut ids = Vec::new();
        for _ in 0..10 {
            let input = unique("mine");
            let response = client.infer(&input);
            response.expect_output(&input);
            ids.push(response.header("X-Request-Id").expect("an id").to_owned());
        }
        ids
    });
    let distinct: HashSet<_> = ids.iter().flatten().collect();
    assert_eq!(distinct.len(), 400);
    let metrics = server.expect_count("funicular_requests_total", &[("code", "200")], 400.0);
    assert_eq!(metrics.value("funicular_slots_filled_total", &[]), 400.0);
}

#[test]
fn request_ids_are_kept_if_they_are_harmless_and_made_up_if_not() {
    let server = Server::start(&["--sim-latency-ms", "1"]);
    let mut client = server.connect();
    let kept = client.infer_with("X-Request-Id: abc-123\r\n", "x");
    assert_eq!(kept.header("X-Request-Id"), Some("abc-123"));
    assert_eq!(kept.json()["request_id"], "abc-123");
    let in_an_error = client.infer_with("X-Request-Id: abc-123\r\nX-Tier: gold\r\n", "x");
    assert_eq!(in_an_error.expect_problem(400)["request_id"], "abc-123");
    let long = "x".repeat(200);
    for bad in ["", "with space", "quote\"", "comma,", long.as_str()] {
        let made_up = client.infer_with(&format!("X-Request-Id: {bad}\r\n"), "x");
        let id = made_up.header("X-Request-Id").expect("an id");
        assert!(id.starts_with("req_") && id != bad, "{id}");
    }
}

#[test]
fn tiers_are_believed_in_any_case_and_free_by_default() {
    let server = Server::start(&["--sim-latency-ms", "1"]);
    let mut client = server.connect();
    for header in [
        "X-Tier: enterprise\r\n",
        "x-tier: PAID\r\n",
        "X-Tier: Free\r\n",
        "",
    ] {
        assert_eq!(client.infer_with(header, "x").status, 200, "{header}");
    }
    for (tier, count) in [("enterprise", 1.0), ("paid", 1.0), ("free", 2.0)] {
        let labels = [("tier", tier), ("code", "200")];
        server.expect_count("funicular_requests_total", &labels, count);
    }
}

#[test]
fn the_model_may_be_named_and_parameters_may_be_given() {
    let server = Server::start(&["--sim-latency-ms", "1", "--model", "mine"]);
    let mut client = server.connect();
    for body in [
        r#"{"model": "mine", "input": "x"}"#,
        r#"{"input": "x", "parameters": {"max_tokens": 100, "temperature": 0.7, "other": [1, {"a": null}]}}"#,
        r#"{"input": "x", "parameters": {}, "unknown": {"deep": [[[]]]}}"#,
        r#"{"input": "x", "parameters": null, "model": null}"#,
    ] {
        let response = client.request(crate::support::client::post_body("", body));
        assert_eq!(response.output(), "X", "{body}");
    }
}

#[test]
fn the_other_routes_tell_what_they_are_there_for() {
    let server = Server::start(&["--sim-latency-ms", "1"]);
    let mut client = server.connect();
    for path in [
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/health/ready?verbose",
    ] {
        assert_eq!(client.get(path).status, 200, "{path}");
    }
    let welcome = client.get("/").text();
    let line = format!("http://{}/v1/inference", server.listen());
    assert!(
        welcome.contains("curl") && welcome.contains(&line),
        "{welcome}"
    );
    let document = client.get("/openapi.json");
    assert_eq!(document.header("Content-Type"), Some("application/json"));
    assert!(document.json()["paths"]["/v1/inference"]["post"].is_object());
}

#[test]
fn head_is_get_without_the_body() {
    let server = Server::start(&["--sim-latency-ms", "1"]);
    let mut client = server.connect();
    for path in ["/", "/openapi.json", "/v2/health/live", "/v2/health/ready"] {
        let get = client.get(path);
        client.send(format!("HEAD {path} HTTP/1.1\r\nHost: test\r\n\r\n"));
        let head = client.response_to_head();
        assert_eq!(head.status, 200);
        let length = get.header("Content-Length");
        assert_eq!(head.header("Content-Length"), length, "{path}");
        assert_eq!(length, Some(get.body.len().to_string().as_str()));
    }
    // Nothing is left on the connection that a body would have left.
    client.infer("x").expect_output("x");
}

#[test]
fn versions_and_connection_headers_decide_whether_the_connection_survives() {
    let server = Server::start(&["--sim-latency-ms", "1"]);
    let ask = |version: &str, header: &str| {
        let mut client = server.connect();
        let body = r#"{"input":"x"}"#;
        let response = client.request(format!(
            "POST /v1/inference HTTP/{version}\r\nHost: a\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n{header}\r\n{body}",
            body.len()
        ));
        assert_eq!(response.output(), "X");
        (client, response)
    };
    for (version, header) in [
        ("1.0", ""),
        ("1.0", "Connection: close\r\n"),
        ("1.1", "Connection: close\r\n"),
        ("1.1", "Connection: foo, CLOSE\r\n"),
    ] {
        let (mut client, response) = ask(version, header);
        assert!(response.closes(), "{version} {header}");
        client.expect_close();
    }
    let (mut client, response) = ask("1.0", "Connection: keep-alive\r\n");
    assert_eq!(response.header("Connection"), Some("keep-alive"));
    client.infer("y").expect_output("y");
    let (mut client, response) = ask("1.1", "Connection: keep-alive\r\n");
    assert!(!response.closes());
    client.infer("y").expect_output("y");
}

#[test]
fn pipelined_requests_are_answered_in_their_order() {
    let server = Server::start(&["--sim-latency-ms", "5"]);
    let mut client = server.connect();
    let inputs: Vec<_> = (0..30).map(|_| unique("piped")).collect();
    let mut all = Vec::new();
    for input in &inputs {
        all.extend(crate::support::post("", input));
        all.extend(b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    client.send(all);
    for input in &inputs {
        client.response().expect_output(input);
        assert_eq!(client.response().text(), "{\"live\":true}");
    }
    assert!(!client.has_news());
}

#[test]
fn many_pipelined_pieces_do_not_starve_the_other_connections() {
    let _machine = light();
    let server = Server::start(&["--sim-latency-ms", "1", "--cores", "1"]);
    let mut greedy = server.connect();
    let many = "GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n".repeat(5_000);
    greedy.send(many);
    // It is answered while the other one's answers are still being made or read.
    server.connect().infer("polite").expect_output("polite");
    for _ in 0..5_000 {
        assert_eq!(greedy.response().status, 200);
    }
}

#[test]
fn a_connection_serves_thousands_of_requests() {
    let server = Server::start(&["--sim-latency-ms", "0"]);
    let mut client: Client = server.connect();
    for _ in 0..2_000 {
        let input = unique("again");
        assert_eq!(client.infer(&input).output(), output_of(&input));
    }
    let opened = server
        .fresh_metrics()
        .value("funicular_connections_opened_total", &[]);
    assert_eq!(opened, 1.0);
}

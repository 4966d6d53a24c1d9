//! What is wrong with a request, and what its caller is told.

use crate::support::client::post_body;
use crate::support::{Client, Response, Server};

fn quick() -> Server {
    Server::start(&["--sim-latency-ms", "1"])
}

/// The connection is as good as new.
fn expect_usable(client: &mut Client) {
    client.infer("next").expect_output("next");
}

#[test]
fn what_is_wrong_with_a_body_is_said_with_line_and_column() {
    let server = quick();
    let mut client = server.connect();
    let mut refused = |body: &str| -> String {
        let response = client.request(post_body("", body));
        let problem = response.expect_problem(400);
        assert!(!response.closes(), "{response:?}");
        problem["detail"].as_str().expect("text").to_owned()
    };
    for (body, expected) in [
        ("", "line 1 column 0"),
        ("nonsense", "line 1 column 1"),
        ("{\"input\": \"cut", "line 1 column"),
        ("{\n  \"input\": 5\n}", "line 2 column"),
        ("[\"input\"]", "object"),
        ("{}", "input"),
        ("{\"input\": null}", "input"),
        ("{\"input\": [\"a\"]}", "input"),
        ("{\"input\": \"a\", \"input\": \"b\"}", "input"),
        ("{\"input\": \"a\", \"model\": 1}", "model"),
        ("{\"input\": \"a\", \"parameters\": []}", "parameters"),
        (
            "{\"input\": \"a\", \"parameters\": {\"max_tokens\": \"many\"}}",
            "max_tokens",
        ),
        (
            "{\"input\": \"a\", \"parameters\": {\"max_tokens\": 0}}",
            "max_tokens",
        ),
        (
            "{\"input\": \"a\", \"parameters\": {\"temperature\": -1}}",
            "temperature",
        ),
        ("{\"input\": \"a\"} trailing", "line 1 column"),
        ("\u{feff}{\"input\": \"a\"}", "byte order mark"),
        ("{\"input\": \"\\ud800\"}", "line 1 column"),
    ] {
        let detail = refused(body);
        assert!(detail.contains(expected), "{body}: {detail}");
    }
    expect_usable(&mut client);
}

#[test]
fn a_body_that_is_not_utf_8_is_refused() {
    let server = quick();
    let mut client = server.connect();
    let mut request = post_body("", "{\"input\": \"xx\"}");
    let at = request.len() - 4;
    request[at] = 0xff;
    let detail = client.request(request).expect_problem(400)["detail"].clone();
    assert!(detail.as_str().expect("text").contains("UTF-8"), "{detail}");
    expect_usable(&mut client);
}

#[test]
fn nesting_overflows_no_stack() {
    let server = quick();
    let mut client = server.connect();
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let deep = format!("{}1{}", open.repeat(100_000), close.repeat(100_000));
        for body in [
            deep.clone(),
            format!("{{\"input\": {deep}}}"),
            format!("{{\"input\": \"a\", \"parameters\": {{\"x\": {deep}}}}}"),
            format!("{{\"input\": \"a\", \"other\": {deep}}}"),
            format!("{{\"input\": \"a\", \"other\": {}", open.repeat(100_000)),
        ] {
            let response = client.request(post_body("", &body));
            assert!(matches!(response.status, 200 | 400), "{}", response.status);
        }
    }
    expect_usable(&mut client);
}

#[test]
fn routes_models_and_methods_that_are_not_there_are_named() {
    let server = quick();
    let mut client = server.connect();
    client.get("/nope").expect_problem(404);
    client.get("/v1/inference/").expect_problem(404);
    let model = client.request(post_body("", r#"{"input": "x", "model": "nope"}"#));
    let detail = model.expect_problem(404)["detail"].clone();
    assert!(detail.as_str().expect("text").contains("nope"), "{detail}");

    let allowed = |response: Response, allow: &str| {
        response.expect_problem(405);
        assert_eq!(response.header("Allow"), Some(allow), "{response:?}");
    };
    allowed(client.get("/v1/inference"), "POST");
    for method in ["PUT", "DELETE", "PATCH", "OPTIONS", "BREW"] {
        let request = format!("{method} /v1/inference HTTP/1.1\r\nHost: a\r\n\r\n");
        allowed(client.request(request), "POST");
    }
    let post = "POST /v2/health/live HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi";
    allowed(client.request(post), "GET, HEAD");
    expect_usable(&mut client);
}

#[test]
fn headers_that_make_no_sense_are_named_and_the_connection_survives() {
    let server = quick();
    let mut client = server.connect();
    for (header, status, named) in [
        ("X-Tier: platinum", 400, "platinum"),
        ("X-Tier: paid\r\nX-Tier: free", 400, "X-Tier"),
        ("X-Request-Timeout-Ms: soon", 400, "X-Request-Timeout-Ms"),
        ("X-Request-Timeout-Ms: -5", 400, "X-Request-Timeout-Ms"),
        ("X-Request-Timeout-Ms: 0", 400, "X-Request-Timeout-Ms"),
        ("grpc-timeout: 100", 400, "grpc-timeout"),
        ("grpc-timeout: 100x", 400, "grpc-timeout"),
        ("x-envoy-expected-rq-timeout-ms: 1.5", 400, "x-envoy"),
        ("Expect: miracles", 417, "100-continue"),
    ] {
        let response = client.infer_with(&format!("{header}\r\n"), "x");
        let detail = response.expect_problem(status)["detail"].clone();
        assert!(
            detail.as_str().expect("text").contains(named),
            "{header}: {detail}"
        );
        assert!(!response.closes(), "{header}");
    }
    expect_usable(&mut client);
}

#[test]
fn a_body_declared_as_something_else_is_not_read() {
    let server = quick();
    let mut client = server.connect();
    let mut ask = |content_type: &str| {
        let body = r#"{"input":"x"}"#;
        client.request(format!(
            "POST /v1/inference HTTP/1.1\r\nHost: a\r\n{content_type}Content-Length: {}\r\n\r\n{body}",
            body.len()
        ))
    };
    for other in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/jsonl",
        "json",
    ] {
        ask(&format!("Content-Type: {other}\r\n")).expect_problem(415);
    }
    for json in [
        "Content-Type: application/json; charset=utf-8\r\n",
        "content-type: Application/JSON\r\n",
        "Content-Type: application/vnd.api+json\r\n",
        "",
    ] {
        ask(json).expect_output("x");
    }
}

#[test]
fn refusals_are_counted_by_tier_and_code() {
    let server = quick();
    let mut client = server.connect();
    client.get("/nope").expect_problem(404);
    client
        .request(post_body("X-Tier: paid\r\n", "{}"))
        .expect_problem(400);
    for (tier, code) in [("paid", "400"), ("none", "404")] {
        let labels = [("tier", tier), ("code", code)];
        server.expect_count("funicular_requests_total", &labels, 1.0);
    }
}

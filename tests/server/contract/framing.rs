//! Where a request ends, to the letter: whoever reads it differently than a proxy in front can be made to answer a
//! request that nobody sent.

use crate::support::client::{post, post_body};
use crate::support::{Server, wait_for};

fn quick() -> Server {
    Server::start(&["--sim-latency-ms", "1"])
}

/// A request that must not be answered, hidden where the body of another one is.
const HIDDEN: &str = "GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n";

/// Asserts that `request` gets one answer of `status` and then the end of the connection.
fn expect_last(server: &Server, request: &str, status: u16) {
    let mut client = server.connect();
    let response = client.request(request);
    response.expect_problem(status);
    assert!(response.closes(), "{request:?}: {response:?}");
    client.expect_close();
}

#[test]
fn ambiguous_framing_is_refused_and_nothing_after_it_is_read() {
    let server = quick();
    for (headers, body) in [
        ("Content-Length: abc\r\n", ""),
        ("Content-Length: -1\r\n", ""),
        ("Content-Length: +2\r\n", "hi"),
        ("Content-Length: 2 2\r\n", "hi"),
        ("Content-Length: 0x2\r\n", "hi"),
        ("Content-Length: \r\n", ""),
        ("Content-Length: 18446744073709551616\r\n", ""),
        ("Content-Length: 2\r\nContent-Length: 3\r\n", "hi!"),
        ("Content-Length: 2, 3\r\n", "hi!"),
        (
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            "0\r\n\r\n",
        ),
        (
            "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
            "0\r\n\r\n",
        ),
        ("Transfer-Encoding: chunked, chunked\r\n", "0\r\n\r\n"),
        (
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            "0\r\n\r\n",
        ),
        ("Transfer-Encoding: \r\n", "0\r\n\r\n"),
        ("Transfer-Encoding : chunked\r\n", "0\r\n\r\n"),
        ("Content-Length : 2\r\n", "hi"),
        ("X: a\r\n Content-Length: 2\r\n", "hi"),
        ("X: a\r\n\tfolded\r\nContent-Length: 2\r\n", "hi"),
        ("X: a\rContent-Length: 2\r\n", "hi"),
        ("X: a\nContent-Length: 2\r\n", "hi"),
        ("X: a\0b\r\nContent-Length: 2\r\n", "hi"),
        (": nameless\r\nContent-Length: 2\r\n", "hi"),
        ("no colon\r\nContent-Length: 2\r\n", "hi"),
        ("Host: b\r\nContent-Length: 2\r\n", "hi"),
    ] {
        let request = format!(
            "POST /v1/inference HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n{headers}\r\n{body}{HIDDEN}"
        );
        expect_last(&server, &request, 400);
    }
    server.infer("alive").expect_output("alive");
}

#[test]
fn equal_lengths_stated_twice_are_one() {
    let server = quick();
    let mut client = server.connect();
    client.send(
        "POST /v1/inference HTTP/1.1\r\nHost: a\r\nContent-Length: 13\r\nContent-Length: 13\r\n\r\n{\"input\":\"x\"}",
    );
    let response = client.response();
    assert!(matches!(response.status, 200 | 400), "{response:?}");
}

#[test]
fn unknown_codings_and_versions_are_refused() {
    let server = quick();
    let with = |version: &str, coding: &str| {
        format!(
            "POST /v1/inference {version}\r\nHost: a\r\nTransfer-Encoding: {coding}\r\n\r\n0\r\n\r\n{HIDDEN}"
        )
    };
    for coding in [
        "gzip",
        "gzip, chunked",
        "identity",
        "xchunked",
        "chunked;q=1",
        "\"chunked\"",
    ] {
        expect_last(&server, &with("HTTP/1.1", coding), 501);
    }
    expect_last(&server, &with("HTTP/1.0", "chunked"), 400);
    for version in ["HTTP/2.0", "HTTP/1.2", "HTTP/0.9", "HTTP/3"] {
        expect_last(&server, &format!("GET / {version}\r\nHost: a\r\n\r\n"), 505);
    }
}

#[test]
fn what_is_not_http_is_refused() {
    let server = quick();
    for request in [
        "hello\r\n\r\n",
        "GET\r\n\r\n",
        "GET /\r\n\r\n",
        "GET / HTTP/1.1 extra\r\nHost: a\r\n\r\n",
        "GET / HTTX/1.1\r\nHost: a\r\n\r\n",
        "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
        "G@T / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET http:///v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET http://user@a/v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: user@a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: :80\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n",
    ] {
        expect_last(&server, request, 400);
    }
}

#[test]
fn chunked_bodies_are_put_together() {
    let server = quick();
    let mut client = server.connect();
    client.send_chunked("", &["{\"inp", "ut\":", " \"hello", " world\"}"]);
    client.response().expect_output("hello world");
    // Extensions, upper case, leading zeros, trailers.
    client.send(
        "POST /v1/inference HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n\
         00D;name=\"va;lue\"\r\n{\"input\":\"x\"}\r\n0\r\nX-Trailer: t\r\n\r\n",
    );
    client.response().expect_output("x");
    client.infer("next").expect_output("next");
}

#[test]
fn a_chunked_body_may_drip_byte_by_byte() {
    let server = quick();
    let mut client = server.connect();
    let text = "POST /v1/inference HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
                8\r\n{\"input\"\r\n5\r\n:\"x\"}\r\n0\r\nT: x\r\n\r\n";
    for byte in text.bytes() {
        client.send([byte]);
    }
    client.response().expect_output("x");
    for byte in post("", "one by one") {
        client.send([byte]);
    }
    client.response().expect_output("one by one");
}

#[test]
fn broken_chunks_are_refused_and_nothing_after_them_is_read() {
    let server = quick();
    for chunks in [
        "x\r\n",
        "-1\r\n",
        "0x5\r\n",
        " 5\r\nhello\r\n0\r\n\r\n",
        "5\nhello\r\n0\r\n\r\n",
        "5\r\nhelloworld\r\n0\r\n\r\n",
        "5\r\nhello0\r\n\r\n",
        "ffffffffffffffff\r\n",
        "10000000000000000\r\n",
        "\r\n",
        "5;\rx\r\nhello\r\n0\r\n\r\n",
        "0\r\nX: y\n\r\n",
        "0\r\n folded\r\n\r\n",
    ] {
        let request = format!(
            "POST /v1/inference HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}{HIDDEN}"
        );
        let mut client = server.connect();
        let response = client.request(&request);
        assert!(
            matches!(response.status, 400 | 413),
            "{chunks:?}: {response:?}"
        );
        response.expect_problem(response.status);
        client.expect_close();
    }
}

#[test]
fn a_request_inside_a_body_is_a_body() {
    let server = quick();
    let mut client = server.connect();
    client.request(post_body("", HIDDEN)).expect_problem(400);
    let length = HIDDEN.len();
    let get = format!(
        "GET /v2/health/live HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{HIDDEN}"
    );
    assert_eq!(client.request(get).status, 200);
    client.infer("next").expect_output("next");
    assert!(!client.has_news());
}

#[test]
fn the_interim_answer_comes_before_the_body_and_only_if_it_is_wanted() {
    let server = quick();
    let mut client = server.connect();
    let body = r#"{"input":"x"}"#;
    let head = |headers: &str| {
        format!(
            "POST /v1/inference HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\nExpect: 100-continue\r\n{headers}\r\n",
            body.len()
        )
    };
    client.send(head(""));
    assert_eq!(client.response().status, 100);
    client.send(body);
    client.response().expect_output("x");

    // The body came along: no interim answer is due.
    client.send(format!("{}{body}", head("")));
    client.response().expect_output("x");

    // Chunked bodies as well.
    client.send(
        "POST /v1/inference HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n",
    );
    assert_eq!(client.response().status, 100);
    client.send("d\r\n{\"input\":\"x\"}\r\n0\r\n\r\n");
    client.response().expect_output("x");

    // What is refused by its head alone is not worth a body.
    let refused = client.request(head("X-Tier: gold\r\n"));
    refused.expect_problem(400);
    assert!(refused.closes());
    client.expect_close();
}

#[test]
fn targets_come_in_every_form() {
    let server = quick();
    let mut client = server.connect();
    for target in [
        "/v1/inference?a=b",
        "http://other.host/v1/inference",
        "HTTPS://x:1/v1/inference?q",
    ] {
        let body = r#"{"input":"x"}"#;
        let request = format!(
            "POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        client.request(request).expect_output("x");
    }
    client
        .request("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n")
        .expect_problem(404);
    assert_eq!(
        client
            .request("\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n")
            .status,
        200
    );
}

#[test]
fn half_a_request_leaves_nothing_behind() {
    let server = quick();
    for part in [
        "",
        "PO",
        "POST /v1/inference HTTP/1.1\r\nHost: a\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf",
    ] {
        let mut polite = server.connect();
        polite.send(part).half_close().expect_close();
        let mut rude = server.connect();
        rude.send(part);
        rude.reset();
    }
    wait_for("the connections to be gone", || {
        server.metric("funicular_connections", &[]) == 0.0
    });
    server.infer("alive").expect_output("alive");
}

/// A caller that ends its side counts as gone, unless its batch has left by then.
#[test]
fn a_half_closed_connection_gets_its_whole_answer_or_none() {
    let server = quick();
    for _ in 0..50 {
        let mut client = server.connect();
        client.send(post("", "half closed")).half_close();
        if let Some(response) = client.try_response().expect("no half answer") {
            response.expect_output("half closed");
            client.expect_close();
        }
    }
    wait_for("the connections to be gone", || {
        server.metric("funicular_connections", &[]) == 0.0
    });
}

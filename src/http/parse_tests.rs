use proptest::prelude::*;

use super::*;

fn parsed(text: &str) -> Result<Option<Head<'_>>, Rejection> {
    parse_head(text.as_bytes(), &Limits::default())
}

/// The head of a POST with the given header lines.
fn post(lines: &str) -> String {
    format!("POST /v1/inference HTTP/1.1\r\nHost: probe\r\n{lines}\r\n")
}

#[track_caller]
fn head(text: &str) -> Head<'_> {
    parsed(text).expect("accepted").expect("complete")
}

#[track_caller]
fn refused(text: &str) -> Rejection {
    parsed(text).expect_err("refused")
}

#[track_caller]
fn refused_as_malformed(text: &str) {
    let rejection = refused(text);
    assert_eq!(rejection.status(), 400, "{rejection:?}");
    assert!(rejection.closes(), "{rejection:?}");
}

#[test]
fn a_plain_request_is_read() {
    let text =
        post("Content-Type: application/json\r\nContent-Length: 18\r\nX-Request-Id: r-1\r\n");
    let head = head(&text);
    assert_eq!(head.bytes, text.len());
    assert_eq!((head.method, head.path), ("POST", "/v1/inference"));
    assert_eq!(head.framing, Framing::Length(18));
    assert_eq!(head.request_id, Some("r-1"));
    assert_eq!(head.content_type, ContentType::Json);
    assert!(head.keep_alive && !head.expects_continue && head.fault.is_none());
}

#[test]
fn blank_lines_before_the_request_line_are_skipped() {
    let text = format!("\r\n\r\n{}", post(""));
    assert_eq!(head(&text).bytes, text.len());
    assert_eq!(head(&text).method, "POST");
}

#[test]
fn framing_that_two_readers_could_take_differently_is_refused() {
    for lines in [
        "Content-Length: abc\r\n",
        "Content-Length: -5\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: 5, 5\r\n",
        "Content-Length:\r\n",
        "Content-Length: 99999999999999999999999\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Transfer-Encoding: chunked, chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding:\r\n",
        "Content-Length : 5\r\n",
        "X-A: a\rb\r\n",
        "X-A: a\r\n b\r\n",
        " X-A: a\r\n",
        "X A: a\r\n",
        "X-A: a\nX-B: b\r\n",
        "X-A: a\0b\r\n",
        ": a\r\n",
        "novalue\r\n",
    ] {
        refused_as_malformed(&post(lines));
    }
    refused_as_malformed("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n");
}

#[test]
fn the_same_length_twice_is_one_length() {
    let text = post("Content-Length: 5\r\ncontent-length: 5\r\n");
    assert_eq!(head(&text).framing, Framing::Length(5));
    assert_eq!(head(&post("Content-Length: 0\r\n")).framing, Framing::Empty);
}

#[test]
fn only_the_chunked_coding_is_understood() {
    let text = post("Transfer-Encoding: Chunked\r\n");
    assert_eq!(head(&text).framing, Framing::Chunked);
    for coding in ["gzip, chunked", "identity", "chunked, gzip", "xchunked"] {
        let text = post(&format!("Transfer-Encoding: {coding}\r\n"));
        assert_eq!(refused(&text), Rejection::TransferCoding, "{coding}");
    }
}

#[test]
fn host_is_wanted_once_and_well_formed() {
    refused_as_malformed("GET / HTTP/1.1\r\n\r\n");
    refused_as_malformed("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n");
    refused_as_malformed("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n");
    assert_eq!(head("GET / HTTP/1.0\r\n\r\n").minor_version, 0);
    assert_eq!(head("GET / HTTP/1.1\r\nHost:\r\n\r\n").path, "/");
}

#[test]
fn other_versions_are_told_apart_from_other_protocols() {
    assert_eq!(
        refused("POST / HTTP/2.0\r\nHost: a\r\n\r\n"),
        Rejection::Version
    );
    assert_eq!(
        refused("POST / HTTP/1.2\r\nHost: a\r\n\r\n"),
        Rejection::Version
    );
    assert_eq!(
        refused("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        Rejection::Version
    );
    refused_as_malformed("POST / HTTPS\r\nHost: a\r\n\r\n");
    refused_as_malformed("POST / http/1.1\r\nHost: a\r\n\r\n");
    refused_as_malformed("GARBAGE\r\n\r\n");
    refused_as_malformed("GET  / HTTP/1.1\r\nHost: a\r\n\r\n");
    refused_as_malformed("\u{16}\u{3}\u{1}\u{2}");
}

#[test]
fn targets_come_in_three_forms() {
    let path = |target: &str| {
        let text = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        parsed(&text).map(|head| head.expect("complete").path.to_owned())
    };
    assert_eq!(path("/v1/inference?trace=1"), Ok("/v1/inference".into()));
    assert_eq!(
        path("http://probe/v1/inference"),
        Ok("/v1/inference".into())
    );
    assert_eq!(path("HTTPS://probe:1/a?b=/c"), Ok("/a".into()));
    assert_eq!(path("http://probe"), Ok("/".into()));
    assert_eq!(path("http://probe?a=/b"), Ok("/".into()));
    assert_eq!(path("*"), Ok("*".into()));
    assert_eq!(path("http://[::1]:80/a"), Ok("/a".into()));
    for target in [
        "http://",
        "http:///v1/inference",
        "http://:80/v1/inference",
        "http://?a",
        "http://user@probe/",
        "http://user:password@probe/",
        "http://probe:80@other/",
        "http://@probe/",
        "http://[::1/",
        "http://a\\b/",
        "https://a%zz/",
    ] {
        let refused = path(target).expect_err(target);
        assert_eq!(
            (refused.status(), refused.closes()),
            (400, true),
            "{target}"
        );
        assert!(
            refused.to_string().contains("the request line"),
            "{refused}"
        );
    }
    assert!(path("probe:80").is_err());
    assert!(path("ftp://probe/").is_err());
}

#[test]
fn the_connection_header_and_the_version_decide_about_keep_alive() {
    let keeps = |version: &str, connection: &str| {
        let text = format!("GET / HTTP/{version}\r\nHost: a\r\nConnection: {connection}\r\n\r\n");
        head(&text).keep_alive
    };
    assert!(keeps("1.1", "x"));
    assert!(!keeps("1.1", "x, Close"));
    assert!(!keeps("1.1", "keep-alive, close"));
    assert!(!keeps("1.0", "x"));
    assert!(keeps("1.0", "Keep-Alive"));
}

#[test]
fn only_one_expectation_can_be_met() {
    assert!(head(&post("Expect: 100-Continue\r\n")).expects_continue);
    assert!(!head("POST / HTTP/1.0\r\nExpect: 100-continue\r\n\r\n").expects_continue);
    let text = post("Expect: a-miracle\r\n");
    assert_eq!(head(&text).fault, Some(Rejection::Expectation));
}

#[test]
fn the_smallest_timeout_wins() {
    let timeout = |lines: &str| head(&post(lines)).timeout;
    assert_eq!(timeout(""), None);
    let three = "X-Request-Timeout-Ms: 300\r\ngrpc-timeout: 100m\r\nx-envoy-expected-rq-timeout-ms: 200\r\n";
    assert_eq!(timeout(three), Some(Duration::from_millis(100)));
    assert_eq!(timeout("x-envoy-expected-rq-timeout-ms: 0\r\n"), None);
    let envoy_has_none = "x-envoy-expected-rq-timeout-ms: 0\r\ngrpc-timeout: 1S\r\n";
    assert_eq!(timeout(envoy_has_none), Some(Duration::from_secs(1)));
}

#[test]
fn senseless_headers_are_faults_that_leave_the_connection_alone() {
    for (lines, says) in [
        (
            "X-Request-Timeout-Ms: 5x\r\n",
            "header X-Request-Timeout-Ms: \"5x\" is not a whole number of milliseconds from 1",
        ),
        (
            "X-Request-Timeout-Ms: 0\r\n",
            "header X-Request-Timeout-Ms: \"0\" is not a whole number of milliseconds from 1",
        ),
        (
            "grpc-timeout: 1\r\n",
            "header grpc-timeout: \"1\" is not a number from 1 with up to eight digits and a unit",
        ),
        (
            "x-envoy-expected-rq-timeout-ms: \"x\r\n",
            "header x-envoy-expected-rq-timeout-ms: \"\\\"x\" is not a whole number of milliseconds",
        ),
    ] {
        let text = post(lines);
        let fault = head(&text).fault.expect("a fault");
        assert!(fault.to_string().starts_with(says), "{fault}");
        assert_eq!((fault.status(), fault.closes()), (400, false));
    }
    let long = post(&format!("X-Request-Timeout-Ms: {}\r\n", "9".repeat(500)));
    let fault = head(&long).fault.expect("a fault").to_string();
    assert!(fault.len() < 150, "{fault}");
}

#[test]
fn tiers_are_named_in_any_case() {
    assert_eq!(
        head(&post("X-Tier: Enterprise\r\n")).tier,
        Some(Tier::Enterprise)
    );
    assert_eq!(head(&post("")).tier, None);
}

#[test]
fn a_senseless_tier_is_a_fault_apart() {
    let faults = |lines: &str| {
        let text = post(lines);
        let head = head(&text);
        (head.fault, head.tier_fault)
    };
    let unknown = Some(Rejection::UnknownTier("platinum".into()));
    assert_eq!(faults("X-Tier: platinum\r\n"), (None, unknown));
    let (fault, twice) = faults("X-Tier: free\r\nX-Tier: free\r\n");
    assert_eq!(fault, None);
    let twice = twice.expect("a fault");
    assert!(twice.to_string().contains("X-Tier"), "{twice}");
    assert_eq!((twice.status(), twice.closes()), (400, false));
}

#[test]
fn a_hundred_headers_and_sixteen_kib_are_fine() {
    let lines: String = (0..100).map(|i| format!("X-Fwd-{i}: v\r\n")).collect();
    assert!(head(&post(&lines)).keep_alive);
    let long = format!("X-A: {}\r\nContent-Length: 3\r\n", "a".repeat(16 * 1024));
    assert_eq!(head(&post(&long)).framing, Framing::Length(3));
}

#[test]
fn too_much_is_refused_before_it_has_all_arrived() {
    let limits = Limits::default();
    let lines: String = (0..300).map(|i| format!("X-Fwd-{i}: v\r\n")).collect();
    assert_eq!(refused(&post(&lines)).status(), 431);
    assert_eq!(refused(&post(&lines)[..4_000]).status(), 431);

    let long = post(&format!("X-A: {}", "a".repeat(limits.head_bytes_max)));
    assert_eq!(refused(&long).status(), 431);
    assert_eq!(refused(long[..long.len() - 4].trim_end()).status(), 431);

    let target = "a".repeat(limits.target_bytes_max);
    assert_eq!(
        refused(&format!("GET /{target} HTTP/1.1\r\nHost: a\r\n\r\n")).status(),
        414
    );
    let target = "a".repeat(limits.target_bytes_max + METHOD_BYTES_MAX);
    assert_eq!(refused(&format!("GET /{target}")).status(), 414);
}

#[test]
fn fields_do_not_bloat_the_stack() {
    assert!(size_of::<Head<'_>>() <= 256, "{}", size_of::<Head<'_>>());
    assert!(size_of::<Rejection>() <= 48, "{}", size_of::<Rejection>());
}

/// Requests that are accepted and requests that are refused, each for one reason.
fn corpus() -> Vec<String> {
    vec![
        post("Content-Length: 18\r\nX-Tier: paid\r\n"),
        post("Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n"),
        post("X-Tier: platinum\r\n"),
        post("X-A: a\rb\r\n"),
        post("X-A: a\r\n b\r\n"),
        post("Content-Length: 5\r\nContent-Length: 6\r\n"),
        "\r\nGET http://a/b?c HTTP/1.0\r\nConnection: keep-alive\r\n\r\n".into(),
        "GET / HTTP/1.1\nHost: a\r\n\r\n".into(),
        "GET / HTTP/3.0\r\nHost: a\r\n\r\n".into(),
        "GET / HTTP/1.1\r\n\r\n".into(),
        "nonsense\r\n\r\n".into(),
    ]
}

/// Feeds one byte more at a time, as a connection would, until there is a verdict.
fn parsed_bytewise(text: &[u8]) -> Result<Option<(usize, Framing, bool)>, u16> {
    let limits = Limits::default();
    for end in 1..=text.len() {
        match parse_head(&text[..end], &limits) {
            Ok(None) => {}
            Ok(Some(head)) => return Ok(Some((head.bytes, head.framing, head.keep_alive))),
            Err(rejection) => return Err(rejection.status()),
        }
    }
    Ok(None)
}

#[test]
fn the_verdict_does_not_depend_on_where_the_bytes_are_split() {
    for text in corpus() {
        let whole = match parse_head(text.as_bytes(), &Limits::default()) {
            Ok(head) => Ok(head.map(|head| (head.bytes, head.framing, head.keep_alive))),
            Err(rejection) => Err(rejection.status()),
        };
        let bytewise = parsed_bytewise(text.as_bytes());
        // A version is named as such only once its last digit is there; cut short it is no version at all.
        if whole != Err(505) {
            assert_eq!(bytewise, whole, "{text:?}");
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let _ = parse_head(&bytes, &Limits::default());
    }

    #[test]
    fn arbitrary_header_lines_never_panic(name in "[A-Za-z-]{1,32}", value in "\\PC{0,64}") {
        let text = post(&format!("{name}: {value}\r\n"));
        let _ = parse_head(text.as_bytes(), &Limits::default());
    }

    #[test]
    fn what_follows_a_complete_head_does_not_change_it(
        which in 0usize..11,
        tail in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let text = corpus()[which].clone().into_bytes();
        let limits = Limits::default();
        let alone = parse_head(&text, &limits);
        let mut longer = text.clone();
        longer.extend_from_slice(&tail);
        prop_assert_eq!(parse_head(&longer, &limits), alone);
    }
}

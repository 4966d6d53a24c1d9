use proptest::prelude::*;

use super::*;
use crate::http::request::Work;
use crate::http::routes::Route;

fn id() -> Arc<str> {
    "fresh".into()
}

/// What a request amounts to, for comparison.
fn gist(request: &Request) -> String {
    let done = match &request.work {
        Ok(Work::Infer(input)) => format!("infer {:?}", input.text),
        Ok(Work::Run(batch)) => format!("run {}", batch.id),
        Ok(Work::Show(route)) => format!("show {route:?}"),
        Err(rejection) => format!("refuse {}", rejection.status()),
    };
    format!(
        "{done} {} keep={}",
        request.call.request_id, request.call.keep_alive
    )
}

/// Feeds the bytes in pieces that end at `cuts` and gathers all requests up to the first that closes.
fn requests(bytes: &[u8], cuts: &[usize]) -> (Vec<String>, Assembler) {
    let terms = Terms::default();
    let mut assembler = Assembler::new();
    let (mut gists, mut from) = (Vec::new(), 0);
    for &cut in cuts.iter().chain([&bytes.len()]) {
        let mut fresh = &bytes[from..cut.max(from)];
        from = cut.max(from);
        while let Some(request) = assembler.feed(fresh, &terms, id) {
            gists.push(gist(&request));
            if request.work.as_ref().is_err_and(Rejection::closes) {
                return (gists, assembler);
            }
            fresh = &[];
            if !assembler.has_pending() {
                break;
            }
        }
    }
    (gists, assembler)
}

fn post(extra: &str, body: &str) -> String {
    format!(
        "POST /v1/inference HTTP/1.1\r\nHost: a\r\n{extra}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn chunked(body: &str) -> String {
    let head = "POST /v1/inference HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let (a, b) = body.split_at(body.len() / 2);
    format!(
        "{head}{:x};x=y\r\n{a}\r\n{:x}\r\n{b}\r\n0\r\nT: v\r\n\r\n",
        a.len(),
        b.len()
    )
}

/// A connection's worth of pipelined requests of every kind, the last of which closes.
fn conversation() -> String {
    [
        post("X-Request-Id: one\r\n", r#"{"input":"a"}"#),
        "GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n".into(),
        chunked(r#"{"input":"bb"}"#),
        "\r\nHEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".into(),
        post("X-Tier: gold\r\n", "skipped whatever it says"),
        chunked("not JSON"),
        post("Content-Type: text/plain\r\n", "skipped"),
        "POST /nope HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
            .into(),
        post("", r#"{"input":"é 😀"}"#),
        post("Content-Length: 999\r\n", "never read"),
    ]
    .concat()
}

#[test]
fn a_whole_request_is_read_without_keeping_anything() {
    let text = post("", r#"{"input":"a"}"#);
    let (gists, assembler) = requests(text.as_bytes(), &[]);
    assert_eq!(gists, ["infer \"a\" fresh keep=true"]);
    assert!(assembler.is_idle());
    assert_eq!(assembler.pending.capacity(), 0);
}

#[test]
fn a_conversation_is_taken_apart() {
    let (gists, _) = requests(conversation().as_bytes(), &[]);
    let expected = [
        "infer \"a\" one keep=true",
        "show Live fresh keep=true",
        "infer \"bb\" fresh keep=true",
        "show Welcome fresh keep=false",
        "refuse 400 fresh keep=true",
        "refuse 400 fresh keep=true",
        "refuse 415 fresh keep=true",
        "refuse 404 fresh keep=true",
        "infer \"é 😀\" fresh keep=true",
        "refuse 400 fresh keep=false",
    ];
    assert_eq!(gists, expected);
}

#[test]
fn it_does_not_matter_where_the_bytes_are_split() {
    let text = conversation();
    let (whole, _) = requests(text.as_bytes(), &[]);
    for cut in 0..text.len() {
        assert_eq!(requests(text.as_bytes(), &[cut]).0, whole, "cut at {cut}");
    }
    let bytewise: Vec<_> = (1..text.len()).collect();
    assert_eq!(requests(text.as_bytes(), &bytewise).0, whole);
}

#[test]
fn a_body_that_is_too_long_is_refused_at_once() {
    let max = Terms::default().limits.body_bytes_max;
    let declared = format!(
        "POST /v1/inference HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
        max + 1
    );
    assert_eq!(
        requests(declared.as_bytes(), &[]).0,
        ["refuse 413 fresh keep=true"]
    );
    let chunked = format!(
        "POST /v1/inference HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n",
        max + 1
    );
    assert_eq!(
        requests(chunked.as_bytes(), &[]).0,
        ["refuse 413 fresh keep=true"]
    );
}

#[test]
fn a_caller_that_waits_for_100_gets_it_or_the_verdict() {
    let terms = Terms::default();
    let ask = |line: &str| {
        post(
            &format!("Expect: 100-continue\r\n{line}"),
            r#"{"input":"a"}"#,
        )
    };
    let head_of = |text: &str| text.split_inclusive("\r\n\r\n").next().unwrap().to_owned();

    let mut assembler = Assembler::new();
    let text = ask("");
    let head = head_of(&text);
    assert!(assembler.feed(head.as_bytes(), &terms, id).is_none());
    assert!(assembler.take_continue() && !assembler.take_continue());
    let request = assembler.feed(&text.as_bytes()[head.len()..], &terms, id);
    assert_eq!(
        gist(&request.expect("complete")),
        "infer \"a\" fresh keep=true"
    );

    let mut assembler = Assembler::new();
    let request = assembler.feed(head_of(&ask("X-Tier: gold\r\n")).as_bytes(), &terms, id);
    assert_eq!(
        gist(&request.expect("refused")),
        "refuse 400 fresh keep=false"
    );
    assert!(!assembler.take_continue());

    let mut assembler = Assembler::new();
    assert!(assembler.feed(ask("").as_bytes(), &terms, id).is_some());
    assert!(!assembler.take_continue(), "the body is here already");
}

#[test]
fn a_body_that_nobody_reads_is_not_kept() {
    let terms = Terms::default();
    let mut assembler = Assembler::new();
    let head = "POST /nope HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n";
    assert!(assembler.feed(head.as_bytes(), &terms, id).is_none());
    assert!(assembler.is_in_body());
    for _ in 0..9 {
        assert!(assembler.feed(&[b'x'; 10_000], &terms, id).is_none());
    }
    let kept = assembler.body.as_ref().map(|body| body.bytes.capacity());
    assert!(kept.is_some_and(|kept| kept <= 10_000), "{kept:?}");
    let request = assembler
        .feed(&[b'x'; 10_000], &terms, id)
        .expect("complete");
    assert_eq!(request.work, Err(Rejection::NoRoute));
    assert!(assembler.is_idle());
}

#[test]
fn a_show_route_is_shown() {
    let (gists, _) = requests(b"GET http://a/?x HTTP/1.1\r\nHost: a\r\n\r\n", &[]);
    assert_eq!(
        gists,
        [format!("show {:?} fresh keep=true", Route::Welcome)]
    );
}

proptest! {
    #[test]
    fn arbitrary_pieces_give_the_same_requests(mut cuts in proptest::collection::vec(0usize..1_400, 0..12)) {
        let text = conversation();
        cuts.iter_mut().for_each(|cut| *cut = (*cut).min(text.len()));
        cuts.sort_unstable();
        prop_assert_eq!(requests(text.as_bytes(), &cuts).0, requests(text.as_bytes(), &[]).0);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), cut in 0usize..400) {
        let _ = requests(&bytes, &[cut.min(bytes.len())]);
    }
}

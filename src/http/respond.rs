//! Responses: the whole of one, head and body, appended to one buffer, so that it leaves in one write.
//!
//! Called by the connection loop with buffers that belong to its acceptor core. Pure but for the wall clock behind
//! the `Date` header, which each core reads a few times a second.

use std::time::{Duration, SystemTime};

use super::reject::{Rejection, reason_phrase};
use crate::clock::{self, Time};

/// How old the `Date` of a core may get. The header has a resolution of one second.
const DATE_AGE_MAX: Duration = Duration::from_millis(200);

/// The interim answer to `Expect: 100-continue`.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// What the response says about the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// It stays open, as HTTP/1.1 connections do: nothing is said.
    Open,
    /// It stays open although the caller speaks HTTP/1.0, and has to be told so.
    KeepAlive,
    /// It closes after this response.
    Close,
}

/// The parts of a response that do not depend on its content.
#[derive(Clone, Copy, Debug)]
pub struct Envelope<'a> {
    /// The request's id.
    pub request_id: &'a str,
    /// What happens to the connection.
    pub persistence: Persistence,
    /// HEAD: the head is the one that the body would have, the body is not sent.
    pub head_only: bool,
}

/// The `Date` of one acceptor core, formatted a few times a second instead of once per response.
#[derive(Debug)]
pub struct DateCache {
    text: String,
    read_at: Option<Time>,
}

impl DateCache {
    /// An empty cache.
    pub const fn new() -> DateCache {
        DateCache {
            text: String::new(),
            read_at: None,
        }
    }

    /// The date in the format of HTTP, at most [`DATE_AGE_MAX`] old at `now`.
    pub fn at(&mut self, now: Time) -> &str {
        if self
            .read_at
            .is_none_or(|read_at| now.since(read_at) > DATE_AGE_MAX)
        {
            self.renew(now, clock::wall());
        }
        &self.text
    }

    #[cold]
    #[inline(never)]
    fn renew(&mut self, now: Time, wall: SystemTime) {
        self.text = httpdate::fmt_http_date(wall);
        self.read_at = Some(now);
    }
}

impl Default for DateCache {
    fn default() -> DateCache {
        DateCache::new()
    }
}

/// Appends a 200 with `body`.
pub fn write_ok(
    out: &mut Vec<u8>,
    envelope: &Envelope<'_>,
    date: &str,
    content_type: &str,
    body: &[u8],
) {
    begin(out, 200, envelope, date, content_type, body.len());
    finish(out, envelope, body);
}

/// Appends the problem document of `rejection`; `body` is a buffer to write it in first, for its length.
pub fn write_rejection(
    out: &mut Vec<u8>,
    envelope: &Envelope<'_>,
    date: &str,
    rejection: &Rejection,
    body: &mut Vec<u8>,
) {
    body.clear();
    rejection.write_problem(envelope.request_id, body);
    begin(
        out,
        rejection.status(),
        envelope,
        date,
        "application/problem+json",
        body.len(),
    );
    if let Some(allow) = rejection.allow() {
        put_all(out, &["Allow: ", allow, "\r\n"]);
    }
    if let Some(seconds) = rejection.retry_after_seconds() {
        out.extend_from_slice(b"Retry-After: ");
        put_number(out, seconds);
        out.extend_from_slice(b"\r\n");
    }
    if *rejection == Rejection::Unauthorized {
        out.extend_from_slice(b"WWW-Authenticate: Bearer\r\n");
    }
    finish(out, envelope, body);
}

/// Appends everything up to and including the headers that every response has.
fn begin(
    out: &mut Vec<u8>,
    status: u16,
    envelope: &Envelope<'_>,
    date: &str,
    content_type: &str,
    body_bytes: usize,
) {
    out.extend_from_slice(b"HTTP/1.1 ");
    put_number(out, u64::from(status));
    put_all(out, &[" ", reason_phrase(status), "\r\nDate: ", date]);
    put_all(
        out,
        &["\r\nContent-Type: ", content_type, "\r\nContent-Length: "],
    );
    put_number(out, body_bytes as u64);
    put_all(out, &["\r\nX-Request-Id: ", envelope.request_id, "\r\n"]);
}

fn finish(out: &mut Vec<u8>, envelope: &Envelope<'_>, body: &[u8]) {
    out.extend_from_slice(match envelope.persistence {
        Persistence::Open => b"\r\n",
        Persistence::KeepAlive => b"Connection: keep-alive\r\n\r\n",
        Persistence::Close => b"Connection: close\r\n\r\n",
    });
    if !envelope.head_only {
        out.extend_from_slice(body);
    }
}

fn put_all(out: &mut Vec<u8>, parts: &[&str]) {
    for part in parts {
        out.extend_from_slice(part.as_bytes());
    }
}

/// Appends a number in decimal, without the formatting machinery.
fn put_number(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0u8; 20];
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::reject::ShedReason;
    use crate::tier::Tier;

    const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

    fn envelope(persistence: Persistence) -> Envelope<'static> {
        Envelope {
            request_id: "r-1",
            persistence,
            head_only: false,
        }
    }

    fn text(out: Vec<u8>) -> String {
        String::from_utf8(out).expect("ASCII")
    }

    #[test]
    fn a_response_has_every_header_once_and_the_right_length() {
        let mut out = Vec::new();
        write_ok(
            &mut out,
            &envelope(Persistence::Open),
            DATE,
            "text/plain",
            b"hello",
        );
        let expected = format!(
            "HTTP/1.1 200 OK\r\nDate: {DATE}\r\nContent-Type: text/plain\r\nContent-Length: 5\r\nX-Request-Id: r-1\r\n\r\nhello"
        );
        assert_eq!(text(out), expected);
    }

    #[test]
    fn the_connection_is_mentioned_when_it_does_not_do_the_usual() {
        for (persistence, line) in [
            (Persistence::KeepAlive, "\r\nConnection: keep-alive\r\n\r\n"),
            (Persistence::Close, "\r\nConnection: close\r\n\r\n"),
        ] {
            let mut out = Vec::new();
            write_ok(&mut out, &envelope(persistence), DATE, "text/plain", b"");
            assert!(text(out).ends_with(line));
        }
    }

    #[test]
    fn head_gets_the_length_without_the_body() {
        let mut out = Vec::new();
        let head_only = Envelope {
            head_only: true,
            ..envelope(Persistence::Open)
        };
        write_ok(&mut out, &head_only, DATE, "text/plain", b"hello");
        let out = text(out);
        assert!(out.contains("Content-Length: 5\r\n") && out.ends_with("\r\n\r\n"));
    }

    #[test]
    fn rejections_carry_their_own_headers() {
        let mut body = b"left over from before".to_vec();
        let mut written = |rejection: &Rejection| {
            let mut out = Vec::new();
            write_rejection(
                &mut out,
                &envelope(Persistence::Open),
                DATE,
                rejection,
                &mut body,
            );
            text(out)
        };
        let wrong_method = written(&Rejection::MethodNotAllowed { allow: "POST" });
        assert!(wrong_method.starts_with("HTTP/1.1 405 Method Not Allowed\r\n"));
        assert!(wrong_method.contains("\r\nAllow: POST\r\n"));
        let shed = written(&Rejection::Shed {
            reason: ShedReason::Limit,
            tier: Tier::Free,
            retry_after: Duration::from_millis(1_001),
        });
        assert!(shed.contains("\r\nRetry-After: 2\r\n"));
        assert!(written(&Rejection::Unauthorized).contains("\r\nWWW-Authenticate: Bearer\r\n"));
        let (head, json) = shed.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", json.len())));
        assert!(head.contains("\r\nContent-Type: application/problem+json\r\n"));
    }

    #[test]
    fn numbers_are_written_in_full() {
        for number in [0, 7, 10, 1_234_567_890, u64::MAX] {
            let mut out = Vec::new();
            put_number(&mut out, number);
            assert_eq!(text(out), number.to_string());
        }
    }

    #[test]
    fn the_date_is_renewed_when_it_is_old() {
        let mut cache = DateCache::new();
        let now = clock::now();
        assert!(cache.at(now).ends_with(" GMT"));
        cache.text = "stale".into();
        assert_eq!(cache.at(now + DATE_AGE_MAX), "stale");
        assert_ne!(cache.at(now + DATE_AGE_MAX * 2), "stale");
    }
}

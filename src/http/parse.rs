//! The head of a request: bytes in, a [`Head`] or a [`Rejection`] out. Pure; called by the connection loop.
//!
//! `httparse` finds the lines; this module decides what they mean, as strictly as RFC 9112 lets a server be, because
//! a server behind a proxy that reads the same bytes differently can be made to answer a request nobody sent. What
//! is refused here closes the connection. What is sound HTTP but makes no sense to this server (an unknown tier, a
//! timeout that is no number) is kept as the head's [`fault`](Head::fault), so that the body can be skipped and the
//! connection survives the answer.
//!
//! Guarantees: the same bytes give the same result however they arrive; nothing is allocated unless a request has
//! more than 12 headers; the stack depth does not depend on the input (a coroutine calls this, and its stack should
//! stay within one page).

use std::borrow::Cow;
use std::mem::MaybeUninit;
use std::time::Duration;

use super::Limits;
use super::reject::Rejection;
use super::values::{self, ContentType};
use crate::tier::Tier;

/// Headers whose index fits on the coroutine's stack; requests with more of them pay for a `Vec`.
const HEADERS_ON_STACK: usize = 12;

/// Room for the method and the spaces around a target, when a request line is judged before its end has arrived.
const METHOD_BYTES_MAX: usize = 32;

/// How the end of the body is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is no body.
    Empty,
    /// Exactly so many bytes, at least one.
    Length(u64),
    /// The chunked transfer coding.
    Chunked,
}

/// A complete, well-formed request head. Borrows from the bytes that it was parsed from.
#[derive(Debug, PartialEq, Eq)]
pub struct Head<'b> {
    /// Bytes that the head takes, the empty line at its end included.
    pub bytes: usize,
    /// The method, as sent: methods are case-sensitive.
    pub method: &'b str,
    /// The path of the target, without scheme, authority and query.
    pub path: &'b str,
    /// 0 or 1: the minor version of HTTP/1.
    pub minor_version: u8,
    /// Where the body ends.
    pub framing: Framing,
    /// Whether the caller wants the connection to survive the answer.
    pub keep_alive: bool,
    /// Whether the caller waits for `100 Continue` before it sends the body.
    pub expects_continue: bool,
    /// The caller's own id, if it is fit to be repeated.
    pub request_id: Option<&'b str>,
    /// What `X-Tier` says.
    pub tier: Option<Tier>,
    /// Why what it says makes no sense; of no interest where the tier comes with the key.
    pub tier_fault: Option<Rejection>,
    /// The media type of the body.
    pub content_type: ContentType,
    /// The key of `Authorization: Bearer`; none if there are two such headers, of which a gateway may have checked the other.
    pub bearer: Option<&'b str>,
    /// The smallest of the timeouts that the caller and its proxies name.
    pub timeout: Option<Duration>,
    /// The first thing about the headers that makes no sense, to be answered once the body is out of the way.
    pub fault: Option<Rejection>,
}

/// Parses the head at the start of `buf`; `None` means that it is not complete yet and may still become one.
///
/// # Errors
///
/// A rejection that ends the connection: after it, nothing says where the next request would begin.
#[inline]
pub fn parse_head<'b>(buf: &'b [u8], limits: &Limits) -> Result<Option<Head<'b>>, Rejection> {
    let mut few = [const { MaybeUninit::uninit() }; HEADERS_ON_STACK];
    match parse_into(buf, &mut few, limits) {
        Err(Trouble::TooManyHeaders) => parse_many(buf, limits),
        Err(Trouble::Rejected(rejection)) => Err(rejection),
        Ok(head) => Ok(head),
    }
}

/// The rare case of more headers than fit on the stack.
#[cold]
#[inline(never)]
fn parse_many<'b>(buf: &'b [u8], limits: &Limits) -> Result<Option<Head<'b>>, Rejection> {
    let mut many = vec![MaybeUninit::uninit(); limits.headers_max];
    match parse_into(buf, &mut many, limits) {
        Err(Trouble::TooManyHeaders) => Err(limits.headers_too_large()),
        Err(Trouble::Rejected(rejection)) => Err(rejection),
        Ok(head) => Ok(head),
    }
}

enum Trouble {
    TooManyHeaders,
    Rejected(Rejection),
}

impl From<Rejection> for Trouble {
    fn from(rejection: Rejection) -> Trouble {
        Trouble::Rejected(rejection)
    }
}

#[inline(never)]
fn parse_into<'b>(
    buf: &'b [u8],
    headers: &mut [MaybeUninit<httparse::Header<'b>>],
    limits: &Limits,
) -> Result<Option<Head<'b>>, Trouble> {
    let mut request = httparse::Request::new(&mut []);
    let bytes = match request.parse_with_uninit_headers(buf, headers) {
        Ok(httparse::Status::Complete(bytes)) => bytes,
        Ok(httparse::Status::Partial) => {
            check_growth(buf, limits)?;
            return Ok(None);
        }
        Err(httparse::Error::TooManyHeaders) => return Err(Trouble::TooManyHeaders),
        Err(error) => return Err(malformed(error, buf).into()),
    };
    let target = request.path.unwrap_or_default();
    check_complete(&buf[..bytes], target, limits)?;

    let minor_version = request.version.unwrap_or_default();
    let mut fields = Fields::default();
    for header in request.headers.iter() {
        fields.take(header.name, header.value)?;
    }
    fields.check_host(minor_version)?;
    let head = Head {
        bytes,
        method: request.method.unwrap_or_default(),
        path: path_of(target)?,
        minor_version,
        framing: fields.framing(minor_version)?,
        keep_alive: !fields.close && (minor_version == 1 || fields.keep_alive),
        expects_continue: fields.expects_continue && minor_version == 1,
        request_id: fields.request_id,
        tier: fields.tier,
        tier_fault: fields.tier_fault,
        content_type: fields.content_type,
        bearer: fields.bearer,
        timeout: fields.timeout.filter(|&timeout| timeout != Duration::MAX),
        fault: fields.fault,
    };
    Ok(Some(head))
}

/// Refuses an unfinished head that is already longer than a finished one may be.
fn check_growth(buf: &[u8], limits: &Limits) -> Result<(), Rejection> {
    let line = buf.trim_ascii_start();
    let line_max = limits.target_bytes_max + METHOD_BYTES_MAX;
    if line.len() > line_max && !line[..line_max].contains(&b'\n') {
        return Err(limits.target_too_long());
    }
    if buf.len() > limits.head_bytes_max {
        return Err(limits.headers_too_large());
    }
    Ok(())
}

/// What `httparse` leaves open: lengths, and line ends by a bare LF. Those are refused, since a proxy in front may
/// not take them for line ends and would then see other headers than this server.
fn check_complete(head: &[u8], target: &str, limits: &Limits) -> Result<(), Rejection> {
    if target.len() > limits.target_bytes_max {
        return Err(limits.target_too_long());
    }
    if head.len() > limits.head_bytes_max {
        return Err(limits.headers_too_large());
    }
    let bare_lf =
        head.first() == Some(&b'\n') || head.windows(2).any(|w| w[1] == b'\n' && w[0] != b'\r');
    if bare_lf {
        return Err(Rejection::Malformed("a line ends with LF instead of CR LF"));
    }
    Ok(())
}

fn malformed(error: httparse::Error, buf: &[u8]) -> Rejection {
    use httparse::Error;
    Rejection::Malformed(match error {
        Error::HeaderName => {
            "a header name is not valid; a space before the colon and folded lines are refused"
        }
        Error::HeaderValue => "a header value holds a control character or a bare CR",
        Error::NewLine => "a line does not end with CR LF",
        Error::Version if names_a_version(buf) => return Rejection::Version,
        Error::Version | Error::Token | Error::Status | Error::TooManyHeaders => {
            "the request line is not `METHOD target HTTP/1.1`"
        }
    })
}

/// Whether the request line ends with `HTTP/` and a version number: then it is HTTP, only not ours.
fn names_a_version(buf: &[u8]) -> bool {
    let line = buf.trim_ascii_start();
    let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let version = line.trim_ascii_end().rsplit(|&byte| byte == b' ').next();
    version.is_some_and(|version| {
        matches!(version, [b'H', b'T', b'T', b'P', b'/', major, rest @ ..]
            if major.is_ascii_digit() && rest.iter().all(|b| b.is_ascii_digit() || *b == b'.'))
    })
}

/// The path of a request target in origin form, absolute form or asterisk form.
fn path_of(target: &str) -> Result<&str, Rejection> {
    if target.starts_with('/') {
        return Ok(without_query(target));
    }
    if target == "*" {
        return Ok(target);
    }
    let after_scheme =
        strip_ignoring_case(target, "http://").or_else(|| strip_ignoring_case(target, "https://"));
    match after_scheme {
        Some(rest) => {
            let rest = without_query(rest);
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            if !values::is_authority(authority.as_bytes()) {
                return Err(Rejection::Malformed(
                    "the URL in the request line has no host, or one that is not a name or an address with an \
                     optional port; user names have no place there",
                ));
            }
            Ok(if path.is_empty() { "/" } else { path })
        }
        None => Err(Rejection::Malformed(
            "the request target is neither a path nor an http URL",
        )),
    }
}

fn without_query(target: &str) -> &str {
    target.split_once('?').map_or(target, |(path, _)| path)
}

fn strip_ignoring_case<'t>(text: &'t str, prefix: &str) -> Option<&'t str> {
    let (start, rest) = text.split_at_checked(prefix.len())?;
    start.eq_ignore_ascii_case(prefix).then_some(rest)
}

/// What has been seen of the headers that matter, while they are walked once.
#[derive(Default)]
struct Fields<'b> {
    hosts: u32,
    host_is_bad: bool,
    content_length: Option<u64>,
    chunked: bool,
    transfer_encoding: bool,
    close: bool,
    keep_alive: bool,
    expects_continue: bool,
    request_id: Option<&'b str>,
    tier: Option<Tier>,
    tier_fault: Option<Rejection>,
    content_type: ContentType,
    has_authorization: bool,
    bearer: Option<&'b str>,
    timeout: Option<Duration>,
    fault: Option<Rejection>,
}

impl<'b> Fields<'b> {
    /// Takes one header in. Comparing lengths first settles most headers, which mean nothing to this server.
    fn take(&mut self, name: &str, value: &'b [u8]) -> Result<(), Rejection> {
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        match name.len() {
            4 if is("host") => self.take_host(value),
            6 if is("x-tier") => self.take_tier(value),
            6 if is("expect") => self.take_expectation(value),
            10 if is("connection") => self.take_connection(value),
            12 if is("content-type") => self.content_type = values::content_type(value),
            12 if is("x-request-id") => self.request_id = values::request_id(value),
            12 if is("grpc-timeout") => {
                let wanted =
                    "a number from 1 with up to eight digits and a unit (H, M, S, m, u or n)";
                self.take_timeout("grpc-timeout", value, values::grpc_timeout(value), wanted);
            }
            13 if is("authorization") => {
                self.bearer = values::bearer(value).filter(|_| !self.has_authorization);
                self.has_authorization = true;
            }
            14 if is("content-length") => return self.take_content_length(value),
            17 if is("transfer-encoding") => return self.take_transfer_encoding(value),
            20 if is("x-request-timeout-ms") => {
                let timeout = values::timeout_ms(value);
                let wanted = "a whole number of milliseconds from 1";
                self.take_timeout("X-Request-Timeout-Ms", value, timeout, wanted);
            }
            30 if is("x-envoy-expected-rq-timeout-ms") => {
                let timeout = values::envoy_timeout_ms(value);
                let wanted = "a whole number of milliseconds";
                self.take_timeout("x-envoy-expected-rq-timeout-ms", value, timeout, wanted);
            }
            _ => {}
        }
        Ok(())
    }

    fn take_host(&mut self, value: &[u8]) {
        self.hosts += 1;
        self.host_is_bad |= !values::is_host(value);
    }

    /// A second `X-Tier` is refused: a gateway that adds its own must not be outvoted by the caller's.
    fn take_tier(&mut self, value: &[u8]) {
        if self.tier.is_some() {
            self.tier_fault.get_or_insert(Rejection::Header {
                name: "X-Tier",
                problem: "stands there twice".into(),
            });
            return;
        }
        match std::str::from_utf8(value)
            .ok()
            .and_then(|text| text.parse().ok())
        {
            Some(tier) => self.tier = Some(tier),
            None => {
                self.tier_fault.get_or_insert_with(|| unknown_tier(value));
            }
        }
    }

    fn take_expectation(&mut self, value: &[u8]) {
        if value.eq_ignore_ascii_case(b"100-continue") {
            self.expects_continue = true;
        } else {
            self.fault.get_or_insert(Rejection::Expectation);
        }
    }

    fn take_connection(&mut self, value: &[u8]) {
        for token in values::list(value) {
            self.close |= token.eq_ignore_ascii_case(b"close");
            self.keep_alive |= token.eq_ignore_ascii_case(b"keep-alive");
        }
    }

    fn take_timeout(
        &mut self,
        name: &'static str,
        value: &[u8],
        timeout: Option<Duration>,
        wanted: &'static str,
    ) {
        match timeout {
            Some(timeout) => {
                let smallest = self.timeout.map_or(timeout, |known| known.min(timeout));
                self.timeout = Some(smallest);
            }
            None => {
                self.fault.get_or_insert_with(|| Rejection::Header {
                    name,
                    problem: format!("{:?} is not {wanted}", shown(value)).into(),
                });
            }
        }
    }

    fn take_content_length(&mut self, value: &[u8]) -> Result<(), Rejection> {
        let Some(length) = values::digits(value) else {
            return Err(Rejection::Malformed(
                "Content-Length is not a number of bytes",
            ));
        };
        match self.content_length.replace(length) {
            Some(other) if other != length => {
                Err(Rejection::Malformed("two Content-Lengths differ"))
            }
            _ => Ok(()),
        }
    }

    fn take_transfer_encoding(&mut self, value: &[u8]) -> Result<(), Rejection> {
        self.transfer_encoding = true;
        for coding in values::list(value) {
            if !coding.eq_ignore_ascii_case(b"chunked") {
                return Err(Rejection::TransferCoding);
            }
            if std::mem::replace(&mut self.chunked, true) {
                return Err(Rejection::Malformed("the body is chunked twice"));
            }
        }
        Ok(())
    }

    fn check_host(&self, minor_version: u8) -> Result<(), Rejection> {
        if self.host_is_bad {
            return Err(Rejection::Malformed(
                "Host is not a name or an address with an optional port",
            ));
        }
        match self.hosts {
            0 if minor_version == 1 => Err(Rejection::Malformed("Host is missing")),
            0 | 1 => Ok(()),
            _ => Err(Rejection::Malformed("Host stands there twice")),
        }
    }

    fn framing(&self, minor_version: u8) -> Result<Framing, Rejection> {
        if !self.transfer_encoding {
            return Ok(match self.content_length {
                None | Some(0) => Framing::Empty,
                Some(length) => Framing::Length(length),
            });
        }
        if self.content_length.is_some() {
            return Err(Rejection::Malformed(
                "Content-Length and Transfer-Encoding exclude each other",
            ));
        }
        if minor_version == 0 {
            return Err(Rejection::Malformed("HTTP/1.0 has no Transfer-Encoding"));
        }
        if !self.chunked {
            return Err(Rejection::Malformed("Transfer-Encoding is empty"));
        }
        Ok(Framing::Chunked)
    }
}

fn unknown_tier(value: &[u8]) -> Rejection {
    Rejection::UnknownTier(shown(value).into())
}

/// What was asked for, cut to a length that fits into a sentence.
fn shown(value: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(&value[..value.len().min(40)])
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;

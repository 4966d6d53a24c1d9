//! Reading answers: pure, from bytes to a status and a body.
//!
//! Bodies end by Content-Length, by the last chunk, or with the connection. What comes after the end of an answer is
//! reported as surplus: on a connection that is asked one thing at a time it is an answer that nobody asked for.

use std::borrow::Cow;

/// Header lines that an answer may have.
const HEADERS_MAX: usize = 100;
/// No answer may be longer: 64 MiB.
pub const ANSWER_BYTES_MAX: usize = 64 << 20;

/// An answer, read in full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// HTTP status.
    pub status: u16,
    /// Body, without chunk framing.
    pub body: Cow<'a, [u8]>,
    /// Bytes from the start of the buffer to the end of the answer.
    pub length: usize,
    /// False if the connection can't be used again.
    pub keep_alive: bool,
}

/// The bytes are no HTTP answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The head does not parse.
    #[error("the head of the answer is malformed: {0}")]
    Head(#[from] httparse::Error),
    /// Content-Length or chunk sizes make no sense.
    #[error("the framing of the answer is malformed")]
    Framing,
    /// Longer than [`ANSWER_BYTES_MAX`].
    #[error("the answer is longer than {ANSWER_BYTES_MAX} bytes")]
    TooLong,
}

/// How the end of a body is found.
enum Framing {
    Length(usize),
    Chunked,
    UntilClose,
}

/// Reads one answer from the start of `bytes`; `None` if it is not there in full. `closed` says that nothing will follow.
/// Interim answers (100 and the like) are skipped.
///
/// # Errors
/// If the bytes can't become an answer any more.
pub fn read(bytes: &[u8], closed: bool) -> Result<Option<Answer<'_>>, Malformed> {
    if bytes.len() > ANSWER_BYTES_MAX {
        return Err(Malformed::TooLong);
    }
    let mut start = 0;
    loop {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut head = httparse::Response::new(&mut headers);
        let httparse::Status::Complete(head_length) = head.parse(&bytes[start..])? else {
            return Ok(None);
        };
        let body_start = start + head_length;
        let status = head.code.unwrap_or_default();
        if (100..200).contains(&status) {
            start = body_start;
            continue;
        }
        let http_1_1 = head.version == Some(1);
        let (framing, keep_alive) = examine(head.headers, status, http_1_1)?;
        let Some((body, body_length)) = read_body(&bytes[body_start..], &framing, closed)? else {
            return Ok(None);
        };
        let keep_alive = keep_alive && !matches!(framing, Framing::UntilClose);
        return Ok(Some(Answer {
            status,
            body,
            length: body_start + body_length,
            keep_alive,
        }));
    }
}

fn examine(
    headers: &[httparse::Header<'_>],
    status: u16,
    http_1_1: bool,
) -> Result<(Framing, bool), Malformed> {
    let mut length = None;
    let mut chunked = false;
    let mut keep_alive = http_1_1;
    for header in headers {
        let value = std::str::from_utf8(header.value).unwrap_or_default().trim();
        if header.name.eq_ignore_ascii_case("content-length") {
            length = Some(value.parse::<usize>().map_err(|_| Malformed::Framing)?);
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            chunked = value.eq_ignore_ascii_case("chunked");
        } else if header.name.eq_ignore_ascii_case("connection") {
            if value.eq_ignore_ascii_case("close") {
                keep_alive = false;
            } else if value.eq_ignore_ascii_case("keep-alive") {
                keep_alive = true;
            }
        }
    }
    let framing = match length {
        _ if status == 204 || status == 304 => Framing::Length(0),
        _ if chunked => Framing::Chunked,
        Some(length) if length > ANSWER_BYTES_MAX => return Err(Malformed::TooLong),
        Some(length) => Framing::Length(length),
        None => Framing::UntilClose,
    };
    Ok((framing, keep_alive))
}

type Body<'a> = Option<(Cow<'a, [u8]>, usize)>;

fn read_body<'a>(bytes: &'a [u8], framing: &Framing, closed: bool) -> Result<Body<'a>, Malformed> {
    match framing {
        Framing::Length(length) => Ok(bytes
            .get(..*length)
            .map(|body| (Cow::Borrowed(body), *length))),
        Framing::UntilClose => Ok(closed.then_some((Cow::Borrowed(bytes), bytes.len()))),
        Framing::Chunked => read_chunks(bytes),
    }
}

fn read_chunks(bytes: &[u8]) -> Result<Body<'_>, Malformed> {
    let mut body = Vec::new();
    let mut at = 0;
    loop {
        let size = httparse::parse_chunk_size(&bytes[at..]).map_err(|_| Malformed::Framing)?;
        let httparse::Status::Complete((line_length, size)) = size else {
            return Ok(None);
        };
        at += line_length;
        let size = usize::try_from(size).map_err(|_| Malformed::TooLong)?;
        if size == 0 {
            return Ok(end_of_trailers(&bytes[at..])?.map(|length| (Cow::Owned(body), at + length)));
        }
        if size > ANSWER_BYTES_MAX {
            return Err(Malformed::TooLong);
        }
        let Some(chunk) = bytes.get(at..at + size + 2) else {
            return Ok(None);
        };
        let (data, end) = chunk.split_at(size);
        if end != b"\r\n" {
            return Err(Malformed::Framing);
        }
        body.extend_from_slice(data);
        at += size + 2;
    }
}

/// Length of the trailer section with the empty line that ends it; `None` if it is not there yet.
fn end_of_trailers(bytes: &[u8]) -> Result<Option<usize>, Malformed> {
    let mut trailers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    match httparse::parse_headers(bytes, &mut trailers)? {
        httparse::Status::Complete((length, _)) => Ok(Some(length)),
        httparse::Status::Partial => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn complete(text: &str) -> (u16, String, usize, bool) {
        let answer = read(text.as_bytes(), false)
            .expect("well-formed")
            .expect("complete");
        let body = String::from_utf8(answer.body.into_owned()).expect("text");
        (answer.status, body, answer.length, answer.keep_alive)
    }

    #[test]
    fn bodies_end_by_length_by_chunks_and_by_close() {
        let by_length = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhiHTTP";
        assert_eq!(
            complete(by_length),
            (200, "hi".into(), by_length.len() - 4, true)
        );
        let by_chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nhi\r\nA\r\n0123456789\r\n0\r\nT: 1\r\n\r\n";
        assert_eq!(
            complete(by_chunks),
            (200, "hi0123456789".into(), by_chunks.len(), true)
        );
        let by_close = b"HTTP/1.1 502 Bad\r\n\r\nhi";
        assert_eq!(read(by_close, false), Ok(None));
        let answer = read(by_close, true)
            .expect("well-formed")
            .expect("complete");
        assert_eq!(
            (answer.status, answer.keep_alive, answer.body.as_ref()),
            (502, false, &b"hi"[..])
        );
    }

    #[test]
    fn interim_answers_are_skipped_and_close_is_seen() {
        let text = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        assert_eq!(complete(text), (429, String::new(), text.len(), false));
        assert!(!complete("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n").3);
        assert!(
            complete("HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n").3
        );
        assert_eq!(complete("HTTP/1.1 204 No Content\r\n\r\n").0, 204);
    }

    #[test]
    fn nonsense_is_malformed_not_incomplete() {
        assert!(matches!(
            read(b"SSH-2.0-x\r\n", false),
            Err(Malformed::Head(_))
        ));
        assert_eq!(
            read(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", false),
            Err(Malformed::Framing)
        );
        assert_eq!(
            read(
                b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
                false
            ),
            Err(Malformed::TooLong)
        );
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhixx";
        assert_eq!(read(chunked, false), Err(Malformed::Framing));
    }

    proptest! {
        #[test]
        fn an_answer_is_the_same_however_it_is_cut(cut in 0usize..110, chunked: bool) {
            let text = if chunked {
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"
            } else {
                "HTTP/1.1 200 OK\r\nServer: a\r\nContent-Length: 11\r\n\r\nhello world"
            };
            let cut = cut.min(text.len());
            let early = read(&text.as_bytes()[..cut], false).expect("a prefix of an answer");
            prop_assert_eq!(early.is_some(), cut == text.len());
            prop_assert_eq!(complete(text).1, "hello world");
        }

        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), closed: bool) {
            let mut text = b"HTTP/1.1 200 OK\r\n".to_vec();
            text.extend_from_slice(&bytes);
            let _ = read(&text, closed);
            let _ = read(&bytes, closed);
        }
    }
}

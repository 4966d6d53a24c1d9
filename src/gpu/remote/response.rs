//! A response of HTTP/1.1, taken in as it arrives. Pure: bytes in, one [`Response`] out.
//!
//! `httparse` reads the head; the body ends as RFC 9112 (section 6.3) says: after its length, with its last chunk, or with
//! the connection. Whatever else a worker sends is not believed: everything is bounded, and a response that breaks off is
//! never taken for a whole one.

use std::time::Duration;

use crate::http::chunked::Decoder;

/// Bytes and number of headers that a worker may send.
const HEAD_BYTES_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 64;

/// A whole response.
#[derive(Debug, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// `Retry-After`, where it is a number of seconds.
    pub retry_after: Option<Duration>,
    /// Whether the connection ends with it.
    pub closes: bool,
    /// The body.
    pub body: Vec<u8>,
}

/// Reads one response.
#[derive(Debug)]
pub struct Reader {
    body_bytes_max: usize,
    /// Bytes of a head that is not complete.
    head: Vec<u8>,
    /// The response so far, once its head is complete.
    response: Option<(Response, End)>,
}

#[derive(Debug)]
enum End {
    /// So many bytes are still to come.
    Length(usize),
    Chunked(Decoder),
    /// With the connection.
    Close,
}

impl Reader {
    /// A reader of a response whose body is at most `body_bytes_max` long.
    pub fn new(body_bytes_max: usize) -> Reader {
        Reader {
            body_bytes_max,
            head: Vec::new(),
            response: None,
        }
    }

    /// Whether nothing has come yet.
    pub fn is_fresh(&self) -> bool {
        self.head.is_empty() && self.response.is_none()
    }

    /// Takes in what came. Gives the response once it is whole.
    ///
    /// # Errors
    /// This is no response, or too long a one; says why.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Option<Response>, String> {
        if self.response.is_some() {
            return self.take_body(bytes);
        }
        self.head.extend_from_slice(bytes);
        let Some(rest) = self.take_head()? else {
            return Ok(None);
        };
        self.take_body(&rest)
    }

    /// The connection has ended: the response, if that was its end.
    pub fn end(&mut self) -> Option<Response> {
        match self.response.take() {
            Some((response, End::Close)) => Some(response),
            _ => None,
        }
    }

    /// Reads the head, if it is all there, and gives what follows it. Interim responses are skipped.
    fn take_head(&mut self) -> Result<Option<Vec<u8>>, String> {
        loop {
            let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
            let mut head = httparse::Response::new(&mut headers);
            let parsed = head
                .parse(&self.head)
                .map_err(|error| format!("no HTTP response: {error}"))?;
            let httparse::Status::Complete(length) = parsed else {
                let fits = self.head.len() <= HEAD_BYTES_MAX;
                return if fits {
                    Ok(None)
                } else {
                    Err("the head of its response is too long".to_owned())
                };
            };
            let status = head.code.unwrap_or_default();
            if (100..200).contains(&status) {
                self.head.drain(..length);
                continue;
            }
            let (response, end) = read_head(&head, self.body_bytes_max)?;
            self.response = Some((response, end));
            let rest = self.head.split_off(length);
            return Ok(Some(rest));
        }
    }

    fn take_body(&mut self, bytes: &[u8]) -> Result<Option<Response>, String> {
        let Some((response, end)) = &mut self.response else {
            return Ok(None);
        };
        let (taken, done) = match end {
            End::Length(remaining) => {
                let taken = bytes.len().min(*remaining);
                response.body.extend_from_slice(&bytes[..taken]);
                *remaining -= taken;
                (taken, *remaining == 0)
            }
            End::Chunked(decoder) => {
                let taken = decoder
                    .decode(bytes, &mut response.body)
                    .map_err(|error| error.to_string())?;
                (taken, decoder.is_done())
            }
            End::Close => {
                response.body.extend_from_slice(bytes);
                (bytes.len(), false)
            }
        };
        if response.body.len() > self.body_bytes_max {
            return Err(too_long(self.body_bytes_max));
        }
        if !done {
            return Ok(None);
        }
        // More than was announced: whatever that is, it is not the answer to anything that was asked.
        response.closes |= taken < bytes.len();
        Ok(self.response.take().map(|(response, _)| response))
    }
}

fn read_head(
    head: &httparse::Response<'_, '_>,
    body_bytes_max: usize,
) -> Result<(Response, End), String> {
    let named = |name: &str| {
        let header = head
            .headers
            .iter()
            .find(|header| header.name.eq_ignore_ascii_case(name));
        header.map(|header| {
            String::from_utf8_lossy(header.value)
                .trim()
                .to_ascii_lowercase()
        })
    };
    let status = head.code.unwrap_or_default();
    let connection = named("connection").unwrap_or_default();
    let length = named("content-length");
    let end = match (named("transfer-encoding"), length) {
        _ if status == 204 || status == 304 => End::Length(0),
        (Some(coding), _) if coding == "chunked" => End::Chunked(Decoder::new(body_bytes_max)),
        (Some(coding), _) => return Err(format!("it answers in the transfer coding {coding:?}")),
        (None, Some(length)) => match length.parse() {
            Ok(length) if length <= body_bytes_max => End::Length(length),
            Ok(_) => return Err(too_long(body_bytes_max)),
            Err(_) => return Err("its Content-Length is no number of bytes".to_owned()),
        },
        (None, None) => End::Close,
    };
    let closes = match head.version {
        Some(1) => connection.contains("close"),
        _ => !connection.contains("keep-alive"),
    };
    let retry_after = named("retry-after").and_then(|seconds| seconds.parse().ok());
    let response = Response {
        status,
        retry_after: retry_after.map(Duration::from_secs),
        closes: closes || matches!(end, End::Close),
        body: Vec::new(),
    };
    Ok((response, end))
}

fn too_long(body_bytes_max: usize) -> String {
    format!("its answer is longer than the {body_bytes_max} bytes that its outputs can have")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &[u8], pieces: usize) -> Result<Option<Response>, String> {
        let mut reader = Reader::new(100);
        for piece in text.chunks(pieces.max(1)) {
            if let Some(response) = reader.feed(piece)? {
                return Ok(Some(response));
            }
        }
        Ok(reader.end())
    }

    fn body(text: &str) -> Option<String> {
        let response = read(text.as_bytes(), usize::MAX).expect("a response");
        response.map(|response| String::from_utf8(response.body).expect("text"))
    }

    #[test]
    fn a_body_ends_with_its_length_its_last_chunk_or_the_connection() {
        assert_eq!(
            body("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").as_deref(),
            Some("hello")
        );
        let chunked =
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n";
        assert_eq!(body(chunked).as_deref(), Some("hello"));
        assert_eq!(
            body("HTTP/1.0 200 OK\r\n\r\nhello").as_deref(),
            Some("hello")
        );
        assert_eq!(body("HTTP/1.1 204 No Content\r\n\r\n").as_deref(), Some(""));
        assert_eq!(
            body("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx")
                .as_deref(),
            Some("x")
        );
    }

    #[test]
    fn what_breaks_off_is_no_response() {
        for text in [
            "",
            "HTTP/1.1 200",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        ] {
            assert_eq!(body(text), None, "{text:?}");
        }
    }

    #[test]
    fn what_is_no_response_or_too_long_is_refused() {
        let endless = format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(HEAD_BYTES_MAX));
        for text in [
            "SSH-2.0-OpenSSH\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
            &format!("HTTP/1.0 200 OK\r\n\r\n{}", "x".repeat(101)),
            &endless,
        ] {
            assert!(read(text.as_bytes(), usize::MAX).is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_connection_goes_on_unless_somebody_says_otherwise() {
        let closes = |text: &str| {
            read(text.as_bytes(), usize::MAX)
                .expect("sound")
                .expect("whole")
                .closes
        };
        assert!(!closes("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"));
        assert!(closes(
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        ));
        assert!(closes("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n"));
        assert!(!closes(
            "HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: Keep-Alive\r\n\r\n"
        ));
        assert!(closes("HTTP/1.1 200 OK\r\n\r\n"));
        assert!(closes(
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx and more"
        ));
    }

    proptest! {
        #[test]
        fn a_response_is_the_same_however_it_is_cut(pieces in 1_usize..200, chunked: bool) {
            let text: &[u8] = if chunked {
                b"HTTP/1.1 503 Busy\r\nRetry-After: 2\r\nTransfer-Encoding: chunked\r\n\r\n3;x\r\nabc\r\n0\r\nT: u\r\n\r\n"
            } else {
                b"HTTP/1.1 503 Busy\r\nRetry-After: 2\r\nContent-Length: 3\r\n\r\nabc"
            };
            let response = read(text, pieces).expect("sound").expect("whole");
            let expected = Response {
                status: 503,
                retry_after: Some(Duration::from_secs(2)),
                closes: false,
                body: b"abc".to_vec(),
            };
            prop_assert_eq!(response, expected);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), pieces in 1_usize..50) {
            let _ = read(&bytes, pieces);
            let _ = read(&[b"HTTP/1.1 200 OK\r\n".as_slice(), &bytes].concat(), pieces);
        }
    }
}

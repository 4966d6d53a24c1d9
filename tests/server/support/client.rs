//! A blocking HTTP/1.1 client that shows what stands on the wire, and that can do what no decent client does.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use super::{BOUND, output_of};

/// One connection.
pub struct Client {
    stream: TcpStream,
    /// Bytes that came after the last response.
    buffer: Vec<u8>,
}

impl Client {
    /// Connects.
    ///
    /// # Panics
    /// If that fails.
    pub fn connect(address: SocketAddr) -> Client {
        Client::try_connect(address).expect("the server takes connections")
    }

    /// Connects.
    ///
    /// # Errors
    /// As the system says.
    pub fn try_connect(address: SocketAddr) -> io::Result<Client> {
        Client::new(TcpStream::connect_timeout(&address, BOUND)?)
    }

    /// A client on a socket that is connected already.
    ///
    /// # Errors
    /// As the system says.
    pub fn new(stream: TcpStream) -> io::Result<Client> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(BOUND))?;
        stream.set_write_timeout(Some(BOUND))?;
        let buffer = Vec::new();
        Ok(Client { stream, buffer })
    }

    /// The socket, for what this client has no word for.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    // --- sending

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Client {
        self.try_send(bytes).expect("the server reads");
        self
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// As the system says; the server may have closed.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref())
    }

    /// Sends a `POST /v1/inference` whose body comes in these chunks. `headers` are whole lines with their line ends.
    pub fn send_chunked(&mut self, headers: &str, chunks: &[&str]) -> &mut Client {
        let mut text = format!(
            "POST /v1/inference HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n\
             Transfer-Encoding: chunked\r\n{headers}\r\n"
        );
        for chunk in chunks {
            text.push_str(&format!("{:x}\r\n{chunk}\r\n", chunk.len()));
        }
        text.push_str("0\r\n\r\n");
        self.send(text)
    }

    /// Ends the sending side: the server sees FIN.
    pub fn half_close(&mut self) -> &mut Client {
        let _ = self.stream.shutdown(Shutdown::Write);
        self
    }

    /// Closes the connection with a reset.
    pub fn reset(self) {
        let socket = socket2::SockRef::from(&self.stream);
        socket.set_linger(Some(Duration::ZERO)).expect("a socket");
    }

    // --- receiving

    /// The next response, interim ones included.
    ///
    /// # Panics
    /// If none comes, or not in full.
    pub fn response(&mut self) -> Response {
        let response = self.try_response().expect("a whole response");
        response.expect("a response before the connection closes")
    }

    /// The next response to a HEAD request, which has no body whatever its length says.
    ///
    /// # Panics
    /// If none comes, or not in full.
    pub fn response_to_head(&mut self) -> Response {
        let response = self.receive(true).expect("a whole response");
        response.expect("a response before the connection closes")
    }

    /// The next response; `None` if the server closed, or reset, the connection before its first byte.
    ///
    /// # Errors
    /// `UnexpectedEof` if the response is cut off, `InvalidData` if it is no HTTP, `WouldBlock` if it takes too long.
    pub fn try_response(&mut self) -> io::Result<Option<Response>> {
        self.receive(false)
    }

    fn receive(&mut self, to_head: bool) -> io::Result<Option<Response>> {
        loop {
            if let Some((response, length)) = Response::parse(&self.buffer, to_head)? {
                self.buffer.drain(..length);
                return Ok(Some(response));
            }
            let mut bytes = [0; 16 << 10];
            let count = match self.stream.read(&mut bytes) {
                Ok(count) => count,
                Err(error) if is_reset(&error) => 0,
                // This process was stopped for a while.
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            match (count, self.buffer.is_empty()) {
                (0, true) => return Ok(None),
                (0, false) => return Err(ErrorKind::UnexpectedEof.into()),
                (count, _) => self.buffer.extend_from_slice(&bytes[..count]),
            }
        }
    }

    /// Waits for the server to close, and asserts that it says nothing before.
    ///
    /// # Panics
    /// If it says something, or does not close.
    pub fn expect_close(&mut self) {
        let more = self.try_response().expect("the connection closes");
        assert!(more.is_none(), "one response too many: {more:?}");
    }

    /// Whether the server has closed or said something unasked for: a look, without waiting.
    pub fn has_news(&self) -> bool {
        self.stream.set_nonblocking(true).expect("a socket");
        let peeked = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false).expect("a socket");
        !matches!(peeked, Err(error) if error.kind() == ErrorKind::WouldBlock)
    }

    // --- both

    /// Sends a request and gives its response.
    pub fn request(&mut self, bytes: impl AsRef<[u8]>) -> Response {
        self.send(bytes).response()
    }

    /// The answer to `GET path`.
    pub fn get(&mut self, path: &str) -> Response {
        self.request(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n"))
    }

    /// The answer to one inference.
    pub fn infer(&mut self, input: &str) -> Response {
        self.infer_with("", input)
    }

    /// The answer to one inference with further header lines.
    pub fn infer_with(&mut self, headers: &str, input: &str) -> Response {
        self.request(post(headers, input))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {:?}", self.stream.local_addr())
    }
}

/// Whether an error is the server's (or its kernel's) way to have closed already.
pub fn is_reset(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe
    )
}

/// An inference request. `headers` are whole lines with their line ends.
pub fn post(headers: &str, input: &str) -> Vec<u8> {
    let body = serde_json::json!({ "input": input }).to_string();
    post_body(headers, &body)
}

/// A request to the inference route with any body.
pub fn post_body(headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    let request = format!(
        "POST /v1/inference HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n{headers}\r\n{body}"
    );
    request.into_bytes()
}

/// A response as it came.
#[derive(Clone)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The header section, in order.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl Response {
    /// The first response in `bytes` and its length, if it is there in full.
    fn parse(bytes: &[u8], to_head: bool) -> io::Result<Option<(Response, usize)>> {
        let invalid = |what: &str| io::Error::new(ErrorKind::InvalidData, what.to_owned());
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut head = httparse::Response::new(&mut headers);
        let parsed = head
            .parse(bytes)
            .map_err(|error| invalid(&format!("{error}: {}", String::from_utf8_lossy(bytes))))?;
        let httparse::Status::Complete(head_length) = parsed else {
            return Ok(None);
        };
        let status = head.code.ok_or_else(|| invalid("no status"))?;
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        let headers = head.headers.iter();
        let headers: Vec<_> = headers
            .map(|header| (header.name.to_owned(), text(header.value)))
            .collect();
        let mut response = Response {
            status,
            headers,
            body: Vec::new(),
        };
        let length = match response.header("Content-Length") {
            _ if to_head || status < 200 => 0,
            Some(value) => value.parse().map_err(|_| invalid("Content-Length"))?,
            None => return Err(invalid("a response without Content-Length")),
        };
        let Some(body) = bytes[head_length..].get(..length) else {
            return Ok(None);
        };
        response.body = body.to_vec();
        Ok(Some((response, head_length + length)))
    }

    /// The value of a header.
    ///
    /// # Panics
    /// If it stands there twice.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut all = self
            .headers
            .iter()
            .filter(|(other, _)| other.eq_ignore_ascii_case(name));
        let first = all.next();
        assert!(all.next().is_none(), "{name} stands there twice: {self:?}");
        first.map(|(_, value)| value.as_str())
    }

    /// Whether the server says that it closes the connection.
    pub fn closes(&self) -> bool {
        self.header("Connection") == Some("close")
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// If it is none.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error} in the body of {self:?}"))
    }

    /// The output of an inference.
    ///
    /// # Panics
    /// If this is not a 200 with one.
    pub fn output(&self) -> String {
        assert_eq!(self.status, 200, "{self:?}");
        let body = self.json();
        body["output"].as_str().expect("a string").to_owned()
    }

    /// Asserts that this is the answer to `input`, and whole.
    pub fn expect_output(&self, input: &str) -> &Response {
        assert_eq!(self.output(), output_of(input));
        self
    }

    /// Asserts that this is an error of `status` as every error has to be, and gives the problem document.
    pub fn expect_problem(&self, status: u16) -> serde_json::Value {
        assert_eq!(self.status, status, "{self:?}");
        let content_type = self.header("Content-Type");
        assert_eq!(content_type, Some("application/problem+json"), "{self:?}");
        let problem = self.json();
        assert_eq!(problem["status"], status, "{self:?}");
        assert_eq!(
            problem["request_id"].as_str(),
            self.header("X-Request-Id"),
            "{self:?}"
        );
        for member in ["type", "title", "detail", "request_id"] {
            let text = problem[member].as_str().unwrap_or_default();
            assert!(!text.is_empty(), "{member} is missing in {self:?}");
        }
        assert_eq!(
            self.header("Retry-After").is_some(),
            problem.get("retry_after_ms").is_some(),
            "{self:?}"
        );
        problem
    }
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.status)?;
        for (name, value) in &self.headers {
            writeln!(f, "{name}: {value}")?;
        }
        write!(f, "\n{}", self.text())
    }
}

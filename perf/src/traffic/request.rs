//! How a request looks on the wire: a head per tier, made once, and a body with a place for the input.

use std::io::Write as _;

use super::Traffic;

/// The place of the input in a template.
pub const PLACEHOLDER: &str = "{input}";

/// The shape of the requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Path and query.
    pub path: String,
    /// Value of `Host`.
    pub host: String,
    /// Body, with [`PLACEHOLDER`] where the input goes. It stands inside quotes where the body is JSON.
    pub template: String,
    /// Value of `Content-Type`; if it names JSON, the input is escaped for a JSON string.
    pub content_type: String,
    /// More header lines, without line ends.
    pub headers: Vec<String>,
    /// Sent as `X-Request-Timeout-Ms`.
    pub deadline_ms: Option<u64>,
    /// False to ask for the connection to be closed.
    pub keep_alive: bool,
}

/// The shape of the requests makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Nothing to replace.
    #[error("the request template has no {PLACEHOLDER} where the input would go")]
    NoPlaceholder,
    /// Not `Name: value`, or control characters in it.
    #[error("`{0}` is no header: write `Name: value`")]
    Header(String),
    /// Not a path.
    #[error("the path `{0}` must start with / and hold no blanks")]
    Path(String),
}

impl Request {
    /// `POST /v1/inference` as Funicular takes it, to `host`.
    pub fn inference(host: &str) -> Request {
        Request {
            path: "/v1/inference".to_owned(),
            host: host.to_owned(),
            template: r#"{"input": "{input}"}"#.to_owned(),
            content_type: "application/json".to_owned(),
            headers: Vec::new(),
            deadline_ms: None,
            keep_alive: true,
        }
    }

    fn head(&self, tier: Option<&str>) -> Vec<u8> {
        let mut head = format!(
            "POST {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: funicular-perf/{}\r\nContent-Type: {}\r\n",
            self.path,
            self.host,
            env!("CARGO_PKG_VERSION"),
            self.content_type,
        );
        let mut line = |name: &str, value: &str| head.extend([name, ": ", value, "\r\n"]);
        if let Some(tier) = tier {
            line("X-Tier", tier);
        }
        if let Some(deadline) = self.deadline_ms {
            line("X-Request-Timeout-Ms", &deadline.to_string());
        }
        if !self.keep_alive {
            line("Connection", "close");
        }
        for header in &self.headers {
            head.extend([header.as_str(), "\r\n"]);
        }
        head.push_str("Content-Length: ");
        head.into_bytes()
    }

    /// Refuses what makes no request.
    ///
    /// # Errors
    /// If path, template or headers can't be sent.
    pub fn check(&self) -> Result<(), RequestError> {
        let blank = |text: &str| text.bytes().any(|byte| byte <= b' ' || byte == 0x7F);
        if !self.path.starts_with('/') || blank(&self.path) {
            return Err(RequestError::Path(self.path.clone()));
        }
        if !self.template.contains(PLACEHOLDER) {
            return Err(RequestError::NoPlaceholder);
        }
        let content_type = format!("Content-Type: {}", self.content_type);
        for header in self.headers.iter().chain([&content_type]) {
            let control = header.bytes().any(|byte| byte < b' ' || byte == 0x7F);
            let name = header.split_once(':').map(|(name, _)| name);
            if control || name.is_none_or(|name| name.is_empty() || blank(name)) {
                return Err(RequestError::Header(header.clone()));
            }
        }
        Ok(())
    }
}

/// Writes requests without allocating once its buffers have grown.
#[derive(Clone, Debug)]
pub struct RequestWriter {
    /// One per tier, up to and with `Content-Length: `.
    heads: Vec<Vec<u8>>,
    /// The template, cut at its placeholders.
    pieces: Vec<String>,
    json: bool,
    input: String,
    escaped: Vec<u8>,
}

impl RequestWriter {
    /// Prepares the heads for each tier of the traffic.
    ///
    /// # Errors
    /// If path, template or headers make no request.
    pub fn new(request: &Request, traffic: &Traffic) -> Result<RequestWriter, RequestError> {
        request.check()?;
        let heads = if traffic.mix.is_untiered() {
            vec![request.head(None)]
        } else {
            traffic
                .mix
                .names()
                .iter()
                .map(|tier| request.head(Some(tier)))
                .collect()
        };
        Ok(RequestWriter {
            heads,
            pieces: request
                .template
                .split(PLACEHOLDER)
                .map(str::to_owned)
                .collect(),
            json: request.content_type.contains("json"),
            input: String::new(),
            escaped: Vec::new(),
        })
    }

    /// Appends request `number` of `tier` to `out`.
    pub fn write(&mut self, traffic: &Traffic, number: u64, tier: usize, out: &mut Vec<u8>) {
        traffic.input(number, &mut self.input);
        let input: &[u8] = if self.json {
            self.escaped.clear();
            serde_json::to_writer(&mut self.escaped, &self.input)
                .expect("a string has a JSON form and a Vec takes it");
            &self.escaped[1..self.escaped.len() - 1]
        } else {
            self.input.as_bytes()
        };
        let fixed: usize = self.pieces.iter().map(String::len).sum();
        let length = fixed + input.len() * (self.pieces.len() - 1);
        out.extend_from_slice(&self.heads[tier]);
        write!(out, "{length}\r\n\r\n").expect("a Vec takes everything");
        for (index, piece) in self.pieces.iter().enumerate() {
            if index > 0 {
                out.extend_from_slice(input);
            }
            out.extend_from_slice(piece.as_bytes());
        }
    }
}

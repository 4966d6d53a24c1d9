//! Why a request is not answered with 200, and the one place that says what the caller sees of it.
//!
//! Everything that refuses a request on the data plane ends in a [`Rejection`]: the parsers of this module,
//! admission, the waiting room and the GPU threads. The mapping to status, title, problem type, `Retry-After` and
//! "does the connection survive" is exhaustive, so a new reason cannot be forgotten in one of them. The text of the
//! error (its `Display`) is the `detail` that the caller reads; what the operator needs to know is logged where the
//! failure happens and never ends up here.

use std::borrow::Cow;
use std::time::Duration;

use serde::Serialize;

pub use super::reasons::UnavailableReason;
use super::reasons::{problem_type, sentence};
pub use crate::metrics::ShedReason;
use crate::tier::Tier;

/// A request that is answered with an error. `Display` is the `detail` of the problem document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// 400: not HTTP, or HTTP whose framing cannot be trusted; what follows on the connection is unreadable.
    #[error("{0}")]
    Malformed(&'static str),
    /// 400: a header that is HTTP but makes no sense here.
    #[error("header {name}: {problem}")]
    Header {
        /// The header at fault.
        name: &'static str,
        /// What is wrong with it.
        problem: Cow<'static, str>,
    },
    /// 400: the tier named in the request does not exist.
    #[error("header X-Tier: there is no tier {0:?}; the tiers are enterprise, paid and free")]
    UnknownTier(Box<str>),
    /// 400: the body is not the JSON that the route takes.
    #[error("{problem} at line {line} column {column}")]
    Json {
        /// What is wrong.
        problem: Box<str>,
        /// Line of the body, from 1.
        line: usize,
        /// Column in bytes, from 1; 0 where the line has just begun.
        column: usize,
    },
    /// 401: no key, or one that is not known.
    #[error("a known API key is needed: Authorization: Bearer …")]
    Unauthorized,
    /// 404: nothing lives at this path.
    #[error("there is nothing at this path; GET /openapi.json lists what there is")]
    NoRoute,
    /// 404: the model is not served here.
    #[error("there is no model {asked:?} here; this server serves {serving:?}")]
    UnknownModel {
        /// The model that the request names.
        asked: Box<str>,
        /// The model that the server has.
        serving: Box<str>,
    },
    /// 405: the path exists, with other methods.
    #[error("this path takes {allow}")]
    MethodNotAllowed {
        /// The methods that the path takes, as they stand in `Allow`.
        allow: &'static str,
    },
    /// 408: the request did not arrive in full in time.
    #[error("the request did not arrive in full within {} s", .0.as_secs_f64())]
    RequestTimeout(Duration),
    /// 409: a batch with this id has come before, and was another one.
    #[error("a batch with the id {0:?} was sent before, with other requests")]
    OtherBatch(Box<str>),
    /// 413: a batch of more inputs than the worker takes.
    #[error("the batch has more than {limit} requests; start the worker with a larger --batch-max")]
    BatchTooLarge {
        /// The limit.
        limit: usize,
    },
    /// 413: the body is longer than the server reads.
    #[error("the body is longer than {limit_bytes} bytes")]
    BodyTooLarge {
        /// The limit.
        limit_bytes: usize,
    },
    /// 413: the input is longer than a batch takes.
    #[error("the input is longer than {limit_bytes} bytes")]
    InputTooLarge {
        /// The limit.
        limit_bytes: usize,
    },
    /// 414: the request target is too long.
    #[error("the request target is longer than {limit_bytes} bytes")]
    TargetTooLong {
        /// The limit.
        limit_bytes: usize,
    },
    /// 415: the body is declared as something else than JSON.
    #[error("the body must be application/json")]
    NotJson,
    /// 417: an expectation other than `100-continue`.
    #[error("the only expectation that is met is 100-continue")]
    Expectation,
    /// 422: the batch function rejects this very input.
    #[error("{0}")]
    InputRejected(Box<str>),
    /// 422: the batch function raised on the whole batch.
    #[error("{0}")]
    BatchRaised(Box<str>),
    /// 429: admission turned the request away.
    #[error("{}", sentence(*.reason))]
    Shed {
        /// Why.
        reason: ShedReason,
        /// The tier that the request was judged in.
        tier: Tier,
        /// When it is worth another try.
        retry_after: Duration,
    },
    /// 429: the caller asks for less time than a batch takes. Waiting does not help, so nothing says how long to wait.
    #[error("{}", too_short(*.batch_time, *.deadline))]
    DeadlineTooShort {
        /// The tier of the request.
        tier: Tier,
        /// The time that the request allows.
        deadline: Duration,
        /// How long a batch takes, as measured.
        batch_time: Duration,
    },
    /// 431: too many headers, or too many bytes of them.
    #[error("the header section is longer than {limit_bytes} bytes or {limit_count} headers")]
    HeadersTooLarge {
        /// The limit on bytes, request line included.
        limit_bytes: usize,
        /// The limit on their number.
        limit_count: usize,
    },
    /// 500: a bug of ours.
    #[error("the server failed; the request id helps to find out why")]
    Internal,
    /// 500: the batch function returned more than the server passes on.
    #[error("the output is longer than {limit_bytes} bytes")]
    OutputTooLarge {
        /// The limit.
        limit_bytes: usize,
    },
    /// 501: a transfer coding other than `chunked`.
    #[error("the only transfer coding that is understood is chunked")]
    TransferCoding,
    /// 502: the GPU failed while it ran the batch.
    #[error("{0}")]
    BatchLost(&'static str),
    /// 503: nothing is wrong with the request, the server cannot serve it now.
    #[error("{}", .reason.sentence())]
    Unavailable {
        /// Why.
        reason: UnavailableReason,
        /// When it is worth another try.
        retry_after: Duration,
    },
    /// 504: the deadline passed before there was an answer.
    #[error("the deadline of the request passed before there was an answer")]
    DeadlinePassed,
    /// 505: a version of HTTP other than 1.0 and 1.1.
    #[error("the versions that are understood are HTTP/1.1 and HTTP/1.0")]
    Version,
}

impl Rejection {
    /// A server that is going away; the client should try another one at once.
    pub const fn draining() -> Rejection {
        Rejection::Unavailable {
            reason: UnavailableReason::Draining,
            retry_after: Duration::from_secs(1),
        }
    }

    /// All requests together hold as much memory as they may.
    pub const fn out_of_memory() -> Rejection {
        Rejection::Unavailable {
            reason: UnavailableReason::Memory,
            retry_after: Duration::from_secs(1),
        }
    }

    /// The status code.
    pub const fn status(&self) -> u16 {
        match self {
            Rejection::Malformed(_)
            | Rejection::Header { .. }
            | Rejection::UnknownTier(_)
            | Rejection::Json { .. } => 400,
            Rejection::Unauthorized => 401,
            Rejection::NoRoute | Rejection::UnknownModel { .. } => 404,
            Rejection::MethodNotAllowed { .. } => 405,
            Rejection::RequestTimeout(_) => 408,
            Rejection::OtherBatch(_) => 409,
            Rejection::BodyTooLarge { .. }
            | Rejection::InputTooLarge { .. }
            | Rejection::BatchTooLarge { .. } => 413,
            Rejection::TargetTooLong { .. } => 414,
            Rejection::NotJson => 415,
            Rejection::Expectation => 417,
            Rejection::InputRejected(_) | Rejection::BatchRaised(_) => 422,
            Rejection::Shed { .. } | Rejection::DeadlineTooShort { .. } => 429,
            Rejection::HeadersTooLarge { .. } => 431,
            Rejection::Internal | Rejection::OutputTooLarge { .. } => 500,
            Rejection::TransferCoding => 501,
            Rejection::BatchLost(_) => 502,
            Rejection::Unavailable { .. } => 503,
            Rejection::DeadlinePassed => 504,
            Rejection::Version => 505,
        }
    }

    /// The `type` of the problem: stable, for programs to compare.
    pub const fn problem_type(&self) -> &'static str {
        match self {
            Rejection::Malformed(_) => "urn:funicular:problem:malformed-request",
            Rejection::Header { .. } => "urn:funicular:problem:bad-header",
            Rejection::UnknownTier(_) => "urn:funicular:problem:unknown-tier",
            Rejection::Json { .. } => "urn:funicular:problem:bad-json",
            Rejection::Unauthorized => "urn:funicular:problem:unauthorized",
            Rejection::NoRoute => "urn:funicular:problem:no-route",
            Rejection::UnknownModel { .. } => "urn:funicular:problem:unknown-model",
            Rejection::MethodNotAllowed { .. } => "urn:funicular:problem:method-not-allowed",
            Rejection::RequestTimeout(_) => "urn:funicular:problem:request-timeout",
            Rejection::OtherBatch(_) => "urn:funicular:problem:other-batch",
            Rejection::BatchTooLarge { .. } => "urn:funicular:problem:batch-too-large",
            Rejection::BatchRaised(_) => "urn:funicular:problem:batch-raised",
            Rejection::BatchLost(_) => "urn:funicular:problem:batch-lost",
            Rejection::BodyTooLarge { .. } => "urn:funicular:problem:body-too-large",
            Rejection::InputTooLarge { .. } => "urn:funicular:problem:input-too-large",
            Rejection::TargetTooLong { .. } => "urn:funicular:problem:target-too-long",
            Rejection::NotJson => "urn:funicular:problem:not-json",
            Rejection::Expectation => "urn:funicular:problem:expectation-failed",
            Rejection::InputRejected(_) => "urn:funicular:problem:input-rejected",
            Rejection::Shed { reason, .. } => problem_type(*reason),
            Rejection::DeadlineTooShort { .. } => problem_type(ShedReason::DeadlineTooShort),
            Rejection::HeadersTooLarge { .. } => "urn:funicular:problem:headers-too-large",
            Rejection::Internal => "urn:funicular:problem:internal",
            Rejection::OutputTooLarge { .. } => "urn:funicular:problem:output-too-large",
            Rejection::TransferCoding => "urn:funicular:problem:transfer-coding",
            Rejection::Unavailable { .. } => "urn:funicular:problem:unavailable",
            Rejection::DeadlinePassed => "urn:funicular:problem:deadline-passed",
            Rejection::Version => "urn:funicular:problem:http-version",
        }
    }

    /// Whether the connection ends with this answer, because what follows on it cannot be read as a request.
    pub const fn closes(&self) -> bool {
        match self {
            Rejection::Malformed(_)
            | Rejection::RequestTimeout(_)
            | Rejection::BodyTooLarge { .. }
            | Rejection::TargetTooLong { .. }
            | Rejection::HeadersTooLarge { .. }
            | Rejection::Internal
            | Rejection::TransferCoding
            | Rejection::Version => true,
            Rejection::Unavailable { reason, .. } => matches!(
                reason,
                UnavailableReason::Draining
                    | UnavailableReason::Connections
                    | UnavailableReason::Memory
            ),
            Rejection::Header { .. }
            | Rejection::UnknownTier(_)
            | Rejection::Json { .. }
            | Rejection::Unauthorized
            | Rejection::NoRoute
            | Rejection::UnknownModel { .. }
            | Rejection::MethodNotAllowed { .. }
            | Rejection::InputTooLarge { .. }
            | Rejection::OtherBatch(_)
            | Rejection::BatchTooLarge { .. }
            | Rejection::BatchRaised(_)
            | Rejection::BatchLost(_)
            | Rejection::NotJson
            | Rejection::Expectation
            | Rejection::InputRejected(_)
            | Rejection::Shed { .. }
            | Rejection::DeadlineTooShort { .. }
            | Rejection::OutputTooLarge { .. }
            | Rejection::DeadlinePassed => false,
        }
    }

    /// When it is worth another try, where the server knows.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Rejection::Shed { retry_after, .. } | Rejection::Unavailable { retry_after, .. } => {
                Some(*retry_after)
            }
            _ => None,
        }
    }

    /// The value of `Retry-After`: whole seconds, rounded up, at least one.
    pub fn retry_after_seconds(&self) -> Option<u64> {
        let wait = self.retry_after()?;
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        Some(seconds.max(1))
    }

    /// The value of `Allow`, for 405.
    pub const fn allow(&self) -> Option<&'static str> {
        match self {
            Rejection::MethodNotAllowed { allow } => Some(allow),
            _ => None,
        }
    }

    /// Appends the problem document (RFC 9457) to `out`.
    pub fn write_problem(&self, request_id: &str, out: &mut Vec<u8>) {
        let status = self.status();
        let (reason, tier) = match self {
            Rejection::Shed { reason, tier, .. } => (Some(reason.name()), Some(tier.name())),
            Rejection::DeadlineTooShort { tier, .. } => {
                (Some(ShedReason::DeadlineTooShort.name()), Some(tier.name()))
            }
            Rejection::Unavailable { reason, .. } => (Some(reason.name()), None),
            _ => (None, None),
        };
        let problem = Problem {
            problem_type: self.problem_type(),
            title: reason_phrase(status),
            status,
            detail: Cow::Owned(self.to_string()),
            request_id,
            tier,
            retry_after_ms: self.retry_after().map(whole_millis),
            reason,
        };
        serde_json::to_writer(out, &problem).expect("strings and numbers always serialise");
    }
}

/// The batch time is rounded up, so that it never reads as if it were within the deadline.
fn too_short(batch_time: Duration, deadline: Duration) -> String {
    let takes = whole_millis(batch_time);
    let allowed = deadline.as_micros() as f64 / 1e3;
    format!(
        "an answer takes about {takes} ms and the request allows {allowed} ms: allow more, or come without a \
         deadline of your own"
    )
}

fn whole_millis(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// The document of RFC 9457, with the extension members that the design names.
#[derive(Serialize)]
struct Problem<'a> {
    #[serde(rename = "type")]
    problem_type: &'static str,
    title: &'static str,
    status: u16,
    detail: Cow<'a, str>,
    request_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tier: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

/// The registered name of a status code that this server sends.
pub const fn reason_phrase(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        417 => "Expectation Failed",
        422 => "Unprocessable Content",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "Unknown",
    }
}

#[cfg(test)]
#[path = "reject_tests.rs"]
mod tests;

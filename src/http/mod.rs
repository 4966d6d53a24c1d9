//! The data plane: HTTP/1.1 in, tickets out, and the answers back on the connections that wait for them.
//!
//! The life of a request, on one screen:
//!
//! ```text
//! accept      a pinned thread accepts the connection and starts its coroutine on the core that owns the descriptor
//! receive     reads what has come into the core's buffer ........................ idle, header, body time-outs: 408
//! assemble      └ head complete? ─ parse (httparse, then RFC 9112 to the letter) ─ values ........ 400 414 431 501 505
//!               └ body complete? ─ chunked ....................................................................... 413
//! request     route, tier, deadline, media type ......................................... 400 401 404 405 415 417
//! inference   JSON → input and parameters ................................................................ 400 404 413
//! connection  door: may this tier in now? ................................................................... 429 503
//!             ticket → its tier's queue (try_send) .......................................................... 429
//!             wait on the slot ············ GPU threads resolve it, a mailbox and one kick per core wake us
//! timer         └ or the deadline comes first ............................................................... 504
//! answer      what the caller is told: 200, or a problem document ....................................... 408 422 500 503
//! respond       └ head and body into the core's buffer, one write; then the next request
//! ```
//!
//! On a worker (`terms.worker`) whole batches come in instead of single inputs: `batch` reads them, `batch_run` admits and
//! runs them, and `ledger` knows which have come before.
//!
//! Pure, with no socket: `parse`, `values`, `chunked`, `assemble`, `request`, `routes`, `inference`, `bounds`, `batch`,
//! `ledger`, `budget`, `reasons`, `reject`, `answer`, `tokens`, `respond`. The shell around them: `core` (threads), `accept`, `timer`, `wire` (one socket),
//! `receive`, `connection` and `ending` (its coroutine).
//!
//! Guarantees:
//! * Every request whose caller is still there gets exactly one answer, in the order of arrival on its connection;
//!   whatever is wrong with it, the answer is a problem document that says what.
//! * Nothing here blocks a thread: a coroutine waits for its socket or its slot, without a lock or a borrow.
//! * Everything is bounded: heads, bodies, inputs, connections, what all of them hold together, the time that each step
//!   may take.
//! * An idle connection costs its coroutine's stack (8.5 KiB of memory) and a few hundred bytes.

pub(crate) mod accept;
mod answer;
mod assemble;
mod batch;
mod batch_run;
mod bounds;
pub mod budget;
pub(crate) mod chunked;
mod connection;
mod core;
mod ending;
mod inference;
mod ledger;
mod parse;
mod reasons;
mod receive;
pub mod reject;
mod request;
mod respond;
mod routes;
mod timer;
mod tokens;
mod values;
mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use self::budget::Budget;
pub use self::core::{DataPlane, mailboxes};
pub(crate) use self::core::{STACK_WORDS, STACKS_POOLED, without_panic};
use self::ledger::Ledger;
use self::reject::Rejection;
use self::routes::Service;
use crate::clock::Time;
use crate::keys::{Keys, Secret};
use crate::metrics::Metrics;
use crate::queue::Intake;
use crate::tier::Tier;

/// How much of a request is read before it is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the request target: 414.
    pub target_bytes_max: usize,
    /// Bytes of the head, request line included: 431.
    pub head_bytes_max: usize,
    /// Number of headers: 431.
    pub headers_max: usize,
    /// Bytes of the body, chunked or not: 413.
    pub body_bytes_max: usize,
    /// Bytes of the input in it: 413.
    pub input_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            target_bytes_max: 8 << 10,
            head_bytes_max: 24 << 10,
            headers_max: 128,
            body_bytes_max: 1 << 20,
            input_bytes_max: 64 << 10,
        }
    }
}

impl Limits {
    fn target_too_long(&self) -> Rejection {
        Rejection::TargetTooLong {
            limit_bytes: self.target_bytes_max,
        }
    }

    fn headers_too_large(&self) -> Rejection {
        Rejection::HeadersTooLarge {
            limit_bytes: self.head_bytes_max,
            limit_count: self.headers_max,
        }
    }

    fn body_too_large(&self) -> Rejection {
        Rejection::BodyTooLarge {
            limit_bytes: self.body_bytes_max,
        }
    }
}

/// How long the steps of a connection may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// From the first byte of a request to the end of its head: 408.
    pub header: Duration,
    /// From the end of its head to the end of its body: 408.
    pub body: Duration,
    /// Without a byte between two requests: the connection closes.
    pub idle: Duration,
    /// Until an answer is written: the connection is cut.
    pub write: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            header: Duration::from_secs(10),
            body: Duration::from_secs(30),
            idle: Duration::from_secs(75),
            write: Duration::from_secs(30),
        }
    }
}

/// What a request is judged by before anybody is asked.
#[derive(Clone, Debug)]
pub struct Terms {
    /// How much of it is read.
    pub limits: Limits,
    /// The model that is served.
    pub model: Box<str>,
    /// The tier of a request that names none.
    pub default_tier: Tier,
    /// What a worker judges by, if this is one; then it takes batches instead of single inputs.
    pub worker: Option<WorkerTerms>,
    /// The keys of callers, one of which every request then needs, and which says its tier. Without keys the tier is
    /// what `X-Tier` says.
    pub keys: Option<Arc<Keys>>,
}

impl Default for Terms {
    fn default() -> Terms {
        Terms {
            limits: Limits::default(),
            model: "llm-v1".into(),
            default_tier: Tier::Free,
            worker: None,
            keys: None,
        }
    }
}

impl Terms {
    /// Whether a request needs a key, or a worker's secret.
    fn needs_key(&self) -> bool {
        let wants_secret = |worker: &WorkerTerms| worker.secret.is_some();
        self.keys.is_some() || self.worker.as_ref().is_some_and(wants_secret)
    }

    /// What is served.
    fn service(&self) -> Service {
        if self.worker.is_some() {
            Service::Batches
        } else {
            Service::Inputs
        }
    }
}

/// What a batch is judged by.
#[derive(Clone, Debug)]
pub struct WorkerTerms {
    /// Most requests in one.
    pub batch_max: usize,
    /// What servers have to show.
    pub secret: Option<Secret>,
}

/// Who decides whether a request becomes a ticket. Called on the acceptor cores, so it must not block.
pub trait Door: Send + Sync {
    /// Whether a request of `tier` that has `deadline` left may come in. It is recorded here if it may not.
    ///
    /// # Errors
    ///
    /// `Shed` or `Unavailable`.
    fn judge(
        &self,
        core: usize,
        now: Time,
        tier: Tier,
        deadline: Duration,
    ) -> Result<(), Rejection>;

    /// A request that was let in finds its tier's queue full. Records that, and says when to come back.
    fn queue_full(&self, core: usize, now: Time, tier: Tier) -> Duration;

    /// How long a request may take that does not ask for less.
    fn deadline(&self) -> Duration;

    /// How long a batch takes.
    fn batch_time(&self) -> Duration;

    /// Whether at least one GPU is healthy.
    fn is_ready(&self) -> bool;
}

/// How far the server is on its way out. Only ever rises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Phase {
    /// Not at all.
    Serving = 0,
    /// Serving, but not ready, and answers close their connections.
    Leaving = 1,
    /// The same, and the listeners close once their backlog is served.
    Closing = 2,
    /// New requests get 503, connections that are quiet for a second close.
    Draining = 3,
}

/// What the acceptor cores share with each other and with the rest of the server.
pub struct Shared {
    terms: Terms,
    timeouts: Timeouts,
    connections_max: usize,
    budget: Budget,
    ledger: Ledger,
    welcome: String,
    intake: Intake,
    metrics: Arc<Metrics>,
    door: Box<dyn Door>,
    phase: AtomicU8,
    connections: AtomicUsize,
    refusals: AtomicUsize,
    acceptors: AtomicUsize,
    lost_acceptor: AtomicBool,
}

/// What an operator can set about the data plane.
#[derive(Clone, Debug)]
pub struct Settings {
    /// See [`Terms`].
    pub terms: Terms,
    /// See [`Timeouts`].
    pub timeouts: Timeouts,
    /// Connections that are served at a time; those beyond it get 503.
    pub connections_max: usize,
    /// Bytes that all requests may hold together.
    pub request_memory_bytes: usize,
    /// Host and port to show to people.
    pub authority: String,
}

impl Shared {
    /// Shared state of a data plane that hands its tickets to `intake`.
    pub fn new(
        settings: Settings,
        intake: Intake,
        metrics: Arc<Metrics>,
        door: Box<dyn Door>,
    ) -> Shared {
        Shared {
            welcome: settings
                .terms
                .service()
                .welcome(&settings.authority, settings.terms.needs_key()),
            ledger: Ledger::default(),
            terms: settings.terms,
            timeouts: settings.timeouts,
            connections_max: settings.connections_max,
            budget: Budget::new(settings.request_memory_bytes),
            intake,
            metrics,
            door,
            phase: AtomicU8::new(Phase::Serving as u8),
            connections: AtomicUsize::new(0),
            refusals: AtomicUsize::new(0),
            acceptors: AtomicUsize::new(0),
            lost_acceptor: AtomicBool::new(false),
        }
    }

    /// Where everything is recorded.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Bytes that requests hold, and may.
    pub fn request_memory_bytes(&self) -> (usize, usize) {
        (self.budget.used_bytes(), self.budget.max_bytes())
    }

    /// The keys of callers, if they need one.
    pub fn keys(&self) -> Option<&Keys> {
        self.terms.keys.as_deref()
    }

    /// The present phase.
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Serving,
            1 => Phase::Leaving,
            2 => Phase::Closing,
            _ => Phase::Draining,
        }
    }

    /// Whether every listener is there that should be.
    pub fn is_listening(&self) -> bool {
        !self.lost_acceptor.load(Ordering::Relaxed)
    }

    fn enter(&self, phase: Phase) {
        // Relaxed: a core that sees it late acts on it late; the kick that follows bounds how late.
        self.phase.fetch_max(phase as u8, Ordering::Relaxed);
    }
}

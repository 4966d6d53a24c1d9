//! The admin plane: `/metrics`, `/status` and `/healthz` on a port of their own, for operators and scrapers; and `/faults`,
//! where the configuration allows it, for those who try out how the server takes failures.
//!
//! Served by `may_minihttp`: fixed GET routes, no request bodies, trusted callers, loopback by default. Its connections
//! are coroutines on the acceptor cores, so a handler must cost nothing: it copies bytes that the OS thread `admin`
//! rendered before, and the only lock it takes is held for the time of one pointer copy.
//!
//! # How old a reading is
//! The thread renders once a second, and every 200 ms while somebody asked within the last 30 s; a caller who is told
//! something older than 200 ms wakes it. So the first reading after a silence is up to 1 s old, and whoever reads again
//! and again gets readings at most 200 ms (and one rendering) old. Waiting in the handler for a fresh one would be
//! exact, but to be woken by another thread moves a coroutine off its core. Rates are best taken over the uptime that
//! stands in the reading itself.
//!
//! News such as the beginning of a drain are rendered at once ([`Admin::refresh`]).
//!
//! # Limits of the library
//! It ignores `Connection: close`, so callers must go by `Content-Length`; it can't be stopped, so the port answers
//! until the process ends, through a drain too; it logs every closed connection as an error under the target
//! `may_minihttp`, which the logger must silence. Its accept loop ends, and its listener with it, when there is no memory
//! for a connection's stack: `loops` starts another one. It bounds nothing, neither connections nor what one of them may
//! send, ask for or leave lying, and its accept loop spins when the process is out of descriptors: `guard` does what can
//! be done from outside.

mod faults;
pub(crate) mod guard;
mod loops;
mod seat;
mod status;
mod traffic;

use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use may_minihttp::{HttpService, HttpServiceFactory, Request, Response};
use parking_lot::{Mutex, RwLock};

use self::guard::{Guard, Place};
use self::loops::Port;
use crate::clock::{self, Time};
use crate::gpu::faults::Script;
use crate::metrics::{Metrics, SnapshotFn};
use crate::port::{self, Reservation};

/// Time between two renderings while nobody asks.
const PERIOD_IDLE: Duration = Duration::from_secs(1);
/// Time between two renderings while somebody does, and so the least between any two.
const PERIOD_BUSY: Duration = Duration::from_millis(200);
/// How long a request keeps the renderings coming at [`PERIOD_BUSY`]: more than the usual scrape interval of 15 s.
const INTEREST: Duration = Duration::from_secs(30);
/// If there was no rendering for so long, the process is not well.
const STALLED_AFTER: Duration = Duration::from_secs(10);

const INDEX: &str = "Funicular, admin plane\n\n\
    /metrics  Prometheus text format\n\
    /status   GPUs, queues, zone, capacity and totals as JSON\n\
    /healthz  200 as long as this process is well\n";

/// Why the admin plane did not start. As with [`StartError`](crate::server::StartError), the cause stands in the text
/// and nowhere else.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The port could not be bound.
    #[error("can't serve the admin plane: {0}")]
    Bind(io::Error),
    /// The OS thread could not be started.
    #[error("can't start the admin thread: {cause}")]
    Thread {
        /// What the system says.
        cause: io::Error,
    },
}

/// The running admin plane. When it is dropped the rendering ends; the port answers with the last one.
#[derive(Debug)]
pub struct Admin {
    addr: SocketAddr,
    shared: Arc<Shared>,
    renderer: Option<JoinHandle<()>>,
    _reservation: Reservation,
}

impl Admin {
    /// Renders once and starts serving on the reserved port. `may` must have been configured before. With `faults`, the
    /// route `/faults` adds to that script; without, there is no such route.
    ///
    /// # Errors
    /// If the port can't be bound or the thread can't be started.
    pub fn start(
        reservation: Reservation,
        metrics: Arc<Metrics>,
        snapshot: SnapshotFn,
        faults: Option<Arc<Script>>,
    ) -> Result<Admin, AdminError> {
        let addr = reservation.addr();
        let source = Source { metrics, snapshot };
        // Without a first reading the pages are empty; the thread tries again in a second, and says so if that fails.
        let shared = Arc::new(Shared {
            pages: RwLock::new(Arc::new(source.render().unwrap_or_default())),
            asked_nanos: AtomicU64::new(0),
            is_stopping: AtomicBool::new(false),
            is_stale: AtomicBool::new(false),
            port: Mutex::new(None),
        });
        let renderer = thread::Builder::new()
            .name("admin".to_owned())
            .spawn({
                let shared = Arc::clone(&shared);
                move || shared.keep_rendering(&source)
            })
            .map_err(|cause| AdminError::Thread { cause })?;
        let admin = Admin {
            addr,
            shared,
            renderer: Some(renderer),
            _reservation: reservation,
        };
        let guard = Guard::start().map_err(|cause| AdminError::Thread { cause })?;
        let factory = Factory {
            guard,
            shared: Arc::clone(&admin.shared),
            renderer: admin.thread(),
            faults,
        };
        let port = Port::open(addr, factory)
            .map_err(|cause| AdminError::Bind(port::explain(addr, cause)))?;
        *admin.shared.port.lock() = Some(port);
        Ok(admin)
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Renders at once, for news that whoever asks next should see.
    pub fn refresh(&self) {
        self.shared.is_stale.store(true, Ordering::Release);
        self.thread().unpark();
    }

    fn thread(&self) -> Thread {
        let renderer = self.renderer.as_ref().expect("it is taken by drop only");
        renderer.thread().clone()
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.shared.is_stopping.store(true, Ordering::Relaxed);
        if let Some(renderer) = self.renderer.take() {
            renderer.thread().unpark();
            // It catches its panics itself.
            let _ = renderer.join();
        }
    }
}

/// What handlers serve.
#[derive(Debug, Default)]
struct Pages {
    rendered: Time,
    metrics: Vec<u8>,
    status: Vec<u8>,
}

/// What pages are made from.
struct Source {
    metrics: Arc<Metrics>,
    snapshot: SnapshotFn,
}

impl Source {
    /// The pages as of now, or why there are none: a panic in the snapshot, or something can't be encoded.
    fn render(&self) -> Result<Pages, String> {
        let pages = catch_unwind(AssertUnwindSafe(|| {
            let snapshot = (self.snapshot)();
            let metrics = self
                .metrics
                .render(&snapshot)
                .map_err(|error| error.to_string())?;
            let status =
                status::render(&snapshot, &self.metrics).map_err(|error| error.to_string())?;
            Ok(Pages {
                rendered: clock::now(),
                metrics: metrics.into_bytes(),
                status: status.into_bytes(),
            })
        }));
        pages.unwrap_or_else(|_| Err("a panic".to_owned()))
    }
}

/// Between the handlers and the thread `admin`.
#[derive(Debug)]
struct Shared {
    pages: RwLock<Arc<Pages>>,
    /// When somebody last asked; 0: never.
    asked_nanos: AtomicU64,
    is_stopping: AtomicBool,
    /// Something happened that must not wait for the next rendering.
    is_stale: AtomicBool,
    /// Taken by the thread alone, once it is there.
    port: Mutex<Option<Port>>,
}

impl Shared {
    /// The body of the thread `admin`.
    fn keep_rendering(&self, source: &Source) {
        let mut tried = clock::now();
        let mut is_failing = false;
        while !self.is_stopping.load(Ordering::Relaxed) {
            if let Some(port) = &mut *self.port.lock() {
                port.keep_open();
            }
            let asked = self.asked_nanos.load(Ordering::Relaxed);
            let now = clock::now();
            let due = tried + period(asked, now);
            if now < due && !self.is_stale.swap(false, Ordering::Acquire) {
                // Wakes early when somebody asks; then the next one is due earlier.
                thread::park_timeout(due.since(now));
                continue;
            }
            tried = now;
            match source.render() {
                Ok(pages) => self.publish(pages),
                // Said once: it would be five times a second otherwise.
                Err(reason) if !is_failing => {
                    log::error!("admin pages can't be rendered: {reason}")
                }
                Err(_) => {}
            }
            is_failing = self.pages.read().rendered < now;
        }
    }

    fn publish(&self, pages: Pages) {
        let pages = Arc::new(pages);
        // The old ones are freed after the lock is given up.
        let _old = std::mem::replace(&mut *self.pages.write(), pages);
    }

    /// The newest pages; `renderer` is woken if they are not new enough for the next caller.
    fn pages(&self, renderer: &Thread) -> Arc<Pages> {
        let pages = Arc::clone(&self.pages.read());
        let now = clock::now();
        self.asked_nanos
            .store(now.as_nanos().max(1), Ordering::Relaxed);
        if now.since(pages.rendered) > PERIOD_BUSY {
            renderer.unpark();
        }
        pages
    }
}

fn period(asked_nanos: u64, now: Time) -> Duration {
    let is_wanted = asked_nanos > 0 && now.since(Time::from_nanos(asked_nanos)) < INTEREST;
    if is_wanted { PERIOD_BUSY } else { PERIOD_IDLE }
}

#[derive(Clone)]
struct Factory {
    guard: Arc<Guard>,
    shared: Arc<Shared>,
    renderer: Thread,
    faults: Option<Arc<Script>>,
}

impl HttpServiceFactory for Factory {
    type Service = Service;

    fn new_service(&self, id: usize) -> Service {
        // What the library calls the connection's id is its descriptor.
        let descriptor = RawFd::try_from(id).expect("a descriptor");
        Service {
            place: self.guard.enter(descriptor),
            shared: Arc::clone(&self.shared),
            renderer: self.renderer.clone(),
            faults: self.faults.clone(),
        }
    }
}

/// The handlers of one connection.
struct Service {
    place: Place,
    shared: Arc<Shared>,
    renderer: Thread,
    faults: Option<Arc<Script>>,
}

impl HttpService for Service {
    fn call(&mut self, request: Request, response: &mut Response) -> io::Result<()> {
        if !self.place.request() {
            // Its connection is cut, so this goes nowhere.
            return Ok(());
        }
        let route = Route::of(request.method(), request.path());
        response.header("Cache-Control: no-store");
        match route {
            Route::Metrics => {
                response.header("Content-Type: text/plain; version=0.0.4");
                response
                    .body_mut()
                    .extend_from_slice(&self.shared.pages(&self.renderer).metrics);
            }
            Route::Status => {
                response.header("Content-Type: application/json");
                response
                    .body_mut()
                    .extend_from_slice(&self.shared.pages(&self.renderer).status);
            }
            Route::Health => self.health(response),
            Route::Index => text(response, 200, "OK", INDEX),
            Route::Faults => match &self.faults {
                Some(script) => faults::script(script, request.path(), response),
                None => not_found(response),
            },
            Route::Unknown => not_found(response),
            Route::WrongMethod { is_head } => {
                response.header("Allow: GET");
                // The library would send the body of an answer to HEAD, and the caller take it for the next answer.
                text(
                    response,
                    405,
                    "Method Not Allowed",
                    if is_head { "" } else { "GET only.\n" },
                );
            }
        }
        self.place.answered(response.body_mut().len());
        Ok(())
    }
}

impl Service {
    fn health(&self, response: &mut Response) {
        // Not counted as asking: a health check is no reason to render.
        let rendered = self.shared.pages.read().rendered;
        let age = clock::now().since(rendered);
        if age < STALLED_AFTER {
            text(response, 200, "OK", "ok\n");
        } else {
            text(
                response,
                503,
                "Service Unavailable",
                "The admin thread is stalled.\n",
            );
        }
    }
}

fn not_found(response: &mut Response) {
    text(
        response,
        404,
        "Not Found",
        "There is /metrics, /status and /healthz.\n",
    );
}

fn text(response: &mut Response, code: usize, reason: &'static str, body: &'static str) {
    response.status_code(code, reason);
    response.header("Content-Type: text/plain; charset=utf-8");
    response.body(body);
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    Metrics,
    Status,
    Health,
    Faults,
    Index,
    Unknown,
    WrongMethod { is_head: bool },
}

impl Route {
    fn of(method: &str, target: &str) -> Route {
        let path = target.split_once('?').map_or(target, |(path, _)| path);
        let route = match path {
            "/metrics" => Route::Metrics,
            "/status" => Route::Status,
            "/healthz" => Route::Health,
            "/faults" => Route::Faults,
            "/" => Route::Index,
            _ => Route::Unknown,
        };
        if method == "GET" {
            route
        } else {
            Route::WrongMethod {
                is_head: method == "HEAD",
            }
        }
    }
}

#[cfg(test)]
mod tests;

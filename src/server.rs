//! The server put together: queues → GPU threads → admin plane → acceptor cores, and taken apart in reverse.

mod executors;
mod reload;
mod snapshot;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::admin::{Admin, AdminError};
use crate::admission::Admission;
use crate::batch::collector::Collector;
use crate::batch::policy::Policy;
use crate::batch::schedule::Scheduler;
use crate::clock::{self, Time};
use crate::config::keys::{self, Key};
use crate::config::units::{counted, span};
use crate::config::{Config, ExecutorConfig, Identity, Role};
use crate::gate::Gate;
use crate::gpu::cuda::device::Description;
use crate::gpu::fleet::Fleet;
use crate::gpu::health::State;
use crate::gpu::remote::Target;
use crate::gpu::{Gpu, watchdog};
use crate::http::{self, DataPlane, Door, Phase, Settings, Shared, WorkerTerms};
use crate::keys::{Keys, KeysError};
use crate::metrics::Metrics;
use crate::port::{self, Reservation};
use crate::queue::{Doorbell, handover};
use crate::roster::Roster;
use crate::screen;
use crate::ticket::Failure;

use self::executors::Executors;

/// The start-up screen waits so long for the GPUs, so that its curl line works when pasted and the log does not push it
/// out of sight.
const READY_WAIT_MAX: Duration = Duration::from_secs(5);

/// How often somebody who waits for a state of the whole server looks at it.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// One part in so many of the time for other threads is counted in looks.
const LAST_PART: u32 = 5;

/// The last part of the grace period, in which handlers write the answers of what is given up.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// GPU threads that drive a device have so long to give it back at the end. One whose kernel hangs does not need it.
const LET_GO_MAX: Duration = Duration::from_secs(2);

/// Why the server did not start. Each says its cause itself and has no other as its source, or whoever prints the whole
/// chain would say it twice.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address can't be bound.
    #[error("{cause}{}", way_out(.flag, .cause))]
    Listen {
        /// The flag that chooses it.
        flag: &'static str,
        /// Which address and what the system says, in words.
        cause: io::Error,
    },
    /// The keys can't be used (any more: the configuration had them checked).
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// The admin plane did not start.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// The kernel can't be used (any more: the configuration had it tried).
    #[error("{0}")]
    Kernel(String),
    /// A thread or a descriptor that the server needs could not be had.
    #[error("can't start {what}: {cause}")]
    Resource {
        /// What was being started.
        what: &'static str,
        /// What the system says.
        cause: io::Error,
    },
}

/// What an operator can do about an address that can't be bound.
fn way_out(flag: &str, cause: &io::Error) -> String {
    match cause.kind() {
        io::ErrorKind::AddrInUse => {
            format!("; choose another with {flag} (port 0 takes a free one)")
        }
        io::ErrorKind::AddrNotAvailable => {
            format!("; choose one of its own with {flag}, such as 127.0.0.1:8080")
        }
        io::ErrorKind::PermissionDenied => {
            format!("; choose a port of 1024 or above with {flag}")
        }
        _ => String::new(),
    }
}

/// A running server.
pub struct Server {
    core: Arc<Core>,
    data: DataPlane,
    admin: Option<Admin>,
    /// Keeps the port; the cores' listeners share it.
    listen: Reservation,
}

/// What the planes share: everything but the sockets.
struct Core {
    started: Time,
    config: Config,
    fleet: Fleet,
    /// Who the GPUs should be, where they are workers elsewhere.
    roster: Roster,
    /// What the GPUs are, where the server drives them itself.
    devices: Vec<Description>,
    executors: Executors,
    collector: Arc<Collector>,
    gate: Gate,
    shared: Arc<Shared>,
}

impl Server {
    /// Starts everything. Returns when the ports are open; the GPUs may still be warming up.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(config: &Config) -> Result<Server, StartError> {
        let bound = |addr, key: Key| {
            let flag = key.flag;
            Reservation::new(addr).map_err(|cause| StartError::Listen { flag, cause })
        };
        let listen = bound(config.listen, keys::LISTEN)?;
        let admin = config.admin.map(|addr| bound(addr, keys::ADMIN));
        let admin = admin.transpose()?;
        let core = Arc::new(assemble(config, listen.addr())?);
        let mailboxes = Arc::clone(core.collector.mailboxes());
        start_threads(&core)?;
        let data = DataPlane::start(
            Arc::clone(&core.shared),
            mailboxes,
            listen.addr(),
            &config.cores,
        )
        .map_err(|cause| StartError::Listen {
            flag: keys::LISTEN.flag,
            cause: port::explain(listen.addr(), cause),
        })?;
        let admin = admin
            .map(|port| start_admin(port, &core, listen.addr()))
            .transpose()?;
        Ok(Server {
            core,
            data,
            admin,
            listen,
        })
    }

    /// Where callers connect.
    pub fn listen(&self) -> SocketAddr {
        self.listen.addr()
    }

    /// Where the admin plane is served.
    pub fn admin(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(Admin::addr)
    }

    /// Waits until every GPU is in service or has failed to come, or until that takes too long to wait for. Says whether one
    /// is. What each has to say when it comes is in the log by then.
    pub fn wait_ready(&self) -> bool {
        let settled = || {
            // A GPU counts as healthy when its thread first asks for work, the last thing that it does at its start.
            let healthy = self.core.collector.capacity().healthy();
            let gpus = self.core.fleet.gpus();
            let is_down = |gpu: &&Arc<Gpu>| gpu.cell().state() == State::Down;
            healthy + gpus.iter().filter(is_down).count() >= gpus.len()
        };
        self.look_for(READY_WAIT_MAX, settled);
        self.core.gate.is_ready()
    }

    /// Ends the server without losing a request: takes leave, closes the listeners, answers what was admitted, and
    /// answers the rest with 503 when the grace period is over.
    pub fn drain(&self) {
        let drain = self.core.config.drain;
        let longer = match drain.delay {
            Duration::ZERO => String::new(),
            delay => format!(", serving for another {}", span(delay)),
        };
        log::info!("leaving: readiness says no{longer}");
        self.data.enter(Phase::Leaving);
        self.admin.iter().for_each(Admin::refresh);
        self.core.collector.wait_closed(clock::now() + drain.delay);
        self.data.enter(Phase::Closing);
        let over = clock::now() + drain.grace;
        // What is left then still has to be told, within the grace period.
        let last_words = LAST_WORDS.min(drain.grace / 2);
        let grace = over - last_words;
        self.wait_until(grace, || self.data.listeners() == 0);
        self.data.enter(Phase::Draining);
        let connections = self.data.connections();
        let open = counted(connections as u64, "connection");
        log::info!("draining: the listeners are closed, {open} open");
        self.wait_until(grace, || self.data.connections() == 0);
        self.end(last_words);
    }

    /// Answers what is left, and gives the handlers `last_words` to write it.
    fn end(&self, last_words: Duration) {
        let left = self.data.connections();
        self.core.collector.close();
        let gpus = self.core.fleet.gpus();
        gpus.iter().for_each(|gpu| gpu.retire());
        self.look_for(last_words, || {
            // A request that was just being admitted when the collector closed.
            self.core.collector.fail_waiting(&Failure::Draining);
            self.data.connections() == 0
        });
        if left > 0 {
            log::warn!(
                "the grace period ended with {} open; what was left on them got 503",
                counted(left as u64, "connection")
            );
        }
        self.let_go_of_devices();
        log::info!("ended");
    }

    /// The driver of a device takes itself down when the process ends, and should not meet a thread there that is just
    /// giving its memory back.
    fn let_go_of_devices(&self) {
        if self.core.config.executor.cuda().is_some() {
            self.look_for(LET_GO_MAX, || self.core.fleet.has_ended());
        }
    }

    /// Waits for other threads of this process, for about `longest`: most of it by the clock, the last part by a number of
    /// looks. Where the machine stood still, they have seen no more of the time than this thread has, and get that part.
    fn look_for(&self, longest: Duration, done: impl Fn() -> bool) {
        let last = longest / LAST_PART;
        self.wait_until(clock::now() + (longest - last), &done);
        for _ in 0..=last.as_nanos().div_ceil(LOOK_EVERY.as_nanos()) {
            if done() {
                return;
            }
            self.pause(clock::now() + LOOK_EVERY);
        }
    }

    fn wait_until(&self, until: Time, done: impl Fn() -> bool) {
        while !done() && clock::now() < until {
            self.pause(until.min(clock::now() + LOOK_EVERY));
        }
    }

    fn pause(&self, until: Time) {
        if self.core.collector.is_closed() {
            thread::park_timeout(LOOK_EVERY);
        } else {
            self.core.collector.wait_closed(until);
        }
    }
}

fn resource(what: &'static str) -> impl Fn(io::Error) -> StartError {
    move |cause| StartError::Resource { what, cause }
}

fn assemble(config: &Config, listen: SocketAddr) -> Result<Core, StartError> {
    let keys = known_keys(&config.identity)?;
    let metrics = Arc::new(Metrics::new(0, config.cores.len()));
    // A connection of a worker waits for a whole batch.
    let waiting = config.http.max_connections.max(3 * config.batch.batch_max);
    let mailboxes = http::mailboxes(config.cores.len(), waiting);
    let mailboxes = Arc::new(mailboxes.map_err(resource("the acceptor cores"))?);
    let (doorbell, ear) = Doorbell::new();
    let doorbell = Arc::new(doorbell);
    let (intake, handover, backlog) = handover(config.queue_bound, Arc::clone(&doorbell));
    let admission = Arc::new(Admission::new(config.admission.clone()));
    let policy = Policy {
        batch_max: config.batch.batch_max,
        hold_max: config.batch.hold_max,
        patience: config.batch.patience,
    };
    let scheduler = Scheduler::new(policy, config.seats, Arc::clone(&backlog))
        .with_min_share(config.admission.min_share);
    let collector = Collector::new(
        scheduler,
        handover,
        (doorbell, ear),
        mailboxes,
        Arc::clone(&admission),
    );
    let collector = Arc::new(collector);
    let gate = || {
        let capacity = Arc::clone(collector.capacity());
        Gate::new(
            Arc::clone(&admission),
            Arc::clone(&backlog),
            capacity,
            Arc::clone(&metrics),
        )
    };
    let shared = Shared::new(
        settings(config, keys, listen),
        intake,
        Arc::clone(&metrics),
        Box::new(gate()),
    );
    let fleet = Fleet::new(
        config.seats,
        Arc::clone(&collector),
        Arc::clone(&metrics),
        executors::gpu_settings(config),
    );
    let started = clock::now();
    Ok(Core {
        started,
        config: config.clone(),
        fleet,
        roster: Roster::default(),
        devices: executors::devices(&config.executor),
        executors: Executors::prepare(config)?,
        gate: gate(),
        collector,
        shared: Arc::new(shared),
    })
}

fn known_keys(identity: &Identity) -> Result<Option<Arc<Keys>>, KeysError> {
    match identity {
        Identity::Trusted => Ok(None),
        Identity::Keys(path) => Keys::load(path).map(|keys| Some(Arc::new(keys))),
    }
}

fn settings(config: &Config, keys: Option<Arc<Keys>>, listen: SocketAddr) -> Settings {
    let (http, limits, timeouts) = (&config.http, &config.http.limits, &config.http.timeouts);
    Settings {
        terms: http::Terms {
            limits: http::Limits {
                target_bytes_max: limits.target_max_bytes,
                head_bytes_max: limits.head_max_bytes(),
                headers_max: limits.header_max_count,
                body_bytes_max: limits.body_max_bytes,
                input_bytes_max: limits.input_max_bytes,
            },
            model: http.model.as_str().into(),
            default_tier: http.default_tier,
            worker: (config.role == Role::Worker).then(|| WorkerTerms {
                batch_max: config.batch.batch_max,
                secret: config.secret.secret.clone(),
            }),
            keys,
        },
        timeouts: http::Timeouts {
            header: timeouts.header,
            body: timeouts.body,
            idle: timeouts.idle,
            write: timeouts.write,
        },
        connections_max: http.max_connections,
        request_memory_bytes: limits.request_memory_bytes,
        authority: screen::reachable(listen).to_string(),
    }
}

fn start_threads(core: &Arc<Core>) -> Result<(), StartError> {
    let started = match &core.config.executor {
        ExecutorConfig::Remote(remote) => {
            let workers: Vec<Target> = remote.all().cloned().collect();
            let mut each = workers.iter();
            let added = each.try_for_each(|worker| core.add_worker(worker).map(drop));
            core.roster.want(workers);
            added.and_then(|()| spawn("workers", core, Core::keep_roster))
        }
        _ => (0..core.config.gpus).try_for_each(|_| core.add_gpu().map(drop)),
    };
    started.map_err(resource("a GPU thread"))?;
    let watch = |core: &Core| watchdog::run(&core.fleet, &core.collector, core.shared.metrics());
    spawn("watchdog", core, watch).map_err(resource("the watchdog"))
}

fn spawn(name: &str, core: &Arc<Core>, run: fn(&Core)) -> io::Result<()> {
    let core = Arc::clone(core);
    let thread = thread::Builder::new().name(name.to_owned());
    thread.spawn(move || run(&core)).map(drop)
}

fn start_admin(
    port: Reservation,
    core: &Arc<Core>,
    listen: SocketAddr,
) -> Result<Admin, StartError> {
    let (core, addr) = (Arc::clone(core), port.addr());
    let metrics = Arc::clone(core.shared.metrics());
    let faults = core.executors.open_script(&core.config);
    let snapshot = move || core.snapshot(listen, addr);
    Ok(Admin::start(port, metrics, Box::new(snapshot), faults)?)
}

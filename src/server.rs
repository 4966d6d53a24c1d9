//! The server put together: queues → GPU threads → admin plane → acceptor cores, and taken apart in reverse.

mod executors;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::admin::{Admin, AdminError};
use crate::admission::Admission;
use crate::batch::collector::Collector;
use crate::batch::policy::Policy;
use crate::batch::schedule::Scheduler;
use crate::clock::{self, Time};
use crate::config::keys::{self, Key};
use crate::config::units::{counted, span};
use crate::config::{Config, Identity, Role};
use crate::gate::Gate;
use crate::gpu::cuda::device::Description;
use crate::gpu::faults::Script;
use crate::gpu::health::State;
use crate::gpu::{Driver, Gpu, GpuSettings, watchdog};
use crate::http::{self, DataPlane, Door, Phase, Settings, Shared, WorkerTerms};
use crate::keys::{Keys, KeysError};
use crate::metrics::{GpuSnapshot, Metrics, QueueSnapshot, Snapshot};
use crate::port::{self, Reservation};
use crate::queue::{Doorbell, Lane, handover};
use crate::screen;
use crate::ticket::{Failure, Input};
use crate::tier::Tier;

use self::executors::Executors;

/// The start-up screen waits so long for the GPUs, so that its curl line works when pasted and the log does not push it
/// out of sight.
const READY_WAIT_MAX: Duration = Duration::from_secs(5);

/// How often somebody who waits for a state of the whole server looks at it.
const LOOK_EVERY: Duration = Duration::from_millis(5);

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
    gpu_threads: Vec<JoinHandle<()>>,
    /// Keeps the port; the cores' listeners share it.
    listen: Reservation,
}

/// What the planes share: everything but the sockets.
struct Core {
    started: Time,
    config: Config,
    gpus: Vec<Arc<Gpu>>,
    /// What the GPUs are, where the server drives them itself.
    devices: Vec<Description>,
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
        let executors = Executors::prepare(config)?;
        let core = Arc::new(assemble(config, listen.addr())?);
        let mailboxes = Arc::clone(core.collector.mailboxes());
        let gpu_threads = start_threads(&core, &executors)?;
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
            .map(|port| start_admin(port, &core, listen.addr(), executors.open_script(config)))
            .transpose()?;
        Ok(Server {
            core,
            data,
            admin,
            gpu_threads,
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
            let is_down = |gpu: &&Arc<Gpu>| gpu.cell().state() == State::Down;
            healthy + self.core.gpus.iter().filter(is_down).count() >= self.core.gpus.len()
        };
        self.wait_until(clock::now() + READY_WAIT_MAX, settled);
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
        let grace = over - LAST_WORDS.min(drain.grace / 2);
        self.wait_until(grace, || self.data.listeners() == 0);
        self.data.enter(Phase::Draining);
        let connections = self.data.connections();
        let open = counted(connections as u64, "connection");
        log::info!("draining: the listeners are closed, {open} open");
        self.wait_until(grace, || self.data.connections() == 0);
        self.end(over);
    }

    /// Answers what is left, and gives the handlers until `over` to write it.
    fn end(&self, over: Time) {
        let left = self.data.connections();
        self.core.collector.close();
        self.core.gpus.iter().for_each(|gpu| gpu.retire());
        self.wait_until(over, || {
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
            let over = clock::now() + LET_GO_MAX;
            let has_ended = || self.gpu_threads.iter().all(JoinHandle::is_finished);
            self.wait_until(over, has_ended);
        }
    }

    fn wait_until(&self, until: Time, done: impl Fn() -> bool) {
        while !done() && clock::now() < until {
            let pause = clock::now() + LOOK_EVERY;
            if self.core.collector.is_closed() {
                thread::park_timeout(LOOK_EVERY)
            } else {
                self.core.collector.wait_closed(pause.min(until));
            }
        }
    }
}

fn resource(what: &'static str) -> impl Fn(io::Error) -> StartError {
    move |cause| StartError::Resource { what, cause }
}

fn assemble(config: &Config, listen: SocketAddr) -> Result<Core, StartError> {
    let keys = known_keys(&config.identity)?;
    let metrics = Arc::new(Metrics::new(config.gpus, config.cores.len()));
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
    let scheduler = Scheduler::new(policy, config.gpus, Arc::clone(&backlog))
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
    let gpus = (0..config.gpus)
        .map(|index| {
            Arc::new(Gpu::new(
                index,
                Arc::clone(&collector),
                Arc::clone(&metrics),
            ))
        })
        .collect();
    let started = clock::now();
    Ok(Core {
        started,
        config: config.clone(),
        gpus,
        devices: executors::devices(&config.executor),
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

/// The GPU threads are returned; the watchdog ends by itself.
fn start_threads(
    core: &Arc<Core>,
    executors: &Executors,
) -> Result<Vec<JoinHandle<()>>, StartError> {
    let is_worker = core.config.role == Role::Worker;
    let settings = GpuSettings {
        batch_timeout: core.config.batch_timeout,
        reset_max: executors::reset_max(&core.config.executor),
        // What is too large for a caller is for the server to judge that sent the batch.
        output_max: if is_worker {
            usize::MAX
        } else {
            core.config.http.limits.output_max_bytes
        },
        canary: Input::new(core.config.canary.as_str()),
        search: !is_worker,
    };
    let start = |gpu: &Arc<Gpu>| {
        let make = executors.make(&core.config, gpu);
        let (gpu, settings) = (Arc::clone(gpu), settings.clone());
        let thread = thread::Builder::new().name(format!("gpu-{}", gpu.index));
        thread
            .spawn(move || Driver::new(gpu, make(), settings).run())
            .map_err(resource("a GPU thread"))
    };
    let gpu_threads = core.gpus.iter().map(start).collect::<Result<_, _>>()?;
    let core = Arc::clone(core);
    let thread = thread::Builder::new().name("watchdog".to_owned());
    thread
        .spawn(move || watchdog::run(&core.gpus, &core.collector, core.shared.metrics()))
        .map(|_| gpu_threads)
        .map_err(resource("the watchdog"))
}

fn start_admin(
    port: Reservation,
    core: &Arc<Core>,
    listen: SocketAddr,
    faults: Option<Arc<Script>>,
) -> Result<Admin, StartError> {
    let (core, addr) = (Arc::clone(core), port.addr());
    let metrics = Arc::clone(core.shared.metrics());
    let snapshot = move || core.snapshot(listen, addr);
    Ok(Admin::start(port, metrics, Box::new(snapshot), faults)?)
}

impl Core {
    fn snapshot(&self, listen: SocketAddr, admin: SocketAddr) -> Snapshot {
        let (now, load) = (clock::now(), self.gate.load());
        let backlog = self.collector.backlog();
        let leaving = self.shared.phase() >= Phase::Leaving;
        Snapshot {
            now,
            started: self.started,
            executor: self.config.executor.name().to_owned(),
            batch_max: self.config.batch.batch_max,
            listen: Some(listen),
            admin: Some(admin),
            ready: self.gate.is_ready() && !leaving,
            draining: leaving,
            zone: self.gate.admission().zone(&load).label(),
            backlog_seconds: backlog_seconds(backlog.total(), load.capacity),
            capacity_rps: load.capacity,
            arrival_rate_rps: self.collector.arrival_rate(),
            request_memory_bytes: self.shared.request_memory_bytes(),
            queues: Tier::ALL.map(|tier| QueueSnapshot {
                waiting: backlog.waiting(Lane::Fresh, tier),
                retry: backlog.waiting(Lane::Retry, tier),
            }),
            gpus: self.gpus.iter().map(|gpu| self.gpu_snapshot(gpu)).collect(),
        }
    }

    fn gpu_snapshot(&self, gpu: &Gpu) -> GpuSnapshot {
        let (health, running) = gpu.cell().look();
        let in_service = health.state().in_service();
        let batch_time = self.collector.batch_time(gpu.index);
        GpuSnapshot {
            state: health.state().label(),
            device: self.devices.get(gpu.index).map(ToString::to_string),
            up: in_service,
            since: health.since(),
            why: health.why().to_owned(),
            batch_time_ms: in_service.then_some(batch_time.as_secs_f64() * 1e3),
            batches: gpu.batches(),
            running,
        }
    }
}

fn backlog_seconds(waiting: usize, capacity: f64) -> f64 {
    match (waiting, capacity > 0.0) {
        (0, _) => 0.0,
        (_, false) => f64::INFINITY,
        (waiting, true) => waiting as f64 / capacity,
    }
}

//! Configuration: what was typed and what the file says become one checked [`Config`], or a refusal.
//!
//! ```text
//! --config FILE ─► RawConfig ◄─ overlay ─ Flags        every setting optional, each with its place
//!                      │
//!                      ▼ resolve ◄─ Machine            ranges, defaults, limits, contradictions: pure
//!                   Config (+ warnings)                what the rest of the server reads
//! ```
//!
//! Nothing else reads a flag, the file or the machine's limits, and every limit of the server is derived in
//! `resolve.rs`; defaults and ranges stand in `defaults.rs`, names in `keys.rs`. A refusal says what was wrong, where
//! (`file:line` or the flag) and what to do. What is legal but probably not meant becomes a warning. A key file is not
//! part of the `Config`, only its path is; [`Config::load`] tries it, so that it is refused as early as the rest.

mod cli;
mod contradictions;
pub mod cores;
mod cuda;
pub(crate) mod defaults;
mod error;
mod flags;
pub mod keys;
mod machine;
mod memory;
mod overlay;
mod python;
mod raw;
mod remote;
mod resolve;
mod room;
pub mod slip;
mod suggest;
pub mod units;
pub mod values;
mod worker_help;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use log::LevelFilter;

use crate::admission::DefaultDeadline;
use crate::admission::Rules;
use crate::gpu::faults::Fault;
use crate::keys::Keys;
use crate::tier::Tier;

pub use cli::{Action, Cli};
pub use cuda::CudaConfig;
pub use error::{ConfigError, Refusal};
pub use flags::Flags;
pub use machine::{Machine, raise_open_files_limit};
pub use python::{PythonConfig, Variable};
pub use raw::{Given, Origin, RawConfig};
pub use remote::{RemoteConfig, Role, SECRET_VARIABLE, SecretConfig};

/// The checked configuration of a server.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What the process is.
    pub role: Role,
    /// Where callers connect. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where the admin plane is served; none switches it off.
    pub admin: Option<SocketAddr>,
    /// The cores that the acceptor cores are pinned to, ascending, at least one.
    pub cores: Vec<usize>,
    /// Number of GPUs to begin with, at least one unless they are workers, of which there may be none yet.
    pub gpus: usize,
    /// Most GPUs at once; more than there are to begin with only where workers may be added later.
    pub seats: usize,
    /// What runs the batches.
    pub executor: ExecutorConfig,
    /// The launch rule.
    pub batch: BatchConfig,
    /// The input of canary batches; at most `http.limits.input_max_bytes`.
    pub canary: String,
    /// Who a caller is.
    pub identity: Identity,
    /// What servers and workers know each other by.
    pub secret: SecretConfig,
    /// Who is let in. They have passed [`Rules::validate`].
    pub admission: Rules,
    /// Most tickets waiting in each tier; at least `batch.batch_max`.
    pub queue_bound: usize,
    /// The data plane.
    pub http: HttpConfig,
    /// What happens after SIGTERM.
    pub drain: DrainConfig,
    /// Time after which a batch has failed; none leaves it to max(500 ms, 5 x measured batch time).
    pub batch_timeout: Option<Duration>,
    /// What goes to the log.
    pub log_level: LevelFilter,
    /// What is legal but probably not meant, one sentence each.
    pub warnings: Vec<String>,
    /// The settings that are left to the server and follow from this machine.
    pub auto: Vec<keys::Key>,
}

/// How a caller's tier is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// `X-Tier` is believed: whoever stands in front of the server sets it.
    Trusted,
    /// Callers bring a bearer key, and this file says which tier it belongs to (see [`crate::keys`]).
    Keys(PathBuf),
}

/// What runs the batches, with its settings.
#[derive(Clone, Debug, PartialEq)]
pub enum ExecutorConfig {
    /// A batch function that takes its time and needs no GPU.
    Simulated(SimulatedConfig),
    /// The user's own batch function, in one worker process for each GPU.
    Python(PythonConfig),
    /// A kernel, on the GPUs of this machine.
    Cuda(CudaConfig),
    /// GPUs on other machines.
    Remote(RemoteConfig),
}

/// The simulated executor.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulatedConfig {
    /// Time of a batch.
    pub latency: Duration,
    /// Fraction of `latency`, 0 to 1, by which a batch may be faster or slower.
    pub jitter: f64,
    /// Time that a GPU takes before its first batch.
    pub cold_start: Duration,
    /// What goes wrong, scripted; none names a GPU that there is not.
    pub faults: Vec<Fault>,
    /// Whether the admin port takes further faults.
    pub faults_admin: bool,
}

impl Default for SimulatedConfig {
    fn default() -> SimulatedConfig {
        SimulatedConfig {
            latency: Duration::from_millis(defaults::SIM_LATENCY_MS.default.into()),
            jitter: defaults::SIM_JITTER,
            cold_start: Duration::from_millis(defaults::SIM_COLD_START_MS.default.into()),
            faults: Vec::new(),
            faults_admin: false,
        }
    }
}

/// The launch rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchConfig {
    /// Most tickets in a batch, at least one.
    pub batch_max: usize,
    /// Longest time that a ticket waits for company while a GPU is free; shorter than the deadline.
    pub hold_max: Duration,
    /// 0 is greedy, 1 paced, infinity a plain window of `hold_max`. Never negative, never NaN.
    pub patience: f64,
}

/// The data plane.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpConfig {
    /// Sizes that a request may have.
    pub limits: HttpLimits,
    /// Times that a connection may take.
    pub timeouts: HttpTimeouts,
    /// Most connections open at once; descriptors and memory mappings suffice for them.
    pub max_connections: usize,
    /// Name of the model that is served.
    pub model: String,
    /// Tier of requests that name none.
    pub default_tier: Tier,
    /// Time for queue, batch and answer, unless the caller asks for less.
    pub deadline: DefaultDeadline,
}

/// Sizes that a request and its answer may have. Bytes, unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpLimits {
    /// Request body.
    pub body_max_bytes: usize,
    /// Input; at most `body_max_bytes`.
    pub input_max_bytes: usize,
    /// Output.
    pub output_max_bytes: usize,
    /// Headers, all together, without the request line.
    pub header_max_bytes: usize,
    /// Number of headers.
    pub header_max_count: usize,
    /// Request target.
    pub target_max_bytes: usize,
    /// What all requests may hold together, see [`crate::http::budget`]; at least `body_max_bytes`.
    pub request_memory_bytes: usize,
}

impl HttpLimits {
    /// The most bytes that a request can have before its body: request line and headers.
    pub fn head_max_bytes(&self) -> usize {
        self.target_max_bytes + self.header_max_bytes
    }
}

/// Times that a connection may take. Whole milliseconds, never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpTimeouts {
    /// From a request's first byte to the end of its headers.
    pub header: Duration,
    /// From the end of the headers to the end of the body.
    pub body: Duration,
    /// Between two requests.
    pub idle: Duration,
    /// For the peer to take a response.
    pub write: Duration,
}

/// What happens after SIGTERM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainConfig {
    /// Time to go on serving while readiness already says no.
    pub delay: Duration,
    /// Time after that for accepted requests to be answered.
    pub grace: Duration,
}

impl Config {
    /// The configuration of a server that these flags, their file and this machine make.
    ///
    /// # Errors
    /// The file can't be read, the settings are unknown, out of range, or contradict each other, or the key file or the
    /// secret can't be used.
    pub fn load(flags: Flags) -> Result<Config, ConfigError> {
        Config::load_as(flags, Role::Server)
    }

    /// The same for a process of this role.
    ///
    /// # Errors
    /// See [`Config::load`].
    pub fn load_as(flags: Flags, role: Role) -> Result<Config, ConfigError> {
        let file = match flags.file() {
            Some(path) => RawConfig::read(path)?,
            None => RawConfig::default(),
        };
        let raw = flags.overlay(file).for_role(role).with_workers_listed()?;
        let machine = Machine::read().with_devices_for(&raw);
        let config = Config::resolve(&raw, &machine)?;
        let config = config.with_keys_checked(&raw)?.with_python_found();
        let config = config.with_kernel_tried(&raw)?;
        config.with_secret(&raw, std::env::var(SECRET_VARIABLE).ok())
    }

    /// Refuses a key file that can't be used: the check is part of the start, and `funicular check` makes it too. The
    /// path is made absolute, so that what `check` prints means the same file wherever it is saved.
    fn with_keys_checked(mut self, raw: &RawConfig) -> Result<Config, ConfigError> {
        if let Identity::Keys(path) = &mut self.identity {
            if let Ok(absolute) = std::path::absolute(&*path) {
                *path = absolute;
            }
            Keys::load(path).map_err(|cause| ConfigError::Keys {
                place: raw.place(raw::origin(&raw.keys_file)),
                cause,
            })?;
        }
        Ok(self)
    }

    /// The descriptors that the server may have open at once.
    pub fn open_files_needed(&self) -> u64 {
        room::files_needed(self.http.max_connections, self.cores.len(), self.seats)
    }

    /// The memory mappings that the server may have at once.
    pub fn memory_maps_needed(&self) -> u64 {
        room::maps_needed(self.http.max_connections)
    }

    /// The default deadline, as far as the executor's settings say how long a batch takes.
    pub fn deadline(&self) -> Duration {
        self.http.deadline.with(self.executor.batch_time())
    }

    /// Requests per second that the GPUs can serve if a batch takes what the executor's settings say. None where they
    /// say nothing, or that it takes no time.
    pub fn capacity(&self) -> Option<f64> {
        let batch_time = self.executor.batch_time();
        let tickets = self.gpus * self.batch.batch_max;
        (!batch_time.is_zero()).then(|| tickets as f64 / batch_time.as_secs_f64())
    }
}

impl Identity {
    /// The name in the configuration.
    pub fn name(&self) -> &'static str {
        match self {
            Identity::Trusted => values::IdentityKind::Trusted.name(),
            Identity::Keys(_) => values::IdentityKind::Keys.name(),
        }
    }
}

impl ExecutorConfig {
    /// The name in the configuration.
    pub fn name(&self) -> &'static str {
        match self {
            ExecutorConfig::Simulated(_) => values::ExecutorKind::Simulated.name(),
            ExecutorConfig::Python(_) => values::ExecutorKind::Python.name(),
            ExecutorConfig::Cuda(_) => values::ExecutorKind::Cuda.name(),
            ExecutorConfig::Remote(_) => values::ExecutorKind::Remote.name(),
        }
    }

    /// The time of a batch, as far as the settings say; zero where they say nothing.
    pub fn batch_time(&self) -> Duration {
        match self {
            ExecutorConfig::Simulated(simulated) => simulated.latency,
            ExecutorConfig::Python(_) | ExecutorConfig::Cuda(_) => Duration::ZERO,
            ExecutorConfig::Remote(_) => Duration::ZERO,
        }
    }

    /// The simulated executor's settings, if it is chosen.
    pub fn simulated(&self) -> Option<&SimulatedConfig> {
        match self {
            ExecutorConfig::Simulated(simulated) => Some(simulated),
            ExecutorConfig::Python(_) | ExecutorConfig::Cuda(_) => None,
            ExecutorConfig::Remote(_) => None,
        }
    }

    /// The remote executor's settings, if it is chosen.
    pub fn remote(&self) -> Option<&RemoteConfig> {
        match self {
            ExecutorConfig::Remote(remote) => Some(remote),
            ExecutorConfig::Simulated(_) | ExecutorConfig::Python(_) => None,
            ExecutorConfig::Cuda(_) => None,
        }
    }

    /// The Python executor's settings, if it is chosen.
    pub fn python(&self) -> Option<&PythonConfig> {
        match self {
            ExecutorConfig::Python(python) => Some(python),
            ExecutorConfig::Cuda(_) | ExecutorConfig::Remote(_) => None,
            ExecutorConfig::Simulated(_) => None,
        }
    }

    /// The CUDA executor's settings, if it is chosen.
    pub fn cuda(&self) -> Option<&CudaConfig> {
        match self {
            ExecutorConfig::Cuda(cuda) => Some(cuda),
            ExecutorConfig::Simulated(_) | ExecutorConfig::Python(_) => None,
            ExecutorConfig::Remote(_) => None,
        }
    }
}

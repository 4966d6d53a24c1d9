//! The settings given as flags, as clap collects them.
//!
//! They only hold what was typed; [`Flags::overlay`] lays them over the file's settings and everything else reads the
//! checked [`Config`](super::Config). The defaults stand in the help texts as well, and a test compares them with those
//! that hold.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use log::LevelFilter;

use super::cores::{self, CoreChoice};
use super::values::{self, AdminAddress, Auto, ExecutorKind, IdentityKind};
use crate::tier::Tier;

/// The settings given as flags.
#[derive(Clone, Debug, Default, Args)]
pub struct Flags {
    /// TOML file with settings; funicular.example.toml has them all
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    #[command(flatten)]
    pub(super) server: ServerFlags,
    #[command(flatten)]
    pub(super) gpu: GpuFlags,
    #[command(flatten)]
    pub(super) batch: BatchFlags,
    #[command(flatten)]
    pub(super) admission: AdmissionFlags,
    #[command(flatten)]
    pub(super) python: PythonFlags,
    #[command(flatten)]
    pub(super) cuda: CudaFlags,
    #[command(flatten)]
    pub(super) simulated: SimulatedFlags,
    #[command(flatten)]
    pub(super) remote: RemoteFlags,
    #[command(flatten)]
    pub(super) limits: LimitFlags,
    #[command(flatten)]
    pub(super) timeouts: TimeoutFlags,
    #[command(flatten)]
    pub(super) drain: DrainFlags,
    /// Those that stood before the command. Of a flag that is given on both sides the later one holds.
    #[arg(skip)]
    pub(super) before: Option<Box<Flags>>,
}

impl Flags {
    /// With those that stood before the command.
    pub(super) fn after(mut self, before: Flags) -> Flags {
        self.before = Some(Box::new(before));
        self
    }

    /// The file to read.
    pub(super) fn file(&self) -> Option<&Path> {
        let earlier = || self.before.as_ref().and_then(|before| before.file());
        self.config.as_deref().or_else(earlier)
    }
}

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Server")]
pub(super) struct ServerFlags {
    /// Where callers connect; port 0 takes a free one [default: 127.0.0.1:8080]
    #[arg(long, value_name = "IP:PORT", value_parser = values::address)]
    pub(super) listen: Option<SocketAddr>,
    /// Where metrics and status are served, or off [default: 127.0.0.1:9090]
    #[arg(long, value_name = "IP:PORT", value_parser = values::admin_address)]
    pub(super) admin: Option<AdminAddress>,
    /// Acceptor cores: auto (all), a count, or a list such as 0,2-3 [default: auto]
    #[arg(long, value_name = "CORES", value_parser = cores::choice)]
    pub(super) cores: Option<CoreChoice>,
    /// Most connections open at once, or auto: 20000, or fewer where the system allows fewer [default: auto]
    #[arg(long, value_name = "COUNT", value_parser = values::auto, allow_negative_numbers = true)]
    pub(super) max_connections: Option<Auto>,
    /// Name of the model that is served [default: llm-v1]
    #[arg(long, value_name = "NAME")]
    pub(super) model: Option<String>,
    /// Tier of requests without X-Tier: enterprise, paid or free [default: free]
    #[arg(long, value_name = "TIER", value_parser = values::tier)]
    pub(super) default_tier: Option<Tier>,
    /// How a tier is known: trusted (X-Tier is believed) or keys (bearer keys, see --keys) [default: trusted]
    #[arg(long, value_name = "MODE", value_parser = values::identity)]
    pub(super) identity: Option<IdentityKind>,
    /// TOML file with the keys of --identity keys [default: none]
    #[arg(long, value_name = "FILE")]
    pub(super) keys: Option<PathBuf>,
    /// Time for queue, batch and answer, in ms, unless the caller asks for less, or auto: max(2000, 4 x measured batch
    /// time) [default: auto]
    #[arg(long, value_name = "MS", value_parser = values::auto, allow_negative_numbers = true)]
    pub(super) deadline_ms: Option<Auto>,
    /// Most tickets waiting in each tier [default: 65536]
    #[arg(long, value_name = "COUNT", value_parser = values::whole, allow_negative_numbers = true)]
    pub(super) queue_bound: Option<i64>,
    /// What goes to the log: off, error, warn, info, debug or trace [default: info]
    #[arg(long, value_name = "LEVEL", value_parser = values::log_level)]
    pub(super) log_level: Option<LevelFilter>,
}

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "GPUs")]
pub(super) struct GpuFlags {
    /// Number of GPUs, one thread each; without it remote has one for each worker, cuda one for each device [default: 4]
    #[arg(long, value_name = "COUNT", value_parser = values::whole, allow_negative_numbers = true)]
    pub(super) gpus: Option<i64>,
    /// What runs the batches: simulated, python (implied by --python), cuda (implied by --cuda-module) or remote
    /// (implied by --worker) [default: simulated]
    #[arg(long, value_name = "NAME", value_parser = values::executor)]
    pub(super) executor: Option<ExecutorKind>,
    /// Time after which a batch has failed, in ms, or auto: max(500, 5 x measured batch time) [default: auto]
    #[arg(long, value_name = "MS", value_parser = values::auto, allow_negative_numbers = true)]
    pub(super) batch_timeout_ms: Option<Auto>,
    /// Input of the batch that a GPU must pass before it serves [default: funicular canary]
    #[arg(long, value_name = "TEXT")]
    pub(super) canary: Option<String>,
}

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Batches")]
pub(super) struct BatchFlags {
    /// Most tickets in a batch [default: 100]
    #[arg(long, value_name = "COUNT", value_parser = values::whole, allow_negative_numbers = true)]
    pub(super) batch_max: Option<i64>,
    /// Longest time, in ms, that a ticket waits for company while a GPU is free [default: 40]
    #[arg(long, value_name = "MS", value_parser = values::whole, allow_negative_numbers = true)]
    pub(super) hold_max_ms: Option<i64>,
    /// 0 launches at once, 1 paces launches evenly, inf waits for a full batch or --hold-max-ms [default: 1]
    #[arg(long, value_name = "NUMBER", value_parser = values::number, allow_negative_numbers = true)]
    pub(super) patience: Option<f64>,
}

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Admission")]
pub(super) struct AdmissionFlags {
    /// Latency, in ms, that admission aims to stay below [default: 500]
    #[arg(long, value_name = "MS", value_parser = values::whole, allow_negative_numbers = true)]
    pub(super) target_latency_ms: Option<i64>,
    /// Backlog, in seconds of capacity, from which fewer free requests are let in [default: 0.2]
    #[arg(long, value_name = "S", value_parser = values::number, allow_negative_numbers = true)]
    pub(super) backlog_yellow_s: Option<f64>,
    /// Backlog from which no free and fewer paid requests are let in [default: 0.5]
    #[arg(long, value_name = "S", value_parser = values::number, allow_negative_numbers = true)]
    pub(super) backlog_red_s: Option<f64>,
    /// Backlog from which nobody is let in [default: 1]
    #[arg(long, value_name = "S", value_parser = values::number, allow_negative_numbers = true)]
    pub(super) backlog_limit_s: Option<f64>,
    /// Part of each batch, 0 to 1, promised to a tier; repeatable, as paid=0.1 [default: none]
    #[arg(long, value_name = "TIER=PART", value_parser = values::share)]
    pub(super) min_share: Vec<(Tier, f64)>,
}

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Python executor")]
pub(super) struct PythonFlags {
    /// Your batch function, as file.py:function or package.module:function; one process for each GPU runs it [default: none]
    #[arg(long, value_name = "FUNCTION")]
    pub(super) python: Option<String>,
    /// The Python that runs it, or auto: that of the active virtual environment, else python3 [default: auto]
    #[arg(long, value_name = "PROGRAM")]
    pub(super) python_bin: Option<PathBuf>,
    /// Environment variable for it, repeatable, as NAME=VALUE, or as 2:NAME=VALUE for gpu 2 alone [default: none]
    #[arg(long, value_name = "NAME=VALUE")]
    pub(super) python_env: Vec<String>,
    /// Time to import it and to load its model, in s [default: 300]
    #[arg(long, value_name = "S", value_parser = values::whole, allow_negative_numbers = true)]
    pub(super) python_start_timeout_s: Option<i64>,
}

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "CUDA executor")]
pub(super) struct CudaFlags {
    /// File with your kernel: PTX, cubin or fatbin; without one the bundled kernels, batchstring and busy [default: none]
    #[arg(long, value_name = "FILE")]
    pub(super) cuda_module: Option<PathBuf>,
    /// The kernel's name there [default: batchstring]
    #[arg(long, value_name = "NAME")]
    pub(super) cuda_entry: Option<String>,
    /// Threads of a block; each input has a block [default: 256]
    #[arg(long, value_name = "THREADS", value_parser = values::whole, allow_negative_numbers = true)]
    pub(super) cuda_block: Option<i64>,
    /// Dynamic shared memory of a block [default: 0]
    #[arg(long, value_name = "BYTES", value_parser = values::whole, allow_negative_numbers = true)]
    pub(super) cuda_shared_bytes: Option<i64>,
    /// Room for an output: so many times its input's length [default: 1]
    #[arg(long, value_name = "TIMES", value_parser = values::whole, allow_negative_numbers = true)]
    pub(super) cuda_output_factor: Option<i64>,
    /// And so many bytes more, --output-max-bytes at most together [default: 256]
    #[arg(long, value_name = "BYTES", value_parser = values::whole, allow_negative_numbers = true)]
    pub(super) cuda_output_extra: Option<i64>,
    /// Work, in microseconds, for kernels that are made to take time, such as busy [default: 0]
    #[arg(long, value_name = "US", value_parser = values::whole, allow_negative_numbers = true)]
    pub(super) cuda_work_us: Option<i64>,
}

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Simulated executor")]
pub(super) struct SimulatedFlags {
    /// Time of a batch, in ms [default: 100]
    #[arg(long, value_name = "MS", value_parser = values::whole, allow_negative_numbers = true)]
    pub(super) sim_latency_ms: Option<i64>,
    /// Fraction, 0 to 1, by which a batch may be faster or slower [default: 0]
    #[arg(long, value_name = "FRACTION", value_parser = values::number, allow_negative_numbers = true)]
    pub(super) sim_jitter: Option<f64>,
    /// Time a GPU takes before its first batch, in ms [default: 0]
    #[arg(long, value_name = "MS", value_parser = values::whole, allow_negative_numbers = true)]
    pub(super) sim_cold_start_ms: Option<i64>,
    /// Scripted fault, repeatable, as kind=hang,gpu=1,batch=20; kinds are lost, hang, block, slow, raise, count, hold, panic, clear [default: none]
    #[arg(long, value_name = "FAULT")]
    pub(super) sim_fault: Vec<String>,
    /// Whether GET /faults?kind=... on the admin port scripts more of them [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(super) sim_faults_admin: Option<bool>,
}

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "GPUs on other machines")]
pub(super) struct RemoteFlags {
    /// Worker, a GPU on another machine, as http://HOST:PORT; repeatable [default: none]
    #[arg(long, value_name = "URL")]
    pub(super) worker: Vec<String>,
    /// File with more of them, one URL a line; it is read again on SIGHUP, as --config is [default: none]
    #[arg(long, value_name = "FILE")]
    pub(super) workers_file: Option<PathBuf>,
    /// Most workers at once, also after later changes, or auto: max(64, twice those at start) [default: auto]
    #[arg(long, value_name = "COUNT", value_parser = values::auto, allow_negative_numbers = true)]
    pub(super) workers_max: Option<Auto>,
    /// File with the secret that servers and workers share; without it $FUNICULAR_WORKER_SECRET, if set [default: none]
    #[arg(long, value_name = "FILE")]
    pub(super) worker_secret_file: Option<PathBuf>,
}

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Limits of a request")]
pub(super) struct LimitFlags {
    /// Largest request body [default: 1048576]
    #[arg(long, value_name = "BYTES", value_parser = values::whole, allow_negative_numbers = true)]
    pub(super) body_max_bytes: Option<i64>,
    /// Largest input [default: 65536]
    #[arg(long, value_name = "BYTES", value_parser = values::whole, allow_negative_numbers = true)]
    pub(super) input_max_bytes: Option<i64>,
    /// Largest output [default: 262144]
    #[arg(long, value_name = "BYTES", value_parser = values::whole, allow_negative_numbers = true)]
    pub(super) output_max_bytes: Option<i64>,
    /// Largest headers, all together [default: 16384]
    #[arg(long, value_name = "BYTES", value_parser = values::whole, allow_negative_numbers = true)]
    pub(super) header_max_bytes: Option<i64>,
    /// Most headers [default: 128]
    #[arg(long, value_name = "COUNT", value_parser = values::whole, allow_negative_numbers = true)]
    pub(super) header_max_count: Option<i64>,
    /// Longest request target [default: 8192]
    #[arg(long, value_name = "BYTES", value_parser = values::whole, allow_negative_numbers = true)]
    pub(super) target_max_bytes: Option<i64>,
    /// Most memory that all requests hold together, in MiB, or auto: a quarter of the machine's [default: auto]
    #[arg(long, value_name = "MIB", value_parser = values::auto, allow_negative_numbers = true)]
    pub(super) request_memory_mib: Option<Auto>,
}

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Timeouts of a connection")]
pub(super) struct TimeoutFlags {
    /// For the headers to arrive in full [default: 10000]
    #[arg(long, value_name = "MS", value_parser = values::whole, allow_negative_numbers = true)]
    pub(super) header_timeout_ms: Option<i64>,
    /// For the body to arrive in full [default: 30000]
    #[arg(long, value_name = "MS", value_parser = values::whole, allow_negative_numbers = true)]
    pub(super) body_timeout_ms: Option<i64>,
    /// Between two requests [default: 75000]
    #[arg(long, value_name = "MS", value_parser = values::whole, allow_negative_numbers = true)]
    pub(super) idle_timeout_ms: Option<i64>,
    /// For a response to be taken by the peer [default: 30000]
    #[arg(long, value_name = "MS", value_parser = values::whole, allow_negative_numbers = true)]
    pub(super) write_timeout_ms: Option<i64>,
}

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Shutdown")]
pub(super) struct DrainFlags {
    /// Time to go on serving after SIGTERM, in ms, for the load balancer to notice [default: 0]
    #[arg(long, value_name = "MS", value_parser = values::whole, allow_negative_numbers = true)]
    pub(super) drain_delay_ms: Option<i64>,
    /// Time for accepted requests to finish after that, in ms [default: 30000]
    #[arg(long, value_name = "MS", value_parser = values::whole, allow_negative_numbers = true)]
    pub(super) drain_grace_ms: Option<i64>,
}

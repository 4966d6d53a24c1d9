//! The command line.
//!
//! Flags only collect what was typed; [`Flags::overlay`] lays them over the file's settings and everything else reads
//! the checked [`Config`](super::Config). The defaults stand in the help texts as well, and a test compares them with
//! those that hold.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use log::LevelFilter;

use super::cores::{self, CoreChoice};
use super::keys::{self, Key};
use super::raw::{Given, Origin, RawConfig};
use super::values::{self, AdminAddress, Auto, ExecutorKind};
use crate::tier::Tier;

const EXAMPLE: &str = "\
Example: two simulated GPUs, batches of up to 32, and one request
  funicular --gpus 2 --batch-max 32 &
  curl http://127.0.0.1:8080/v1/inference -H 'Content-Type: application/json' \\
       -d '{\"input\": \"Hello, Funicular!\"}'

A flag beats the same setting in the file. funicular check takes the same
flags, starts nothing, and prints every setting as it would hold, in the form
of a --config file.";

/// Gathers single inference requests into batches for GPUs, and gives every caller its own output.
#[derive(Debug, Parser)]
#[command(name = "funicular", version, after_help = EXAMPLE, args_conflicts_with_subcommands = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    flags: Flags,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server (what funicular does without a command)
    #[command(after_help = EXAMPLE)]
    Serve(Flags),
    /// Print the effective configuration with every derived limit, and start nothing
    #[command(after_help = EXAMPLE)]
    Check(Flags),
    /// Print the version
    Version,
}

/// What the command line asks for.
#[derive(Debug)]
pub enum Action {
    /// Run the server.
    Serve(Flags),
    /// Print the effective configuration.
    Check(Flags),
    /// Print the version.
    Version,
}

impl Cli {
    /// What is asked for.
    pub fn action(self) -> Action {
        match self.command {
            None => Action::Serve(self.flags),
            Some(Command::Serve(flags)) => Action::Serve(flags),
            Some(Command::Check(flags)) => Action::Check(flags),
            Some(Command::Version) => Action::Version,
        }
    }
}

/// The settings given as flags.
#[derive(Clone, Debug, Default, Args)]
pub struct Flags {
    /// TOML file with settings; funicular.example.toml has them all
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    gpu: GpuFlags,
    #[command(flatten)]
    batch: BatchFlags,
    #[command(flatten)]
    simulated: SimulatedFlags,
    #[command(flatten)]
    limits: LimitFlags,
    #[command(flatten)]
    timeouts: TimeoutFlags,
    #[command(flatten)]
    drain: DrainFlags,
}

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Server")]
struct ServerFlags {
    /// Where callers connect; port 0 takes a free one [default: 127.0.0.1:8080]
    #[arg(long, value_name = "IP:PORT", value_parser = values::address)]
    listen: Option<SocketAddr>,
    /// Where metrics and status are served, or off [default: 127.0.0.1:9090]
    #[arg(long, value_name = "IP:PORT", value_parser = values::admin_address)]
    admin: Option<AdminAddress>,
    /// Acceptor cores: auto (all), a count, or a list such as 0,2-3 [default: auto]
    #[arg(long, value_name = "CORES", value_parser = cores::choice)]
    cores: Option<CoreChoice>,
    /// Most connections open at once, or auto: 20000, or fewer where the system allows fewer [default: auto]
    #[arg(long, value_name = "COUNT", value_parser = values::auto, allow_negative_numbers = true)]
    max_connections: Option<Auto>,
    /// Name of the model that is served [default: llm-v1]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Tier of requests without X-Tier: enterprise, paid or free [default: free]
    #[arg(long, value_name = "TIER", value_parser = values::tier)]
    default_tier: Option<Tier>,
    /// Time for queue, batch and answer, in ms, unless the caller asks for less [default: 2000]
    #[arg(long, value_name = "MS", allow_negative_numbers = true)]
    deadline_ms: Option<i64>,
    /// Most tickets waiting in each tier [default: 65536]
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    queue_bound: Option<i64>,
    /// What goes to the log: off, error, warn, info, debug or trace [default: info]
    #[arg(long, value_name = "LEVEL", value_parser = values::log_level)]
    log_level: Option<LevelFilter>,
}

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "GPUs")]
struct GpuFlags {
    /// Number of GPUs, one thread each [default: 4]
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    gpus: Option<i64>,
    /// What runs the batches: simulated [default: simulated]
    #[arg(long, value_name = "NAME", value_parser = values::executor)]
    executor: Option<ExecutorKind>,
    /// Time after which a batch has failed, in ms, or auto: max(500, 5 x measured batch time) [default: auto]
    #[arg(long, value_name = "MS", value_parser = values::auto, allow_negative_numbers = true)]
    batch_timeout_ms: Option<Auto>,
}

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Batches")]
struct BatchFlags {
    /// Most tickets in a batch [default: 100]
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    batch_max: Option<i64>,
    /// Longest time, in ms, that a ticket waits for company while a GPU is free [default: 40]
    #[arg(long, value_name = "MS", allow_negative_numbers = true)]
    hold_max_ms: Option<i64>,
    /// 0 launches at once, 1 paces launches evenly, inf waits for a full batch or --hold-max-ms [default: 1]
    #[arg(long, value_name = "NUMBER", value_parser = values::number, allow_negative_numbers = true)]
    patience: Option<f64>,
}

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Simulated executor")]
struct SimulatedFlags {
    /// Time of a batch, in ms [default: 100]
    #[arg(long, value_name = "MS", allow_negative_numbers = true)]
    sim_latency_ms: Option<i64>,
    /// Fraction, 0 to 1, by which a batch may be faster or slower [default: 0]
    #[arg(long, value_name = "FRACTION", value_parser = values::number, allow_negative_numbers = true)]
    sim_jitter: Option<f64>,
    /// Time a GPU takes before its first batch, in ms [default: 0]
    #[arg(long, value_name = "MS", allow_negative_numbers = true)]
    sim_cold_start_ms: Option<i64>,
}

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Limits of a request")]
struct LimitFlags {
    /// Largest request body [default: 1048576]
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true)]
    body_max_bytes: Option<i64>,
    /// Largest input [default: 65536]
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true)]
    input_max_bytes: Option<i64>,
    /// Largest output [default: 262144]
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true)]
    output_max_bytes: Option<i64>,
    /// Largest headers, all together [default: 16384]
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true)]
    header_max_bytes: Option<i64>,
    /// Most headers [default: 128]
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    header_max_count: Option<i64>,
    /// Longest request target [default: 8192]
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true)]
    target_max_bytes: Option<i64>,
}

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Timeouts of a connection")]
struct TimeoutFlags {
    /// For the headers to arrive in full [default: 10000]
    #[arg(long, value_name = "MS", allow_negative_numbers = true)]
    header_timeout_ms: Option<i64>,
    /// For the body to arrive in full [default: 30000]
    #[arg(long, value_name = "MS", allow_negative_numbers = true)]
    body_timeout_ms: Option<i64>,
    /// Between two requests [default: 75000]
    #[arg(long, value_name = "MS", allow_negative_numbers = true)]
    idle_timeout_ms: Option<i64>,
    /// For a response to be taken by the peer [default: 30000]
    #[arg(long, value_name = "MS", allow_negative_numbers = true)]
    write_timeout_ms: Option<i64>,
}

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Shutdown")]
struct DrainFlags {
    /// Time to go on serving after SIGTERM, in ms, for the load balancer to notice [default: 0]
    #[arg(long, value_name = "MS", allow_negative_numbers = true)]
    drain_delay_ms: Option<i64>,
    /// Time for accepted requests to finish after that, in ms [default: 30000]
    #[arg(long, value_name = "MS", allow_negative_numbers = true)]
    drain_grace_ms: Option<i64>,
}

impl Flags {
    /// The settings of the file with those of the command line laid over them.
    pub fn overlay(self, mut raw: RawConfig) -> RawConfig {
        self.server.overlay(&mut raw);
        self.limits.overlay(&mut raw);
        self.timeouts.overlay(&mut raw);
        lay(&mut raw.gpus, self.gpu.gpus, keys::GPUS);
        lay(&mut raw.executor, self.gpu.executor, keys::EXECUTOR);
        lay(
            &mut raw.batch_timeout_ms,
            self.gpu.batch_timeout_ms,
            keys::BATCH_TIMEOUT_MS,
        );
        lay(
            &mut raw.batch.batch_max,
            self.batch.batch_max,
            keys::BATCH_MAX,
        );
        lay(
            &mut raw.batch.hold_max_ms,
            self.batch.hold_max_ms,
            keys::HOLD_MAX_MS,
        );
        lay(&mut raw.batch.patience, self.batch.patience, keys::PATIENCE);
        let simulated = &mut raw.simulated;
        lay(
            &mut simulated.latency_ms,
            self.simulated.sim_latency_ms,
            keys::SIM_LATENCY_MS,
        );
        lay(
            &mut simulated.jitter,
            self.simulated.sim_jitter,
            keys::SIM_JITTER,
        );
        lay(
            &mut simulated.cold_start_ms,
            self.simulated.sim_cold_start_ms,
            keys::SIM_COLD_START_MS,
        );
        lay(
            &mut raw.drain.delay_ms,
            self.drain.drain_delay_ms,
            keys::DRAIN_DELAY_MS,
        );
        lay(
            &mut raw.drain.grace_ms,
            self.drain.drain_grace_ms,
            keys::DRAIN_GRACE_MS,
        );
        raw
    }
}

impl ServerFlags {
    fn overlay(self, raw: &mut RawConfig) {
        lay(&mut raw.listen, self.listen, keys::LISTEN);
        lay(&mut raw.admin, self.admin, keys::ADMIN);
        lay(&mut raw.cores, self.cores, keys::CORES);
        lay(
            &mut raw.max_connections,
            self.max_connections,
            keys::MAX_CONNECTIONS,
        );
        lay(&mut raw.model, self.model, keys::MODEL);
        lay(&mut raw.default_tier, self.default_tier, keys::DEFAULT_TIER);
        lay(&mut raw.deadline_ms, self.deadline_ms, keys::DEADLINE_MS);
        lay(&mut raw.queue_bound, self.queue_bound, keys::QUEUE_BOUND);
        lay(&mut raw.log_level, self.log_level, keys::LOG_LEVEL);
    }
}

impl LimitFlags {
    fn overlay(self, raw: &mut RawConfig) {
        let limits = &mut raw.limits;
        lay(
            &mut limits.body_max_bytes,
            self.body_max_bytes,
            keys::BODY_MAX_BYTES,
        );
        lay(
            &mut limits.input_max_bytes,
            self.input_max_bytes,
            keys::INPUT_MAX_BYTES,
        );
        lay(
            &mut limits.output_max_bytes,
            self.output_max_bytes,
            keys::OUTPUT_MAX_BYTES,
        );
        lay(
            &mut limits.header_max_bytes,
            self.header_max_bytes,
            keys::HEADER_MAX_BYTES,
        );
        lay(
            &mut limits.header_max_count,
            self.header_max_count,
            keys::HEADER_MAX_COUNT,
        );
        lay(
            &mut limits.target_max_bytes,
            self.target_max_bytes,
            keys::TARGET_MAX_BYTES,
        );
    }
}

impl TimeoutFlags {
    fn overlay(self, raw: &mut RawConfig) {
        let timeouts = &mut raw.timeouts;
        lay(
            &mut timeouts.header_ms,
            self.header_timeout_ms,
            keys::HEADER_TIMEOUT_MS,
        );
        lay(
            &mut timeouts.body_ms,
            self.body_timeout_ms,
            keys::BODY_TIMEOUT_MS,
        );
        lay(
            &mut timeouts.idle_ms,
            self.idle_timeout_ms,
            keys::IDLE_TIMEOUT_MS,
        );
        lay(
            &mut timeouts.write_ms,
            self.write_timeout_ms,
            keys::WRITE_TIMEOUT_MS,
        );
    }
}

fn lay<T>(setting: &mut Option<Given<T>>, flag: Option<T>, key: Key) {
    if let Some(value) = flag {
        *setting = Some(Given {
            value,
            origin: Origin::Flag(key.flag),
        });
    }
}

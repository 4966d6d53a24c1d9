//! Defaults, and the range of every whole number.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use log::LevelFilter;

use super::cores::CoreChoice;
use super::keys::{self, Key};
use super::values::{AdminAddress, ExecutorKind, IdentityKind};
use crate::tier::Tier;

pub const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
pub const ADMIN: AdminAddress =
    AdminAddress(Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9090)));
pub const CORES: CoreChoice = CoreChoice::Auto;
pub const MODEL: &str = "llm-v1";
pub const DEFAULT_TIER: Tier = Tier::Free;
pub const IDENTITY: IdentityKind = IdentityKind::Trusted;
pub const EXECUTOR: ExecutorKind = ExecutorKind::Simulated;
/// Any batch function takes a string. Cut short where inputs must be shorter.
pub const CANARY: &str = "funicular canary";
pub const LOG_LEVEL: LevelFilter = LevelFilter::Info;
pub const PATIENCE: f64 = 1.0;
/// Where yellow, red and the limit begin: 200, 500 and 1,000 tickets waiting for one GPU that serves 1,000 a second.
pub const YELLOW_S: f64 = 0.2;
pub const RED_S: f64 = 0.5;
pub const LIMIT_S: f64 = 1.0;
pub const MIN_SHARE: f64 = 0.0;
pub const SIM_JITTER: f64 = 0.0;
/// What `auto` stands for where the machine allows it.
pub const MAX_CONNECTIONS: usize = 20_000;

pub const MODEL_NAME_MAX_BYTES: usize = 256;

/// Ten minutes. A caller that waits longer is better served by a job queue than by an open connection.
const DEADLINE_MAX_MS: u32 = 600_000;
/// A day: a longer time-out is no time-out.
const TIMEOUT_MAX_MS: u32 = 86_400_000;
/// A channel's places are allocated at start, whether they are used or not.
const QUEUE_BOUND_MAX: u32 = 1 << 24;
const SIZE_MAX_BYTES: u32 = 1 << 30;

/// A setting that is a whole number. `u32` holds every bound, so that the value fits a `usize` and a `u64` alike.
#[derive(Clone, Copy, Debug)]
pub struct Whole {
    pub key: Key,
    pub default: u32,
    pub min: u32,
    pub max: u32,
}

macro_rules! whole_numbers {
    ($($name:ident = $default:expr, $min:expr => $max:expr;)*) => {
        $(pub const $name: Whole = Whole {
            key: keys::$name,
            default: $default,
            min: $min,
            max: $max,
        };)*
    };
}

whole_numbers! {
    GPUS = 4, 1 => 1_024;
    // Its default is `auto`, which no number stands for: this one is the least that it comes to.
    DEADLINE_MS = 2_000, 1 => DEADLINE_MAX_MS;
    QUEUE_BOUND = 65_536, 1 => QUEUE_BOUND_MAX;
    // Its default is `auto`, which no number stands for: this one is what it comes to before the first batch.
    BATCH_TIMEOUT_MS = 500, 1 => TIMEOUT_MAX_MS;
    BATCH_MAX = 100, 1 => 4_096;
    HOLD_MAX_MS = 40, 0 => DEADLINE_MAX_MS;
    TARGET_LATENCY_MS = 500, 1 => DEADLINE_MAX_MS;
    PYTHON_START_TIMEOUT_S = 300, 1 => 86_400;
    CUDA_BLOCK = 256, 1 => 1_024;
    // Devices have less; the driver says how much.
    CUDA_SHARED_BYTES = 0, 0 => 1 << 20;
    CUDA_OUTPUT_FACTOR = 1, 0 => 1_024;
    CUDA_OUTPUT_EXTRA = 256, 0 => SIZE_MAX_BYTES;
    CUDA_WORK_US = 0, 0 => 1_000 * DEADLINE_MAX_MS;
    SIM_LATENCY_MS = 100, 0 => DEADLINE_MAX_MS;
    SIM_COLD_START_MS = 0, 0 => DEADLINE_MAX_MS;
    // Its default is `auto`, which no number stands for: this one is the least that it comes to.
    REMOTE_WORKERS_MAX = 64, 1 => 1_024;
    BODY_MAX_BYTES = 1 << 20, 1 => SIZE_MAX_BYTES;
    INPUT_MAX_BYTES = 1 << 16, 1 => SIZE_MAX_BYTES;
    OUTPUT_MAX_BYTES = 1 << 18, 1 => SIZE_MAX_BYTES;
    HEADER_MAX_BYTES = 1 << 14, 256 => 1 << 20;
    HEADER_MAX_COUNT = 128, 8 => 1_024;
    TARGET_MAX_BYTES = 1 << 13, 64 => 1 << 20;
    HEADER_TIMEOUT_MS = 10_000, 1 => TIMEOUT_MAX_MS;
    BODY_TIMEOUT_MS = 30_000, 1 => TIMEOUT_MAX_MS;
    IDLE_TIMEOUT_MS = 75_000, 1 => TIMEOUT_MAX_MS;
    WRITE_TIMEOUT_MS = 30_000, 1 => TIMEOUT_MAX_MS;
    DRAIN_DELAY_MS = 0, 0 => TIMEOUT_MAX_MS;
    DRAIN_GRACE_MS = 30_000, 0 => TIMEOUT_MAX_MS;
}

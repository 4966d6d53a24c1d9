//! The name of every setting: where it stands in the file and which flag sets it.
//!
//! One table for four readers: the check for unknown keys, the flags laid over the file, the text of refusals, and the
//! output of `funicular check`. A setting that is missing here can't be given at all, so the table can't fall behind.

use std::fmt;

/// A setting's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// The table of the file that it stands in; empty for the top level.
    pub section: &'static str,
    /// Its name in that table, with its unit last.
    pub name: &'static str,
    /// The flag that sets it, with its dashes.
    pub flag: &'static str,
}

impl fmt::Display for Key {
    /// The dotted path, as in `batch.hold_max_ms`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.section.is_empty() {
            write!(f, "{}.", self.section)?;
        }
        f.write_str(self.name)
    }
}

macro_rules! keys {
    ($($constant:ident = $section:literal $name:literal $flag:literal;)*) => {
        $(
            #[doc = concat!("`", $name, "` of `[", $section, "]`, or `", $flag, "`.")]
            pub const $constant: Key = Key { section: $section, name: $name, flag: $flag };
        )*
        /// Every setting, in the order of the example file.
        pub const ALL: &[Key] = &[$($constant),*];
    };
}

keys! {
    LISTEN = "" "listen" "--listen";
    ADMIN = "" "admin" "--admin";
    CORES = "" "cores" "--cores";
    MAX_CONNECTIONS = "" "max_connections" "--max-connections";
    MODEL = "" "model" "--model";
    DEFAULT_TIER = "" "default_tier" "--default-tier";
    IDENTITY = "" "identity" "--identity";
    KEYS_FILE = "" "keys_file" "--keys";
    DEADLINE_MS = "" "deadline_ms" "--deadline-ms";
    QUEUE_BOUND = "" "queue_bound" "--queue-bound";
    GPUS = "" "gpus" "--gpus";
    EXECUTOR = "" "executor" "--executor";
    BATCH_TIMEOUT_MS = "" "batch_timeout_ms" "--batch-timeout-ms";
    CANARY = "" "canary" "--canary";
    LOG_LEVEL = "" "log_level" "--log-level";
    BATCH_MAX = "batch" "batch_max" "--batch-max";
    HOLD_MAX_MS = "batch" "hold_max_ms" "--hold-max-ms";
    PATIENCE = "batch" "patience" "--patience";
    TARGET_LATENCY_MS = "admission" "target_latency_ms" "--target-latency-ms";
    YELLOW_S = "admission" "yellow_s" "--backlog-yellow-s";
    RED_S = "admission" "red_s" "--backlog-red-s";
    LIMIT_S = "admission" "limit_s" "--backlog-limit-s";
    MIN_SHARE = "admission" "min_share" "--min-share";
    PYTHON_TARGET = "python" "target" "--python";
    PYTHON_BIN = "python" "bin" "--python-bin";
    PYTHON_ENV = "python" "env" "--python-env";
    PYTHON_START_TIMEOUT_S = "python" "start_timeout_s" "--python-start-timeout-s";
    CUDA_MODULE = "cuda" "module" "--cuda-module";
    CUDA_ENTRY = "cuda" "entry" "--cuda-entry";
    CUDA_BLOCK = "cuda" "block" "--cuda-block";
    CUDA_SHARED_BYTES = "cuda" "shared_bytes" "--cuda-shared-bytes";
    CUDA_OUTPUT_FACTOR = "cuda" "output_factor" "--cuda-output-factor";
    CUDA_OUTPUT_EXTRA = "cuda" "output_extra_bytes" "--cuda-output-extra";
    CUDA_WORK_US = "cuda" "work_us" "--cuda-work-us";
    SIM_LATENCY_MS = "simulated" "latency_ms" "--sim-latency-ms";
    SIM_JITTER = "simulated" "jitter" "--sim-jitter";
    SIM_COLD_START_MS = "simulated" "cold_start_ms" "--sim-cold-start-ms";
    SIM_FAULTS = "simulated" "faults" "--sim-fault";
    SIM_FAULTS_ADMIN = "simulated" "faults_admin" "--sim-faults-admin";
    REMOTE_WORKERS = "remote" "workers" "--worker";
    REMOTE_WORKERS_FILE = "remote" "workers_file" "--workers-file";
    REMOTE_WORKERS_MAX = "remote" "workers_max" "--workers-max";
    REMOTE_SECRET_FILE = "remote" "secret_file" "--worker-secret-file";
    BODY_MAX_BYTES = "limits" "body_max_bytes" "--body-max-bytes";
    INPUT_MAX_BYTES = "limits" "input_max_bytes" "--input-max-bytes";
    OUTPUT_MAX_BYTES = "limits" "output_max_bytes" "--output-max-bytes";
    HEADER_MAX_BYTES = "limits" "header_max_bytes" "--header-max-bytes";
    HEADER_MAX_COUNT = "limits" "header_max_count" "--header-max-count";
    TARGET_MAX_BYTES = "limits" "target_max_bytes" "--target-max-bytes";
    REQUEST_MEMORY_MIB = "limits" "request_memory_mib" "--request-memory-mib";
    HEADER_TIMEOUT_MS = "timeouts" "header_ms" "--header-timeout-ms";
    BODY_TIMEOUT_MS = "timeouts" "body_ms" "--body-timeout-ms";
    IDLE_TIMEOUT_MS = "timeouts" "idle_ms" "--idle-timeout-ms";
    WRITE_TIMEOUT_MS = "timeouts" "write_ms" "--write-timeout-ms";
    DRAIN_DELAY_MS = "drain" "delay_ms" "--drain-delay-ms";
    DRAIN_GRACE_MS = "drain" "grace_ms" "--drain-grace-ms";
}

/// Whether `name` is a table of the file.
pub fn is_section(name: &str) -> bool {
    ALL.iter()
        .any(|key| !key.section.is_empty() && key.section == name)
}

/// Whether the file knows `name` in the table `section`.
pub fn is_known(section: &str, name: &str) -> bool {
    ALL.iter()
        .any(|key| key.section == section && key.name == name)
}

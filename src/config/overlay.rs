//! The command line laid over the file: where each flag's value goes.

use super::flags::{
    AdmissionFlags, BatchFlags, CudaFlags, Flags, GpuFlags, LimitFlags, PythonFlags, RemoteFlags,
    ServerFlags, SimulatedFlags, TimeoutFlags,
};
use super::keys::{self, Key};
use super::raw::{Given, Origin, RawConfig};

impl Flags {
    /// The settings of the file with those of the command line laid over them.
    pub fn overlay(self, raw: RawConfig) -> RawConfig {
        let mut raw = match self.before {
            Some(before) => before.overlay(raw),
            None => raw,
        };
        self.server.overlay(&mut raw);
        self.gpu.overlay(&mut raw);
        self.batch.overlay(&mut raw);
        self.admission.overlay(&mut raw);
        self.python.overlay(&mut raw);
        self.cuda.overlay(&mut raw);
        self.simulated.overlay(&mut raw);
        self.remote.overlay(&mut raw);
        self.limits.overlay(&mut raw);
        self.timeouts.overlay(&mut raw);
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
        lay(&mut raw.identity, self.identity, keys::IDENTITY);
        lay(&mut raw.keys_file, self.keys, keys::KEYS_FILE);
        lay(&mut raw.deadline_ms, self.deadline_ms, keys::DEADLINE_MS);
        lay(&mut raw.queue_bound, self.queue_bound, keys::QUEUE_BOUND);
        lay(&mut raw.log_level, self.log_level, keys::LOG_LEVEL);
    }
}

impl GpuFlags {
    fn overlay(self, raw: &mut RawConfig) {
        lay(&mut raw.gpus, self.gpus, keys::GPUS);
        lay(&mut raw.executor, self.executor, keys::EXECUTOR);
        lay(
            &mut raw.batch_timeout_ms,
            self.batch_timeout_ms,
            keys::BATCH_TIMEOUT_MS,
        );
        lay(&mut raw.canary, self.canary, keys::CANARY);
    }
}

impl BatchFlags {
    fn overlay(self, raw: &mut RawConfig) {
        let batch = &mut raw.batch;
        lay(&mut batch.batch_max, self.batch_max, keys::BATCH_MAX);
        lay(&mut batch.hold_max_ms, self.hold_max_ms, keys::HOLD_MAX_MS);
        lay(&mut batch.patience, self.patience, keys::PATIENCE);
    }
}

impl AdmissionFlags {
    fn overlay(self, raw: &mut RawConfig) {
        let admission = &mut raw.admission;
        lay(
            &mut admission.target_latency_ms,
            self.target_latency_ms,
            keys::TARGET_LATENCY_MS,
        );
        lay(
            &mut admission.yellow_s,
            self.backlog_yellow_s,
            keys::YELLOW_S,
        );
        lay(&mut admission.red_s, self.backlog_red_s, keys::RED_S);
        lay(&mut admission.limit_s, self.backlog_limit_s, keys::LIMIT_S);
        for (tier, part) in self.min_share {
            lay(
                admission.min_share.of_mut(tier),
                Some(part),
                keys::MIN_SHARE,
            );
        }
    }
}

impl PythonFlags {
    fn overlay(self, raw: &mut RawConfig) {
        let python = &mut raw.python;
        lay(&mut python.target, self.python, keys::PYTHON_TARGET);
        lay(&mut python.bin, self.python_bin, keys::PYTHON_BIN);
        lay(
            &mut python.start_timeout_s,
            self.python_start_timeout_s,
            keys::PYTHON_START_TIMEOUT_S,
        );
        lay_list(&mut python.env, self.python_env, keys::PYTHON_ENV);
    }
}

impl CudaFlags {
    fn overlay(self, raw: &mut RawConfig) {
        let cuda = &mut raw.cuda;
        lay(&mut cuda.module, self.cuda_module, keys::CUDA_MODULE);
        lay(&mut cuda.entry, self.cuda_entry, keys::CUDA_ENTRY);
        lay(&mut cuda.block, self.cuda_block, keys::CUDA_BLOCK);
        lay(
            &mut cuda.shared_bytes,
            self.cuda_shared_bytes,
            keys::CUDA_SHARED_BYTES,
        );
        lay(
            &mut cuda.output_factor,
            self.cuda_output_factor,
            keys::CUDA_OUTPUT_FACTOR,
        );
        lay(
            &mut cuda.output_extra_bytes,
            self.cuda_output_extra,
            keys::CUDA_OUTPUT_EXTRA,
        );
        lay(&mut cuda.work_us, self.cuda_work_us, keys::CUDA_WORK_US);
    }
}

impl SimulatedFlags {
    fn overlay(self, raw: &mut RawConfig) {
        let simulated = &mut raw.simulated;
        lay(
            &mut simulated.latency_ms,
            self.sim_latency_ms,
            keys::SIM_LATENCY_MS,
        );
        lay(&mut simulated.jitter, self.sim_jitter, keys::SIM_JITTER);
        lay(
            &mut simulated.cold_start_ms,
            self.sim_cold_start_ms,
            keys::SIM_COLD_START_MS,
        );
        lay(
            &mut simulated.faults_admin,
            self.sim_faults_admin,
            keys::SIM_FAULTS_ADMIN,
        );
        lay_list(&mut simulated.faults, self.sim_fault, keys::SIM_FAULTS);
    }
}

impl RemoteFlags {
    fn overlay(self, raw: &mut RawConfig) {
        let remote = &mut raw.remote;
        lay_list(&mut remote.workers, self.worker, keys::REMOTE_WORKERS);
        lay(
            &mut remote.workers_file,
            self.workers_file,
            keys::REMOTE_WORKERS_FILE,
        );
        lay(
            &mut remote.workers_max,
            self.workers_max,
            keys::REMOTE_WORKERS_MAX,
        );
        lay(
            &mut remote.secret_file,
            self.worker_secret_file,
            keys::REMOTE_SECRET_FILE,
        );
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
        lay(
            &mut limits.request_memory_mib,
            self.request_memory_mib,
            keys::REQUEST_MEMORY_MIB,
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
        *setting = Some(typed(value, key));
    }
}

/// A repeatable flag replaces the list of the file, and adds to what it has given before.
fn lay_list(setting: &mut Option<Vec<Given<String>>>, flag: Vec<String>, key: Key) {
    if flag.is_empty() {
        return;
    }
    let list = setting.get_or_insert_default();
    list.retain(|given| given.origin == Origin::Flag(key.flag));
    list.extend(flag.into_iter().map(|value| typed(value, key)));
}

fn typed<T>(value: T, key: Key) -> Given<T> {
    Given {
        value,
        origin: Origin::Flag(key.flag),
    }
}

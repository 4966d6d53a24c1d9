//! From [`RawConfig`] to [`Config`], without reading anything: defaults, ranges and derived limits.
//!
//! Two passes. The first, here, takes each setting by itself. Only if all of them are sound does the second
//! (`contradictions.rs`) compare them with each other, so that one slip is reported once. Within a pass everything
//! that is wrong is reported.

use std::path::PathBuf;
use std::time::Duration;

use super::contradictions::{contradictions, warnings};
use super::cores::{self, CoreChoice};
use super::cuda::{self, CudaConfig};
use super::defaults::{self, Whole};
use super::keys::{self, Key};
use super::memory;
use super::python::{self, PythonConfig, Variable};
use super::raw::{Given, RawConfig, origin, value_or};
use super::remote;
use super::room::Room;
use super::units::{counted, grouped};
use super::values::{Auto, ExecutorKind, IdentityKind};
use super::{
    BatchConfig, Config, ConfigError, DrainConfig, ExecutorConfig, HttpConfig, HttpLimits,
    HttpTimeouts, Identity, Machine, Refusal, SecretConfig, SimulatedConfig,
};
use crate::admission::DefaultDeadline;
use crate::admission::Rules;
use crate::gpu::cuda::Shape;
use crate::gpu::faults::Fault;
use crate::tier::Tier;

impl Config {
    /// Checks what was given, fills in the defaults and derives every limit. Reads nothing but its arguments.
    ///
    /// # Errors
    /// [`ConfigError::Refused`] with everything that is out of range; if nothing is, with everything that contradicts
    /// something else.
    pub fn resolve(raw: &RawConfig, machine: &Machine) -> Result<Config, ConfigError> {
        let mut check = Check {
            raw,
            refusals: Vec::new(),
        };
        let cores = check.cores(machine);
        let executor = check.executor();
        let gpus = check.gpus(&executor, machine);
        let seats = check.seats(&executor, gpus);
        let room = Room::on(machine, cores.len(), seats);
        let batch = check.batch();
        let http = check.http(machine, &room);
        let config = Config {
            listen: value_or(&raw.listen, defaults::LISTEN),
            admin: value_or(&raw.admin, defaults::ADMIN).0,
            canary: check.canary(&http.limits),
            role: raw.role,
            identity: check.identity(),
            secret: SecretConfig::named(raw),
            admission: check.admission(&batch, &http),
            queue_bound: check.count(&raw.queue_bound, defaults::QUEUE_BOUND),
            drain: check.drain(),
            batch_timeout: check.batch_timeout(),
            log_level: value_or(&raw.log_level, defaults::LOG_LEVEL),
            warnings: Vec::new(),
            auto: left_to_the_server(raw),
            cores,
            gpus,
            seats,
            executor,
            batch,
            http,
        };
        none_of(check.refusals)?;
        none_of(contradictions(raw, &config))?;
        let warnings = warnings(raw, &config, &room);
        Ok(Config { warnings, ..config })
    }
}

/// The settings whose value follows from this machine, or from others.
fn left_to_the_server(raw: &RawConfig) -> Vec<Key> {
    let cores = value_or(&raw.cores, defaults::CORES) == CoreChoice::Auto;
    let connections = value_or(&raw.max_connections, Auto::Auto) == Auto::Auto;
    let memory = value_or(&raw.limits.request_memory_mib, Auto::Auto) == Auto::Auto;
    let workers = value_or(&raw.remote.workers_max, Auto::Auto) == Auto::Auto;
    let all = [
        (cores, keys::CORES),
        (connections, keys::MAX_CONNECTIONS),
        (workers, keys::REMOTE_WORKERS_MAX),
        (memory, keys::REQUEST_MEMORY_MIB),
    ];
    let left = all.into_iter().filter(|(is_left, _)| *is_left);
    left.map(|(_, key)| key).collect()
}

fn none_of(refusals: Vec<Refusal>) -> Result<(), ConfigError> {
    if refusals.is_empty() {
        return Ok(());
    }
    Err(ConfigError::Refused(refusals))
}

/// The settings under examination and what has been found wrong so far.
///
/// Where a setting is refused its default, or nothing, stands in; the configuration is thrown away at the end of the
/// pass.
struct Check<'a> {
    raw: &'a RawConfig,
    refusals: Vec<Refusal>,
}

impl Check<'_> {
    fn refuse<T>(&mut self, key: Key, given: &Option<Given<T>>, problem: &str) {
        self.refusals.push(Refusal {
            place: self.raw.place(origin(given)),
            problem: format!("{key} {problem}"),
        });
    }

    /// A whole number within its range.
    fn whole(&mut self, given: &Option<Given<i64>>, setting: Whole) -> u32 {
        let Whole {
            key,
            default,
            min,
            max,
            ..
        } = setting;
        let value = value_or(given, i64::from(default));
        match u32::try_from(value) {
            Ok(value) if (min..=max).contains(&value) => value,
            _ => {
                let (max, default) = (grouped(max.into()), grouped(default.into()));
                let range = format!("it must be from {min} to {max} (default: {default})");
                self.refuse(key, given, &format!("is {value}; {range}"));
                setting.default
            }
        }
    }

    fn count(&mut self, given: &Option<Given<i64>>, setting: Whole) -> usize {
        self.whole(given, setting) as usize
    }

    fn millis(&mut self, given: &Option<Given<i64>>, setting: Whole) -> Duration {
        Duration::from_millis(self.whole(given, setting).into())
    }

    fn cores(&mut self, machine: &Machine) -> Vec<usize> {
        let raw = self.raw;
        let choice = value_or(&raw.cores, defaults::CORES);
        cores::pick(&choice, &machine.cores).unwrap_or_else(|problem| {
            self.refuse(keys::CORES, &raw.cores, &format!("can't hold: {problem}"));
            Vec::new()
        })
    }

    fn executor(&mut self) -> ExecutorConfig {
        match self.raw.executor_kind() {
            ExecutorKind::Simulated => ExecutorConfig::Simulated(self.simulated()),
            ExecutorKind::Python => ExecutorConfig::Python(self.python()),
            ExecutorKind::Cuda => ExecutorConfig::Cuda(self.cuda()),
            ExecutorKind::Remote => {
                ExecutorConfig::Remote(remote::named(self.raw, &mut self.refusals))
            }
        }
    }

    /// Each worker, or each device, is a GPU, so that nobody has to count them.
    fn gpus(&mut self, executor: &ExecutorConfig, machine: &Machine) -> usize {
        match (executor, &machine.cuda_devices) {
            (ExecutorConfig::Remote(remote), _) if self.raw.gpus.is_none() => remote.count(),
            (ExecutorConfig::Cuda(_), Some(devices)) => self.gpus_among(devices),
            _ => self.count(&self.raw.gpus, defaults::GPUS),
        }
    }

    /// The first of the devices that the driver lists, or all of them.
    fn gpus_among(&mut self, devices: &Result<usize, String>) -> usize {
        let given = &self.raw.gpus;
        let devices = match devices {
            Ok(devices) => (*devices).min(defaults::GPUS.max as usize),
            Err(problem) => {
                let problem = format!("is cuda, but {problem}");
                self.refuse(keys::EXECUTOR, &self.raw.executor, &problem);
                return 1;
            }
        };
        if given.is_none() {
            return devices;
        }
        let gpus = self.count(given, defaults::GPUS);
        if gpus > devices {
            let problem = format!(
                "is {gpus}, but the driver lists {} (see funicular devices): leave it out to use what there is",
                counted(devices as u64, "device")
            );
            self.refuse(keys::GPUS, given, &problem);
        }
        gpus
    }

    fn cuda(&mut self) -> CudaConfig {
        let raw = &self.raw.cuda;
        let entry = value_or(&raw.entry, cuda::ENTRY.to_owned());
        if entry.is_empty() || entry.contains('\0') {
            self.refuse(
                keys::CUDA_ENTRY,
                &raw.entry,
                "is no name of a kernel (default: batchstring)",
            );
        }
        CudaConfig {
            module: self
                .raw
                .cuda_module()
                .map(|module| self.raw.located(module)),
            entry,
            shape: Shape {
                threads: self.whole(&raw.block, defaults::CUDA_BLOCK),
                shared_bytes: self.whole(&raw.shared_bytes, defaults::CUDA_SHARED_BYTES),
            },
            output_factor: self.count(&raw.output_factor, defaults::CUDA_OUTPUT_FACTOR),
            output_extra_bytes: self.count(&raw.output_extra_bytes, defaults::CUDA_OUTPUT_EXTRA),
            work_us: self.whole(&raw.work_us, defaults::CUDA_WORK_US),
        }
    }

    /// Left to the server, every worker could be replaced by another one at once.
    fn seats(&mut self, executor: &ExecutorConfig, gpus: usize) -> usize {
        let setting = defaults::REMOTE_WORKERS_MAX;
        let given = self.whole_or_auto(&self.raw.remote.workers_max, setting);
        let most = given.unwrap_or_else(|| {
            let twice = u32::try_from(2 * gpus).unwrap_or(setting.max);
            twice.clamp(setting.default, setting.max)
        });
        executor.remote().map_or(gpus, |_| most as usize)
    }

    fn python(&mut self) -> PythonConfig {
        let raw = &self.raw.python;
        let Some(target) = self.raw.python_target() else {
            let problem =
                "is python, but no batch function is named: give it as --python file.py:function";
            self.refuse(keys::EXECUTOR, &self.raw.executor, problem);
            return PythonConfig::default();
        };
        if python::is_nameless(&target.value) {
            let problem = format!(
                "is {:?}, which names no function: write file.py:function or package.module:function",
                target.value
            );
            self.refuse(keys::PYTHON_TARGET, &raw.target, &problem);
        }
        let limit = self.whole(&raw.start_timeout_s, defaults::PYTHON_START_TIMEOUT_S);
        PythonConfig {
            target: self.located_target(target),
            bin: raw
                .bin
                .as_ref()
                .map_or(python::AUTO.into(), |bin| self.located_bin(bin)),
            env: self.variables(),
            start_timeout: Duration::from_secs(limit.into()),
        }
    }

    /// A file named in the configuration file is meant from where that lies.
    fn located_target(&self, target: &Given<String>) -> String {
        let text = &target.value;
        let Some(file) = python::file_of(text) else {
            return text.clone();
        };
        let given = Given {
            value: file.to_owned(),
            origin: target.origin,
        };
        let function = &text[file.as_os_str().len()..];
        format!("{}{function}", self.raw.located(&given).display())
    }

    /// A bare name is looked for as a shell does.
    fn located_bin(&self, bin: &Given<PathBuf>) -> PathBuf {
        if bin.value.components().count() > 1 {
            self.raw.located(bin)
        } else {
            bin.value.clone()
        }
    }

    fn variables(&mut self) -> Vec<Variable> {
        let given = self.raw.python.env.iter().flatten();
        let mut variables = Vec::new();
        for text in given {
            match text.value.parse() {
                Ok(variable) => variables.push(variable),
                Err(error) => self.refusals.push(Refusal {
                    place: self.raw.place(text.origin),
                    problem: format!("{} can't hold {:?}: {error}", keys::PYTHON_ENV, text.value),
                }),
            }
        }
        variables
    }

    fn simulated(&mut self) -> SimulatedConfig {
        let raw = &self.raw.simulated;
        let jitter = value_or(&raw.jitter, defaults::SIM_JITTER);
        if !(0.0..=1.0).contains(&jitter) {
            let problem = format!("is {jitter}; it must be a fraction from 0 to 1 (default: 0)");
            self.refuse(keys::SIM_JITTER, &raw.jitter, &problem);
        }
        SimulatedConfig {
            latency: self.millis(&raw.latency_ms, defaults::SIM_LATENCY_MS),
            jitter: jitter.abs(),
            cold_start: self.millis(&raw.cold_start_ms, defaults::SIM_COLD_START_MS),
            faults: self.faults(),
            faults_admin: value_or(&raw.faults_admin, false),
        }
    }

    fn faults(&mut self) -> Vec<Fault> {
        let given = self.raw.simulated.faults.iter().flatten();
        let mut faults = Vec::new();
        for line in given {
            match line.value.parse() {
                Ok(fault) => faults.push(fault),
                Err(error) => self.refusals.push(Refusal {
                    place: self.raw.place(line.origin),
                    problem: format!("{} can't hold {:?}: {error}", keys::SIM_FAULTS, line.value),
                }),
            }
        }
        faults
    }

    fn batch(&mut self) -> BatchConfig {
        let raw = &self.raw.batch;
        let patience = value_or(&raw.patience, defaults::PATIENCE);
        if patience.is_nan() || patience < 0.0 {
            let problem = format!("is {patience}; it must be 0 or more, or inf (default: 1)");
            self.refuse(keys::PATIENCE, &raw.patience, &problem);
        }
        BatchConfig {
            batch_max: self.count(&raw.batch_max, defaults::BATCH_MAX),
            hold_max: self.millis(&raw.hold_max_ms, defaults::HOLD_MAX_MS),
            // What is left to change here is the sign of -0.
            patience: patience.abs(),
        }
    }

    /// The default gives way to short inputs; one that an operator names is taken or refused.
    fn canary(&self, limits: &HttpLimits) -> String {
        let most = defaults::CANARY.len().min(limits.input_max_bytes);
        value_or(&self.raw.canary, defaults::CANARY[..most].to_owned())
    }

    /// A key file that nobody reads would leave the door open behind an operator's back, so it is taken only where it
    /// is clear what was meant. An empty path is none.
    fn identity(&mut self) -> Identity {
        let raw = self.raw;
        let named = |given: &&Given<PathBuf>| !given.value.as_os_str().is_empty();
        let file = raw.keys_file.as_ref().filter(named);
        match (value_or(&raw.identity, defaults::IDENTITY), file) {
            (IdentityKind::Keys, Some(file)) => return Identity::Keys(raw.located(file)),
            (IdentityKind::Keys, None) => {
                let problem =
                    "is keys, but no file with keys is named: give it with --keys FILE (keys_file)";
                self.refuse(keys::IDENTITY, &raw.identity, problem);
            }
            (IdentityKind::Trusted, Some(_)) if raw.identity.is_none() => {
                let problem = "is given, but every caller's X-Tier would be believed: add --identity keys \
                               (identity = \"keys\"), or trusted if that is meant";
                self.refuse(keys::KEYS_FILE, &raw.keys_file, problem);
            }
            (IdentityKind::Trusted, _) => {}
        }
        Identity::Trusted
    }

    fn admission(&mut self, batch: &BatchConfig, http: &HttpConfig) -> Rules {
        let raw = &self.raw.admission;
        let promised = |tier| value_or(raw.min_share.of(tier), defaults::MIN_SHARE);
        Rules {
            target_latency: self.millis(&raw.target_latency_ms, defaults::TARGET_LATENCY_MS),
            deadline: http.deadline,
            hold_max: batch.hold_max,
            patience: batch.patience,
            yellow: value_or(&raw.yellow_s, defaults::YELLOW_S),
            red: value_or(&raw.red_s, defaults::RED_S),
            limit: value_or(&raw.limit_s, defaults::LIMIT_S),
            min_share: Tier::ALL.map(promised),
        }
    }

    fn http(&mut self, machine: &Machine, room: &Room) -> HttpConfig {
        let raw = self.raw;
        HttpConfig {
            limits: self.limits(machine),
            timeouts: self.timeouts(),
            max_connections: self.max_connections(room),
            model: self.model(),
            default_tier: value_or(&raw.default_tier, defaults::DEFAULT_TIER),
            deadline: self.deadline(),
        }
    }

    fn deadline(&mut self) -> DefaultDeadline {
        let least = Duration::from_millis(defaults::DEADLINE_MS.default.into());
        self.millis_or_auto(&self.raw.deadline_ms, defaults::DEADLINE_MS)
            .map_or(DefaultDeadline::AtLeast(least), DefaultDeadline::Fixed)
    }

    fn limits(&mut self, machine: &Machine) -> HttpLimits {
        let raw = &self.raw.limits;
        let body = self.count(&raw.body_max_bytes, defaults::BODY_MAX_BYTES);
        let memory = memory::request_memory(self.raw, machine, body, &mut self.refusals);
        HttpLimits {
            body_max_bytes: body,
            request_memory_bytes: memory,
            input_max_bytes: self.count(&raw.input_max_bytes, defaults::INPUT_MAX_BYTES),
            output_max_bytes: self.count(&raw.output_max_bytes, defaults::OUTPUT_MAX_BYTES),
            header_max_bytes: self.count(&raw.header_max_bytes, defaults::HEADER_MAX_BYTES),
            header_max_count: self.count(&raw.header_max_count, defaults::HEADER_MAX_COUNT),
            target_max_bytes: self.count(&raw.target_max_bytes, defaults::TARGET_MAX_BYTES),
        }
    }

    fn timeouts(&mut self) -> HttpTimeouts {
        let raw = &self.raw.timeouts;
        HttpTimeouts {
            header: self.millis(&raw.header_ms, defaults::HEADER_TIMEOUT_MS),
            body: self.millis(&raw.body_ms, defaults::BODY_TIMEOUT_MS),
            idle: self.millis(&raw.idle_ms, defaults::IDLE_TIMEOUT_MS),
            write: self.millis(&raw.write_ms, defaults::WRITE_TIMEOUT_MS),
        }
    }

    /// Left to the server, as many as there is room for, up to the default. An operator who names a number counts on
    /// it, so that one is taken or refused, never lowered.
    fn max_connections(&mut self, room: &Room) -> usize {
        let given = &self.raw.max_connections;
        let Room {
            connections: most,
            because,
        } = room;
        if *most == 0 {
            let problem = format!("can't even be 1 ({because}): raise that limit");
            self.refuse(keys::MAX_CONNECTIONS, given, &problem);
            return 0;
        }
        let Auto::Set(wanted) = value_or(given, Auto::Auto) else {
            return defaults::MAX_CONNECTIONS.min(*most);
        };
        match usize::try_from(wanted) {
            Ok(wanted) if (1..=*most).contains(&wanted) => wanted,
            _ => {
                let most = grouped(*most as u64);
                let range = format!("from 1 to {most} here ({because}), or auto");
                let problem = format!("is {wanted}; it must be {range}");
                self.refuse(keys::MAX_CONNECTIONS, given, &problem);
                0
            }
        }
    }

    fn model(&mut self) -> String {
        let given = &self.raw.model;
        let model = value_or(given, defaults::MODEL.to_owned());
        let fits = (1..=defaults::MODEL_NAME_MAX_BYTES).contains(&model.len());
        if !fits || model.chars().any(char::is_control) {
            let most = defaults::MODEL_NAME_MAX_BYTES;
            let rule = format!("1 to {most} bytes and no control characters");
            let problem = format!("is {model:?}; it must have {rule} (default: llm-v1)");
            self.refuse(keys::MODEL, given, &problem);
        }
        model
    }

    fn drain(&mut self) -> DrainConfig {
        let raw = &self.raw.drain;
        DrainConfig {
            delay: self.millis(&raw.delay_ms, defaults::DRAIN_DELAY_MS),
            grace: self.millis(&raw.grace_ms, defaults::DRAIN_GRACE_MS),
        }
    }

    fn batch_timeout(&mut self) -> Option<Duration> {
        self.millis_or_auto(&self.raw.batch_timeout_ms, defaults::BATCH_TIMEOUT_MS)
    }

    /// None if it is left to the server.
    fn millis_or_auto(&mut self, given: &Option<Given<Auto>>, setting: Whole) -> Option<Duration> {
        let millis = self.whole_or_auto(given, setting)?;
        Some(Duration::from_millis(millis.into()))
    }

    /// Likewise.
    fn whole_or_auto(&mut self, given: &Option<Given<Auto>>, setting: Whole) -> Option<u32> {
        let Auto::Set(value) = value_or(given, Auto::Auto) else {
            return None;
        };
        let Whole { key, min, max, .. } = setting;
        match u32::try_from(value) {
            Ok(value) if (min..=max).contains(&value) => Some(value),
            _ => {
                let range = format!("from {min} to {}, or auto", grouped(max.into()));
                let problem = format!("is {value}; it must be {range}");
                self.refuse(key, given, &problem);
                None
            }
        }
    }
}

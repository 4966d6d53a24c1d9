//! From [`RawConfig`] to [`Config`], without reading anything: defaults, ranges and derived limits.
//!
//! Two passes. The first, here and in the modules below, takes each setting by itself. Only if all of them are sound
//! does the second (`contradictions.rs`) compare them with each other, so that one slip is reported once. Within a pass
//! everything that is wrong is reported.

mod executor;
mod http;

use std::time::Duration;

use super::contradictions::{contradictions, warnings};
use super::cores::{self, CoreChoice};
use super::defaults::{self, Whole};
use super::keys::{self, Key};
use super::raw::{Given, RawConfig, origin, value_or};
use super::room::Room;
use super::units::grouped;
use super::values::Auto;
use super::{
    BatchConfig, Config, ConfigError, DrainConfig, HttpConfig, HttpLimits, Machine, Refusal,
    SecretConfig,
};
use crate::admission::Rules;
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

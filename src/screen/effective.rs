//! The output of `funicular check`: every setting as it holds, in the form of a file that `--config` takes, and every
//! limit that follows from them as comments.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use crate::admission::DefaultDeadline;
use crate::config::keys::{self, Key};
use crate::config::units::{bytes, grouped, span};
use crate::config::{Config, ExecutorConfig, Identity, Role, cores, defaults};
use crate::http::budget::FREE_BYTES;
use crate::tier::Tier;

/// The effective configuration as TOML, with the derived limits above it as comments.
///
/// Read back on the same machine it gives the same configuration.
pub fn effective(config: &Config) -> String {
    let whose = match config.role {
        Role::Server => "",
        Role::Worker => " of a worker (for funicular worker --config)",
    };
    let mut text = format!(
        "# funicular {}: the effective configuration{whose}\n#\n",
        super::VERSION
    );
    for (name, value) in derived(config) {
        line(&mut text, &format!("# {name:<24} {value}"));
    }
    text.push('\n');
    let mut section = "";
    for (key, value) in settings(config) {
        if key.section != section {
            section = key.section;
            line(&mut text, &format!("\n[{section}]"));
        }
        if key == keys::GPUS && config.executor.remote().is_some() {
            // A number would have to be changed whenever a worker comes or goes.
            line(&mut text, "# gpus            = each worker is one");
            continue;
        }
        if config.auto.contains(&key) {
            // What follows from this machine does not belong into a file that may be taken to another.
            let auto = quoted("auto");
            line(
                &mut text,
                &format!("{:<18} = {auto}  # here: {value}", key.name),
            );
            continue;
        }
        line(&mut text, &format!("{:<18} = {value}", key.name));
    }
    text
}

fn line(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("a String takes every text");
}

/// Limits that nobody sets but that follow from the settings.
fn derived(config: &Config) -> Vec<(&'static str, String)> {
    let limits = &config.http.limits;
    let waiting = Tier::COUNT * config.queue_bound;
    let product = |count: usize, size: usize| bytes((count as u64).saturating_mul(size as u64));
    let mut all = vec![
        ("capacity", super::capacity(config)),
        ("acceptor cores", config.cores.len().to_string()),
        ("open files needed", grouped(config.open_files_needed())),
        ("memory maps needed", grouped(config.memory_maps_needed())),
        ("tickets waiting, at most", grouped(waiting as u64)),
        (
            "request memory, at most",
            bytes((limits.request_memory_bytes + config.http.max_connections * FREE_BYTES) as u64),
        ),
        (
            "input of one batch",
            format!(
                "{} at most",
                product(config.batch.batch_max, limits.input_max_bytes)
            ),
        ),
        (
            "output of one batch",
            format!(
                "{} at most",
                product(config.batch.batch_max, limits.output_max_bytes)
            ),
        ),
        (
            "head of one request",
            format!("{} at most", bytes(limits.head_max_bytes() as u64)),
        ),
        (
            "shutdown",
            format!("{} at most", span(config.drain.delay + config.drain.grace)),
        ),
    ];
    let cuda = config.executor.cuda();
    if let Some(sizes) = cuda.and_then(|cuda| cuda.sizes(config.batch.batch_max, limits)) {
        let text = format!("{}, and as much pinned here", bytes(sizes.total() as u64));
        all.push(("memory of each GPU", text));
    }
    all
}

/// Every setting with its value as TOML, in the order of [`keys::ALL`].
fn settings(config: &Config) -> Vec<(Key, String)> {
    let (http, drain, batch) = (&config.http, &config.drain, &config.batch);
    let rules = &config.admission;
    let admin = config
        .admin
        .map_or("off".to_owned(), |admin| admin.to_string());
    let limits = &http.limits;
    let mut all = vec![
        (keys::LISTEN, quoted(&config.listen.to_string())),
        (keys::ADMIN, quoted(&admin)),
        (keys::CORES, quoted(&cores::list(&config.cores))),
        (keys::MAX_CONNECTIONS, http.max_connections.to_string()),
        (keys::MODEL, quoted(&http.model)),
        (keys::DEFAULT_TIER, quoted(http.default_tier.name())),
        (keys::IDENTITY, quoted(config.identity.name())),
        (keys::KEYS_FILE, quoted(&path(keys_file(&config.identity)))),
        (keys::DEADLINE_MS, deadline(http.deadline)),
        (keys::QUEUE_BOUND, config.queue_bound.to_string()),
        (keys::GPUS, config.gpus.to_string()),
        (keys::EXECUTOR, quoted(config.executor.name())),
        (
            keys::BATCH_TIMEOUT_MS,
            config.batch_timeout.map_or(quoted("auto"), millis),
        ),
        (keys::CANARY, quoted(&config.canary)),
        (
            keys::LOG_LEVEL,
            quoted(&config.log_level.as_str().to_ascii_lowercase()),
        ),
        (keys::BATCH_MAX, batch.batch_max.to_string()),
        (keys::HOLD_MAX_MS, millis(batch.hold_max)),
        (keys::PATIENCE, number(batch.patience)),
        (keys::TARGET_LATENCY_MS, millis(rules.target_latency)),
        (keys::YELLOW_S, number(rules.yellow)),
        (keys::RED_S, number(rules.red)),
        (keys::LIMIT_S, number(rules.limit)),
        (keys::MIN_SHARE, shares(&rules.min_share)),
    ];
    all.extend(executor_settings(config));
    all.extend(vec![
        (keys::BODY_MAX_BYTES, limits.body_max_bytes.to_string()),
        (keys::INPUT_MAX_BYTES, limits.input_max_bytes.to_string()),
        (keys::OUTPUT_MAX_BYTES, limits.output_max_bytes.to_string()),
        (keys::HEADER_MAX_BYTES, limits.header_max_bytes.to_string()),
        (keys::HEADER_MAX_COUNT, limits.header_max_count.to_string()),
        (keys::TARGET_MAX_BYTES, limits.target_max_bytes.to_string()),
        (
            keys::REQUEST_MEMORY_MIB,
            (limits.request_memory_bytes >> 20).to_string(),
        ),
        (keys::HEADER_TIMEOUT_MS, millis(http.timeouts.header)),
        (keys::BODY_TIMEOUT_MS, millis(http.timeouts.body)),
        (keys::IDLE_TIMEOUT_MS, millis(http.timeouts.idle)),
        (keys::WRITE_TIMEOUT_MS, millis(http.timeouts.write)),
        (keys::DRAIN_DELAY_MS, millis(drain.delay)),
        (keys::DRAIN_GRACE_MS, millis(drain.grace)),
    ]);
    all
}

/// Those of the executors, from [`keys::PYTHON_TARGET`] on.
fn executor_settings(config: &Config) -> Vec<(Key, String)> {
    // Of an executor that is not chosen the defaults hold.
    let simulated = &config.executor.simulated().cloned().unwrap_or_default();
    let python = &config.executor.python().cloned().unwrap_or_default();
    let cuda = &config.executor.cuda().cloned().unwrap_or_default();
    let remote = &config.executor.remote().cloned().unwrap_or_default();
    vec![
        (keys::PYTHON_TARGET, quoted(&python.target)),
        (keys::PYTHON_BIN, quoted(&python.bin.display().to_string())),
        (keys::PYTHON_ENV, list(&python.env)),
        (
            keys::PYTHON_START_TIMEOUT_S,
            python.start_timeout.as_secs().to_string(),
        ),
        (keys::CUDA_MODULE, quoted(&path(cuda.module.as_deref()))),
        (keys::CUDA_ENTRY, quoted(&cuda.entry)),
        (keys::CUDA_BLOCK, cuda.shape.threads.to_string()),
        (keys::CUDA_SHARED_BYTES, cuda.shape.shared_bytes.to_string()),
        (keys::CUDA_OUTPUT_FACTOR, cuda.output_factor.to_string()),
        (keys::CUDA_OUTPUT_EXTRA, cuda.output_extra_bytes.to_string()),
        (keys::CUDA_WORK_US, cuda.work_us.to_string()),
        (keys::SIM_LATENCY_MS, millis(simulated.latency)),
        (keys::SIM_JITTER, number(simulated.jitter)),
        (keys::SIM_COLD_START_MS, millis(simulated.cold_start)),
        (keys::SIM_FAULTS, list(&simulated.faults)),
        (keys::SIM_FAULTS_ADMIN, simulated.faults_admin.to_string()),
        (keys::REMOTE_WORKERS, list(&remote.workers)),
        (
            keys::REMOTE_WORKERS_FILE,
            quoted(&path(remote.file.as_deref())),
        ),
        (keys::REMOTE_WORKERS_MAX, most_workers(config).to_string()),
        (
            keys::REMOTE_SECRET_FILE,
            quoted(&path(config.secret.file.as_deref())),
        ),
    ]
}

/// The settings that differ and can't change while the server runs, in the order of [`keys::ALL`].
pub fn changed(old: &Config, new: &Config) -> Vec<Key> {
    let can_change = |key: &Key| {
        let workers = [keys::REMOTE_WORKERS, keys::REMOTE_WORKERS_FILE];
        let of_workers = *key == keys::GPUS && new.executor.remote().is_some();
        workers.contains(key) || of_workers || *key == keys::KEYS_FILE
    };
    // What is left to the server may follow from something that can.
    let is_left = |key: &Key| old.auto.contains(key) && new.auto.contains(key);
    let pairs = settings(old).into_iter().zip(settings(new));
    let differ = pairs
        .filter(|(old, new)| old.1 != new.1)
        .map(|(_, (key, _))| key);
    let mut changed: Vec<Key> = differ
        .filter(|key| !can_change(key) && !is_left(key))
        .collect();
    if old.secret.secret != new.secret.secret && !changed.contains(&keys::REMOTE_SECRET_FILE) {
        changed.push(keys::REMOTE_SECRET_FILE);
    }
    changed
}

fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// An empty path stands for none.
fn path(path: Option<&Path>) -> String {
    path.map_or_else(String::new, |path| path.display().to_string())
}

fn keys_file(identity: &Identity) -> Option<&Path> {
    match identity {
        Identity::Trusted => None,
        Identity::Keys(path) => Some(path),
    }
}

/// Where there are none, as many as there could be.
fn most_workers(config: &Config) -> usize {
    match config.executor {
        ExecutorConfig::Remote(_) => config.seats,
        _ => defaults::REMOTE_WORKERS_MAX.default as usize,
    }
}

fn shares(min_share: &[f64; Tier::COUNT]) -> String {
    let parts = Tier::ALL.map(|tier| format!("{tier} = {}", number(min_share[tier.index()])));
    format!("{{ {} }}", parts.join(", "))
}

fn list(items: &[impl ToString]) -> String {
    let lines: Vec<String> = items.iter().map(|item| quoted(&item.to_string())).collect();
    format!("[{}]", lines.join(", "))
}

fn deadline(deadline: DefaultDeadline) -> String {
    match deadline {
        DefaultDeadline::Fixed(deadline) => millis(deadline),
        DefaultDeadline::AtLeast(_) => quoted("auto"),
    }
}

fn millis(time: Duration) -> String {
    time.as_millis().to_string()
}

/// Whole numbers without a fraction, as people write them.
fn number(number: f64) -> String {
    if number.is_infinite() {
        return quoted("inf");
    }
    if number.fract() == 0.0 && number < 1e15 {
        return format!("{number:.0}");
    }
    toml::Value::from(number).to_string()
}

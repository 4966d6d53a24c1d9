//! Settings compared with each other: what can't hold together is refused, what is probably not meant is warned of.

use std::net::SocketAddr;
use std::time::Duration;

use super::cuda;
use super::raw::{Origin, RawConfig, origin, value_or};
use super::remote::{self, Role};
use super::room::Room;
use super::units::{bytes, grouped, span};
use super::values::Auto;
use super::{Config, ExecutorConfig, Identity, Refusal, SimulatedConfig, defaults};
use crate::admission::RulesError;
use crate::tier::Tier;

/// Everything that can't hold together. Each setting of `config` is sound by itself.
pub fn contradictions(raw: &RawConfig, config: &Config) -> Vec<Refusal> {
    let all = [
        queue_under_one_batch(raw, config),
        hold_beyond_deadline(raw, config),
        input_beyond_body(raw, config),
        ports_collide(raw, config),
        rules_contradict(raw, config),
        canary_beyond_input(raw, config),
        remote::contradiction(raw, config).and_then(|(at, problem)| refusal(raw, &at, problem)),
        cuda::contradiction(raw, config).and_then(|(at, problem)| refusal(raw, &at, problem)),
    ];
    let faults = faults_beyond_gpus(raw, config);
    all.into_iter().flatten().chain(faults).collect()
}

/// A refusal at the places of all those settings that somebody gave.
fn refusal(raw: &RawConfig, at: &[Origin], problem: String) -> Option<Refusal> {
    let given = at.iter().filter(|origin| **origin != Origin::Default);
    let places: Vec<String> = given.map(|origin| raw.place(*origin)).collect();
    Some(Refusal {
        place: places.join(" and "),
        problem,
    })
}

fn queue_under_one_batch(raw: &RawConfig, config: &Config) -> Option<Refusal> {
    let (bound, batch_max) = (config.queue_bound, config.batch.batch_max);
    if bound >= batch_max {
        return None;
    }
    let problem = format!(
        "queue_bound ({bound}) is under one batch: make it batch.batch_max ({batch_max}) or more"
    );
    let at = [origin(&raw.queue_bound), origin(&raw.batch.batch_max)];
    refusal(raw, &at, problem)
}

fn hold_beyond_deadline(raw: &RawConfig, config: &Config) -> Option<Refusal> {
    let (hold, deadline) = (config.batch.hold_max, config.deadline());
    if hold < deadline {
        return None;
    }
    let problem = format!(
        "batch.hold_max_ms ({}) must be shorter than deadline_ms ({}), or tickets die while they \
         wait for company: lower the one or raise the other",
        span(hold),
        span(deadline)
    );
    let at = [origin(&raw.batch.hold_max_ms), origin(&raw.deadline_ms)];
    refusal(raw, &at, problem)
}

fn input_beyond_body(raw: &RawConfig, config: &Config) -> Option<Refusal> {
    let limits = &config.http.limits;
    if limits.input_max_bytes <= limits.body_max_bytes {
        return None;
    }
    let (input, body) = (
        bytes(limits.input_max_bytes as u64),
        bytes(limits.body_max_bytes as u64),
    );
    let at = [
        origin(&raw.limits.input_max_bytes),
        origin(&raw.limits.body_max_bytes),
    ];
    let problem = format!(
        "limits.input_max_bytes ({input}) is more than limits.body_max_bytes ({body}) lets in: \
         lower the one or raise the other"
    );
    refusal(raw, &at, problem)
}

fn ports_collide(raw: &RawConfig, config: &Config) -> Option<Refusal> {
    let listen = config.listen;
    let admin = config.admin.filter(|admin| collide(listen, *admin))?;
    let problem = format!(
        "listen ({listen}) and admin ({admin}) take the same port: change one, or switch admin off"
    );
    refusal(raw, &[origin(&raw.listen), origin(&raw.admin)], problem)
}

fn rules_contradict(raw: &RawConfig, config: &Config) -> Option<Refusal> {
    let error = config.admission.validate().err()?;
    let admission = &raw.admission;
    let at = match error {
        RulesError::Thresholds { .. } => [
            origin(&admission.yellow_s),
            origin(&admission.red_s),
            origin(&admission.limit_s),
        ],
        RulesError::MinShare => Tier::ALL.map(|tier| origin(admission.min_share.of(tier))),
        RulesError::Zero(_) => [
            origin(&admission.target_latency_ms),
            origin(&raw.deadline_ms),
            Origin::Default,
        ],
    };
    refusal(raw, &at, format!("admission: {error}"))
}

fn canary_beyond_input(raw: &RawConfig, config: &Config) -> Option<Refusal> {
    let (length, most) = (config.canary.len(), config.http.limits.input_max_bytes);
    if length <= most {
        return None;
    }
    let (length, most) = (bytes(length as u64), bytes(most as u64));
    let problem = format!(
        "canary ({length}) is longer than limits.input_max_bytes ({most}) lets inputs be: shorten \
         the one or raise the other"
    );
    let at = [origin(&raw.canary), origin(&raw.limits.input_max_bytes)];
    refusal(raw, &at, problem)
}

fn faults_beyond_gpus(raw: &RawConfig, config: &Config) -> Vec<Refusal> {
    let Some(simulated) = config.executor.simulated() else {
        return Vec::new();
    };
    let given = raw.simulated.faults.iter().flatten();
    let beyond = given.zip(&simulated.faults).filter_map(|(given, fault)| {
        let gpu = fault.gpu().filter(|gpu| *gpu >= config.gpus)?;
        let (gpus, last) = (config.gpus, config.gpus - 1);
        let problem = format!(
            "simulated.faults: {fault} names gpu {gpu}, but gpus is {gpus}: the last one is {last}"
        );
        refusal(raw, &[given.origin, origin(&raw.gpus)], problem)
    });
    beyond.collect()
}

/// A wildcard address takes its port on every address. Told apart here, since acceptor cores share a port among
/// themselves and the kernel would let the two be mixed up in silence.
fn collide(a: SocketAddr, b: SocketAddr) -> bool {
    let same_ip = a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified();
    same_ip && a.port() == b.port() && a.port() != 0
}

/// What is legal but probably not meant.
pub fn warnings(raw: &RawConfig, config: &Config, room: &Room) -> Vec<String> {
    let believed = config.identity == Identity::Trusted && config.role == Role::Server;
    let exposed = believed && !config.listen.ip().is_loopback();
    let admin_exposed = config.admin.filter(|admin| !admin.ip().is_loopback());
    let left_to_us = value_or(&raw.max_connections, Auto::Auto) == Auto::Auto;
    // A few connections fewer are nobody's concern.
    let usual = defaults::MAX_CONNECTIONS;
    let lowered = left_to_us && 10 * config.http.max_connections < 9 * usual;
    let all = [
        exposed.then(|| {
            format!(
                "listening on {}, beyond this machine, and every caller's X-Tier is believed: \
                 put a gateway in front that sets it",
                config.listen
            )
        }),
        admin_exposed.map(|admin| {
            format!(
                "the admin port is open beyond this machine on {admin} and asks nobody who they are: keep it on a \
                 private address (--admin)"
            )
        }),
        lowered.then(|| {
            let connections = grouped(config.http.max_connections as u64);
            let usual = grouped(usual as u64);
            let because = &room.because;
            format!(
                "only {connections} connections instead of {usual} ({because}): raise that limit"
            )
        }),
        keys_unread(raw, config),
        python_unused(raw, config),
        variable_beyond_gpus(config),
        cuda::warning(raw, config),
        remote::warning(raw, config),
        batch_timeout_too_short(config),
        grace_too_short(config),
    ];
    let mut all: Vec<String> = all.into_iter().flatten().collect();
    all.extend(out_of_reach(config));
    all.extend(scripted(config));
    all
}

/// Only where the executor's settings say how long a batch takes.
fn out_of_reach(config: &Config) -> Vec<String> {
    match config.executor.batch_time() {
        _ if config.role == Role::Worker => Vec::new(),
        Duration::ZERO => Vec::new(),
        batch_time => config.admission.warnings(batch_time),
    }
}

fn batch_timeout_too_short(config: &Config) -> Option<String> {
    let batch_time = config.executor.batch_time();
    let timeout = config
        .batch_timeout
        .filter(|timeout| *timeout <= batch_time)?;
    let (timeout, batch_time) = (span(timeout), span(batch_time));
    Some(format!(
        "batch_timeout_ms ({timeout}) is no longer than a batch ({batch_time}): every batch will fail"
    ))
}

fn grace_too_short(config: &Config) -> Option<String> {
    let (grace, deadline) = (config.drain.grace, config.deadline());
    (grace < deadline).then(|| {
        let (grace, deadline) = (span(grace), span(deadline));
        format!(
            "drain.grace_ms ({grace}) is shorter than the deadline ({deadline}): accepted \
             requests may be cut off"
        )
    })
}

/// Whoever says `trusted` in so many words gets it, even with a key file beside it.
fn keys_unread(raw: &RawConfig, config: &Config) -> Option<String> {
    let file = raw.keys_file.as_ref().map(|file| &file.value);
    let file = file.filter(|file| !file.as_os_str().is_empty())?;
    (config.identity == Identity::Trusted).then(|| {
        format!(
            "the key file {} is not read, since identity is trusted",
            file.display()
        )
    })
}

fn python_unused(raw: &RawConfig, config: &Config) -> Option<String> {
    let target = &raw.python_target()?.value;
    let executor = config.executor.name();
    config.executor.python().is_none().then(|| {
        format!("the batch function {target} does not run, since the executor is {executor}")
    })
}

fn variable_beyond_gpus(config: &Config) -> Option<String> {
    let variables = &config.executor.python()?.env;
    let beyond = |gpu: Option<usize>| gpu.is_some_and(|gpu| gpu >= config.gpus);
    let variable = variables.iter().find(|variable| beyond(variable.gpu))?;
    let last = config.gpus - 1;
    Some(format!(
        "python.env: {variable} is for a GPU that there is not: the last one is {last}"
    ))
}

/// A server that is meant to fail must not be mistaken for one that isn't.
fn scripted(config: &Config) -> Vec<String> {
    let ExecutorConfig::Simulated(SimulatedConfig {
        faults,
        faults_admin,
        ..
    }) = &config.executor
    else {
        return Vec::new();
    };
    let mut warnings = Vec::new();
    if !faults.is_empty() {
        let lines: Vec<String> = faults.iter().map(ToString::to_string).collect();
        warnings.push(format!("GPUs will fail as scripted: {}", lines.join("; ")));
    }
    if *faults_admin {
        warnings.push(
            match config.admin {
                Some(_) => {
                    "whoever reaches the admin port can make GPUs fail (GET /faults?kind=...)"
                }
                None => "simulated.faults_admin has no effect, since the admin port is off",
            }
            .to_owned(),
        );
    }
    warnings
}

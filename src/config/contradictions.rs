//! Settings compared with each other: what can't hold together is refused, what is probably not meant is warned of.

use std::net::SocketAddr;

use super::raw::{Origin, RawConfig, origin, value_or};
use super::room::Room;
use super::units::{bytes, grouped, span};
use super::values::Auto;
use super::{Config, Refusal, defaults};

/// Everything that can't hold together. Each setting of `config` is sound by itself.
pub fn contradictions(raw: &RawConfig, config: &Config) -> Vec<Refusal> {
    let all = [
        queue_under_one_batch(raw, config),
        hold_beyond_deadline(raw, config),
        input_beyond_body(raw, config),
        ports_collide(raw, config),
    ];
    all.into_iter().flatten().collect()
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
    let (hold, deadline) = (config.batch.hold_max, config.http.deadline);
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

/// A wildcard address takes its port on every address. Told apart here, since acceptor cores share a port among
/// themselves and the kernel would let the two be mixed up in silence.
fn collide(a: SocketAddr, b: SocketAddr) -> bool {
    let same_ip = a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified();
    same_ip && a.port() == b.port() && a.port() != 0
}

/// What is legal but probably not meant.
pub fn warnings(raw: &RawConfig, config: &Config, room: &Room) -> Vec<String> {
    let exposed = !config.listen.ip().is_loopback();
    let admin_exposed = config.admin.filter(|admin| !admin.ip().is_loopback());
    let left_to_us = value_or(&raw.max_connections, Auto::Auto) == Auto::Auto;
    let lowered = left_to_us && config.http.max_connections < defaults::MAX_CONNECTIONS;
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
                "the admin port is open beyond this machine on {admin} and asks nobody who they are"
            )
        }),
        lowered.then(|| {
            let connections = grouped(config.http.max_connections as u64);
            let usual = grouped(defaults::MAX_CONNECTIONS as u64);
            let because = &room.because;
            format!(
                "only {connections} connections instead of {usual} ({because}): raise that limit"
            )
        }),
        deadline_too_short(config),
        batch_timeout_too_short(config),
        grace_too_short(config),
    ];
    all.into_iter().flatten().collect()
}

fn deadline_too_short(config: &Config) -> Option<String> {
    let (deadline, hold) = (config.http.deadline, config.batch.hold_max);
    let batch_time = config.executor.batch_time();
    (deadline < batch_time + hold).then(|| {
        format!(
            "the deadline ({}) is shorter than the longest hold and a batch ({} + {}): requests \
             will be refused or time out",
            span(deadline),
            span(hold),
            span(batch_time)
        )
    })
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
    let (grace, deadline) = (config.drain.grace, config.http.deadline);
    (grace < deadline).then(|| {
        let (grace, deadline) = (span(grace), span(deadline));
        format!(
            "drain.grace_ms ({grace}) is shorter than the deadline ({deadline}): accepted \
             requests may be cut off"
        )
    })
}

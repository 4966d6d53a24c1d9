//! What operators read in the terminal: the start-up screen and the output of `funicular check`.
//!
//! Pure functions from a [`Config`] (and the addresses that were bound) to text; `main` prints it. Scripts read two
//! phrases of the start-up screen, `listening on http://ADDR` and `admin on http://ADDR`, each ending its line, and the
//! output of `check` is a file that `--config` takes.

mod devices;
mod effective;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::admission::DefaultDeadline;
use crate::admission::Rules;
use crate::config::units::{bytes, counted, grouped, span};
use crate::config::{
    BatchConfig, Config, ExecutorConfig, Identity, PythonConfig, Role, SECRET_VARIABLE,
    SimulatedConfig, cores,
};
use crate::tier::Tier;

pub use devices::{devices, devices_json};
pub use effective::{changed, effective};

/// This build's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The screen shown once at start, when the ports are bound: `listen` and `admin` are the addresses that were really
/// taken.
pub fn start_up(config: &Config, listen: SocketAddr, admin: Option<SocketAddr>) -> String {
    let mut screen = format!("funicular {VERSION}\n\n  listening on http://{listen}\n");
    match admin {
        Some(admin) => screen.push_str(&format!("  admin on http://{admin}\n\n")),
        None => screen.push_str("  admin off\n\n"),
    }
    let facts = match config.role {
        Role::Server => facts(config),
        Role::Worker => worker_facts(config),
    };
    for (name, text) in facts {
        screen.push_str(&format!("  {name:<12} {text}\n"));
    }
    if !config.warnings.is_empty() {
        screen.push('\n');
    }
    for warning in &config.warnings {
        screen.push_str(&format!("  warning: {warning}\n"));
    }
    let line = match config.role {
        Role::Server => curl(listen, &config.identity),
        Role::Worker => worker_curl(config, listen),
    };
    screen.push_str(&format!("\nTry it:\n  {line}\n"));
    screen
}

/// What concerns a worker.
fn worker_facts(config: &Config) -> Vec<(&'static str, String)> {
    let secret = match &config.secret.secret {
        Some(_) => "servers have to show it",
        None => "none: whoever reaches this port may send batches",
    };
    let batches = format!(
        "of up to {} requests, from servers; one runs, one more may wait",
        grouped(config.batch.batch_max as u64)
    );
    let of_a_server = facts(config).into_iter();
    let shared = of_a_server
        .filter(|(name, _)| matches!(*name, "connections" | "requests" | "timeouts" | "cores"));
    let mut all = vec![
        ("worker for", executor(&config.executor)),
        ("batches", batches),
        ("secret", secret.to_owned()),
    ];
    all.extend(shared);
    all
}

fn worker_curl(config: &Config, listen: SocketAddr) -> String {
    let secret = match (&config.secret.secret, &config.secret.file) {
        (None, _) => String::new(),
        (Some(_), None) => format!(" -H \"Authorization: Bearer ${SECRET_VARIABLE}\""),
        (Some(_), Some(file)) => {
            let file = std::path::absolute(file).unwrap_or_else(|_| file.clone());
            let file = file.display().to_string().replace('\'', r"'\''");
            format!(" -H \"Authorization: Bearer $(cat '{file}')\"")
        }
    };
    let url = url(listen, crate::gpu::remote::BATCH_PATH);
    let body =
        r#"{"batch_id": "try-1", "requests": [{"request_id": "1", "input": "Hello, Funicular!"}]}"#;
    format!("curl {url} -H 'Content-Type: application/json'{secret} -d '{body}'")
}

fn facts(config: &Config) -> Vec<(&'static str, String)> {
    let (http, limits, timeouts) = (&config.http, &config.http.limits, &config.http.timeouts);
    vec![
        ("executor", executor(&config.executor)),
        ("GPUs", config.gpus.to_string()),
        ("batches", batches(&config.batch)),
        ("capacity", capacity(config)),
        ("deadline", deadline(http.deadline)),
        ("admission", admission(&config.admission)),
        (
            "queues",
            format!(
                "{} for each tier",
                counted(config.queue_bound as u64, "ticket")
            ),
        ),
        (
            "connections",
            format!(
                "{} at most, their requests {}",
                grouped(http.max_connections as u64),
                bytes(limits.request_memory_bytes as u64)
            ),
        ),
        (
            "requests",
            format!(
                "body {}, input {}, output {}; {} headers in {}, target {}",
                bytes(limits.body_max_bytes as u64),
                bytes(limits.input_max_bytes as u64),
                bytes(limits.output_max_bytes as u64),
                limits.header_max_count,
                bytes(limits.header_max_bytes as u64),
                bytes(limits.target_max_bytes as u64),
            ),
        ),
        (
            "timeouts",
            format!(
                "header {}, body {}, idle {}, write {}",
                span(timeouts.header),
                span(timeouts.body),
                span(timeouts.idle),
                span(timeouts.write),
            ),
        ),
        ("model", http.model.clone()),
        ("identity", identity(config)),
        (
            "cores",
            format!(
                "{} (pinned: {})",
                config.cores.len(),
                cores::list(&config.cores)
            ),
        ),
    ]
}

fn executor(executor: &ExecutorConfig) -> String {
    let text = match executor {
        ExecutorConfig::Simulated(simulated) => simulated_batches(simulated),
        ExecutorConfig::Python(PythonConfig { target, bin, .. }) => {
            format!("{target}, run by {}, a process for each GPU", bin.display())
        }
        ExecutorConfig::Cuda(cuda) => format!(
            "the kernel {}, {} threads for each input",
            cuda.kernel(),
            cuda.shape.threads
        ),
        ExecutorConfig::Remote(remote) if remote.count() == 0 => "no worker yet".to_owned(),
        ExecutorConfig::Remote(remote) => {
            let workers: Vec<String> = remote.all().map(ToString::to_string).collect();
            workers.join(", ")
        }
    };
    format!("{}: {text}", executor.name())
}

fn simulated_batches(simulated: &SimulatedConfig) -> String {
    let SimulatedConfig {
        latency,
        jitter,
        cold_start,
        ..
    } = simulated;
    let mut text = format!("{} a batch", span(*latency));
    if *jitter > 0.0 {
        text.push_str(&format!(", give or take {:.0} %", jitter * 100.0));
    }
    if !cold_start.is_zero() {
        text.push_str(&format!(", {} to start", span(*cold_start)));
    }
    text
}

fn deadline(deadline: DefaultDeadline) -> String {
    match deadline {
        DefaultDeadline::Fixed(deadline) => {
            format!("{}, less where the caller asks for less", span(deadline))
        }
        DefaultDeadline::AtLeast(least) => format!(
            "{} or four batches, whichever is longer; less where the caller asks for less",
            span(least)
        ),
    }
}

fn batches(batch: &BatchConfig) -> String {
    let BatchConfig {
        batch_max,
        hold_max,
        patience,
    } = batch;
    let rule = match *patience {
        0.0 => "launched at once (patience 0)".to_owned(),
        f64::INFINITY => format!("launched full or after {} (patience inf)", span(*hold_max)),
        patience => format!(
            "paced (patience {patience}), held {} at most while a GPU is free",
            span(*hold_max)
        ),
    };
    format!("up to {}, {rule}", counted(*batch_max as u64, "ticket"))
}

fn capacity(config: &Config) -> String {
    let Some(capacity) = config.capacity() else {
        return "unknown until the first batch is measured".to_owned();
    };
    let batch_time = span(config.executor.batch_time());
    format!(
        "{} requests/s ({} x {} / {batch_time})",
        grouped(capacity.round() as u64),
        config.gpus,
        config.batch.batch_max
    )
}

fn admission(rules: &Rules) -> String {
    let mut text = format!(
        "target latency {}; backlog: yellow from {} s, red from {} s, nobody from {} s",
        span(rules.target_latency),
        rules.yellow,
        rules.red,
        rules.limit
    );
    for tier in Tier::ALL {
        let part = rules.min_share[tier.index()];
        if part > 0.0 {
            // To a tenth of a percent.
            let percent = (part * 1e3).round() / 10.0;
            text.push_str(&format!("; {tier} gets {percent} % of each batch"));
        }
    }
    text
}

fn identity(config: &Config) -> String {
    match &config.identity {
        Identity::Trusted => format!(
            "trusted: X-Tier is believed, requests without it are {}",
            config.http.default_tier
        ),
        Identity::Keys(path) => format!("the keys of {}; X-Tier is ignored", path.display()),
    }
}

/// A curl line that works when pasted into any shell on this machine, with a key for `KEY` where callers need one.
pub fn curl(listen: SocketAddr, identity: &Identity) -> String {
    let url = url(listen, "/v1/inference");
    let key = match identity {
        Identity::Trusted => "",
        Identity::Keys(_) => " -H 'Authorization: Bearer KEY'",
    };
    format!(
        "curl {url} -H 'Content-Type: application/json'{key} -d '{{\"input\": \"Hello, Funicular!\"}}'"
    )
}

/// The URL of `path` as any shell takes it: zsh takes the brackets of an IPv6 address for a pattern.
fn url(listen: SocketAddr, path: &str) -> String {
    let address = reachable(listen);
    if address.is_ipv6() {
        format!("'http://{address}{path}'")
    } else {
        format!("http://{address}{path}")
    }
}

/// Where this machine reaches a server that listens on `bound`: a wildcard is no address to connect to.
pub fn reachable(bound: SocketAddr) -> SocketAddr {
    let ip = match bound.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, bound.port())
}

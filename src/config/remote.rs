//! GPUs on other machines: where a server's workers are, what a worker does by default, and the secret they share.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use super::raw::{Given, Origin, RawConfig, origin};
use super::values::AdminAddress;
use super::{Config, ConfigError, ExecutorConfig, Refusal, defaults, keys};
use crate::gpu::remote::Target;
use crate::keys::Secret;

/// The variable that holds the secret where no file is named.
pub const SECRET_VARIABLE: &str = "FUNICULAR_WORKER_SECRET";

/// A worker beside a server on the same machine takes other ports by default.
const WORKER_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8081);
const WORKER_ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9091);

/// A hundred inputs of 64 KiB, every byte escaped, are 38 MiB of JSON.
const WORKER_BODY_MAX_BYTES: i64 = 64 << 20;

/// What the process is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// It takes single inputs from callers and makes batches of them.
    #[default]
    Server,
    /// It takes batches from servers and has one GPU.
    Worker,
}

/// The remote executor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteConfig {
    /// The workers, one for each GPU, at least one.
    pub workers: Vec<Target>,
}

/// The settings and environment that say what the secret is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecretConfig {
    /// The file that holds it; a path that this process can open.
    pub file: Option<PathBuf>,
    /// The secret, once it was read.
    pub secret: Option<Secret>,
}

impl RawConfig {
    /// The settings of a process of this role: what a worker does by default instead of what a server does.
    pub(super) fn for_role(mut self, role: Role) -> RawConfig {
        self.role = role;
        if role == Role::Worker {
            default(&mut self.listen, WORKER_LISTEN);
            default(&mut self.admin, AdminAddress(Some(WORKER_ADMIN)));
            default(&mut self.gpus, 1);
            default(&mut self.limits.body_max_bytes, WORKER_BODY_MAX_BYTES);
        }
        self
    }

    /// The workers that are named.
    pub(super) fn workers(&self) -> &[Given<String>] {
        self.remote.workers.as_deref().unwrap_or_default()
    }
}

fn default<T>(given: &mut Option<Given<T>>, value: T) {
    given.get_or_insert(Given {
        value,
        origin: Origin::Default,
    });
}

impl Config {
    /// Reads the secret, from its file or else from the variable [`SECRET_VARIABLE`] whose value is `variable`.
    pub(super) fn with_secret(
        mut self,
        raw: &RawConfig,
        variable: Option<String>,
    ) -> Result<Config, ConfigError> {
        let variable = variable.filter(|text| !text.is_empty());
        let read = match (&self.secret.file, variable) {
            (Some(file), _) => Secret::read(file)
                .map_err(|problem| (raw.place(origin(&raw.remote.secret_file)), problem)),
            (None, Some(text)) => Secret::new(&text)
                .map_err(|problem| (SECRET_VARIABLE.to_owned(), problem.to_owned())),
            (None, None) => return Ok(self),
        };
        let refused = |(place, problem)| ConfigError::Refused(vec![Refusal { place, problem }]);
        self.secret.secret = Some(read.map_err(refused)?);
        self.warnings
            .retain(|warning| warning != &exposed(&self.listen));
        Ok(self)
    }
}

/// The workers that are named; what is wrong with them goes to `refusals`.
pub(super) fn named(raw: &RawConfig, refusals: &mut Vec<Refusal>) -> RemoteConfig {
    let mut refuse = |at: Origin, problem: String| {
        refusals.push(Refusal {
            place: raw.place(at),
            problem,
        });
    };
    let mut workers: Vec<Target> = Vec::new();
    for given in raw.workers() {
        match given.value.parse() {
            Ok(worker) if workers.contains(&worker) => {
                let problem = format!(
                    "{}: {:?} stands there twice",
                    keys::REMOTE_WORKERS,
                    given.value
                );
                refuse(given.origin, problem);
            }
            Ok(worker) => workers.push(worker),
            Err(problem) => {
                let problem: String = problem;
                refuse(given.origin, format!("{}: {problem}", keys::REMOTE_WORKERS));
            }
        }
    }
    let (key, at) = (keys::EXECUTOR, origin(&raw.executor));
    let most = defaults::GPUS.max as usize;
    if raw.workers().is_empty() {
        let advice = "give each as --worker http://HOST:PORT";
        refuse(
            at,
            format!("{key} is remote, but no worker is named: {advice}"),
        );
    } else if workers.len() > most {
        refuse(
            at,
            format!(
                "{key} is remote with {} workers; it can have {most}",
                workers.len()
            ),
        );
    }
    RemoteConfig { workers }
}

impl SecretConfig {
    /// The file that is named, if any: an empty path is none.
    pub(super) fn named(raw: &RawConfig) -> SecretConfig {
        let is_path = |given: &&Given<PathBuf>| !given.value.as_os_str().is_empty();
        let file = raw.remote.secret_file.as_ref().filter(is_path);
        SecretConfig {
            file: file.map(|file| raw.located(file)),
            secret: None,
        }
    }
}

/// The workers' number is the GPUs'; a worker has one GPU, on its own machine.
pub(super) fn contradiction(raw: &RawConfig, config: &Config) -> Option<(Vec<Origin>, String)> {
    let gpus = config.gpus;
    let places = |more: Origin| vec![origin(&raw.gpus), more];
    match (&config.executor, config.role) {
        (ExecutorConfig::Remote(remote), Role::Server) if remote.workers.len() != gpus => {
            let workers = remote.workers.len();
            let first = raw
                .workers()
                .first()
                .map_or(Origin::Default, |worker| worker.origin);
            let problem = format!(
                "gpus is {gpus}, but there are {workers} workers, each of which is a GPU: leave gpus out"
            );
            Some((places(first), problem))
        }
        (ExecutorConfig::Remote(_), Role::Worker) => {
            let at = vec![
                raw.workers()
                    .first()
                    .map_or(origin(&raw.executor), |worker| worker.origin),
            ];
            Some((
                at,
                "a worker can't have workers of its own: leave remote.workers out".to_owned(),
            ))
        }
        (_, Role::Worker) if gpus != 1 => {
            let problem =
                format!("gpus is {gpus}, but a worker has one GPU: start a worker for each");
            Some((places(Origin::Default), problem))
        }
        _ => None,
    }
}

/// What is probably not meant by a worker's settings, or by naming workers.
pub(super) fn warning(raw: &RawConfig, config: &Config) -> Option<String> {
    if config.role == Role::Worker
        && !config.listen.ip().is_loopback()
        && config.secret.file.is_none()
    {
        return Some(exposed(&config.listen));
    }
    let named = raw.workers().len();
    let used = matches!(config.executor, ExecutorConfig::Remote(_));
    (named > 0 && !used).then(|| {
        let executor = config.executor.name();
        format!("remote.workers get no batches, since the executor is {executor}")
    })
}

fn exposed(listen: &SocketAddr) -> String {
    format!(
        "listening on {listen}, beyond this machine, and anybody may send batches: name a secret with \
         --worker-secret-file, here and on the servers"
    )
}

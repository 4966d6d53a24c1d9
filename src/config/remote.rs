//! GPUs on other machines: where a server's workers are, what a worker does by default, and the secret they share.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use super::raw::{Given, Origin, RawConfig, origin};
use super::units::counted;
use super::values::AdminAddress;
use super::{Config, ConfigError, ExecutorConfig, Refusal, defaults, keys};
use crate::files;
use crate::gpu::remote::Target;
use crate::keys::Secret;

/// The variable that holds the secret where no file is named.
pub const SECRET_VARIABLE: &str = "FUNICULAR_WORKER_SECRET";

/// A worker beside a server on the same machine takes other ports by default.
pub(super) const WORKER_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8081);
pub(super) const WORKER_ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9091);

/// A hundred inputs of 64 KiB, every byte escaped, are 38 MiB of JSON.
pub(super) const WORKER_BODY_MAX_BYTES: i64 = 64 << 20;

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
    /// The workers that are named one by one.
    pub workers: Vec<Target>,
    /// The file that lists more; a path that this process can open.
    pub file: Option<PathBuf>,
    /// Those that it lists.
    pub listed: Vec<Target>,
    /// Whether all are flags: then no file can change them.
    pub are_fixed: bool,
}

impl RemoteConfig {
    /// All workers, one for each GPU, no two alike.
    pub fn all(&self) -> impl Iterator<Item = &Target> {
        self.workers.iter().chain(&self.listed)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.workers.len() + self.listed.len()
    }
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

    /// The workers that are named, here or in the file that lists them.
    pub(super) fn workers(&self) -> impl Iterator<Item = &Given<String>> {
        let named = self.remote.workers.iter().flatten();
        named.chain(&self.listed)
    }

    /// The file that lists workers, if one is named: an empty path is none.
    pub(super) fn workers_file(&self) -> Option<PathBuf> {
        path(&self.remote.workers_file).map(|file| self.located(file))
    }

    /// Reads the file that lists workers: one URL a line, with or without a comment after a `#`. One with nothing at all in it
    /// is refused: that is how a file looks while somebody writes it, and all workers would be sent away. The path is made
    /// absolute, so that what `check` prints means the same file wherever it is saved.
    pub(super) fn with_workers_listed(mut self) -> Result<RawConfig, ConfigError> {
        let Some(file) = self.workers_file() else {
            return Ok(self);
        };
        let refused = |problem: String| {
            let place = self.place(origin(&self.remote.workers_file));
            ConfigError::Refused(vec![Refusal { place, problem }])
        };
        let text = files::read_text(&file).map_err(|cause| {
            let advice = match cause.kind() {
                ErrorKind::InvalidData | ErrorKind::FileTooLarge => "; it must list one URL a line",
                _ => "",
            };
            refused(format!(
                "can't read the workers in {}: {cause}{advice}",
                file.display()
            ))
        })?;
        if text.trim().is_empty() {
            let advice = "if no worker is meant for a while, say so in a comment (# none)";
            return Err(refused(format!("{} is empty: {advice}", file.display())));
        }
        let lines = text.lines().enumerate().filter_map(|(before, line)| {
            let url = line.split('#').next().unwrap_or_default().trim();
            (!url.is_empty()).then(|| Given {
                value: url.to_owned(),
                origin: Origin::Listed(before + 1),
            })
        });
        self.listed = lines.collect();
        if let (Some(given), Ok(absolute)) =
            (&mut self.remote.workers_file, std::path::absolute(file))
        {
            given.value = absolute;
        }
        Ok(self)
    }
}

/// The path that is given: an empty one is none.
fn path(given: &Option<Given<PathBuf>>) -> Option<&Given<PathBuf>> {
    let is_path = |given: &&Given<PathBuf>| !given.value.as_os_str().is_empty();
    given.as_ref().filter(is_path)
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
    let mut remote = RemoteConfig {
        file: raw.workers_file(),
        are_fixed: raw.workers_file().is_none()
            && raw.workers().next().is_some()
            && raw
                .workers()
                .all(|given| matches!(given.origin, Origin::Flag(_))),
        ..RemoteConfig::default()
    };
    for given in raw.workers() {
        let key = match given.origin {
            Origin::Listed(_) => keys::REMOTE_WORKERS_FILE,
            _ => keys::REMOTE_WORKERS,
        };
        match given.value.parse::<Target>() {
            Ok(worker) if remote.all().any(|other| *other == worker) => {
                let problem = format!("{key}: {:?} stands there twice", given.value);
                refuse(given.origin, problem);
            }
            Ok(worker) if key == keys::REMOTE_WORKERS_FILE => remote.listed.push(worker),
            Ok(worker) => remote.workers.push(worker),
            Err(problem) => refuse(given.origin, format!("{key}: {problem}")),
        }
    }
    let (key, at) = (keys::EXECUTOR, origin(&raw.executor));
    let most = defaults::GPUS.max as usize;
    // An empty list is an answer, no list is none.
    if raw.remote.workers.is_none() && remote.file.is_none() {
        let advice = "give each as --worker http://HOST:PORT, or a file that lists them as --workers-file FILE";
        refuse(
            at,
            format!("{key} is remote, but no worker is named: {advice}"),
        );
    } else if remote.count() > most {
        refuse(
            at,
            format!(
                "{key} is remote with {} workers; it can have {most}",
                remote.count()
            ),
        );
    }
    remote
}

impl SecretConfig {
    /// The file that is named, if any: an empty path is none.
    pub(super) fn named(raw: &RawConfig) -> SecretConfig {
        SecretConfig {
            file: path(&raw.remote.secret_file).map(|file| raw.located(file)),
            secret: None,
        }
    }
}

/// The workers' number is the GPUs'; a worker has one GPU, on its own machine.
pub(super) fn contradiction(raw: &RawConfig, config: &Config) -> Option<(Vec<Origin>, String)> {
    let gpus = config.gpus;
    let places = |more: Origin| vec![origin(&raw.gpus), more];
    let first = raw.workers().next().map(|worker| worker.origin);
    match (&config.executor, config.role) {
        (ExecutorConfig::Remote(remote), Role::Server) if remote.count() != gpus => {
            let workers = counted(remote.count() as u64, "worker");
            let be = if remote.count() == 1 { "is" } else { "are" };
            let problem = format!(
                "gpus is {gpus}, but there {be} {workers}, each of which is a GPU: leave gpus out"
            );
            Some((places(first.unwrap_or(Origin::Default)), problem))
        }
        (ExecutorConfig::Remote(remote), Role::Server) if remote.count() > config.seats => {
            let (key, most) = (keys::REMOTE_WORKERS_MAX, config.seats);
            let workers = counted(remote.count() as u64, "worker");
            let problem = format!("{key} is {most}, but there are {workers}: raise it");
            Some((vec![origin(&raw.remote.workers_max)], problem))
        }
        (ExecutorConfig::Remote(_), Role::Worker) => {
            let at = vec![first.unwrap_or(origin(&raw.executor))];
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
    let is_named = raw.workers().next().is_some();
    match &config.executor {
        ExecutorConfig::Remote(remote) if remote.count() == 0 => Some(
            "no worker is named: every request gets 503 until there is one and SIGHUP says so"
                .to_owned(),
        ),
        ExecutorConfig::Remote(_) => None,
        other if is_named => Some(format!(
            "remote.workers get no batches, since the executor is {}",
            other.name()
        )),
        other => without_workers(raw, config.role, other.name()),
    }
}

/// A flag that is about workers, where there are none. Files often name every setting.
fn without_workers(raw: &RawConfig, role: Role, executor: &str) -> Option<String> {
    let all = [
        origin(&raw.remote.workers_max),
        origin(&raw.remote.secret_file),
    ];
    let typed = all.into_iter().find_map(|origin| match origin {
        Origin::Flag(flag) if role == Role::Server => Some(flag),
        _ => None,
    })?;
    Some(format!(
        "{typed} has no effect, since the executor is {executor}: name workers with --worker or --workers-file"
    ))
}

fn exposed(listen: &SocketAddr) -> String {
    format!(
        "listening on {listen}, beyond this machine, and anybody may send batches: name a secret with \
         --worker-secret-file, here and on the servers"
    )
}

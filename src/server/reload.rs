//! What may change while the server runs: the workers, and the keys of callers. See [`crate::roster`].

use std::fmt;

use super::{Core, Server};
use crate::config::keys::{self, Key};
use crate::config::units::counted;
use crate::config::{Config, Identity};
use crate::gpu::remote::Target;
use crate::keys::KeysError;
use crate::metrics::labels::Reload;
use crate::roster::{Move, Seated};
use crate::screen;

/// Why a configuration that was read again is refused as a whole. What held before holds on.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The server was started with workers, and this names none, not even an empty list.
    #[error(
        "it names no worker, and would be for the executor {executor}: if no worker is meant for a while, write \
         executor = \"remote\" and an empty list, remote.workers = []"
    )]
    NotRemote {
        /// What it would be for.
        executor: &'static str,
    },
    /// More workers than there are seats.
    #[error(
        "it names {wanted}, and {} is {seats}: name fewer, or start again with a larger {}",
        keys::REMOTE_WORKERS_MAX,
        keys::REMOTE_WORKERS_MAX.flag
    )]
    NoRoom {
        /// How many it names, in words.
        wanted: String,
        /// How many there can be.
        seats: usize,
    },
    /// The keys can't be used.
    #[error(transparent)]
    Keys(#[from] KeysError),
}

/// What a reload has changed, for the log.
#[derive(Debug, Default)]
struct Changes {
    /// What holds now.
    done: Vec<String>,
    /// The settings that wait for a restart.
    waiting: Vec<Key>,
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.done[..], &self.waiting[..]) {
            ([], []) => f.write_str("nothing has changed"),
            ([], _) => f.write_str("nothing has changed that can without a restart"),
            (done, _) => f.write_str(&done.join("; ")),
        }
    }
}

impl Server {
    /// Takes over from `config`, which was read again, what can change while the server runs, or nothing at all. Says in the
    /// log what that was, and which other settings have changed and wait for a restart.
    pub fn reload(&self, config: &Config) {
        match self.core.reload(config) {
            Ok(changes) if changes.done.is_empty() => {
                let remote = config.executor.remote();
                let hint = if remote.is_some_and(|remote| remote.are_fixed) {
                    "; workers given as --worker can't: list them in a file, see --workers-file"
                } else {
                    ""
                };
                self.reloaded(Reload::Unchanged, format_args!("{changes}{hint}"));
            }
            Ok(changes) => self.reloaded(Reload::Applied, &changes),
            Err(error) => self.reload_refused(&error),
        }
    }

    /// The configuration could not even be read.
    pub fn reload_refused(&self, error: &dyn fmt::Display) {
        self.core.count_reload(Reload::Refused);
        log::error!("reload refused, everything stays as it was: {error}");
        self.refresh();
    }

    fn reloaded(&self, result: Reload, what: impl fmt::Display) {
        self.core.count_reload(result);
        log::info!("configuration read again: {what}");
        self.refresh();
    }

    fn refresh(&self) {
        self.admin.iter().for_each(crate::admin::Admin::refresh);
    }
}

impl Core {
    fn count_reload(&self, result: Reload) {
        self.shared.metrics().reload(result);
    }

    fn reload(&self, config: &Config) -> Result<Changes, ReloadError> {
        let workers = self.workers_of(config)?;
        let mut changes = Changes::default();
        changes.done.extend(self.reload_keys(config)?);
        // Nothing may fail from here on: the keys hold already.
        if let Some(workers) = workers {
            changes.done.extend(self.want(workers));
        }
        changes.waiting = screen::changed(&self.config, config);
        if !changes.waiting.is_empty() {
            let names: Vec<String> = changes.waiting.iter().map(ToString::to_string).collect();
            log::warn!(
                "changed in the configuration, and needs a restart to hold: {}",
                names.join(", ")
            );
        }
        Ok(changes)
    }

    /// The workers that `config` names, where this server has workers.
    fn workers_of(&self, config: &Config) -> Result<Option<Vec<Target>>, ReloadError> {
        if self.config.executor.remote().is_none() {
            return Ok(None);
        }
        let executor = config.executor.name();
        let remote = config.executor.remote();
        let remote = remote.ok_or(ReloadError::NotRemote { executor })?;
        let seats = self.fleet.seats();
        if remote.count() > seats {
            let wanted = counted(remote.count() as u64, "worker");
            return Err(ReloadError::NoRoom { wanted, seats });
        }
        Ok(Some(remote.all().cloned().collect()))
    }

    fn want(&self, workers: Vec<Target>) -> Option<String> {
        let before = self.roster.wanted();
        let names = |these: &[Target], not: &[Target]| {
            let these = these.iter().filter(|worker| !not.contains(worker));
            these.map(ToString::to_string).collect::<Vec<_>>()
        };
        let (new, old) = (names(&workers, &before), names(&before, &workers));
        if new.is_empty() && old.is_empty() {
            return None;
        }
        let count = counted(workers.len() as u64, "worker");
        let list = |what: &str, names: Vec<String>| match names.len() {
            0 => String::new(),
            _ => format!(", {what} {}", names.join(" ")),
        };
        let said = format!("{count}{}{}", list("new", new), list("without", old));
        self.roster.want(workers);
        Some(said)
    }

    fn reload_keys(&self, config: &Config) -> Result<Option<String>, KeysError> {
        let (Some(keys), Identity::Keys(path)) = (self.shared.keys(), &config.identity) else {
            return Ok(None);
        };
        let changed = keys.reload(path)?;
        Ok(changed.then(|| counted(keys.count() as u64, "key")))
    }

    /// The life of the thread `workers`: until the server ends.
    pub(super) fn keep_roster(&self) {
        while !self.collector.is_closed() {
            let seated = self.seated();
            match self.roster.next(&seated, self.fleet.has_room()) {
                Move::Add(target) => self.take_on(&target),
                Move::Remove(number) => self.let_go(number, &seated),
                Move::Wait | Move::Rest => self.roster.sleep(),
            }
        }
    }

    fn seated(&self) -> Vec<Seated> {
        let gpus = self.fleet.gpus().into_iter();
        let seated = gpus.map(|gpu| Seated {
            gpu: gpu.index,
            worker: gpu.worker().unwrap_or_default().to_owned(),
            state: gpu.cell().state(),
        });
        seated.collect()
    }

    fn take_on(&self, target: &Target) {
        match self.add_worker(target) {
            Ok(gpu) => log::info!("gpu {} is the new worker {target}", gpu.index),
            Err(error) => {
                log::error!("can't take on the worker {target}: {error}; trying again");
                self.roster.sleep();
            }
        }
    }

    fn let_go(&self, number: usize, seated: &[Seated]) {
        let serving = seated.iter().filter(|gpu| gpu.state.in_service());
        if serving.map(|gpu| gpu.gpu).eq([number]) {
            log::warn!("gpu {number}, which leaves, is the last one in service");
        }
        let gpus = self.fleet.gpus();
        if let Some(gpu) = gpus.iter().find(|gpu| gpu.index == number) {
            let worker = gpu.worker().unwrap_or_default();
            log::info!("gpu {number} ({worker}) leaves: no longer in the configuration");
            gpu.leave();
        }
    }
}

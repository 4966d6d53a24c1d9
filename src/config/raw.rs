//! What was given, before it is checked: the settings of the file, each with the place where it stands.
//!
//! Nothing here knows a default or a range. Every setting is optional, so that flags can be laid over the file
//! ([`Flags::overlay`](super::Flags::overlay)) and the defaults under both ([`Config::resolve`](super::Config::resolve)).

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use log::LevelFilter;
use serde::{Deserialize, Deserializer, de};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::cores::CoreChoice;
use super::error::{ConfigError, Refusal};
use super::remote::Role;
use super::values::{AdminAddress, Auto, ExecutorKind, FromScalar, IdentityKind, Scalar};
use super::{defaults, keys, slip, suggest};
use crate::files;
use crate::tier::Tier;

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody gave it.
    Default,
    /// The command line, by this flag.
    Flag(&'static str),
    /// The file, at this byte of its text.
    File(usize),
    /// The file that lists workers, at this line, counted from 1.
    Listed(usize),
}

/// A value that somebody gave, and where.
#[derive(Clone, Debug, PartialEq)]
pub struct Given<T> {
    pub(super) value: T,
    pub(super) origin: Origin,
}

/// The value that was given, or else the default.
pub(super) fn value_or<T: Clone>(given: &Option<Given<T>>, default: T) -> T {
    given.as_ref().map_or(default, |given| given.value.clone())
}

/// Where the setting comes from.
pub(super) fn origin<T>(given: &Option<Given<T>>) -> Origin {
    given.as_ref().map_or(Origin::Default, |given| given.origin)
}

impl<'de, T: FromScalar> Deserialize<'de> for Given<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Scalar>::deserialize(deserializer)?;
        let origin = Origin::File(spanned.span().start);
        let value = T::from_scalar(spanned.into_inner()).map_err(de::Error::custom)?;
        Ok(Given { value, origin })
    }
}

/// The text of the file, kept to turn a byte into a line when something is wrong there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    path: PathBuf,
    text: String,
}

impl Source {
    fn place(&self, byte: usize) -> String {
        format!("{}:{}", self.path.display(), self.line_number(byte))
    }

    fn line(&self, byte: usize) -> &str {
        let line = self.line_number(byte) - 1;
        self.text.lines().nth(line).unwrap_or("").trim()
    }

    /// The line that `byte` stands in, counted from 1.
    fn line_number(&self, byte: usize) -> usize {
        let before = self.text.bytes().take(byte);
        1 + before.filter(|byte| *byte == b'\n').count()
    }
}

/// All settings as they were given.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawConfig {
    #[serde(skip)]
    pub(super) source: Option<Source>,
    #[serde(skip)]
    pub(super) role: Role,
    /// What the file that lists workers says.
    #[serde(skip)]
    pub(super) listed: Vec<Given<String>>,
    pub(super) listen: Option<Given<SocketAddr>>,
    pub(super) admin: Option<Given<AdminAddress>>,
    pub(super) cores: Option<Given<CoreChoice>>,
    pub(super) max_connections: Option<Given<Auto>>,
    pub(super) model: Option<Given<String>>,
    pub(super) default_tier: Option<Given<Tier>>,
    pub(super) identity: Option<Given<IdentityKind>>,
    pub(super) keys_file: Option<Given<PathBuf>>,
    pub(super) deadline_ms: Option<Given<Auto>>,
    pub(super) queue_bound: Option<Given<i64>>,
    pub(super) gpus: Option<Given<i64>>,
    pub(super) executor: Option<Given<ExecutorKind>>,
    pub(super) batch_timeout_ms: Option<Given<Auto>>,
    pub(super) canary: Option<Given<String>>,
    pub(super) log_level: Option<Given<LevelFilter>>,
    pub(super) batch: RawBatch,
    pub(super) admission: RawAdmission,
    pub(super) python: RawPython,
    pub(super) cuda: RawCuda,
    pub(super) simulated: RawSimulated,
    pub(super) remote: RawRemote,
    pub(super) limits: RawLimits,
    pub(super) timeouts: RawTimeouts,
    pub(super) drain: RawDrain,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(
    deny_unknown_fields,
    default,
    expecting = "a table: write [batch] on a line of its own"
)]
pub(super) struct RawBatch {
    pub(super) batch_max: Option<Given<i64>>,
    pub(super) hold_max_ms: Option<Given<i64>>,
    pub(super) patience: Option<Given<f64>>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(
    deny_unknown_fields,
    default,
    expecting = "a table: write [admission] on a line of its own"
)]
pub(super) struct RawAdmission {
    pub(super) target_latency_ms: Option<Given<i64>>,
    pub(super) yellow_s: Option<Given<f64>>,
    pub(super) red_s: Option<Given<f64>>,
    pub(super) limit_s: Option<Given<f64>>,
    pub(super) min_share: RawMinShare,
}

/// One setting with a place for each tier, so that a flag for one tier leaves the others as the file has them.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(
    deny_unknown_fields,
    default,
    expecting = "parts by tier, such as { paid = 0.1, free = 0.05 }"
)]
pub(super) struct RawMinShare {
    enterprise: Option<Given<f64>>,
    paid: Option<Given<f64>>,
    free: Option<Given<f64>>,
}

impl RawMinShare {
    pub(super) fn of(&self, tier: Tier) -> &Option<Given<f64>> {
        match tier {
            Tier::Enterprise => &self.enterprise,
            Tier::Paid => &self.paid,
            Tier::Free => &self.free,
        }
    }

    pub(super) fn of_mut(&mut self, tier: Tier) -> &mut Option<Given<f64>> {
        match tier {
            Tier::Enterprise => &mut self.enterprise,
            Tier::Paid => &mut self.paid,
            Tier::Free => &mut self.free,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(
    deny_unknown_fields,
    default,
    expecting = "a table: write [python] on a line of its own"
)]
pub(super) struct RawPython {
    pub(super) target: Option<Given<String>>,
    pub(super) bin: Option<Given<PathBuf>>,
    pub(super) env: Option<Vec<Given<String>>>,
    pub(super) start_timeout_s: Option<Given<i64>>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(
    deny_unknown_fields,
    default,
    expecting = "a table: write [cuda] on a line of its own"
)]
pub(super) struct RawCuda {
    pub(super) module: Option<Given<PathBuf>>,
    pub(super) entry: Option<Given<String>>,
    pub(super) block: Option<Given<i64>>,
    pub(super) shared_bytes: Option<Given<i64>>,
    pub(super) output_factor: Option<Given<i64>>,
    pub(super) output_extra_bytes: Option<Given<i64>>,
    pub(super) work_us: Option<Given<i64>>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(
    deny_unknown_fields,
    default,
    expecting = "a table: write [simulated] on a line of its own"
)]
pub(super) struct RawSimulated {
    pub(super) latency_ms: Option<Given<i64>>,
    pub(super) jitter: Option<Given<f64>>,
    pub(super) cold_start_ms: Option<Given<i64>>,
    /// Each with a place of its own, since lists of faults span lines. As text, since the reader of the file would
    /// place whatever is wrong with one at the start of the list.
    pub(super) faults: Option<Vec<Given<String>>>,
    pub(super) faults_admin: Option<Given<bool>>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(
    deny_unknown_fields,
    default,
    expecting = "a table: write [remote] on a line of its own"
)]
pub(super) struct RawRemote {
    /// Each with a place of its own, like the faults.
    pub(super) workers: Option<Vec<Given<String>>>,
    pub(super) workers_file: Option<Given<PathBuf>>,
    pub(super) workers_max: Option<Given<Auto>>,
    pub(super) secret_file: Option<Given<PathBuf>>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(
    deny_unknown_fields,
    default,
    expecting = "a table: write [limits] on a line of its own"
)]
pub(super) struct RawLimits {
    pub(super) body_max_bytes: Option<Given<i64>>,
    pub(super) input_max_bytes: Option<Given<i64>>,
    pub(super) output_max_bytes: Option<Given<i64>>,
    pub(super) header_max_bytes: Option<Given<i64>>,
    pub(super) header_max_count: Option<Given<i64>>,
    pub(super) target_max_bytes: Option<Given<i64>>,
    pub(super) request_memory_mib: Option<Given<Auto>>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(
    deny_unknown_fields,
    default,
    expecting = "a table: write [timeouts] on a line of its own"
)]
pub(super) struct RawTimeouts {
    pub(super) header_ms: Option<Given<i64>>,
    pub(super) body_ms: Option<Given<i64>>,
    pub(super) idle_ms: Option<Given<i64>>,
    pub(super) write_ms: Option<Given<i64>>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(
    deny_unknown_fields,
    default,
    expecting = "a table: write [drain] on a line of its own"
)]
pub(super) struct RawDrain {
    pub(super) delay_ms: Option<Given<i64>>,
    pub(super) grace_ms: Option<Given<i64>>,
}

impl RawConfig {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// The file can't be read, is not TOML, or holds an unknown setting or a value of the wrong type.
    pub fn read(path: &Path) -> Result<RawConfig, ConfigError> {
        let unreadable = |cause| ConfigError::Unreadable {
            path: path.to_owned(),
            cause,
        };
        let text = files::read_text(path).map_err(unreadable)?;
        RawConfig::parse(path, &text)
    }

    /// Reads the `text` of a file; `path` only names it in messages.
    ///
    /// # Errors
    /// The text is not TOML, or holds an unknown setting or a value of the wrong type.
    pub fn parse(path: &Path, text: &str) -> Result<RawConfig, ConfigError> {
        let source = Source {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        let table = DeTable::parse(text).map_err(|error| malformed(&source, &error))?;
        // Asked before serde does: its message lists every key there is and knows nothing of other tables.
        let unknown = unknown_keys(&source, table.get_ref());
        if !unknown.is_empty() {
            return Err(ConfigError::Refused(unknown));
        }
        let raw: RawConfig = toml::from_str(text).map_err(|error| malformed(&source, &error))?;
        Ok(RawConfig {
            source: Some(source),
            ..raw
        })
    }

    /// The batch function, if one is named: an empty text is none.
    pub(super) fn python_target(&self) -> Option<&Given<String>> {
        self.python
            .target
            .as_ref()
            .filter(|target| !target.value.is_empty())
    }

    /// The file with a kernel, if one is named: an empty path is none.
    pub(super) fn cuda_module(&self) -> Option<&Given<PathBuf>> {
        self.cuda
            .module
            .as_ref()
            .filter(|module| !module.value.as_os_str().is_empty())
    }

    /// The executor that is named, or else the one that what is given for it implies.
    pub(super) fn executor_kind(&self) -> ExecutorKind {
        let workers = self.workers().next().is_some() || self.workers_file().is_some();
        let implied = if workers {
            ExecutorKind::Remote
        } else if self.python_target().is_some() {
            ExecutorKind::Python
        } else if self.cuda_module().is_some() {
            ExecutorKind::Cuda
        } else {
            defaults::EXECUTOR
        };
        value_or(&self.executor, implied)
    }

    /// A path that was given, as this process can open it: one in the file is meant from where the file lies, one on
    /// the command line from where the process stands.
    pub(super) fn located(&self, path: &Given<PathBuf>) -> PathBuf {
        let folder = self.source.as_ref().and_then(|source| source.path.parent());
        match (path.origin, folder) {
            (Origin::File(_), Some(folder)) => folder.join(&path.value),
            _ => path.value.clone(),
        }
    }

    /// The name of an origin for messages: `--flag` or `file:line`. A default is refused only for what the machine
    /// lacks.
    pub(super) fn place(&self, origin: Origin) -> String {
        match (origin, &self.source) {
            (Origin::Flag(flag), _) => flag.to_owned(),
            (Origin::File(byte), Some(source)) => source.place(byte),
            (Origin::Listed(line), _) => {
                let file = self.workers_file().unwrap_or_default();
                format!("{}:{line}", file.display())
            }
            (Origin::Default | Origin::File(_), _) => "this machine".to_owned(),
        }
    }
}

fn malformed(source: &Source, error: &toml::de::Error) -> ConfigError {
    let byte = error.span().map_or(0, |span| span.start);
    let line = source.line(byte);
    let message = slip::explained(line, error.message());
    let problem = if line.is_empty() {
        message
    } else {
        format!("{message}, in the line: {line}")
    };
    ConfigError::Refused(vec![Refusal {
        place: source.place(byte),
        problem,
    }])
}

fn unknown_keys(source: &Source, table: &DeTable<'_>) -> Vec<Refusal> {
    let mut strangers = Vec::new();
    for (key, value) in table {
        let name = key.get_ref().as_ref();
        match value.get_ref() {
            DeValue::Table(inner) if keys::is_section(name) => {
                let unknown = inner
                    .keys()
                    .filter(|key| !keys::is_known(name, key.get_ref()));
                strangers.extend(unknown.map(|key| (name, key)));
            }
            _ if keys::is_known("", name) || keys::is_section(name) => {}
            _ => strangers.push(("", key)),
        }
    }
    strangers.sort_by_key(|(_, key)| key.span().start);
    let refusals = strangers.into_iter();
    refusals
        .map(|(section, key)| unknown_key(source, section, key))
        .collect()
}

fn unknown_key(source: &Source, section: &str, key: &Spanned<toml::de::DeString<'_>>) -> Refusal {
    let name = key.get_ref();
    let scope = if section.is_empty() {
        String::new()
    } else {
        format!(" in [{section}]")
    };
    let advice = suggest::instead_of(section, name)
        .unwrap_or_else(|| "funicular check prints every setting there is".to_owned());
    Refusal {
        place: source.place(key.span().start),
        problem: format!("there is no setting {name}{scope}; {advice}"),
    }
}

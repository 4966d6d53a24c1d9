//! Why a configuration is not taken.

use std::fmt;
use std::path::PathBuf;

use crate::keys::KeysError;

/// The server does not start with this configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file that `--config` names can't be read.
    #[error("--config: can't read {}: {cause}", path.display())]
    Unreadable {
        /// The file, as it was given.
        path: PathBuf,
        /// What the system said.
        cause: std::io::Error,
    },
    /// The key file can't be used.
    #[error("{place}: {cause}")]
    Keys {
        /// Where it is named: `file:line` or the flag.
        place: String,
        /// What is wrong with it.
        cause: KeysError,
    },
    /// Settings that are unknown, out of range, or contradict each other: all that one pass can tell, never none.
    #[error("{}", one_per_line(.0))]
    Refused(Vec<Refusal>),
}

/// One thing that is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Where it stands: `file:line`, a flag, or several of these.
    pub place: String,
    /// What is wrong and what to do.
    pub problem: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.problem)
    }
}

fn one_per_line(refusals: &[Refusal]) -> String {
    let lines: Vec<String> = refusals.iter().map(Refusal::to_string).collect();
    lines.join("\n")
}

//! Values of settings that are more than a number: how each is read from a flag's text and from the file.
//!
//! Every reader returns what was wrong as a sentence without a place; the caller knows whether it came from a flag or
//! from a line of the file.

use std::fmt;
use std::net::SocketAddr;
use std::num::IntErrorKind;
use std::path::PathBuf;

use log::LevelFilter;
use serde::Deserialize;

use crate::tier::Tier;

/// A value of the file before its setting's type is known.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged, expecting = "expected a number or a text in quotes")]
pub enum Scalar {
    /// `true` or `false`.
    Switch(bool),
    /// A whole number.
    Integer(i64),
    /// A number with a fraction, `inf` or `nan`.
    Number(f64),
    /// A text in quotes.
    Text(String),
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Switch(value) => write!(f, "{value}"),
            Scalar::Integer(value) => write!(f, "{value}"),
            Scalar::Number(value) => write!(f, "{value}"),
            Scalar::Text(value) => write!(f, "{value:?}"),
        }
    }
}

/// A setting's type, as the file gives it.
pub trait FromScalar: Sized {
    /// Reads a value of the file, or says what was expected instead.
    fn from_scalar(scalar: Scalar) -> Result<Self, String>;
}

/// The types whose value in the file is the text that their flag takes.
macro_rules! from_text {
    ($($kind:ty, $reader:path, $expected:literal;)*) => {
        $(impl FromScalar for $kind {
            fn from_scalar(scalar: Scalar) -> Result<Self, String> {
                match scalar {
                    Scalar::Text(text) => $reader(&text),
                    other => Err(format!(concat!("expected ", $expected, ", found {}"), other)),
                }
            }
        })*
    };
}

from_text! {
    SocketAddr, address, "an address in quotes, such as \"127.0.0.1:8080\"";
    AdminAddress, admin_address, "an address in quotes, or \"off\"";
    Tier, tier, "a tier in quotes";
    LevelFilter, log_level, "a log level in quotes";
    ExecutorKind, executor, "an executor in quotes";
    IdentityKind, identity, "\"trusted\" or \"keys\"";
}

impl FromScalar for String {
    fn from_scalar(scalar: Scalar) -> Result<Self, String> {
        match scalar {
            Scalar::Text(text) => Ok(text),
            other => Err(format!("expected a text in quotes, found {other}")),
        }
    }
}

impl FromScalar for PathBuf {
    fn from_scalar(scalar: Scalar) -> Result<Self, String> {
        match scalar {
            Scalar::Text(text) => Ok(PathBuf::from(text)),
            other => Err(format!("expected a path in quotes, found {other}")),
        }
    }
}

impl FromScalar for bool {
    fn from_scalar(scalar: Scalar) -> Result<Self, String> {
        match scalar {
            Scalar::Switch(value) => Ok(value),
            other => Err(format!("expected true or false, found {other}")),
        }
    }
}

impl FromScalar for i64 {
    fn from_scalar(scalar: Scalar) -> Result<Self, String> {
        match scalar {
            Scalar::Integer(number) => Ok(number),
            other => Err(format!("expected a whole number, found {other}")),
        }
    }
}

impl FromScalar for f64 {
    fn from_scalar(scalar: Scalar) -> Result<Self, String> {
        match scalar {
            Scalar::Integer(number) => Ok(number as f64),
            Scalar::Number(number) => Ok(number),
            Scalar::Text(text) if text == "inf" => Ok(f64::INFINITY),
            other => Err(format!("expected a number, found {other}")),
        }
    }
}

/// Reads `IP:PORT`; `localhost` stands for 127.0.0.1.
///
/// Other names are refused: a server that listens where a resolver points today listens elsewhere tomorrow.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let numeric = match text.strip_prefix("localhost:") {
        Some(port) => format!("127.0.0.1:{port}"),
        None => text.to_owned(),
    };
    numeric.parse().map_err(|_| {
        format!("{text:?} is no address; write IP:PORT, such as 127.0.0.1:8080 or [::]:8080")
    })
}

/// Where the admin port listens, if at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdminAddress(pub Option<SocketAddr>);

/// Reads `IP:PORT`, or `off`.
pub fn admin_address(text: &str) -> Result<AdminAddress, String> {
    if text.eq_ignore_ascii_case("off") {
        return Ok(AdminAddress(None));
    }
    match address(text) {
        Ok(address) => Ok(AdminAddress(Some(address))),
        Err(problem) => Err(format!("{problem}, or off")),
    }
}

/// What runs the batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecutorKind {
    /// A batch function that takes its time and needs no GPU.
    Simulated,
    /// The user's own batch function.
    Python,
    /// A kernel, on the GPUs of this machine.
    Cuda,
    /// GPUs on other machines, behind workers.
    Remote,
}

impl ExecutorKind {
    /// All executors of this build.
    pub const ALL: [ExecutorKind; 4] = [
        ExecutorKind::Simulated,
        ExecutorKind::Python,
        ExecutorKind::Cuda,
        ExecutorKind::Remote,
    ];

    /// The name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            ExecutorKind::Simulated => "simulated",
            ExecutorKind::Python => "python",
            ExecutorKind::Cuda => "cuda",
            ExecutorKind::Remote => "remote",
        }
    }
}

/// Reads an executor's name.
pub fn executor(text: &str) -> Result<ExecutorKind, String> {
    let known = ExecutorKind::ALL
        .into_iter()
        .find(|kind| kind.name() == text);
    known.ok_or_else(|| {
        let names = ExecutorKind::ALL.map(ExecutorKind::name).join(", ");
        format!("there is no executor {text:?}; this build has: {names}")
    })
}

/// Reads a tier's name.
pub fn tier(text: &str) -> Result<Tier, String> {
    text.parse()
        .map_err(|problem| format!("{text:?}: {problem}"))
}

/// How a caller's tier is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityKind {
    /// By the header `X-Tier`.
    Trusted,
    /// By the caller's bearer key.
    Keys,
}

impl IdentityKind {
    /// Both of them.
    pub const ALL: [IdentityKind; 2] = [IdentityKind::Trusted, IdentityKind::Keys];

    /// The name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            IdentityKind::Trusted => "trusted",
            IdentityKind::Keys => "keys",
        }
    }
}

/// Reads the name of a way to know callers.
pub fn identity(text: &str) -> Result<IdentityKind, String> {
    let known = IdentityKind::ALL
        .into_iter()
        .find(|kind| kind.name() == text);
    known.ok_or_else(|| format!("there is no identity {text:?}; there are trusted and keys"))
}

/// Reads `TIER=PART`. Whether the part is one is checked with its range.
pub fn share(text: &str) -> Result<(Tier, f64), String> {
    let (name, part) = text
        .split_once('=')
        .ok_or_else(|| format!("{text:?} promises nothing; write TIER=PART, such as paid=0.1"))?;
    Ok((tier(name)?, number(part)?))
}

/// Reads a log level's name.
pub fn log_level(text: &str) -> Result<LevelFilter, String> {
    let unknown = |_| {
        format!("there is no log level {text:?}; there are off, error, warn, info, debug and trace")
    };
    text.parse().map_err(unknown)
}

/// Reads a whole number. Its range is checked with its setting.
pub fn whole(text: &str) -> Result<i64, String> {
    text.parse().map_err(|error: std::num::ParseIntError| {
        let beyond = matches!(
            error.kind(),
            IntErrorKind::PosOverflow | IntErrorKind::NegOverflow
        );
        if beyond {
            format!("{text:?} is beyond every setting's range")
        } else {
            format!("{text:?} is not a whole number")
        }
    })
}

/// Reads a number, or `inf`. Whether its setting can be infinite, or not a number, is checked with its range.
pub fn number(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| format!("{text:?} is no number"))
}

/// A number that may be left to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auto {
    /// The server chooses.
    Auto,
    /// The operator has chosen.
    Set(i64),
}

/// Reads `auto` or a whole number.
pub fn auto(text: &str) -> Result<Auto, String> {
    if text == "auto" {
        return Ok(Auto::Auto);
    }
    let wrong = |_| format!("{text:?} is neither a whole number nor auto");
    text.parse().map(Auto::Set).map_err(wrong)
}

impl FromScalar for Auto {
    fn from_scalar(scalar: Scalar) -> Result<Self, String> {
        match scalar {
            Scalar::Integer(number) => Ok(Auto::Set(number)),
            Scalar::Text(text) if text == "auto" => Ok(Auto::Auto),
            other => Err(format!(
                "expected a whole number or \"auto\", found {other}"
            )),
        }
    }
}

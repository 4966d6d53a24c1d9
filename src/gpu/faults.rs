//! Scripted faults of the simulated executor, to see from outside how the server takes them.
//!
//! A fault is one line of `key=value` pairs, the same in the configuration (`faults = ["kind=hang,gpu=1,batch=20"]`), on
//! the command line (`--sim-fault`) and on the admin port (`/faults?kind=hang&gpu=1&batch=20`, which answers only when
//! the server was started with `--sim-faults-admin`):
//!
//! | key | meaning | default |
//! | --- | --- | --- |
//! | `kind` | `lost`, `hang`, `block`, `slow`, `raise`, `count`, `hold`, `panic`, `clear` | none: must be given |
//! | `gpu` | the GPU that it hits | all |
//! | `batch` | at the nth batch launched on a GPU from now on, canaries included | 1 |
//! | `every` | then at every nth batch again | once only |
//! | `times` | at most so often on each GPU; 0 is without limit | 1, with `every` 0 |
//! | `ms` | `lost`, `hang`, `panic`: the reset fails for so long; `block`: the executor does not return for so long | 0; 2000 |
//! | `factor` | `slow`: batch time is multiplied by it | 10 |
//! | `marker` | `raise`: only if an input contains it | every batch |
//!
//! * `lost`: the device is gone half-way through the batch.
//! * `hang`: the batch never ends; the executor still returns when told to.
//! * `block`: the batch never ends, and the executor does not return in time either.
//! * `slow`: the batch takes longer.
//! * `raise`: the batch function raises; the device is fine.
//! * `count`: the batch function returns one output too few.
//! * `hold`: the batch ends once the script is cleared, and not before: for trying out what happens meanwhile. (Give
//!   `--batch-timeout-ms` enough, or the batch is taken for one that hangs.)
//! * `panic`: the GPU thread panics.
//! * `clear`: forget all faults scripted so far, and let go of what is held.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use parking_lot::Mutex;

use crate::ticket::Input;

/// What goes wrong.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// The device is gone in the middle of the batch, and resets fail for this long.
    Lost(Duration),
    /// The batch never ends, and resets fail for this long.
    Hang(Duration),
    /// The executor does not return for this long.
    Block(Duration),
    /// The batch takes this many times as long.
    Slow(f64),
    /// The function raises, if an input contains the marker (or always).
    Raise(Option<String>),
    /// The function returns one output too few.
    Count,
    /// The batch does not end before the script is cleared.
    Hold,
    /// The GPU thread panics, and resets fail for this long.
    Panic(Duration),
    /// Forget everything scripted.
    Clear,
}

/// One line of the script.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    kind: Kind,
    gpu: Option<usize>,
    batch: u64,
    every: Option<u64>,
    times: u64,
}

/// A line of the script that can't be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultError {
    /// Not `key=value`.
    #[error("{0:?} is not key=value")]
    NotAPair(String),
    /// An unknown key.
    #[error("{0:?} is no key of a fault; the keys are {keys}", keys = KEYS.join(", "))]
    UnknownKey(String),
    /// A value that its key does not take.
    #[error("{key} is {wanted}, not {value:?}")]
    BadValue {
        /// The key.
        key: &'static str,
        /// What was given.
        value: String,
        /// What would have been right.
        wanted: Cow<'static, str>,
    },
    /// Pairs that nothing separates but a space or a semicolon.
    #[error("its pairs need commas between them: write {0:?}")]
    NoCommas(String),
    /// `kind` is missing.
    #[error("a fault needs kind={}", KINDS.join("|"))]
    NoKind,
}

/// Every kind by the name that scripts it.
pub const KINDS: [&str; 9] = [
    "lost", "hang", "block", "slow", "raise", "count", "hold", "panic", "clear",
];

/// The keys of a line.
const KEYS: [&str; 8] = [
    "kind", "gpu", "batch", "every", "times", "ms", "factor", "marker",
];

#[derive(Default)]
struct Raw {
    kind: Option<String>,
    gpu: Option<usize>,
    batch: Option<u64>,
    every: Option<u64>,
    times: Option<u64>,
    ms: Option<u64>,
    factor: Option<f64>,
    marker: Option<String>,
}

fn number<T: FromStr>(
    key: &'static str,
    value: &str,
    wanted: &'static str,
) -> Result<T, FaultError> {
    value.trim().parse().map_err(|_| FaultError::BadValue {
        key,
        value: value.to_owned(),
        wanted: wanted.into(),
    })
}

fn at_least_one(key: &'static str, value: &str) -> Result<u64, FaultError> {
    let wanted = "a whole number of 1 or more";
    match number(key, value, wanted)? {
        0 => Err(FaultError::BadValue {
            key,
            value: value.to_owned(),
            wanted: wanted.into(),
        }),
        number => Ok(number),
    }
}

impl Raw {
    fn set(&mut self, pair: &str) -> Result<(), FaultError> {
        let (key, value) = pair
            .split_once('=')
            .ok_or_else(|| FaultError::NotAPair(pair.to_owned()))?;
        match key.trim() {
            "kind" => self.kind = Some(value.trim().to_owned()),
            "gpu" => self.gpu = Some(number("gpu", value, "the number of a GPU, from 0")?),
            "batch" => self.batch = Some(at_least_one("batch", value)?),
            "every" => self.every = Some(at_least_one("every", value)?),
            "times" => self.times = Some(number("times", value, "a whole number, 0 for no limit")?),
            "ms" => self.ms = Some(number("ms", value, "milliseconds, whole")?),
            "factor" => self.factor = Some(factor(value)?),
            "marker" => self.marker = Some(value.to_owned()),
            other => return Err(FaultError::UnknownKey(other.to_owned())),
        }
        Ok(())
    }

    fn kind(&self) -> Result<Kind, FaultError> {
        let ms = |default| Duration::from_millis(self.ms.unwrap_or(default));
        Ok(match self.kind.as_deref().ok_or(FaultError::NoKind)? {
            "lost" => Kind::Lost(ms(0)),
            "hang" => Kind::Hang(ms(0)),
            "block" => Kind::Block(ms(2000)),
            "slow" => Kind::Slow(self.factor.unwrap_or(10.0)),
            "raise" => Kind::Raise(self.marker.clone()),
            "count" => Kind::Count,
            "hold" => Kind::Hold,
            "panic" => Kind::Panic(ms(0)),
            "clear" => Kind::Clear,
            other => {
                return Err(FaultError::BadValue {
                    key: "kind",
                    value: other.to_owned(),
                    wanted: format!("one of {}", KINDS.join(", ")).into(),
                });
            }
        })
    }
}

fn factor(value: &str) -> Result<f64, FaultError> {
    let wanted = "a number from 0 to 10000";
    let factor: f64 = number("factor", value, wanted)?;
    if (0.0..=10_000.0).contains(&factor) {
        Ok(factor)
    } else {
        Err(FaultError::BadValue {
            key: "factor",
            value: value.to_owned(),
            wanted: wanted.into(),
        })
    }
}

/// The line with commas, if it has another key after a space or a semicolon. A marker may hold anything.
fn without_commas(line: &str, pair: &str) -> Option<FaultError> {
    let (key, _) = pair.split_once('=')?;
    let is_gap = |letter: char| letter.is_whitespace() || letter == ';';
    let words = || pair.split(is_gap).filter(|word| !word.is_empty());
    let names_key = |word: &str| {
        word.split_once('=')
            .is_some_and(|(name, _)| KEYS.contains(&name))
    };
    if key.trim() == "marker" || words().filter(|word| names_key(word)).count() < 2 {
        return None;
    }
    let commas = words().collect::<Vec<_>>().join(",");
    Some(FaultError::NoCommas(line.replacen(pair, &commas, 1)))
}

impl FromStr for Fault {
    type Err = FaultError;

    /// Pairs are separated by commas or, as in a query string, by ampersands.
    fn from_str(line: &str) -> Result<Fault, FaultError> {
        let mut raw = Raw::default();
        line.split([',', '&'])
            .filter(|pair| !pair.trim().is_empty())
            .try_for_each(|pair| match without_commas(line, pair) {
                Some(error) => Err(error),
                None => raw.set(pair),
            })?;
        Ok(Fault {
            kind: raw.kind()?,
            gpu: raw.gpu,
            batch: raw.batch.unwrap_or(1),
            every: raw.every,
            times: raw.times.unwrap_or(times_unless_given(raw.every)),
        })
    }
}

impl Fault {
    /// The GPU that it hits; none stands for all.
    pub fn gpu(&self) -> Option<usize> {
        self.gpu
    }
}

impl fmt::Display for Fault {
    /// The line that it is scripted by, without what is left to the defaults.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kind={}", self.kind.name())?;
        if let Some(gpu) = self.gpu {
            write!(f, ",gpu={gpu}")?;
        }
        if self.batch != 1 {
            write!(f, ",batch={}", self.batch)?;
        }
        if let Some(every) = self.every {
            write!(f, ",every={every}")?;
        }
        if self.times != times_unless_given(self.every) {
            write!(f, ",times={}", self.times)?;
        }
        match &self.kind {
            Kind::Lost(span) | Kind::Hang(span) | Kind::Block(span) | Kind::Panic(span) => {
                write!(f, ",ms={}", span.as_millis())
            }
            Kind::Slow(factor) => write!(f, ",factor={factor}"),
            Kind::Raise(Some(marker)) => write!(f, ",marker={marker}"),
            Kind::Raise(None) | Kind::Count | Kind::Hold | Kind::Clear => Ok(()),
        }
    }
}

impl Kind {
    fn name(&self) -> &'static str {
        match self {
            Kind::Lost(_) => "lost",
            Kind::Hang(_) => "hang",
            Kind::Block(_) => "block",
            Kind::Slow(_) => "slow",
            Kind::Raise(_) => "raise",
            Kind::Count => "count",
            Kind::Hold => "hold",
            Kind::Panic(_) => "panic",
            Kind::Clear => "clear",
        }
    }
}

/// A fault strikes once, or without limit where it comes again.
fn times_unless_given(every: Option<u64>) -> u64 {
    u64::from(every.is_none())
}

/// A fault, and how often it has come up on each GPU.
#[derive(Debug)]
struct Armed {
    fault: Fault,
    /// Per GPU: batches launched since it was scripted, and times it struck.
    progress: Vec<(u64, u64)>,
}

impl Armed {
    /// Counts a batch of `gpu` and says whether the fault strikes it.
    fn strikes(&mut self, gpu: usize, inputs: &[Input]) -> bool {
        let fault = &self.fault;
        if fault.gpu.is_some_and(|only| only != gpu) {
            return false;
        }
        let (launched, struck) = &mut self.progress[gpu];
        *launched += 1;
        let marked = match &fault.kind {
            Kind::Raise(Some(marker)) => inputs
                .iter()
                .any(|input| input.text.contains(marker.as_str())),
            _ => true,
        };
        // A marker strikes whatever carries it: counting batches would make no sense for it.
        let by_marker = matches!(fault.kind, Kind::Raise(Some(_)));
        let due = by_marker || is_due(*launched, fault.batch, fault.every);
        let left = by_marker || fault.times == 0 || *struck < fault.times;
        let strikes = marked && due && left;
        *struck += u64::from(strikes);
        strikes
    }
}

fn is_due(launched: u64, first: u64, every: Option<u64>) -> bool {
    match every {
        Some(every) if launched >= first => (launched - first).is_multiple_of(every),
        _ => launched == first,
    }
}

/// The script that all simulated GPUs of a server follow.
#[derive(Debug)]
pub struct Script {
    gpus: usize,
    lines: Mutex<Lines>,
}

#[derive(Debug, Default)]
struct Lines {
    armed: Vec<Armed>,
    /// Times that the script was cleared.
    cleared: u64,
}

/// A fault that strikes a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Strike {
    /// What goes wrong.
    pub kind: Kind,
    /// How often the script had been cleared when the batch was launched: see [`Script::holds`].
    pub cleared: u64,
}

/// The script holds this many faults at most.
const FAULTS_MAX: usize = 1000;

impl Script {
    /// A script for `gpus` GPUs.
    pub fn new(gpus: usize, faults: impl IntoIterator<Item = Fault>) -> Script {
        let script = Script {
            gpus,
            lines: Mutex::default(),
        };
        faults.into_iter().for_each(|fault| script.add(fault));
        script
    }

    /// How many GPUs follow it.
    pub fn gpus(&self) -> usize {
        self.gpus
    }

    /// Adds a line, or clears all. Beyond a thousand lines the oldest is forgotten.
    pub fn add(&self, fault: Fault) {
        let mut lines = self.lines.lock();
        let Lines { armed, cleared } = &mut *lines;
        if fault.kind == Kind::Clear {
            *cleared += 1;
            return armed.clear();
        }
        if armed.len() >= FAULTS_MAX {
            armed.remove(0);
        }
        armed.push(Armed {
            fault,
            progress: vec![(0, 0); self.gpus],
        });
    }

    /// `gpu` launches a batch of `inputs`: what strikes it. Of several faults the one scripted first does.
    pub fn launched(&self, gpu: usize, inputs: &[Input]) -> Option<Strike> {
        let mut lines = self.lines.lock();
        let mut strikes = None;
        for armed in &mut lines.armed {
            if armed.strikes(gpu, inputs) && strikes.is_none() {
                strikes = Some(armed.fault.kind.clone());
            }
        }
        let cleared = lines.cleared;
        strikes.map(|kind| Strike { kind, cleared })
    }

    /// Whether a batch that was launched when the script had been cleared `cleared` times is still held.
    pub fn holds(&self, cleared: u64) -> bool {
        self.lines.lock().cleared == cleared
    }
}

#[cfg(test)]
mod tests;

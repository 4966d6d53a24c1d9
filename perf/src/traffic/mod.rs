//! What is sent: tiers, inputs and hang-ups, each a pure function of the seed and the request's number.
//!
//! Because a request's tier and text follow from its number alone, nothing about it needs to be kept while it waits: its
//! answer is checked by making the text again. It also makes runs repeatable with any number of generator threads.

mod expect;
mod request;

pub use expect::{Answer, Checked, Expect, ExpectError};
pub use request::{PLACEHOLDER, Request, RequestError, RequestWriter};

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::clock::MILLISECOND;

/// The name under which requests without a tier are counted.
pub const UNTIERED: &str = "untiered";

/// Bytes of the part that makes an input unique; no input is shorter.
pub const INPUT_BYTES_MIN: usize = 16;

/// No input is longer: 16 MiB.
pub const INPUT_BYTES_MAX: usize = 16 << 20;

/// Makes up a request's words when an input is longer than its unique part. Lower case, so that upper-casing shows.
const FILLER: &str =
    " one car climbs while the other boards; both hang on the same cable and meet half way.";

/// Shares of the tiers.
#[derive(Clone, Debug, PartialEq)]
pub struct TierMix {
    names: Vec<String>,
    /// Ascending; the last is 1.
    cumulative: Vec<f64>,
}

/// The text is no tier mix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TierMixError {
    /// A part does not read `name=weight`.
    #[error("`{0}` is no share: write NAME=WEIGHT, for example enterprise=10,paid=30,free=60")]
    Share(String),
    /// A tier named twice.
    #[error("tier `{0}` is named twice")]
    Twice(String),
    /// All weights are 0.
    #[error("no tier has any weight")]
    Empty,
}

impl TierMix {
    /// No tiers: no header is sent, and everything counts as [`UNTIERED`].
    pub fn untiered() -> TierMix {
        TierMix {
            names: vec![UNTIERED.to_owned()],
            cumulative: vec![1.0],
        }
    }

    /// True if the requests name no tier.
    pub fn is_untiered(&self) -> bool {
        self.names == [UNTIERED]
    }

    /// Names, in the order in which they were given.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Share of a tier, 0 to 1.
    pub fn share(&self, tier: usize) -> f64 {
        let before = if tier == 0 {
            0.0
        } else {
            self.cumulative[tier - 1]
        };
        self.cumulative[tier] - before
    }

    fn pick(&self, dice: f64) -> usize {
        let last = self.names.len() - 1;
        self.cumulative
            .iter()
            .position(|&bound| dice < bound)
            .unwrap_or(last)
    }
}

impl FromStr for TierMix {
    type Err = TierMixError;

    fn from_str(text: &str) -> Result<TierMix, TierMixError> {
        let mut names: Vec<String> = Vec::new();
        let mut weights: Vec<f64> = Vec::new();
        for part in text.split(',').map(str::trim) {
            let (name, weight) =
                parse_share(part).ok_or_else(|| TierMixError::Share(part.to_owned()))?;
            if names.iter().any(|other| other == name) {
                return Err(TierMixError::Twice(name.to_owned()));
            }
            names.push(name.to_owned());
            weights.push(weight);
        }
        let total: f64 = weights.iter().sum();
        if total <= 0.0 {
            return Err(TierMixError::Empty);
        }
        let mut sum = 0.0;
        let cumulative = weights
            .iter()
            .map(|weight| {
                sum += weight / total;
                sum
            })
            .collect();
        Ok(TierMix { names, cumulative })
    }
}

fn parse_share(text: &str) -> Option<(&str, f64)> {
    let (name, weight) = text.split_once('=')?;
    let (name, weight) = (name.trim(), weight.trim().parse::<f64>().ok()?);
    // The name goes into a header line.
    let token = !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    (token && weight.is_finite() && weight >= 0.0).then_some((name, weight))
}

/// The texts that are sent.
#[derive(Clone, Debug, PartialEq)]
pub enum Inputs {
    /// Unique texts with sizes in bytes spread evenly over the range, both ends included.
    Size {
        /// Smallest.
        from: usize,
        /// Largest.
        to: usize,
    },
    /// Lines of a file, in a random order, each with a unique part put before it.
    Lines {
        /// The file.
        name: String,
        /// Its lines that are not empty.
        lines: Vec<String>,
    },
}

/// The inputs make no sense.
#[derive(Debug, thiserror::Error)]
pub enum InputsError {
    /// Not `N` or `N-M`.
    #[error("`{0}` is no size: write bytes, as in 64 or 16-4096")]
    Size(String),
    /// Outside what can be made.
    #[error(
        "inputs are between {INPUT_BYTES_MIN} and {INPUT_BYTES_MAX} bytes: the first {INPUT_BYTES_MIN} make each one unique"
    )]
    Range,
    /// The file of lines can't be read.
    #[error("cannot read the inputs in {path}")]
    Io {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The file has no lines.
    #[error("{0} holds no line to send")]
    NoLines(String),
}

impl Inputs {
    /// Reads `64` or `16-4096`.
    ///
    /// # Errors
    /// If the text is neither, or the sizes can't be made.
    pub fn sizes(text: &str) -> Result<Inputs, InputsError> {
        let wrong = || InputsError::Size(text.to_owned());
        let (from, to) = text.split_once('-').unwrap_or((text, text));
        let from: usize = from.trim().parse().map_err(|_| wrong())?;
        let to: usize = to.trim().parse().map_err(|_| wrong())?;
        let makeable = INPUT_BYTES_MIN <= from && from <= to && to <= INPUT_BYTES_MAX;
        if makeable {
            Ok(Inputs::Size { from, to })
        } else {
            Err(InputsError::Range)
        }
    }

    /// Reads a file of lines.
    ///
    /// # Errors
    /// If it can't be read or has no line.
    pub fn lines(path: &Path) -> Result<Inputs, InputsError> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|source| InputsError::Io {
            path: name.clone(),
            source,
        })?;
        let lines: Vec<String> = text
            .lines()
            .filter(|line| !line.is_empty())
            .map(str::to_owned)
            .collect();
        if lines.is_empty() {
            Err(InputsError::NoLines(name))
        } else {
            Ok(Inputs::Lines { name, lines })
        }
    }
}

impl fmt::Display for Inputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Inputs::Size { from, to } if from == to => write!(f, "{from} bytes"),
            Inputs::Size { from, to } => write!(f, "{from}-{to} bytes"),
            Inputs::Lines { name, lines } => write!(f, "{} lines of {name}", lines.len()),
        }
    }
}

/// What is sent, all in all.
#[derive(Clone, Debug, PartialEq)]
pub struct Traffic {
    /// Shares of the tiers.
    pub mix: TierMix,
    /// The texts.
    pub inputs: Inputs,
    /// Share of requests whose caller hangs up, 0 to 1.
    pub hangup_share: f64,
    /// A caller that hangs up does so at a random time up to this many nanoseconds after the request was written.
    pub hangup_within_ns: u64,
    /// Decides tiers, sizes and hang-ups.
    pub seed: u64,
    /// Sets the texts of this run apart from those of any other.
    pub run: u32,
}

/// What the dice say about one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Index into the tier mix.
    pub tier: usize,
    /// Nanoseconds after the write at which the caller hangs up, if it does.
    pub hangup_after_ns: Option<u64>,
}

impl Traffic {
    /// Untiered traffic of small unique inputs; a start for tests.
    pub fn simple(bytes: usize) -> Traffic {
        Traffic {
            mix: TierMix::untiered(),
            inputs: Inputs::Size {
                from: bytes,
                to: bytes,
            },
            hangup_share: 0.0,
            hangup_within_ns: 100 * MILLISECOND,
            seed: 1,
            run: 1,
        }
    }

    /// Tier and hang-up of request `number`.
    pub fn plan(&self, number: u64) -> Plan {
        let mut dice = self.dice(number, 0);
        let tier = self.mix.pick(dice.random::<f64>());
        let hangs_up = dice.random::<f64>() < self.hangup_share;
        let hangup_after_ns = hangs_up.then(|| dice.random_range(0..=self.hangup_within_ns));
        Plan {
            tier,
            hangup_after_ns,
        }
    }

    /// Puts the text of request `number` into `text`, replacing what was there.
    pub fn input(&self, number: u64, text: &mut String) {
        text.clear();
        push_unique(text, self.run, number);
        match &self.inputs {
            Inputs::Size { from, to } if from == to => fill(text, *from),
            Inputs::Size { from, to } => fill(text, self.dice(number, 1).random_range(*from..=*to)),
            Inputs::Lines { lines, .. } => {
                text.push(' ');
                text.push_str(&lines[self.dice(number, 1).random_range(0..lines.len())]);
            }
        }
    }

    fn dice(&self, number: u64, stream: u64) -> SmallRng {
        // Odd multipliers keep different numbers apart; `seed_from_u64` then mixes the bits.
        let mixed =
            number.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ stream.wrapping_mul(0xD1B5_4A32_D192_ED03);
        SmallRng::seed_from_u64(self.seed ^ mixed)
    }
}

/// 16 bytes: `q`, five digits of the run, `-`, nine digits of the number, all in base 36. The letter makes sure that the
/// upper-cased text differs.
fn push_unique(text: &mut String, run: u32, number: u64) {
    let mut digits = *b"q00000-000000000";
    write_base36(&mut digits[1..6], u64::from(run));
    write_base36(&mut digits[7..], number);
    text.extend(digits.iter().map(|&digit| char::from(digit)));
}

fn write_base36(digits: &mut [u8], mut value: u64) {
    for digit in digits.iter_mut().rev() {
        *digit = b"0123456789abcdefghijklmnopqrstuvwxyz"[(value % 36) as usize];
        value /= 36;
    }
}

fn fill(text: &mut String, bytes: usize) {
    while text.len() < bytes {
        let rest = (bytes - text.len()).min(FILLER.len());
        text.push_str(&FILLER[..rest]);
    }
}

#[cfg(test)]
mod tests;

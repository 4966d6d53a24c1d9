//! Identity by API key: which tier a bearer key belongs to, and how fast it may ask. (And [`Secret`], by which servers and
//! their workers know each other.)
//!
//! Used in `keys` mode only. The key file is read at start, and again on SIGHUP ([`Keys::reload`]): keys come and go, and
//! those that stay as they are keep their rate limits' state. Acceptor cores look keys up concurrently; what they share a
//! lock for is a look into a table. The file holds SHA-256 digests, never the keys themselves:
//!
//! ```toml
//! [[key]]
//! name = "acme"          # for logs; never sent to callers
//! sha256 = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
//! tier = "paid"
//! rate = 100             # requests per second; left out = no limit
//! burst = 200            # requests at once after a pause; left out = one second's worth
//! ```
//!
//! # Timing
//! A lookup must not tell a caller how close a guess came. What is compared is a digest of the guess, and
//! nobody can steer a digest towards another one: learning its first bytes brings no next guess closer, as it would
//! with the key itself. On top of that, the table is keyed by the standard library's randomly seeded hash, so that
//! which entries are looked at differs from process to process, and the final comparison of two digests always
//! reads all 32 bytes. The time of hashing depends on the length of the guess alone. This needs keys with entropy
//! (32 random bytes, not words): the digest of a guessable key can be searched by whoever reads the file.

mod digest;
mod limit;
mod secret;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use crate::clock::Time;
use crate::config::slip;
use crate::files;
use crate::tier::Tier;

use self::digest::Digest;
use self::limit::RateLimit;
pub use self::secret::Secret;

/// The key file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// It cannot be read.
    #[error("cannot read the key file {}: {cause}", path.display())]
    Read {
        /// As given.
        path: PathBuf,
        /// What the system says.
        cause: std::io::Error,
    },
    /// It says something that makes no sense.
    #[error("{}: {problem}", path.display())]
    File {
        /// As given.
        path: PathBuf,
        /// What and where.
        problem: Box<KeysError>,
    },
    /// A line is wrong.
    #[error("line {line}: {problem}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is wrong there.
        problem: LineError,
    },
    /// There is no key, so that nobody could be let in.
    #[error("the key file holds no [[key]]")]
    Empty,
}

/// What is wrong on a line of the key file.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// Not TOML, or not the fields expected.
    #[error("{0}")]
    Syntax(String),
    /// Not a digest.
    #[error("sha256 must be 64 lower-case hex digits, as `sha256sum` prints them")]
    Digest,
    /// The digest of nothing, the usual result of a mistyped command line.
    #[error("sha256 is the digest of an empty key")]
    EmptyKey,
    /// The same digest again: which tier would it be?
    #[error("this sha256 already stands for the key named {0:?}")]
    Duplicate(String),
    /// No such tier.
    #[error("{0:?}: {1}")]
    Tier(String, crate::tier::UnknownTier),
    /// Not a rate.
    #[error("rate must be between {RATE_MIN} and {RATE_MAX} requests per second")]
    Rate,
    /// Not a burst.
    #[error("burst must be between 1 and {BURST_MAX} requests")]
    Burst,
    /// A burst of what?
    #[error("burst needs a rate beside it")]
    BurstWithoutRate,
    /// Logs need something to call it.
    #[error("name must not be empty")]
    Name,
}

/// The range of rates whose spacing is exact to 0.1 % in nanoseconds, and which can be meant.
const RATE_MIN: f64 = 0.001;
const RATE_MAX: f64 = 1_000_000.0;
const BURST_MAX: u32 = 1_000_000;

/// The keys that are known.
#[derive(Debug)]
pub struct Keys {
    by_digest: RwLock<HashMap<Digest, Arc<Key>>>,
}

impl Keys {
    /// Reads a key file.
    ///
    /// # Errors
    /// It cannot be read, or [`Keys::parse`] refuses it; the path is named.
    pub fn load(path: &Path) -> Result<Keys, KeysError> {
        let text = files::read_text(path).map_err(|cause| KeysError::Read {
            path: path.to_owned(),
            cause,
        })?;
        Keys::parse(&text).map_err(|problem| KeysError::File {
            path: path.to_owned(),
            problem: Box::new(problem),
        })
    }

    /// Reads the text of a key file.
    ///
    /// # Errors
    /// The first line that is wrong, or that there is no key at all.
    pub fn parse(text: &str) -> Result<Keys, KeysError> {
        let at = |span: Range<usize>, problem| KeysError::Line {
            line: line_of(text, span.start),
            problem,
        };
        let file: RawFile = toml::from_str(text).map_err(|error| {
            let span = error.span().unwrap_or(0..0);
            let line = text.lines().nth(line_of(text, span.start) - 1);
            let said = slip::explained(line.unwrap_or_default(), error.message());
            at(span, LineError::Syntax(said))
        })?;
        let mut by_digest = HashMap::new();
        for raw in file.key {
            let span = raw.sha256.span();
            let (digest, key) = raw.check().map_err(|(span, problem)| at(span, problem))?;
            match by_digest.entry(digest) {
                Entry::Vacant(entry) => entry.insert(Arc::new(key)),
                Entry::Occupied(entry) => {
                    let first: &Key = entry.get();
                    return Err(at(span, LineError::Duplicate(first.name.clone())));
                }
            };
        }
        if by_digest.is_empty() {
            return Err(KeysError::Empty);
        }
        Ok(Keys {
            by_digest: RwLock::new(by_digest),
        })
    }

    /// Reads a key file anew: from now on its keys are known and no others. Says whether that makes a difference.
    ///
    /// # Errors
    /// As [`Keys::load`]; then those that were known are known on.
    pub fn reload(&self, path: &Path) -> Result<bool, KeysError> {
        let mut new = Keys::load(path)?.by_digest.into_inner();
        let mut known = self.by_digest.write();
        let mut changed = known.len() != new.len();
        for (digest, key) in &mut new {
            match known.get(digest) {
                Some(same) if same.means(key) => *key = Arc::clone(same),
                _ => changed = true,
            }
        }
        *known = new;
        Ok(changed)
    }

    /// The key that `bearer` is, if it is known: what stands after `Bearer ` in the `Authorization` header.
    pub fn lookup(&self, bearer: &str) -> Option<Arc<Key>> {
        let digest = Digest::of(bearer);
        self.by_digest.read().get(&digest).cloned()
    }

    /// How many keys are known.
    pub fn count(&self) -> usize {
        self.by_digest.read().len()
    }
}

/// A known key.
#[derive(Debug)]
pub struct Key {
    name: String,
    tier: Tier,
    limit: Option<RateLimit>,
}

impl Key {
    /// Whether the file says the same of the two.
    fn means(&self, other: &Key) -> bool {
        let terms = |key: &Key| key.limit.as_ref().map(RateLimit::terms);
        (&self.name, self.tier, terms(self)) == (&other.name, other.tier, terms(other))
    }

    /// What the operator calls it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The tier of its requests.
    pub fn tier(&self) -> Tier {
        self.tier
    }

    /// Counts a request at `now` against the key's rate limit.
    ///
    /// # Errors
    /// It is over its limit: the time after which a request would be let in, if no other came. Nothing was counted.
    pub fn admit(&self, now: Time) -> Result<(), Duration> {
        self.limit.as_ref().map_or(Ok(()), |limit| limit.admit(now))
    }
}

/// The key file as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    #[serde(default, deserialize_with = "a_list")]
    key: Vec<RawKey>,
}

/// A list of tables; with one pair of brackets, the commonest slip, `[key]` is a table and no list.
fn a_list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<RawKey>, D::Error> {
    struct List;
    impl<'de> Visitor<'de> for List {
        type Value = Vec<RawKey>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("keys: write [[key]] on a line of its own before each")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, keys: A) -> Result<Vec<RawKey>, A::Error> {
            Vec::deserialize(SeqAccessDeserializer::new(keys))
        }

        fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<Vec<RawKey>, A::Error> {
            Err(de::Error::custom(
                "write [[key]], with two brackets on each side: there may be many of them",
            ))
        }
    }
    deserializer.deserialize_any(List)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawKey {
    name: Spanned<String>,
    sha256: Spanned<String>,
    tier: Spanned<String>,
    rate: Option<Spanned<f64>>,
    burst: Option<Spanned<i64>>,
}

/// Where something is wrong, and what.
type Mistake = (Range<usize>, LineError);

impl RawKey {
    fn check(self) -> Result<(Digest, Key), Mistake> {
        let limit = self.limit()?;
        let span = self.sha256.span();
        let digest = Digest::from_hex(self.sha256.as_ref());
        let digest = digest.ok_or_else(|| (span.clone(), LineError::Digest))?;
        if digest == Digest::of("") {
            return Err((span, LineError::EmptyKey));
        }
        let tier = self.tier.as_ref().parse::<Tier>();
        let named = || self.tier.as_ref().to_owned();
        let tier = tier.map_err(|unknown| (self.tier.span(), LineError::Tier(named(), unknown)))?;
        if self.name.as_ref().trim().is_empty() {
            return Err((self.name.span(), LineError::Name));
        }
        let name = self.name.into_inner();
        Ok((digest, Key { name, tier, limit }))
    }

    fn limit(&self) -> Result<Option<RateLimit>, Mistake> {
        let Some(rate) = &self.rate else {
            let burst = self.burst.as_ref();
            return match burst {
                Some(burst) => Err((burst.span(), LineError::BurstWithoutRate)),
                None => Ok(None),
            };
        };
        let per_second = *rate.as_ref();
        if !(RATE_MIN..=RATE_MAX).contains(&per_second) {
            return Err((rate.span(), LineError::Rate));
        }
        let burst = match &self.burst {
            // In range: a rate's upper bound is the burst's.
            None => per_second.ceil() as u32,
            Some(burst) => u32::try_from(*burst.as_ref())
                .ok()
                .filter(|count| (1..=BURST_MAX).contains(count))
                .ok_or_else(|| (burst.span(), LineError::Burst))?,
        };
        Ok(Some(RateLimit::new(per_second, burst)))
    }
}

/// The line, counted from 1, that the byte at `offset` stands on.
fn line_of(text: &str, offset: usize) -> usize {
    let before = &text.as_bytes()[..offset.min(text.len())];
    1 + before.iter().filter(|byte| **byte == b'\n').count()
}

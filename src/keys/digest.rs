//! Digests of keys.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::hint::black_box;

use sha2::{Digest as _, Sha256};

/// A SHA-256 digest that is compared in constant time and not printed.
#[derive(Clone, Copy, Eq)]
pub(super) struct Digest(pub(super) [u8; 32]);

impl Digest {
    /// The digest of `text`.
    pub(super) fn of(text: &str) -> Digest {
        Digest(Sha256::digest(text).into())
    }

    /// 64 lower-case hex digits.
    pub(super) fn from_hex(text: &str) -> Option<Digest> {
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = hex_digit(pair[0])? << 4 | hex_digit(pair[1])?;
        }
        Some(Digest(bytes))
    }
}

fn hex_digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

impl PartialEq for Digest {
    /// Reads all bytes of both, wherever they differ first.
    fn eq(&self, other: &Digest) -> bool {
        let pairs = self.0.iter().zip(&other.0);
        // The black box keeps the compiler from turning the loop back into one that stops early.
        let difference = pairs.fold(0, |sum, (one, two)| black_box(sum | (one ^ two)));
        difference == 0
    }
}

impl Hash for Digest {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digest(..)")
    }
}

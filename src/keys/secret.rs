//! The secret that a server and its workers share, so that nobody else can send them batches.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::digest::Digest;
use crate::files;

/// A shared secret. It is never printed, and guesses at it are compared as digests, in constant time.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    text: Arc<str>,
    digest: Digest,
}

impl Secret {
    /// Takes `text` for a secret, without the white space around it: a file usually ends with a line feed.
    ///
    /// # Errors
    /// It is empty, or can't stand in a header; says so.
    pub fn new(text: &str) -> Result<Secret, &'static str> {
        let text = text.trim();
        if text.is_empty() {
            return Err("the secret is empty");
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(
                "the secret must be one word of visible ASCII characters, such as openssl rand -hex 32 prints",
            );
        }
        Ok(Secret {
            text: text.into(),
            digest: Digest::of(text),
        })
    }

    /// Reads a file that holds nothing but the secret.
    ///
    /// # Errors
    /// It can't be read, or holds no secret; says so.
    pub fn read(path: &Path) -> Result<Secret, String> {
        let text = files::read_text(path)
            .map_err(|cause| format!("can't read the secret in {}: {cause}", path.display()))?;
        Secret::new(&text).map_err(|problem| format!("{}: {problem}", path.display()))
    }

    /// Whether `guess` is the secret.
    pub fn is(&self, guess: &str) -> bool {
        Digest::of(guess) == self.digest
    }

    /// The secret itself, to be sent to a worker.
    pub fn expose(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_known_by_its_text_and_not_printed() {
        let secret = Secret::new(" s3cret\n").expect("a secret");
        assert!(secret.is("s3cret") && secret.expose() == "s3cret");
        for guess in ["", "s3cre", "s3cret ", "S3cret"] {
            assert!(!secret.is(guess), "{guess:?}");
        }
        assert_eq!(format!("{secret:?}"), "Secret(..)");
    }

    #[test]
    fn what_no_header_can_carry_is_no_secret() {
        for text in ["", " \n", "two words", "line\nfeed", "ümlaut"] {
            assert!(Secret::new(text).is_err(), "{text:?}");
        }
        assert!(Secret::read(Path::new("/nonexistent/secret")).is_err());
    }
}

//! What `parameters` may be made of, beyond being a JSON object. Pure; called by `inference`.
//!
//! They travel on as the text they came in, in one batch with those of others, to executors whose JSON readers have limits
//! of their own: on nesting, on the digits of a number, on its size, on half a surrogate pair. A reader that gives up there
//! gives up on the whole batch. So what goes on is what any of them reads: the bounds here lie well within all of theirs.
//!
//! One pass, without recursion and with a few words of state, since it runs on a coroutine's stack.

/// Deepest nesting of objects and arrays; the object itself counts.
pub const DEPTH_MAX: usize = 32;
/// Longest number, in characters.
pub const NUMBER_CHARS_MAX: usize = 64;

/// What is out of bounds, and where in the text.
#[derive(Debug, PartialEq, Eq)]
pub struct Beyond {
    /// For the caller.
    pub problem: &'static str,
    /// Offset of its first byte.
    pub at: usize,
}

/// Checks `json`, which is a whole JSON value. Of any other text it says something, and never panics.
///
/// # Errors
/// The first thing that is out of bounds.
#[inline(never)]
pub fn check(json: &str) -> Result<(), Beyond> {
    let bytes = json.as_bytes();
    let (mut at, mut depth) = (0, 0_usize);
    while let Some(&byte) = bytes.get(at) {
        let beyond = |problem| Err(Beyond { problem, at });
        at = match byte {
            b'"' => after_string(bytes, at + 1)?,
            b'-' | b'0'..=b'9' => {
                let length = number_length(&bytes[at..]);
                if length > NUMBER_CHARS_MAX {
                    return beyond("a number in `parameters` is longer than 64 characters");
                }
                if !is_finite(&json[at..at + length]) {
                    return beyond(
                        "a number in `parameters` is beyond what a 64-bit float can hold",
                    );
                }
                at + length
            }
            b'{' | b'[' => {
                depth += 1;
                if depth > DEPTH_MAX {
                    return beyond("`parameters` is nested more than 32 deep");
                }
                at + 1
            }
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                at + 1
            }
            _ => at + 1,
        };
    }
    Ok(())
}

fn number_length(bytes: &[u8]) -> usize {
    let is_part = |byte: &u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
    bytes.iter().take_while(|byte| is_part(byte)).count()
}

/// Without an exponent no number of the length that is allowed is too large.
fn is_finite(number: &str) -> bool {
    !number.contains(['e', 'E']) || serde_json::from_str::<f64>(number).is_ok()
}

/// Where the string ends whose text begins at `at`.
fn after_string(bytes: &[u8], mut at: usize) -> Result<usize, Beyond> {
    while let Some(&byte) = bytes.get(at) {
        at += match byte {
            b'"' => return Ok(at + 1),
            b'\\' => escape_length(&bytes[at..]).ok_or(Beyond {
                problem: "a string in `parameters` has half a surrogate pair",
                at,
            })?,
            _ => 1,
        };
    }
    Ok(at)
}

/// Bytes of the escape sequence that `bytes` begins with, or of two that are one character; `None` for half of one.
fn escape_length(bytes: &[u8]) -> Option<usize> {
    match code_unit(bytes) {
        Some(0xD800..=0xDBFF) => match code_unit(bytes.get(6..)?) {
            Some(0xDC00..=0xDFFF) => Some(12),
            _ => None,
        },
        Some(0xDC00..=0xDFFF) => None,
        Some(_) => Some(6),
        None => Some(2),
    }
}

/// The number in `\uXXXX`.
fn code_unit(bytes: &[u8]) -> Option<u32> {
    let digits = bytes.get(..6)?.strip_prefix(b"\\u")?;
    digits.iter().try_fold(0, |number, &digit| {
        Some(number << 4 | char::from(digit).to_digit(16)?)
    })
}

#[cfg(test)]
#[path = "bounds_tests.rs"]
mod tests;

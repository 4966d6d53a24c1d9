//! How many words and punctuation marks a text has, for executors that do not report tokens: only a rough measure.
//!
//! Called for every answer, on the acceptor core, with texts that a caller chose; so 64 KiB may take no longer in one
//! script than in another. Telling letters from marks takes a search in Unicode's tables: 8 ms for 64 KiB of Korean, in
//! which the core serves nobody else. So what such a search gave is kept, a byte for each character, and the same text
//! takes 20 us. The table fills as characters come up: most servers never see most scripts.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Counts words and punctuation marks: a word is a run of letters, digits and underscores, and any other visible
/// character counts by itself.
pub fn count_tokens(text: &str) -> u64 {
    let mut count = 0;
    let mut in_word = false;
    for character in text.chars() {
        let class = KNOWN.class_of(character);
        count += u64::from(class == Class::Mark || (class == Class::Word && !in_word));
        in_word = class == Class::Word;
    }
    count
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Class {
    Space = 1,
    Word = 2,
    Mark = 3,
}

/// By Unicode's tables.
fn looked_up(character: char) -> Class {
    if character.is_alphanumeric() || character == '_' {
        Class::Word
    } else if character.is_whitespace() || character.is_control() {
        Class::Space
    } else {
        Class::Mark
    }
}

/// Planes 0 to 3 hold all letters and all space there is.
const KNOWN_MAX: usize = 0x4_0000;

/// Classes that have been looked up; 0 where nobody has yet. Pages that no text touches take no memory.
struct Known([AtomicU8; KNOWN_MAX]);

static KNOWN: Known = Known([const { AtomicU8::new(0) }; KNOWN_MAX]);

impl Known {
    #[inline]
    fn class_of(&self, character: char) -> Class {
        const SPACE: u8 = Class::Space as u8;
        const WORD: u8 = Class::Word as u8;
        const MARK: u8 = Class::Mark as u8;
        let Some(known) = self.0.get(character as usize) else {
            return Class::Mark;
        };
        // Relaxed: whoever looks a character up finds the same, so it does not matter who is first.
        match known.load(Relaxed) {
            SPACE => Class::Space,
            WORD => Class::Word,
            MARK => Class::Mark,
            _ => Known::look_up(character, known),
        }
    }

    #[cold]
    fn look_up(character: char, known: &AtomicU8) -> Class {
        let class = looked_up(character);
        known.store(class as u8, Relaxed);
        class
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The same by Unicode's tables alone.
    fn naive(text: &str) -> u64 {
        let mut count = 0;
        let mut previous = Class::Space;
        for class in text.chars().map(looked_up) {
            let begins = class == Class::Word && previous != Class::Word;
            count += u64::from(class == Class::Mark || begins);
            previous = class;
        }
        count
    }

    #[test]
    fn tokens_are_words_and_punctuation_marks() {
        for (text, count) in [
            ("", 0),
            (" \t\r\n\0\u{a0}\u{3000}", 0),
            ("What is the capital of France?", 7),
            ("The capital of France is Paris.", 7),
            ("snake_case x2 ...", 5),
            ("naïve café — élan", 4),
            ("日本語", 1),
            ("«oui»", 3),
            ("😀😀", 2),
            ("\u{10ffff}", 1),
        ] {
            assert_eq!(count_tokens(text), count, "{text:?}");
        }
    }

    #[test]
    fn every_character_is_taken_for_what_it_is_at_every_look() {
        for character in '\0'..=char::MAX {
            let class = looked_up(character);
            assert_eq!(KNOWN.class_of(character), class, "{character:?}");
            assert_eq!(KNOWN.class_of(character), class, "{character:?}");
        }
    }

    proptest! {
        #[test]
        fn counts_what_the_tables_count(text in "\\PC{0,80}|[ -~]{0,80}|.{0,80}") {
            prop_assert_eq!(count_tokens(&text), naive(&text));
        }
    }

    /// Run by hand: `cargo test --release --lib -- --ignored --nocapture no_script`.
    #[test]
    #[ignore = "measures time"]
    fn no_script_takes_much_longer_than_another() {
        for sample in ["a", "ab ", "é", "пр", "語", "한국", "😀", "𠀀"] {
            let text = sample.repeat((64 << 10) / sample.len());
            let micros = |count: fn(&str) -> u64| {
                let started = crate::clock::now();
                std::hint::black_box(count(&text));
                crate::clock::now().since(started).as_micros()
            };
            micros(count_tokens);
            let (kept, looked_up) = (micros(count_tokens), micros(naive));
            println!("{sample:?}: {kept} us, by Unicode's tables {looked_up} us");
            assert!(kept < 1_000);
        }
    }
}

//! A batch as a kernel gets it, and what is to become of it.

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

/// Output rooms start at multiples of this many bytes.
pub const ALIGNMENT: u32 = 16;

/// What memory holds that no kernel has written.
pub const UNTOUCHED: u8 = 0xA5;

/// Bytes in front of and behind the output area that nobody may write.
pub const GUARD: usize = 64;

/// One launch.
#[derive(Clone, Debug)]
pub struct Batch {
    pub kernel: &'static str,
    /// Threads of a block.
    pub block: u32,
    pub work_us: u32,
    /// Where the packed inputs start, in bytes behind an address that is a multiple of 16.
    pub misalignment: u32,
    pub inputs: Vec<Vec<u8>>,
    /// The bytes that each output has, multiples of [`ALIGNMENT`] except for the last.
    pub rooms: Vec<u32>,
}

impl Batch {
    /// Where each of `sizes` starts when they follow each other, and where the last of them ends.
    fn offsets(sizes: impl Iterator<Item = u32>) -> Vec<u32> {
        let mut offsets = vec![0];
        offsets.extend(sizes.scan(0, |end, size| {
            *end += size;
            Some(*end)
        }));
        offsets
    }

    pub fn input_offsets(&self) -> Vec<u32> {
        Batch::offsets(self.inputs.iter().map(|input| input.len() as u32))
    }

    pub fn output_offsets(&self) -> Vec<u32> {
        Batch::offsets(self.rooms.iter().copied())
    }

    /// The output area with its guards, if output i is `answers[i]` as far as it has room and nothing else was written.
    pub fn area(&self, answers: &[Vec<u8>]) -> Vec<u8> {
        let offsets = self.output_offsets();
        let mut area = vec![UNTOUCHED; GUARD + offsets[self.rooms.len()] as usize + GUARD];
        for (i, answer) in answers.iter().enumerate() {
            let start = GUARD + offsets[i] as usize;
            let fits = answer.len().min(self.rooms[i] as usize);
            area[start..start + fits].copy_from_slice(&answer[..fits]);
        }
        area
    }
}

/// What is in an input.
#[derive(Clone, Copy, Debug)]
pub enum Content {
    /// Any bytes at all.
    Bytes,
    /// Letters, digits and spaces.
    Text,
    /// Valid UTF-8 with characters of one to four bytes.
    Unicode,
}

/// An input of exactly `length` bytes.
pub fn content(kind: Content, length: usize, seed: u64) -> Vec<u8> {
    const TEXT: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@[`{    ";
    const UNICODE: [char; 12] = [
        'a', 'z', 'Z', '`', '{', 'ß', 'é', 'İ', 'ﬁ', '日', '語', '🚡',
    ];
    let mut random = SmallRng::seed_from_u64(seed);
    match kind {
        Content::Bytes => (0..length).map(|_| random.random()).collect(),
        Content::Text => (0..length)
            .map(|_| TEXT[random.random_range(0..TEXT.len())])
            .collect(),
        Content::Unicode => {
            let mut text = String::with_capacity(length);
            while text.len() < length {
                let next = UNICODE[random.random_range(0..UNICODE.len())];
                let fits = text.len() + next.len_utf8() <= length;
                text.push(if fits { next } else { 'q' });
            }
            text.into_bytes()
        }
    }
}

/// The smallest room that a server gives an output of `length` bytes.
pub fn room_for(length: usize) -> u32 {
    (length as u32).next_multiple_of(ALIGNMENT)
}

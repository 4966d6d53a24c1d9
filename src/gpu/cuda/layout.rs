//! Where everything of a batch lies in the buffers, and what the bytes that came back mean. Pure.
//!
//! ```text
//!  in    input offsets (count + 1) │ output offsets (count + 1) │ pad │ all inputs, packed
//!  out   output lengths (count)    │ statuses (count)           │ pad │ room 0 │ room 1 │ …
//! ```
//!
//! Both parts are dense for the batch at hand, so that one copy each way moves what is used and no more. Numbers are `u32` in
//! the machine's byte order; `pad` fills up to a multiple of 16, and so does each room.
//!
//! Nothing that a kernel writes is believed: an output is read only as far as its own room goes, and only if it is UTF-8.

use std::ops::Range;

use super::argument::{OUTPUT_ALIGNMENT, STATUS_OK, STATUS_REFUSED, UNSET};
use crate::config::keys;
use crate::ticket::{Input, Output};

const WORD: usize = size_of::<u32>();

/// How much room an output gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rooms {
    /// So many times its input's length,
    pub factor: usize,
    /// and so many bytes more,
    pub extra: usize,
    /// but no more than this, and what fills it up to a multiple of 16.
    pub most: usize,
}

impl Rooms {
    /// The room for the output of an input of `length` bytes.
    pub fn of(self, length: usize) -> usize {
        aligned(self.wanted(length).min(self.most))
    }

    fn wanted(self, length: usize) -> usize {
        self.factor
            .saturating_mul(length)
            .saturating_add(self.extra)
    }

    /// The settings that gave an input of `length` bytes its room.
    fn settings(self, length: usize) -> String {
        if self.wanted(length) > self.most {
            keys::OUTPUT_MAX_BYTES.flag.to_owned()
        } else {
            format!(
                "{} or {}",
                keys::CUDA_OUTPUT_FACTOR.flag,
                keys::CUDA_OUTPUT_EXTRA.flag
            )
        }
    }
}

/// The next multiple of 16.
fn aligned(bytes: usize) -> usize {
    bytes.saturating_add(OUTPUT_ALIGNMENT - 1) / OUTPUT_ALIGNMENT * OUTPUT_ALIGNMENT
}

/// The sizes of the buffers of one half, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// What goes up.
    pub input: usize,
    /// What comes down.
    pub output: usize,
}

impl Sizes {
    /// What batches of up to `batch_max` inputs of up to `input_max` bytes need. `None` if that is more than offsets of four
    /// bytes can tell.
    pub fn needed(batch_max: usize, input_max: usize, rooms: Rooms) -> Option<Sizes> {
        let addressable = |bytes: &usize| u32::try_from(*bytes).is_ok();
        let inputs = batch_max.checked_mul(input_max)?;
        let outputs = batch_max.checked_mul(rooms.of(input_max))?;
        let sizes = Sizes {
            input: inputs.checked_add(aligned(2 * WORD * (batch_max + 1)))?,
            output: outputs.checked_add(aligned(2 * WORD * batch_max))?,
        };
        (addressable(&sizes.input) && addressable(&sizes.output)).then_some(sizes)
    }

    /// Of both halves together, once on the device and once here.
    pub fn total(self) -> usize {
        2 * (self.input + self.output)
    }
}

/// A batch that the buffers have no room for: our own limits were not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a batch of {count} inputs, {bytes} bytes together, does not fit into the buffers made for the limits"
)]
pub struct Misfit {
    count: usize,
    bytes: usize,
}

/// Where everything of one batch lies. All zero before the first one.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    rooms: Option<Rooms>,
    /// Length of each input.
    lengths: Vec<usize>,
    /// Where each room starts in the output area, and where the last one ends.
    starts: Vec<usize>,
    input_bytes: usize,
}

impl Layout {
    /// Packs `inputs` into `buffer`.
    ///
    /// # Errors
    /// [`Misfit`] if there are none or they don't fit into buffers of these `sizes`. Then there is no batch here.
    pub fn pack(
        &mut self,
        inputs: &[Input],
        rooms: Rooms,
        sizes: Sizes,
        buffer: &mut [u8],
    ) -> Result<(), Misfit> {
        self.rooms = Some(rooms);
        self.lengths.clear();
        self.lengths
            .extend(inputs.iter().map(|input| input.text.len()));
        self.starts.clear();
        let mut end = 0;
        self.starts.push(end);
        for &length in &self.lengths {
            end += rooms.of(length);
            self.starts.push(end);
        }
        self.input_bytes = self.lengths.iter().sum();
        let fits = self.upload_bytes() <= sizes.input.min(buffer.len());
        if inputs.is_empty() || !fits || self.download_bytes() > sizes.output {
            let (count, bytes) = (inputs.len(), self.input_bytes);
            *self = Layout::default();
            return Err(Misfit { count, bytes });
        }
        self.write(inputs, buffer);
        Ok(())
    }

    fn write(&self, inputs: &[Input], buffer: &mut [u8]) {
        let (offsets, packed) = buffer.split_at_mut(self.input_at());
        let (mut words, mut at) = (offsets.chunks_exact_mut(WORD), 0);
        let mut put = |number: usize| {
            let word = words.next().expect("room for two lists of offsets");
            word.copy_from_slice(&number_bytes(number));
        };
        for input in inputs {
            put(at);
            let end = at + input.text.len();
            packed[at..end].copy_from_slice(input.text.as_bytes());
            at = end;
        }
        put(at);
        self.starts.iter().for_each(|start| put(*start));
    }

    /// Number of inputs.
    pub fn count(&self) -> usize {
        self.lengths.len()
    }

    /// Where the offsets of the rooms start in what goes up.
    pub fn output_offsets_at(&self) -> usize {
        WORD * (self.count() + 1)
    }

    /// Where the inputs start in what goes up.
    pub fn input_at(&self) -> usize {
        aligned(2 * WORD * (self.count() + 1))
    }

    /// Bytes that go up.
    pub fn upload_bytes(&self) -> usize {
        self.input_at() + self.input_bytes
    }

    /// Where the statuses start in what comes down; the lengths are before them.
    pub fn statuses_at(&self) -> usize {
        WORD * self.count()
    }

    /// Where the rooms start in what comes down. Lengths and statuses are before them.
    pub fn output_at(&self) -> usize {
        aligned(2 * WORD * self.count())
    }

    /// Bytes of all rooms.
    pub fn output_bytes(&self) -> usize {
        self.starts.last().copied().unwrap_or_default()
    }

    /// Bytes that come down.
    pub fn download_bytes(&self) -> usize {
        self.output_at() + self.output_bytes()
    }

    /// What came back for each input.
    ///
    /// # Panics
    /// If `buffer` is shorter than what comes down.
    pub fn results(&self, buffer: &[u8]) -> Vec<Result<Output, String>> {
        (0..self.count())
            .map(|index| self.result(index, buffer))
            .collect()
    }

    fn room(&self, index: usize) -> Range<usize> {
        self.output_at() + self.starts[index]..self.output_at() + self.starts[index + 1]
    }

    fn result(&self, index: usize, buffer: &[u8]) -> Result<Output, String> {
        let length = number_at(buffer, WORD * index);
        let status = number_at(buffer, self.statuses_at() + WORD * index);
        if status != STATUS_OK && status != STATUS_REFUSED {
            return Err(match status {
                UNSET => "the kernel has set no status for this input".to_owned(),
                status => format!("the kernel has set the status {status}, which means nothing"),
            });
        }
        let room = &buffer[self.room(index)];
        let text = match usize::try_from(length)
            .ok()
            .and_then(|length| room.get(..length))
        {
            Some(text) => text,
            None if length == UNSET => {
                return Err("the kernel has set no length for this input's output".to_owned());
            }
            None => return Err(self.too_long(index, length)),
        };
        let text = std::str::from_utf8(text)
            .map_err(|error| format!("the kernel's output is not UTF-8: {error}"))?;
        if status == STATUS_REFUSED {
            let reason = if text.is_empty() {
                "the kernel refuses this input"
            } else {
                text
            };
            return Err(reason.to_owned());
        }
        Ok(Output {
            text: text.to_owned(),
            tokens: None,
        })
    }

    fn too_long(&self, index: usize, length: u32) -> String {
        let room = self.room(index).len();
        let settings = self
            .rooms
            .map_or(String::new(), |rooms| rooms.settings(self.lengths[index]));
        format!(
            "the kernel's output has {length} bytes, and there is room for {room}: raise {settings}"
        )
    }
}

/// As the device reads it. All offsets are below 4 GiB: [`Sizes::needed`] has seen to it.
fn number_bytes(number: usize) -> [u8; WORD] {
    u32::try_from(number)
        .expect("buffers are smaller than 4 GiB")
        .to_ne_bytes()
}

fn number_at(buffer: &[u8], at: usize) -> u32 {
    let bytes = buffer[at..at + WORD].try_into();
    u32::from_ne_bytes(bytes.expect("four bytes"))
}

#[cfg(test)]
mod tests;

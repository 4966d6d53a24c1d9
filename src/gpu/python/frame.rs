//! The frames between a GPU thread and its worker process. Pure: bytes in, frames out.
//!
//! A frame is its length (of all that follows), a letter for its kind, and a body. Numbers are little-endian, `u32`
//! unless said otherwise.
//!
//! ```text
//! server → worker, first socket
//!   (no letter)  the source: signals.py and worker.py
//!   (no letter)  descriptor · longest output             of the second socket; in bytes
//!   B  half u8 · number · count · extras u8 · length × count · for each of the extras: [length or NONE × count]
//!      · texts · for each of the extras: texts           run this
//!   G  half u8 · number                                  run what was staged there
//! server → worker, second socket
//!   B  …                                                 stage this; what was in that half is withdrawn
//! worker → server, first socket
//!   P  text                                              how far the start has come
//!   F  length · message · traceback                      the start failed
//!   R  extras u8 · length · name · version of Python     ready; these extras the function takes, the parameters in an
//!                                                        argument of this other name
//!   N  number                                            the function is through with a batch; D follows
//!   D  number · count · kind u8 × count · length × count · [tokens u64 × count, if a kind says so] · texts
//!   E  number · length · message · traceback             the batch function raised
//! ```
//!
//! The extras are what a function may get beside the inputs, a bit for each, in this order: 1 the parameters of the requests, 2
//! their ids. Only what the function takes is sent, and nothing that no request of the batch has.
//!
//! `number` counts the batches of a worker's life, so that a result can't be taken for another batch's. The worker runs
//! the user's code, so nothing in its frames is believed unchecked.

use crate::gpu::executor::Half;
use crate::ticket::{Input, Output};

/// What a batch function is given beside the inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extras {
    pub parameters: bool,
    pub request_ids: bool,
}

impl Extras {
    fn of_bits(bits: u8) -> Extras {
        Extras {
            parameters: bits & 1 != 0,
            request_ids: bits & 2 != 0,
        }
    }

    fn bits(self) -> u8 {
        u8::from(self.parameters) | u8::from(self.request_ids) << 1
    }

    /// For people: what a function is given that takes them.
    pub fn in_words(self) -> &'static str {
        match (self.parameters, self.request_ids) {
            (false, false) => "inputs",
            (true, false) => "inputs and parameters",
            (false, true) => "inputs and request ids",
            (true, true) => "inputs, parameters and request ids",
        }
    }
}

/// An input that has nothing of the kind.
const NONE: u32 = u32::MAX;

/// Largest frame that a worker may send, in bytes. Beyond it something is wrong with the function, or with the worker.
const FRAME_BYTES_MAX: usize = 1 << 30;

const LENGTH_BYTES: usize = 4;

/// What an input has of one kind of extra.
type Extra = fn(&Input) -> Option<&str>;

/// What a worker says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// How far its start has come.
    Progress(String),
    /// The start failed.
    Failed(Complaint),
    /// It can run batches.
    Ready {
        /// Of its Python.
        version: String,
        /// What the function takes beside the inputs.
        takes: Extras,
        /// The argument that gets the parameters, if it is not called that; else empty.
        other_name: String,
    },
    /// The function is through with a batch, and didn't raise; the results follow.
    Ended { number: u32 },
    /// A batch is back: result i belongs to input i.
    Done {
        number: u32,
        results: Vec<Result<Output, String>>,
    },
    /// The batch function raised.
    Raised { number: u32, complaint: Complaint },
}

/// What went wrong, in one line for the caller and in many for the log.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Complaint {
    /// The last line of the traceback, or what to do.
    pub message: String,
    /// All of it; empty where none of the user's code took part.
    pub traceback: String,
}

/// A worker sent what is no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its worker sent something that is no answer (a frame of {0} bytes)")]
pub(super) struct Malformed(usize);

/// Appends the frame that hands the worker its own source.
pub(super) fn source(into: &mut Vec<u8>, text: &str) {
    framed(into, |body| body.extend_from_slice(text.as_bytes()));
}

/// Appends the frame that tells the worker which of its descriptors is the second socket, and how long an output may be:
/// of longer ones it sends only so much that they can be told.
pub(super) fn terms(into: &mut Vec<u8>, descriptor: u32, output_max: usize) {
    // No frame holds more.
    let output_max = size(output_max.min(FRAME_BYTES_MAX));
    framed(into, |body| {
        put(body, descriptor);
        put(body, output_max);
    });
}

/// Appends the frame that holds the batch of `inputs` for a function that `takes` these extras.
pub(super) fn batch(into: &mut Vec<u8>, half: Half, number: u32, inputs: &[Input], takes: Extras) {
    let parameters: Extra = |input| input.parameters.as_deref();
    let request_id: Extra = |input| input.request_id.as_deref();
    let any = |extra: Extra| inputs.iter().any(|input| extra(input).is_some());
    let sent = Extras {
        parameters: takes.parameters && any(parameters),
        request_ids: takes.request_ids && any(request_id),
    };
    let kinds = [
        (sent.parameters, parameters),
        (sent.request_ids, request_id),
    ];
    let extras = || kinds.into_iter().filter(|(is_sent, _)| *is_sent);
    framed(into, |body| {
        body.extend([b'B', half.index() as u8]);
        put(body, number);
        put(body, size(inputs.len()));
        body.push(sent.bits());
        let lengths = inputs.iter().map(|input| input.text.len());
        lengths.for_each(|length| put(body, size(length)));
        for (_, extra) in extras() {
            let lengths = inputs.iter().map(|input| extra(input).map(str::len));
            lengths.for_each(|length| put(body, length.map_or(NONE, size)));
        }
        let texts = inputs.iter().map(|input| &*input.text);
        texts.for_each(|text| body.extend_from_slice(text.as_bytes()));
        for (_, extra) in extras() {
            let texts = inputs.iter().filter_map(extra);
            texts.for_each(|text| body.extend_from_slice(text.as_bytes()));
        }
    });
}

/// Appends the frame that starts what was staged.
pub(super) fn go(into: &mut Vec<u8>, half: Half, number: u32) {
    framed(into, |body| {
        body.extend([b'G', half.index() as u8]);
        put(body, number);
    });
}

fn framed(into: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = into.len();
    put(into, 0);
    fill(into);
    let length = size(into.len() - start - LENGTH_BYTES);
    into[start..start + LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
}

fn put(into: &mut Vec<u8>, number: u32) {
    into.extend_from_slice(&number.to_le_bytes());
}

/// Sizes of inputs and batches are limited far below 4 GiB by the configuration.
fn size(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("a batch is smaller than 4 GiB")
}

/// The first frame in `bytes` and its length with all that belongs to it, if it is there in full.
///
/// # Errors
/// [`Malformed`]: the worker can't be trusted any more.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<(Frame, usize)>, Malformed> {
    let Some((head, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else {
        return Ok(None);
    };
    let length = u32::from_le_bytes(*head) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(Malformed(length));
    }
    let Some(body) = rest.get(..length) else {
        return Ok(None);
    };
    let frame = Reader(body).frame().ok_or(Malformed(length))?;
    Ok(Some((frame, LENGTH_BYTES + length)))
}

/// What is left of a frame to be read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn frame(&mut self) -> Option<Frame> {
        let frame = match self.byte()? {
            b'P' => Frame::Progress(self.rest_as_text()),
            b'F' => Frame::Failed(self.complaint()?),
            b'R' => {
                let takes = Extras::of_bits(self.byte()?);
                let length = self.number()? as usize;
                let other_name = String::from_utf8_lossy(self.take(length)?).into_owned();
                Frame::Ready {
                    version: self.rest_as_text(),
                    takes,
                    other_name,
                }
            }
            b'N' => Frame::Ended {
                number: self.number()?,
            },
            b'D' => Frame::Done {
                number: self.number()?,
                results: self.results()?,
            },
            b'E' => Frame::Raised {
                number: self.number()?,
                complaint: self.complaint()?,
            },
            _ => return None,
        };
        self.0.is_empty().then_some(frame)
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    fn number(&mut self) -> Option<u32> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*taken))
    }

    fn rest_as_text(&mut self) -> String {
        String::from_utf8_lossy(std::mem::take(&mut self.0)).into_owned()
    }

    fn complaint(&mut self) -> Option<Complaint> {
        let length = self.number()? as usize;
        let message = String::from_utf8_lossy(self.take(length)?).into_owned();
        Some(Complaint {
            message,
            traceback: self.rest_as_text(),
        })
    }

    fn results(&mut self) -> Option<Vec<Result<Output, String>>> {
        let count = self.number()? as usize;
        let kinds = self.take(count)?;
        let lengths = self.take(count.checked_mul(4)?)?;
        let with_tokens = kinds.contains(&1);
        let tokens = if with_tokens {
            self.take(count.checked_mul(8)?)?
        } else {
            &[]
        };
        let mut tokens = tokens
            .chunks_exact(8)
            .map(|bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")));
        let lengths = lengths
            .chunks_exact(4)
            .map(|bytes| u32::from_le_bytes(bytes.try_into().expect("4 bytes")));
        let mut results = Vec::with_capacity(count);
        for (kind, length) in kinds.iter().zip(lengths) {
            let text = std::str::from_utf8(self.take(length as usize)?)
                .ok()?
                .to_owned();
            let used = tokens.next();
            results.push(match kind {
                0 => Ok(Output { text, tokens: None }),
                1 => Ok(Output { text, tokens: used }),
                2 => Err(text),
                _ => return None,
            });
        }
        Some(results)
    }
}

#[cfg(test)]
mod tests;

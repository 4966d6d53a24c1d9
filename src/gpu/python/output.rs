//! What the user's code prints: line by line to the log, with the GPU's name.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};

/// Longer lines are cut into pieces of this many bytes.
const LINE_BYTES_MAX: usize = 8 << 10;

/// Read at one go, so that code that prints without end does not keep the GPU thread from its batch.
const READ_BYTES: usize = 64 << 10;

/// One of a worker's two streams.
#[derive(Debug)]
pub(super) struct Stream<R> {
    pipe: Option<R>,
    lines: Lines,
    /// The last line that says something.
    last: String,
}

impl<R: Read + AsFd> Stream<R> {
    /// A stream that comes out of `pipe`.
    pub(super) fn new(pipe: Option<R>) -> Stream<R> {
        Stream {
            pipe,
            lines: Lines::default(),
            last: String::new(),
        }
    }

    /// The descriptor to poll, until the stream ends.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Reads once, which does not block after a poll that found something, and gives each whole line to `each`.
    pub(super) fn read(&mut self, mut each: impl FnMut(&str)) {
        let mut bytes = [0; READ_BYTES];
        let count = self
            .pipe
            .as_mut()
            .map_or(0, |pipe| pipe.read(&mut bytes).unwrap_or(0));
        let last = &mut self.last;
        let mut tell = |line: &str| {
            line.clone_into(last);
            each(line);
        };
        if count == 0 {
            self.pipe = None;
            self.lines.end(&mut tell);
        } else {
            self.lines.push(&bytes[..count], &mut tell);
        }
    }

    /// The last line that says something; empty if none has come.
    pub(super) fn last(&self) -> &str {
        &self.last
    }
}

/// Bytes to lines. A carriage return ends one too: progress bars print little else.
#[derive(Debug, Default)]
struct Lines {
    begun: Vec<u8>,
}

impl Lines {
    fn push(&mut self, bytes: &[u8], each: &mut impl FnMut(&str)) {
        for byte in bytes {
            match byte {
                b'\n' | b'\r' => self.end(each),
                byte => self.begun.push(*byte),
            }
            if self.begun.len() >= LINE_BYTES_MAX {
                self.end(each);
            }
        }
    }

    fn end(&mut self, each: &mut impl FnMut(&str)) {
        let text = String::from_utf8_lossy(&self.begun);
        // No escape sequences: the log is read in terminals.
        let line: String = text
            .chars()
            .filter(|char| !char.is_control() || *char == '\t')
            .collect();
        self.begun.clear();
        if !line.trim().is_empty() {
            each(line.trim_end());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&[u8]]) -> Vec<String> {
        let (mut lines, mut all) = (Lines::default(), Vec::new());
        let mut each = |line: &str| all.push(line.to_owned());
        pieces.iter().for_each(|piece| lines.push(piece, &mut each));
        lines.end(&mut each);
        all
    }

    #[test]
    fn lines_end_where_they_end_however_they_arrive() {
        let whole = ["ab", "c\td", "last"];
        assert_eq!(lines(&[b"ab\nc\td\n\n  \nlast"]), whole);
        assert_eq!(lines(&[b"a", b"b\n", b"c\td\r", b"\nla", b"st"]), whole);
    }

    #[test]
    fn what_is_no_text_or_no_line_is_still_shown() {
        assert_eq!(lines(&[b"a\xFFb\x1B[1A\n"]), ["a\u{FFFD}b[1A"]);
        let long = vec![b'x'; LINE_BYTES_MAX + 1];
        assert_eq!(
            lines(&[&long]).iter().map(String::len).collect::<Vec<_>>(),
            [LINE_BYTES_MAX, 1]
        );
    }
}

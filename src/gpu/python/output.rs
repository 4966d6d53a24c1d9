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
    crash: Crash,
}

impl<R: Read + AsFd> Stream<R> {
    /// A stream that comes out of `pipe`.
    pub(super) fn new(pipe: Option<R>) -> Stream<R> {
        Stream {
            pipe,
            lines: Lines::default(),
            last: String::new(),
            crash: Crash::default(),
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
        let (last, crash) = (&mut self.last, &mut self.crash);
        let mut tell = |line: &str| {
            if !crash.has(line) {
                line.clone_into(last);
            } else if let Some(words) = crash.words() {
                *last = words;
            }
            each(line);
        };
        if count == 0 {
            self.pipe = None;
            self.lines.end(&mut tell);
        } else {
            self.lines.push(&bytes[..count], &mut tell);
        }
    }

    /// The last line that says something, or what a crash was and where in the user's code; empty if none has come.
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

/// What Python prints when it crashes (its module `faulthandler`), line by line: what it was, and then for each thread the
/// frames, the innermost first, down to the server's own. The last of all these lines says nothing to anybody.
#[derive(Debug, Default)]
struct Crash {
    /// What it was; empty while none is printed.
    what: String,
    /// Whether the frames are of the thread that crashed.
    is_its_thread: bool,
    /// Where it was: the innermost frame outside of what comes with Python or was installed, else the innermost.
    place: String,
    is_users: bool,
}

impl Crash {
    /// Takes the next line; whether it belongs to a crash.
    fn has(&mut self, line: &str) -> bool {
        const BEGINS: &str = "Fatal Python error: ";
        if let Some(what) = line.strip_prefix(BEGINS) {
            *self = Crash {
                what: what.to_owned(),
                ..Crash::default()
            };
            return true;
        }
        if self.what.is_empty() {
            return false;
        }
        if let Some(frame) = line.strip_prefix("  File ") {
            self.frame(frame);
            return true;
        }
        self.is_its_thread = line.starts_with("Current thread 0x");
        let belongs = ["Current thread", "Thread 0x", "Extension modules: ", " "]
            .iter()
            .any(|start| line.starts_with(start));
        if !belongs {
            self.what.clear();
        }
        belongs
    }

    fn frame(&mut self, frame: &str) {
        let is_code = !frame.starts_with("\"<");
        if !self.is_its_thread || self.is_users || !is_code {
            return;
        }
        let foreign = ["/site-packages/", "/dist-packages/", "/lib/python"];
        self.is_users = !foreign.iter().any(|part| frame.contains(part));
        if self.is_users || self.place.is_empty() {
            frame.clone_into(&mut self.place);
        }
    }

    /// What and where it was, as far as is known.
    fn words(&self) -> Option<String> {
        let (what, place) = (&self.what, &self.place);
        match place.is_empty() {
            _ if what.is_empty() => None,
            true => Some(what.clone()),
            false => Some(format!("{what} in {place}")),
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

    /// The last words of what printed these lines.
    fn last_words(text: &str) -> String {
        let (mut crash, mut last) = (Crash::default(), String::new());
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            if !crash.has(line) {
                line.clone_into(&mut last);
            } else if let Some(words) = crash.words() {
                last = words;
            }
        }
        last
    }

    #[test]
    fn of_a_crash_the_users_own_frame_is_told() {
        let crash = r#"
loading
Fatal Python error: Segmentation fault

Thread 0x00007f01 (most recent call first):
  File "/m/other.py", line 3 in wait
  File "<funicular>", line 50 in take

Current thread 0x00007f02 (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/m/model.py", line 7 in inner
  File "/m/model.py", line 9 in batchstring
  File "<funicular>", line 262 in call
  File "<string>", line 14 in <module>

Extension modules: numpy.core._multiarray_umath (total: 1)
"#;
        let place = r#"Segmentation fault in "/m/model.py", line 7 in inner"#;
        assert_eq!(last_words(crash), place);
        let installed = crash.replace("/m/model.py", "/v/site-packages/model.py");
        let place = r#"Segmentation fault in "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at"#;
        assert_eq!(last_words(&installed), place);
        assert_eq!(last_words("Fatal Python error: Aborted\n"), "Aborted");
        assert_eq!(
            last_words(&format!("{crash}It was a child\n")),
            "It was a child"
        );
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

//! Where the log goes: to standard error, by a thread of its own, so that nobody who logs ever waits for long.
//!
//! Whoever reads standard error may stop reading: a stalled collector, a paused terminal. Written directly, the next line
//! would hold its thread for ever, a GPU's or an acceptor core's, and with it everybody else who logs. Here a line waits in a
//! bounded queue. Where that is full the first one waits 100 ms for room; after that, lines are dropped until there is
//! room again, and their number is told. [`Tap::flush`] is for what has to come after the log: the start-up screen, and the end
//! of the process.

use std::io::{self, Write};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, SendTimeoutError, Sender, bounded};

/// Lines that may wait. Those of user code are the longest, 8 KiB.
const LINES_MAX: usize = 4096;

/// How long a line waits for room while it is not known that nobody reads.
const STALL_MAX: Duration = Duration::from_millis(100);

/// Patience is spent in so many parts. When a process is stopped for longer than all of it and goes on, only one of them is
/// over, and the thread that writes gets its turn before the others are.
const PARTS: u32 = 20;

enum Item {
    Line(Vec<u8>),
    /// Everything before it is written when this is dropped.
    Flush(#[expect(dead_code, reason = "dropped, not used")] Sender<()>),
}

/// The end that lines go into; a logger has it.
pub struct Sink {
    items: Sender<Item>,
    stalled: bool,
    lost: u64,
}

/// The end by which one makes sure that they have come out.
#[derive(Clone)]
pub struct Tap(Sender<Item>);

impl Sink {
    /// A sink whose lines a new thread writes to `out`.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn new(out: impl Write + Send + 'static) -> io::Result<(Sink, Tap)> {
        let (items, waiting) = bounded(LINES_MAX);
        let thread = thread::Builder::new().name("log".to_owned());
        thread.spawn(move || drain(&waiting, out))?;
        let tap = Tap(items.clone());
        let sink = Sink {
            items,
            stalled: false,
            lost: 0,
        };
        Ok((sink, tap))
    }

    /// Whether there was room.
    fn put(&mut self, line: Vec<u8>) -> bool {
        let patience = if self.stalled {
            Duration::ZERO
        } else {
            STALL_MAX
        };
        self.stalled = self.items.send_timeout(Item::Line(line), patience).is_err();
        !self.stalled
    }
}

impl Write for Sink {
    /// Takes a whole line, always.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.lost > 0 {
            let lost = self.lost;
            let note = format!("[{lost} lines of the log are lost: nobody read them]\n");
            if self.put(note.into_bytes()) {
                self.lost = 0;
            }
        }
        if self.stalled || !self.put(line.to_vec()) {
            self.lost += 1;
            // Looked at again with the next line.
            self.stalled = true;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Tap {
    /// Waits until all that was logged before is written, at most `patience` for its turn and as long again for the lines.
    pub fn flush(&self, patience: Duration) {
        let part = patience / PARTS;
        let (done, written) = bounded(0);
        let mut item = Item::Flush(done);
        for left in (0..PARTS).rev() {
            item = match self.0.send_timeout(item, part) {
                Ok(()) => break,
                Err(SendTimeoutError::Timeout(item)) if left > 0 => item,
                Err(_) => return,
            };
        }
        // Nothing is ever sent: it ends when the other end is dropped, or when time is up.
        let is_waiting = |_| written.recv_timeout(part) == Err(RecvTimeoutError::Timeout);
        let _ = (0..PARTS).all(is_waiting);
    }
}

fn drain(waiting: &Receiver<Item>, mut out: impl Write) {
    for item in waiting {
        if let Item::Line(line) = item {
            // Closed or broken: there is nobody left to be told.
            let _ = out.write_all(&line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    /// Writes when it is let.
    struct Gate(Receiver<()>, Sender<Vec<u8>>);

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            let _ = self.1.send(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_are_out_in_order_after_a_flush() {
        let (open, gate) = bounded(0);
        drop(open);
        let (out, written) = crossbeam_channel::unbounded();
        let (mut sink, tap) = Sink::new(Gate(gate, out)).expect("a thread");
        for number in 0..100 {
            writeln!(sink, "{number}").expect("taken");
        }
        tap.flush(SOON);
        let all: Vec<u8> = written.try_iter().flatten().collect();
        let expected: String = (0..100).map(|number| format!("{number}\n")).collect();
        assert_eq!(String::from_utf8(all).expect("text"), expected);
    }

    #[test]
    fn where_nobody_reads_lines_are_dropped_and_counted() {
        let (open, gate) = bounded(0);
        let (out, written) = crossbeam_channel::unbounded();
        let (mut sink, tap) = Sink::new(Gate(gate, out)).expect("a thread");
        let all = LINES_MAX + 50;
        for _ in 0..all {
            assert_eq!(sink.write(b"line\n").expect("taken"), 5);
        }
        tap.flush(Duration::from_millis(1));
        drop(open);
        tap.flush(SOON);
        sink.write_all(b"last\n").expect("taken");
        tap.flush(SOON);
        let lines: Vec<Vec<u8>> = written.try_iter().collect();
        let kept = lines.iter().filter(|line| *line == b"line\n").count();
        let note = format!(
            "[{} lines of the log are lost: nobody read them]\n",
            all - kept
        );
        assert!((LINES_MAX..all).contains(&kept), "{kept}");
        assert!(lines.ends_with(&[note.into_bytes(), b"last\n".to_vec()]));
    }
}

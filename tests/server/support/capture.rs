//! What a child process writes, while it does.

use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use super::BOUND;

/// What a child writes to one of its streams.
#[derive(Default)]
pub struct Capture {
    state: Mutex<Captured>,
    news: Condvar,
}

#[derive(Default)]
struct Captured {
    text: String,
    ended: bool,
}

impl Capture {
    /// Reads `stream` to its end, on a thread.
    pub fn follow(self: &Arc<Capture>, stream: impl Read + Send + 'static) -> JoinHandle<()> {
        let capture = Arc::clone(self);
        thread::spawn(move || {
            let mut stream = BufReader::new(stream);
            let mut line = Vec::new();
            while matches!(stream.read_until(b'\n', &mut line), Ok(bytes) if bytes > 0) {
                capture.change(|captured| captured.text.push_str(&String::from_utf8_lossy(&line)));
                line.clear();
            }
            capture.change(|captured| captured.ended = true);
        })
    }

    fn change(&self, change: impl FnOnce(&mut Captured)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.news.notify_all();
    }

    /// What there is so far.
    pub fn text(&self) -> String {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.text.clone()
    }

    /// The text once `enough` likes it; `None` if the stream ends, or [`BOUND`] passes, before.
    pub fn wait_until(&self, enough: impl Fn(&str) -> bool) -> Option<String> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let going_on = |state: &mut Captured| !enough(&state.text) && !state.ended;
        let waited = self.news.wait_timeout_while(state, BOUND, going_on);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        enough(&state.text).then(|| state.text.clone())
    }
}

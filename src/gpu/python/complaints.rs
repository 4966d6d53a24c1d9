//! Tracebacks for the log: whole, but not the same one over and over. The search for an input at fault makes the function
//! raise several times, and callers may send such inputs all day.

use std::time::Duration;

use super::frame::Complaint;
use crate::clock::{self, Time};

/// The same traceback is logged again only after this.
const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// What a GPU's worker has complained about.
#[derive(Debug)]
pub(super) struct Complaints {
    gpu: usize,
    last: Option<(String, Time)>,
    started: String,
}

impl Complaints {
    /// No complaints yet.
    pub(super) fn new(gpu: usize) -> Complaints {
        Complaints {
            gpu,
            last: None,
            started: String::new(),
        }
    }

    /// The worker could not start.
    pub(super) fn started(&mut self, complaint: &Complaint) {
        if !complaint.traceback.is_empty() && self.started != complaint.traceback {
            log::error!(
                "gpu {}: the worker's start failed:\n{}",
                self.gpu,
                complaint.traceback.trim_end()
            );
            self.started.clone_from(&complaint.traceback);
        }
    }

    /// The batch function raised.
    pub(super) fn raised(&mut self, complaint: &Complaint) {
        if complaint.traceback.is_empty() {
            return;
        }
        if self.is_news(&complaint.traceback, clock::now()) {
            log::warn!(
                "gpu {}: the batch function raised:\n{}",
                self.gpu,
                complaint.traceback.trim_end()
            );
        } else {
            log::debug!(
                "gpu {}: the batch function raised again: {}",
                self.gpu,
                complaint.message
            );
        }
    }

    fn is_news(&mut self, traceback: &str, now: Time) -> bool {
        let place = place(traceback);
        let known =
            matches!(&self.last, Some((last, at)) if last == place && now.since(*at) < AGAIN_AFTER);
        if !known {
            self.last = Some((place.to_owned(), now));
        }
        !known
    }
}

/// A traceback without its last lines, which say what the input was like: where it comes from.
fn place(traceback: &str) -> &str {
    let own = |line: &&str| line.starts_with(' ') || line.starts_with("Traceback");
    let length = traceback
        .split_inclusive('\n')
        .take_while(own)
        .map(str::len)
        .sum();
    &traceback[..length]
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "Traceback (most recent call last):\n  File \"m.py\", line 3, in f\n    raise\nValueError: 7\n";

    #[test]
    fn the_same_place_is_news_once_a_minute() {
        let mut complaints = Complaints::new(0);
        let now = Time::ZERO;
        let other_input = FIRST.replace('7', "8");
        let other_place = FIRST.replace("line 3", "line 4");
        assert!(complaints.is_news(FIRST, now));
        assert!(!complaints.is_news(&other_input, now + AGAIN_AFTER / 2));
        assert!(complaints.is_news(&other_input, now + AGAIN_AFTER));
        assert!(complaints.is_news(&other_place, now + AGAIN_AFTER));
    }
}

//! Processes that descend from a worker and have overwritten their environment, and with it their mark, as libraries do that
//! change what a process is called. They are known by their parents, as long as those live, and held by a descriptor from then
//! on. Used by [`super::strays`] and by the worker's [`super::process`].
//!
//! One whose environment is whole and has no mark was started without it, to stay: neither it nor its children are taken in.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::strays::{self, Mark};
use crate::clock;

/// While they are gathered there may be more of them: looked for so often.
const ROUNDS_MAX: usize = 8;

/// Those that have been found, by their process ids.
#[derive(Debug, Default)]
pub(super) struct Hidden(BTreeMap<i32, OwnedFd>);

/// What a process is to its worker.
enum Relation {
    /// It bears the mark, so it is found without this.
    Marked,
    /// It is a child of one that is known, and can't show whether it bears the mark.
    Hidden,
    None,
}

impl Hidden {
    /// Takes in the descendants of `root`, of whoever bears `mark` and of those that it has. `root` must be this process
    /// or a child of it that was not waited for yet: so it has its number still.
    pub(super) fn gather(&mut self, mark: &Mark, root: Option<Pid>) {
        self.0.retain(|_, pidfd| lives(pidfd));
        // Others that may have children. Their descriptors are needed no longer than that.
        let mut parents = Hidden::default();
        if let Some(root) = root
            && let Ok(pidfd) = pidfd_open(root, PidfdFlags::empty())
        {
            parents.0.insert(raw(root), pidfd);
        }
        for _ in 0..ROUNDS_MAX {
            let before = self.0.len() + parents.0.len();
            strays::processes().for_each(|pid| self.look_at(pid, mark, &mut parents));
            if self.0.len() + parents.0.len() == before {
                return;
            }
        }
    }

    fn look_at(&mut self, pid: Pid, mark: &Mark, parents: &mut Hidden) {
        let number = raw(pid);
        if self.0.contains_key(&number) || parents.0.contains_key(&number) {
            return;
        }
        // First the descriptor, then the look: so it is that process, and not another one that has its number by now.
        let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else {
            return;
        };
        match self.relation(pid, mark, parents) {
            Relation::Marked => parents.0.insert(number, pidfd),
            Relation::Hidden => self.0.insert(number, pidfd),
            Relation::None => None,
        };
    }

    fn relation(&self, pid: Pid, mark: &Mark, parents: &Hidden) -> Relation {
        let Ok(environment) = strays::environment(pid, clock::now()) else {
            return Relation::None;
        };
        if mark.is_in(&environment) {
            return Relation::Marked;
        }
        let is_child = || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", raw(pid))).unwrap_or_default();
            let parent = parent(&stat)?;
            self.0.get(&parent).or_else(|| parents.0.get(&parent))
        };
        // If the parent lives after that look, the number was its own and not one that came after it.
        if is_overwritten(&environment) && is_child().is_some_and(lives) {
            return Relation::Hidden;
        }
        Relation::None
    }

    /// Kills them.
    pub(super) fn kill(&mut self) {
        for pidfd in std::mem::take(&mut self.0).into_values() {
            // It may have ended by itself.
            let _ = pidfd_send_signal(pidfd, Signal::KILL);
        }
    }
}

fn raw(pid: Pid) -> i32 {
    pid.as_raw_nonzero().get()
}

/// Whether a process has not ended. Those that have ended have no children any more.
fn lives(pidfd: &OwnedFd) -> bool {
    let polled = poll(
        &mut [PollFd::new(pidfd, PollFlags::IN)],
        Some(&Timespec::default()),
    );
    matches!(polled, Ok(0))
}

/// The process id of the parent, in a process's line in `/proc`. The name in front of it may hold anything.
fn parent(stat: &str) -> Option<i32> {
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Whether an environment, as `/proc` shows it, was written over: with a name, and with zeros where that is shorter.
fn is_overwritten(environment: &[u8]) -> bool {
    let variables = environment.strip_suffix(b"\0").unwrap_or(environment);
    variables.starts_with(b"\0") || variables.windows(2).any(|pair| pair == b"\0\0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_that_was_written_over_is_told_from_a_whole_one() {
        for whole in [&b""[..], b"\0", b"A=b\0", b"A=b\0C=\0", b"A=b\0C=d"] {
            assert!(!is_overwritten(whole), "{whole:?}");
        }
        for overwritten in [&b"\0\0"[..], b"\0\0\0\0", b"e: name\0\0\0", b"\0A=b\0"] {
            assert!(is_overwritten(overwritten), "{overwritten:?}");
        }
    }

    #[test]
    fn a_parent_is_found_behind_any_name() {
        assert_eq!(parent("7 (a) S 9) S 3 7 7 0 -1"), Some(3));
        assert_eq!(parent("7 (a)"), None);
        assert_eq!(parent(""), None);
    }
}

//! Processes that user code has started and that have left their worker's process group: they would outlive it.
//!
//! Every worker has a mark in its environment, [`VARIABLE`], which whatever it starts inherits, sessions and double forks
//! notwithstanding. Once a worker has ended, whoever bears its mark is killed ([`Mark::kill_all`]). For a server that is killed
//! itself there is the guard: a process of this program that does nothing but wait for the server's end ([`Guard`], [`guard`]),
//! and then kills whoever bears any of its marks. A process that is meant to stay takes the variable out of its environment.
//!
//! This takes Linux's `/proc` and 5.3 or newer; elsewhere, only the process group is killed.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

use crate::gpu::remote::random_word;

/// The variable that holds the mark.
pub const VARIABLE: &str = "FUNICULAR_TREE";

/// What the system's list of processes calls the guard; no more than 15 bytes.
const GUARD_NAME: &std::ffi::CStr = c"funicular-guard";

/// While it is killed a process may start another one: looked for so often.
const ROUNDS_MAX: usize = 8;

/// What all that one worker starts has in common, or, if it is the server's, all that its workers start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark(String);

impl Mark {
    /// The server's, which every worker's begins with.
    pub fn of_server() -> Mark {
        static SERVER: OnceLock<String> = OnceLock::new();
        let random = || format!("{:016x}{:016x}-", random_word(), random_word());
        Mark(SERVER.get_or_init(random).clone())
    }

    /// The next worker's.
    pub fn next() -> Mark {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Mark(format!("{}{count}-", Mark::of_server().0))
    }

    /// The value of [`VARIABLE`].
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Kills every process that bears it, but for this one. Takes a moment: every process of the system is looked at.
    pub fn kill_all(&self) {
        for _ in 0..ROUNDS_MAX {
            let killed = processes().filter(|pid| self.kill(*pid)).count();
            if killed == 0 {
                return;
            }
        }
    }

    /// Whether `pid` bore it, and was killed.
    fn kill(&self, pid: Pid) -> bool {
        // First the descriptor, then the look: so it is that process, and not another one that has its number by now.
        let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else {
            return false;
        };
        let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero()));
        // Of a process that has ended there is nothing to read.
        environment.is_ok_and(|environment| self.is_in(&environment))
            && pidfd_send_signal(pidfd, Signal::KILL).is_ok()
    }

    /// Whether an environment, as `/proc` shows it, has it.
    fn is_in(&self, environment: &[u8]) -> bool {
        let mut variables = environment.split(|byte| *byte == 0);
        variables.any(|variable| {
            let value = variable.strip_prefix(VARIABLE.as_bytes());
            let value = value.and_then(|rest| rest.strip_prefix(b"="));
            value.is_some_and(|value| value.starts_with(self.0.as_bytes()))
        })
    }
}

/// All processes but this one.
fn processes() -> impl Iterator<Item = Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pid = |name: &OsStr| {
        let text = std::str::from_utf8(name.as_bytes()).ok()?;
        Pid::from_raw(text.parse().ok()?)
    };
    let pids = entries.filter_map(move |entry| pid(&entry.file_name()));
    pids.filter(|pid| *pid != getpid())
}

/// The process that outlives the server for a moment. Until then it waits on a pipe, whose other end is the server's alone.
#[derive(Debug)]
pub struct Guard {
    _process: Child,
}

impl Guard {
    /// Starts it: this program again, with the hidden command `guard`.
    ///
    /// # Errors
    /// As the system says.
    pub fn start() -> io::Result<Guard> {
        let mut command = Command::new("/proc/self/exe");
        command
            .arg("guard")
            .env(GUARDED, Mark::of_server().as_str())
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // What is meant for the server's group, such as Ctrl-C, must not end it first.
            .process_group(0);
        let process = command.spawn()?;
        Ok(Guard { _process: process })
    }
}

/// Tells the guard whose mark it is.
const GUARDED: &str = "FUNICULAR_GUARDED";

/// The guard's whole life: waits for the server's end, and kills what its workers have left behind.
pub fn guard() {
    // Only a name: without it, it is found by its command.
    let _ = rustix::thread::set_name(GUARD_NAME);
    let Ok(mark) = std::env::var(GUARDED) else {
        return;
    };
    // Nobody writes: whatever ends the read, the other end is gone.
    let _ = io::stdin().read_to_end(&mut Vec::new());
    if mark.len() >= Mark::of_server().0.len() {
        Mark(mark).kill_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_told_from_others_in_an_environment() {
        let (one, two) = (Mark::next(), Mark::next());
        let environment = |mark: &Mark| {
            let text = format!("PATH=/bin\0{VARIABLE}={}\0A=b\0", mark.as_str());
            text.into_bytes()
        };
        assert!(one.is_in(&environment(&one)) && !one.is_in(&environment(&two)));
        assert!(Mark::of_server().is_in(&environment(&two)));
        for other in [
            &b"PATH=/bin"[..],
            b"",
            b"\0\0",
            b"FUNICULAR_TREE",
            b"FUNICULAR_TREE=",
        ] {
            assert!(!one.is_in(other) && !Mark::of_server().is_in(other));
        }
        let longer = Mark(format!("{}1-", one.as_str().trim_end_matches('-')));
        assert!(
            !one.is_in(&environment(&longer)),
            "worker 1 is not worker 11"
        );
    }

    #[test]
    fn whoever_bears_a_mark_is_killed_wherever_it_went() {
        let mark = Mark::next();
        let start = |value: &str| {
            let mut command = Command::new("sleep");
            command.arg("1000").env(VARIABLE, value).process_group(0);
            command.spawn()
        };
        let Ok(mut marked) = start(mark.as_str()) else {
            eprintln!("skipped: there is no sleep here");
            return;
        };
        let mut other = start(Mark::next().as_str()).expect("as before");
        mark.kill_all();
        let status = marked.wait().expect("a child");
        assert!(!status.success());
        assert!(
            matches!(other.try_wait(), Ok(None)),
            "it is another worker's"
        );
        other.kill().expect("a child");
        other.wait().expect("a child");
    }
}

//! Processes that user code has started and that have left their worker's process group: they would outlive it.
//!
//! Every worker has a mark in its environment, [`VARIABLE`], which whatever it starts inherits, sessions and double forks
//! notwithstanding. Once a worker has ended, whoever bears its mark is killed ([`Mark::kill_all`]). For a server that is killed
//! itself there is the guard: a process of this program that does nothing but wait for the server's end ([`Guard`], [`guard`]),
//! and then kills whoever bears any of its marks. A process that is meant to stay takes the variable out of its environment.
//!
//! A process that has overwritten its environment is found by its parent instead (`hidden.rs`).
//!
//! A process that is becoming another program shows no environment for as long as that takes, not even to whoever has started
//! it and been told that it runs: it is looked at until it does.
//!
//! This takes Linux's `/proc` and 5.3 or newer; elsewhere, only the process group is killed.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::hidden::Hidden;
use crate::clock::{self, Time};
use crate::gpu::remote::random_word;

/// The variable that holds the mark.
pub const VARIABLE: &str = "FUNICULAR_TREE";

/// What the system's list of processes calls the guard; no more than 15 bytes.
const GUARD_NAME: &std::ffi::CStr = c"funicular-guard";

/// So many workers have been given a mark.
static WORKERS: AtomicU64 = AtomicU64::new(0);

/// While it is killed a process may start another one: looked for so often.
const ROUNDS_MAX: usize = 8;

/// Nobody takes longer to become another program, all of them together; who does is taken for one without an environment.
const EXEC_MAX: Duration = Duration::from_secs(1);

/// A guard that has ended is replaced after this time.
const RESTART_AFTER: Duration = Duration::from_secs(1);

/// Who is becoming another program is looked at again after this time.
const EXEC_LOOK: Duration = Duration::from_millis(1);

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
        let count = WORKERS.fetch_add(1, Ordering::Relaxed);
        Mark(format!("{}{count}-", Mark::of_server().0))
    }

    /// The value of [`VARIABLE`].
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Kills every process that bears it, but for this one, and their children that have lost it. Takes a moment: every process
    /// of the system is looked at.
    pub fn kill_all(&self) {
        // Before their parents are gone.
        let mut hidden = Hidden::default();
        hidden.gather(self, None);
        hidden.kill();
        let due = clock::now() + EXEC_MAX;
        for _ in 0..ROUNDS_MAX {
            let killed = processes().filter(|pid| self.kill(*pid, due)).count();
            if killed == 0 {
                return;
            }
        }
    }

    /// Whether `pid` bore it, and was killed. One that is becoming another program is waited for, until `due`.
    fn kill(&self, pid: Pid, due: Time) -> bool {
        // First the descriptor, then the look: so it is that process, and not another one that has its number by now.
        let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else {
            return false;
        };
        environment(pid, due).is_ok_and(|environment| self.is_in(&environment))
            && pidfd_send_signal(pidfd, Signal::KILL).is_ok()
    }

    /// Whether an environment, as `/proc` shows it, has it.
    pub(super) fn is_in(&self, environment: &[u8]) -> bool {
        let mut variables = environment.split(|byte| *byte == 0);
        variables.any(|variable| {
            let value = variable.strip_prefix(VARIABLE.as_bytes());
            let value = value.and_then(|rest| rest.strip_prefix(b"="));
            value.is_some_and(|value| value.starts_with(self.0.as_bytes()))
        })
    }
}

/// Kills what only the living workers show to be theirs, having overwritten their environment: for when the server ends by
/// itself. The guard kills the others. Takes a moment if there was ever a worker.
pub fn kill_hidden() {
    if WORKERS.load(Ordering::Relaxed) > 0 {
        let mut hidden = Hidden::default();
        hidden.gather(&Mark::of_server(), Some(getpid()));
        hidden.kill();
    }
}

/// The environment of `pid`, which is empty if it has ended or is the kernel's, or is becoming another program still at `due`.
pub(super) fn environment(pid: Pid, due: Time) -> io::Result<Vec<u8>> {
    let folder = format!("/proc/{}", pid.as_raw_nonzero());
    let mut was_settled = false;
    loop {
        let environment = match fs::read(format!("{folder}/environ")) {
            Ok(environment) => environment,
            Err(error) => return of_a_thread(&folder).ok_or(error),
        };
        if !environment.is_empty() || was_settled {
            return Ok(environment);
        }
        was_settled = !is_between_programs(&fs::read_to_string(format!("{folder}/stat"))?);
        if was_settled {
            continue;
        }
        if clock::now() >= due {
            return Ok(environment);
        }
        thread::park_timeout(EXEC_LOOK);
    }
}

/// The environment of a process whose first thread has ended, which the others still show.
fn of_a_thread(folder: &str) -> Option<Vec<u8>> {
    let threads = fs::read_dir(format!("{folder}/task")).ok()?;
    let environments = threads
        .flatten()
        .map(|thread| fs::read(thread.path().join("environ")));
    environments
        .flatten()
        .find(|environment| !environment.is_empty())
}

/// Whether a process, by its line in `/proc`, lives and has memory, but no place for its environment there yet.
fn is_between_programs(stat: &str) -> bool {
    /// The kernel's flag of its own threads, which have no memory.
    const KERNEL_THREAD: u64 = 0x0020_0000;
    // The name in front may hold anything, parentheses too. Numbered as in proc(5), of which the first two are left out.
    let Some((_, rest)) = stat.rsplit_once(") ") else {
        return false;
    };
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |nth: usize| fields.get(nth - 3)?.parse::<u64>().ok();
    let (Some(flags), Some(environment_ends)) = (number(9), number(51)) else {
        return false;
    };
    !matches!(fields[0], "Z" | "X") && flags & KERNEL_THREAD == 0 && environment_ends == 0
}

/// All processes but this one.
pub(super) fn processes() -> impl Iterator<Item = Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pid = |name: &OsStr| {
        let text = std::str::from_utf8(name.as_bytes()).ok()?;
        Pid::from_raw(text.parse().ok()?)
    };
    let pids = entries.filter_map(move |entry| pid(&entry.file_name()));
    pids.filter(|pid| *pid != getpid())
}

/// The process that outlives the server for a moment, and the thread that starts another one should it end before. Dropped,
/// it does its work.
#[derive(Debug)]
pub struct Guard {
    /// What it waits on. The other end is the server's alone; there is none once it may end.
    pipe: Arc<Mutex<Option<ChildStdin>>>,
}

impl Guard {
    /// Starts it: this program again, with the hidden command `guard`.
    ///
    /// # Errors
    /// As the system says.
    pub fn start() -> io::Result<Guard> {
        let (process, pipe) = started()?;
        let pipe = Arc::new(Mutex::new(Some(pipe)));
        let thread = thread::Builder::new().name("guard-keeper".to_owned());
        let held = Arc::clone(&pipe);
        thread.spawn(move || keep(process, &held))?;
        Ok(Guard { pipe })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.pipe.lock().take();
    }
}

fn started() -> io::Result<(Child, ChildStdin)> {
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
    let mut process = command.spawn()?;
    let pipe = process.stdin.take();
    let pipe = pipe.ok_or_else(|| io::Error::other("the process has no standard input"))?;
    Ok((process, pipe))
}

/// Sees to it that there is a guard for as long as the pipe is held.
fn keep(mut process: Child, pipe: &Mutex<Option<ChildStdin>>) {
    loop {
        let ended = process.wait();
        if pipe.lock().is_none() {
            return;
        }
        let how = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
        log::warn!(
            "the process that sees to what is left behind when the server is killed has ended itself ({how}); another one is \
             started"
        );
        let Some(next) = successor(pipe) else {
            return;
        };
        process = next;
    }
}

/// The next guard, as soon as there can be one; none if there need be none any more.
fn successor(pipe: &Mutex<Option<ChildStdin>>) -> Option<Child> {
    let mut is_news = true;
    loop {
        // Whoever kills it again and again is not answered faster than this.
        thread::park_timeout(RESTART_AFTER);
        let mut held = pipe.lock();
        held.as_ref()?;
        match started() {
            Ok((process, new)) => {
                *held = Some(new);
                return Some(process);
            }
            Err(error) if is_news => {
                log::warn!("can't start it: {error}; trying again");
                is_news = false;
            }
            Err(_) => {}
        }
    }
}

/// Tells the guard whose mark it is.
const GUARDED: &str = "FUNICULAR_GUARDED";

/// The guard's whole life: waits for the server's end, and kills what its workers have left behind.
pub fn guard() {
    // What is meant for the server may go to all processes of a service. This one ends with the server, when it has done.
    let ignored = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        let _ = signal_hook::flag::register(signal, Arc::clone(&ignored));
    }
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
    fn who_is_between_two_programs_is_told_from_who_has_no_environment() {
        let line = |state: &str, flags: u64, end: u64| {
            let zeros = |count: usize| vec!["0"; count].join(" ");
            format!(
                "7 (a) b) {state} {} {flags} {} {end} 0\n",
                zeros(5),
                zeros(41)
            )
        };
        assert!(is_between_programs(&line("R", 0x40_0000, 0)));
        assert!(!is_between_programs(&line("R", 0x40_0000, 1 << 40)));
        assert!(!is_between_programs(&line("Z", 0x40_0000, 0)));
        assert!(!is_between_programs(&line("I", 0x0020_8040, 0)));
        assert!(!is_between_programs("") && !is_between_programs("7 (a) R 1"));
        let own = fs::read_to_string("/proc/self/stat");
        assert!(!own.is_ok_and(|own| is_between_programs(&own)));
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
        // It may not be that program yet: the system says that it runs as soon as it is sure to.
        mark.kill_all();
        let due = clock::now() + Duration::from_secs(60);
        while marked.try_wait().expect("a child").is_none() {
            if clock::now() >= due {
                marked.kill().expect("a child");
                panic!("it was not killed");
            }
            thread::park_timeout(EXEC_LOOK);
        }
        assert!(
            matches!(other.try_wait(), Ok(None)),
            "it is another worker's"
        );
        other.kill().expect("a child");
        other.wait().expect("a child");
    }
}

//! A worker's process: started with what it needs, watched through a descriptor, named when it dies, killed with all that
//! it has started.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, getppid, kill_process_group, pidfd_open,
    set_parent_process_death_signal,
};

use super::hidden::Hidden;
use super::output::Stream;
use super::strays::{self, Mark};
use crate::clock::{self, Time};
use crate::config::PythonConfig;

/// Takes the worker's source off the socket and runs it. Short, because it is what `ps` shows.
const BOOT: &str = include_str!("boot.py");

/// A worker whose connection has ended is given so long to end too, so that it can be said how.
const LAST_BREATH: Duration = Duration::from_millis(200);

/// The status with which boot.py ends where Python is too old.
const TOO_OLD: i32 = 3;

/// A running worker process. Dropping it kills it, and waits a moment to bury it.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    pid: Pid,
    /// Readable once the process has ended. `None` on kernels without it; then the end of the socket has to do.
    pidfd: Option<OwnedFd>,
    /// Its standard output.
    pub stdout: Stream<ChildStdout>,
    /// Its standard error.
    pub stderr: Stream<ChildStderr>,
    ended: Option<ExitStatus>,
    /// The program that it runs, for people.
    program: String,
    /// What it and all that it starts bear.
    mark: Mark,
    /// Who has lost the mark.
    hidden: Hidden,
}

impl Process {
    /// Starts the worker of GPU number `gpu` with `socket` as its standard input; it inherits `second` as well, under the
    /// number that it has here.
    ///
    /// # Errors
    /// It can't be started: mostly, there is no such program.
    pub(super) fn start(
        config: &PythonConfig,
        gpu: usize,
        socket: OwnedFd,
        second: OwnedFd,
    ) -> io::Result<Process> {
        let mut command = Command::new(&config.bin);
        command
            .arg("-c")
            .arg(BOOT)
            .arg("funicular-worker")
            .arg(format!("gpu-{gpu}"))
            .arg(&config.target);
        command
            .stdin(Stdio::from(socket))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
        command.env("CUDA_VISIBLE_DEVICES", device(&visible, gpu));
        command.env("FUNICULAR_GPU", gpu.to_string());
        let own = config
            .env
            .iter()
            .filter(|variable| variable.gpu.is_none_or(|only| only == gpu));
        command.envs(own.map(|variable| (&variable.name, variable.value_for(gpu))));
        let mark = Mark::next();
        command.env(strays::VARIABLE, mark.as_str());
        // A group of its own: killed as one, and out of the reach of a Ctrl-C in the terminal.
        command.process_group(0);
        die_with_this_thread(&mut command);
        hand_down(&mut command, second);
        let mut child = command.spawn()?;
        let pid = Pid::from_child(&child);
        Ok(Process {
            pid,
            pidfd: pidfd_open(pid, PidfdFlags::empty()).ok(),
            stdout: Stream::new(child.stdout.take()),
            stderr: Stream::new(child.stderr.take()),
            child,
            ended: None,
            program: config.bin.display().to_string(),
            mark,
            hidden: Hidden::default(),
        })
    }

    /// The descriptor that is readable once the process has ended.
    pub(super) fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(AsFd::as_fd)
    }

    /// Its process id.
    pub(super) fn id(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Takes note of which of the processes that it has started are known by their parents alone: once it has died they
    /// couldn't be told any more.
    pub(super) fn note_hidden(&mut self) {
        if self.ended.is_none() {
            self.hidden.gather(&self.mark, Some(self.pid));
        }
    }

    /// How it ended, in words; after its connection has. Whether it had `spoken` to the server tells Pythons from other
    /// programs.
    pub(super) fn epitaph(&mut self, spoken: bool) -> String {
        let died = self.wait_ended(clock::now() + LAST_BREATH);
        self.kill();
        let mut text = match self.ended {
            Some(status) if died => self.ended_in_words(status, spoken),
            _ => "closed its connection to the server".to_owned(),
        };
        if !self.stderr.last().is_empty() {
            text.push_str(&format!("; its last words: {}", self.stderr.last()));
        }
        text
    }

    fn ended_in_words(&self, status: ExitStatus, spoken: bool) -> String {
        match status.code() {
            // It said itself what Python it is.
            Some(TOO_OLD) if !spoken && !self.stderr.last().is_empty() => {
                format!("its worker process exited with status {TOO_OLD}")
            }
            Some(code) if !spoken => {
                let program = &self.program;
                format!(
                    "{program} exited with status {code} before it ran anything: it does not seem to be a Python that works; \
                     name the Python to use with --python-bin"
                )
            }
            _ => ended_in_words(status),
        }
    }

    /// Kills it and everything it has started. Does not wait.
    pub(super) fn kill(&mut self) {
        self.note_hidden();
        // Before itself: as long as it lives, they can still be told by whoever ends the server in this moment.
        self.hidden.kill();
        // Once it is reaped its number may be another's. Until then the group is its own, though it may be dead.
        if self.ended.is_none() {
            let _ = kill_process_group(self.pid, Signal::KILL);
            self.reap();
        }
    }

    fn reap(&mut self) -> bool {
        if self.ended.is_none()
            && let Ok(Some(status)) = self.child.try_wait()
        {
            self.ended = Some(status);
        }
        self.ended.is_some()
    }

    /// Waits for its end, at most until `until`; what it had started is killed then. Whether it has ended.
    pub(super) fn wait_ended(&mut self, until: Time) -> bool {
        loop {
            let left = until.since(clock::now());
            if self.ended.is_some() || self.has_ended(left) {
                self.kill();
                return self.ended.is_some();
            }
            if left.is_zero() {
                return false;
            }
        }
    }

    /// Waits at most `left`, not always that long.
    fn has_ended(&mut self, left: Duration) -> bool {
        let Some(pidfd) = &self.pidfd else {
            std::thread::park_timeout(left.min(Duration::from_millis(5)));
            return self.reap();
        };
        let left = Timespec::try_from(left).ok();
        let polled = poll(&mut [PollFd::new(pidfd, PollFlags::IN)], left.as_ref());
        matches!(polled, Ok(count) if count > 0)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        self.wait_ended(clock::now() + LAST_BREATH);
        self.mark.kill_all();
    }
}

/// Has the kernel kill the child when the thread that starts it ends, however that happens: the GPU thread, and with it
/// the server, even by SIGKILL.
fn die_with_this_thread(command: &mut Command) {
    let parent = getpid();
    let prepare = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // It may have ended before the kernel was told.
        if getppid() == Some(parent) {
            Ok(())
        } else {
            Err(Errno::SRCH.into())
        }
    };
    // SAFETY: between fork and exec `prepare` makes two system calls; it takes no lock and allocates nothing.
    unsafe { command.pre_exec(prepare) };
}

/// Has the child keep `descriptor`. Only it does: here the descriptor stays one that no other child inherits.
fn hand_down(command: &mut Command, descriptor: OwnedFd) {
    let keep = move || Ok(fcntl_setfd(&descriptor, FdFlags::empty())?);
    // SAFETY: between fork and exec `keep` makes one system call; it takes no lock and allocates nothing.
    unsafe { command.pre_exec(keep) };
}

/// The device that the worker of GPU number `gpu` sees: one of those that the server sees, taken in turn.
fn device(visible: &str, gpu: usize) -> String {
    let devices: Vec<&str> = visible
        .split(',')
        .map(str::trim)
        .filter(|device| !device.is_empty())
        .collect();
    if devices.is_empty() {
        gpu.to_string()
    } else {
        devices[gpu % devices.len()].to_owned()
    }
}

fn ended_in_words(status: ExitStatus) -> String {
    let Some(signal) = status.signal() else {
        let code = status.code().unwrap_or_default();
        return format!(
            "its worker process exited with status {code}: the batch function must not end its process"
        );
    };
    let (name, hint) = match signal {
        4 => ("SIGILL", ": was a library built for another processor?"),
        6 => ("SIGABRT", ": a library gave up"),
        7 => ("SIGBUS", ": is /dev/shm, or a disk, full?"),
        9 => (
            "SIGKILL",
            ": if nobody did it by hand, the kernel did for lack of memory (dmesg tells)",
        ),
        11 => ("SIGSEGV", ": a bug in a library of the batch function"),
        15 => ("SIGTERM", ""),
        _ => ("", ""),
    };
    let name = if name.is_empty() {
        format!("signal {signal}")
    } else {
        name.to_owned()
    };
    format!("its worker process was killed by {name}{hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_those_that_the_server_sees() {
        assert_eq!(device("", 3), "3");
        assert_eq!(device("4, 6", 0), "4");
        assert_eq!(device("4,6", 3), "6");
        assert_eq!(device("GPU-8a,GPU-9b", 1), "GPU-9b");
    }

    #[test]
    fn an_end_is_named() {
        assert!(ended_in_words(ExitStatus::from_raw(9)).contains("SIGKILL"));
        assert!(ended_in_words(ExitStatus::from_raw(11 | 0x80)).contains("SIGSEGV"));
        assert!(ended_in_words(ExitStatus::from_raw(34)).contains("signal 34"));
        assert!(ended_in_words(ExitStatus::from_raw(3 << 8)).contains("status 3"));
    }
}

//! What a thread of this process is doing, as the kernel tells it. The watchdog asks before it takes a thread that does
//! not come back for stuck: it may be waiting for a CPU.

use std::fs;
use std::time::Duration;

use rustix::thread::{Pid, gettid};

/// What a thread does at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// It runs, or would if it had a CPU. Otherwise it waits for something else.
    pub runnable: bool,
    /// The CPU time that it has had so far.
    pub cpu: Duration,
}

/// A thread of this process.
#[derive(Clone, Copy, Debug)]
pub struct Thread(Pid);

impl Thread {
    /// The calling thread.
    pub fn current() -> Thread {
        Thread(gettid())
    }

    /// What it does now. A thread of which the kernel does not tell (no `/proc` here) counts as waiting.
    pub fn sample(self) -> Sample {
        let read = |file: &str| {
            let path = format!("/proc/self/task/{}/{file}", self.0.as_raw_nonzero());
            fs::read_to_string(path).unwrap_or_default()
        };
        Sample {
            runnable: is_runnable(&read("stat")),
            cpu: cpu_time(&read("schedstat")),
        }
    }
}

/// From `stat`: the state follows the name, which stands in parentheses and may hold some of its own.
fn is_runnable(stat: &str) -> bool {
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
    state.is_some_and(|state| state.starts_with('R'))
}

/// From `schedstat`: nanoseconds on a CPU, nanoseconds of waiting for one, turns.
fn cpu_time(schedstat: &str) -> Duration {
    let nanos = schedstat
        .split(' ')
        .next()
        .and_then(|text| text.parse().ok());
    Duration::from_nanos(nanos.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes_is_read() {
        assert!(is_runnable("12 (gpu) 0) S (x) R 1 12"));
        assert!(!is_runnable("12 (gpu-0) S 1 12"));
        assert!(!is_runnable(""));
        assert_eq!(cpu_time("1500000 20 3\n"), Duration::from_micros(1_500));
        assert_eq!(cpu_time(""), Duration::ZERO);
    }

    #[test]
    fn this_thread_runs_and_uses_a_cpu() {
        if !fs::exists("/proc/self/task").unwrap_or_default() {
            println!("skipped: there is no /proc here");
            return;
        }
        let thread = Thread::current();
        let before = thread.sample();
        assert!(before.runnable);
        let mut used = before.cpu;
        while used == before.cpu {
            used = thread.sample().cpu;
        }
        assert!(used > before.cpu);
    }

    #[test]
    fn a_thread_that_waits_is_not_runnable() {
        if !fs::exists("/proc/self/task").unwrap_or_default() {
            println!("skipped: there is no /proc here");
            return;
        }
        let (tell, told) = crossbeam_channel::bounded(1);
        let (release, wait) = crossbeam_channel::bounded::<()>(0);
        let waiting = std::thread::spawn(move || {
            tell.send(Thread::current()).expect("the test listens");
            let _ = wait.recv();
        });
        let thread = told.recv().expect("it starts");
        while thread.sample().runnable {
            std::thread::yield_now();
        }
        drop(release);
        waiting.join().expect("it ends");
    }
}

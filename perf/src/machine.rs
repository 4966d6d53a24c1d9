//! Where and on what a run was made: machine, commit, the moment. Everything is best effort: a report without a CPU model is
//! still a report.

use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use crate::result::Machine;

/// The machine we run on.
pub fn machine() -> Machine {
    let system = rustix::system::uname();
    let kernel = format!(
        "{} {}",
        system.sysname().to_string_lossy(),
        system.release().to_string_lossy()
    );
    Machine {
        cpu_model: cpu_model(),
        cores: cores() as u32,
        memory_bytes: memory_bytes(),
        kernel,
    }
}

/// Cores that we may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// File descriptors that a process may have at most; `None` without a limit.
pub fn descriptors_max() -> Option<u64> {
    use rustix::process::{Resource, getrlimit};
    getrlimit(Resource::Nofile).maximum
}

fn cpu_model() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find(|line| line.starts_with("model name"))
        .and_then(|line| line.split_once(':'));
    model.map_or_else(
        || std::env::consts::ARCH.to_owned(),
        |(_, name)| name.trim().to_owned(),
    )
}

fn memory_bytes() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib: Option<u64> = total.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    kib.unwrap_or_default() * 1024
}

/// Commit of the tree in the current directory, with `-dirty` where it has changes; `None` outside a git tree.
pub fn commit() -> Option<String> {
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changes = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(if changes.is_empty() {
        commit
    } else {
        format!("{commit}-dirty")
    })
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A moment as RFC 3339 in UTC, to the second.
pub fn rfc3339(at: SystemTime) -> String {
    humantime::format_rfc3339_seconds(at).to_string()
}

/// A number that sets the inputs of this run apart from those of others: the milliseconds of the clock, folded to what
/// five digits in base 36 hold.
pub fn run_number(at: SystemTime) -> u32 {
    let since = at
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    (since.as_millis() % 36u128.pow(5)) as u32
}

/// The command line of a local process; `None` once it is gone.
pub fn command_of(pid: u32) -> Option<Vec<String>> {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words = bytes
        .split(|&byte| byte == 0)
        .filter(|word| !word.is_empty());
    Some(
        words
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect(),
    )
}

/// A command line without what belongs to the machine alone: of absolute paths, only the file's name is kept.
pub fn portable(words: Vec<String>) -> Vec<String> {
    let shorten = |word: String| {
        let at = if word.starts_with('/') {
            Some(0)
        } else {
            word.find("=/").map(|at| at + 1)
        };
        let Some(at) = at else { return word };
        let (before, path) = word.split_at(at);
        let name = Path::new(path).file_name().unwrap_or_default();
        format!("{before}{}", name.to_string_lossy())
    };
    words.into_iter().map(shorten).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_keep_names_and_lose_places() {
        let words = [
            "/usr/bin/funicular-perf",
            "--out",
            "perf/reports",
            "--trace=/data/a.csv",
            "/v1/x",
            "http://h/p",
        ];
        let kept = [
            "funicular-perf",
            "--out",
            "perf/reports",
            "--trace=a.csv",
            "x",
            "http://h/p",
        ];
        assert_eq!(portable(words.map(str::to_owned).to_vec()), kept);
    }
}

//! Servers that run a user's Python file, and the processes of their workers.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::process::Command;

use crate::steady::widened;
pub use crate::support::model::Model;
use crate::support::{Server, wait_for};

/// Whether that Python has `module`; if not, says that the test is skipped.
pub fn has_module(module: &str) -> bool {
    let code = format!("import {module}");
    let found = Command::new("python3")
        .args(["-c", &code])
        .output()
        .is_ok_and(|output| output.status.success());
    if !found {
        eprintln!("skipped: the Python module {module} is not installed");
    }
    found
}

impl Model {
    /// A server with `gpus` workers that run `batchstring`, all of them ready.
    pub fn serve(self, gpus: usize, flags: &[&str]) -> Served {
        let mut server = start(
            &self.target(""),
            &[&["--gpus", &gpus.to_string()], flags].concat(),
        );
        wait_all_ready(&mut server);
        Served {
            server,
            model: self,
        }
    }
}

/// A server and the file that it runs, which it reads again whenever it starts a worker.
pub struct Served {
    server: Server,
    /// The file.
    pub model: Model,
}

impl Deref for Served {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl DerefMut for Served {
    fn deref_mut(&mut self) -> &mut Server {
        &mut self.server
    }
}

/// A server that runs `target` and may never become ready. Its limits are wide, see [`widened`].
pub fn start(target: &str, flags: &[&str]) -> Server {
    Server::start(&[&["--python", target, "--cores", "1"], &widened(flags)[..]].concat())
}

/// Waits until every GPU serves: for the first time, since what is read may be from a moment ago. See
/// [`crate::steady::wait_all_back`] for those that come back.
pub fn wait_all_ready(server: &mut Server) {
    server.wait_for("all GPUs to be ready", |server| {
        let status = server.status();
        status["gpus"]
            .as_array()
            .expect("GPUs")
            .iter()
            .all(|gpu| gpu["up"] == true)
    });
}

/// The process ids of a server's workers. Its guard is none.
pub fn workers(server: &Server) -> Vec<u32> {
    let mut all = children(server.pid());
    all.retain(|pid| !is_guard(*pid));
    all
}

/// The process that ends what workers leave behind when the server is killed.
pub fn guard(server: &Server) -> Option<u32> {
    children(server.pid())
        .into_iter()
        .find(|pid| is_guard(*pid))
}

fn is_guard(pid: u32) -> bool {
    let line = fs::read_to_string(format!("/proc/{pid}/cmdline"));
    line.unwrap_or_default().contains("\0guard")
}

/// The living children of a process.
pub fn children(parent: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("/proc").flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        if state(pid).is_some_and(|(state, its_parent)| its_parent == parent && state != 'Z') {
            found.push(pid);
        }
    }
    found.sort_unstable();
    found
}

/// Whether a process runs (or is stopped); one that waits to be buried does not.
pub fn is_alive(pid: u32) -> bool {
    state(pid).is_some_and(|(state, _)| state != 'Z' && state != 'X')
}

fn state(pid: u32) -> Option<(char, u32)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// Waits until a process is gone.
pub fn wait_gone(pid: u32) {
    wait_for("the end of a process", || !is_alive(pid));
}

/// How many descriptors and threads a process has.
pub fn holdings(pid: u32) -> (usize, usize) {
    let count = |folder: &str| {
        fs::read_dir(Path::new("/proc").join(pid.to_string()).join(folder))
            .expect("alive")
            .count()
    };
    (count("fd"), count("task"))
}

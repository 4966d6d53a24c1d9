//! A machine with some GPUs that are none.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Output};

use crate::journal::Journal;
use crate::standin::{self, Library};
use crate::steady::widened;
use crate::support::server::{command, run_command};
use crate::support::{Server, wait_for};

/// Programs run on it see its driver; what they do with it is in its journal. When it is dropped, the journal must tell of
/// nothing that no correct program does.
pub struct Machine {
    folder: tempfile::TempDir,
    library: PathBuf,
    environment: Vec<(&'static str, String)>,
}

impl Machine {
    /// With `gpus` GPUs and a driver as of today; `None` without a g++, which says that the test is skipped.
    pub fn new(gpus: usize) -> Option<Machine> {
        Machine::with_library(Library::Whole, gpus)
    }

    /// With another driver.
    pub fn with_library(library: Library, gpus: usize) -> Option<Machine> {
        let library = standin::library(library)?;
        let folder = tempfile::tempdir().expect("a folder");
        let environment = vec![("FAKE_CUDA_DEVICES", gpus.to_string())];
        Some(Machine {
            folder,
            library,
            environment,
        })
    }

    /// With a variable of `fakecuda/settings.h`.
    pub fn with(mut self, name: &'static str, value: impl ToString) -> Machine {
        self.environment.push((name, value.to_string()));
        self
    }

    /// With faults from the start: commands of `fakecuda/faults.h`, separated by `;`.
    pub fn with_faults(self, commands: &str) -> Machine {
        self.with("FAKE_CUDA_FAULTS", commands)
    }

    /// A file in a folder of its own.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The binary under test on this machine.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command(arguments);
        self.equip(&mut command);
        command
    }

    /// Lets any program run on this machine.
    pub fn equip(&self, command: &mut Command) {
        command
            .env("LD_LIBRARY_PATH", &self.library)
            .env("FAKE_CUDA_JOURNAL", self.path("journal"))
            .env("FAKE_CUDA_CONTROL", self.path("control"))
            .envs(self.environment.iter().cloned());
    }

    /// Runs the binary to its end.
    pub fn run(&self, arguments: &[&str]) -> Output {
        run_command(self.command(arguments))
    }

    /// A server on all its GPUs, with further flags and, where they set none, wide limits: see [`widened`]. It may not be
    /// ready yet.
    pub fn start(&self, flags: &[&str]) -> Server {
        self.start_as(&["serve", "--executor", "cuda", "--cores", "1"], flags)
    }

    /// The same, for another beginning of the command line.
    pub fn start_as(&self, beginning: &[&str], flags: &[&str]) -> Server {
        let addresses = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        Server::start_command(self.command(&[beginning, &addresses, &widened(flags)[..]].concat()))
    }

    /// The same, once all GPUs are ready.
    pub fn serve(&self, flags: &[&str]) -> Server {
        let mut server = self.start(flags);
        wait_all_up(&mut server);
        server
    }

    /// Has the stand-in obey a command of `fakecuda/faults.h`; holds when this returns.
    pub fn tell(&self, command: &str) {
        let answer = self.try_tell(command).expect("the program runs");
        assert_eq!(answer, "ok\n", "{command}");
    }

    fn try_tell(&self, command: &str) -> std::io::Result<String> {
        let mut stream = UnixStream::connect(self.path("control"))?;
        writeln!(stream, "{command}")?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer)?;
        Ok(answer)
    }

    /// What happened so far.
    pub fn journal(&self) -> Journal {
        Journal::parse(&fs::read_to_string(self.path("journal")).unwrap_or_default())
    }

    /// Waits until the journal is as `condition` wants it.
    pub fn wait_journal(&self, what: &str, condition: impl Fn(&Journal) -> bool) {
        wait_for(what, || condition(&self.journal()));
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let journal = self.journal();
        let violations = journal.violations();
        if !violations.is_empty() {
            eprintln!("violations:\n{}", violations.join("\n"));
            assert!(std::thread::panicking(), "{} violations", violations.len());
        }
    }
}

/// Waits until every GPU serves: for the first time, since what is read may be from a moment ago. See
/// [`crate::steady::wait_all_back`] for those that come back.
pub fn wait_all_up(server: &mut Server) {
    server.wait_for("all GPUs to be ready", |server| {
        gpus_up(server).into_iter().all(|up| up)
    });
}

/// Which GPUs serve.
pub fn gpus_up(server: &Server) -> Vec<bool> {
    let status = server.status();
    let gpus = status["gpus"].as_array().expect("GPUs");
    gpus.iter().map(|gpu| gpu["up"] == true).collect()
}

//! A Funicular server that a scenario starts for itself: on free ports, with its addresses read from its start-up screen.

use std::io::{BufRead as _, BufReader, Read};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::clock::{self, SECOND};

/// A server that has not said where it listens by then is taken for stuck.
const START_NS: u64 = 30 * SECOND;
/// Longer than the server's own grace period of 30 s.
const STOP_NS: u64 = 40 * SECOND;
/// How often its end is looked for.
const STOP_LOOK: Duration = Duration::from_millis(20);
/// The server's program.
const NAME: &str = "funicular";
/// Where a build puts it, seen from the repository.
const BUILT: &str = "target/release/funicular";
const LISTENING: &str = "listening on http://";
const ADMIN: &str = "admin on http://";

/// A server of our own. It is stopped when dropped.
#[derive(Debug)]
pub struct LocalServer {
    child: Child,
    /// `http://host:port` of the data plane.
    pub url: String,
    /// The same of the admin plane.
    pub admin: String,
    /// Its command line.
    pub command: Vec<String>,
    /// Closes when both of its outputs have ended.
    lines: Receiver<String>,
}

/// The server did not come up, or not down.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The program can't be started.
    #[error("cannot start {program}")]
    Start {
        /// The program.
        program: String,
        /// Why.
        source: std::io::Error,
    },
    /// Nobody named a program, and none was found.
    #[error(
        "there is no {BUILT} here, no {NAME} beside this program and none on the path: build it (`cargo build --release \
         --workspace`), or name it with --server"
    )]
    NoProgram,
    /// It ended or fell silent before it said where it listens.
    #[error("{program} did not say where it listens; it said:\n{said}")]
    NotUp {
        /// The program.
        program: String,
        /// Its output.
        said: String,
    },
    /// It ended otherwise than by our will.
    #[error("the server ended with {0} instead of draining")]
    Ended(ExitStatus),
    /// It did not end.
    #[error("the server did not end after SIGTERM; it was killed")]
    Stuck,
    /// The system would not tell.
    #[error("cannot look after the server's process")]
    Process(#[from] std::io::Error),
}

impl LocalServer {
    /// Starts `program serve` with `arguments` on free ports of the loopback and waits until it says where it listens.
    ///
    /// # Errors
    /// If it can't be started or does not come up.
    pub fn start(program: &Path, arguments: &[String]) -> Result<LocalServer, ServerError> {
        let name = program.display().to_string();
        let mut command = vec![name.clone()];
        command.extend(
            ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"].map(str::to_owned),
        );
        command.extend_from_slice(arguments);
        let mut child = Command::new(program)
            .args(&command[1..])
            .stdin(Stdio::null())
            // An interrupt from the terminal is for us: the server should not drain in the middle of a run.
            .process_group(0)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|source| ServerError::Start {
                program: name.clone(),
                source,
            })?;
        let (sender, lines) = mpsc::channel();
        let outputs: [Option<Box<dyn Read + Send>>; 2] = [
            child.stdout.take().map(|out| Box::new(out) as _),
            child.stderr.take().map(|out| Box::new(out) as _),
        ];
        for output in outputs.into_iter().flatten() {
            let sender = sender.clone();
            std::thread::Builder::new()
                .name("server-output".to_owned())
                .spawn(move || forward(output, &sender))?;
        }
        // Only they have it: so it is known at once when a server ends instead of coming up.
        drop(sender);
        let mut server = LocalServer {
            child,
            url: String::new(),
            admin: String::new(),
            command,
            lines,
        };
        // Dropping it on the way out stops the process.
        server.read_addresses().map_err(|said| ServerError::NotUp {
            program: name,
            said,
        })?;
        Ok(server)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Drains the server and waits for its end.
    ///
    /// # Errors
    /// If it does not end by itself with success.
    pub fn stop(mut self) -> Result<(), ServerError> {
        let status = self.end()?;
        if status.success() {
            Ok(())
        } else {
            Err(ServerError::Ended(status))
        }
    }

    /// Fills in the addresses; an error is what the server said instead.
    fn read_addresses(&mut self) -> Result<(), String> {
        let deadline = clock::now() + START_NS;
        let mut said = String::new();
        while self.url.is_empty() || self.admin.is_empty() {
            let left = Duration::from_nanos(deadline.saturating_sub(clock::now()));
            let Ok(line) = self.lines.recv_timeout(left) else {
                return Err(said);
            };
            if let Some(address) = address_after(&line, LISTENING) {
                self.url = address;
            } else if let Some(address) = address_after(&line, ADMIN) {
                self.admin = address;
            }
            said.push_str(&line);
            said.push('\n');
        }
        Ok(())
    }

    fn end(&mut self) -> Result<ExitStatus, ServerError> {
        if let Some(status) = self.child.try_wait()? {
            return Ok(status);
        }
        if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
            // It may have ended since; then there is nobody to tell.
            let _ = kill_process(pid, Signal::TERM);
        }
        let deadline = clock::now() + STOP_NS;
        while clock::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            // Its output ends when it does; until then lines are read, so that it can write them.
            if self.lines.recv_timeout(STOP_LOOK) == Err(RecvTimeoutError::Disconnected) {
                // It has closed its outputs before its end: there is nothing to read, and nothing that would wake us.
                std::thread::park_timeout(STOP_LOOK);
            }
        }
        self.child.kill()?;
        self.child.wait()?;
        Err(ServerError::Stuck)
    }
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        // Whoever wants to know how it ended calls `stop`.
        let _ = self.end();
    }
}

fn forward(output: Box<dyn Read + Send>, lines: &Sender<String>) {
    // Read on when nobody listens any more: a full pipe would block the server.
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        let _ = lines.send(line);
    }
}

/// `http://host:port` after the words of the start-up screen.
fn address_after(line: &str, words: &str) -> Option<String> {
    let (_, rest) = line.split_once(words)?;
    let address = rest.split_whitespace().next()?;
    Some(format!("http://{address}"))
}

/// The server to use when none is named: the release build of this tree if it is there, else the one beside this program, as
/// after a build elsewhere (`CARGO_TARGET_DIR`), else what the path has.
///
/// # Errors
/// If there is none anywhere.
pub fn default_program() -> Result<PathBuf, ServerError> {
    let beside = std::env::current_exe().ok();
    let beside = beside.map(|program| program.with_file_name(NAME));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|folder| folder.join(NAME));
    let mut places = std::iter::once(PathBuf::from(BUILT))
        .chain(beside)
        .chain(on_path);
    places
        .find(|program| program.is_file())
        .ok_or(ServerError::NoProgram)
}

#[cfg(test)]
mod tests {
    use rustix::time::{ClockId, clock_gettime};

    use super::*;

    #[test]
    fn addresses_are_read_from_the_start_up_screen() {
        let found = address_after("  listening on http://127.0.0.1:41234", LISTENING);
        assert_eq!(found.as_deref(), Some("http://127.0.0.1:41234"));
        assert_eq!(
            address_after("  admin on http://[::1]:9 (loopback)", ADMIN).as_deref(),
            Some("http://[::1]:9")
        );
        assert_eq!(address_after("listening on 127.0.0.1", LISTENING), None);
    }

    #[test]
    fn a_program_that_is_no_server_says_what_it_said() {
        let error = LocalServer::start(Path::new("/bin/echo"), &["--gpus".into(), "1".into()])
            .expect_err("no server");
        assert!(
            error
                .to_string()
                .contains("serve --listen 127.0.0.1:0 --admin 127.0.0.1:0 --gpus 1"),
            "{error}"
        );
        let error = LocalServer::start(Path::new("/does/not/exist"), &[]).expect_err("no program");
        assert!(matches!(error, ServerError::Start { .. }));
    }

    #[test]
    fn a_server_that_has_closed_its_outputs_is_waited_for_at_rest() {
        let script =
            "trap 'sleep 1; exit 0' TERM; echo ready; exec >&-; while :; do sleep 0.1; done";
        let mut child = Command::new("sh")
            .args(["-c", script])
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let mut said = String::new();
        let mut output = child.stdout.take().expect("a pipe");
        output
            .read_to_string(&mut said)
            .expect("read until it closes");
        assert_eq!(said, "ready\n");
        let server = LocalServer {
            child,
            url: String::new(),
            admin: String::new(),
            command: Vec::new(),
            lines: mpsc::channel().1,
        };
        let spent = || {
            let time = clock_gettime(ClockId::ThreadCPUTime);
            time.tv_sec * 1000 + time.tv_nsec / 1_000_000
        };
        let before = spent();
        server.stop().expect("it ends by itself");
        let spent = spent() - before;
        assert!(spent < 200, "{spent} ms of CPU time to wait for a second");
    }
}

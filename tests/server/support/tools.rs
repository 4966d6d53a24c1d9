//! Programs that a machine may or may not have: real clients and proxies.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use socket2::{Domain, Socket, Type};

use super::{Client, wait_for, wait_some};

/// Whether `program` can be run; if not, says that the test is skipped.
pub fn is_there(program: &str) -> bool {
    let version = if program == "hey" { "-h" } else { "-v" };
    let found = Command::new(program)
        .arg(version)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok();
    if !found {
        eprintln!("skipped: {program} is not installed");
    }
    found
}

/// Runs a program to its end and gives what it wrote to its standard output.
///
/// # Panics
/// If it fails.
pub fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output();
    let Output {
        status,
        stdout,
        stderr,
    } = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let (stdout, stderr) = (
        String::from_utf8_lossy(&stdout),
        String::from_utf8_lossy(&stderr),
    );
    assert!(
        status.success(),
        "{program} {arguments:?}: {status}\n{stdout}\n{stderr}"
    );
    stdout.into_owned()
}

/// A program in the foreground that listens; it is killed when dropped.
pub struct Listening(Child);

impl Listening {
    /// Starts it and waits until something listens on `address`.
    ///
    /// # Panics
    /// If it ends instead; what it said is shown.
    pub fn start(program: &str, arguments: &[&str], address: SocketAddr) -> Listening {
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let mut listening = Listening(child.expect("it can be run"));
        wait_for("the proxy to listen", || {
            if let Ok(Some(status)) = listening.0.try_wait() {
                let mut said = String::new();
                let stderr = listening.0.stderr.as_mut();
                let _ = stderr.map(|stderr| stderr.read_to_string(&mut said));
                panic!("{program} ended: {status}\n{said}");
            }
            Client::try_connect(address).is_ok()
        });
        // Or it would block once the pipe is full.
        let stderr = listening.0.stderr.take().expect("piped");
        std::thread::spawn(move || BufReader::new(stderr).lines().for_each(drop));
        listening
    }

    /// Sends SIGTERM and waits for the end.
    pub fn terminate(&mut self) -> ExitStatus {
        let pid = Pid::from_child(&self.0);
        kill_process(pid, Signal::TERM).expect("it can be signalled");
        wait_some("the program to end", || {
            self.0.try_wait().expect("it is a child of this process")
        })
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A port for a program that can't be asked which one it took, and that comes later, or again. Nobody else gets it as a free
/// one while this lives: it is bound and never listens, in a way that lets a program listen there which names it.
pub struct Reserved {
    address: SocketAddr,
    _socket: Socket,
}

impl Reserved {
    /// A free port.
    pub fn new() -> Reserved {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        // Most programs listen with the first of these, some with the second as well.
        socket.set_reuse_address(true).expect("an option");
        socket.set_reuse_port(true).expect("an option");
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        socket.bind(&any.into()).expect("a free port");
        let bound = socket.local_addr().expect("bound");
        Reserved {
            address: bound.as_socket().expect("an IP address"),
            _socket: socket,
        }
    }

    /// The address with that port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

//! A server under test: the real binary, as a child process on free ports.

use std::fmt;
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use rustix::process::{Pid, Signal, kill_process};

use funicular::clock;

use super::capture::Capture;
use super::{BOUND, Client, Metrics, Response, wait_for, wait_some};

/// Flags with which every batch after the canary hangs, and nothing gives up on it: whoever is let in stays.
pub const STUCK: [&str; 8] = [
    "--sim-latency-ms",
    "5",
    "--sim-fault",
    "kind=hang,batch=2,every=1,times=0",
    "--batch-timeout-ms",
    "600000",
    "--deadline-ms",
    "600000",
];

/// Flags with which nobody is shed, however slow the machine makes the batches look: for tests of anything but admission.
pub const PATIENT: [&str; 8] = [
    "--target-latency-ms",
    "30000",
    "--backlog-yellow-s",
    "98",
    "--backlog-red-s",
    "99",
    "--backlog-limit-s",
    "100",
];

/// Flags of a server whose batches a test may [`hold`](Server::hold).
pub const HOLDABLE: [&str; 3] = ["--sim-faults-admin", "--batch-timeout-ms", "600000"];

/// The deadline of a server whose test names none: one that a machine which stands still for some seconds does not pass.
const DEADLINE: [&str; 2] = ["--deadline-ms", "30000"];

/// A running server. Dropping it kills the process; if the test is failing by then, its log is printed.
pub struct Server {
    child: Child,
    listen: SocketAddr,
    admin: Option<SocketAddr>,
    screen: Arc<Capture>,
    log: Arc<Capture>,
    readers: Vec<JoinHandle<()>>,
}

impl Server {
    /// Starts `funicular` with `flags` on free ports and waits until its start-up screen is complete. A `--listen` or
    /// `--admin` among the flags wins over the free port, and a `--deadline-ms` over the long one of the tests.
    ///
    /// # Panics
    /// If it ends instead.
    pub fn start(flags: &[&str]) -> Server {
        Server::start_as(&[], flags)
    }

    /// Starts `funicular worker` in the same way.
    ///
    /// # Panics
    /// If it ends instead.
    pub fn start_worker(flags: &[&str]) -> Server {
        Server::start_as(&["worker"], flags)
    }

    fn start_as(command: &[&'static str], flags: &[&str]) -> Server {
        let mut all = command.to_vec();
        for name in ["--listen", "--admin"] {
            if !flags.contains(&name) {
                all.extend([name, "127.0.0.1:0"]);
            }
        }
        if !flags.contains(&DEADLINE[0]) {
            all.extend(DEADLINE);
        }
        all.extend(flags);
        Server::start_with(&all)
    }

    /// Starts it with exactly these arguments.
    ///
    /// # Panics
    /// If it ends before its start-up screen is complete.
    pub fn start_with(arguments: &[&str]) -> Server {
        Server::start_command(command(arguments))
    }

    /// Starts what [`command`] made and a test prepared further.
    ///
    /// # Panics
    /// If it ends before its start-up screen is complete.
    pub fn start_command(mut command: Command) -> Server {
        let mut child = command.spawn().expect("the binary can be run");
        let (screen, log) = (Arc::new(Capture::default()), Arc::new(Capture::default()));
        let readers = vec![
            screen.follow(child.stdout.take().expect("piped")),
            log.follow(child.stderr.take().expect("piped")),
        ];
        let text = screen.wait_until(|text| text.contains("\n  curl ") && text.ends_with('\n'));
        let Some(text) = text else {
            let _ = child.kill();
            let _ = child.wait();
            panic!("{command:?} did not start:\n{}", log.text());
        };
        let listen = address_after(&text, "listening on http://").expect("on the screen");
        let admin = address_after(&text, "admin on http://");
        Server {
            child,
            listen,
            admin,
            screen,
            log,
            readers,
        }
    }

    /// Where callers connect.
    pub fn listen(&self) -> SocketAddr {
        self.listen
    }

    /// Where the admin plane is served, if it is.
    pub fn admin(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it printed at start.
    pub fn screen(&self) -> String {
        self.screen.text()
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        self.log.text()
    }

    /// A new connection to its data plane.
    pub fn connect(&self) -> Client {
        Client::connect(self.listen)
    }

    /// The answer to one inference on a connection of its own.
    pub fn infer(&self, input: &str) -> Response {
        self.connect().infer(input)
    }

    /// `GET path` on a connection of its own.
    pub fn get(&self, path: &str) -> Response {
        self.connect().get(path)
    }

    /// `GET path` on the admin plane.
    ///
    /// # Panics
    /// If the admin plane is off.
    pub fn admin_get(&self, path: &str) -> Response {
        Client::connect(self.admin.expect("the admin plane is on")).get(path)
    }

    /// `/status`, up to a second old.
    pub fn status(&self) -> serde_json::Value {
        self.admin_get("/status").json()
    }

    /// `/metrics`, up to a second old.
    pub fn metrics(&self) -> Metrics {
        Metrics::new(self.admin_get("/metrics").text())
    }

    /// `/metrics` as of after this call: the second reading that follows the present one was begun after that was
    /// served.
    pub fn fresh_metrics(&self) -> Metrics {
        let mut last = self.metrics();
        for _ in 0..2 {
            let before = last.value("funicular_uptime_seconds", &[]);
            last = wait_some("a newer reading of the metrics", || {
                let reading = self.metrics();
                (reading.value("funicular_uptime_seconds", &[]) > before).then_some(reading)
            });
        }
        last
    }

    /// One metric, up to a second old: see [`Metrics::value`].
    pub fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.metrics().value(name, labels)
    }

    /// Waits until a count has come to `value`, and makes sure that it goes no further. What becomes of a request is counted
    /// after its caller has the answer. Gives the reading.
    pub fn expect_count(&self, name: &str, labels: &[(&str, &str)], value: f64) -> Metrics {
        let due = clock::now() + BOUND;
        while self.metric(name, labels) < value && clock::now() < due {
            thread::park_timeout(super::LOOK_EVERY);
        }
        let metrics = self.fresh_metrics();
        let found = metrics.value(name, labels);
        assert_eq!(found, value, "{name} {labels:?} in {}", metrics.text());
        metrics
    }

    /// Scripts a fault from now on; the server was started with `--sim-faults-admin`.
    ///
    /// # Panics
    /// If it is refused.
    pub fn script(&self, line: &str) {
        let answer = self.admin_get(&format!("/faults?{line}"));
        assert_eq!(answer.status, 200, "{answer:?}");
    }

    /// From now on no batch that begins ends before [`Server::release`]. See [`HOLDABLE`].
    pub fn hold(&self) {
        self.script("kind=hold&every=1");
    }

    /// Lets all batches go that are held.
    pub fn release(&self) {
        self.script("kind=clear");
    }

    /// Waits until the first GPU runs a batch of `count` tickets.
    pub fn wait_running(&self, count: u64) {
        wait_for("a batch to run", || {
            self.status()["gpus"][0]["running"].as_u64() == Some(count)
        });
    }

    /// Waits until so many tickets wait.
    pub fn wait_waiting(&self, count: usize) {
        wait_for("so many to wait", || {
            self.metric("funicular_queue_depth", &[]) == count as f64
        });
    }

    /// Waits until `condition` holds, see [`wait_for`]; panics early if the server ends meanwhile.
    pub fn wait_for(&mut self, what: &str, mut condition: impl FnMut(&Server) -> bool) {
        wait_for(what, || {
            if let Ok(Some(status)) = self.child.try_wait() {
                panic!("the server ended ({status}) while a test waited for: {what}");
            }
            condition(self)
        });
    }

    /// Waits until a line of its log contains `text`.
    pub fn wait_log(&self, text: &str) {
        let found = self.log.wait_until(|log| log.contains(text));
        assert!(found.is_some(), "never logged: {text}");
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("it can be signalled");
    }

    /// SIGTERM.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Ends it and gives all that it logged: what is said once, or not at all, shows only now, since the log is written by a
    /// thread of its own.
    ///
    /// # Panics
    /// If it ends with an error.
    pub fn end(&mut self) -> String {
        self.terminate();
        let status = self.wait_exit();
        assert!(status.success(), "{status}");
        self.log()
    }

    /// Waits for its end.
    pub fn wait_exit(&mut self) -> ExitStatus {
        self.wait_exit_while(|_| {})
    }

    /// Waits for its end and does `meanwhile` as long as it has not come.
    pub fn wait_exit_while(&mut self, mut meanwhile: impl FnMut(&Server)) -> ExitStatus {
        let status = wait_some("the end of the server", || {
            let ended = self
                .child
                .try_wait()
                .expect("it is a child of this process");
            if ended.is_none() {
                meanwhile(self);
            }
            ended
        });
        self.readers.drain(..).for_each(|reader| {
            let _ = reader.join();
        });
        status
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.readers.drain(..).for_each(|reader| {
            let _ = reader.join();
        });
        if thread::panicking() {
            let log = self.log.text();
            let lines: Vec<_> = log.lines().collect();
            let tail = &lines[lines.len().saturating_sub(60)..];
            eprintln!("--- the end of the server's log\n{}\n---", tail.join("\n"));
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "server {} on {}", self.child.id(), self.listen)
    }
}

/// The binary under test with `arguments`, its output captured.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_funicular"));
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs the binary to its end: for `check`, and for starts that are refused.
///
/// # Panics
/// If it does not end.
pub fn run(arguments: &[&str]) -> Output {
    run_command(command(arguments))
}

/// Runs to its end what [`command`] made and a test prepared further.
///
/// # Panics
/// If it does not end.
pub fn run_command(mut command: Command) -> Output {
    let mut child = command.spawn().expect("the binary can be run");
    let due = clock::now() + BOUND;
    while child.try_wait().expect("a child").is_none() {
        if clock::now() >= due {
            let _ = child.kill();
            panic!("{command:?} does not end");
        }
        thread::park_timeout(super::LOOK_EVERY);
    }
    child.wait_with_output().expect("it has ended")
}

fn address_after(screen: &str, phrase: &str) -> Option<SocketAddr> {
    let (_, rest) = screen.split_once(phrase)?;
    rest.lines().next()?.parse().ok()
}

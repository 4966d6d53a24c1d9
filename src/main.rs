//! Arguments → configuration → server → wait for a signal → drain. SIGHUP in between has the configuration read again.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context;
use crossbeam_channel::{Sender, bounded};
use env_logger::{Target, WriteStyle};
use funicular::clock;
use funicular::config::{Action, Cli, Config, Flags, Role, raise_open_files_limit};
use funicular::gpu::python::strays;
use funicular::screen;
use funicular::server::Server;
use funicular::sink::{Sink, Tap};
use log::LevelFilter;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Exit status for a configuration that is refused, as for a command line that makes no sense.
const REFUSED: u8 = 2;

/// Longest time that the start-up screen, and the end, wait for the log's last lines to be read. A healthy reader takes no
/// time, a busy machine some.
const LAST_LINES_MAX: Duration = Duration::from_secs(2);

/// A signal that follows another so closely is the same one: supervisors such as `timeout` signal a process and its group.
const SAME_SIGNAL: Duration = Duration::from_millis(100);

fn main() -> ExitCode {
    match Cli::of_process().action() {
        Action::Version => {
            let shown = show(&format!("funicular {}\n", screen::VERSION));
            shown.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
        }
        Action::Check(flags, role) => with_config(flags, role, check),
        Action::Guard => {
            strays::guard();
            ExitCode::SUCCESS
        }
        Action::Serve(flags) => run(flags, Role::Server),
        Action::Devices { json } => devices(json),
        Action::Worker(flags) => run(flags, Role::Worker),
    }
}

fn run(flags: Flags, role: Role) -> ExitCode {
    with_config(flags.clone(), role, |config| served(flags, config))
}

fn served(flags: Flags, config: Config) -> ExitCode {
    match serve(flags, config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            flush_log();
            eprintln!("funicular: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Lists the devices; without one, says why.
fn devices(json: bool) -> ExitCode {
    let found = funicular::gpu::cuda::start::devices();
    let text = match (&found, json) {
        (found, true) => screen::devices_json(found),
        (Ok((devices, version)), false) => screen::devices(devices, *version),
        (Err(_), false) => String::new(),
    };
    if let Err(error) = show(&text) {
        eprintln!("funicular: can't write the list: {error}");
        return ExitCode::FAILURE;
    }
    match found {
        Ok(_) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("funicular: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn with_config(flags: Flags, role: Role, then: impl FnOnce(Config) -> ExitCode) -> ExitCode {
    raise_open_files_limit();
    match Config::load_as(flags, role) {
        Ok(config) => then(config),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(REFUSED)
        }
    }
}

fn check(config: Config) -> ExitCode {
    if let Err(error) = show(&screen::effective(&config)) {
        eprintln!("funicular: can't write the configuration: {error}");
        return ExitCode::FAILURE;
    }
    for warning in &config.warnings {
        eprintln!("warning: {warning}");
    }
    ExitCode::SUCCESS
}

/// Writes to standard output, which may be closed or full.
fn show(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

fn serve(flags: Flags, config: Config) -> anyhow::Result<()> {
    // Before any thread starts, so that none of them ever gets to handle a signal by default.
    let mut signals =
        Signals::new([SIGTERM, SIGINT, SIGHUP]).context("can't listen for signals")?;
    start_logger(config.log_level).context("can't start the thread that writes the log")?;
    let server = Arc::new(Server::start(&config)?);
    let leave = start_drainer(&server)?;
    let hang_ups = start_reloader(&server, flags, config.role)?;
    log::info!("ports are open; waiting for the GPUs");
    // Elsewhere, because a GPU may take its time to warm up, and a signal must not have to wait for that.
    spawn("screen", &server, move |server| {
        let is_ready = server.wait_ready();
        let mut screen = screen::start_up(&config, server.listen(), server.admin());
        if !is_ready {
            screen.push_str("\nNo GPU is in service yet; until the first one is, requests get 503. The log says why.\n");
        }
        // What the GPUs said when they came stands above it, not below.
        flush_log();
        if let Err(error) = show(&screen) {
            log::warn!("the start-up screen can't be shown: {error}");
        }
    })?;
    let mut leaving_since = None;
    for signal in signals.forever() {
        if signal == SIGHUP {
            // One that waits already will read all that is there by then.
            let _ = hang_ups.try_send(());
            continue;
        }
        let now = clock::now();
        // The server itself would know only once the thread that drains it has begun.
        match leaving_since {
            Some(since) if now.since(since) < SAME_SIGNAL => continue,
            Some(_) => {
                log::warn!("second signal: exiting at once");
                end_process(128 + signal);
            }
            None => leaving_since = Some(now),
        }
        // The main thread keeps listening for the second signal.
        let _ = leave.try_send(());
    }
    Ok(())
}

/// The thread that ends the server and the process when it is told to. It is there from the start: when it is needed there may
/// be no more threads to be had.
fn start_drainer(server: &Arc<Server>) -> anyhow::Result<Sender<()>> {
    let (leave, told) = bounded(1);
    spawn("drain", server, move |server| {
        if told.recv().is_ok() {
            server.drain();
            end_process(0);
        }
    })?;
    Ok(leave)
}

/// Ends the server, with all that its workers have started.
fn end_process(status: i32) -> ! {
    flush_log();
    strays::kill_hidden();
    std::process::exit(status);
}

/// The thread that reads the configuration again whenever it is told to: files may take their time, and the main thread has
/// to hear a second signal.
fn start_reloader(server: &Arc<Server>, flags: Flags, role: Role) -> anyhow::Result<Sender<()>> {
    let (hang_ups, told) = bounded(1);
    spawn("reload", server, move |server| {
        for () in told {
            match Config::load_as(flags.clone(), role) {
                Ok(config) => server.reload(&config),
                Err(error) => server.reload_refused(&error),
            }
        }
    })?;
    Ok(hang_ups)
}

fn spawn(
    name: &str,
    server: &Arc<Server>,
    task: impl FnOnce(&Server) + Send + 'static,
) -> anyhow::Result<()> {
    let server = Arc::clone(server);
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread
        .spawn(move || task(&server))
        .with_context(|| format!("can't start the thread {name}"))?;
    Ok(())
}

/// The log's lines that wait for whoever reads them.
static LOG: OnceLock<Tap> = OnceLock::new();

fn flush_log() {
    if let Some(tap) = LOG.get() {
        tap.flush(LAST_LINES_MAX);
    }
}

fn start_logger(level: LevelFilter) -> std::io::Result<()> {
    let (sink, tap) = Sink::new(std::io::stderr())?;
    LOG.get_or_init(|| tap);
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let style = if std::io::stderr().is_terminal() && !plain {
        WriteStyle::Always
    } else {
        WriteStyle::Never
    };
    env_logger::Builder::new()
        .target(Target::Pipe(Box::new(sink)))
        .write_style(style)
        .filter_level(level)
        // It reports every closed connection as an error.
        .filter_module("may_minihttp", LevelFilter::Off)
        // It reports every socket.
        .filter_module("may", level.min(LevelFilter::Warn))
        // It takes every signal that comes while it waits for an error.
        .filter_module("may::io::event_loop", LevelFilter::Off)
        .format_timestamp_millis()
        .init();
    Ok(())
}

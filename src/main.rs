//! Arguments → configuration → server → wait for a signal → drain.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::Parser;
use funicular::config::{Action, Cli, Config, Flags, raise_open_files_limit};
use funicular::screen;
use funicular::server::Server;
use log::LevelFilter;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Exit status for a configuration that is refused, as for a command line that makes no sense.
const REFUSED: u8 = 2;

fn main() -> ExitCode {
    match Cli::parse().action() {
        Action::Version => {
            println!("funicular {}", screen::VERSION);
            ExitCode::SUCCESS
        }
        Action::Check(flags) => with_config(flags, check),
        Action::Serve(flags) => with_config(flags, |config| match serve(config) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("funicular: {error:#}");
                ExitCode::FAILURE
            }
        }),
    }
}

fn with_config(flags: Flags, then: impl FnOnce(Config) -> ExitCode) -> ExitCode {
    raise_open_files_limit();
    match Config::load(flags) {
        Ok(config) => then(config),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(REFUSED)
        }
    }
}

fn check(config: Config) -> ExitCode {
    print!("{}", screen::effective(&config));
    for warning in &config.warnings {
        eprintln!("warning: {warning}");
    }
    ExitCode::SUCCESS
}

fn serve(config: Config) -> anyhow::Result<()> {
    start_logger(config.log_level);
    // Before any thread starts, so that none of them ever gets to handle a signal by default.
    let mut signals = Signals::new([SIGTERM, SIGINT]).context("can't listen for signals")?;
    let server = Arc::new(Server::start(&config)?);
    server.wait_ready();
    print!("{}", screen::start_up(&config, server.listen(), server.admin()));
    for signal in signals.forever() {
        if server.is_leaving() {
            log::warn!("second signal: exiting at once");
            std::process::exit(128 + signal);
        }
        let server = Arc::clone(&server);
        // The main thread keeps listening for the second signal.
        std::thread::Builder::new()
            .name("drain".to_owned())
            .spawn(move || {
                server.drain();
                std::process::exit(0);
            })
            .context("can't start the drain")?;
    }
    Ok(())
}

fn start_logger(level: LevelFilter) {
    env_logger::Builder::new()
        .filter_level(level)
        // It reports every closed connection as an error.
        .filter_module("may_minihttp", LevelFilter::Off)
        // It reports every socket.
        .filter_module("may", level.min(LevelFilter::Warn))
        .format_timestamp_millis()
        .init();
}

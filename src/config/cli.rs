//! The command line.
//!
//! What the process is asked to do; the settings are [`Flags`].

use std::ffi::OsString;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use super::flags::Flags;
use super::remote::Role;
use super::suggest;
use super::worker_help::with_worker_help;

const EXAMPLE: &str = "\
Example: two simulated GPUs, batches of up to 32, and one request
  funicular --gpus 2 --batch-max 32 &
  curl http://127.0.0.1:8080/v1/inference -H 'Content-Type: application/json' \\
       -d '{\"input\": \"Hello, Funicular!\"}'

A flag beats the same setting in the file. funicular check takes the same
flags, starts nothing, and prints every setting as it would hold, in the form
of a --config file.";

const WORKER_EXAMPLE: &str = "\
Example: a worker, and a server that uses it and another one
  funicular worker --listen 10.0.0.7:8081 --worker-secret-file secret &
  funicular --worker http://10.0.0.7:8081 --worker http://10.0.0.8:8081 \\
            --worker-secret-file secret

A worker takes the flags and files of a server. It listens on 127.0.0.1:8081,
its admin port is 127.0.0.1:9091, it has one GPU and takes bodies of 64 MiB,
unless told otherwise; what is about single requests (tiers, keys, admission,
deadlines, when a batch leaves) does not concern it: batches come from servers.
It takes POST /internal/batch, one batch at a time and one more that waits.
funicular worker --check prints every setting of it as it would hold.";

/// Gathers single inference requests into batches for GPUs, and gives every caller its own output.
#[derive(Debug, Parser)]
#[command(name = "funicular", version, after_help = EXAMPLE)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    flags: Flags,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server (what funicular does without a command)
    #[command(after_help = EXAMPLE)]
    Serve(Flags),
    /// Run a worker: one GPU of this machine, for servers elsewhere that name it with --worker
    #[command(after_help = WORKER_EXAMPLE)]
    Worker {
        /// Print the effective configuration of the worker with every derived limit, and start nothing
        #[arg(long)]
        check: bool,
        #[command(flatten)]
        flags: Flags,
    },
    /// Print the effective configuration with every derived limit, and start nothing
    #[command(after_help = EXAMPLE)]
    Check(Flags),
    /// List the GPUs that the CUDA executor can use
    Devices(DevicesFlags),
    /// Print the version
    Version,
    /// For this program alone: see `gpu::python::strays`
    #[command(hide = true)]
    Guard,
}

#[derive(Debug, Args)]
struct DevicesFlags {
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// What the command line asks for.
#[derive(Debug)]
pub enum Action {
    /// Run the server.
    Serve(Flags),
    /// Run a worker.
    Worker(Flags),
    /// Print the effective configuration of a process of this role.
    Check(Flags, Role),
    /// List the devices.
    Devices {
        /// As JSON.
        json: bool,
    },
    /// Print the version.
    Version,
    /// Wait for the end of the server that started this process.
    Guard,
}

impl Cli {
    /// The command line of this process. One that makes no sense, or asks for help, ends it.
    pub fn of_process() -> Cli {
        Cli::parsed(std::env::args_os()).unwrap_or_else(|error| suggest::advised(error).exit())
    }

    /// The command line `line`, whose first word is the program's name.
    pub(super) fn parsed(
        line: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    ) -> Result<Cli, clap::Error> {
        let mut command = with_worker_help(Cli::command());
        let matches = command.try_get_matches_from_mut(line)?;
        Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
    }

    /// What is asked for. Flags mean the same before a command and after it.
    pub fn action(self) -> Action {
        let before = self.flags;
        match self.command {
            None => Action::Serve(before),
            Some(Command::Serve(flags)) => Action::Serve(flags.after(before)),
            Some(Command::Worker { check, flags }) => {
                let flags = flags.after(before);
                if check {
                    Action::Check(flags, Role::Worker)
                } else {
                    Action::Worker(flags)
                }
            }
            Some(Command::Check(flags)) => Action::Check(flags.after(before), Role::Server),
            Some(Command::Devices(DevicesFlags { json })) => Action::Devices { json },
            Some(Command::Version) => Action::Version,
            Some(Command::Guard) => Action::Guard,
        }
    }
}

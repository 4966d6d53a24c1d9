//! What `funicular worker --help` says where a worker differs from a server.
//!
//! A worker takes the same flags and reads the same files, so that one file does for both; but its defaults are others,
//! and what is about single callers has no effect on it. Its help says its own defaults and leaves the rest out. Only
//! the help: every flag still parses.

use clap::{Arg, Command};

use super::keys::{self, Key};
use super::remote::{WORKER_ADMIN, WORKER_BODY_MAX_BYTES, WORKER_LISTEN};

/// The flags that mean something else to a worker, and what its help says of them, before the default.
const OWN: &[(Key, &str)] = &[
    (
        keys::LISTEN,
        "Where servers connect; port 0 takes a free one",
    ),
    (
        keys::EXECUTOR,
        "What runs the batches: simulated, python (implied by --python) or cuda (implied by --cuda-module)",
    ),
    (
        keys::BATCH_MAX,
        "Most inputs in a batch; a larger batch is refused",
    ),
    (keys::BODY_MAX_BYTES, "Largest request body: a whole batch"),
    (
        keys::DRAIN_DELAY_MS,
        "Time to go on serving after SIGTERM, in ms, for servers to notice",
    ),
    (
        keys::DRAIN_GRACE_MS,
        "Time for accepted batches to finish after that, in ms",
    ),
];

/// The flags that have no effect on a worker.
const OF_SERVERS: &[Key] = &[
    keys::MODEL,
    keys::DEFAULT_TIER,
    keys::IDENTITY,
    keys::KEYS_FILE,
    keys::DEADLINE_MS,
    keys::QUEUE_BOUND,
    keys::GPUS,
    keys::HOLD_MAX_MS,
    keys::PATIENCE,
    keys::TARGET_LATENCY_MS,
    keys::YELLOW_S,
    keys::RED_S,
    keys::LIMIT_S,
    keys::MIN_SHARE,
    keys::REMOTE_WORKERS,
    keys::REMOTE_WORKERS_FILE,
    keys::REMOTE_WORKERS_MAX,
];

/// `command` with the help of a worker's own for its subcommand `worker`.
pub fn with_worker_help(command: Command) -> Command {
    command.mut_subcommand("worker", |worker| worker.mut_args(of_worker))
}

fn of_worker(argument: Arg) -> Arg {
    let long = argument.get_long().unwrap_or_default();
    let is = |key: &Key| key.flag.strip_prefix("--") == Some(long);
    if OF_SERVERS.iter().any(is) {
        return argument.hide(true);
    }
    let help = argument.get_help().map(ToString::to_string);
    let help = help.unwrap_or_default();
    // Every setting's help ends with its default.
    let Some((text, ending)) = help.split_once(" [default: ") else {
        return argument;
    };
    let own = OWN.iter().find(|(key, _)| is(key));
    let text = own.map_or(text, |(_, text)| text);
    let ending = match () {
        () if is(&keys::LISTEN) => format!("{WORKER_LISTEN}]"),
        () if is(&keys::ADMIN) => format!("{WORKER_ADMIN}]"),
        () if is(&keys::BODY_MAX_BYTES) => format!("{WORKER_BODY_MAX_BYTES}]"),
        () => ending.to_owned(),
    };
    let help = format!("{text} [default: {ending}");
    argument.help(help)
}

#[cfg(test)]
mod tests {
    use crate::config::Cli;

    /// The help of the command `command`, without its line breaks.
    fn help_of(command: &str) -> String {
        let asked = Cli::parsed(["funicular", command, "--help"]).expect_err("help");
        let help = asked.to_string();
        help.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_worker_says_its_own_defaults() {
        let help = help_of("worker");
        for (flag, default) in [
            ("--listen <", "127.0.0.1:8081"),
            ("--admin <", "127.0.0.1:9091"),
            ("--body-max-bytes <", "67108864"),
            ("--batch-max <", "100"),
            ("--canary <", "funicular canary"),
        ] {
            let (_, from) = help.split_once(flag).expect("the flag");
            let (_, from) = from.split_once("[default: ").expect("a default");
            assert!(from.starts_with(&format!("{default}]")), "{flag} {from}");
        }
        let help = help_of("serve");
        assert!(help.contains("127.0.0.1:8080") && help.contains("1048576"));
    }

    #[test]
    fn what_is_about_callers_is_left_out_but_still_taken() {
        let (worker, server) = (help_of("worker"), help_of("serve"));
        let flags = super::OF_SERVERS.iter().map(|key| key.flag);
        for flag in flags.map(|flag| format!("{flag} <")) {
            assert!(!worker.contains(&flag), "{flag}");
            assert!(server.contains(&flag), "{flag}");
        }
        let line = ["funicular", "worker", "--patience", "0", "--gpus", "1"];
        assert!(Cli::parsed(line).is_ok());
    }
}

//! Flags before and after a command, and what their help names.

use std::path::Path;

use clap::{ArgAction, CommandFactory};

use super::{EXAMPLE, LINE};
use crate::config::{Action, Cli, Flags, RawConfig};

fn flags_of(arguments: &[&str]) -> Flags {
    let cli = Cli::parsed([&["funicular"], arguments].concat()).expect("sound flags");
    match cli.action() {
        Action::Serve(flags) | Action::Worker(flags) | Action::Check(flags, _) => flags,
        Action::Devices { .. } | Action::Version | Action::Guard => panic!("takes no flags"),
    }
}

#[test]
fn flags_mean_the_same_before_a_command_and_after_it() {
    let line: Vec<&str> = LINE.split_whitespace().collect();
    let settings = |arguments: &[&str]| flags_of(arguments).overlay(RawConfig::default());
    let all = settings(&line);
    let takes_flags = |command: &&clap::Command| command.get_arguments().count() > 5;
    let root = Cli::command();
    for command in root.get_subcommands().filter(takes_flags) {
        let name = [command.get_name()];
        assert_eq!(settings(&[&name, &line[..]].concat()), all);
        assert_eq!(settings(&[&line[..], &name].concat()), all);
        let config = [&["--config", "a.toml"], &name[..]].concat();
        assert_eq!(flags_of(&config).file(), Some(Path::new("a.toml")));
        let twice = [&["--gpus", "2"], &name[..], &["--gpus", "3"]].concat();
        assert_eq!(settings(&twice), settings(&["--gpus", "3"]));
    }
    // One that is repeatable may stand on both sides.
    let repeatable = |argument: &&clap::Arg| matches!(argument.get_action(), ArgAction::Append);
    for argument in root.get_arguments().filter(repeatable) {
        let flag = format!("--{}", argument.get_long().expect("a long name"));
        let place = line.iter().position(|word| *word == flag);
        let value = line[place.expect("every flag is there") + 1];
        let both = settings(&[&flag, value, "check", &flag, value]);
        assert_eq!(both, settings(&[&flag, value, &flag, value]), "{flag}");
    }
}

#[test]
fn the_help_and_the_example_name_every_kind_of_fault() {
    let command = Cli::command();
    let mut arguments = command.get_arguments();
    let fault = arguments.find(|argument| argument.get_long() == Some("sim-fault"));
    let help = fault
        .and_then(|fault| fault.get_help())
        .expect("a help text");
    let help = help.to_string();
    let (_, kinds) = help.split_once("kinds are ").expect("a list");
    let (kinds, _) = kinds.split_once(" [").expect("its end");
    assert_eq!(kinds, crate::gpu::faults::KINDS.join(", "));
    let (_, kinds) = EXAMPLE.split_once("# kind is ").expect("a list");
    let (kinds, _) = kinds.split_once(". gpu:").expect("its end");
    for kind in crate::gpu::faults::KINDS {
        assert!(kinds.contains(&format!("\"{kind}\"")), "{kind}: {kinds}");
    }
}

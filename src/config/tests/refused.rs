//! What is refused, at which place and in which words.

use std::path::Path;

use clap::CommandFactory;
use proptest::prelude::*;

use super::{flags, refusal};
use crate::config::{Cli, Config, ConfigError, RawConfig};

const OUT_OF_RANGE: &[(&str, &str)] = &[
    (
        "gpus = 0",
        "f.toml:1: gpus is 0; it must be from 1 to 1,024 (default: 4)",
    ),
    (
        "\n\ngpus = -1",
        "f.toml:3: gpus is -1; it must be from 1 to 1,024 (default: 4)",
    ),
    (
        "gpus = 4294967297",
        "f.toml:1: gpus is 4294967297; it must be from 1 to 1,024 (default: 4)",
    ),
    (
        "deadline_ms = 600001",
        "f.toml:1: deadline_ms is 600001; it must be from 1 to 600,000, or auto",
    ),
    (
        "queue_bound = 0",
        "f.toml:1: queue_bound is 0; it must be from 1 to 16,777,216 (default: 65,536)",
    ),
    (
        "batch_timeout_ms = 0",
        "f.toml:1: batch_timeout_ms is 0; it must be from 1 to 86,400,000, or auto",
    ),
    (
        "[batch]\nbatch_max = 0",
        "f.toml:2: batch.batch_max is 0; it must be from 1 to 4,096 (default: 100)",
    ),
    (
        "[batch]\nbatch_max = 4097",
        "f.toml:2: batch.batch_max is 4097; it must be from 1 to 4,096",
    ),
    (
        "[batch]\npatience = nan",
        "f.toml:2: batch.patience is NaN; it must be 0 or more, or inf (default: 1)",
    ),
    (
        "[batch]\npatience = -0.5",
        "f.toml:2: batch.patience is -0.5; it must be 0 or more, or inf",
    ),
    (
        "[simulated]\njitter = 1.01",
        "f.toml:2: simulated.jitter is 1.01; it must be a fraction from 0 to 1",
    ),
    (
        "[simulated]\njitter = nan",
        "f.toml:2: simulated.jitter is NaN; it must be a fraction from 0 to 1",
    ),
    (
        "[limits]\nheader_max_count = 1025",
        "f.toml:2: limits.header_max_count is 1025; it must be from 8 to 1,024",
    ),
    (
        "[timeouts]\nidle_ms = 0",
        "f.toml:2: timeouts.idle_ms is 0; it must be from 1 to 86,400,000",
    ),
    (
        "[drain]\ngrace_ms = -1",
        "f.toml:2: drain.grace_ms is -1; it must be from 0 to 86,400,000",
    ),
    (
        "[admission]\ntarget_latency_ms = 0",
        "f.toml:2: admission.target_latency_ms is 0; it must be from 1 to 600,000 (default: 500)",
    ),
    (
        "[simulated]\nfaults = [\n'kind=lost',\n'kind=melt']",
        "f.toml:4: simulated.faults can't hold \"kind=melt\": kind is one of lost, hang, block, slow, raise",
    ),
    (
        "model = ''",
        "f.toml:1: model is \"\"; it must have 1 to 256 bytes and no control characters",
    ),
    (
        "model = \"a\\nb\"",
        "f.toml:1: model is \"a\\nb\"; it must have 1 to 256 bytes",
    ),
];

#[test]
fn numbers_out_of_range_are_refused_with_their_place_and_range() {
    for (file, message) in OUT_OF_RANGE {
        let found = refusal(file, &[]);
        assert!(found.starts_with(message), "{file}: {found}");
    }
    assert!(refusal("", &["--gpus", "0"]).starts_with("--gpus: gpus is 0; it must be"));
    assert!(refusal("", &["--sim-fault", "melt"]).starts_with(
        "--sim-fault: simulated.faults can't hold \"melt\": \"melt\" is not key=value"
    ));
    let found = refusal("[simulated]\nfaults = ['kind=hang gpu=1']", &[]);
    assert!(
        found.ends_with("need commas between them: write \"kind=hang,gpu=1\""),
        "{found}"
    );
    assert!(refusal("", &["--patience", "nan"]).starts_with("--patience: batch.patience is NaN"));
    assert!(
        refusal("", &["--sim-jitter", "-1"]).starts_with("--sim-jitter: simulated.jitter is -1")
    );
}

#[test]
fn all_that_is_out_of_range_is_reported_at_once() {
    let found = refusal("gpus = 0\n[batch]\nbatch_max = 0", &["--patience", "-1"]);
    let lines: Vec<&str> = found.lines().collect();
    assert_eq!(lines.len(), 3, "{found}");
    assert!(lines[0].starts_with("f.toml:1: gpus"));
    assert!(lines[1].starts_with("--patience: batch.patience"));
    assert!(lines[2].starts_with("f.toml:3: batch.batch_max"));
}

const OF_THE_WRONG_KIND: &[(&str, &str)] = &[
    (
        "gpus = '4'",
        "f.toml:1: expected a whole number, found \"4\", in the line: gpus = '4'",
    ),
    (
        "\ngpus = 4.5",
        "f.toml:2: expected a whole number, found 4.5",
    ),
    (
        "gpus = true",
        "f.toml:1: expected a whole number, found true",
    ),
    (
        "gpus = [4]",
        "f.toml:1: expected a number or a text in quotes",
    ),
    ("model = 4", "f.toml:1: expected a text in quotes, found 4"),
    (
        "listen = 8080",
        "f.toml:1: expected an address in quotes, such as \"127.0.0.1:8080\", found 8080",
    ),
    (
        "listen = 'example.com:80'",
        "f.toml:1: \"example.com:80\" is no address; write IP:PORT",
    ),
    (
        "admin = false",
        "f.toml:1: expected an address in quotes, or \"off\", found false",
    ),
    (
        "admin = 'on'",
        "f.toml:1: \"on\" is no address; write IP:PORT, such as 127.0.0.1:8080 or [::]:8080, or off",
    ),
    (
        "executor = 'abacus'",
        "f.toml:1: there is no executor \"abacus\"; this build has: simulated, python",
    ),
    (
        "default_tier = 'gold'",
        "f.toml:1: \"gold\": no such tier; the tiers are enterprise, paid and free",
    ),
    (
        "log_level = 'loud'",
        "f.toml:1: there is no log level \"loud\"; there are off, error, warn",
    ),
    (
        "cores = 'all'",
        "f.toml:1: \"all\" names no cores; write auto, a count such as 4, or a list",
    ),
    (
        "cores = -1",
        "f.toml:1: expected \"auto\", a count, or a list such as \"0,2-3\", found -1",
    ),
    (
        "max_connections = 'many'",
        "f.toml:1: expected a whole number or \"auto\", found \"many\"",
    ),
    (
        "[batch]\npatience = 'long'",
        "f.toml:2: expected a number, found \"long\"",
    ),
    (
        "identity = 'none'",
        "f.toml:1: there is no identity \"none\"; there are trusted and keys",
    ),
    (
        "keys_file = 3",
        "f.toml:1: expected a path in quotes, found 3",
    ),
    (
        "[admission]\nmin_share = 0.1",
        "f.toml:2: invalid type: floating point `0.1`, expected parts by tier, such as { paid = 0.1",
    ),
    (
        "[admission]\nmin_share = { gold = 0.1 }",
        "f.toml:2: unknown field `gold`, expected one of `enterprise`, `paid`, `free`, in the line: min_share",
    ),
    (
        "[simulated]\nfaults = [3]",
        "f.toml:2: expected a text in quotes, found 3",
    ),
    (
        "[simulated]\nfaults = 'kind=lost'",
        "f.toml:2: invalid type: string \"kind=lost\", expected a list: write it in brackets, [ ]",
    ),
    (
        "[simulated]\nfaults_admin = 1",
        "f.toml:2: expected true or false, found 1",
    ),
    (
        "batch = 3",
        "f.toml:1: invalid type: integer `3`, expected a table: write [batch] on a line of its own",
    ),
    (
        "[python]\ntarget = 'package.module'",
        "f.toml:2: python.target is \"package.module\", which names no function: write file.py:function or",
    ),
    ("gpus = 1\ngpus = 2", "f.toml:2: duplicate key"),
    ("gpus 4", "f.toml:1: "),
    (
        "gpus =",
        "f.toml:1: gpus has no value: write gpus = and its value, in the line: gpus =",
    ),
    (
        "[batch]\npatience = # as long as it takes",
        "f.toml:2: patience has no value",
    ),
];

#[test]
fn values_of_the_wrong_kind_are_refused_with_their_line() {
    for (file, message) in OF_THE_WRONG_KIND {
        let found = refusal(file, &[]);
        assert!(found.starts_with(message), "{file}: {found}");
    }
}

#[test]
fn flags_with_nonsense_are_refused_by_name() {
    let cases = [
        ["--listen", "8080"],
        ["--admin", "no"],
        ["--cores", "x"],
        ["--executor", "abacus"],
        ["--default-tier", "gold"],
        ["--log-level", "loud"],
        ["--patience", "long"],
        ["--gpus", "four"],
        ["--max-connections", "many"],
        ["--identity", "none"],
        ["--min-share", "paid"],
        ["--min-share", "gold=0.1"],
        ["--min-share", "paid=much"],
        ["--backlog-red-s", "long"],
    ];
    for [flag, value] in cases {
        let error = Cli::parsed(["funicular", flag, value]).expect_err(flag);
        assert!(error.to_string().contains(flag), "{error}");
        assert_eq!(error.exit_code(), 2);
    }
}

/// The words of the standard library's parsers say nothing about the flag.
#[test]
fn every_flag_says_in_plain_words_what_it_takes() {
    let takes_any_text = [
        "config",
        "model",
        "keys",
        "canary",
        "sim-fault",
        "sim-faults-admin",
        "cuda-entry",
        "cuda-module",
        "python",
        "python-bin",
        "python-env",
        "worker",
        "workers-file",
        "worker-secret-file",
    ];
    let mut asked = 0;
    for argument in Cli::command().get_arguments() {
        let Some(long) = argument.get_long() else {
            continue;
        };
        let is_text = argument.get_action().takes_values() && takes_any_text.contains(&long);
        if is_text || !argument.get_action().takes_values() {
            continue;
        }
        for value in ["four", "1.5x", "99999999999999999999"] {
            let flag = format!("--{long}={value}");
            let Err(error) = Cli::parsed(["funicular", &flag]) else {
                // A number of any size is one where fractions are allowed, and a count of cores too.
                assert!(value.ends_with('9'), "{flag}");
                continue;
            };
            let said = error.to_string();
            for jargon in [
                "invalid digit",
                "invalid float",
                "target type",
                "literal",
                "variant",
            ] {
                assert!(!said.contains(jargon), "{said}");
            }
            asked += 1;
        }
    }
    assert!(asked > 60, "{asked}");
    let error = Cli::parsed(["funicular", "--gpus", "four"]).expect_err("no number");
    assert!(
        error.to_string().contains("\"four\" is not a whole number"),
        "{error}"
    );
}

#[test]
fn unknown_settings_are_refused_in_the_order_of_the_file_with_the_nearest_name() {
    let found = refusal(
        "lisen = 'x'\ngpu = 2\n[batch]\npatiense = 1\n[nonsense]\nx = 1",
        &[],
    );
    let lines: Vec<&str> = found.lines().collect();
    assert_eq!(
        lines,
        [
            "f.toml:1: there is no setting lisen; did you mean listen?",
            "f.toml:2: there is no setting gpu; did you mean gpus?",
            "f.toml:4: there is no setting patiense in [batch]; did you mean patience?",
            "f.toml:5: there is no setting nonsense; funicular check prints every setting there is",
        ]
    );
    assert_eq!(
        refusal("tier = 'free'", &[]),
        "f.toml:1: there is no setting tier; did you mean default_tier?"
    );
}

const CONTRADICTIONS: &[(&str, &[&str], &str)] = &[
    (
        "queue_bound = 99",
        &[],
        "f.toml:1: queue_bound (99) is under one batch: make it batch.batch_max (100) or more",
    ),
    (
        "queue_bound = 200",
        &["--batch-max", "300"],
        "f.toml:1 and --batch-max: queue_bound (200) is under one batch",
    ),
    (
        "[batch]\nhold_max_ms = 2000",
        &[],
        "f.toml:2: batch.hold_max_ms (2 s) must be shorter than deadline_ms (2 s)",
    ),
    (
        "",
        &["--deadline-ms", "40"],
        "--deadline-ms: batch.hold_max_ms (40 ms) must be shorter than deadline_ms (40 ms)",
    ),
    (
        "[limits]\nbody_max_bytes = 1000",
        &[],
        "f.toml:2: limits.input_max_bytes (64 KiB) is more than limits.body_max_bytes (1,000 bytes) lets in",
    ),
    (
        "",
        &["--listen", "127.0.0.1:9090"],
        "--listen: listen (127.0.0.1:9090) and admin (127.0.0.1:9090) take the same port",
    ),
    (
        "listen = '0.0.0.0:1'",
        &["--admin", "127.0.0.1:1"],
        "f.toml:1 and --admin: listen (0.0.0.0:1) and admin (127.0.0.1:1) take the same port",
    ),
    (
        "[admission]\nyellow_s = 0.5",
        &["--backlog-limit-s", "3"],
        "f.toml:2 and --backlog-limit-s: admission: the zones must begin at 0 < yellow < red < limit \
         seconds of backlog, not at 0.5, 0.5 and 3",
    ),
    (
        "[admission]\nlimit_s = inf",
        &[],
        "f.toml:2: admission: the zones must begin",
    ),
    (
        "[admission]\nmin_share = { paid = 0.6 }",
        &["--min-share", "free=0.6"],
        "f.toml:2 and --min-share: admission: min_share must be between 0 and 1 for each tier, and \
         at most 1 for all together",
    ),
    (
        "",
        &["--min-share", "paid=nan"],
        "--min-share: admission: min_share must be between 0 and 1",
    ),
    (
        "canary = 'a long one'\n[limits]\ninput_max_bytes = 9",
        &[],
        "f.toml:1 and f.toml:3: canary (10 bytes) is longer than limits.input_max_bytes (9 bytes) lets",
    ),
    (
        "gpus = 2\n[simulated]\nfaults = ['kind=lost,gpu=1',\n'kind=hang,gpu=2']",
        &[],
        "f.toml:4 and f.toml:1: simulated.faults: kind=hang,gpu=2,ms=0 names gpu 2, but gpus is 2: \
         the last one is 1",
    ),
    (
        "",
        &["--sim-fault", "kind=lost,gpu=4"],
        "--sim-fault: simulated.faults: kind=lost,gpu=4,ms=0 names gpu 4, but gpus is 4",
    ),
];

#[test]
fn contradictions_are_refused_at_the_places_that_were_given() {
    for (file, arguments, message) in CONTRADICTIONS {
        let found = refusal(file, arguments);
        assert!(found.starts_with(message), "{file} {arguments:?}: {found}");
    }
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = folder.path().join("missing.toml");
    let refused = Config::load(flags(&["--config", &missing.display().to_string()]));
    let found = refused.expect_err("no such file").to_string();
    assert!(found.starts_with(&format!(
        "--config: can't read {}: No such file",
        missing.display()
    )));

    let binary = folder.path().join("binary.toml");
    std::fs::write(&binary, [0xff, 0xfe]).expect("written");
    let refused = Config::load(flags(&["--config", &binary.display().to_string()]));
    assert!(matches!(refused, Err(ConfigError::Unreadable { .. })));
}

proptest! {
    /// Whatever stands in the file, it is taken or refused; text that is nearly sound gets deeper than noise.
    #[test]
    fn no_text_of_a_file_makes_the_server_panic(
        noise in ".{0,20}",
        at in 0_usize..200,
        nearly in prop::sample::select(vec![
            "gpus = 4\n[batch]\npatience = inf\n",
            "cores = '0-3'\nlisten = '[::1]:8'\n",
            "\u{feff}gpus = 1\n🚡 = 1",
        ]),
    ) {
        let starts: Vec<usize> = nearly.char_indices().map(|(byte, _)| byte).collect();
        let (head, tail) = nearly.split_at(starts[at % starts.len()]);
        let _ = RawConfig::parse(Path::new("f.toml"), &format!("{head}{noise}{tail}"));
    }
}

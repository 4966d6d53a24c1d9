//! What is taken and what is warned of, and that the example, the help and the code agree.

mod command_line;
mod cuda;
mod identity;
mod machine;
mod python;
mod refused;
mod workers;

use std::path::Path;
use std::time::Duration;

use clap::CommandFactory;

use super::*;

const EXAMPLE: &str = include_str!("../../../funicular.example.toml");

fn machine() -> Machine {
    Machine {
        cores: vec![0, 1, 2, 5],
        open_files: 1 << 20,
        memory_maps: 65_530,
        address_space_bytes: u64::MAX,
        cuda_devices: None,
        memory_bytes: Some(16 << 30),
    }
}

fn flags(arguments: &[&str]) -> Flags {
    let cli = Cli::parsed([&["funicular"], arguments].concat()).expect("sound flags");
    let Action::Serve(flags) = cli.action() else {
        panic!("no other command was given");
    };
    flags
}

fn resolve_on(machine: &Machine, file: &str, arguments: &[&str]) -> Result<Config, ConfigError> {
    let raw = RawConfig::parse(Path::new("f.toml"), file)?;
    Config::resolve(&flags(arguments).overlay(raw), machine)
}

fn resolve(file: &str, arguments: &[&str]) -> Result<Config, ConfigError> {
    resolve_on(&machine(), file, arguments)
}

fn refusal(file: &str, arguments: &[&str]) -> String {
    resolve(file, arguments).expect_err("a refusal").to_string()
}

#[test]
fn the_example_holds_the_defaults() {
    let defaults = resolve("", &[]).expect("defaults are sound");
    assert_eq!(
        resolve(EXAMPLE, &[]).expect("the example is sound"),
        defaults
    );
    assert_eq!(defaults.warnings, Vec::<String>::new());
    assert_eq!(defaults.capacity(), Some(4_000.0));
    assert_eq!(defaults.admission, Rules::default());
}

#[test]
fn the_example_names_every_setting_in_order() {
    let mut section = String::new();
    let mut named = Vec::new();
    for line in EXAMPLE.lines() {
        if let Some(table) = line.strip_prefix('[') {
            section = table.trim_end_matches(']').to_owned();
        } else if let Some((name, _)) = line.split_once(" = ").filter(|_| !line.starts_with('#')) {
            named.push((section.clone(), name.to_owned()));
        }
    }
    let keys = keys::ALL.iter();
    let all: Vec<_> = keys
        .map(|key| (key.section.to_owned(), key.name.to_owned()))
        .collect();
    assert_eq!(named, all);
}

#[test]
fn every_flag_sets_a_setting_and_its_help_says_the_default() {
    let command = Cli::command();
    let example: toml::Table = EXAMPLE.parse().expect("TOML");
    let others = ["config", "help", "version"];
    let named = |argument: &&clap::Arg| {
        argument
            .get_long()
            .is_some_and(|long| !others.contains(&long))
    };
    assert_eq!(
        command.get_arguments().filter(named).count(),
        keys::ALL.len()
    );
    for key in keys::ALL {
        let long = key.flag.trim_start_matches("--");
        let argument = command
            .get_arguments()
            .find(|argument| argument.get_long() == Some(long));
        let argument = argument.unwrap_or_else(|| panic!("{key} has no flag {}", key.flag));
        let table = match key.section {
            "" => &example,
            section => example[section].as_table().expect("a table"),
        };
        let default = in_help(&table[key.name]);
        let help = argument.get_help().expect("help").to_string();
        let ending = format!("[default: {default}]");
        assert!(
            help.ends_with(&ending),
            "{}: {help:?} should end with {ending}",
            key.flag
        );
        assert!(
            argument.get_help_heading().is_some(),
            "{} stands under no heading",
            key.flag
        );
    }
}

/// A value of the example as the help has it: what is empty, or a table of zeroes, is none.
fn in_help(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) if text.is_empty() => "none".to_owned(),
        toml::Value::Array(list) if list.is_empty() => "none".to_owned(),
        toml::Value::Table(table) if table.values().all(|part| part.as_integer() == Some(0)) => {
            "none".to_owned()
        }
        value => value.to_string().trim_matches('"').to_owned(),
    }
}

#[test]
fn clap_finds_nothing_wrong_with_the_command_line() {
    Cli::command().debug_assert();
}

#[test]
fn commands_are_told_apart() {
    let action = |line: &[&str]| Cli::parsed(line).map(Cli::action);
    assert!(matches!(
        action(&["funicular", "--gpus", "2"]),
        Ok(Action::Serve(_))
    ));
    assert!(matches!(
        action(&["funicular", "serve", "--gpus", "2"]),
        Ok(Action::Serve(_))
    ));
    assert!(matches!(
        action(&["funicular", "check", "--gpus", "2"]),
        Ok(Action::Check(_, Role::Server))
    ));
    assert!(matches!(
        action(&["funicular", "version"]),
        Ok(Action::Version)
    ));
    assert!(matches!(
        action(&["funicular", "worker", "--check", "--canary", "x"]),
        Ok(Action::Check(_, Role::Worker))
    ));
    assert!(matches!(
        action(&["funicular", "--canary", "x", "worker"]),
        Ok(Action::Worker(_))
    ));
    assert!(matches!(
        action(&["funicular", "devices", "--json"]),
        Ok(Action::Devices { json: true })
    ));
    assert!(action(&["funicular", "--gpu", "2"]).is_err());
}

/// Every setting, with a value that is not its default.
const FILE: &str = "
        listen = '127.0.0.1:1111'\nadmin = '127.0.0.1:1112'\ncores = 'auto'\nmax_connections = 11
        model = 'file'\ndefault_tier = 'paid'\ndeadline_ms = 1111\nqueue_bound = 1111\ngpus = 11
        identity = 'keys'\nkeys_file = 'file.keys'
        executor = 'simulated'\nbatch_timeout_ms = 1111\ncanary = 'file'\nlog_level = 'warn'
        [batch]\nbatch_max = 11\nhold_max_ms = 11\npatience = 11
        [admission]\ntarget_latency_ms = 1111\nyellow_s = 0.11\nred_s = 0.111\nlimit_s = 11
        min_share = { enterprise = 0.5, paid = 0.11, free = 0.125 }
        [simulated]\nlatency_ms = 11\njitter = 0.11\ncold_start_ms = 11
        faults = ['kind=lost', 'kind=count']\nfaults_admin = true
        [remote]\nworkers = ['http://file:1', 'http://file:11']\nworkers_file = 'file.list'\nworkers_max = 11\nsecret_file = 'file.secret'
        [limits]\nbody_max_bytes = 1111\ninput_max_bytes = 1111\noutput_max_bytes = 1111
        header_max_bytes = 1111\nheader_max_count = 11\ntarget_max_bytes = 111
        request_memory_mib = 11
        [timeouts]\nheader_ms = 11\nbody_ms = 11\nidle_ms = 11\nwrite_ms = 11
        [drain]\ndelay_ms = 11\ngrace_ms = 1111";

/// Every flag, with a value that is neither its default nor that of [`FILE`].
const LINE: &str = "--listen localhost:2221 --admin off --cores 0,2 --max-connections 22 --model flag \
        --default-tier Enterprise --deadline-ms 2222 --queue-bound 2222 --gpus 22 --executor simulated \
        --identity keys --keys flag.keys --canary flag --target-latency-ms 222 --backlog-yellow-s 0.22 \
        --backlog-red-s 0.222 --backlog-limit-s 2 --min-share paid=0.22 --sim-fault kind=raise,gpu=21,marker=x \
        --cuda-module flag.ptx --cuda-entry flag --cuda-block 22 --cuda-shared-bytes 22 --cuda-output-factor 2 \
        --cuda-output-extra 22 --cuda-work-us 22 --python flag.py:f --python-bin flag --python-env 21:A=flag --python-start-timeout-s 22 \
        --batch-timeout-ms 2222 --log-level debug --batch-max 22 --hold-max-ms 22 --patience inf \
        --sim-latency-ms 22 --sim-jitter 0.22 --sim-cold-start-ms 22 --sim-faults-admin=false \
        --worker http://flag:2 --workers-file flag.list --workers-max 22 --worker-secret-file flag.secret --body-max-bytes 2222 \
        --input-max-bytes 2222 --output-max-bytes 2222 --header-max-bytes 2222 --header-max-count 22 \
        --target-max-bytes 222 --request-memory-mib 22 --header-timeout-ms 22 --body-timeout-ms 22 --idle-timeout-ms 22 \
        --write-timeout-ms 22 --drain-delay-ms 22 --drain-grace-ms 2222";

fn warnings_of_line() -> Vec<String> {
    vec![
        "the batch function flag.py:f does not run, since the executor is simulated".to_owned(),
        "the kernel in flag.ptx does not run, since the executor is simulated".to_owned(),
        "remote.workers get no batches, since the executor is simulated".to_owned(),
        "GPUs will fail as scripted: kind=raise,gpu=21,marker=x".to_owned(),
    ]
}

fn expected_of_line() -> Config {
    let ms = Duration::from_millis;
    Config {
        role: Role::Server,
        secret: SecretConfig {
            file: Some(PathBuf::from("flag.secret")),
            secret: None,
        },
        listen: "127.0.0.1:2221".parse().expect("an address"),
        admin: None,
        cores: vec![0, 2],
        gpus: 22,
        seats: 22,
        executor: ExecutorConfig::Simulated(SimulatedConfig {
            latency: ms(22),
            jitter: 0.22,
            cold_start: ms(22),
            faults: vec!["kind=raise,gpu=21,marker=x".parse().expect("a fault")],
            faults_admin: false,
        }),
        batch: BatchConfig {
            batch_max: 22,
            hold_max: ms(22),
            patience: f64::INFINITY,
        },
        canary: "flag".to_owned(),
        identity: Identity::Keys(PathBuf::from("flag.keys")),
        admission: Rules {
            target_latency: ms(222),
            deadline: DefaultDeadline::Fixed(ms(2_222)),
            hold_max: ms(22),
            patience: f64::INFINITY,
            yellow: 0.22,
            red: 0.222,
            limit: 2.0,
            min_share: [0.0, 0.22, 0.0],
        },
        queue_bound: 2_222,
        http: HttpConfig {
            limits: HttpLimits {
                body_max_bytes: 2_222,
                input_max_bytes: 2_222,
                output_max_bytes: 2_222,
                header_max_bytes: 2_222,
                header_max_count: 22,
                target_max_bytes: 222,
                request_memory_bytes: 22 << 20,
            },
            timeouts: HttpTimeouts {
                header: ms(22),
                body: ms(22),
                idle: ms(22),
                write: ms(22),
            },
            max_connections: 22,
            model: "flag".to_owned(),
            default_tier: Tier::Enterprise,
            deadline: DefaultDeadline::Fixed(ms(2_222)),
        },
        drain: DrainConfig {
            delay: ms(22),
            grace: ms(2_222),
        },
        batch_timeout: Some(ms(2_222)),
        log_level: LevelFilter::Debug,
        warnings: warnings_of_line(),
        auto: Vec::new(),
    }
}

#[test]
fn every_flag_beats_the_file() {
    let arguments: Vec<&str> = LINE.split_whitespace().collect();
    let given = arguments
        .iter()
        .filter(|argument| argument.starts_with("--"));
    assert_eq!(given.count(), keys::ALL.len());
    let expected = expected_of_line();
    assert_eq!(resolve("", &arguments).expect("sound"), expected);
    let mut both = resolve(FILE, &arguments).expect("sound");
    // A flag for one tier's share leaves the others as the file has them.
    assert_eq!(both.admission.min_share, [0.5, 0.22, 0.125]);
    both.admission.min_share = expected.admission.min_share;
    assert_eq!(both, expected);
    let from_file = resolve(FILE, &[]).expect("sound");
    let delay = Duration::from_millis(11);
    assert_eq!((from_file.gpus, from_file.drain.delay), (11, delay));
}

#[test]
fn ports_that_do_not_collide_are_taken() {
    let cases = [
        ("127.0.0.1:0", "127.0.0.1:0"),
        ("127.0.0.1:80", "127.0.0.2:80"),
        ("127.0.0.1:80", "off"),
    ];
    for (listen, admin) in cases {
        let taken = resolve("", &["--listen", listen, "--admin", admin]);
        assert!(taken.is_ok(), "{listen} {admin}: {taken:?}");
    }
}

#[test]
fn what_is_probably_not_meant_is_warned_of() {
    let cases: [(&[&str], &str); 10] = [
        (
            &["--listen", "0.0.0.0:80"],
            "listening on 0.0.0.0:80, beyond this machine",
        ),
        (
            &["--admin", "[::]:90"],
            "the admin port is open beyond this machine on [::]:90",
        ),
        (
            &["--deadline-ms", "239"],
            "a batch takes 100 ms, the default deadline is 239 ms: requests that arrive while all GPUs are busy",
        ),
        (
            &["--target-latency-ms", "450"],
            "a target latency of 450 ms is out of reach under load with batches of 100 ms: whatever takes up to",
        ),
        (
            &["--identity", "trusted", "--keys", "k.toml"],
            "the key file k.toml is not read, since identity is trusted",
        ),
        (
            &[
                "--sim-fault",
                "kind=lost,gpu=3",
                "--sim-fault",
                "kind=slow,factor=2",
            ],
            "GPUs will fail as scripted: kind=lost,gpu=3,ms=0; kind=slow,factor=2",
        ),
        (
            &["--sim-faults-admin"],
            "whoever reaches the admin port can make GPUs fail (GET /faults?kind=...)",
        ),
        (
            &["--sim-faults-admin", "--admin", "off"],
            "simulated.faults_admin has no effect",
        ),
        (
            &["--batch-timeout-ms", "100"],
            "batch_timeout_ms (100 ms) is no longer than a batch (100 ms)",
        ),
        (
            &["--drain-grace-ms", "1999"],
            "drain.grace_ms (1,999 ms) is shorter than the deadline (2 s)",
        ),
    ];
    for (arguments, message) in cases {
        let warnings = resolve("", arguments).expect("legal").warnings;
        assert_eq!(warnings.len(), 1, "{arguments:?}: {warnings:?}");
        assert!(warnings[0].starts_with(message), "{warnings:?}");
    }
    assert!(
        resolve("keys_file = ''", &[])
            .expect("none")
            .warnings
            .is_empty()
    );
    for legal in [
        ["--deadline-ms", "250"],
        ["--listen", "[::1]:80"],
        ["--sim-latency-ms", "0"],
    ] {
        assert_eq!(
            resolve("", &legal).expect("legal").warnings,
            Vec::<String>::new(),
            "{legal:?}"
        );
    }
}

#[test]
fn times_that_can_not_be_kept_are_told_with_the_setting_that_helps() {
    for (arguments, warning) in [
        (
            &["--target-latency-ms", "450"][..],
            "a target latency of 450 ms is out of reach under load with batches of 100 ms: whatever takes up to \
             400 ms (four batches) is let in; set target_latency_ms to 500 or more",
        ),
        (
            &["--target-latency-ms", "5000", "--sim-latency-ms", "2000"],
            "a target latency of 5 s is out of reach under load with batches of 2 s: whatever takes up to 8 s \
             (four batches) is let in; set target_latency_ms to 10000 or more",
        ),
        (
            &["--deadline-ms", "50"],
            "a batch takes 100 ms, the default deadline is 50 ms: every request ends with 504; set deadline_ms to \
             300 or more",
        ),
        (
            &["--deadline-ms", "239"],
            "a batch takes 100 ms, the default deadline is 239 ms: requests that arrive while all GPUs are busy may \
             not be answered in time; set deadline_ms to 300 or more",
        ),
    ] {
        assert_eq!(resolve("", arguments).expect("legal").warnings, [warning]);
        // What is advised is enough.
        let (_, advice) = warning.rsplit_once("; set ").expect("advice");
        let (name, value) = advice.split_once(" to ").expect("a value");
        let value = value.strip_suffix(" or more").expect("a value");
        let flag = format!("--{}", name.replace('_', "-"));
        let others = arguments.iter().skip(2).copied();
        let heeded: Vec<&str> = [flag.as_str(), value].into_iter().chain(others).collect();
        let warnings = resolve("", &heeded).expect("legal").warnings;
        assert_eq!(warnings, Vec::<String>::new(), "{heeded:?}");
    }
}

#[test]
fn a_deadline_left_to_the_server_goes_with_the_batch_time() {
    let deadline = |arguments: &[&str]| {
        let config = resolve("", arguments).expect("sound");
        assert_eq!(config.admission.deadline, config.http.deadline);
        let complaints = config.warnings.iter();
        let complaints = complaints.filter(|warning| warning.contains("set deadline_ms"));
        (config.deadline().as_millis(), complaints.count())
    };
    assert_eq!(deadline(&["--sim-latency-ms", "0"]), (2_000, 0));
    assert_eq!(deadline(&["--sim-latency-ms", "500"]), (2_000, 0));
    assert_eq!(deadline(&["--sim-latency-ms", "501"]), (2_004, 0));
    assert_eq!(deadline(&["--sim-latency-ms", "600000"]), (2_400_000, 0));
    let long = ["--sim-latency-ms", "2000", "--deadline-ms"];
    assert_eq!(deadline(&[&long[..], &["auto"]].concat()), (8_000, 0));
    assert_eq!(deadline(&[&long[..], &["4000"]].concat()), (4_000, 1));
    let held = ["--sim-latency-ms", "2000", "--hold-max-ms"];
    assert!(resolve("", &[&held[..], &["7999"]].concat()).is_ok());
    assert!(resolve("", &[&held[..], &["8000"]].concat()).is_err());
    let cut_off = ["--sim-latency-ms", "2000", "--drain-grace-ms", "7999"];
    let warnings = resolve("", &cut_off).expect("legal").warnings;
    let shorter = "drain.grace_ms (7,999 ms) is shorter than the deadline (8 s)";
    assert!(
        warnings.iter().any(|warning| warning.starts_with(shorter)),
        "{warnings:?}"
    );
    for auto in ["", "deadline_ms = 'auto'"] {
        let config = resolve(auto, &[]).expect("sound");
        let two_seconds = Duration::from_secs(2);
        assert_eq!(config.http.deadline, DefaultDeadline::AtLeast(two_seconds));
    }
}

#[test]
fn infinity_and_zero_are_patience_in_every_spelling() {
    for file in ["patience = inf", "patience = 'inf'", "patience = +inf"] {
        let config = resolve(&format!("[batch]\n{file}"), &[]).expect(file);
        assert_eq!(config.batch.patience, f64::INFINITY);
    }
    for zero in ["0", "0.0", "-0.0"] {
        let config = resolve("", &["--patience", zero]).expect(zero);
        assert!(config.batch.patience == 0.0 && config.batch.patience.is_sign_positive());
    }
}

#[test]
fn a_file_is_read_from_where_the_flag_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("funicular.toml");
    std::fs::write(&path, "gpus = 7\r\n[batch]\r\nbatch_max = 9\r\n").expect("written");
    let config = Config::load(flags(&[
        "--config",
        &path.display().to_string(),
        "--batch-max",
        "8",
    ]));
    let config = config.expect("sound");
    assert_eq!((config.gpus, config.batch.batch_max), (7, 8));
}

#[test]
fn the_default_canary_gives_way_to_short_inputs() {
    let config = resolve("[limits]\ninput_max_bytes = 9", &[]).expect("sound");
    assert_eq!(config.canary, "funicular");
    let config = resolve("canary = 'été'\n[limits]\ninput_max_bytes = 5", &[]).expect("sound");
    assert_eq!(config.canary, "été");
}

#[test]
fn shares_are_given_one_by_one_or_together() {
    let shares = |file: &str, arguments: &[&str]| {
        resolve(file, arguments).expect("sound").admission.min_share
    };
    let apart = ["--min-share", "paid=0.5", "--min-share", "Free=0.25"];
    assert_eq!(shares("", &apart), [0.0, 0.5, 0.25]);
    let again = ["--min-share", "paid=0.5", "--min-share", "paid=0"];
    assert_eq!(shares("", &again), [0.0; 3]);
    assert_eq!(
        shares("[admission]\nmin_share = { free = 1 }", &[]),
        [0.0, 0.0, 1.0]
    );
    assert_eq!(
        shares("[admission.min_share]\nenterprise = 0.1", &[]),
        [0.1, 0.0, 0.0]
    );
}

#[test]
fn flags_for_faults_replace_those_of_the_file() {
    let file =
        "[simulated]\nfaults = [\n  'kind=lost',\n  'kind=hang,gpu=2',\n]\nfaults_admin = true";
    let faults = |arguments: &[&str]| {
        let config = resolve(file, arguments).expect("sound");
        let simulated = config.executor.simulated().expect("simulated");
        let lines: Vec<String> = simulated.faults.iter().map(ToString::to_string).collect();
        (lines.join(" "), simulated.faults_admin)
    };
    let from_file = "kind=lost,ms=0 kind=hang,gpu=2,ms=0".to_owned();
    assert_eq!(faults(&[]), (from_file, true));
    let from_flags = ["--sim-fault", "kind=count", "--sim-faults-admin=false"];
    assert_eq!(faults(&from_flags), ("kind=count".to_owned(), false));
}

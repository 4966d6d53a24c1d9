//! Workers and their secret.

use super::*;
use crate::config::values::AdminAddress;

const TWO: &[&str] = &[
    "--worker",
    "http://10.0.0.7:8081",
    "--worker",
    "http://gpu-2:8081/x/",
];

fn worker(file: &str, arguments: &[&str]) -> Result<Config, ConfigError> {
    let raw = RawConfig::parse(Path::new("f.toml"), file).expect("TOML with known settings");
    let raw = flags(arguments).overlay(raw).for_role(Role::Worker);
    Config::resolve(&raw, &machine())
}

#[test]
fn each_worker_is_a_gpu() {
    let config = resolve("", TWO).expect("sound");
    let remote = config.executor.remote().expect("naming workers is enough");
    let urls: Vec<_> = remote.workers.iter().map(ToString::to_string).collect();
    assert_eq!(urls, ["http://10.0.0.7:8081", "http://gpu-2:8081/x"]);
    assert_eq!((config.gpus, config.executor.name()), (2, "remote"));
    assert_eq!(config.capacity(), None);
    assert_eq!(config.warnings, Vec::<String>::new());
    let file = "[remote]\nworkers = [\n 'http://a:1',\n 'http://b:1',\n 'http://c:1' ]";
    assert_eq!(resolve(file, &[]).expect("sound").gpus, 3);
    assert_eq!(
        resolve(file, TWO).expect("flags replace the file's").gpus,
        2
    );
}

#[test]
fn workers_that_cannot_be_are_refused() {
    for (file, arguments, message) in [
        (
            "",
            &["--executor", "remote"][..],
            "--executor: executor is remote, but no worker is named",
        ),
        (
            "",
            &["--worker", "gpu-1:8081"],
            "--worker: remote.workers: \"gpu-1:8081\" does not begin with http://",
        ),
        (
            "[remote]\nworkers = [\n 'http://a:1',\n 'http://a:1/' ]",
            &[],
            "f.toml:4: remote.workers: \"http://a:1/\" stands there twice",
        ),
        (
            "gpus = 3",
            TWO,
            "f.toml:1 and --worker: gpus is 3, but there are 2 workers",
        ),
    ] {
        let found = refusal(file, arguments);
        assert!(found.starts_with(message), "{found}");
    }
}

#[test]
fn a_worker_has_one_gpu_and_defaults_of_its_own() {
    let config = worker("", &[]).expect("sound");
    assert_eq!((config.role, config.gpus), (Role::Worker, 1));
    assert_eq!(config.listen.to_string(), "127.0.0.1:8081");
    assert_eq!(
        AdminAddress(config.admin),
        AdminAddress("127.0.0.1:9091".parse().ok())
    );
    assert_eq!(config.http.limits.body_max_bytes, 64 << 20);
    assert_eq!(config.warnings, Vec::<String>::new());
    let given = worker("listen = '127.0.0.1:1'", &["--body-max-bytes", "100000"]).expect("sound");
    assert_eq!(
        (given.listen.port(), given.http.limits.body_max_bytes),
        (1, 100_000)
    );
    for (arguments, message) in [
        (
            &["--gpus", "2"][..],
            "--gpus: gpus is 2, but a worker has one GPU",
        ),
        (
            &["--worker", "http://a:1"],
            "--worker: a worker can't have workers of its own",
        ),
    ] {
        let found = worker("", arguments).expect_err("a refusal").to_string();
        assert!(found.starts_with(message), "{found}");
    }
}

#[test]
fn a_secret_comes_from_its_file_or_else_from_the_variable() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("secret");
    std::fs::write(&file, "from-file\n").expect("written");
    let path = file.display().to_string();
    let with = |arguments: &[&str], variable: Option<&str>| {
        let raw = flags(arguments).overlay(RawConfig::default());
        let config = Config::resolve(&raw, &machine()).expect("sound");
        let config = config.with_secret(&raw, variable.map(str::to_owned));
        config.map(|config| {
            config
                .secret
                .secret
                .map(|secret| secret.expose().to_owned())
        })
    };
    let named = ["--worker-secret-file", &path];
    assert_eq!(
        with(&named, Some("from-variable"))
            .expect("read")
            .as_deref(),
        Some("from-file")
    );
    assert_eq!(
        with(&[], Some("from-variable")).expect("read").as_deref(),
        Some("from-variable")
    );
    assert_eq!(with(&[], None).expect("none"), None);
    assert_eq!(with(&[], Some("")).expect("none"), None);
    let wrong = with(&[], Some("two words"))
        .expect_err("a refusal")
        .to_string();
    assert!(
        wrong.starts_with("FUNICULAR_WORKER_SECRET: the secret must be one word"),
        "{wrong}"
    );
    std::fs::write(&file, "\n").expect("written");
    let empty = with(&named, None).expect_err("a refusal").to_string();
    assert!(
        empty.starts_with("--worker-secret-file: ") && empty.ends_with("the secret is empty"),
        "{empty}"
    );
}

#[test]
fn a_worker_that_anybody_reaches_should_have_a_secret() {
    let open = worker("listen = '0.0.0.0:1'\n[remote]\nsecret_file = ''", &[]).expect("sound");
    assert!(
        open.warnings[0].contains("--worker-secret-file"),
        "{:?}",
        open.warnings
    );
    let raw = RawConfig::default();
    let closed = open
        .with_secret(&raw, Some("s3cret".to_owned()))
        .expect("a secret");
    assert_eq!(closed.warnings, Vec::<String>::new());
}

fn listed(text: &str, arguments: &[&str]) -> Result<Config, ConfigError> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("workers");
    std::fs::write(&file, text).expect("written");
    let path = file.display().to_string();
    let all = [&["--workers-file", &path], arguments].concat();
    let raw = flags(&all).overlay(RawConfig::default());
    Config::resolve(&raw.with_workers_listed()?, &machine())
}

#[test]
fn a_file_lists_workers_one_a_line_beside_those_that_are_named() {
    let text = "# ours\n\nhttp://a:1\n  http://b:2  # the new one\n";
    let config = listed(text, &["--worker", "http://c:3"]).expect("sound");
    let remote = config.executor.remote().expect("implied by the file");
    let urls: Vec<String> = remote.all().map(ToString::to_string).collect();
    assert_eq!(urls, ["http://c:3", "http://a:1", "http://b:2"]);
    assert_eq!((config.gpus, config.seats), (3, 64));
    assert!(!remote.are_fixed);
    let flags_alone = resolve("", TWO).expect("sound");
    assert!(flags_alone.executor.remote().expect("named").are_fixed);
    assert_eq!(config.warnings, Vec::<String>::new());
}

#[test]
fn what_is_wrong_in_that_file_is_told_with_its_line() {
    for (text, arguments, said) in [
        (
            "http://a:1\na:2\n",
            &[][..],
            "workers:2: remote.workers_file: \"a:2\" does not begin",
        ),
        (
            "\nhttp://a:1\nhttp://a:1",
            &[],
            "workers:3: remote.workers_file: \"http://a:1\" stands there twice",
        ),
        (
            "http://a:1",
            &["--worker", "http://a:1"],
            "workers:1: remote.workers_file: \"http://a:1\" stands",
        ),
    ] {
        let refused = listed(text, arguments).expect_err(text).to_string();
        assert!(refused.contains(said), "{refused}");
    }
    let empty = listed("\n", &[]).expect_err("nothing at all").to_string();
    assert!(
        empty.starts_with("--workers-file: ") && empty.contains(" is empty: "),
        "{empty}"
    );
    let raw = flags(&["--workers-file", "/no/such"]).overlay(RawConfig::default());
    let missing = raw.with_workers_listed().expect_err("missing").to_string();
    let said = "--workers-file: can't read the workers in /no/such: ";
    assert!(missing.starts_with(said), "{missing}");
}

#[test]
fn there_may_be_no_worker_yet_if_that_is_said() {
    let empty = listed("# none yet\n", &[]).expect("sound");
    assert_eq!(
        (empty.gpus, empty.seats, empty.executor.name()),
        (0, 64, "remote")
    );
    assert!(
        empty.warnings[0].starts_with("no worker is named"),
        "{:?}",
        empty.warnings
    );
    let said = resolve("executor = 'remote'\n[remote]\nworkers = []", &[]).expect("sound");
    assert_eq!(said.gpus, 0);
}

#[test]
fn there_is_room_for_twice_the_workers_and_for_so_many_as_are_said() {
    let many: Vec<String> = (0..40)
        .map(|index| format!("http://w{index}:1\n"))
        .collect();
    let many = many.concat();
    assert_eq!(listed(&many, &[]).expect("sound").seats, 80);
    assert_eq!(
        listed(&many, &["--workers-max", "40"])
            .expect("sound")
            .seats,
        40
    );
    for (most, said) in [
        (
            "39",
            "--workers-max: remote.workers_max is 39, but there are 40 workers: raise it",
        ),
        (
            "0",
            "--workers-max: remote.workers_max is 0; it must be from 1 to 1,024, or auto",
        ),
    ] {
        let refused = listed(&many, &["--workers-max", most]).expect_err(most);
        assert_eq!(refused.to_string(), said);
    }
}

#[test]
fn what_needs_a_restart_is_told_from_what_does_not() {
    let before = listed("http://a:1", &[]).expect("sound");
    let changed = |text: &str, arguments: &[&str]| {
        let after = listed(text, arguments).expect("sound");
        let keys = crate::screen::changed(&before, &after).into_iter();
        keys.map(|key| key.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(changed("http://b:1\nhttp://c:1", &[]), [""; 0]);
    let told = changed(
        "http://a:1",
        &["--batch-max", "7", "--canary", "x", "--workers-max", "9"],
    );
    assert_eq!(told, ["canary", "batch.batch_max", "remote.workers_max"]);
}

#[test]
fn flags_about_workers_without_workers_are_warned_of() {
    for flags in [["--workers-max", "9"], ["--worker-secret-file", "f"]] {
        let warnings = resolve("", &flags).expect("legal").warnings;
        let said = format!(
            "{} has no effect, since the executor is simulated: name workers with --worker or --workers-file",
            flags[0]
        );
        assert_eq!(warnings, [said]);
    }
    let named = resolve("", &["--worker", "http://a:1", "--workers-max", "9"]);
    assert_eq!(named.expect("legal").warnings, [""; 0]);
}

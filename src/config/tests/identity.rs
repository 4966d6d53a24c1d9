//! Who callers are: where the key file is looked for, what is warned of, and what is refused.

use std::path::{Path, PathBuf};

use super::{flags, machine, refusal, resolve};
use crate::config::{Config, Identity, RawConfig};
use crate::screen;

const KEYS: &str = "[[key]]\nname = 'acme'\ntier = 'paid'\n\
                    sha256 = '2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b'\n";

#[test]
fn a_key_file_lies_beside_the_file_that_names_it() {
    let text = "identity = 'keys'\nkeys_file = 'k.toml'";
    let identity = |path: &str, arguments: &[&str]| {
        let raw = RawConfig::parse(Path::new(path), text).expect("known settings");
        let config = Config::resolve(&flags(arguments).overlay(raw), &machine());
        config.expect("sound").identity
    };
    let keys = |path: &str| Identity::Keys(PathBuf::from(path));
    assert_eq!(
        identity("/etc/funicular/f.toml", &[]),
        keys("/etc/funicular/k.toml")
    );
    assert_eq!(identity("f.toml", &[]), keys("k.toml"));
    let flag = ["--keys", "k.toml"];
    assert_eq!(identity("/etc/funicular/f.toml", &flag), keys("k.toml"));
}

#[test]
fn callers_with_keys_may_come_from_anywhere() {
    let anywhere = [
        "--listen",
        "0.0.0.0:80",
        "--identity",
        "keys",
        "--keys",
        "k",
    ];
    let config = resolve("", &anywhere).expect("sound");
    assert_eq!(config.warnings, Vec::<String>::new());
}

#[test]
fn a_key_file_and_its_use_are_given_together() {
    let cases: [(&str, &[&str], &str); 4] = [
        (
            "identity = 'keys'",
            &[],
            "f.toml:1: identity is keys, but no file with keys is named: give it with --keys FILE (keys_file)",
        ),
        (
            "keys_file = ''",
            &["--identity", "keys"],
            "--identity: identity is keys, but no file",
        ),
        (
            "\nkeys_file = 'k'",
            &[],
            "f.toml:2: keys_file is given, but every caller's X-Tier would be believed",
        ),
        (
            "",
            &["--keys", "k"],
            "--keys: keys_file is given, but every caller's X-Tier would be believed: add --identity keys (identity = \"keys\")",
        ),
    ];
    for (file, arguments, message) in cases {
        let found = refusal(file, arguments);
        assert!(found.starts_with(message), "{file} {arguments:?}: {found}");
    }
}

#[test]
fn a_key_file_is_tried_before_the_server_starts() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, keys) = (folder.path().join("f.toml"), folder.path().join("k.toml"));
    std::fs::write(&file, "identity = 'keys'\nkeys_file = 'k.toml'\n").expect("written");
    let load = || Config::load(flags(&["--config", &file.display().to_string()]));

    let missing = load().expect_err("no such file").to_string();
    let place = format!(
        "{}:2: cannot read the key file {}: No such",
        file.display(),
        keys.display()
    );
    assert!(missing.starts_with(&place), "{missing}");

    std::fs::write(&keys, KEYS.replace("paid", "gold")).expect("written");
    let refused = load().expect_err("no such tier").to_string();
    let place = format!(
        "{}:2: {}: line 3: \"gold\": no such tier",
        file.display(),
        keys.display()
    );
    assert!(refused.starts_with(&place), "{refused}");

    std::fs::write(&keys, KEYS).expect("written");
    let config = load().expect("sound");
    assert_eq!(config.identity, Identity::Keys(keys.clone()));

    // What check prints means the same key file in any folder.
    let elsewhere = tempfile::tempdir().expect("a folder");
    let copy = elsewhere.path().join("copy.toml");
    std::fs::write(&copy, screen::effective(&config)).expect("written");
    let again = Config::load(flags(&["--config", &copy.display().to_string()]));
    assert_eq!(again.expect("sound").identity, config.identity);
}

#[test]
fn a_path_on_the_command_line_is_made_absolute() {
    let refused = Config::load(flags(&["--identity", "keys", "--keys", "no/such.keys"]));
    let found = refused.expect_err("no such file").to_string();
    let here = std::env::current_dir()
        .expect("a folder")
        .join("no/such.keys");
    let place = format!(
        "--keys: cannot read the key file {}: No such",
        here.display()
    );
    assert!(found.starts_with(&place), "{found}");
}

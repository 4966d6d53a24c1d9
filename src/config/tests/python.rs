//! The settings of the Python executor.

use super::*;
use crate::config::python::Variable;

fn python(file: &str, arguments: &[&str]) -> PythonConfig {
    let config = resolve(file, arguments).expect("sound");
    config.executor.python().expect("python").clone()
}

#[test]
fn naming_a_batch_function_chooses_the_executor() {
    let config = python("", &["--python", "model.py:f"]);
    let target = "model.py:f".to_owned();
    assert_eq!(
        config,
        PythonConfig {
            target,
            ..PythonConfig::default()
        }
    );
    let both = resolve("[python]\ntarget = 'm:f'", &["--executor", "simulated"]).expect("sound");
    assert_eq!(both.executor.name(), "simulated");
    assert_eq!(
        both.warnings,
        ["the batch function m:f does not run, since the executor is simulated"]
    );
    let none = resolve("[python]\ntarget = ''", &[]).expect("sound");
    assert_eq!(none.executor.name(), "simulated");
    assert_eq!(none.capacity(), Some(4_000.0));
    assert_eq!(
        resolve("", &["--python", "m:f"]).expect("sound").capacity(),
        None
    );
}

#[test]
fn every_setting_is_taken_from_the_file_and_from_flags() {
    let file = "[python]\ntarget = 'm:f'\nbin = 'python3.12'\nenv = ['A=1', '2:B={gpu}']\nstart_timeout_s = 60";
    let variable = |gpu, name: &str, value: &str| Variable {
        gpu,
        name: name.to_owned(),
        value: value.to_owned(),
    };
    let from_file = PythonConfig {
        target: "m:f".to_owned(),
        bin: "python3.12".into(),
        env: vec![variable(None, "A", "1"), variable(Some(2), "B", "{gpu}")],
        start_timeout: Duration::from_secs(60),
    };
    assert_eq!(python(file, &[]), from_file);
    let flags = "--python n:g --python-bin bin/py --python-env C=3 --python-env D=4 --python-start-timeout-s 5";
    let arguments: Vec<&str> = flags.split(' ').collect();
    let from_flags = PythonConfig {
        target: "n:g".to_owned(),
        bin: "bin/py".into(),
        env: vec![variable(None, "C", "3"), variable(None, "D", "4")],
        start_timeout: Duration::from_secs(5),
    };
    assert_eq!(python(file, &arguments), from_flags);
}

#[test]
fn paths_in_the_file_are_meant_from_its_folder() {
    let located = |target: &str, bin: &str| {
        let text = format!("[python]\ntarget = '{target}'\nbin = '{bin}'");
        let raw = RawConfig::parse(Path::new("/etc/f/f.toml"), &text).expect("sound");
        let config = Config::resolve(&raw, &machine()).expect("sound");
        let python = config.executor.python().expect("python").clone();
        (python.target, python.bin.display().to_string())
    };
    let pair = |target: &str, bin: &str| (target.to_owned(), bin.to_owned());
    assert_eq!(
        located("model.py:f", "venv/bin/python"),
        pair("/etc/f/model.py:f", "/etc/f/venv/bin/python")
    );
    assert_eq!(located("/m.py", "python3"), pair("/m.py", "python3"));
    assert_eq!(
        located("package.module:f", "auto"),
        pair("package.module:f", "auto")
    );
}

#[test]
fn what_makes_no_sense_is_refused_or_warned_of() {
    let refused = [
        (
            "executor = 'python'",
            "f.toml:1: executor is python, but no batch function is named",
        ),
        (
            "[python]\ntarget = 'm:f'\nenv = [\n  'A=1',\n  'B',\n]",
            "f.toml:5: python.env can't hold \"B\": it sets nothing",
        ),
        (
            "[python]\ntarget = 'm:f'\nstart_timeout_s = 0",
            "f.toml:3: python.start_timeout_s is 0; it must be from 1",
        ),
    ];
    for (file, says) in refused {
        let refusal = refusal(file, &[]);
        assert!(refusal.starts_with(says), "{refusal}");
    }
    let config = resolve("gpus = 2", &["--python", "m:f", "--python-env", "2:A=1"]).expect("sound");
    assert_eq!(
        config.warnings,
        ["python.env: 2:A=1 is for a GPU that there is not: the last one is 1"]
    );
}

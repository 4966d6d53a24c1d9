//! `perf/gpu.sh`, which is to work at once when there is a GPU: tried on one that is none.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::machine::Machine;
use crate::support::heavy;

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("perf/gpu.sh")
}

/// The load generator, which stands beside the server if the whole workspace was built; if not, says that the test is skipped.
fn generator() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_BIN_EXE_funicular")).with_file_name("funicular-perf");
    if !path.is_file() {
        eprintln!(
            "skipped: {} was not built (cargo build --workspace)",
            path.display()
        );
        return None;
    }
    Some(path)
}

/// A stand-in for NVIDIA's sanitizer: runs the program as a child and finds nothing.
const SANITIZER: &str = "#!/bin/sh\nshift 4\n\"$@\" 3>&-\necho '========= ERROR SUMMARY: 0 errors'\n\
                         echo '========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)'\n";

fn run(machine: &Machine, arguments: &[&Path]) -> Output {
    let tools = machine.path("tools");
    fs::create_dir_all(&tools).expect("a folder");
    let sanitizer = tools.join("compute-sanitizer");
    fs::write(&sanitizer, SANITIZER).expect("written");
    fs::set_permissions(&sanitizer, fs::Permissions::from_mode(0o755)).expect("executable");
    let path = format!(
        "{}:{}",
        tools.display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let mut command = Command::new("bash");
    machine.equip(&mut command);
    command
        .arg(script())
        .args(arguments)
        .env("PATH", path)
        .env("SHORT", "1");
    command.output().expect("bash can be run")
}

#[test]
fn the_script_for_gpu_machines_answers_its_questions() {
    let (Some(machine), Some(generator)) = (Machine::new(1), generator()) else {
        return;
    };
    let _alone = heavy();
    let server = Path::new(env!("CARGO_BIN_EXE_funicular"));
    let file = machine.path("gpu.json");
    let Output {
        status,
        stdout,
        stderr,
    } = run(&machine, &[server, &generator, &file]);
    let (table, errors) = (
        String::from_utf8_lossy(&stdout),
        String::from_utf8_lossy(&stderr),
    );
    assert!(status.success(), "{status}\n{table}\n{errors}");
    assert!(table.contains("Stand-in GPU 0"), "{table}");
    let text = fs::read_to_string(&file).expect("written");
    let figures: serde_json::Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let rows = figures["rows"].as_array().expect("rows");
    let value = |name: &str| {
        let row = rows.iter().find(|row| row["name"] == name);
        row.unwrap_or_else(|| panic!("{name} is missing in {text}"))["value"].as_f64()
    };
    for name in [
        "results_batchstring",
        "results_busy",
        "sanitizer_memcheck",
        "sanitizer_racecheck",
    ] {
        assert_eq!(value(name), Some(0.0), "{name}");
    }
    for name in [
        "gap_us_10000",
        "h2d_us",
        "h2d_gigabytes_per_second",
        "requests_per_second_10000",
        "shape_100x65000",
    ] {
        assert!(value(name) > Some(0.0), "{name} in {text}");
    }
    for work_us in [0, 1_000, 100_000] {
        assert!(value(&format!("overhead_us_{work_us}")).is_some());
    }
    assert!(table.lines().filter(|line| line.starts_with('|')).count() >= rows.len() + 2);
}

#[test]
fn the_script_says_what_it_needs() {
    let Some(machine) = Machine::new(0) else {
        return;
    };
    let said = |output: &Output| {
        String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
    };
    let output = run(&machine, &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        said(&output).contains("Usage: perf/gpu.sh"),
        "{}",
        said(&output)
    );
    let server = Path::new(env!("CARGO_BIN_EXE_funicular"));
    let output = run(&machine, &[server, server]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("CUDA_ERROR_NO_DEVICE"),
        "{}",
        said(&output)
    );
}

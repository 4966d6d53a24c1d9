//! Starts that are refused, and what they say; `funicular devices`.

use std::process::Output;

use crate::answers::{BATCH, ptx};
use crate::machine::Machine;
use crate::standin::Library;
use crate::support::unique;

/// Asserts that it ended with `code`, 2 for a configuration that is refused, and these words on standard error.
fn refused(output: &Output, code: i32, words: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is missing in: {said}");
    }
}

const SERVE: [&str; 9] = [
    "serve",
    "--executor",
    "cuda",
    "--listen",
    "127.0.0.1:0",
    "--admin",
    "127.0.0.1:0",
    "--cores",
    "1",
];

fn serve(machine: &Machine, flags: &[&str]) -> Output {
    machine.run(&[&SERVE, flags].concat())
}

#[test]
fn no_driver_is_said() {
    let Some(machine) = Machine::new(1) else {
        return;
    };
    let is_there = std::process::Command::new("ldconfig").arg("-p").output();
    if is_there.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("libcuda.so")) {
        eprintln!("skipped: this machine has a driver of its own");
        return;
    }
    for (arguments, code) in [(&SERVE[..], 2), (&["devices"], 1)] {
        let mut command = machine.command(arguments);
        command.env("LD_LIBRARY_PATH", machine.path("nothing"));
        let output = crate::support::server::run_command(command);
        refused(
            &output,
            code,
            &[
                "there is no NVIDIA driver here",
                "libcuda.so.1",
                "--gpus all",
            ],
        );
    }
}

#[test]
fn drivers_that_are_too_old_or_no_drivers_are_said() {
    let Some(machine) = Machine::new(1) else {
        return;
    };
    let machine = machine.with("FAKE_CUDA_VERSION", 10_020);
    refused(&serve(&machine, &[]), 2, &["is for CUDA 10.2", "11.0"]);
    let machine = Machine::with_library(Library::Incomplete, 1).expect("g++ is there");
    refused(
        &serve(&machine, &[]),
        2,
        &["the NVIDIA driver has no cu", "too old"],
    );
}

#[test]
fn no_device_is_said() {
    let Some(machine) = Machine::new(0) else {
        return;
    };
    refused(
        &serve(&machine, &[]),
        2,
        &[
            "finds no GPU",
            "CUDA_ERROR_NO_DEVICE",
            "CUDA_VISIBLE_DEVICES",
        ],
    );
    refused(
        &machine.run(&["devices"]),
        1,
        &["finds no GPU", "CUDA_ERROR_NO_DEVICE"],
    );
}

#[test]
fn more_gpus_than_there_are_is_said() {
    let Some(machine) = Machine::new(2) else {
        return;
    };
    refused(
        &serve(&machine, &["--gpus", "3"]),
        2,
        &["gpus is 3", "2 devices"],
    );
}

#[test]
fn too_little_memory_is_said_and_waited_for() {
    let Some(machine) = Machine::new(1) else {
        return;
    };
    let machine = machine.with("FAKE_CUDA_MEMORY_MIB", 1);
    let mut server = machine.start(&[]);
    server.wait_log("CUDA_ERROR_OUT_OF_MEMORY");
    server.wait_log("--batch-max");
    server.infer("too early").expect_problem(503);
    machine.tell("memory 0 1000000000");
    crate::machine::wait_all_up(&mut server);
    server.infer("in time").expect_output("in time");
}

#[test]
fn kernels_that_cannot_be_used_are_said() {
    let broken = ptx("mine", BATCH).replace("ret;\n}", "");
    let newer = ptx("mine", BATCH).replace("7.0", "9.9");
    let stranger = ptx("mine", "\t.param .u64 a,\n\t.param .u32 b");
    let cases = [
        (
            ptx("mine", BATCH),
            "other",
            &["no kernel other", "mine"][..],
        ),
        (
            broken,
            "mine",
            &[
                "CUDA_ERROR_INVALID_PTX",
                "ptxas application ptx input, line",
            ],
        ),
        (newer, "mine", &["CUDA_ERROR_UNSUPPORTED_PTX_VERSION"]),
        (stranger, "mine", &["56 bytes", "funicular.h"]),
        (
            "no kernel".to_owned(),
            "mine",
            &["neither PTX nor a cubin nor a fatbin"],
        ),
    ];
    for (text, entry, words) in cases {
        let Some(machine) = Machine::new(1) else {
            return;
        };
        let file = machine.path("mine.ptx");
        std::fs::write(&file, text).expect("written");
        let file = file.display().to_string();
        let flags = ["--cuda-module", &file, "--cuda-entry", entry];
        refused(
            &serve(&machine, &flags),
            2,
            &[words, &["mine.ptx"]].concat(),
        );
    }
}

#[test]
fn blocks_and_shared_memory_beyond_the_device_are_said() {
    let Some(machine) = Machine::new(1) else {
        return;
    };
    let too_much = serve(&machine, &["--cuda-shared-bytes", "300000"]);
    refused(&too_much, 2, &["--cuda-shared-bytes"]);
}

#[test]
fn a_device_that_cannot_start_yet_keeps_nobody_waiting() {
    let Some(machine) = Machine::new(2) else {
        return;
    };
    let machine = machine.with_faults("fail 1 kernel 719 1 0");
    let mut server = machine.start(&[]);
    server.wait_for("GPU 0", |server| crate::machine::gpus_up(server)[0]);
    let text = unique("one of two");
    server.infer(&text).expect_output(&text);
    server.wait_log("CUDA_ERROR_LAUNCH_FAILED");
    machine.tell("clear");
    crate::machine::wait_all_up(&mut server);
}

#[test]
fn devices_are_listed() {
    let Some(machine) = Machine::new(2) else {
        return;
    };
    let output = machine.run(&["devices"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    for word in [
        "Stand-in GPU 0",
        "Stand-in GPU 1",
        "9.0",
        "0000:02:00.0",
        "12.4",
    ] {
        assert!(said.contains(word), "{word:?} is missing in: {said}");
    }
}

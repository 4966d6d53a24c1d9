//! The settings of the CUDA executor, on machines that are not at hand.

use super::*;
use crate::gpu::cuda::Shape;

fn with(devices: Result<usize, &str>) -> Machine {
    Machine {
        cuda_devices: Some(devices.map_err(str::to_owned)),
        ..machine()
    }
}

fn resolve_with(devices: usize, file: &str, arguments: &[&str]) -> Result<Config, ConfigError> {
    resolve_on(&with(Ok(devices)), file, arguments)
}

fn cuda(file: &str, arguments: &[&str]) -> CudaConfig {
    let config = resolve_with(4, file, arguments).expect("sound");
    config.executor.cuda().expect("cuda").clone()
}

#[test]
fn naming_a_kernel_chooses_the_executor() {
    let bundled = cuda("", &["--executor", "cuda"]);
    assert_eq!(bundled, CudaConfig::default());
    assert_eq!(bundled.kernel(), "batchstring (bundled)");
    let own = cuda("", &["--cuda-module", "my.ptx", "--cuda-entry", "mine"]);
    assert_eq!(own.kernel(), "mine of my.ptx");
    let not = resolve("[cuda]\nmodule = 'my.ptx'", &["--python", "m:f"]).expect("sound");
    assert_eq!(not.executor.name(), "python");
    assert_eq!(
        not.warnings,
        ["the kernel in my.ptx does not run, since the executor is python"]
    );
    let none = resolve("[cuda]\nmodule = ''\nentry = 'x'", &[]).expect("sound");
    assert_eq!(
        (none.executor.name(), none.warnings.len()),
        ("simulated", 0)
    );
    let forgotten = resolve("", &["--cuda-work-us", "9", "--cuda-entry", "busy"]).expect("sound");
    assert_eq!(
        forgotten.warnings,
        ["--cuda-entry has no effect, since the executor is simulated: add --executor cuda"]
    );
}

#[test]
fn every_setting_is_taken_from_the_file_and_from_flags() {
    let file = "executor = 'cuda'\n[cuda]\nmodule = '/k/a.cubin'\nentry = 'a'\nblock = 64\nshared_bytes = 1024\n\
                output_factor = 3\noutput_extra_bytes = 0\nwork_us = 100";
    let mut expected = CudaConfig {
        module: Some("/k/a.cubin".into()),
        entry: "a".to_owned(),
        shape: Shape {
            threads: 64,
            shared_bytes: 1_024,
        },
        output_factor: 3,
        output_extra_bytes: 0,
        work_us: 100,
    };
    assert_eq!(cuda(file, &[]), expected);
    expected.shape.threads = 128;
    expected.output_extra_bytes = 7;
    let flags = ["--cuda-block", "128", "--cuda-output-extra", "7"];
    assert_eq!(cuda(file, &flags), expected);
    // A relative path is meant from where the file lies.
    let raw = RawConfig::parse(Path::new("/etc/f.toml"), "[cuda]\nmodule = 'k/a.ptx'");
    let config = Config::resolve(&raw.expect("sound"), &with(Ok(1))).expect("sound");
    let module = config.executor.cuda().and_then(|cuda| cuda.module.clone());
    assert_eq!(module, Some("/etc/k/a.ptx".into()));
}

#[test]
fn each_device_is_a_gpu_unless_fewer_are_wanted() {
    let gpus = |devices, arguments: &[&str]| {
        let arguments = [&["--executor", "cuda"], arguments].concat();
        resolve_with(devices, "", &arguments).map(|config| config.gpus)
    };
    assert_eq!(gpus(7, &[]).expect("sound"), 7);
    assert_eq!(gpus(7, &["--gpus", "2"]).expect("sound"), 2);
    assert_eq!(
        gpus(2, &["--gpus", "3"]).expect_err("too few").to_string(),
        "--gpus: gpus is 3, but the driver lists 2 devices (see funicular devices): leave it out to use what there is"
    );
    let raw = RawConfig::default();
    let raw = flags(&["--executor", "cuda"])
        .overlay(raw)
        .for_role(Role::Worker);
    assert_eq!(Config::resolve(&raw, &with(Ok(8))).expect("sound").gpus, 1);
}

#[test]
fn a_machine_without_devices_is_refused() {
    let machine = with(Err("there is no NVIDIA driver here"));
    let refused = resolve_on(&machine, "executor = 'cuda'", &[]).expect_err("no driver");
    assert_eq!(
        refused.to_string(),
        "f.toml:1: executor is cuda, but there is no NVIDIA driver here"
    );
    // Nobody asks where another executor runs.
    assert!(resolve_on(&machine, "", &[]).is_ok());
}

#[test]
fn buffers_that_offsets_do_not_reach_into_are_refused() {
    let arguments = [
        "--executor",
        "cuda",
        "--batch-max",
        "4096",
        "--body-max-bytes",
        "1073741824",
        "--input-max-bytes",
        "1048577",
    ];
    let refused = resolve_with(1, "", &arguments)
        .expect_err("4 GiB")
        .to_string();
    assert!(
        refused.starts_with("--batch-max and --input-max-bytes: 4096 inputs of 1.0 MiB with outputs of 256 KiB don't fit"),
        "{refused}"
    );
    let refused = resolve_with(
        1,
        "executor = 'cuda'\n[cuda]\nblock = 1025\nentry = ''",
        &[],
    );
    let refused = refused.expect_err("two slips").to_string();
    assert!(
        refused.contains("f.toml:4: cuda.entry is no name of a kernel"),
        "{refused}"
    );
    assert!(
        refused.contains("f.toml:3: cuda.block is 1025; it must be from 1 to 1,024"),
        "{refused}"
    );
}

//! Two things that the CUDA executor needs at build time, neither of them CUDA:
//!
//! * the bundled kernels as PTX in `OUT_DIR/bundled.ptx`, for `include_str!`. By default that is the file in `kernels/`; with
//!   `FUNICULAR_COMPILE_KERNELS=1` it is compiled anew from its source by clang 14, and a missing compiler fails the build;
//! * an empty `libcuda.a` for the linker: the crate with the driver's types asks for `-lcuda`, but the functions come from the
//!   driver that is found when the server starts.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The version counts: another one writes other PTX than the file that is checked against its source.
const COMPILER: &str = "clang-14";
const SWITCH: &str = "FUNICULAR_COMPILE_KERNELS";

/// An archive without members.
const EMPTY_ARCHIVE: &[u8] = b"!<arch>\n";

/// What `bundled.ptx` is made of, and the file itself.
const KERNELS: [&str; 9] = [
    "bundled.ptx",
    "bundled.cu",
    "batchstring.cu",
    "busy.cu",
    "upper.cuh",
    "clock.cuh",
    "funicular.h",
    "cuda_min.h",
    "clang.flags",
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={SWITCH}");
    for file in KERNELS {
        println!("cargo::rerun-if-changed=kernels/{file}");
    }
    if let Err(error) = build() {
        println!("cargo::error={error}");
    }
}

fn build() -> Result<(), String> {
    let out = PathBuf::from(variable("OUT_DIR")?);
    let kernels = Path::new(&variable("CARGO_MANIFEST_DIR")?).join("kernels");

    let archive = out.join("libcuda.a");
    fs::write(&archive, EMPTY_ARCHIVE)
        .map_err(|error| format!("{}: {error}", archive.display()))?;
    println!("cargo::rustc-link-search=native={}", out.display());

    let ptx = out.join("bundled.ptx");
    if is_asked_for()? {
        compile(&kernels, &ptx)
    } else {
        let committed = kernels.join("bundled.ptx");
        fs::copy(&committed, &ptx)
            .map(drop)
            .map_err(|error| format!("{}: {error}", committed.display()))
    }
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|error| format!("{name}: {error}"))
}

fn is_asked_for() -> Result<bool, String> {
    match env::var(SWITCH).as_deref() {
        Err(env::VarError::NotPresent) | Ok("" | "0") => Ok(false),
        Ok("1") => Ok(true),
        Ok(other) => Err(format!("{SWITCH}={other}: must be 0 or 1")),
        Err(error) => Err(format!("{SWITCH}: {error}")),
    }
}

fn compile(kernels: &Path, ptx: &Path) -> Result<(), String> {
    // The flags name a header beside the source.
    let output = Command::new(COMPILER)
        .current_dir(kernels)
        .args(["@clang.flags", "bundled.cu", "-o"])
        .arg(ptx)
        .output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            // Each line of a build script's output is an instruction of its own.
            Err(format!(
                "{COMPILER} could not compile kernels/bundled.cu: {}",
                said.trim().replace('\n', " | ")
            ))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(format!(
            "{SWITCH}=1 asks for {COMPILER}, which is not installed; install it (Debian: clang-14), or unset {SWITCH} to use \
             the compiled kernels in kernels/bundled.ptx"
        )),
        Err(error) => Err(format!("{COMPILER} can't be run: {error}")),
    }
}

//! Builds the stand-in for NVIDIA's driver library, once for all runs that have the same sources and compiler, and lets its own
//! test judge it.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use crate::support::in_parallel;

/// A driver library, by what is special about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// All functions that the server knows.
    Whole,
    /// Without those that came after CUDA 11.0.
    Old,
    /// With hardly any.
    Incomplete,
}

impl Library {
    fn folder(self) -> &'static str {
        match self {
            Library::Whole => "whole",
            Library::Old => "old",
            Library::Incomplete => "incomplete",
        }
    }
}

/// The folder with that library, for `LD_LIBRARY_PATH`; none without a g++, which says that the test is skipped.
pub fn library(which: Library) -> Option<PathBuf> {
    built().map(|folder| folder.join(which.folder()))
}

fn built() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let built = BUILT.get_or_init(build).as_deref();
    if built.is_none() {
        eprintln!("skipped: g++ is not installed");
    }
    built
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda/fakecuda")
}

fn kernels() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels")
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("the folder is there");
    let mut files: Vec<_> = entries
        .map(|entry| entry.expect("readable").path())
        .collect();
    files.retain(|path| path.is_file());
    files.sort();
    files
}

/// Where everything is built; `None` without a g++.
fn build() -> Option<PathBuf> {
    let compiler = Command::new("g++").arg("--version").output().ok()?.stdout;
    let mut hasher = DefaultHasher::new();
    compiler.hash(&mut hasher);
    for folder in [sources(), kernels(), kernels().join("host")] {
        for file in files_in(&folder) {
            (file.file_name(), fs::read(&file).expect("readable")).hash(&mut hasher);
        }
    }
    let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let done = place.join(format!("fakecuda-{:016x}", hasher.finish()));
    if !done.is_dir() {
        // Under another name until it is whole; if another test run is faster, its result is as good.
        let making = tempfile::tempdir_in(place).expect("a folder");
        build_in(making.path());
        let _ = fs::rename(making.path(), &done);
    }
    assert!(done.is_dir(), "{} can't be made", done.display());
    Some(done)
}

fn build_in(folder: &Path) {
    let all = files_in(&sources());
    let (kept, mains): (Vec<_>, Vec<_>) = all
        .iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "cpp"))
        .partition(|path| !path.ends_with("selftest.cpp"));
    let object = |source: &Path| {
        folder
            .join(source.file_stem().expect("a name"))
            .with_extension("o")
    };
    in_parallel(2, |worker| {
        for source in kept.iter().skip(worker).step_by(2) {
            compile(&["-c", "-o"], &[&object(source), source]);
        }
    });
    let objects: Vec<_> = kept.iter().map(|source| object(source)).collect();
    let (new, base): (Vec<_>, Vec<_>) = objects
        .iter()
        .partition(|object| object.ends_with("api_param_info.o"));
    let hardly = folder.join("hardly.cpp");
    let text = "extern \"C\" int cuInit(unsigned) { return 0; }\n\
                extern \"C\" int cuDriverGetVersion(int* version) { *version = 12040; return 0; }\n";
    fs::write(&hardly, text).expect("written");
    for (library, inputs) in [
        (Library::Whole, [&base[..], &new[..]].concat()),
        (Library::Old, base.clone()),
        (Library::Incomplete, vec![&hardly]),
    ] {
        let place = folder.join(library.folder());
        fs::create_dir(&place).expect("a folder");
        let file = place.join("libcuda.so.1");
        let paths: Vec<&Path> = std::iter::once(&file)
            .chain(inputs)
            .map(PathBuf::as_path)
            .collect();
        compile(
            &[
                "-shared",
                "-Wl,-soname,libcuda.so.1",
                "-fvisibility=default",
                "-o",
            ],
            &paths,
        );
    }
    let whole = folder.join(Library::Whole.folder()).join("libcuda.so.1");
    compile(&["-o"], &[&folder.join("selftest"), mains[0], &whole]);
}

/// Runs g++ and shows what it says if it does not like it.
fn compile(flags: &[&str], paths: &[&Path]) {
    let output = Command::new("g++")
        .args([
            "-std=c++20",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-fPIC",
            "-fvisibility=hidden",
            "-pthread",
        ])
        .arg(format!("-I{}", sources().display()))
        .arg(format!("-I{}", kernels().display()))
        .args(flags)
        .args(paths)
        .output();
    let Output { status, stderr, .. } = output.expect("g++ can be run");
    assert!(
        status.success(),
        "{paths:?}: {}",
        String::from_utf8_lossy(&stderr)
    );
}

#[test]
fn the_stand_in_catches_what_it_is_there_to_catch() {
    let (Some(folder), Some(library)) = (built(), library(Library::Whole)) else {
        return;
    };
    let place = tempfile::tempdir().expect("a folder");
    let output = Command::new(folder.join("selftest"))
        .env("LD_LIBRARY_PATH", library)
        .env("FAKE_CUDA_DEVICES", "2")
        .env("FAKE_CUDA_JOURNAL", place.path().join("journal"))
        .env("FAKE_CUDA_CONTROL", place.path().join("control"))
        .output()
        .expect("it can be run");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}: {said}", output.status);
}

//! The program `device.cpp`, built in several ways and run as a GPU: it takes batches and gives back all that they changed.

use std::env;
use std::fs;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;

use crate::batch::{Batch, GUARD};

/// What the program is built for.
#[derive(Clone, Copy, Debug)]
pub enum Build {
    /// Speed, with checks of every address: kernels run as fibers.
    Addresses,
    /// Races: each CUDA thread is a thread, all blocks run at the same time.
    Races,
    /// The same, one block at a time, as kernels with shared memory need it.
    RacesInBlock,
    /// That, with the example's barriers forgotten.
    PlantedRace,
}

/// The exit code of a program in which ThreadSanitizer found something.
pub const RACE_FOUND: i32 = 66;

const COMMON: [&str; 8] = [
    "-std=c++20",
    "-O1",
    "-g",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-pthread",
    "-fno-sanitize-recover=all",
];

impl Build {
    fn flags(self) -> &'static [&'static str] {
        match self {
            Build::Addresses => &["-fsanitize=address,undefined"],
            Build::Races => &["-fsanitize=thread", "-DFUNICULAR_HOST_THREADS"],
            Build::RacesInBlock => &[
                "-fsanitize=thread",
                "-DFUNICULAR_HOST_THREADS",
                "-DFUNICULAR_HOST_ONE_BLOCK",
            ],
            Build::PlantedRace => &[
                "-fsanitize=thread",
                "-DFUNICULAR_HOST_THREADS",
                "-DFUNICULAR_HOST_ONE_BLOCK",
                "-DFORGET_BARRIERS",
            ],
        }
    }

    /// Builds it, once in a run of the tests, or says what for the test is skipped.
    fn program(self) -> Option<&'static Program> {
        static PROGRAMS: [OnceLock<Option<Program>>; 4] = [const { OnceLock::new() }; 4];
        let program = PROGRAMS[self as usize].get_or_init(|| Program::build(self));
        if program.is_none() {
            eprintln!("skipped: no g++ whose programs run with {:?}", self.flags());
        }
        program.as_ref()
    }
}

/// A program, and whether it wants its memory where the linker put it.
struct Program {
    path: PathBuf,
    fixed_addresses: bool,
}

impl Program {
    /// # Panics
    /// If g++ can build the simplest program, but not ours.
    fn build(build: Build) -> Option<Program> {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels");
        fs::create_dir_all(&folder).expect("the build folder can be written");
        // Another run of the tests may build the same at the same time.
        let scratch = folder.join(format!("{build:?}.{}", process::id()));
        let simplest = scratch.with_added_extension("cpp");
        fs::write(&simplest, "int main() {}\n").expect("the build folder can be written");
        let compiled = compile(build, &simplest, &scratch);
        let _ = fs::remove_file(&simplest);
        compiled.ok()?;
        // Old sanitizers do not start where the kernel scatters addresses as widely as new ones do, or now and then do: that it
        // starts once where they are scattered says nothing about the next time.
        let fixed_addresses = [true, false]
            .into_iter()
            .find(|&fixed| runs(&scratch, fixed))?;

        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels/device.cpp");
        if let Err(complaint) = compile(build, &source, &scratch) {
            panic!("g++ could not compile {}:\n{complaint}", source.display());
        }
        let path = folder.join(format!("{build:?}"));
        fs::rename(&scratch, &path).expect("both are in the build folder");
        Some(Program {
            path,
            fixed_addresses,
        })
    }

    fn command(path: &Path, fixed_addresses: bool) -> Command {
        if fixed_addresses {
            let mut command = Command::new("setarch");
            command.arg("--addr-no-randomize").arg(path);
            command
        } else {
            Command::new(path)
        }
    }
}

fn compile(build: Build, source: &Path, program: &Path) -> Result<(), String> {
    let output = Command::new("g++")
        .args(COMMON)
        .args(build.flags())
        .arg(source)
        .arg("-o")
        .arg(program)
        .output()
        .map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

fn runs(program: &Path, fixed_addresses: bool) -> bool {
    Program::command(program, fixed_addresses)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// What came of a batch.
#[derive(Debug)]
pub struct Ran {
    pub took_us: u32,
    pub processor_us: u32,
    pub lengths: Vec<u32>,
    pub statuses: Vec<u32>,
    /// The output area with its guards.
    pub area: Vec<u8>,
}

/// A running program; killed when dropped.
pub struct Device {
    child: Child,
    /// What it says to its standard error: a file, because nobody reads it before the end.
    said: fs::File,
}

impl Device {
    /// Starts one, or says why the test is skipped.
    pub fn start(build: Build) -> Option<Device> {
        let program = build.program()?;
        let said = tempfile::tempfile().expect("a temporary file");
        let child = Program::command(&program.path, program.fixed_addresses)
            .env("ASAN_OPTIONS", "detect_leaks=0")
            .env("TSAN_OPTIONS", format!("exitcode={RACE_FOUND}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(said.try_clone().expect("a second handle"))
            .spawn()
            .expect("what was just built can be run");
        Some(Device { child, said })
    }

    /// Runs a batch.
    ///
    /// # Panics
    /// If the program ends over it; what it said is shown.
    pub fn run(&mut self, batch: &Batch) -> Ran {
        self.try_run(batch).unwrap_or_else(|error| {
            let (status, said) = self.end();
            panic!("the device failed: {error}, {status}\n{said}");
        })
    }

    fn try_run(&mut self, batch: &Batch) -> io::Result<Ran> {
        let count = batch.inputs.len();
        let output_offsets = batch.output_offsets();
        let mut asked = Vec::new();
        put(&mut asked, &[batch.kernel.len() as u32]);
        asked.extend_from_slice(batch.kernel.as_bytes());
        put(
            &mut asked,
            &[batch.block, batch.work_us, batch.misalignment, count as u32],
        );
        put(&mut asked, &batch.input_offsets());
        put(&mut asked, &output_offsets);
        asked.extend(batch.inputs.iter().flatten());
        // It reads everything before it writes, so neither side can wait for the other.
        let to = self.child.stdin.as_mut().expect("piped");
        to.write_all(&asked)?;
        to.flush()?;

        let times = self.take_numbers(2)?;
        Ok(Ran {
            took_us: times[0],
            processor_us: times[1],
            lengths: self.take_numbers(count)?,
            statuses: self.take_numbers(count)?,
            area: self.take(GUARD + output_offsets[count] as usize + GUARD)?,
        })
    }

    fn take(&mut self, bytes: usize) -> io::Result<Vec<u8>> {
        let mut taken = vec![0; bytes];
        let from = self.child.stdout.as_mut().expect("piped");
        from.read_exact(&mut taken)?;
        Ok(taken)
    }

    fn take_numbers(&mut self, count: usize) -> io::Result<Vec<u32>> {
        let bytes = self.take(4 * count)?;
        let numbers = bytes.as_chunks().0;
        Ok(numbers
            .iter()
            .map(|&bytes| u32::from_ne_bytes(bytes))
            .collect())
    }

    /// Ends the program; how it ended, and what it said.
    pub fn end(&mut self) -> (ExitStatus, String) {
        drop(self.child.stdin.take());
        let status = self.child.wait().expect("it is a child of this process");
        let mut said = String::new();
        self.said.rewind().expect("it is a file");
        self.said
            .read_to_string(&mut said)
            .expect("compilers and sanitizers write UTF-8");
        (status, said)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn put(bytes: &mut Vec<u8>, numbers: &[u32]) {
    bytes.extend(numbers.iter().flat_map(|number| number.to_ne_bytes()));
}

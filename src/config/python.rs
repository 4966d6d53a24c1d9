//! The Python executor's settings, and what can be said about them before a worker is started.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use super::{Config, ExecutorConfig, defaults};

/// Stands for an interpreter that is chosen when the server starts.
pub const AUTO: &str = "auto";

/// What `auto` comes to outside a virtual environment.
const BIN: &str = "python3";

/// The Python executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PythonConfig {
    /// The batch function: `file.py:function` or `package.module:function`. A file alone means its `batchstring`.
    pub target: String,
    /// The interpreter, or `auto`.
    pub bin: PathBuf,
    /// What workers find in their environment beside what the server has in its own.
    pub env: Vec<Variable>,
    /// Time in which a worker must be ready.
    pub start_timeout: Duration,
}

impl Default for PythonConfig {
    fn default() -> PythonConfig {
        PythonConfig {
            target: String::new(),
            bin: AUTO.into(),
            env: Vec::new(),
            start_timeout: Duration::from_secs(defaults::PYTHON_START_TIMEOUT_S.default.into()),
        }
    }
}

impl PythonConfig {
    /// So that what `funicular check` prints means the same files wherever it is saved. Not where that can't be told.
    fn make_absolute(&mut self) {
        if let Some(file) = self.file() {
            let function = &self.target[file.as_os_str().len()..];
            if let Ok(absolute) = std::path::absolute(file) {
                self.target = format!("{}{function}", absolute.display());
            }
        }
        if self.bin.components().count() > 1
            && let Ok(absolute) = std::path::absolute(&self.bin)
        {
            self.bin = absolute;
        }
    }

    /// The file that the target names, if it names one.
    pub fn file(&self) -> Option<&Path> {
        file_of(&self.target)
    }
}

/// The file that `target` names, unless it names a module.
pub fn file_of(target: &str) -> Option<&Path> {
    let place = match target.rsplit_once(':') {
        Some((place, _)) if !target.ends_with(".py") => place,
        _ => target,
    };
    (place.ends_with(".py") || place.contains('/')).then(|| Path::new(place))
}

/// What is wrong with `target` as far as can be told by looking at it, to be said after it; `None` if nothing is.
pub fn slip_in(target: &str) -> Option<String> {
    const USAGE: &str = "write file.py:function or package.module:function";
    let (place, name) = target.rsplit_once(':').unwrap_or((target, ""));
    if target.ends_with(".py") {
        // Only a file can leave the function out.
        return None;
    }
    let suffix = Path::new(place).extension().unwrap_or_default();
    if NO_PYTHON.iter().any(|other| suffix == *other) {
        let suffix = suffix.display();
        return Some(format!(
            "which is no Python file: the name of one ends in .py, not in .{suffix}"
        ));
    }
    if place.is_empty() || name.is_empty() {
        return Some(format!("which names no function: {USAGE}"));
    }
    // Paths may hold colons, names of modules can't.
    let is_file = place.ends_with(".py") || place.contains('/') && !place.contains(".py:");
    if place.contains(':') && !is_file {
        return Some(format!("which has a colon too many: {USAGE}"));
    }
    None
}

/// Ends of names that look like those of Python's files, and that it can't import. As a module, `model.pyx` would be looked for
/// in a package `model`.
const NO_PYTHON: [&str; 5] = ["pyx", "pyi", "pyw", "ipynb", "PY"];

/// An environment variable for workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// The GPU whose worker gets it; none means all of them.
    pub gpu: Option<usize>,
    /// Its name.
    pub name: String,
    /// Its value, in which `{gpu}` stands for the GPU's number.
    pub value: String,
}

impl Variable {
    /// Its value for the worker of GPU number `gpu`.
    pub fn value_for(&self, gpu: usize) -> String {
        self.value.replace("{gpu}", &gpu.to_string())
    }
}

impl FromStr for Variable {
    type Err = String;

    fn from_str(text: &str) -> Result<Variable, String> {
        let usage = "write NAME=VALUE, or 2:NAME=VALUE for the worker of gpu 2 alone";
        let (name, value) = text
            .split_once('=')
            .ok_or_else(|| format!("it sets nothing; {usage}"))?;
        let (gpu, name) = match name.split_once(':') {
            None => (None, name),
            Some((gpu, name)) => {
                let number = gpu
                    .parse()
                    .map_err(|_| format!("{gpu:?} is no number of a gpu; {usage}"))?;
                (Some(number), name)
            }
        };
        if name.is_empty() || text.contains('\0') {
            return Err(format!("it has no name, or holds a zero byte; {usage}"));
        }
        Ok(Variable {
            gpu,
            name: name.to_owned(),
            value: value.to_owned(),
        })
    }
}

impl fmt::Display for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(gpu) = self.gpu {
            write!(f, "{gpu}:")?;
        }
        write!(f, "{}={}", self.name, self.value)
    }
}

impl Config {
    /// Chooses the interpreter if that was left open, makes the target's path absolute, and warns of what is not there:
    /// the server starts all the same, since it may come to be.
    pub(super) fn with_python_found(mut self) -> Config {
        let ExecutorConfig::Python(python) = &mut self.executor else {
            return self;
        };
        if python.bin == Path::new(AUTO) {
            let active = std::env::var_os("VIRTUAL_ENV").filter(|folder| !folder.is_empty());
            let active = active.map(|folder| Path::new(&folder).join("bin/python"));
            python.bin = active
                .filter(|bin| bin.exists())
                .unwrap_or_else(|| BIN.into());
        }
        python.make_absolute();
        if let Some(file) = python.file().filter(|file| !file.exists()) {
            let file = file.display();
            let missing =
                format!("there is no file {file}: no GPU comes into service before there is");
            self.warnings.push(missing);
        }
        if !is_program(&python.bin) {
            let bin = python.bin.display();
            self.warnings.push(format!(
                "there is no program {bin}: name the Python to use with --python-bin"
            ));
        }
        self
    }
}

/// As a shell looks for programs.
fn is_program(bin: &Path) -> bool {
    if bin.components().count() > 1 {
        return bin.exists();
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(bin).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_modules_are_told_apart() {
        let cases = [
            ("model.py:f", Some("model.py")),
            ("model.py", Some("model.py")),
            ("/a:b/model.py", Some("/a:b/model.py")),
            ("/a:b/model.py:f", Some("/a:b/model.py")),
            ("bin/model:f", Some("bin/model")),
            ("package.module:f", None),
            ("module", None),
        ];
        for (target, file) in cases {
            assert_eq!(file_of(target), file.map(Path::new), "{target}");
        }
    }

    #[test]
    fn only_a_file_may_leave_its_function_out() {
        for sound in [
            "model.py",
            "a:b/model.py",
            "a:b/model.py:f",
            "model.py:f",
            "m:f",
            "bin/model:C.f",
            "a:b/model.so:f",
            "package.model:C.f",
        ] {
            assert_eq!(slip_in(sound), None, "{sound}");
        }
        for nameless in [
            "package.module",
            "model",
            "folder/",
            ":f",
            "m:",
            "model.py:",
        ] {
            let slip = slip_in(nameless).expect(nameless);
            assert!(slip.contains("names no function"), "{nameless}: {slip}");
        }
    }

    #[test]
    fn what_can_be_no_target_is_told_by_its_look() {
        for target in ["model.pyx:f", "a/model.pyx:f", "model.pyx", "a/book.ipynb"] {
            let slip = slip_in(target).expect(target);
            assert!(slip.contains("ends in .py, not in ."), "{target}: {slip}");
        }
        for target in ["model.py:f:g", "a/model.py:f:g", "package.module:f:g"] {
            let slip = slip_in(target).expect(target);
            assert!(slip.contains("a colon too many"), "{target}: {slip}");
        }
    }

    #[test]
    fn variables_read_as_they_are_written() {
        for text in ["A=1", "2:A=b=c", "A=", "CUDA_VISIBLE_DEVICES={gpu}"] {
            assert_eq!(
                text.parse::<Variable>()
                    .map(|variable| variable.to_string())
                    .as_deref(),
                Ok(text)
            );
        }
        for text in ["A", "=1", "x:A=1", "1:=2", "A=\0"] {
            assert!(text.parse::<Variable>().is_err(), "{text:?}");
        }
        let variable: Variable = "A=gpu{gpu}".parse().expect("sound");
        assert_eq!(variable.value_for(3), "gpu3");
    }
}

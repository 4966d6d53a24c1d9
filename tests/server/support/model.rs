//! A user's Python file.

use std::fs;
use std::path::PathBuf;

/// A folder with a file `model.py`.
pub struct Model {
    folder: tempfile::TempDir,
}

impl Model {
    /// A file with this source.
    pub fn new(source: &str) -> Model {
        let folder = tempfile::tempdir().expect("a folder");
        let model = Model { folder };
        model.write("model.py", source);
        model
    }

    /// One more file beside it.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path(name), content).expect("written");
    }

    /// The path of a file beside it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The file's path as an argument, with `:function` if any.
    pub fn target(&self, function: &str) -> String {
        format!("{}{function}", self.path("model.py").display())
    }
}

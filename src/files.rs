//! Files that somebody named: configuration, lists, keys, kernels. Each is read whole, and none without a bound, because a
//! path may as well lead to a device that never ends.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use crate::config::units::bytes;

/// Longest text that a person or a program writes as configuration, list or secret: 16 MiB.
const TEXT_BYTES_MAX: u64 = 16 << 20;

/// The bytes of the file at `path`, at most `most` of them.
///
/// # Errors
/// It can't be read, or is longer.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?.take(most + 1).read_to_end(&mut content)?;
    if content.len() as u64 > most {
        let problem = format!("it is longer than {}", bytes(most));
        return Err(io::Error::new(ErrorKind::FileTooLarge, problem));
    }
    Ok(content)
}

/// The text of the file at `path`.
///
/// # Errors
/// It can't be read, is longer than 16 MiB, or no UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path, TEXT_BYTES_MAX)?)
        .map_err(|_| io::Error::new(ErrorKind::InvalidData, "it is no text in UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_whole_or_not_at_all() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "12345").expect("written");
        assert_eq!(read(file.path(), 5).expect("short enough"), b"12345");
        let error = read(file.path(), 4).expect_err("too long");
        assert_eq!(error.to_string(), "it is longer than 4 bytes");
        assert_eq!(read_text(file.path()).expect("a text"), "12345");
        std::fs::write(file.path(), [0xff]).expect("written");
        let error = read_text(file.path()).expect_err("no text");
        assert_eq!(error.to_string(), "it is no text in UTF-8");
    }

    #[test]
    fn what_never_ends_is_left_alone() {
        let error = read_text(Path::new("/dev/zero")).expect_err("endless");
        assert_eq!(error.to_string(), "it is longer than 16 MiB");
    }
}

//! The file with the kernel: what kind it is, and what PTX says about the kernels in it. Pure but for reading the file.
//!
//! The driver refuses what it can't load, but not a kernel with other parameters than it is going to be given: that one
//! would read whatever lies there. PTX says in plain text which parameters its kernels take; for the compiled kinds the
//! driver is asked, if it is new enough (`module`).

use std::fmt;
use std::path::{Path, PathBuf};

use super::argument::ARGUMENT_BYTES;
use crate::files;

/// Kernels for many kinds of GPU, with tables in them, stay below this by far.
const BYTES_MAX: u64 = 1 << 30;

/// The bundled kernels, `batchstring` and `busy`.
const BUNDLED: &str = include_str!(concat!(env!("OUT_DIR"), "/bundled.ptx"));

/// The kinds of file that the driver loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Assembler text, compiled by the driver for whatever device there is.
    Ptx,
    /// Compiled for one kind of device.
    Cubin,
    /// Several of the others in one.
    Fatbin,
}

impl Kind {
    fn of(bytes: &[u8]) -> Option<Kind> {
        const FATBIN_MAGIC: [u8; 4] = 0xBA55_ED50_u32.to_le_bytes();
        if bytes.starts_with(b"\x7fELF") {
            return Some(Kind::Cubin);
        }
        if bytes.starts_with(&FATBIN_MAGIC) {
            return Some(Kind::Fatbin);
        }
        let text = std::str::from_utf8(bytes).ok()?;
        (text.contains(".version") && text.contains(".target")).then_some(Kind::Ptx)
    }
}

/// A file that holds kernels.
#[derive(Clone, PartialEq, Eq)]
pub struct Image {
    file: Option<PathBuf>,
    kind: Kind,
    /// With a zero byte behind it: the driver takes PTX as a C string.
    bytes: Vec<u8>,
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} ({:?}, {} bytes)", self.kind, self.bytes.len())
    }
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(f, "{}", file.display()),
            None => f.write_str("the bundled PTX"),
        }
    }
}

impl Image {
    /// The file at `path`, or the bundled kernels.
    ///
    /// # Errors
    /// The file can't be read or holds no kernels, in words.
    pub fn read(path: Option<&Path>) -> Result<Image, String> {
        let Some(path) = path else {
            return Image::new(None, BUNDLED.as_bytes().to_vec());
        };
        let bytes = files::read(path, BYTES_MAX)
            .map_err(|cause| format!("can't read the kernel {}: {cause}", path.display()))?;
        Image::new(Some(path.to_owned()), bytes)
    }

    fn new(file: Option<PathBuf>, mut bytes: Vec<u8>) -> Result<Image, String> {
        let Some(kind) = Kind::of(&bytes) else {
            let file = file.unwrap_or_default();
            return Err(format!(
                "{} is neither PTX nor a cubin nor a fatbin: compile the kernel with nvcc -ptx, -cubin or -fatbin",
                file.display()
            ));
        };
        bytes.push(0);
        Ok(Image { file, kind, bytes })
    }

    /// Its bytes, a zero behind them.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether it has the kernel `name` with the one parameter that it is going to be given, as far as the file says so.
    ///
    /// # Errors
    /// It has not, in words.
    pub fn check(&self, name: &str) -> Result<(), String> {
        if self.kind != Kind::Ptx {
            return Ok(());
        }
        let entries = entries(&String::from_utf8_lossy(&self.bytes));
        match entries.iter().find(|entry| entry.name == name) {
            None => Err(self.missing(name, &entries)),
            Some(entry) if entry.parameters == [Some(ARGUMENT_BYTES)] => Ok(()),
            Some(entry) => Err(self.misfit(name, &entry.parameters)),
        }
    }

    fn missing(&self, name: &str, entries: &[Entry]) -> String {
        let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
        let found = match &names[..] {
            [] => "none".to_owned(),
            names => names.join(", "),
        };
        let mut text = format!("there is no kernel {name} in {self}; there are: {found}");
        if names.iter().any(|name| name.starts_with("_Z")) {
            text.push_str(" (declare it extern \"C\", and its name stays what it is)");
        }
        text
    }

    /// What to say about a kernel with other parameters, each as its size in bytes where that is known.
    pub(super) fn misfit(&self, name: &str, parameters: &[Option<usize>]) -> String {
        let sizes: Vec<String> = parameters
            .iter()
            .map(|size| size.map_or("?".to_owned(), |size| size.to_string()))
            .collect();
        let takes = match &sizes[..] {
            [] => "takes no parameter".to_owned(),
            [size] => format!("takes one parameter of {size} bytes"),
            sizes => format!(
                "takes {} parameters of {} bytes",
                sizes.len(),
                sizes.join(", ")
            ),
        };
        format!(
            "the kernel {name} of {self} {takes}; it must take one of {ARGUMENT_BYTES} bytes: a funicular_batch by value, \
             see kernels/funicular.h"
        )
    }
}

/// A kernel in PTX.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    name: String,
    /// The size of each parameter in bytes; none where the text is beyond us.
    parameters: Vec<Option<usize>>,
}

/// The kernels in the text of PTX.
fn entries(text: &str) -> Vec<Entry> {
    let text = without_comments(text);
    let declared = text.match_indices(".entry").filter_map(|(at, word)| {
        let rest = text[at + word.len()..].trim_start();
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || "_$%".contains(c)))?;
        let (name, rest) = rest.split_at(end);
        let list = rest.trim_start().strip_prefix('(');
        let list = list.map_or("", |list| list.split(')').next().unwrap_or_default());
        let parameters = list.split(',').filter(|one| !one.trim().is_empty());
        Some(Entry {
            name: name.to_owned(),
            parameters: parameters.map(size_of_parameter).collect(),
        })
    });
    declared.filter(|entry| !entry.name.is_empty()).collect()
}

/// Of `.param .align 8 .b8 name[56]`: 56. Of `.param .u64 name`: 8.
fn size_of_parameter(text: &str) -> Option<usize> {
    let width = text.split_whitespace().find_map(|word| match word {
        ".b8" | ".u8" | ".s8" => Some(1),
        ".b16" | ".u16" | ".s16" | ".f16" => Some(2),
        ".b32" | ".u32" | ".s32" | ".f32" => Some(4),
        ".b64" | ".u64" | ".s64" | ".f64" => Some(8),
        ".b128" => Some(16),
        _ => None,
    })?;
    let count = match text.split_once('[') {
        Some((_, rest)) => rest.split(']').next()?.trim().parse().ok()?,
        None => 1,
    };
    Some(width * count)
}

fn without_comments(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("//").into_iter().chain(rest.find("/*")).min() {
        kept.push_str(&rest[..at]);
        let (start, end) = if rest[at..].starts_with("//") {
            (at + 2, "\n")
        } else {
            (at + 2, "*/")
        };
        kept.push(' ');
        rest = match rest[start..].find(end) {
            Some(length) => &rest[start + length + end.len()..],
            None => "",
        };
    }
    kept.push_str(rest);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str = "// .entry not_this(\n.version 7.0\n.target sm_80\n/* .entry nor_this( */
        .visible .entry mine(\n\t.param .align 8 .b8 mine_param_0[56]\n)\n{ ret; }
        .visible .entry _Z5three(.param .u64 .ptr .global .align 4 a, .param .f32 b, // c
        .param .align 4 .b8 c[12])\n{ ret; }
        .entry none\n{ ret; } .func (.param .b32 r) device(.param .u64 x) { ret; }";

    fn image(bytes: &[u8]) -> Result<Image, String> {
        Image::new(Some("k.ptx".into()), bytes.to_vec())
    }

    #[test]
    fn kernels_and_their_parameters_are_found() {
        let found = entries(PTX);
        let expected = [
            ("mine", vec![Some(56)]),
            ("_Z5three", vec![Some(8), Some(4), Some(12)]),
            ("none", vec![]),
        ];
        let expected = expected.map(|(name, parameters)| Entry {
            name: name.to_owned(),
            parameters,
        });
        assert_eq!(found, expected);
    }

    #[test]
    fn the_bundled_kernels_are_what_they_should_be() {
        let bundled = Image::read(None).expect("PTX");
        for name in ["batchstring", "busy"] {
            assert_eq!(bundled.check(name), Ok(()));
        }
        let refusal = bundled.check("batchstrin").expect_err("no such kernel");
        assert_eq!(
            refusal,
            "there is no kernel batchstrin in the bundled PTX; there are: batchstring, busy"
        );
    }

    #[test]
    fn what_does_not_fit_is_refused_with_what_is_there() {
        let image = image(PTX.as_bytes()).expect("PTX");
        assert_eq!(image.check("mine"), Ok(()));
        let said = |name| image.check(name).expect_err("a refusal");
        assert_eq!(
            said("three"),
            "there is no kernel three in k.ptx; there are: mine, _Z5three, none (declare it extern \"C\", and its name stays what it is)"
        );
        assert!(
            said("_Z5three")
                .contains("takes 3 parameters of 8, 4, 12 bytes; it must take one of 56")
        );
        assert!(said("none").contains("takes no parameter;"));
    }

    #[test]
    fn kinds_are_told_apart() {
        let kind = |bytes: &[u8]| Kind::of(bytes);
        assert_eq!(kind(PTX.as_bytes()), Some(Kind::Ptx));
        assert_eq!(kind(b"\x7fELF\x02\x01"), Some(Kind::Cubin));
        assert_eq!(kind(b"\x50\xed\x55\xba\x01\x00"), Some(Kind::Fatbin));
        for junk in [&b""[..], b"int main() {}", b"\xff\xfe", b"MZ"] {
            assert_eq!(kind(junk), None);
            let refusal = image(junk).expect_err("not a kernel");
            assert!(refusal.starts_with("k.ptx is neither PTX nor a cubin nor a fatbin"));
        }
        // Nothing can be said about these before the driver has seen them.
        assert_eq!(image(b"\x7fELF").expect("a cubin").check("any"), Ok(()));
    }

    #[test]
    fn comments_end_where_they_end() {
        assert_eq!(without_comments("a//b\nc/*d*/e/*f"), "a c e ");
        assert_eq!(without_comments("a / b"), "a / b");
    }
}

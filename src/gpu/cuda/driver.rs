//! The driver as a whole: loaded, initialised, new enough; and the one error that its calls have.

use std::ffi::{CStr, c_char, c_uint};
use std::fmt;

use cuda_driver_sys::CUresult;

use super::sys::{self, Functions, LoadError};

/// PTX 7.0, which the bundled kernels are written in, came with CUDA 11.0.
const VERSION_MIN: i32 = 11_000;

/// What a call into the driver returned instead of success.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {name} ({code}): {text}")]
pub struct Error {
    call: &'static str,
    code: c_uint,
    name: String,
    text: String,
}

impl Error {
    /// Whether the driver said `code`. Numbers that came after CUDA 10.2 are equal to none.
    pub fn is(&self, code: CUresult) -> bool {
        self.code == code as c_uint
    }

    /// Whether every later call in this context will fail as well: the work on the device was given up.
    pub fn is_sticky(&self) -> bool {
        // Of the 700s those are left out that concern a launch or a peer alone. A number that is not known yet is taken for
        // the worse.
        const ECC: c_uint = CUresult::CUDA_ERROR_ECC_UNCORRECTABLE as c_uint;
        const NVLINK: c_uint = CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE as c_uint;
        matches!(
            self.code,
            ECC | NVLINK | 700 | 702 | 709 | 710 | 714..=719 | 721..=799 | 913..
        )
    }
}

/// What the driver says about a number.
fn text_of(
    ask: unsafe extern "C" fn(c_uint, *mut *const c_char) -> c_uint,
    code: c_uint,
) -> Option<String> {
    let mut text = std::ptr::null();
    // SAFETY: `text` is a place for a pointer; it gets the address of a text that is never freed, or stays null.
    let found = unsafe { ask(code, &mut text) } == 0 && !text.is_null();
    if !found {
        return None;
    }
    // SAFETY: it was found, so it is a text that ends with a zero byte.
    let text = unsafe { CStr::from_ptr(text) };
    Some(text.to_string_lossy().into_owned())
}

impl Functions {
    /// What the number that `call` returned means.
    ///
    /// # Errors
    /// Everything but success.
    pub(super) fn check(&self, call: &'static str, code: c_uint) -> Result<(), Error> {
        if code == 0 {
            return Ok(());
        }
        let name = text_of(self.cuGetErrorName, code);
        let text = text_of(self.cuGetErrorString, code);
        Err(Error {
            call: call.trim_end_matches("_v2"),
            code,
            name: name.unwrap_or_else(|| "an error that this driver has no name for".to_owned()),
            text: text.unwrap_or_else(|| "nothing more is known".to_owned()),
        })
    }
}

/// Calls a function of the driver: `call!(functions, cuInit(0))` is a `Result<(), Error>`. Unsafe like the function.
macro_rules! call {
    ($functions:expr, $name:ident($($argument:expr),* $(,)?)) => {
        $functions.check(stringify!($name), ($functions.$name)($($argument),*))
    };
}
pub(super) use call;

/// Why no GPU can be used, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// There is no driver.
    #[error(
        "there is no NVIDIA driver here ({0}): install it; in a container, start that with access to the GPUs (docker run \
         --gpus all)"
    )]
    NotInstalled(String),
    /// The driver lacks a function.
    #[error(
        "the NVIDIA driver has no {0}: it is too old, or not NVIDIA's; CUDA 11.0 (driver 450) or newer is needed"
    )]
    Incomplete(&'static str),
    /// The driver is older than the kernels.
    #[error(
        "the NVIDIA driver is for CUDA {}; 11.0 (driver 450) or newer is needed: update it",
        version_text(*.0)
    )]
    TooOld(i32),
    /// The driver sees no device.
    #[error(
        "the NVIDIA driver finds no GPU ({0}): see whether nvidia-smi lists one, and whether CUDA_VISIBLE_DEVICES hides it; a \
         container has to be given the GPUs (docker run --gpus all)"
    )]
    NoDevice(String),
    /// The driver can't be used for another reason.
    #[error("the NVIDIA driver can't be used: {error}{}", advice(.error))]
    Failed {
        /// What it said.
        error: Error,
    },
}

impl From<Error> for Unavailable {
    fn from(error: Error) -> Unavailable {
        if error.is(CUresult::CUDA_ERROR_NO_DEVICE) {
            return Unavailable::NoDevice(error.to_string());
        }
        Unavailable::Failed { error }
    }
}

fn advice(error: &Error) -> &'static str {
    if error.is(CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH) {
        "; the kernel module is of another version than the library: reload it or restart the machine"
    } else if error.is(CUresult::CUDA_ERROR_SYSTEM_NOT_READY) {
        "; on machines with NVSwitch the fabric manager must run"
    } else if error.is(CUresult::CUDA_ERROR_UNKNOWN) {
        "; nvidia-smi and the kernel's log may know more (is nvidia-uvm loaded?)"
    } else {
        ""
    }
}

/// As people write it: 12040 is 12.4.
pub fn version_text(version: i32) -> String {
    format!("{}.{}", version / 1_000, version % 1_000 / 10)
}

/// A driver that is there, new enough, and initialised.
#[derive(Clone, Copy)]
pub struct Driver {
    pub(super) functions: &'static Functions,
    version: i32,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Driver(CUDA {})", version_text(self.version))
    }
}

impl Driver {
    /// Loads and initialises it. May take a second; later calls are cheap.
    ///
    /// # Errors
    /// See [`Unavailable`].
    pub fn load() -> Result<Driver, Unavailable> {
        let functions = sys::functions().map_err(|error| match error {
            LoadError::Library(said) => Unavailable::NotInstalled(said),
            LoadError::Function(name) => Unavailable::Incomplete(name),
        })?;
        let mut version = 0;
        // SAFETY: may be called before cuInit; `version` is a place for the number.
        unsafe { call!(functions, cuDriverGetVersion(&mut version)) }?;
        if version < VERSION_MIN {
            return Err(Unavailable::TooOld(version));
        }
        // SAFETY: it may be called at any time, by any thread, as often as one likes.
        unsafe { call!(functions, cuInit(0)) }?;
        Ok(Driver { functions, version })
    }

    /// The CUDA that it is for, as 1000 × major + 10 × minor.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// Number of devices, as far as `CUDA_VISIBLE_DEVICES` shows them.
    ///
    /// # Errors
    /// [`Unavailable::NoDevice`] if there is none.
    pub fn device_count(&self) -> Result<usize, Unavailable> {
        let mut count = 0;
        // SAFETY: `count` is a place for the number.
        unsafe { call!(self.functions, cuDeviceGetCount(&mut count)) }?;
        match usize::try_from(count) {
            Ok(0) | Err(_) => Err(Unavailable::NoDevice(format!("it counts {count}"))),
            Ok(count) => Ok(count),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: c_uint) -> Error {
        Error {
            call: "cuTest",
            code,
            name: "CUDA_ERROR_TEST".to_owned(),
            text: "a test".to_owned(),
        }
    }

    #[test]
    fn an_error_names_call_code_and_text() {
        assert_eq!(error(2).to_string(), "cuTest: CUDA_ERROR_TEST (2): a test");
        assert!(error(2).is(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
    }

    #[test]
    fn what_a_kernel_did_is_sticky_and_what_a_call_did_is_not() {
        for code in [214, 220, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721] {
            assert!(error(code).is_sticky(), "{code}");
        }
        for code in [
            1, 2, 100, 200, 218, 301, 400, 500, 600, 701, 704, 720, 801, 900, 912,
        ] {
            assert!(!error(code).is_sticky(), "{code}");
        }
        // Unknown ones, and 999, "unknown".
        assert!(error(999).is_sticky() && error(5_000).is_sticky());
    }

    #[test]
    fn versions_read_as_people_write_them() {
        assert_eq!(version_text(11_000), "11.0");
        assert_eq!(version_text(12_040), "12.4");
    }

    #[test]
    fn without_a_driver_the_refusal_says_what_to_do() {
        let said = Unavailable::NotInstalled("no such file".to_owned()).to_string();
        assert!(said.starts_with("there is no NVIDIA driver here (no such file): install it"));
        let unavailable = Unavailable::from(error(803));
        assert!(unavailable.to_string().contains("restart the machine"));
        assert!(matches!(
            Unavailable::from(error(100)),
            Unavailable::NoDevice(_)
        ));
    }
}

//! A module in a device's memory, and the kernel in it that is going to be run, checked as far as the driver lets us.

use std::ffi::{CString, c_void};
use std::rc::Rc;

use cuda_driver_sys::{
    CUdevice_attribute, CUfunction, CUfunction_attribute, CUjit_option_enum, CUmodule, CUresult,
};

use super::argument::ARGUMENT_BYTES;
use super::context::{Context, complain};
use super::device::Device;
use super::driver::{Error, call};
use super::image::Image;
use crate::config::keys;

/// The driver's compiler has said what is wrong in so many bytes.
const LOG_BYTES: usize = 8 << 10;

/// How a kernel is launched, one block for each input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Threads of a block, in one dimension.
    pub threads: u32,
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
}

/// Why there is no kernel to launch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// The device can't load anything now.
    #[error(transparent)]
    Device(#[from] Error),
    /// The file or the settings are at fault: what is wrong and what to do.
    #[error("{0}")]
    Refused(String),
}

/// A file in a device's memory.
#[derive(Debug)]
struct Module {
    context: Rc<Context>,
    raw: CUmodule,
}

impl Module {
    /// Loads `image`, and compiles it if it is PTX: that may take its time.
    fn load(context: &Rc<Context>, image: &Image) -> Result<Module, KernelError> {
        use CUjit_option_enum::{
            CU_JIT_ERROR_LOG_BUFFER as LOG, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES as SIZE,
        };
        let mut raw = std::ptr::null_mut();
        let mut log = vec![0_u8; LOG_BYTES];
        let mut options = [LOG, SIZE];
        // A number is passed as if it were an address.
        let mut values: [*mut c_void; 2] = [
            log.as_mut_ptr().cast(),
            std::ptr::without_provenance_mut(LOG_BYTES),
        ];
        // SAFETY: the image is a whole one with a zero behind it; options and values are two each; the log has that many bytes.
        let loaded = unsafe {
            call!(
                context.functions(),
                cuModuleLoadDataEx(
                    &mut raw,
                    image.bytes().as_ptr().cast(),
                    2,
                    options.as_mut_ptr(),
                    values.as_mut_ptr(),
                )
            )
        };
        let context = Rc::clone(context);
        match loaded {
            Ok(()) => Ok(Module { context, raw }),
            Err(error) if error.is_sticky() || error.is(CUresult::CUDA_ERROR_OUT_OF_MEMORY) => {
                Err(error.into())
            }
            Err(error) => Err(KernelError::Refused(unloadable(image, &error, &log))),
        }
    }

    fn function(&self, name: &str) -> Result<CUfunction, Error> {
        let mut raw = std::ptr::null_mut();
        let name = CString::new(name).unwrap_or_default();
        // SAFETY: the module is loaded, `raw` is a place for the handle, the name ends with a zero.
        unsafe {
            call!(
                self.context.functions(),
                cuModuleGetFunction(&mut raw, self.raw, name.as_ptr())
            )
        }?;
        Ok(raw)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.may_free() {
            // SAFETY: it is loaded, and no kernel of it runs: no work is left.
            complain(unsafe { call!(self.context.functions(), cuModuleUnload(self.raw)) });
        }
    }
}

/// With the compiler's own words, which name the line.
fn unloadable(image: &Image, error: &Error, log: &[u8]) -> String {
    let log = log.split(|byte| *byte == 0).next().unwrap_or_default();
    let log = String::from_utf8_lossy(log);
    let advice = if error.is(CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU) {
        "; it was compiled for other GPUs: compile it for this one's compute capability (funicular devices), or to PTX"
    } else {
        ""
    };
    match log.trim() {
        "" => format!("the driver can't load {image}: {error}{advice}"),
        log => format!("the driver can't load {image}: {error}{advice}; its compiler says: {log}"),
    }
}

/// A kernel that can be launched.
#[derive(Debug)]
pub struct Function {
    module: Module,
    raw: CUfunction,
}

impl Function {
    /// Loads `image`, takes the kernel `name` out of it, and makes sure that it can be launched in blocks of this `shape`
    /// with the parameter that it is going to be given.
    ///
    /// # Errors
    /// See [`KernelError`].
    pub fn load(
        context: &Rc<Context>,
        device: Device,
        image: &Image,
        name: &str,
        shape: Shape,
    ) -> Result<Function, KernelError> {
        image.check(name).map_err(KernelError::Refused)?;
        let module = Module::load(context, image)?;
        let raw = module.function(name).map_err(|error| {
            if error.is(CUresult::CUDA_ERROR_NOT_FOUND) {
                KernelError::Refused(format!(
                    "there is no kernel {name} in {image} (is it declared extern \"C\"?): name another with {}",
                    keys::CUDA_ENTRY.flag
                ))
            } else {
                error.into()
            }
        })?;
        let function = Function { module, raw };
        function.check_parameters(image, name)?;
        function.check_shape(device, name, shape)?;
        Ok(function)
    }

    pub(super) fn raw(&self) -> CUfunction {
        self.raw
    }

    /// Registers of a thread, for the log.
    ///
    /// # Errors
    /// The device can't be asked.
    pub fn registers(&self) -> Result<i32, Error> {
        self.attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)
    }

    fn attribute(&self, attribute: CUfunction_attribute) -> Result<i32, Error> {
        let mut value = 0;
        // SAFETY: `value` is a place for the number, the function is loaded.
        unsafe {
            call!(
                self.module.context.functions(),
                cuFuncGetAttribute(&mut value, attribute, self.raw)
            )
        }?;
        Ok(value)
    }

    /// Offset and size of parameter `index`, if there is one. `Err` if the driver can't tell.
    fn parameter(&self, index: usize) -> Result<Option<(usize, usize)>, ()> {
        let ask = self
            .module
            .context
            .functions()
            .cuFuncGetParamInfo
            .ok_or(())?;
        let (mut offset, mut size) = (0, 0);
        // SAFETY: two places for numbers, the function is loaded.
        match unsafe { ask(self.raw, index, &mut offset, &mut size) } {
            0 => Ok(Some((offset, size))),
            code if code == CUresult::CUDA_ERROR_INVALID_VALUE as u32 => Ok(None),
            _ => Err(()),
        }
    }

    fn check_parameters(&self, image: &Image, name: &str) -> Result<(), KernelError> {
        let (Ok(first), Ok(second)) = (self.parameter(0), self.parameter(1)) else {
            log::debug!("the driver does not tell what {name} takes: it is older than CUDA 12.4");
            return Ok(());
        };
        match (first, second) {
            (Some((0, ARGUMENT_BYTES)), None) => Ok(()),
            (first, second) => {
                let sizes: Vec<Option<usize>> = [first, second]
                    .into_iter()
                    .flatten()
                    .map(|(_, size)| Some(size))
                    .collect();
                Err(KernelError::Refused(image.misfit(name, &sizes)))
            }
        }
    }

    fn check_shape(&self, device: Device, name: &str, shape: Shape) -> Result<(), KernelError> {
        use CUdevice_attribute::{
            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK as USUAL,
            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN as MOST,
        };
        use CUfunction_attribute as Of;
        let threads = self.attribute(Of::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?;
        if i64::from(shape.threads) > i64::from(threads) {
            return Err(KernelError::Refused(format!(
                "the kernel {name} can have {threads} threads in a block, not {}: lower {}, or compile it with fewer \
                 registers",
                shape.threads,
                keys::CUDA_BLOCK.flag
            )));
        }
        let fixed = i64::from(self.attribute(Of::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?);
        let usual = i64::from(device.attribute(USUAL)?);
        let most = i64::from(device.attribute(MOST)?).max(usual);
        let wanted = fixed + i64::from(shape.shared_bytes);
        if wanted > most {
            return Err(KernelError::Refused(format!(
                "the kernel {name} wants {wanted} bytes of shared memory in a block ({fixed} of its own and {} from {}); the \
                 device has {most}: lower the one or the other",
                shape.shared_bytes,
                keys::CUDA_SHARED_BYTES.flag
            )));
        }
        if wanted > usual {
            self.allow_shared(shape.shared_bytes)?;
        }
        Ok(())
    }

    /// What is beyond the usual has to be asked for.
    fn allow_shared(&self, bytes: u32) -> Result<(), Error> {
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        // SAFETY: the function is loaded.
        unsafe {
            call!(
                self.module.context.functions(),
                cuFuncSetAttribute(self.raw, attribute, bytes)
            )
        }
    }
}

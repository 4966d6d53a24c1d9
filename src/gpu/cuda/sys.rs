//! The driver's functions, looked up in `libcuda.so.1` when the first of them is needed: one binary runs with and without a
//! driver.
//!
//! Types and signatures are those of `cuda-driver-sys`, and the compiler compares each signature here with the one there.
//! The functions of that crate themselves are never called: they would have to be linked, and they return a Rust enum of
//! the numbers that CUDA 10.2 knew, of which a newer driver's number would be no value at all. Here a result is the plain
//! number until [`super::driver`] has looked at it.
//!
//! Nothing of this is exported under the driver's names, so that the driver can't take it for its own.

use std::error::Error;
use std::ffi::{c_char, c_uint};
use std::sync::OnceLock;

use cuda_driver_sys::*;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// What the loader looks for; the name without the version belongs to the toolkit's stub.
const LIBRARY: &str = "libcuda.so.1";

/// Why there are no functions to call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// There is no such library, or it can't be loaded, in the loader's words.
    Library(String),
    /// It lacks this function.
    Function(&'static str),
}

/// The parameters of a kernel, one by one: CUDA 12.4 and newer.
pub type FuncGetParamInfo =
    unsafe extern "C" fn(CUfunction, usize, *mut usize, *mut usize) -> c_uint;

/// Declares the table and its loader, and has the compiler compare every signature with the crate's.
macro_rules! functions {
    ($(fn $name:ident($($argument:ident: $kind:ty),*);)*) => {
        /// The driver's functions. Each returns the number of a `CUresult`.
        #[expect(non_snake_case, reason = "the driver's own names")]
        #[derive(Debug)]
        pub struct Functions {
            $(pub $name: unsafe extern "C" fn($($argument: $kind),*) -> c_uint,)*
            pub cuGetErrorName: unsafe extern "C" fn(error: c_uint, text: *mut *const c_char) -> c_uint,
            pub cuGetErrorString: unsafe extern "C" fn(error: c_uint, text: *mut *const c_char) -> c_uint,
            pub cuFuncGetParamInfo: Option<FuncGetParamInfo>,
        }

        // Constants that nobody reads: they are type-checked and leave nothing to link.
        $(const _: unsafe extern "C" fn($($kind),*) -> CUresult = cuda_driver_sys::$name;)*

        impl Functions {
            fn look_up(library: &Library) -> Result<Functions, LoadError> {
                Ok(Functions {
                    // SAFETY: the driver's functions have the signatures of the crate, and CUresult is a number of four
                    // bytes.
                    $($name: unsafe { required(library, stringify!($name))? },)*
                    // SAFETY: likewise; the crate's first parameter is the enum, here it is its number.
                    cuGetErrorName: unsafe { required(library, "cuGetErrorName")? },
                    // SAFETY: likewise.
                    cuGetErrorString: unsafe { required(library, "cuGetErrorString")? },
                    // SAFETY: the signature that CUDA 12.4 documents; the crate is older.
                    cuFuncGetParamInfo: unsafe { required(library, "cuFuncGetParamInfo") }.ok(),
                })
            }
        }
    };
}

functions! {
    fn cuInit(flags: c_uint);
    fn cuDriverGetVersion(version: *mut i32);
    fn cuDeviceGetCount(count: *mut i32);
    fn cuDeviceGet(device: *mut CUdevice, ordinal: i32);
    fn cuDeviceGetName(name: *mut c_char, length: i32, device: CUdevice);
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
    fn cuDeviceGetAttribute(value: *mut i32, attribute: CUdevice_attribute, device: CUdevice);
    fn cuDeviceGetPCIBusId(id: *mut c_char, length: i32, device: CUdevice);
    fn cuCtxCreate_v2(context: *mut CUcontext, flags: c_uint, device: CUdevice);
    fn cuCtxDestroy_v2(context: CUcontext);
    fn cuCtxSetCurrent(context: CUcontext);
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    fn cuModuleLoadDataEx(
        module: *mut CUmodule,
        image: *const std::ffi::c_void,
        count: c_uint,
        options: *mut CUjit_option,
        values: *mut *mut std::ffi::c_void
    );
    fn cuModuleUnload(module: CUmodule);
    fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    fn cuFuncGetAttribute(value: *mut i32, attribute: CUfunction_attribute, function: CUfunction);
    fn cuFuncSetAttribute(function: CUfunction, attribute: CUfunction_attribute, value: i32);
    fn cuMemAlloc_v2(pointer: *mut CUdeviceptr, bytes: usize);
    fn cuMemFree_v2(pointer: CUdeviceptr);
    fn cuMemHostAlloc(pointer: *mut *mut std::ffi::c_void, bytes: usize, flags: c_uint);
    fn cuMemFreeHost(pointer: *mut std::ffi::c_void);
    fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const std::ffi::c_void, bytes: usize, stream: CUstream);
    fn cuMemcpyDtoHAsync_v2(to: *mut std::ffi::c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
    fn cuMemsetD8Async(at: CUdeviceptr, value: u8, bytes: usize, stream: CUstream);
    fn cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    fn cuStreamDestroy_v2(stream: CUstream);
    fn cuStreamQuery(stream: CUstream);
    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    fn cuEventCreate(event: *mut CUevent, flags: c_uint);
    fn cuEventDestroy_v2(event: CUevent);
    fn cuEventRecord(event: CUevent, stream: CUstream);
    fn cuEventQuery(event: CUevent);
    fn cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);
    fn cuLaunchHostFunc(stream: CUstream, function: CUhostFn, data: *mut std::ffi::c_void);
    fn cuLaunchKernel(
        function: CUfunction,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared_bytes: c_uint,
        stream: CUstream,
        parameters: *mut *mut std::ffi::c_void,
        extra: *mut *mut std::ffi::c_void
    );
}

/// Looks up `name`, which must have the type `F`.
///
/// # Safety
/// `F` is the function pointer type of what the library has under that name.
unsafe fn required<F: Copy>(library: &Library, name: &'static str) -> Result<F, LoadError> {
    // SAFETY: the caller's promise.
    let symbol = unsafe { library.get::<F>(name) };
    symbol
        .map(|symbol| *symbol)
        .map_err(|_| LoadError::Function(name))
}

/// What the loader says is the cause of what the crate says.
fn in_full(error: &dyn Error) -> String {
    error
        .source()
        .map_or_else(|| error.to_string(), ToString::to_string)
}

/// The driver's functions, loaded by whoever asks first. The library stays loaded: it has threads of its own.
///
/// # Errors
/// See [`LoadError`]; the same one every time.
pub fn functions() -> Result<&'static Functions, LoadError> {
    static FUNCTIONS: OnceLock<Result<Functions, LoadError>> = OnceLock::new();
    let loaded = FUNCTIONS.get_or_init(|| {
        // SAFETY: what runs when the driver is loaded is the driver's own.
        let library = unsafe { Library::open(Some(LIBRARY), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|error| LoadError::Library(in_full(&error)))?;
        let functions = Functions::look_up(&library);
        std::mem::forget(library);
        functions
    });
    loaded.as_ref().map_err(Clone::clone)
}

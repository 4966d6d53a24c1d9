//! Memory of a device, and memory of this machine that a device copies from and to while the processor does other things.
//!
//! Neither is given back while a stream of its context has work left: see [`super::context`].

use std::rc::Rc;

use cuda_driver_sys::CUdeviceptr;

use super::context::{Context, complain};
use super::driver::{Error, call};
use super::stream::Event;

/// Memory of the device.
#[derive(Debug)]
pub struct DeviceBuffer {
    context: Rc<Context>,
    raw: CUdeviceptr,
    bytes: usize,
}

impl DeviceBuffer {
    /// `bytes` bytes, at least one, of any content, aligned to 256.
    ///
    /// # Errors
    /// There is not so much left.
    pub fn allocate(context: &Rc<Context>, bytes: usize) -> Result<DeviceBuffer, Error> {
        let mut raw = 0;
        // SAFETY: `raw` is a place for the address.
        unsafe { call!(context.functions(), cuMemAlloc_v2(&mut raw, bytes)) }?;
        let context = Rc::clone(context);
        Ok(DeviceBuffer {
            context,
            raw,
            bytes,
        })
    }

    /// The device's address of byte `from`, with `bytes` bytes behind it.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn at(&self, from: usize, bytes: usize) -> CUdeviceptr {
        let end = from.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end <= self.bytes),
            "{bytes} bytes from {from} of a buffer of {}",
            self.bytes
        );
        self.raw + from as u64
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.context.may_free() {
            // SAFETY: it was allocated, nobody else has the address, and no work is left that could use it.
            complain(unsafe { call!(self.context.functions(), cuMemFree_v2(self.raw)) });
        }
    }
}

/// Memory of this machine that stays where it is.
#[derive(Debug)]
pub struct PinnedBuffer {
    context: Rc<Context>,
    raw: *mut std::ffi::c_void,
    bytes: usize,
}

impl PinnedBuffer {
    /// `bytes` zeroes, at least one, aligned to a page.
    ///
    /// # Errors
    /// There is not so much left, or it may not be pinned.
    pub fn allocate(context: &Rc<Context>, bytes: usize) -> Result<PinnedBuffer, Error> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is a place for the address.
        unsafe { call!(context.functions(), cuMemHostAlloc(&mut raw, bytes, 0)) }?;
        // SAFETY: these bytes are new and ours.
        unsafe { raw.cast::<u8>().write_bytes(0, bytes) };
        let context = Rc::clone(context);
        Ok(PinnedBuffer {
            context,
            raw,
            bytes,
        })
    }

    /// Its address, with `bytes` bytes behind it.
    ///
    /// # Panics
    /// If there are not so many.
    pub(super) fn pointer(&self, bytes: usize) -> *mut std::ffi::c_void {
        assert!(
            bytes <= self.bytes,
            "{bytes} bytes of a buffer of {}",
            self.bytes
        );
        self.raw
    }

    /// Its bytes, if the device has passed `copied`, which was set behind the last copy to here.
    ///
    /// # Errors
    /// The device failed.
    pub fn bytes_after(&self, copied: &Event) -> Result<Option<&[u8]>, Error> {
        let passed = copied.is_passed()?;
        // SAFETY: they were written at allocation, and the copy, which is over, was the only one under way.
        Ok(passed.then(|| unsafe { std::slice::from_raw_parts(self.raw.cast(), self.bytes) }))
    }

    /// Its bytes to be changed, if the device has passed `copied`, which was set behind the last copy from here.
    ///
    /// # Errors
    /// The device failed.
    pub fn bytes_mut_after(&mut self, copied: &Event) -> Result<Option<&mut [u8]>, Error> {
        let passed = copied.is_passed()?;
        // SAFETY: they were written at allocation, and the copy, which is over, was the only one under way.
        Ok(passed.then(|| unsafe { std::slice::from_raw_parts_mut(self.raw.cast(), self.bytes) }))
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        if self.context.may_free() {
            // SAFETY: it was allocated, nobody else has the address, and no copy is under way.
            complain(unsafe { call!(self.context.functions(), cuMemFreeHost(self.raw)) });
        }
    }
}

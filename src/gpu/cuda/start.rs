//! What can be said before any GPU thread starts: whether there are devices, and whether the kernel could run on them.

use super::context::Context;
use super::device::Description;
use super::driver::{Driver, Unavailable};
use super::image::Image;
use super::module::{Function, KernelError, Shape};

/// Number of devices, each of which can be a GPU.
///
/// # Errors
/// There is no driver, or no device.
pub fn device_count() -> Result<usize, Unavailable> {
    Driver::load()?.device_count()
}

/// The devices, and the CUDA that the driver is for.
///
/// # Errors
/// There is no driver, or no device.
pub fn devices() -> Result<(Vec<Description>, i32), Unavailable> {
    let driver = Driver::load()?;
    Ok((driver.descriptions()?, driver.version()))
}

/// Tries whether the kernel `entry` of `image` can be loaded and launched, on the first of `count` devices that can be had.
///
/// What is wrong there is wrong on all of them. A device that can't be had says nothing about the kernel: if that holds for
/// all of them, the first one's reason is returned.
///
/// # Errors
/// What is wrong with the kernel or its settings, and what to do.
pub fn try_kernel(
    count: usize,
    image: &Image,
    entry: &str,
    shape: Shape,
) -> Result<Option<String>, String> {
    image.check(entry)?;
    let driver = Driver::load().map_err(|error| error.to_string())?;
    let mut reason = None;
    for ordinal in 0..count {
        let tried = driver
            .device(ordinal)
            .map_err(KernelError::from)
            .and_then(|device| {
                let context = Context::create(device)?;
                Function::load(&context, device, image, entry, shape).map(drop)
            });
        match tried {
            Ok(()) => return Ok(None),
            Err(KernelError::Refused(problem)) => return Err(problem),
            Err(KernelError::Device(error)) => {
                reason.get_or_insert_with(|| error.to_string());
            }
        }
    }
    Ok(reason)
}

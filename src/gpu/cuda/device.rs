//! What the driver tells about its devices without a context: for `funicular devices`, the start-up screen and `/status`.

use std::ffi::{CStr, c_char};
use std::fmt;

use cuda_driver_sys::{CUdevice, CUdevice_attribute};
use serde::Serialize;

use super::driver::{Driver, Error, Unavailable, call};

/// One device, by its number.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    driver: Driver,
    raw: CUdevice,
}

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Description {
    /// Its number, which is the GPU's.
    pub gpu: usize,
    /// As its maker calls it.
    pub name: String,
    /// Its memory.
    pub memory_bytes: u64,
    /// As in `9.0`.
    pub compute_capability: String,
    /// Where it is, as in `0000:17:00.0`.
    pub pci_bus_id: String,
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.name, self.pci_bus_id)
    }
}

impl Driver {
    /// Device number `ordinal`.
    ///
    /// # Errors
    /// There is no such device.
    pub fn device(&self, ordinal: usize) -> Result<Device, Error> {
        let mut raw = 0;
        let number = i32::try_from(ordinal).unwrap_or(i32::MAX);
        // SAFETY: `raw` is a place for the device's handle.
        unsafe { call!(self.functions, cuDeviceGet(&mut raw, number)) }?;
        Ok(Device { driver: *self, raw })
    }

    /// All devices there are.
    ///
    /// # Errors
    /// There is none, or one can't be asked.
    pub fn descriptions(&self) -> Result<Vec<Description>, Unavailable> {
        (0..self.device_count()?)
            .map(|ordinal| Ok(self.device(ordinal)?.description(ordinal)?))
            .collect()
    }
}

impl Device {
    pub(super) fn driver(&self) -> Driver {
        self.driver
    }

    pub(super) fn raw(&self) -> CUdevice {
        self.raw
    }

    /// An attribute of the device.
    ///
    /// # Errors
    /// The driver does not know it.
    pub fn attribute(&self, attribute: CUdevice_attribute) -> Result<i32, Error> {
        let mut value = 0;
        // SAFETY: `value` is a place for the number.
        unsafe {
            call!(
                self.driver.functions,
                cuDeviceGetAttribute(&mut value, attribute, self.raw)
            )
        }?;
        Ok(value)
    }

    fn memory_bytes(&self) -> Result<u64, Error> {
        let mut bytes = 0;
        // SAFETY: `bytes` is a place for the number.
        unsafe {
            call!(
                self.driver.functions,
                cuDeviceTotalMem_v2(&mut bytes, self.raw)
            )
        }?;
        Ok(bytes as u64)
    }

    fn name(&self) -> Result<String, Error> {
        let mut text: [c_char; 256] = [0; 256];
        // SAFETY: the driver writes at most 256 bytes, the last of them a zero.
        unsafe {
            call!(
                self.driver.functions,
                cuDeviceGetName(text.as_mut_ptr(), 256, self.raw)
            )
        }?;
        Ok(owned(&text))
    }

    fn pci_bus_id(&self) -> Result<String, Error> {
        let mut text: [c_char; 32] = [0; 32];
        // SAFETY: the driver writes at most 32 bytes, the last of them a zero.
        unsafe {
            call!(
                self.driver.functions,
                cuDeviceGetPCIBusId(text.as_mut_ptr(), 32, self.raw)
            )
        }?;
        Ok(owned(&text))
    }

    /// What it is.
    ///
    /// # Errors
    /// It can't be asked.
    pub fn description(&self, gpu: usize) -> Result<Description, Error> {
        use CUdevice_attribute::{
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
        };
        let (major, minor) = (self.attribute(MAJOR)?, self.attribute(MINOR)?);
        Ok(Description {
            gpu,
            name: self.name()?,
            memory_bytes: self.memory_bytes()?,
            compute_capability: format!("{major}.{minor}"),
            pci_bus_id: self.pci_bus_id()?,
        })
    }
}

/// The text up to its zero byte, or all of it if it has none.
fn owned(text: &[c_char]) -> String {
    let bytes: Vec<u8> = text.iter().map(|byte| byte.to_ne_bytes()[0]).collect();
    let text = CStr::from_bytes_until_nul(&bytes).map_or(&bytes[..], CStr::to_bytes);
    String::from_utf8_lossy(text).into_owned()
}

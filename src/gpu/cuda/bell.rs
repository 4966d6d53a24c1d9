//! What wakes a GPU thread from the driver's own thread.

use std::ffi::c_void;

use parking_lot::{Condvar, Mutex};

use crate::clock::{self, Time};

/// Rung by the driver, heard by one GPU thread.
///
/// One is made for each GPU and never freed: a stream that hangs may ring it at any time, or never.
#[derive(Debug, Default)]
pub struct Bell {
    rung: Mutex<bool>,
    heard: Condvar,
}

impl Bell {
    /// A bell for ever.
    pub fn cast() -> &'static Bell {
        Box::leak(Box::default())
    }

    /// Waits until it is rung, or has been since the last time, but not beyond `until`.
    pub fn wait(&self, until: Time) {
        let mut rung = self.rung.lock();
        if !*rung {
            // For whatever reason this returns, the caller looks at the device.
            self.heard.wait_until(&mut rung, clock::instant(until));
        }
        *rung = false;
    }

    fn ring(&self) {
        *self.rung.lock() = true;
        self.heard.notify_one();
    }
}

/// Rings the bell `data`: what the driver is given to call.
///
/// # Safety
/// `data` is a [`Bell`] that lives.
pub(super) unsafe extern "C" fn ring(data: *mut c_void) {
    // SAFETY: the caller's promise.
    let bell = unsafe { &*data.cast_const().cast::<Bell>() };
    bell.ring();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_ring_that_came_before_is_heard_once() {
        let bell = Bell::cast();
        bell.ring();
        let long = clock::now() + Duration::from_secs(600);
        bell.wait(long);
        assert!(clock::now() < long);
        bell.wait(clock::now());
        std::thread::spawn(|| bell.ring());
        bell.wait(clock::now() + Duration::from_secs(600));
        assert!(clock::now() < long);
    }
}

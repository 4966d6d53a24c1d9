//! Streams, in which the device does one thing after the other, and events, which mark how far it is.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::rc::Rc;
use std::time::Duration;

use cuda_driver_sys::{CUevent, CUresult, CUstream, CUstream_flags_enum};

use super::bell::{self, Bell};
use super::context::{Context, complain};
use super::driver::{Error, call};
use super::memory::{DeviceBuffer, PinnedBuffer};
use super::module::{Function, Shape};

/// Whether something is finished, from what the driver says of it.
fn finished(said: Result<(), Error>) -> Result<bool, Error> {
    match said {
        Ok(()) => Ok(true),
        Err(error) if error.is(CUresult::CUDA_ERROR_NOT_READY) => Ok(false),
        Err(error) => Err(error),
    }
}

/// A mark in a stream.
#[derive(Debug)]
pub struct Event {
    context: Rc<Context>,
    raw: CUevent,
}

impl Event {
    /// A mark that was set nowhere yet. It keeps the time.
    ///
    /// # Errors
    /// The device failed.
    pub fn create(context: &Rc<Context>) -> Result<Event, Error> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is a place for the handle.
        unsafe { call!(context.functions(), cuEventCreate(&mut raw, 0)) }?;
        let context = Rc::clone(context);
        Ok(Event { context, raw })
    }

    /// Whether the device has passed where it was last set. If it was never set, it has.
    ///
    /// # Errors
    /// What the work before it did wrong, if that was so bad that the context is lost.
    pub fn is_passed(&self) -> Result<bool, Error> {
        // SAFETY: the event lives.
        finished(unsafe { call!(self.context.functions(), cuEventQuery(self.raw)) })
    }

    /// The device's time from `earlier` to this one. `None` if one of them is not passed yet. Half a microsecond off at most;
    /// zero if `earlier` is the later one.
    ///
    /// # Errors
    /// The device failed, or one of them was never set.
    pub fn since(&self, earlier: &Event) -> Result<Option<Duration>, Error> {
        let mut millis = 0_f32;
        // SAFETY: both events live, `millis` is a place for the number.
        let said = unsafe {
            call!(
                self.context.functions(),
                cuEventElapsedTime(&mut millis, earlier.raw, self.raw)
            )
        };
        let span = Duration::try_from_secs_f32(millis.max(0.0) / 1e3);
        Ok(finished(said)?.then(|| span.unwrap_or_default()))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.may_free() {
            // SAFETY: nobody else has its handle, and no stream waits for it: none has work left.
            complain(unsafe { call!(self.context.functions(), cuEventDestroy_v2(self.raw)) });
        }
    }
}

/// A queue of the device's work.
#[derive(Debug)]
pub struct Stream {
    context: Rc<Context>,
    raw: CUstream,
    not_send: PhantomData<*const ()>,
}

impl Stream {
    /// An empty one, independent of all others.
    ///
    /// # Errors
    /// The device failed.
    pub fn create(context: &Rc<Context>) -> Result<Stream, Error> {
        let mut raw = std::ptr::null_mut();
        let flags = CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: `raw` is a place for the handle.
        unsafe { call!(context.functions(), cuStreamCreate(&mut raw, flags)) }?;
        context.adopt(raw);
        Ok(Stream {
            context: Rc::clone(context),
            raw,
            not_send: PhantomData,
        })
    }

    /// Sets `event` behind all that was queued here.
    ///
    /// # Errors
    /// The device failed.
    pub fn record(&self, event: &Event) -> Result<(), Error> {
        // SAFETY: stream and event live and are of one context: this thread has no other.
        unsafe { call!(self.context.functions(), cuEventRecord(event.raw, self.raw)) }
    }

    /// Lets what is queued from now on begin only when `event` is passed.
    ///
    /// # Errors
    /// The device failed.
    pub fn wait_for(&self, event: &Event) -> Result<(), Error> {
        // SAFETY: as in `record`.
        unsafe {
            call!(
                self.context.functions(),
                cuStreamWaitEvent(self.raw, event.raw, 0)
            )
        }
    }

    /// Queues the copy of the first `bytes` bytes of `from` to the device.
    ///
    /// # Errors
    /// The device failed.
    ///
    /// # Panics
    /// If one of them is shorter.
    ///
    /// # Safety
    /// `from` is not changed before the device has passed an event that is set behind this.
    pub unsafe fn upload(
        &self,
        to: &DeviceBuffer,
        from: &PinnedBuffer,
        bytes: usize,
    ) -> Result<(), Error> {
        let (to, from) = (to.at(0, bytes), from.pointer(bytes));
        // SAFETY: both have that many bytes, and live until no stream has work left.
        unsafe {
            call!(
                self.context.functions(),
                cuMemcpyHtoDAsync_v2(to, from.cast_const(), bytes, self.raw)
            )
        }
    }

    /// Queues the copy of the first `bytes` bytes of `from` to this machine.
    ///
    /// # Errors
    /// The device failed.
    ///
    /// # Panics
    /// If one of them is shorter.
    ///
    /// # Safety
    /// `to` is not looked at before the device has passed an event that is set behind this.
    pub unsafe fn download(
        &self,
        to: &PinnedBuffer,
        from: &DeviceBuffer,
        bytes: usize,
    ) -> Result<(), Error> {
        let (to, from) = (to.pointer(bytes), from.at(0, bytes));
        // SAFETY: both have that many bytes, and live until no stream has work left.
        unsafe {
            call!(
                self.context.functions(),
                cuMemcpyDtoHAsync_v2(to, from, bytes, self.raw)
            )
        }
    }

    /// Queues the writing of `value` to `bytes` bytes of `buffer`, from byte `from`.
    ///
    /// # Errors
    /// The device failed.
    ///
    /// # Panics
    /// If `buffer` is shorter.
    pub fn fill(
        &self,
        buffer: &DeviceBuffer,
        from: usize,
        bytes: usize,
        value: u8,
    ) -> Result<(), Error> {
        if bytes == 0 {
            return Ok(());
        }
        let at = buffer.at(from, bytes);
        // SAFETY: the buffer has these bytes, and lives until no stream has work left.
        unsafe {
            call!(
                self.context.functions(),
                cuMemsetD8Async(at, value, bytes, self.raw)
            )
        }
    }

    /// Queues `blocks` blocks of `function`, whose one parameter is `argument`.
    ///
    /// # Errors
    /// The device failed, or does not take such a launch.
    ///
    /// # Safety
    /// The function has one parameter, by value, of the type `T`, and keeps to the memory that `argument` points to, which
    /// lives and is not used otherwise until the device has passed an event that is set behind this.
    pub unsafe fn launch<T: Copy>(
        &self,
        function: &Function,
        blocks: u32,
        shape: Shape,
        argument: &T,
    ) -> Result<(), Error> {
        // The driver copies the parameter before it returns; it reads it only.
        let mut parameters = [std::ptr::from_ref(argument).cast_mut().cast::<c_void>()];
        // SAFETY: the function lives, and is of this context; one parameter of the right type is what the caller promises.
        unsafe {
            call!(
                self.context.functions(),
                cuLaunchKernel(
                    function.raw(),
                    blocks,
                    1,
                    1,
                    shape.threads,
                    1,
                    1,
                    shape.shared_bytes,
                    self.raw,
                    parameters.as_mut_ptr(),
                    std::ptr::null_mut(),
                )
            )
        }
    }

    /// Rings `bell` when the device is through with all that was queued here. Not after an error that is sticky.
    ///
    /// # Errors
    /// The device failed.
    pub fn ring(&self, bell: &'static Bell) -> Result<(), Error> {
        let data = std::ptr::from_ref(bell).cast_mut().cast::<c_void>();
        // SAFETY: the function takes a bell, calls nothing of CUDA's, and the bell lives for ever.
        unsafe {
            call!(
                self.context.functions(),
                cuLaunchHostFunc(self.raw, Some(bell::ring), data)
            )
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.may_free() {
            self.context.forget(self.raw);
            // SAFETY: nobody else has its handle, and it has no work left.
            complain(unsafe { call!(self.context.functions(), cuStreamDestroy_v2(self.raw)) });
        }
    }
}

//! A context: one process's hold on one device, and the owner of everything else that is had there.
//!
//! Streams, events, memory and modules keep their context alive by counting references that are not atomic. So none of them
//! leaves the thread that made it, and none outlives its context. A thread has one context at a time, which is therefore the
//! current one whenever anything of it is used there.
//!
//! A context knows its streams. While one of them has work left, nothing of the context is given back: not memory that the
//! device may still write, nor the context itself, whose end would wait for that work. It is leaked instead, and the log
//! says so.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::rc::Rc;

use cuda_driver_sys::{CUcontext, CUctx_flags_enum, CUresult, CUstream};

use super::device::Device;
use super::driver::{Driver, Error, call};
use super::sys::Functions;

thread_local! {
    static HAS_CONTEXT: Cell<bool> = const { Cell::new(false) };
}

/// See the module's text.
#[derive(Debug)]
pub struct Context {
    driver: Driver,
    raw: CUcontext,
    streams: RefCell<Vec<CUstream>>,
    /// Found busy when something of it was to be given back.
    leaked: Cell<bool>,
    not_send: PhantomData<*const ()>,
}

impl Context {
    /// A context on `device`, current on this thread.
    ///
    /// # Errors
    /// The device can't be used now.
    ///
    /// # Panics
    /// If this thread has a context already.
    pub fn create(device: Device) -> Result<Rc<Context>, Error> {
        assert!(
            !HAS_CONTEXT.get(),
            "a thread has one context at a time, or calls would go to the wrong one"
        );
        let driver = device.driver();
        let mut raw = std::ptr::null_mut();
        // Whatever the driver itself waits for, it should not spin.
        let flags = CUctx_flags_enum::CU_CTX_SCHED_BLOCKING_SYNC as u32;
        // SAFETY: `raw` is a place for the handle, the device is one of the driver's.
        unsafe {
            call!(
                driver.functions,
                cuCtxCreate_v2(&mut raw, flags, device.raw())
            )
        }?;
        HAS_CONTEXT.set(true);
        Ok(Rc::new(Context {
            driver,
            raw,
            streams: RefCell::default(),
            leaked: Cell::new(false),
            not_send: PhantomData,
        }))
    }

    pub(super) fn functions(&self) -> &'static Functions {
        self.driver.functions
    }

    pub(super) fn adopt(&self, stream: CUstream) {
        self.streams.borrow_mut().push(stream);
    }

    pub(super) fn forget(&self, stream: CUstream) {
        self.streams.borrow_mut().retain(|known| *known != stream);
    }

    /// Free and total memory of the device in bytes.
    ///
    /// # Errors
    /// The device can't be asked.
    pub fn memory(&self) -> Result<(usize, usize), Error> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: two places for numbers.
        unsafe { call!(self.functions(), cuMemGetInfo_v2(&mut free, &mut total)) }?;
        Ok((free, total))
    }

    /// Whether no stream has work left. After a sticky error none has: the driver has given it up.
    pub fn is_quiet(&self) -> bool {
        const NOT_READY: u32 = CUresult::CUDA_ERROR_NOT_READY as u32;
        let streams = self.streams.borrow();
        // SAFETY: these streams were made in this context and not destroyed.
        let busy =
            |stream: &CUstream| unsafe { (self.functions().cuStreamQuery)(*stream) } == NOT_READY;
        !streams.iter().any(busy)
    }

    /// Whether something of this context may be given back; once it may not, nothing of it ever is.
    pub(super) fn may_free(&self) -> bool {
        if !self.leaked.get() && !self.is_quiet() {
            log::error!(
                "a CUDA context is given up with its memory: its device still works, and may write there"
            );
            self.leaked.set(true);
        }
        !self.leaked.get()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        HAS_CONTEXT.set(false);
        let done = if self.may_free() {
            // SAFETY: whatever belongs to it holds a reference to it, so nothing does any more.
            unsafe { call!(self.functions(), cuCtxDestroy_v2(self.raw)) }
        } else {
            // SAFETY: null leaves the thread without a current context.
            unsafe { call!(self.functions(), cuCtxSetCurrent(std::ptr::null_mut())) }
        };
        complain(done);
    }
}

/// For what can't be helped: something could not be given back.
pub(super) fn complain(done: Result<(), Error>) {
    if let Err(error) = done {
        // After a sticky error every call fails, those that free as well; the context takes all of it along.
        log::debug!("what is left of a CUDA context could not be given back: {error}");
    }
}

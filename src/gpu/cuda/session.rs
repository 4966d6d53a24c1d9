//! All that an executor has on its device between two resets: the context, the kernel, and for each half its buffers, its
//! stream and the marks in it.

use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use super::Plan;
use super::argument::Argument;
use super::bell::Bell;
use super::context::Context;
use super::device::Device;
use super::driver::{Driver, Error, Unavailable};
use super::layout::Layout;
use super::memory::{DeviceBuffer, PinnedBuffer};
use super::module::{Function, KernelError};
use super::stream::{Event, Stream};
use crate::clock::{self, Time};
use crate::config::keys;
use crate::config::units::bytes;
use crate::gpu::executor::Half;

/// A thread that sleeps looks at the device so often: a bell does not ring any more after an error that is sticky.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The driver can't be used.
    #[error(transparent)]
    Driver(#[from] Unavailable),
    /// The device can't be used.
    #[error(transparent)]
    Device(#[from] Error),
    /// There is no kernel.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// There is not enough memory, on the device or here.
    #[error("{0}")]
    Memory(String),
}

/// Marks in a half's stream, in the order in which its batch passes them.
#[derive(Debug)]
pub struct Marks {
    /// The copy to the device begins.
    pub up_began: Event,
    /// It is over: the staging buffer can be written again.
    pub up: Event,
    /// The kernel begins.
    pub began: Event,
    /// It is over: the device is free for the other half.
    pub ended: Event,
    /// The results are here.
    pub down: Event,
}

/// What one half has.
#[derive(Debug)]
pub struct Car {
    pub stream: Stream,
    pub marks: Marks,
    pub layout: Layout,
    pub staging: PinnedBuffer,
    pub input: DeviceBuffer,
    pub output: DeviceBuffer,
    pub results: PinnedBuffer,
}

impl Car {
    fn create(context: &Rc<Context>, plan: &Plan) -> Result<Car, SessionError> {
        let sizes = plan.sizes;
        let marks = Marks {
            up_began: Event::create(context)?,
            up: Event::create(context)?,
            began: Event::create(context)?,
            ended: Event::create(context)?,
            down: Event::create(context)?,
        };
        let device = |bytes| {
            let buffer = DeviceBuffer::allocate(context, bytes);
            buffer.map_err(|error| no_memory(&error, "the device's memory", bytes, context))
        };
        let pinned = |bytes| {
            let buffer = PinnedBuffer::allocate(context, bytes);
            buffer
                .map_err(|error| no_memory(&error, "this machine's memory, pinned", bytes, context))
        };
        Ok(Car {
            stream: Stream::create(context)?,
            marks,
            layout: Layout::default(),
            staging: pinned(sizes.input)?,
            input: device(sizes.input)?,
            output: device(sizes.output)?,
            results: pinned(sizes.output)?,
        })
    }

    /// What the kernel is given.
    pub fn argument(&self, work_us: u32) -> Argument {
        let layout = &self.layout;
        Argument {
            input: self.input.at(layout.input_at(), 0),
            input_offsets: self.input.at(0, 0),
            output: self.output.at(layout.output_at(), 0),
            output_offsets: self.input.at(layout.output_offsets_at(), 0),
            output_lengths: self.output.at(0, 0),
            statuses: self.output.at(layout.statuses_at(), 0),
            count: self.blocks(),
            work_us,
        }
    }

    /// One for each input.
    pub fn blocks(&self) -> u32 {
        u32::try_from(self.layout.count()).expect("a batch has 4,096 inputs at most")
    }
}

/// How much was asked for, how much there is, and which settings ask for less.
fn no_memory(error: &Error, of_what: &str, wanted: usize, context: &Context) -> SessionError {
    let free = context.memory().map_or_else(
        |_| "how much the device has left is not known".to_owned(),
        |(free, total)| {
            format!(
                "the device has {} of {} left",
                bytes(free as u64),
                bytes(total as u64)
            )
        },
    );
    SessionError::Memory(format!(
        "a buffer of {} in {of_what} can't be had ({error}); {free}: lower {}, {}, {} or {}, or see who else uses it",
        bytes(wanted as u64),
        keys::BATCH_MAX.flag,
        keys::INPUT_MAX_BYTES.flag,
        keys::CUDA_OUTPUT_FACTOR.flag,
        keys::CUDA_OUTPUT_EXTRA.flag,
    ))
}

/// A batch whose kernel was launched.
#[derive(Clone, Copy, Debug)]
pub struct Running {
    pub half: Half,
    pub launched: Time,
    /// It had boarded while the other half's batch ran, and left as soon as that one ended.
    pub ahead: bool,
}

/// See the module's text. What comes first is given back first.
#[derive(Debug)]
pub struct Session {
    cars: [Car; 2],
    /// Carries nothing but rings of the bell, so that none of them stands in the way of a copy.
    pub signals: Stream,
    /// Set while idle, to see whether the device still passes it.
    pub pulse: Event,
    pub pulse_set: Option<Time>,
    /// It was found late at the last look.
    pub pulse_late: bool,
    pub function: Function,
    context: Rc<Context>,
    pub running: Option<Running>,
    /// The kernel is over, the results are still to be collected.
    pub landed: Option<Running>,
    /// How long kernels usually take.
    pub usual: Duration,
}

impl Session {
    /// Takes hold of the device.
    ///
    /// # Errors
    /// See [`SessionError`].
    pub fn open(plan: &Plan) -> Result<Session, SessionError> {
        let device: Device = Driver::load()?.device(plan.ordinal)?;
        let context = Context::create(device)?;
        let function = Function::load(&context, device, &plan.image, &plan.entry, plan.shape)?;
        let session = Session {
            cars: [Car::create(&context, plan)?, Car::create(&context, plan)?],
            signals: Stream::create(&context)?,
            pulse: Event::create(&context)?,
            pulse_set: None,
            pulse_late: false,
            function,
            context,
            running: None,
            landed: None,
            usual: Duration::ZERO,
        };
        let registers = session.function.registers().unwrap_or_default();
        log::info!(
            "gpu {}: {}; {} of {} uses {registers} registers a thread, the buffers take {}",
            plan.ordinal,
            device.description(plan.ordinal)?,
            plan.entry,
            plan.image,
            bytes(plan.sizes.total() as u64)
        );
        Ok(session)
    }

    /// What `half` has.
    pub fn car(&self, half: Half) -> &Car {
        &self.cars[half.index()]
    }

    /// The same to be changed.
    pub fn car_mut(&mut self, half: Half) -> &mut Car {
        &mut self.cars[half.index()]
    }

    /// Whether the device has no work left.
    pub fn is_quiet(&self) -> bool {
        self.context.is_quiet()
    }

    /// Waits until the device has passed `mark`, at most until `until`, and says whether it has. Spins during `spin`, sleeps
    /// outside of it.
    ///
    /// # Errors
    /// The device failed.
    pub fn passes(
        &self,
        mark: &Event,
        spin: &Range<Time>,
        until: Time,
        bell: &Bell,
    ) -> Result<bool, Error> {
        loop {
            if mark.is_passed()? {
                return Ok(true);
            }
            let now = clock::now();
            if now >= until {
                return Ok(false);
            }
            if spin.contains(&now) {
                std::hint::spin_loop();
                continue;
            }
            let spins_at = if now < spin.start {
                spin.start
            } else {
                Time::MAX
            };
            bell.wait(until.min(spins_at).min(now + LOOK_EVERY));
        }
    }
}

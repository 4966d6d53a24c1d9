//! The CUDA executor: the batch function is a kernel, and the GPU thread drives the device itself.
//!
//! ```text
//!  sys      the driver's functions, found when they are needed        image    the file with the kernel (PTX is read)
//!  driver   loaded, new enough, initialised; the one error            layout   where a batch lies, what came back: pure
//!  device · context · stream · memory · module   owners, each bound to its thread and kept alive by what depends on it
//!  session  what there is between two resets                          (this)   the executor
//! ```
//!
//! Each half has a stream of its own with its copy up, its kernel and its copy down, so that the upload of one batch and the
//! download of another run beside the kernel of a third. Two kernels never run at once: the second is launched when the
//! event behind the first was seen, and its stream waits for that event besides.
//!
//! ```text
//!  half A   up · zero ─ began[kernel]ended ─ down                    up · zero ─ began[kernel]ended ─ …
//!  half B                  up · zero …           began[kernel]ended ─ down
//!                                              gap │◄─►│
//! ```
//!
//! Nothing here blocks past its time, but [`Executor::reset`] and only in the driver: no call waits for the device. A device
//! that reports an error that is sticky, or whose kernel does not end, is [`Lost`]. Its memory is given back when no stream
//! has work left, and not before: until then no reset succeeds.

mod argument;
mod bell;
mod context;
pub mod device;
pub mod driver;
pub mod image;
pub mod layout;
mod memory;
mod module;
mod session;
pub mod start;
mod stream;
mod sys;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{self, Time};
use crate::gpu::executor::{Executor, Half, Lost, Outcome};
use crate::metrics::labels::CudaPhase;
use crate::ticket::{Input, Output};

pub use self::module::Shape;

use self::bell::Bell;
use self::driver::Error;
use self::image::Image;
use self::layout::{Misfit, Rooms, Sizes};
use self::session::{Running, Session, SessionError};

/// A thread looks for the end of a kernel without sleeping from so long before it is expected, which is what a timed wait
/// may be late by,
const SPIN_BEFORE: Duration = Duration::from_micros(150);
/// until so long after. Then the bell has to wake it.
const SPIN_AFTER: Duration = Duration::from_micros(150);

/// The copy of a batch that boarded and did not leave is over by then, or the device hangs.
const COPY_MAX: Duration = Duration::from_millis(400);

/// An idle device does what it is told within this time, or it is lost.
const PULSE_MAX: Duration = Duration::from_secs(2);

/// After so many failures in a row it is said that a new process may be needed.
const RESETS_FAILED_MAX: u32 = 3;

/// What one GPU runs, and how.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The device's number.
    pub ordinal: usize,
    /// Where the kernel is.
    pub image: Arc<Image>,
    /// Its name.
    pub entry: String,
    /// How it is launched.
    pub shape: Shape,
    /// What it is told in `work_us`.
    pub work_us: u32,
    /// The room of outputs.
    pub rooms: Rooms,
    /// The sizes of the buffers of each half.
    pub sizes: Sizes,
}

/// Whom an executor reports to.
pub struct Report {
    /// Told how long a phase of a batch took.
    pub phase: Box<dyn Fn(CudaPhase, Duration) + Send>,
    /// Told what a reset is about.
    pub progress: Box<dyn Fn(&str) + Send>,
}

/// See the module's text.
pub struct Cuda {
    plan: Plan,
    report: Report,
    bell: &'static Bell,
    session: Option<Session>,
    /// It has served, so that the settings are not what is wrong.
    was_open: bool,
    resets_failed: u32,
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cuda { plan, session, .. } = self;
        f.debug_struct("Cuda")
            .field("plan", plan)
            .field("session", session)
            .finish_non_exhaustive()
    }
}

impl From<Error> for Lost {
    fn from(error: Error) -> Lost {
        let after = if error.is_sticky() {
            "; its context is lost"
        } else {
            ""
        };
        Lost(format!("{error}{after}"))
    }
}

impl From<Misfit> for Lost {
    fn from(misfit: Misfit) -> Lost {
        Lost(misfit.to_string())
    }
}

impl Executor for Cuda {
    fn stage(&mut self, half: Half, inputs: &[Input]) -> Result<(), Lost> {
        let started = clock::now();
        self.pack(half, inputs)?;
        let packed = clock::now();
        let car = self.session()?.car(half);
        let (layout, stream, marks) = (&car.layout, &car.stream, &car.marks);
        stream.record(&marks.up_began)?;
        // SAFETY: the staging buffer is written in `pack` alone, which sees first that the device has passed `up`.
        unsafe { stream.upload(&car.input, &car.staging, layout.upload_bytes()) }?;
        stream.record(&marks.up)?;
        // Behind the copy, which can run beside any kernel: these may have to wait for one that fills the device.
        stream.fill(&car.output, 0, layout.output_at(), 0xFF)?;
        stream.fill(&car.output, layout.output_at(), layout.output_bytes(), 0)?;
        (self.report.phase)(CudaPhase::Stage, packed.since(started));
        Ok(())
    }

    fn launch(&mut self, half: Half) -> Result<(), Lost> {
        let (bell, shape, work_us) = (self.bell, self.plan.shape, self.plan.work_us);
        let session = self.session()?;
        let (car, other) = (session.car(half), session.car(half.other()));
        let (stream, marks) = (&car.stream, &car.marks);
        stream.wait_for(&other.marks.ended)?;
        stream.record(&marks.began)?;
        // SAFETY: the kernel was found to take one parameter of this size; that it keeps to the interface is its author's
        // promise. Nothing else uses the half's buffers before the device has passed `down`.
        unsafe {
            stream.launch(
                &session.function,
                car.blocks(),
                shape,
                &car.argument(work_us),
            )
        }?;
        let launched = clock::now();
        stream.record(&marks.ended)?;
        session.signals.wait_for(&marks.ended)?;
        session.signals.ring(bell)?;
        // SAFETY: the results are looked at in `collect` alone, which sees first that the device has passed `down`.
        unsafe { stream.download(&car.results, &car.output, car.layout.download_bytes()) }?;
        stream.record(&marks.down)?;
        stream.ring(bell)?;
        session.running = Some(Running {
            half,
            launched,
            ahead: session.landed.is_some(),
        });
        Ok(())
    }

    fn wait(&mut self, until: Time) -> Outcome {
        let bell = self.bell;
        let session = match self.session() {
            Ok(session) => session,
            Err(lost) => return Outcome::Lost(lost),
        };
        let Some(running) = session.running else {
            return Outcome::Lost(Lost("nothing was launched".to_owned()));
        };
        let expected = running.launched + session.usual;
        let spin = expected - SPIN_BEFORE..expected + SPIN_AFTER;
        let ended = &session.car(running.half).marks.ended;
        match session.passes(ended, &spin, until, bell) {
            Ok(false) => Outcome::Pending,
            Ok(true) => {
                session.usual = (session.usual + clock::now().since(running.launched)) / 2;
                session.landed = session.running.take();
                Outcome::Ended
            }
            Err(error) => Outcome::Lost(error.into()),
        }
    }

    fn collect(&mut self, until: Time) -> Result<Vec<Result<Output, String>>, Lost> {
        let bell = self.bell;
        let session = self.session()?;
        let landed = session.landed.take();
        let landed = landed.ok_or_else(|| Lost("it has no results to collect".to_owned()))?;
        let car = session.car(landed.half);
        let now = clock::now();
        session.passes(&car.marks.down, &(now..now + SPIN_AFTER), until, bell)?;
        let bytes = car.results.bytes_after(&car.marks.down)?;
        let bytes =
            bytes.ok_or_else(|| Lost("the results did not come back in time".to_owned()))?;
        let started = clock::now();
        let results = car.layout.results(bytes);
        let demuxed = clock::now();
        (self.report.phase)(CudaPhase::Demux, demuxed.since(started));
        if let Some(session) = &self.session
            && let Err(error) = self.report_phases(session, landed)
        {
            // What the next batch's kernel did by now is told when that one is waited for; these results are here.
            log::debug!("gpu {}: no phases: {error}", self.plan.ordinal);
        }
        Ok(results)
    }

    fn check(&mut self) -> Result<(), Lost> {
        let session = self.session()?;
        let now = clock::now();
        if !session.pulse.is_passed()? {
            let late = session
                .pulse_set
                .map_or(Duration::ZERO, |set| now.since(set));
            // Where the machine stood still for so long, the device gets until the next look.
            let was_late = std::mem::replace(&mut session.pulse_late, late > PULSE_MAX);
            return if was_late && session.pulse_late {
                Err(Lost("the idle device does not react any more".to_owned()))
            } else {
                Ok(())
            };
        }
        session.signals.record(&session.pulse)?;
        (session.pulse_set, session.pulse_late) = (Some(now), false);
        Ok(())
    }

    fn reset(&mut self, _until: Time) -> Result<(), Lost> {
        if self
            .session
            .as_ref()
            .is_some_and(|session| !session.is_quiet())
        {
            let why = "the kernel of a lost batch still runs, and may write to its memory; if it never ends, restart the server";
            return Err(Lost(why.to_owned()));
        }
        // The memory has to be given back before it is asked for again.
        self.session = None;
        (self.report.progress)("loading its kernel");
        match Session::open(&self.plan) {
            Ok(session) => {
                self.session = Some(session);
                (self.was_open, self.resets_failed) = (true, 0);
                Ok(())
            }
            Err(error) => Err(self.not_reset(&error)),
        }
    }
}

impl Cuda {
    /// The executor of `plan`. The first reset takes hold of the device.
    pub fn new(plan: Plan, report: Report) -> Cuda {
        Cuda {
            plan,
            report,
            bell: Bell::cast(),
            session: None,
            was_open: false,
            resets_failed: 0,
        }
    }

    fn session(&mut self) -> Result<&mut Session, Lost> {
        let session = self.session.as_mut();
        session.ok_or_else(|| Lost("it has no hold on its device".to_owned()))
    }

    /// Packs `inputs` into the staging buffer of `half`, from which a batch that boarded and did not leave may still be copied.
    fn pack(&mut self, half: Half, inputs: &[Input]) -> Result<(), Lost> {
        let (bell, rooms, sizes) = (self.bell, self.plan.rooms, self.plan.sizes);
        let session = self.session()?;
        let now = clock::now();
        let up = &session.car(half).marks.up;
        session.passes(up, &(now..now + SPIN_AFTER), now + COPY_MAX, bell)?;
        let car = session.car_mut(half);
        let staging = car.staging.bytes_mut_after(&car.marks.up)?;
        let staging =
            staging.ok_or_else(|| Lost("a copy to the device does not end".to_owned()))?;
        Ok(car.layout.pack(inputs, rooms, sizes, staging)?)
    }

    /// The device's own times of a batch whose results are here, and the gap in front of the one that left right behind it.
    fn report_phases(&self, session: &Session, landed: Running) -> Result<(), Error> {
        let marks = &session.car(landed.half).marks;
        let mut spans = vec![
            (CudaPhase::H2d, marks.up.since(&marks.up_began)?),
            (CudaPhase::Kernel, marks.ended.since(&marks.began)?),
            (CudaPhase::D2h, marks.down.since(&marks.ended)?),
        ];
        if let Some(next) = session.running.filter(|running| running.ahead) {
            let began = &session.car(next.half).marks.began;
            spans.push((CudaPhase::Gap, began.since(&marks.ended)?));
        }
        for (phase, span) in spans {
            span.into_iter()
                .for_each(|span| (self.report.phase)(phase, span));
        }
        Ok(())
    }

    fn not_reset(&mut self, error: &SessionError) -> Lost {
        self.resets_failed += 1;
        let mut why = error.to_string();
        if self.was_open && self.resets_failed >= RESETS_FAILED_MAX {
            why.push_str(
                "; CUDA does not recover from every error inside a process: if this goes on, restart the server",
            );
        }
        Lost(why)
    }
}

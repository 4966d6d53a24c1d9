//! All GPUs of a server: they come, they are told to leave, and their seats go to others.
//!
//! A server has a fixed number of seats, which bounds everything that there is for each GPU: threads, places at the collector,
//! series of the metrics. A GPU has its seat to itself until its thread has ended, even if that blocks in its executor; its
//! number is never used again. What is left of a GPU that has gone can be looked at until another one needs the seat.
//!
//! Started with all its GPUs by [`crate::server`]. Where they are workers elsewhere, [`crate::roster`] changes them later.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;

use crate::batch::collector::Collector;
use crate::gpu::executor::MakeExecutor;
use crate::gpu::health::State;
use crate::gpu::{Driver, Gpu, GpuSettings};
use crate::metrics::Metrics;

/// See the module's text.
pub struct Fleet {
    inside: Mutex<Inside>,
    seats: usize,
    collector: Arc<Collector>,
    metrics: Arc<Metrics>,
    settings: GpuSettings,
}

struct Inside {
    seats: Vec<Option<Seated>>,
    /// The number of the GPU that comes next.
    next: usize,
}

struct Seated {
    gpu: Arc<Gpu>,
    thread: JoinHandle<()>,
}

impl Seated {
    /// Whether another may have the seat: nobody acts for this one any more.
    fn has_ended(&self) -> bool {
        self.gpu.cell().state() == State::Gone && self.thread.is_finished()
    }
}

impl Inside {
    /// The seat that the next one takes: one that nobody had, else that of whoever has gone longest.
    fn free(&self) -> Option<usize> {
        let ended = |seated: &Seated| {
            seated
                .has_ended()
                .then(|| seated.gpu.cell().look().0.since())
        };
        let free = self.seats.iter().enumerate().filter_map(|(seat, seated)| {
            let gone_since = match seated {
                None => None,
                Some(seated) => Some(ended(seated)?),
            };
            Some((gone_since, seat))
        });
        free.min().map(|(_, seat)| seat)
    }
}

impl Fleet {
    /// As many seats as `collector` knows, none taken.
    pub fn new(
        seats: usize,
        collector: Arc<Collector>,
        metrics: Arc<Metrics>,
        settings: GpuSettings,
    ) -> Fleet {
        Fleet {
            inside: Mutex::new(Inside {
                seats: (0..seats).map(|_| None).collect(),
                next: 0,
            }),
            seats,
            collector,
            metrics,
            settings,
        }
    }

    /// How many GPUs there can be at once.
    pub fn seats(&self) -> usize {
        self.seats
    }

    /// Those that are here, and those that were and whose seats nobody needed yet; in the order in which they came.
    pub fn gpus(&self) -> Vec<Arc<Gpu>> {
        let inside = self.inside.lock();
        let seated = inside.seats.iter().flatten();
        let mut gpus: Vec<_> = seated.map(|seated| Arc::clone(&seated.gpu)).collect();
        gpus.sort_unstable_by_key(|gpu| gpu.index);
        gpus
    }

    /// Whether another one finds a seat.
    pub fn has_room(&self) -> bool {
        self.inside.lock().free().is_some()
    }

    /// Whether all their threads have ended.
    pub fn has_ended(&self) -> bool {
        let inside = self.inside.lock();
        let mut seated = inside.seats.iter().flatten();
        seated.all(|seated| seated.thread.is_finished())
    }

    /// Gives the next GPU a seat and a thread, on which `make` makes its executor. It is at `worker`, or on this machine.
    ///
    /// # Errors
    /// No seat is free, or the system has no thread for it.
    pub fn add(
        &self,
        worker: Option<String>,
        make: impl FnOnce(&Arc<Gpu>) -> MakeExecutor,
    ) -> io::Result<Arc<Gpu>> {
        let mut inside = self.inside.lock();
        let seat = inside.free();
        let seat = seat.ok_or_else(|| io::Error::other("every seat is taken"))?;
        if let Some(before) = inside.seats[seat].take() {
            self.metrics.forget_gpu(before.gpu.index);
        }
        let number = inside.next;
        let gpu = Gpu::new(number, Arc::clone(&self.collector), &self.metrics);
        let gpu = Arc::new(gpu.seated(seat, worker));
        self.collector.open(seat);
        let (make, settings) = (make(&gpu), self.settings.clone());
        let driven = Arc::clone(&gpu);
        let thread = thread::Builder::new().name(format!("gpu-{number}"));
        let thread = thread
            .spawn(move || Driver::new(driven, make(), settings).run())
            .inspect_err(|_| self.metrics.forget_gpu(number))?;
        inside.next += 1;
        inside.seats[seat] = Some(Seated {
            gpu: Arc::clone(&gpu),
            thread,
        });
        Ok(gpu)
    }
}

impl fmt::Debug for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.gpus()).finish()
    }
}

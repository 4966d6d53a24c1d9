//! What makes each GPU's executor, and what all of them share.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::{Core, StartError};
use crate::config::{Config, CudaConfig, ExecutorConfig, Role};
use crate::gpu::cuda::device::Description;
use crate::gpu::cuda::image::Image;
use crate::gpu::cuda::{self, Cuda, Plan};
use crate::gpu::executor::MakeExecutor;
use crate::gpu::faults::{Fault, Script};
use crate::gpu::python::Python;
use crate::gpu::python::strays::Guard;
use crate::gpu::remote::{Remote, Target, Worker};
use crate::gpu::simulated::Simulated;
use crate::gpu::{Gpu, GpuSettings};
use crate::ticket::Input;

/// Time for what was before a reset to be cleared away.
const CLEARING_MAX: Duration = Duration::from_secs(30);
/// CUDA's driver compiles PTX; a large file takes minutes.
const COMPILING_MAX: Duration = Duration::from_secs(300);

/// What the executors of all GPUs share.
pub(super) struct Executors {
    script: Arc<Script>,
    /// The file with the kernel, if the executor is CUDA's.
    kernel: Option<Arc<Image>>,
    /// Sees to what user code leaves behind, if the executor is Python's.
    _guard: Option<Guard>,
}

impl Executors {
    /// Reads what has to be read.
    ///
    /// # Errors
    /// [`StartError::Kernel`].
    pub(super) fn prepare(config: &Config) -> Result<Executors, StartError> {
        let kernel = config.executor.cuda().map(CudaConfig::image).transpose();
        Ok(Executors {
            script: Arc::new(Script::new(config.gpus, scripted(&config.executor))),
            _guard: config.executor.python().and_then(|_| guard()),
            kernel: kernel.map_err(StartError::Kernel)?.map(Arc::new),
        })
    }

    /// Where the admin plane may add faults; none if it may not.
    pub(super) fn open_script(&self, config: &Config) -> Option<Arc<Script>> {
        let simulated = config.executor.simulated();
        let is_open = simulated.is_some_and(|simulated| simulated.faults_admin);
        is_open.then(|| Arc::clone(&self.script))
    }

    /// What makes the executor of `gpu`, on its thread.
    fn make(&self, config: &Config, gpu: &Arc<Gpu>) -> MakeExecutor {
        let index = gpu.index;
        match &config.executor {
            ExecutorConfig::Simulated(simulated) => {
                let (simulated, script) = (simulated.clone(), Arc::clone(&self.script));
                Box::new(move || Box::new(Simulated::new(simulated, index, script)))
            }
            ExecutorConfig::Python(python) => {
                let (python, gpu) = (python.clone(), Arc::clone(gpu));
                let note = move |text: &str| gpu.cell().note(text);
                let most = output_max(config);
                Box::new(move || Box::new(Python::new(python, index, most, Box::new(note))))
            }
            ExecutorConfig::Cuda(cuda) => {
                let plan = self.plan(config, cuda, index);
                let plan = plan.expect("the limits were checked, and the kernel read");
                let (told, noted) = (Arc::clone(gpu), Arc::clone(gpu));
                let report = cuda::Report {
                    phase: Box::new(move |phase, span| told.recorder().cuda_phase(phase, span)),
                    progress: Box::new(move |text| noted.cell().note(text)),
                };
                Box::new(move || Box::new(Cuda::new(plan, report)))
            }
            ExecutorConfig::Remote(_) => {
                unreachable!("a worker elsewhere is no GPU of this machine, see `add_worker`")
            }
        }
    }

    fn plan(&self, config: &Config, cuda: &CudaConfig, index: usize) -> Option<Plan> {
        let limits = &config.http.limits;
        Some(Plan {
            ordinal: index,
            image: Arc::clone(self.kernel.as_ref()?),
            entry: cuda.entry.clone(),
            shape: cuda.shape,
            work_us: cuda.work_us,
            rooms: cuda.rooms(limits),
            sizes: cuda.sizes(config.batch.batch_max, limits)?,
        })
    }
}

/// The same for a GPU on another machine.
fn remote(config: &Config, target: &Target) -> MakeExecutor {
    let worker = Worker {
        target: target.clone(),
        secret: config.secret.secret.clone(),
        output_max: config.http.limits.output_max_bytes,
    };
    Box::new(move || Box::new(Remote::new(worker)))
}

impl Core {
    /// One more GPU, on this machine.
    pub(super) fn add_gpu(&self) -> io::Result<Arc<Gpu>> {
        let make = |gpu: &Arc<Gpu>| self.executors.make(&self.config, gpu);
        self.fleet.add(None, make)
    }

    /// One more GPU, on another machine.
    pub(super) fn add_worker(&self, target: &Target) -> io::Result<Arc<Gpu>> {
        let make = |_: &Arc<Gpu>| remote(&self.config, target);
        self.fleet.add(Some(target.to_string()), make)
    }
}

/// Without one the server runs as well.
fn guard() -> Option<Guard> {
    let started = Guard::start();
    let problem = |error: &io::Error| {
        log::warn!(
            "what your batch function starts in sessions of its own would outlive a server that is killed: can't start \
             the process that sees to it: {error}"
        );
    };
    started.inspect_err(problem).ok()
}

fn scripted(executor: &ExecutorConfig) -> Vec<Fault> {
    executor
        .simulated()
        .map_or_else(Vec::new, |simulated| simulated.faults.clone())
}

/// What the GPUs are, where the server drives them itself. None, where they can't be told: the GPUs' threads will say why.
pub(super) fn devices(executor: &ExecutorConfig) -> Vec<Description> {
    let cuda = executor.cuda();
    let devices = cuda.and_then(|_| cuda::start::devices().ok());
    devices.map_or_else(Vec::new, |(devices, _)| devices)
}

/// Longest time that a reset may take: what the executor asks for its start, and a moment to clear away what was before.
fn reset_max(config: &ExecutorConfig) -> Duration {
    let start_max = match config {
        ExecutorConfig::Simulated(simulated) => simulated.cold_start,
        ExecutorConfig::Python(python) => python.start_timeout,
        ExecutorConfig::Cuda(_) => COMPILING_MAX,
        ExecutorConfig::Remote(_) => Duration::ZERO,
    };
    start_max + CLEARING_MAX
}

/// Longest output, in bytes. What is too long for a caller is for the server to judge that sent the batch.
fn output_max(config: &Config) -> usize {
    match config.role {
        Role::Worker => usize::MAX,
        Role::Server => config.http.limits.output_max_bytes,
    }
}

/// What GPU threads go by.
pub(super) fn gpu_settings(config: &Config) -> GpuSettings {
    let is_worker = config.role == Role::Worker;
    GpuSettings {
        batch_timeout: config.batch_timeout,
        reset_max: reset_max(&config.executor),
        output_max: output_max(config),
        canary: Input::new(config.canary.as_str()),
        search: !is_worker,
    }
}

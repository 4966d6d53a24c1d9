//! The CUDA executor's settings, and what can be said about them on this machine before a GPU thread starts.

use std::path::PathBuf;

use super::raw::{Origin, RawConfig, origin};
use super::units::bytes;
use super::values::ExecutorKind;
use super::{Config, ConfigError, ExecutorConfig, HttpLimits, Machine, Refusal, defaults};
use crate::gpu::cuda::Shape;
use crate::gpu::cuda::image::Image;
use crate::gpu::cuda::layout::{Rooms, Sizes};
use crate::gpu::cuda::start;

/// The kernel that runs unless another one is named.
pub const ENTRY: &str = "batchstring";

/// The CUDA executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaConfig {
    /// The file with the kernel; none is the bundled one.
    pub module: Option<PathBuf>,
    /// The kernel's name there.
    pub entry: String,
    /// How it is launched.
    pub shape: Shape,
    /// An output's room is so many times its input's length,
    pub output_factor: usize,
    /// and so many bytes more.
    pub output_extra_bytes: usize,
    /// What the kernel finds in `work_us`.
    pub work_us: u32,
}

impl Default for CudaConfig {
    fn default() -> CudaConfig {
        CudaConfig {
            module: None,
            entry: ENTRY.to_owned(),
            shape: Shape {
                threads: defaults::CUDA_BLOCK.default,
                shared_bytes: defaults::CUDA_SHARED_BYTES.default,
            },
            output_factor: defaults::CUDA_OUTPUT_FACTOR.default as usize,
            output_extra_bytes: defaults::CUDA_OUTPUT_EXTRA.default as usize,
            work_us: defaults::CUDA_WORK_US.default,
        }
    }
}

impl CudaConfig {
    /// The room of outputs.
    pub fn rooms(&self, limits: &HttpLimits) -> Rooms {
        Rooms {
            factor: self.output_factor,
            extra: self.output_extra_bytes,
            most: limits.output_max_bytes,
        }
    }

    /// The sizes of the buffers of each half; none if offsets of four bytes don't reach so far.
    pub fn sizes(&self, batch_max: usize, limits: &HttpLimits) -> Option<Sizes> {
        Sizes::needed(batch_max, limits.input_max_bytes, self.rooms(limits))
    }

    /// The kernel's file, read.
    ///
    /// # Errors
    /// It can't be read, or is no such file.
    pub fn image(&self) -> Result<Image, String> {
        Image::read(self.module.as_deref())
    }

    /// What is run, for people.
    pub fn kernel(&self) -> String {
        match &self.module {
            Some(module) => format!("{} of {}", self.entry, module.display()),
            None => format!("{} (bundled)", self.entry),
        }
    }
}

impl Machine {
    /// Asks the driver for its devices, if the executor needs any: that takes a moment.
    pub(super) fn with_devices_for(self, raw: &RawConfig) -> Machine {
        let is_asked = raw.executor_kind() == ExecutorKind::Cuda;
        Machine {
            cuda_devices: is_asked
                .then(|| start::device_count().map_err(|problem| problem.to_string())),
            ..self
        }
    }
}

impl Config {
    /// Refuses a kernel that can't run, and warns if no device can be had to try it on. The path of its file is made
    /// absolute, so that what `check` prints means the same file wherever it is saved.
    pub(super) fn with_kernel_tried(mut self, raw: &RawConfig) -> Result<Config, ConfigError> {
        let ExecutorConfig::Cuda(cuda) = &mut self.executor else {
            return Ok(self);
        };
        if let Some(module) = &mut cuda.module
            && let Ok(absolute) = std::path::absolute(&*module)
        {
            *module = absolute;
        }
        let tried = cuda
            .image()
            .and_then(|image| start::try_kernel(self.gpus, &image, &cuda.entry, cuda.shape));
        if std::env::var("CUDA_LAUNCH_BLOCKING").is_ok_and(|value| value != "0") {
            let warning = "CUDA_LAUNCH_BLOCKING is set: every launch waits for its kernel, and nothing runs beside one";
            self.warnings.push(warning.to_owned());
        }
        match tried {
            Ok(None) => {}
            Ok(Some(reason)) => self.warnings.push(format!(
                "the kernel could not be tried, since no device can be had now: {reason}"
            )),
            Err(problem) => {
                let place = place_of_kernel(raw);
                return Err(ConfigError::Refused(vec![Refusal { place, problem }]));
            }
        }
        Ok(self)
    }
}

/// The settings that say which kernel runs, and how.
fn place_of_kernel(raw: &RawConfig) -> String {
    let cuda = &raw.cuda;
    let kernel = [
        origin(&cuda.module),
        origin(&cuda.entry),
        origin(&cuda.block),
        origin(&cuda.shared_bytes),
    ];
    let given = kernel
        .into_iter()
        .filter(|origin| *origin != Origin::Default);
    let places: Vec<String> = given.map(|origin| raw.place(origin)).collect();
    if places.is_empty() {
        return raw.place(origin(&raw.executor));
    }
    places.join(" and ")
}

/// Buffers that offsets of four bytes don't reach into.
pub(super) fn contradiction(raw: &RawConfig, config: &Config) -> Option<(Vec<Origin>, String)> {
    let cuda = config.executor.cuda()?;
    let (batch_max, limits) = (config.batch.batch_max, &config.http.limits);
    if cuda.sizes(batch_max, limits).is_some() {
        return None;
    }
    let at = vec![
        origin(&raw.batch.batch_max),
        origin(&raw.limits.input_max_bytes),
        origin(&raw.limits.output_max_bytes),
        origin(&raw.cuda.output_factor),
        origin(&raw.cuda.output_extra_bytes),
    ];
    let (input, output) = (
        limits.input_max_bytes,
        cuda.rooms(limits).of(limits.input_max_bytes),
    );
    let problem = format!(
        "{batch_max} inputs of {} with outputs of {} don't fit into buffers of less than 4 GiB, which is all that a \
         kernel's offsets reach: lower one of them",
        bytes(input as u64),
        bytes(output as u64)
    );
    Some((at, problem))
}

/// What is given for another executor than the one that runs.
pub(super) fn warning(raw: &RawConfig, config: &Config) -> Option<String> {
    if config.executor.cuda().is_some() {
        return None;
    }
    let executor = config.executor.name();
    if let Some(module) = raw.cuda_module() {
        let module = module.value.display();
        return Some(format!(
            "the kernel in {module} does not run, since the executor is {executor}"
        ));
    }
    // Files often name every setting.
    let cuda = &raw.cuda;
    let all = [
        origin(&cuda.entry),
        origin(&cuda.block),
        origin(&cuda.shared_bytes),
        origin(&cuda.output_factor),
        origin(&cuda.output_extra_bytes),
        origin(&cuda.work_us),
    ];
    let typed = all.into_iter().find_map(|origin| match origin {
        Origin::Flag(flag) => Some(flag),
        Origin::File(_) | Origin::Listed(_) | Origin::Default => None,
    })?;
    Some(format!(
        "{typed} has no effect, since the executor is {executor}: add --executor cuda"
    ))
}

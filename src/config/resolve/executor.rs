//! What runs the batches, and on how many GPUs.

use std::path::PathBuf;
use std::time::Duration;

use super::Check;
use crate::config::cuda::{self, CudaConfig};
use crate::config::defaults;
use crate::config::keys;
use crate::config::python::{self, PythonConfig, Variable};
use crate::config::raw::{Given, value_or};
use crate::config::remote;
use crate::config::units::counted;
use crate::config::values::ExecutorKind;
use crate::config::{ExecutorConfig, Machine, Refusal, SimulatedConfig};
use crate::gpu::cuda::Shape;
use crate::gpu::faults::Fault;

impl Check<'_> {
    pub(super) fn executor(&mut self) -> ExecutorConfig {
        match self.raw.executor_kind() {
            ExecutorKind::Simulated => ExecutorConfig::Simulated(self.simulated()),
            ExecutorKind::Python => ExecutorConfig::Python(self.python()),
            ExecutorKind::Cuda => ExecutorConfig::Cuda(self.cuda()),
            ExecutorKind::Remote => {
                ExecutorConfig::Remote(remote::named(self.raw, &mut self.refusals))
            }
        }
    }

    /// Each worker, or each device, is a GPU, so that nobody has to count them.
    pub(super) fn gpus(&mut self, executor: &ExecutorConfig, machine: &Machine) -> usize {
        match (executor, &machine.cuda_devices) {
            (ExecutorConfig::Remote(remote), _) if self.raw.gpus.is_none() => remote.count(),
            (ExecutorConfig::Cuda(_), Some(devices)) => self.gpus_among(devices),
            _ => self.count(&self.raw.gpus, defaults::GPUS),
        }
    }

    /// The first of the devices that the driver lists, or all of them.
    fn gpus_among(&mut self, devices: &Result<usize, String>) -> usize {
        let given = &self.raw.gpus;
        let devices = match devices {
            Ok(devices) => (*devices).min(defaults::GPUS.max as usize),
            Err(problem) => {
                let problem = format!("is cuda, but {problem}");
                self.refuse(keys::EXECUTOR, &self.raw.executor, &problem);
                return 1;
            }
        };
        if given.is_none() {
            return devices;
        }
        let gpus = self.count(given, defaults::GPUS);
        if gpus > devices {
            let problem = format!(
                "is {gpus}, but the driver lists {} (see funicular devices): leave it out to use what there is",
                counted(devices as u64, "device")
            );
            self.refuse(keys::GPUS, given, &problem);
        }
        gpus
    }

    /// Left to the server, every worker could be replaced by another one at once.
    pub(super) fn seats(&mut self, executor: &ExecutorConfig, gpus: usize) -> usize {
        let setting = defaults::REMOTE_WORKERS_MAX;
        let given = self.whole_or_auto(&self.raw.remote.workers_max, setting);
        let most = given.unwrap_or_else(|| {
            let twice = u32::try_from(2 * gpus).unwrap_or(setting.max);
            twice.clamp(setting.default, setting.max)
        });
        executor.remote().map_or(gpus, |_| most as usize)
    }

    fn simulated(&mut self) -> SimulatedConfig {
        let raw = &self.raw.simulated;
        let jitter = value_or(&raw.jitter, defaults::SIM_JITTER);
        if !(0.0..=1.0).contains(&jitter) {
            let problem = format!("is {jitter}; it must be a fraction from 0 to 1 (default: 0)");
            self.refuse(keys::SIM_JITTER, &raw.jitter, &problem);
        }
        SimulatedConfig {
            latency: self.millis(&raw.latency_ms, defaults::SIM_LATENCY_MS),
            jitter: jitter.abs(),
            cold_start: self.millis(&raw.cold_start_ms, defaults::SIM_COLD_START_MS),
            faults: self.faults(),
            faults_admin: value_or(&raw.faults_admin, false),
        }
    }

    fn faults(&mut self) -> Vec<Fault> {
        let given = self.raw.simulated.faults.iter().flatten();
        let mut faults = Vec::new();
        for line in given {
            match line.value.parse() {
                Ok(fault) => faults.push(fault),
                Err(error) => self.refusals.push(Refusal {
                    place: self.raw.place(line.origin),
                    problem: format!("{} can't hold {:?}: {error}", keys::SIM_FAULTS, line.value),
                }),
            }
        }
        faults
    }

    fn python(&mut self) -> PythonConfig {
        let raw = &self.raw.python;
        let Some(target) = self.raw.python_target() else {
            let problem =
                "is python, but no batch function is named: give it as --python file.py:function";
            self.refuse(keys::EXECUTOR, &self.raw.executor, problem);
            return PythonConfig::default();
        };
        if let Some(slip) = python::slip_in(&target.value) {
            let problem = format!("is {:?}, {slip}", target.value);
            self.refuse(keys::PYTHON_TARGET, &raw.target, &problem);
        }
        let limit = self.whole(&raw.start_timeout_s, defaults::PYTHON_START_TIMEOUT_S);
        PythonConfig {
            target: self.located_target(target),
            bin: raw
                .bin
                .as_ref()
                .map_or(python::AUTO.into(), |bin| self.located_bin(bin)),
            env: self.variables(),
            start_timeout: Duration::from_secs(limit.into()),
        }
    }

    /// A file named in the configuration file is meant from where that lies.
    fn located_target(&self, target: &Given<String>) -> String {
        let text = &target.value;
        let Some(file) = python::file_of(text) else {
            return text.clone();
        };
        let given = Given {
            value: file.to_owned(),
            origin: target.origin,
        };
        let function = &text[file.as_os_str().len()..];
        format!("{}{function}", self.raw.located(&given).display())
    }

    /// A bare name is looked for as a shell does.
    fn located_bin(&self, bin: &Given<PathBuf>) -> PathBuf {
        if bin.value.components().count() > 1 {
            self.raw.located(bin)
        } else {
            bin.value.clone()
        }
    }

    fn variables(&mut self) -> Vec<Variable> {
        let given = self.raw.python.env.iter().flatten();
        let mut variables = Vec::new();
        for text in given {
            match text.value.parse() {
                Ok(variable) => variables.push(variable),
                Err(error) => self.refusals.push(Refusal {
                    place: self.raw.place(text.origin),
                    problem: format!("{} can't hold {:?}: {error}", keys::PYTHON_ENV, text.value),
                }),
            }
        }
        variables
    }

    fn cuda(&mut self) -> CudaConfig {
        let raw = &self.raw.cuda;
        let entry = value_or(&raw.entry, cuda::ENTRY.to_owned());
        if entry.is_empty() || entry.contains('\0') {
            self.refuse(
                keys::CUDA_ENTRY,
                &raw.entry,
                "is no name of a kernel (default: batchstring)",
            );
        }
        CudaConfig {
            module: self
                .raw
                .cuda_module()
                .map(|module| self.raw.located(module)),
            entry,
            shape: Shape {
                threads: self.whole(&raw.block, defaults::CUDA_BLOCK),
                shared_bytes: self.whole(&raw.shared_bytes, defaults::CUDA_SHARED_BYTES),
            },
            output_factor: self.count(&raw.output_factor, defaults::CUDA_OUTPUT_FACTOR),
            output_extra_bytes: self.count(&raw.output_extra_bytes, defaults::CUDA_OUTPUT_EXTRA),
            work_us: self.whole(&raw.work_us, defaults::CUDA_WORK_US),
        }
    }
}

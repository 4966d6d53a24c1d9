//! The usual `process_*` metrics: the process collector of the `prometheus` crate, with a finer CPU time.

use prometheus::proto;

/// Reads the process's own numbers.
#[derive(Debug)]
pub(in crate::metrics) struct Process {
    #[cfg(target_os = "linux")]
    collector: prometheus::process_collector::ProcessCollector,
}

impl Process {
    pub(in crate::metrics) fn new() -> Process {
        Process {
            #[cfg(target_os = "linux")]
            collector: prometheus::process_collector::ProcessCollector::for_self(),
        }
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn families(&self) -> Vec<proto::MetricFamily> {
        Vec::new()
    }

    /// The collector's metrics, with the CPU time in place of its whole seconds: what a thousand requests cost can't be
    /// told from those.
    #[cfg(target_os = "linux")]
    pub(super) fn families(&self) -> Vec<proto::MetricFamily> {
        use prometheus::core::Collector;
        let mut families = self.collector.collect();
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let seconds = cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9;
        let cpu_family = families
            .iter_mut()
            .find(|family| family.name() == "process_cpu_seconds_total");
        if let Some(metric) = cpu_family.and_then(|family| family.mut_metric().first_mut()) {
            let mut value = proto::Counter::default();
            value.set_value(seconds);
            metric.set_counter(value);
        }
        families
    }
}

//! What the machine lends this process: cores, descriptors, memory mappings.
//!
//! Read once at start and handed to [`Config::resolve`](super::Config::resolve) as plain numbers, so that the limits
//! derived from them can be tested for machines that are not at hand.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The kernel's default for `vm.max_map_count`, taken where the true value can't be read.
const MEMORY_MAPS_DEFAULT: u64 = 65_530;

/// Twice what the most connections ever allowed would need. Hard limits of a milliard are common, and whatever
/// inherits such a soft limit may walk all of it (older tools close every possible descriptor one by one).
const OPEN_FILES_WANTED: u64 = 65_536;

/// The resources that limits are derived from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The cores that this process may run on, by the kernel's number, ascending.
    pub cores: Vec<usize>,
    /// The most descriptors that this process may have open (`ulimit -n`).
    pub open_files: u64,
    /// The most memory mappings that a process may have (`vm.max_map_count`).
    pub memory_maps: u64,
    /// The devices that CUDA's driver lists, or why it lists none. None where nobody needs to know.
    pub cuda_devices: Option<Result<usize, String>>,
}

impl Machine {
    /// Reads the limits of this process as they stand. Call it before any thread is pinned: the cores are those that
    /// the calling thread may run on.
    pub fn read() -> Machine {
        let mut cores: Vec<usize> = core_affinity::get_core_ids()
            .unwrap_or_default()
            .into_iter()
            .map(|core| core.id)
            .collect();
        cores.sort_unstable();
        Machine {
            cores,
            open_files: open_files(),
            memory_maps: memory_maps(),
            cuda_devices: None,
        }
    }
}

fn open_files() -> u64 {
    // None stands for "no limit".
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

fn memory_maps() -> u64 {
    std::fs::read_to_string("/proc/sys/vm/max_map_count")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(MEMORY_MAPS_DEFAULT)
}

/// Raises this process's soft limit of open descriptors as far as the hard limit lets it, up to what a server can
/// use. Called by `main` before the configuration is resolved.
///
/// Where the kernel refuses, the soft limit stays, and the number of connections is derived from that.
pub fn raise_open_files_limit() {
    let limit = getrlimit(Resource::Nofile);
    let reachable = limit.maximum.unwrap_or(u64::MAX).min(OPEN_FILES_WANTED);
    if limit.current.is_some_and(|current| current < reachable) {
        let raised = Rlimit {
            current: Some(reachable),
            maximum: limit.maximum,
        };
        // A refusal changes nothing: what holds is read again afterwards.
        let _ = setrlimit(Resource::Nofile, raised);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_core_and_descriptors() {
        let machine = Machine::read();
        assert!(!machine.cores.is_empty());
        assert!(machine.cores.is_sorted());
        assert!(machine.open_files > 0 && machine.memory_maps > 0);
    }

    #[test]
    fn raising_the_limit_never_lowers_it() {
        let before = open_files();
        raise_open_files_limit();
        assert!(open_files() >= before);
    }
}

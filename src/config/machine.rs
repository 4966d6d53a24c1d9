//! What the machine lends this process: cores, descriptors, memory mappings, address space.
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
    /// Bytes of address space that this process may have (`ulimit -v`).
    pub address_space_bytes: u64,
    /// The devices that CUDA's driver lists, or why it lists none. None where nobody needs to know.
    pub cuda_devices: Option<Result<usize, String>>,
    /// Bytes of memory that this process may use: the machine's, or fewer if its control group or its address space allows
    /// fewer. None where the system does not tell.
    pub memory_bytes: Option<u64>,
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
            address_space_bytes: address_space_bytes(),
            cuda_devices: None,
            memory_bytes: memory_bytes(),
        }
    }
}

fn open_files() -> u64 {
    // None stands for "no limit".
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

fn address_space_bytes() -> u64 {
    getrlimit(Resource::As).current.unwrap_or(u64::MAX)
}

fn memory_maps() -> u64 {
    std::fs::read_to_string("/proc/sys/vm/max_map_count")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(MEMORY_MAPS_DEFAULT)
}

fn memory_bytes() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let groups = read("/proc/self/cgroup");
    let limit = |folder: &str| read(&format!("/sys/fs/cgroup{folder}/memory.max"));
    // A container sees its own group at the root.
    let limits = control_group(&groups)
        .into_iter()
        .chain([""])
        .map(|folder| group_limit(&limit(folder)));
    limits
        .chain([machine_memory(&read("/proc/meminfo"))])
        .chain([getrlimit(Resource::As).current])
        .flatten()
        .min()
}

/// The folder of this process's group in the unified hierarchy, and those above it: the strictest limit holds.
fn control_group(cgroup: &str) -> Vec<&str> {
    let unified = cgroup.lines().find_map(|line| line.strip_prefix("0::"));
    let path = unified.unwrap_or_default().trim_end_matches('/');
    let ends = path.match_indices('/').map(|(end, _)| end);
    ends.skip(1)
        .chain([path.len()])
        .map(|end| &path[..end])
        .filter(|folder| !folder.is_empty())
        .collect()
}

/// Bytes, or `max`.
fn group_limit(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// From `MemTotal:  16384 kB`.
fn machine_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1 << 10)
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
    fn the_memory_is_what_the_machine_or_the_strictest_group_allows() {
        let meminfo = "MemTotal:       16384 kB\nMemFree:  7 kB\n";
        assert_eq!(machine_memory(meminfo), Some(16 << 20));
        assert_eq!(machine_memory("MemFree: 7 kB\n"), None);
        assert_eq!(
            (group_limit("1024\n"), group_limit("max\n")),
            (Some(1_024), None)
        );
        let cgroup = "1:name=x:/y\n0::/a/b/c\n";
        assert_eq!(control_group(cgroup), ["/a", "/a/b", "/a/b/c"]);
        assert!(control_group("0::/\n").is_empty() && control_group("").is_empty());
        assert!(memory_bytes().is_none_or(|bytes| bytes > 1 << 20));
    }

    #[test]
    fn raising_the_limit_never_lowers_it() {
        let before = open_files();
        raise_open_files_limit();
        assert!(open_files() >= before);
    }
}

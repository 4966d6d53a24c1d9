//! How many connections the machine has room for, from its limits as plain numbers.

use super::Machine;
use super::units::{bytes, grouped};
use crate::admin::guard::CONNECTIONS_MAX;
use crate::http::accept::REFUSALS_MAX;
use crate::http::{STACK_WORDS, STACKS_POOLED};

/// Beyond some 32,700 coroutines the spawning of one more panics with the kernel's default limits; where those are
/// higher, this is still the most that one server has been tried with.
const MOST: u64 = 30_000;
/// Every connection is one coroutine, and a coroutine's stack is two mappings: the stack and its guard page.
const MAPS_PER_CONNECTION: u64 = 2;
/// Mappings for everything else: libraries, thread stacks, the allocator, 512 pooled coroutine stacks.
const MAPS_RESERVED: u64 = 4_096;
/// Descriptors for everything else, beside those of each core and each GPU: connections that are only accepted to be
/// told that the server is full, the admin port's and one that waits there, standard streams and files.
const FILES_RESERVED: usize = REFUSALS_MAX + CONNECTIONS_MAX + 1 + 47;
/// Address space of a connection: its stack, the guard page, and 4 KiB for what it keeps on the heap.
const SPACE_PER_CONNECTION: u64 = (STACK_WORDS * size_of::<usize>()) as u64 + (8 << 10);
/// Address space of a thread: its stack and what the allocator sets aside for it, which is nearly all.
const SPACE_PER_THREAD: u64 = 70 << 20;
/// Spaces of a thread beside one for each core and each GPU, as tried under load. The program itself and the pooled stacks
/// are small beside their space.
const OTHER_THREADS: usize = 8;
/// Connections whose stacks are among the pooled ones, which are there before any connection is.
const POOLED: u64 = (STACKS_POOLED - REFUSALS_MAX - 3 * CONNECTIONS_MAX) as u64;
/// A listener, an epoll set, wake-ups.
const FILES_PER_CORE: usize = 8;
/// Pipes to a worker process, or connections to a remote worker.
const FILES_PER_GPU: usize = 8;

/// The connections that there is room for.
pub struct Room {
    /// The most that can be open at once.
    pub connections: usize,
    /// What keeps it from being more.
    pub because: String,
}

impl Room {
    /// The room that `machine` has for connections, beside what the cores and GPUs need.
    pub fn on(machine: &Machine, cores: usize, gpus: usize) -> Room {
        let files = machine
            .open_files
            .saturating_sub(files_reserved(cores, gpus));
        let maps = machine.memory_maps.saturating_sub(MAPS_RESERVED) / MAPS_PER_CONNECTION;
        let space_reserved = space_reserved(cores, gpus);
        let space = machine.address_space_bytes.saturating_sub(space_reserved);
        let stacks = (space / SPACE_PER_CONNECTION).saturating_add(POOLED);
        let connections = MOST.min(files).min(maps).min(stacks);
        let because = if connections == MOST {
            "that is the most that one server takes".to_owned()
        } else if connections == files {
            let (limit, reserved) = (machine.open_files, files_reserved(cores, gpus));
            let (limit, reserved) = (grouped(limit), grouped(reserved));
            format!("ulimit -n is {limit}, of which {reserved} are for other uses")
        } else if connections == stacks {
            let limit = machine.address_space_bytes;
            let (limit, reserved) = (bytes(limit), bytes(space_reserved.min(limit)));
            format!("ulimit -v is {limit}, of which {reserved} are for other uses")
        } else {
            let limit = grouped(machine.memory_maps);
            format!("vm.max_map_count is {limit}, and each takes {MAPS_PER_CONNECTION}")
        };
        Room {
            connections: usize::try_from(connections).expect("30,000 at most"),
            because,
        }
    }
}

fn files_reserved(cores: usize, gpus: usize) -> u64 {
    (FILES_RESERVED + FILES_PER_CORE * cores + FILES_PER_GPU * gpus) as u64
}

fn space_reserved(cores: usize, gpus: usize) -> u64 {
    (OTHER_THREADS + cores + gpus) as u64 * SPACE_PER_THREAD
}

/// The descriptors that a server may have open with this many connections, cores and GPUs.
pub fn files_needed(connections: usize, cores: usize, gpus: usize) -> u64 {
    connections as u64 + files_reserved(cores, gpus)
}

/// The memory mappings that a server may have with this many connections.
pub fn maps_needed(connections: usize) -> u64 {
    MAPS_PER_CONNECTION * connections as u64 + MAPS_RESERVED
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn room(open_files: u64, memory_maps: u64) -> Room {
        room_within(open_files, memory_maps, u64::MAX)
    }

    fn room_within(open_files: u64, memory_maps: u64, address_space_bytes: u64) -> Room {
        let machine = Machine {
            cores: vec![0, 1],
            open_files,
            memory_maps,
            address_space_bytes,
            cuda_devices: None,
            memory_bytes: Some(16 << 30),
        };
        Room::on(&machine, 2, 4)
    }

    #[test]
    fn the_scarcest_resource_decides_and_is_named() {
        let few_files = room(1_024, 65_530);
        assert_eq!(few_files.connections, 848);
        assert!(few_files.because.contains("ulimit -n is 1,024"));
        let few_maps = room(u64::MAX, 10_000);
        assert_eq!(few_maps.connections, 2_952);
        assert!(few_maps.because.contains("vm.max_map_count is 10,000"));
        let plenty = room(u64::MAX, u64::MAX);
        assert_eq!(plenty.connections, 30_000);
        assert!(plenty.because.contains("the most that one server takes"));
    }

    #[test]
    fn stacks_take_address_space_except_those_that_are_there_already() {
        let within = |bytes| room_within(u64::MAX, u64::MAX, bytes);
        let reserved = space_reserved(2, 4);
        assert_eq!(within(reserved).connections, 400);
        assert_eq!(within(0).connections, 400);
        let few = within(reserved + 1_000 * SPACE_PER_CONNECTION);
        assert_eq!(few.connections, 1_400);
        assert!(few.because.starts_with("ulimit -v is "), "{}", few.because);
        assert!(few.because.ends_with("of which 980 MiB are for other uses"));
        assert_eq!(within(1 << 40).connections, 30_000);
    }

    #[test]
    fn the_usual_kernel_limits_leave_room_for_the_most() {
        assert_eq!(room(65_536, 65_530).connections, 30_000);
    }

    #[test]
    fn no_room_is_no_connection() {
        assert_eq!(room(0, 0).connections, 0);
        assert_eq!(room(100, 65_530).connections, 0);
    }

    proptest! {
        #[test]
        fn what_there_is_room_for_fits(files in 0_u64..100_000, maps in 0_u64..200_000) {
            let room = room(files, maps);
            if room.connections > 0 {
                prop_assert!(files_needed(room.connections, 2, 4) <= files);
                prop_assert!(maps_needed(room.connections) <= maps);
            }
        }
    }
}

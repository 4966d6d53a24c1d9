//! How much memory requests may hold all together, from what the machine has.
//!
//! Each request is bounded by itself, but 20,000 connections may each have a body of 1 MiB on its way. What they hold
//! together is therefore bounded as well; see [`crate::http::budget`].

use super::keys;
use super::raw::{RawConfig, origin, value_or};
use super::units::{bytes, grouped};
use super::values::Auto;
use super::{Machine, Refusal};

/// What `auto` takes of the machine's memory: the rest is for outputs, connections, the batch function, and others.
const PART: u64 = 4;
/// `auto` is no less than this, nor than two of the largest bodies.
const LEAST_BYTES: u64 = 64 << 20;
/// Where the machine does not tell what it has.
const UNKNOWN_BYTES: u64 = 1 << 30;
/// 1 TiB.
const MOST_MIB: i64 = 1 << 20;
const MIB: u64 = 1 << 20;

/// The bytes that requests may hold together, where one body may have `body_max_bytes`. What is wrong with the setting
/// goes to `refusals`.
pub fn request_memory(
    raw: &RawConfig,
    machine: &Machine,
    body_max_bytes: usize,
    refusals: &mut Vec<Refusal>,
) -> usize {
    let given = &raw.limits.request_memory_mib;
    let body = body_max_bytes as u64;
    let Auto::Set(wanted) = value_or(given, Auto::Auto) else {
        return whole(by_itself(machine, body));
    };
    let least = i64::try_from(body.div_ceil(MIB)).unwrap_or(MOST_MIB);
    if (least..=MOST_MIB).contains(&wanted) {
        return whole(wanted.unsigned_abs() * MIB);
    }
    let (most, body) = (grouped(MOST_MIB.unsigned_abs()), bytes(body));
    refusals.push(Refusal {
        place: raw.place(origin(given)),
        problem: format!(
            "{} is {wanted}; it must be from {least} (one body may have {body}) to {most}, or auto",
            keys::REQUEST_MEMORY_MIB
        ),
    });
    whole(by_itself(machine, 0))
}

/// In whole MiB, as it is shown.
fn by_itself(machine: &Machine, body: u64) -> u64 {
    let known = machine.memory_bytes.map_or(UNKNOWN_BYTES, |all| all / PART);
    let wanted = known.max(LEAST_BYTES).max(2 * body);
    wanted.next_multiple_of(MIB)
}

fn whole(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn auto(memory_bytes: Option<u64>, body: u64) -> u64 {
        let machine = Machine {
            cores: vec![0],
            open_files: 1,
            memory_maps: 1,
            address_space_bytes: 1,
            cuda_devices: None,
            memory_bytes,
        };
        by_itself(&machine, body) / MIB
    }

    #[test]
    fn auto_is_a_quarter_of_the_machine_but_room_for_two_bodies() {
        assert_eq!(auto(Some(16 << 30), MIB), 4 << 10);
        assert_eq!(auto(Some((16 << 30) + 4), MIB), (4 << 10) + 1);
        assert_eq!(auto(Some(64 << 20), MIB), 64);
        assert_eq!(auto(Some(64 << 20), 1 << 30), 2 << 10);
        assert_eq!(auto(None, MIB), 1 << 10);
    }
}

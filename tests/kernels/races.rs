//! ThreadSanitizer over kernels whose every thread is a thread.

use crate::batch::{Batch, Content, content, room_for};
use crate::device::{Build, Device, RACE_FOUND};

/// Inputs that take every path through the kernels, in few enough blocks that each of their threads can be real.
fn batch(kernel: &'static str, block: u32, misalignment: u32) -> Batch {
    let lengths = [0, 1, 15, 33, 700, 3000];
    let inputs: Vec<_> = (0..)
        .zip(lengths)
        .map(|(i, length)| content(Content::Text, length, i))
        .collect();
    let mut rooms: Vec<_> = lengths.map(room_for).into();
    // One is too small.
    rooms[4] = 320;
    Batch {
        kernel,
        block,
        work_us: 100,
        misalignment,
        inputs,
        rooms,
    }
}

fn is_clean(build: Build, kernels: &[&'static str]) {
    let Some(mut device) = Device::start(build) else {
        return;
    };
    for &kernel in kernels {
        for (block, misalignment) in [(32, 0), (32, 7), (64, 13), (128, 4)] {
            device.run(&batch(kernel, block, misalignment));
        }
    }
    let (status, said) = device.end();
    assert!(status.success(), "{status}\n{said}");
}

#[test]
fn bundled_kernels_have_no_races() {
    is_clean(Build::Races, &["batchstring", "busy"]);
}

#[test]
fn the_example_has_no_races() {
    is_clean(Build::RacesInBlock, &["count_words"]);
}

#[test]
fn forgotten_barriers_are_found() {
    let Some(mut device) = Device::start(Build::PlantedRace) else {
        return;
    };
    device.run(&batch("count_words", 64, 0));
    let (status, said) = device.end();
    assert_eq!(status.code(), Some(RACE_FOUND), "{said}");
    assert!(said.contains("data race"), "{said}");
    assert!(said.contains("example.cu"), "{said}");
}

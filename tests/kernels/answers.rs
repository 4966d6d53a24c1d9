//! Kernels against plain references, byte for byte.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::batch::{ALIGNMENT, Batch, Content, content, room_for};
use crate::device::{Build, Device, Ran};

const MAX_LENGTH: usize = 64 * 1024;
const OK: u32 = 0;

/// What both bundled kernels answer.
fn upper(input: &[u8]) -> Vec<u8> {
    input.to_ascii_uppercase()
}

/// What the example answers.
fn words(input: &[u8]) -> Vec<u8> {
    let words = input
        .split(|&byte| byte == b' ')
        .filter(|word| !word.is_empty());
    words.count().to_string().into_bytes()
}

/// Whether `ran` is `batch` answered with `reference`, and nothing else was written.
fn check(batch: &Batch, ran: &Ran, reference: fn(&[u8]) -> Vec<u8>) {
    let answers: Vec<_> = batch.inputs.iter().map(|input| reference(input)).collect();
    let lengths: Vec<_> = answers.iter().map(|answer| answer.len() as u32).collect();
    assert_eq!(ran.lengths, lengths);
    assert_eq!(ran.statuses, vec![OK; batch.inputs.len()]);
    // A difference in megabytes helps nobody.
    let expected = batch.area(&answers);
    let differs = (0..expected.len()).find(|&at| ran.area.get(at) != Some(&expected[at]));
    if let Some(at) = differs {
        let shown = at..(at + 32).min(expected.len());
        panic!(
            "byte {at} of the output area differs, with {} inputs and rooms {:?}:\n{:?}\nshould be\n{:?}",
            batch.inputs.len(),
            batch.rooms,
            &ran.area[shown.clone()],
            &expected[shown],
        );
    }
}

/// An input and its room, small enough to be shown when a test fails.
#[derive(Clone, Copy, Debug)]
struct Shape {
    length: usize,
    room: u32,
    kind: Content,
    seed: u64,
}

fn shape() -> impl Strategy<Value = Shape> {
    let length = prop_oneof![
        2 => Just(0),
        2 => Just(1),
        8 => 0..100_usize,
        4 => (1..40_usize, -1..=1_isize).prop_map(|(vectors, off)| (16 * vectors).saturating_add_signed(off)),
        4 => 100..5000_usize,
        1 => Just(MAX_LENGTH),
        1 => 60_000..MAX_LENGTH,
    ];
    let kind = prop_oneof![
        Just(Content::Bytes),
        Just(Content::Text),
        Just(Content::Unicode)
    ];
    let room = prop_oneof![
        4 => Just(1.0),
        4 => 1.0..2.0,
        2 => 0.0..1.0,
    ];
    (length, kind, room, any::<u64>()).prop_map(|(length, kind, share, seed): (_, _, f64, _)| {
        let room = (f64::from(room_for(length)) * share) as u32;
        Shape {
            length,
            room: room / ALIGNMENT * ALIGNMENT,
            kind,
            seed,
        }
    })
}

#[derive(Clone, Debug)]
struct Shapes {
    kernel: &'static str,
    block: u32,
    work_us: u32,
    misalignment: u32,
    /// Bytes that the last room, and only it, is short of a multiple of the alignment.
    short: u32,
    inputs: Vec<Shape>,
}

fn shapes(kernels: &'static [&'static str]) -> impl Strategy<Value = Shapes> {
    let kernel = prop::sample::select(kernels);
    let block = prop_oneof![
        prop::sample::select(&[32, 64, 96, 128, 256, 512, 1024][..]),
        32..=1024_u32
    ];
    let inputs = prop_oneof![
        6 => vec(shape(), 1..=20),
        1 => vec(shape(), 1..=100),
    ];
    (kernel, block, 0..200_u32, 0..16_u32, 0..16_u32, inputs).prop_map(
        |(kernel, block, work_us, misalignment, short, inputs)| Shapes {
            kernel,
            block,
            work_us,
            misalignment,
            short,
            inputs,
        },
    )
}

impl Shapes {
    fn batch(&self) -> Batch {
        let mut rooms: Vec<_> = self.inputs.iter().map(|shape| shape.room).collect();
        if let Some(last) = rooms.last_mut() {
            *last = last.saturating_sub(self.short);
        }
        let inputs = self.inputs.iter();
        Batch {
            kernel: self.kernel,
            block: self.block,
            work_us: self.work_us,
            misalignment: self.misalignment,
            inputs: inputs
                .map(|shape| content(shape.kind, shape.length, shape.seed))
                .collect(),
            rooms,
        }
    }
}

/// Random ragged batches of `kernels` against `reference`.
fn holds(kernels: &'static [&'static str], reference: fn(&[u8]) -> Vec<u8>, cases: u32) {
    if Device::start(Build::Addresses).is_none() {
        return;
    }
    let mut runner = TestRunner::new(Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    });
    let device = std::cell::RefCell::new(None);
    let outcome = runner.run(&shapes(kernels), |shapes| {
        let batch = shapes.batch();
        // After a failure the program may be gone; smaller cases are tried with another one.
        let mut device = device.borrow_mut();
        let mut running = device
            .take()
            .or_else(|| Device::start(Build::Addresses))
            .expect("one was started before");
        let ran = running.run(&batch);
        check(&batch, &ran, reference);
        *device = Some(running);
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

#[test]
fn random_batches_come_back_in_upper_case() {
    holds(&["batchstring", "busy"], upper, 300);
}

#[test]
fn random_batches_have_their_words_counted_behind_barriers() {
    holds(&["count_words"], words, 60);
}

#[test]
fn every_short_length_in_every_alignment_and_room() {
    let Some(mut device) = Device::start(Build::Addresses) else {
        return;
    };
    for (length, misalignment) in (0..=80).flat_map(|length| (0..16).map(move |at| (length, at))) {
        let input = content(
            Content::Text,
            length,
            u64::from(misalignment) + 16 * length as u64,
        );
        for room in 0..=(room_for(length) / ALIGNMENT + 1) {
            let batch = Batch {
                kernel: "batchstring",
                block: 64,
                work_us: 0,
                misalignment,
                // The empty one is the guard: nobody writes into its room.
                inputs: vec![input.clone(), Vec::new()],
                rooms: vec![room * ALIGNMENT, ALIGNMENT],
            };
            let ran = device.run(&batch);
            check(&batch, &ran, upper);
        }
    }
}

#[test]
fn every_byte_has_its_upper_case_in_every_place_of_a_vector() {
    let Some(mut device) = Device::start(Build::Addresses) else {
        return;
    };
    let inputs: Vec<Vec<u8>> = (0..=255_u8)
        .map(|byte| {
            // Neighbours of all kinds, in case one leaks into the other.
            let neighbour = [b'a', b'z', 0xFF, 0x00][usize::from(byte) % 4];
            (0..64)
                .map(|at| if at % 5 == 0 { neighbour } else { byte })
                .collect()
        })
        .collect();
    let batch = Batch {
        kernel: "batchstring",
        block: 256,
        work_us: 0,
        misalignment: 3,
        rooms: vec![64; inputs.len()],
        inputs,
    };
    let ran = device.run(&batch);
    check(&batch, &ran, upper);
}

#[test]
fn utf_8_stays_utf_8() {
    let Some(mut device) = Device::start(Build::Addresses) else {
        return;
    };
    let text = "straße, İstanbul, ñandú, 日本語, 🚡 funicular".repeat(20);
    let batch = Batch {
        kernel: "batchstring",
        block: 256,
        work_us: 0,
        misalignment: 5,
        inputs: vec![text.clone().into_bytes()],
        rooms: vec![room_for(text.len())],
    };
    let ran = device.run(&batch);
    check(&batch, &ran, upper);
    let output = &ran.area[crate::batch::GUARD..][..text.len()];
    let output = std::str::from_utf8(output).expect("still UTF-8");
    assert!(output.starts_with("STRAßE, İSTANBUL, ñANDú, 日本語, 🚡 FUNICULAR"));
}

#[test]
fn busy_takes_its_time_and_no_processor() {
    const WORK_US: u32 = 2_000_000;
    let Some(mut device) = Device::start(Build::Addresses) else {
        return;
    };
    let inputs = vec![b"take your time".to_vec(); 100];
    let mut batch = Batch {
        kernel: "busy",
        block: 256,
        work_us: WORK_US,
        misalignment: 0,
        rooms: vec![16; inputs.len()],
        inputs,
    };
    let ran = device.run(&batch);
    check(&batch, &ran, upper);
    assert!(ran.took_us >= WORK_US, "{} µs", ran.took_us);
    // One that spins takes all of it; checked addresses cost a few hundredths.
    assert!(ran.processor_us < WORK_US / 2, "{} µs", ran.processor_us);

    batch.kernel = "batchstring";
    let ran = device.run(&batch);
    check(&batch, &ran, upper);
}

//! Right answers, whatever is in a batch and whoever wrote the kernel.

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::machine::Machine;
use crate::standin::Library;
use crate::support::{Server, in_parallel, unique};

/// PTX with an entry of these parameters, which the stand-in runs as its own kernel of that name.
pub fn ptx(entry: &str, parameters: &str) -> String {
    format!(
        "// made for a test\n.version 7.0\n.target sm_80\n.address_size 64\n\n\
         .visible .entry {entry}(\n{parameters}\n)\n{{\n\tret;\n}}\n"
    )
}

/// The one parameter that a kernel has to have.
pub const BATCH: &str = "\t.param .align 8 .b8 batch_param_0[56]";

/// A machine and a server on it that runs one of the stand-in's kernels as a user's own.
fn with_kernel(name: &str, flags: &[&str]) -> Option<(Machine, Server)> {
    let machine = Machine::new(1)?;
    let file = machine.path("kernel.ptx");
    std::fs::write(&file, ptx(name, BATCH)).expect("written");
    let file = file.display().to_string();
    let own = ["--cuda-module", &file, "--cuda-entry", name];
    let server = machine.serve(&[&own, flags].concat());
    Some((machine, server))
}

/// A text of any length and any letters.
fn random_text(random: &mut SmallRng) -> String {
    let length = match random.random_range(0..20) {
        0 => 0,
        1 => random.random_range(0..65_536),
        2..8 => random.random_range(0..2_000),
        _ => random.random_range(1..40),
    };
    let mut text = String::new();
    while text.len() < length {
        match random.random_range(0..12) {
            0 => text.push(['ß', 'é', '→', '🚠', '\u{0}', '"', '\\'][random.random_range(0..7)]),
            _ => text.push(random.random_range(' '..='~')),
        }
    }
    let mut end = length;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

#[test]
fn every_answer_is_its_callers_own_over_ragged_batches() {
    for (library, block) in [(Library::Whole, "256"), (Library::Old, "32")] {
        let Some(machine) = Machine::with_library(library, 2) else {
            return;
        };
        let flags = ["--batch-max", "16", "--cuda-block", block];
        let server = machine.serve(&flags);
        in_parallel(24, |caller| {
            let mut random = SmallRng::seed_from_u64(caller as u64);
            let mut client = server.connect();
            for _ in 0..40 {
                let text = random_text(&mut random);
                assert_eq!(client.infer(&text).output(), text.to_ascii_uppercase());
            }
        });
        let metrics = server.fresh_metrics();
        let sizes = ["0", "1"].map(|gpu| {
            let labels = [("gpu", gpu), ("outcome", "done")];
            metrics.value("funicular_batches_total", &labels)
        });
        assert!(
            sizes.iter().all(|batches| *batches > 0.0),
            "both took part: {sizes:?}"
        );
    }
}

#[test]
fn an_input_of_which_a_kernel_makes_nothing_costs_nobody_else() {
    let Some((_machine, server)) = with_kernel("moody", &[]) else {
        return;
    };
    // What the kernel does wrong, and what its caller is to read about it.
    let wrongs = [
        ("refuse", "this input is not to my taste"),
        ("forget", "the kernel has set no status"),
        ("babble", "UTF-8"),
        ("status", "status 7"),
        ("long", "--cuda-output-"),
        ("huge", "--cuda-output-"),
    ];
    in_parallel(18, |caller| {
        let mut client = server.connect();
        for _ in 0..20 {
            let text = unique("good");
            client.infer(&text).expect_output(&text);
            let (word, said) = wrongs[caller % wrongs.len()];
            let problem = client.infer(&unique(word)).expect_problem(422);
            let detail = problem["detail"].as_str().expect("a text");
            assert!(detail.contains(said), "{word}: {detail}");
        }
    });
    assert_eq!(server.metric("funicular_gpu_up", &[]), 1.0);
}

#[test]
fn outputs_may_be_longer_than_inputs_as_far_as_there_is_room() {
    let Some((_machine, server)) = with_kernel("twice", &[]) else {
        return;
    };
    let long = "x".repeat(1000);
    assert_eq!(server.infer("twice").output(), "twicetwice");
    let problem = server.infer(&long).expect_problem(422);
    let detail = problem["detail"].as_str().expect("a text");
    assert!(
        detail.contains("2000") && detail.contains("--cuda-output-factor"),
        "{detail}"
    );

    let Some((_machine, server)) = with_kernel("twice", &["--cuda-output-factor", "2"]) else {
        return;
    };
    assert_eq!(server.infer(&long).output(), long.repeat(2));
}

#[test]
fn kernels_with_barriers_and_shared_memory_run_with_any_block() {
    for block in ["1", "64", "1024"] {
        let flags = ["--cuda-block", block, "--cuda-shared-bytes", "65536"];
        let Some((_machine, server)) = with_kernel("by_shared_memory", &flags) else {
            return;
        };
        for length in [0, 1, 63, 64, 65, 1000] {
            let text = "cable car ".repeat(100)[..length].to_owned();
            server.infer(&text).expect_output(&text);
        }
    }
}

/// An ELF file as compiled kernels are in: nothing but the names of sections.
fn cubin(entry: &str) -> Vec<u8> {
    let names = format!("\0.shstrtab\0.text.{entry}\0");
    let (header, section) = (64_usize, 64_usize);
    let mut bytes = vec![0; header];
    bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    bytes[18..20].copy_from_slice(&190_u16.to_le_bytes());
    bytes.extend(names.as_bytes());
    let sections_at = bytes.len() as u64;
    bytes[40..48].copy_from_slice(&sections_at.to_le_bytes());
    for (at, number) in [(58, section), (60, 3), (62, 1)] {
        bytes[at..at + 2].copy_from_slice(&(number as u16).to_le_bytes());
    }
    for name_at in [0, 1, 11_u32] {
        let mut entry = vec![0; section];
        entry[..4].copy_from_slice(&name_at.to_le_bytes());
        entry[24..32].copy_from_slice(&(header as u64).to_le_bytes());
        bytes.extend(entry);
    }
    bytes
}

/// The same in the wrapping that holds kernels for several kinds of device.
fn fatbin(entry: &str) -> Vec<u8> {
    let inside = cubin(entry);
    let mut bytes = 0xBA55_ED50_u32.to_le_bytes().to_vec();
    bytes.extend(1_u16.to_le_bytes());
    bytes.extend(16_u16.to_le_bytes());
    bytes.extend((inside.len() as u64).to_le_bytes());
    bytes.extend(inside);
    bytes
}

#[test]
fn compiled_kernels_are_loaded_too() {
    for (name, bytes) in [
        ("model.cubin", cubin("batchstring")),
        ("model.fatbin", fatbin("batchstring")),
    ] {
        let Some(machine) = Machine::new(1) else {
            return;
        };
        let file = machine.path(name);
        std::fs::write(&file, bytes).expect("written");
        let server = machine.serve(&["--cuda-module", &file.display().to_string()]);
        let text = unique(name);
        server.infer(&text).expect_output(&text);
    }
}

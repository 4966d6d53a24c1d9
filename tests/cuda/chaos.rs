//! Random faults under traffic: every caller gets its own answer or a clear refusal, once, and in the end all is well. The
//! faults follow from `FUNICULAR_SEED`; with `FUNICULAR_FULL` there are ten times as many.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::machine::Machine;
use crate::steady::{SetWhenDropped, wait_all_back};
use crate::support::{Server, heavy, in_parallel, unique, wait_for};

const DEVICES: u32 = 3;
const CALLERS: usize = 30;

/// How many faults there are.
fn faults() -> usize {
    if std::env::var_os("FUNICULAR_FULL").is_some() {
        200
    } else {
        20
    }
}

/// A fault as tests tell the stand-in, of any kind.
fn random_fault(random: &mut SmallRng) -> String {
    let device = random.random_range(0..DEVICES);
    let nth = random.random_range(1..6);
    match random.random_range(0..10) {
        0 => format!("fail {device} cuLaunchKernel 719 {nth}"),
        1 => format!("fail {device} cuMemcpyHtoDAsync_v2 999 {nth}"),
        2 => format!("fail {device} kernel 700 {nth}"),
        3 => format!("fail {device} d2h 719 {nth}"),
        4 => format!("fail {device} cuMemAlloc_v2 2 {nth}"),
        5 => format!("hang {device} {}", random.random_range(50..900)),
        6 => format!("lose {device} 999"),
        7 => format!("mute {device} {nth}"),
        8 => format!("slow {device} d2h {}", random.random_range(0..30_000)),
        _ => format!("slow {device} kernel {}", random.random_range(0..30_000)),
    }
}

/// Tells faults, about three a second; a device that was lost is back with the next fault. More of them, and the
/// pauses between resets, which grow, would be all that is left to see.
fn trouble(machine: &Machine, seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    for _ in 0..faults() {
        machine.tell("restore *");
        let fault = random_fault(&mut random);
        machine.tell(&fault);
        thread::park_timeout(Duration::from_millis(random.random_range(50..600)));
    }
    for command in ["clear", "release *", "restore *"] {
        machine.tell(command);
    }
}

/// How many answers were good, and how many refusals.
#[derive(Debug, Default)]
struct Tally {
    good: AtomicUsize,
    refused: AtomicUsize,
}

/// Asks until `over`; counts what came back.
fn traffic(server: &Server, over: &AtomicBool, Tally { good, refused }: &Tally) {
    in_parallel(CALLERS, |_| {
        let mut client = server.connect();
        while !over.load(Ordering::Relaxed) {
            let text = unique("chaos");
            let response = client.infer(&text);
            if response.status == 200 {
                response.expect_output(&text);
                good.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            assert!([429, 503, 504].contains(&response.status), "{response:?}");
            response.expect_problem(response.status);
            refused.fetch_add(1, Ordering::Relaxed);
            // With no GPU up, refusals come as fast as they are asked for.
            thread::park_timeout(Duration::from_millis(5));
        }
        assert!(!client.has_news(), "an answer too many");
    });
}

#[test]
fn random_faults_get_nobody_a_wrong_answer_or_two() {
    let Some(machine) = Machine::new(DEVICES as usize) else {
        return;
    };
    let _alone = heavy();
    let seed = std::env::var("FUNICULAR_SEED");
    let seed = seed.map_or(1, |text| text.parse().expect("a number"));
    let machine = machine.with_faults("slow * kernel 3000");
    let flags = [
        "--batch-max",
        "8",
        "--deadline-ms",
        "5000",
        "--batch-timeout-ms",
        "auto",
    ];
    let mut server = machine.serve(&flags);
    let (over, tally) = (AtomicBool::new(false), Tally::default());
    let good = || tally.good.load(Ordering::Relaxed);
    thread::scope(|scope| {
        scope.spawn(|| traffic(&server, &over, &tally));
        let _over = SetWhenDropped(&over);
        trouble(&machine, seed);
        let (during, enough) = (good(), CALLERS);
        eprintln!(
            "{during} good answers under {} faults, seed {seed}",
            faults()
        );
        wait_for("good answers once nothing is wrong any more", || {
            good() > during + enough
        });
    });
    eprintln!("{tally:?}");
    // What failed last may be missed only now, and be retried, once.
    wait_all_back(&server);
    in_parallel(CALLERS, |_| {
        let mut client = server.connect();
        wait_for("an answer that is no refusal", || {
            let text = unique("afterwards");
            let response = client.infer(&text);
            if response.status == 200 {
                response.expect_output(&text);
            } else {
                assert!([503, 504].contains(&response.status), "{response:?}");
            }
            response.status == 200
        });
    });
    server.terminate();
    assert!(server.wait_exit().success());
}

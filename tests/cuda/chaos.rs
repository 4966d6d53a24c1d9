//! Random faults under traffic: every caller gets its own answer or a clear refusal, once, and in the end all is well. The
//! faults follow from `FUNICULAR_SEED`; with `FUNICULAR_FULL` there are ten times as many.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::machine::{Machine, wait_all_up};
use crate::support::{Server, heavy, in_parallel, unique};

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

/// Asks until `over`; how many answers were good, and how many refusals.
fn traffic(server: &Server, over: &AtomicBool) -> (usize, usize) {
    let (good, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
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
    (good.into_inner(), refused.into_inner())
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
    let mut server = machine.serve(&["--batch-max", "8", "--deadline-ms", "5000"]);
    let over = AtomicBool::new(false);
    let (good, refused) = thread::scope(|scope| {
        let traffic = scope.spawn(|| traffic(&server, &over));
        trouble(&machine, seed);
        over.store(true, Ordering::Relaxed);
        traffic
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    eprintln!(
        "{good} good answers, {refused} refused under {} faults, seed {seed}",
        faults()
    );
    assert!(good > CALLERS, "{good} good answers");
    wait_all_up(&mut server);
    in_parallel(CALLERS, |_| {
        let text = unique("afterwards");
        server.infer(&text).expect_output(&text);
    });
    server.terminate();
    assert!(server.wait_exit().success());
}

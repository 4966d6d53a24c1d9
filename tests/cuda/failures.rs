//! What goes wrong on a device under traffic: whoever had nothing to do with it must not notice, and the device comes back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::journal::{Journal, Operation};
use crate::machine::{Machine, gpus_up};
use crate::steady::{SetWhenDropped, under_traffic, wait_all_back};
use crate::support::traffic::{failed, traffic};
use crate::support::{heavy, unique, wait_for};

/// Short kernels.
const FLAGS: [&str; 6] = [
    "--cuda-entry",
    "busy",
    "--cuda-work-us",
    "5000",
    "--batch-max",
    "8",
];

/// How many ask at the same time.
const CALLERS: usize = 24;

/// How many contexts of a device were given back.
fn resets(journal: &Journal, device: u64) -> usize {
    journal
        .of_things("destroy", "context")
        .filter(|line| line["device"] == device)
        .count()
}

/// `command` hits device 0 of two under traffic: it goes down for a reason that the log gives, is reset and comes back.
fn survived(machine: &Machine, command: &str, logged: &str) {
    let server = machine.serve(&FLAGS);
    let before = resets(&machine.journal(), 0);
    under_traffic(&server, CALLERS, |_| {
        machine.tell(command);
        machine.wait_journal("a reset", |journal| resets(journal, 0) > before);
        wait_all_back(&server);
    });
    server.wait_log(logged);
    assert_eq!(
        resets(&machine.journal(), 1),
        0,
        "the other one is left alone"
    );
}

#[test]
fn a_call_that_fails_costs_a_reset_and_no_answer() {
    for function in [
        "cuLaunchKernel",
        "cuMemcpyHtoDAsync_v2",
        "cuMemcpyDtoHAsync_v2",
        "cuEventRecord",
    ] {
        let Some(machine) = Machine::new(2) else {
            return;
        };
        let _alone = heavy();
        survived(
            &machine,
            &format!("fail 0 {function} 999"),
            &format!("{}: CUDA_ERROR_UNKNOWN", &function.replace("_v2", "")),
        );
    }
}

#[test]
fn an_operation_that_fails_kills_its_context_and_costs_no_answer() {
    for (operation, code, logged) in [
        ("kernel", 700, "CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("kernel", 719, "CUDA_ERROR_LAUNCH_FAILED"),
        ("h2d", 214, "CUDA_ERROR_ECC_UNCORRECTABLE"),
        ("d2h", 719, "CUDA_ERROR_LAUNCH_FAILED"),
    ] {
        let Some(machine) = Machine::new(2) else {
            return;
        };
        let _alone = heavy();
        survived(&machine, &format!("fail 0 {operation} {code}"), logged);
    }
}

#[test]
fn a_device_that_is_lost_costs_no_answer_and_serves_again_once_it_is_back() {
    let Some(machine) = Machine::new(2) else {
        return;
    };
    let _alone = heavy();
    let server = machine.serve(&FLAGS);
    under_traffic(&server, CALLERS, |_| {
        machine.tell("lose 0");
        wait_for("the other GPU to be alone", || {
            gpus_up(&server) == [false, true]
        });
    });
    under_traffic(&server, CALLERS, |_| {
        machine.tell("restore 0");
        wait_all_back(&server);
    });
    // One that nobody uses is noticed too.
    machine.tell("lose 1");
    wait_for("the idle one to be missed", || {
        gpus_up(&server) == [true, false]
    });
    server.wait_log("CUDA_ERROR_UNKNOWN");
}

#[test]
fn a_kernel_that_hangs_costs_no_answer_and_its_device_is_reset_only_after_its_end() {
    let Some(machine) = Machine::new(2) else {
        return;
    };
    let _alone = heavy();
    let server = machine.serve(&[&FLAGS[..], &["--batch-timeout-ms", "5000"]].concat());
    let before = resets(&machine.journal(), 0);
    under_traffic(&server, CALLERS, |_| {
        machine.tell("hang 0");
        wait_for("the other GPU to be alone", || {
            gpus_up(&server) == [false, true]
        });
        server.wait_log("did not come back within");
        // It is looked at again and again, and left alone while its kernel runs.
        server.wait_log("still runs");
        assert_eq!(resets(&machine.journal(), 0), before);
    });
    under_traffic(&server, CALLERS, |_| {
        machine.tell("release 0");
        wait_all_back(&server);
    });
    let journal = machine.journal();
    let hung = journal
        .operations()
        .into_iter()
        .filter(|each| each.device == 0 && each.kind == "kernel");
    let longest = hung.max_by_key(Operation::span_ns);
    let reset = journal.of_things("destroy", "context").last();
    let reset = reset.expect("a reset")["at_ns"].as_u64();
    assert!(longest.and_then(|kernel| kernel.ended) < reset);
}

#[test]
fn a_server_with_a_kernel_that_never_ends_ends_all_the_same() {
    let Some(machine) = Machine::new(1) else {
        return;
    };
    let mut server = machine.serve(&[&FLAGS[..], &["--batch-timeout-ms", "500"]].concat());
    machine.tell("hang 0");
    let status = server.infer(&unique("hung")).status;
    assert!(status == 503 || status == 504, "{status}");
    server.terminate();
    assert!(server.wait_exit().success());
}

#[test]
fn a_batch_whose_end_nobody_announces_is_seen_all_the_same() {
    let Some(machine) = Machine::new(1) else {
        return;
    };
    let _alone = heavy();
    let server = machine.serve(&FLAGS);
    under_traffic(&server, CALLERS, |_| machine.tell("mute 0 1000000"));
    assert_eq!(gpus_up(&server), [true]);
    assert_eq!(
        server.fresh_metrics().value("funicular_retries_total", &[]),
        0.0
    );
}

#[test]
fn slow_copies_and_late_results_get_nobody_a_wrong_answer() {
    let Some(machine) = Machine::new(1) else {
        return;
    };
    let _alone = heavy();
    let server = machine.serve(&FLAGS);
    under_traffic(&server, CALLERS, |_| {
        for command in [
            "slow 0 h2d 15000",
            "slow 0 d2h 25000",
            "slow 0 hostfunc 15000",
            "slow 0 memset 5000",
        ] {
            machine.tell(command);
            let before = machine.journal().rides(0).len();
            machine.wait_journal("batches", |journal| journal.rides(0).len() > before + 5);
        }
    });
    assert_eq!(gpus_up(&server), [true]);
}

#[test]
fn a_batch_that_boards_again_does_not_disturb_the_copy_of_the_time_before() {
    let Some(machine) = Machine::new(1) else {
        return;
    };
    let _alone = heavy();
    let server = machine.serve(&[&FLAGS[..], &["--default-tier", "paid"]].concat());
    let uploads = |journal: &Journal| {
        let operations = journal.operations();
        let count = |kind| operations.iter().filter(|each| each.kind == kind).count();
        (count("h2d"), count("kernel"))
    };
    let over = AtomicBool::new(false);
    let overtake = || {
        let mut client = server.connect();
        // Spread over a batch's time.
        for pause in (0..).map(|round| Duration::from_millis(round * 37 % 150)) {
            if over.load(Ordering::Relaxed) {
                break;
            }
            let text = unique("in a hurry");
            let response = client.infer_with("X-Tier: enterprise\r\n", &text);
            if response.status == 200 {
                response.expect_output(&text);
            }
            thread::park_timeout(pause);
        }
    };
    let slow_down = || {
        machine.tell("slow 0 h2d 100000");
        // Now and then a kernel takes so much longer than the one before that whoever boarded behind it gets off again.
        let (mut slowness, mut got_off) = (0, 0);
        while got_off <= 40 {
            wait_for("one more who gets off", || {
                slowness = 60_000 - slowness;
                machine.tell(&format!("slow 0 kernel {slowness}"));
                let (before, _) = uploads(&machine.journal());
                machine.wait_journal("uploads", |journal| uploads(journal).0 > before + 2);
                let (uploads, kernels) = uploads(&machine.journal());
                let is_news = uploads - kernels > got_off;
                got_off = got_off.max(uploads - kernels);
                is_news
            });
        }
    };
    // Not all may be answered: where a machine stands still for long, such a copy is one that does not end.
    let statuses = traffic(&server, CALLERS, || {
        thread::scope(|scope| {
            // Or those who got off would board again as they were, and nobody could see a difference.
            (0..4).for_each(|_| drop(scope.spawn(overtake)));
            let _over = SetWhenDropped(&over);
            slow_down();
        });
    });
    assert!(failed(&statuses) < statuses.len());
}

#[test]
fn a_device_that_runs_out_of_memory_at_a_reset_is_tried_again() {
    let Some(machine) = Machine::new(2) else {
        return;
    };
    let _alone = heavy();
    let server = machine.serve(&FLAGS);
    under_traffic(&server, CALLERS, |_| {
        machine.tell("fail 0 cuMemAlloc_v2 2 1 3");
        machine.tell("fail 0 kernel 700");
        server.wait_log("CUDA_ERROR_OUT_OF_MEMORY");
    });
    wait_all_back(&server);
    let journal = machine.journal();
    for context in journal.of_things("destroy", "context") {
        // After the sticky error nothing could be given back; after the failed resets everything must have been.
        let dead = context["code"] != 0;
        assert!(dead || context["left_device_allocations"] == 0, "{context}");
    }
}

#[test]
fn two_devices_that_fail_in_turn_leave_one_to_serve() {
    let Some(machine) = Machine::new(2) else {
        return;
    };
    let _alone = heavy();
    let server = machine.serve(&FLAGS);
    under_traffic(&server, CALLERS, |callers| {
        for round in 0..6 {
            let device = round % 2;
            let before = resets(&machine.journal(), device);
            machine.tell(&format!("fail {device} kernel 700"));
            machine.wait_journal("a reset", |journal| resets(journal, device) > before);
            wait_all_back(&server);
            // Or the other one's failure would be the second for whoever is retried there.
            callers.wait_round();
        }
    });
}

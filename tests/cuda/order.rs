//! What is queued, and when: the loop of the executor as its driver sees it.

use crate::journal::{Journal, Operation, Ride};
use crate::machine::Machine;
use crate::steady::under_traffic;
use crate::support::{Server, heavy, in_parallel, unique};

/// Flags for batches of 8 whose kernel takes 60 ms.
const BUSY: [&str; 6] = [
    "--cuda-entry",
    "busy",
    "--cuda-work-us",
    "60000",
    "--batch-max",
    "8",
];

/// How often, of pairs of kernels that followed each other, the second one's upload was there in time and the first one's
/// results came back while the second one ran.
fn overlaps(journal: &Journal) -> (usize, usize) {
    let rides = journal.rides(0);
    let count = |holds: fn(&Ride, &Ride) -> bool| {
        rides
            .windows(2)
            .filter(|two| holds(&two[0], &two[1]))
            .count()
    };
    let ahead = count(|one, next| next.upload.ended < one.kernel.ended);
    let behind = count(|one, next| one.download.ended > next.kernel.began);
    (ahead, behind)
}

#[test]
fn uploads_and_downloads_overlap_with_the_kernels_of_the_other_half() {
    let Some(machine) = Machine::new(1) else {
        return;
    };
    let _alone = heavy();
    let machine = machine.with_faults("slow 0 d2h 20000");
    let server = machine.serve(&BUSY);
    under_traffic(&server, 24, |_| {
        machine.wait_journal("batches that overlap", |journal| {
            let (ahead, behind) = overlaps(journal);
            ahead >= 10 && behind >= 10
        });
    });
    let metrics = server.fresh_metrics();
    for phase in ["stage", "h2d", "kernel", "d2h", "demux", "gap"] {
        let labels = [("gpu", "0"), ("phase", phase)];
        let count = metrics.value("funicular_cuda_phase_seconds_count", &labels);
        assert!(count > 0.0, "{phase} was not measured");
    }
    let mean = |phase| {
        let labels = [("gpu", "0"), ("phase", phase)];
        metrics.value("funicular_cuda_phase_seconds_sum", &labels)
            / metrics.value("funicular_cuda_phase_seconds_count", &labels)
    };
    assert!(
        mean("kernel") >= 0.055 && mean("d2h") >= 0.020,
        "{} {}",
        mean("kernel"),
        mean("d2h")
    );
}

/// What a stream did from one upload to the next.
fn turns(operations: &[Operation]) -> Vec<Vec<&Operation>> {
    let mut turns: Vec<Vec<&Operation>> = Vec::new();
    for operation in operations {
        if operation.kind == "h2d" || turns.is_empty() {
            turns.push(Vec::new());
        }
        turns.last_mut().expect("pushed").push(operation);
    }
    turns
}

fn ask(server: &Server, callers: usize, rounds: usize) {
    in_parallel(callers, |_| {
        let mut client = server.connect();
        for _ in 0..rounds {
            let text = unique("order");
            client.infer(&text).expect_output(&text);
        }
    });
}

#[test]
fn each_half_has_a_stream_and_each_batch_goes_through_it_in_order() {
    let Some(machine) = Machine::new(1) else {
        return;
    };
    let server = machine.serve(&["--batch-max", "4"]);
    ask(&server, 12, 30);
    drop(server);
    let journal = machine.journal();
    let operations = journal.operations();
    let mut streams: Vec<u64> = journal
        .rides(0)
        .iter()
        .map(|ride| ride.kernel.stream)
        .collect();
    streams.sort_unstable();
    streams.dedup();
    assert_eq!(streams.len(), 2);
    for stream in &streams {
        let own: Vec<_> = operations
            .iter()
            .filter(|each| each.stream == *stream && each.ended.is_some())
            .cloned()
            .collect();
        // A later one begins only when the one before has ended: that is what a stream is, and what the rest builds on.
        assert!(
            own.windows(2)
                .all(|two| two[0].ended <= two[1].began || two[1].began.is_none())
        );
        for turn in turns(&own)
            .iter()
            .filter(|turn| turn.iter().any(|each| each.kind == "hostfunc"))
        {
            let place = |kind: &str| turn.iter().position(|each| each.kind == kind);
            let places = ["h2d", "memset", "kernel", "d2h", "hostfunc"].map(place);
            assert!(
                places.iter().all(Option::is_some) && places.is_sorted(),
                "{turn:#?}"
            );
            let count = |kind: &str| turn.iter().filter(|each| each.kind == kind).count();
            assert_eq!(
                [count("h2d"), count("kernel"), count("d2h")],
                [1, 1, 1],
                "one copy each way: {turn:#?}"
            );
            // Right in front of the kernel and right behind it stands an event: what lies between is the kernel's time.
            let kernel = place("kernel").expect("there");
            assert_eq!(
                [&*turn[kernel - 1].kind, &*turn[kernel + 1].kind],
                ["record", "record"],
                "{turn:#?}"
            );
        }
    }
    let kernels: Vec<_> = operations
        .iter()
        .filter(|each| each.kind == "kernel")
        .collect();
    assert!(kernels.len() > 80, "{} kernels", kernels.len());
    assert!(
        kernels
            .windows(2)
            .all(|two| two[0].ended <= two[1].began || two[1].began.is_none()),
        "one kernel at a time"
    );
}

#[test]
fn the_device_is_given_back_whole_at_the_end_and_a_batch_in_flight_is_answered() {
    let Some(machine) = Machine::new(2) else {
        return;
    };
    let mut server = machine.serve(&BUSY);
    let mut client = server.connect();
    let text = unique("in flight");
    client.send(crate::support::post("", &text));
    machine.wait_journal("a kernel that runs", |journal| {
        let operations = journal.operations();
        let runs = |each: &Operation| {
            each.kind == "kernel" && each.began.is_some() && each.ended.is_none()
        };
        operations.iter().any(runs)
    });
    server.terminate();
    client.response().expect_output(&text);
    assert!(server.wait_exit().success());
    let journal = machine.journal();
    let contexts: Vec<_> = journal.of_things("destroy", "context").collect();
    let made = journal.of_things("create", "context").count();
    assert_eq!((contexts.len(), made >= 2), (made, true));
    for context in contexts {
        for left in [
            "left_device_allocations",
            "left_pinned_buffers",
            "left_events",
            "left_modules",
        ] {
            assert_eq!(context[left], 0, "{context}");
        }
    }
    let exit = journal
        .events("exit")
        .last()
        .expect("the library was unloaded")
        .clone();
    assert_eq!(exit["left_contexts"], 0);
    let streams = journal.of_things("create", "stream").count();
    assert_eq!(journal.of_things("destroy", "stream").count(), streams);
}

#[test]
fn buffers_are_made_once_and_have_the_size_of_the_limits() {
    let Some(machine) = Machine::new(1) else {
        return;
    };
    let server = machine.serve(&["--batch-max", "4"]);
    let made = |journal: &Journal| {
        ["device memory", "pinned memory"].map(|what| journal.of_things("create", what).count())
    };
    let before = made(&machine.journal());
    ask(&server, 8, 30);
    assert_eq!(
        made(&machine.journal()),
        before,
        "no allocation while serving"
    );
    assert!(before.iter().all(|count| *count >= 2), "{before:?}");
}

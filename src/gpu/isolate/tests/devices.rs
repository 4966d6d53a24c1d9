//! Devices that raise on everything, hang, block or are lost in the middle of a search.

use super::*;
use crate::admission::Load;

/// A script that goes wrong on whichever GPU is the first to launch a batch of callers, and only there.
fn on_first_gpu(
    wrong: impl Fn(usize, &[String]) -> Outcome + Send + Sync + 'static,
) -> impl Fn(usize, usize, &[String]) -> Outcome + Send + Sync + 'static {
    let first = AtomicUsize::new(usize::MAX);
    move |gpu, launch, inputs| {
        if launch > 0 && inputs != [CANARY] {
            let _ = first.compare_exchange(usize::MAX, gpu, Ordering::SeqCst, Ordering::SeqCst);
        }
        if first.load(Ordering::SeqCst) == gpu {
            wrong(launch, inputs)
        } else {
            fussy(inputs)
        }
    }
}

/// Starts `rig` with `texts` waiting, so that the first GPU in service takes all of them; but what it does to them only
/// shows when the others are in service as well.
fn start_with(
    rig: &mut Rig,
    texts: &[String],
    script: impl Fn(usize, usize, &[String]) -> Outcome + Send + Sync + 'static,
) {
    rig.offer(strs(texts));
    let (collector, gpus) = (Arc::clone(&rig.collector), rig.gpus.len());
    let complete = AtomicBool::new(false);
    rig.start(move |gpu, launch, inputs| {
        while inputs != [CANARY] && !complete.load(Ordering::SeqCst) {
            complete.store(collector.capacity().healthy() == gpus, Ordering::SeqCst);
            thread::yield_now();
        }
        script(gpu, launch, inputs)
    });
}

#[test]
fn a_device_that_raises_on_everything_goes_down_and_its_callers_are_served_elsewhere() {
    let (mut rig, texts) = (Rig::new(8, 2), names("good", 8));
    start_with(
        &mut rig,
        &texts,
        on_first_gpu(|_, _| Outcome::Raised("sticky error".to_owned())),
    );
    rig.assert_answered(strs(&texts));
    let down = rig.gpus.iter().filter_map(|gpu| {
        Some(gpu.cell().look().0).filter(|health| health.why().contains("sticky"))
    });
    assert_eq!(down.count(), 1, "one GPU says why it is down");
    let totals = rig.end();
    assert_eq!(totals.isolations, [("suspect_device", 1)].into());
    assert!(totals.retries > 0);
}

#[test]
fn whoever_is_left_when_the_device_is_lost_in_mid_search_is_retried_and_the_guilty_found_there() {
    for lost_at in 2..6 {
        let (mut rig, mut texts) = (Rig::new(16, 2), names("good", 15));
        texts.push("bad".to_owned());
        let script = on_first_gpu(move |launch, inputs| match launch {
            launch if launch >= lost_at => Outcome::Lost(Lost("fell off the bus".to_owned())),
            _ => fussy(inputs),
        });
        start_with(&mut rig, &texts, script);
        rig.assert_answered(strs(&texts[..15]));
        rig.assert_rejected("bad");
        rig.end();
    }
}

#[test]
fn a_search_that_hangs_times_out_and_its_callers_are_retried() {
    let (mut rig, texts) = (Rig::new(8, 2), ["a", "b", "bad", "c"].map(str::to_owned));
    let script = on_first_gpu(|launch, inputs| {
        if launch < 3 {
            fussy(inputs)
        } else {
            Outcome::Pending
        }
    });
    start_with(&mut rig, &texts, script);
    rig.assert_answered(["a", "b", "c"]);
    rig.assert_rejected("bad");
    assert_eq!(rig.end().batches["timeout"], 1);
}

#[test]
fn an_executor_that_blocks_in_mid_search_keeps_nobody_and_its_late_results_go_nowhere() {
    let (blocks, blocked): (Sender<usize>, Receiver<usize>) = bounded(1);
    let (release, released) = bounded::<()>(0);
    let (mut rig, texts) = (Rig::new(8, 2), ["a", "b", "bad", "c"].map(str::to_owned));
    let seen = Mutex::new(0);
    let script = on_first_gpu(move |launch, inputs| {
        // The culprit stands alone, or a half of the suspects passes: the third launch blocks, once.
        if launch == 3 && std::mem::replace(&mut *seen.lock(), 1) == 0 {
            blocks.send(0).expect("the test listens");
            let _ = released.recv();
        }
        fussy(inputs)
    });
    start_with(&mut rig, &texts, script);
    blocked.recv().expect("one GPU blocks");
    let stuck = rig
        .gpus
        .iter()
        .find(|gpu| gpu.cell().look().1.is_some())
        .expect("it holds the batch");
    stuck.fail(
        "its executor blocks and does not return",
        BatchOutcome::TimedOut,
    );
    rig.assert_answered(["a", "b", "c"]);
    rig.assert_rejected("bad");
    drop(release);
    rig.end();
}

#[test]
fn capacity_has_followed_when_the_call_that_fails_a_gpu_returns() {
    let (blocks, blocked): (Sender<()>, Receiver<()>) = bounded(1);
    let (release, released) = bounded::<()>(0);
    let mut rig = Rig::new(4, 2);
    rig.start(move |_, launch, inputs| {
        if launch > 0 && inputs == ["stuck"] {
            blocks.send(()).expect("the test listens");
            let _ = released.recv();
        }
        echo(inputs)
    });
    let capacity = Arc::clone(rig.collector.capacity());
    while capacity.healthy() < 2 {
        thread::yield_now();
    }
    rig.offer(["stuck"]);
    blocked.recv().expect("one GPU blocks");
    let stuck = rig.gpus.iter().find(|gpu| gpu.cell().look().1.is_some());
    let admission = Admission::new(Rules::default());
    let load = || Load {
        waiting: [0, 0, 200],
        capacity: 1_000.0 * capacity.healthy() as f64,
        ..Load::of(rig.collector.backlog(), &capacity)
    };
    let (before, zone_before) = (capacity.per_second(), admission.zone(&load()).label());
    stuck
        .expect("it holds the batch")
        .fail("hangs", BatchOutcome::TimedOut);
    assert_eq!(capacity.healthy(), 1);
    assert!(capacity.per_second() < before, "{}", capacity.per_second());
    assert_eq!(
        (zone_before, admission.zone(&load()).label()),
        ("green", "yellow")
    );
    drop(release);
    rig.end();
}

//! More requests than the GPUs can serve, and callers that leave: who pays is served, who can't be is told at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use funicular_perf::record::Outcome;
use funicular_perf::units::Share;

use crate::load::{Latencies, Load, Scale, Seen, status};
use crate::support::{Server, Until, heavy, timed, wait_for};

const MIX: &str = "enterprise=10,paid=30,free=60";

/// The requests of a tier: how many, how many good ones, and the latencies of those.
fn tier(seen: &Seen, name: &str) -> (usize, Latencies) {
    (seen.tier(name).count(), Latencies::of_good(seen.tier(name)))
}

fn good_share(seen: &Seen, name: &str) -> f64 {
    let (all, good) = tier(seen, name);
    good.len() as f64 / all as f64
}

/// The part of those that were let in which was answered with an output.
fn admitted_share(seen: &Seen, name: &str) -> f64 {
    let admitted = seen
        .tier(name)
        .filter(|sample| sample.outcome != status(429))
        .count();
    tier(seen, name).1.len() as f64 / admitted as f64
}

fn refusals(seen: &Seen) -> Latencies {
    Latencies::of(seen.filter(|sample| sample.outcome == status(429)))
}

/// Good answers per second of capacity, from the first second on.
fn throughput(seen: &Seen, seconds: Duration, scale: Scale) -> f64 {
    let (from, to) = (1_000_000_000, seconds.as_nanos() as u64);
    let good =
        seen.filter(|sample| sample.outcome.is_good() && (from..to).contains(&sample.done_ns));
    good.count() as f64 / (seconds.as_secs_f64() - 1.0) / scale.capacity()
}

/// Whether the machine left generator and server alone in a small scenario: nothing was late, no batch took twice its time.
/// Only then does what callers see depend on the server alone.
fn was_undisturbed(server: &Server, seen: &Seen) -> bool {
    let metrics = server.fresh_metrics();
    let batches = metrics.value("funicular_batch_duration_seconds_count", &[]);
    let in_time = [("le", "0.1")];
    let in_time = metrics.value("funicular_batch_duration_seconds_bucket", &in_time);
    seen.lateness_max < Duration::from_millis(50) && batches == in_time
}

/// Runs `load` against a new server, in small size again, a few times at most, if the machine disturbed it. Gives the server,
/// what callers saw, and whether that says how many of them were served.
fn overload(scale: Scale, load: &Load) -> (Server, Seen, bool) {
    let mut tries = 0;
    loop {
        tries += 1;
        let server = scale.start(&[]);
        let seen = load.run(&server);
        let others = seen.others(&[status(200), status(429)]);
        assert_eq!(others, 0, "{}", seen.describe());
        let counts = scale.full || was_undisturbed(&server, &seen);
        if counts || tries == 3 {
            return (server, seen, counts);
        }
    }
}

/// Those who pay are served before those who don't; all of them, unless the machine was the bottleneck.
fn assert_served_by_tier(seen: &Seen, counts: bool) {
    let share = |name| good_share(seen, name);
    let [enterprise, paid, free] = ["enterprise", "paid", "free"].map(share);
    assert!(
        enterprise.min(paid) > free && free < 1.0,
        "{enterprise}, {paid}, {free}"
    );
    if counts {
        assert!(paid >= 0.999, "enterprise: {enterprise}, paid: {paid}");
    } else {
        eprintln!("the machine was the bottleneck; enterprise: {enterprise}, paid: {paid}");
    }
}

#[test]
fn at_twice_the_capacity_paying_callers_notice_nothing() {
    let _machine = heavy();
    let scale = Scale::chosen();
    let seconds = scale.seconds(30.0, 3.0);
    let load = Load::open(2.0 * scale.capacity(), seconds)
        .with(|options| options.tiers = Some(MIX.to_owned()));
    let (_server, seen, counts) = overload(scale, &load);
    assert_served_by_tier(&seen, counts);
    if counts {
        assert!(admitted_share(&seen, "free") >= 0.99);
    }
    let share = throughput(&seen, seconds, scale);
    for name in ["enterprise", "paid", "free"] {
        let (all, good) = tier(&seen, name);
        eprintln!("2x, {name}: {} of {all} good, {good}", good.len());
    }
    eprintln!(
        "2x: {:.1} % of capacity; refused within {}",
        share * 100.0,
        refusals(&seen)
    );
    if scale.full {
        let p95 = |name| tier(&seen, name).1.percentile(95.0);
        assert!(p95("enterprise") <= 190.0, "{}", p95("enterprise"));
        assert!(p95("paid") <= 200.0, "{}", p95("paid"));
        assert!(p95("free") <= 650.0, "{}", p95("free"));
        assert!(
            refusals(&seen).percentile(99.0) <= 5.0,
            "{}",
            refusals(&seen)
        );
        assert!(share >= 0.98, "{share}");
    }
}

#[test]
fn after_a_step_from_calm_to_twice_the_capacity_nobody_dies_in_the_queue() {
    let _machine = heavy();
    let scale = Scale::chosen();
    let (calm, flood) = (0.2 * scale.capacity(), 2.0 * scale.capacity());
    let (step, end) = (
        scale.seconds(5.0, 1.0).as_secs_f64(),
        scale.seconds(20.0, 3.0).as_secs_f64(),
    );
    let profile = format!("0:{calm},{step}s:{calm},{step}s:{flood},{end}s:{flood}");
    let load = Load::open(1.0, Duration::from_secs_f64(end)).with(|options| {
        (options.rate, options.profile, options.tiers) =
            (None, Some(profile), Some(MIX.to_owned()));
    });
    let (server, seen, counts) = overload(scale, &load);
    let metrics = server.fresh_metrics();
    assert_eq!(metrics.value("funicular_abandoned_total", &[]), 0.0);
    assert_served_by_tier(&seen, counts);
}

/// Resident memory of the server in bytes.
fn resident(server: &Server) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("it runs");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .expect("VmRSS");
    let kib: u64 = line
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .expect("a number");
    kib << 10
}

#[test]
fn at_ten_times_the_capacity_of_free_requests_the_server_stays_fast_and_small() {
    let _machine = heavy();
    let scale = Scale::for_a_flood();
    let seconds = scale.seconds(60.0, 3.0);
    let server = scale.start(&[]);
    // Those who are let in keep up to 0.4 s of capacity's worth of connections busy; the others must not wait for one.
    let connections = if scale.full { 6000 } else { 2000 };
    let load = Load::open(10.0 * scale.capacity(), seconds)
        .with(|options| options.connections = Some(connections));
    let (is_over, mut early, mut late) = (AtomicBool::new(false), 0, 0);
    let mut health = Vec::new();
    let opened = || {
        let metrics = server.fresh_metrics();
        metrics.value("funicular_connections_opened_total", &[]) as u64
    };
    let mut more_connections = 0;
    let seen = thread::scope(|scope| {
        let over = Until(&is_over);
        let checks = scope.spawn(|| {
            let mut client = server.connect();
            let mut took = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                let (span, answer) = timed(|| client.get("/v2/health/live"));
                assert_eq!(answer.status, 200, "{answer:?}");
                took.push(span.as_secs_f64() * 1e3);
                thread::park_timeout(Duration::from_millis(20));
            }
            took
        });
        let seen = load.run_beside(&server, |began| {
            began.wait(seconds / 4);
            let before = opened();
            early = resident(&server);
            began.wait(seconds.mul_f64(0.95));
            late = resident(&server);
            more_connections = opened() - before;
        });
        drop(over);
        health = checks.join().expect("health answers");
        seen
    });
    assert_eq!(
        seen.others(&[status(200), status(429)]),
        0,
        "{}",
        seen.describe()
    );
    health.sort_unstable_by(f64::total_cmp);
    let (p99, worst) = (health[health.len() * 99 / 100], health[health.len() - 1]);
    let admitted = Latencies::of_good(seen.samples.iter());
    let share = throughput(&seen, seconds, scale);
    eprintln!(
        "10x: {:.1} % of capacity, admitted {admitted}",
        share * 100.0
    );
    eprintln!(
        "10x: refused within {}; health p99 {p99:.1} max {worst:.1} ms",
        refusals(&seen)
    );
    eprintln!(
        "10x: {} MiB after a quarter, {} MiB near the end",
        early >> 20,
        late >> 20
    );
    // A generator that was held up opens more connections, and each has its stack.
    let allowed = early + early / 10 + (4 << 20) + (more_connections << 15);
    assert!(late < allowed, "memory grows: {early} to {late}");
    if scale.full {
        assert!(share >= 0.98, "{share}");
        assert!(admitted.percentile(95.0) <= 450.0, "{admitted}");
        assert!(p99 <= 10.0, "{p99}");
    }
}

#[test]
fn callers_that_hang_up_early_take_no_batch_slots_and_leave_no_trace() {
    let _machine = heavy();
    let scale = Scale::chosen();
    let server = scale.start(&[]);
    // Above capacity, so that batches are full and everybody has waited before a batch; those who leave, leave at once.
    let load = Load::open(1.5 * scale.capacity(), scale.seconds(15.0, 2.0)).with(|options| {
        options.hangup = Some(Share(0.2));
        options.hangup_within = Some(funicular_perf::units::Span(Duration::from_millis(5)));
    });
    let seen = load.run(&server);
    assert_eq!(
        seen.others(&[status(200), status(429), Outcome::HangUp]),
        0,
        "{}",
        seen.describe()
    );
    assert!(
        seen.count(Outcome::HangUp) > seen.samples.len() / 10,
        "{}",
        seen.describe()
    );
    wait_for_no_trace(&server);
    let served = seen.count(status(200)) as f64;
    wait_for("every slot to be accounted for", || {
        let metrics = server.metrics();
        let late = metrics.value("funicular_late_results_total", &[]);
        let answered = metrics.value("funicular_requests_total", &[("code", "200")]);
        // Whoever hung up while the answer was being written has one that was not read.
        let slots = metrics.value("funicular_slots_filled_total", &[]);
        answered >= served && slots == answered + late
    });
    let metrics = server.fresh_metrics();
    let slots = metrics.value("funicular_slots_filled_total", &[]);
    let live = served / slots;
    eprintln!(
        "20 % hang up: {:.2} % of {slots} slots were live",
        live * 100.0
    );
    assert!(metrics.value("funicular_abandoned_total", &[("reason", "gone")]) > 0.0);
    // Where the machine holds up who hangs up, they do so when their batch has left.
    assert!(live >= 0.99 || !scale.full, "{live}");
    // And with hang-ups at any time, in mid-batch too.
    let load = Load::open(0.9 * scale.capacity(), scale.seconds(10.0, 2.0)).with(|options| {
        options.hangup = Some(Share(0.2));
    });
    let seen = load.run(&server);
    assert_eq!(
        seen.others(&[status(200), status(429), Outcome::HangUp]),
        0,
        "{}",
        seen.describe()
    );
    wait_for_no_trace(&server);
}

/// Those who have left stand in no gauge, as soon as the server has noticed.
fn wait_for_no_trace(server: &Server) {
    let gauges = [
        "funicular_queue_depth",
        "funicular_retry_queue_depth",
        "funicular_connections",
    ];
    wait_for("every gauge to be 0", || {
        let metrics = server.metrics();
        gauges.iter().all(|gauge| metrics.value(gauge, &[]) == 0.0)
    });
}

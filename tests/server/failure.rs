//! GPUs, executors and batch functions that fail under load, and what callers see of it: nothing, or a clear error.

use std::time::Duration;

use funicular::clock;
use funicular_perf::record::{Outcome, Sample};
use funicular_perf::units::Span;
use rustix::process::Signal;

use crate::load::{Latencies, Load, Scale, Seen, status};
use crate::support::server::{HOLDABLE, PATIENT};
use crate::support::traffic::wait_answered;
use crate::support::{Client, Server, heavy, light, post, timed, unique, wait_for, wait_some};

/// What the batch function does not take.
const POISON: &str = "poison";

/// How long the load of a small scenario may go on at most; what happens in it ends it.
const LONG: f64 = 120.0;

fn wait_up(server: &Server, gpus: usize) {
    wait_for("every GPU to be up", || {
        server.metric("funicular_gpu_up", &[]) as usize == gpus
    });
}

/// Waits until a line with `text` was logged so many times.
fn wait_logged(server: &Server, text: &str, times: usize) {
    wait_for(text, || server.log().matches(text).count() >= times);
}

/// Runs small load until there is a run in which everybody is served, as ever.
fn wait_all_served(server: &Server, scale: Scale) -> Seen {
    let load = Load::open(scale.usual_load(), Duration::from_secs(1));
    wait_some("everybody to be served", || {
        Some(load.run(server)).filter(|seen| seen.others(&[status(200)]) == 0)
    })
}

fn is_ready(server: &Server) -> bool {
    server.get("/v2/health/ready").status == 200
}

/// Requests that nobody waits for any more stand in no gauge.
fn assert_nobody_waits(server: &Server) {
    let metrics = server.fresh_metrics();
    for gauge in ["funicular_queue_depth", "funicular_retry_queue_depth"] {
        assert_eq!(metrics.value(gauge, &[]), 0.0, "{gauge}");
    }
}

/// One GPU of four fails by `fault` in mid-batch at 70 % load: no caller sees an error, those whose batch was lost wait
/// little longer, and the GPU serves again.
/// A GPU fails as scripted, which the log calls `why`. In full size the slowest percent of those who are retried wait `p99` ms at
/// most.
fn one_gpu_fails(fault: &str, why: &str, p99: f64) {
    let _machine = heavy();
    let scale = Scale::chosen();
    let mut server = scale.start_patient(&[]);
    let load = Load::open(scale.usual_load(), scale.seconds(20.0, LONG));
    let seen = load.run_until(&server, |began| {
        began.wait(scale.seconds(5.0, 0.5));
        server.script(fault);
        server.wait_log(why);
        scale.go_on(&server, began, 20.0);
    });
    assert_eq!(seen.others(&[status(200)]), 0, "{}", seen.describe());
    let metrics = server.fresh_metrics();
    let retries = metrics.value("funicular_retries_total", &[]);
    assert!(retries > 0.0, "the batch was not lost in the middle");
    assert_eq!(
        metrics
            .value("funicular_batch_launches_total", &[("reason", "retry")])
            .min(1.0),
        1.0
    );
    wait_up(&server, 4);
    assert_nobody_waits(&server);
    assert_eq!(server.end().matches(why).count(), 1, "said once");
    // Whoever was retried is among the slowest, so these bounds hold for the retried if they hold for them.
    let retried = Latencies::of_good(seen.samples.iter()).worst(retries as usize);
    eprintln!("{fault}: {retries} retried, at most {retried}");
    if scale.full {
        assert!(
            retried.percentile(99.0) <= p99 && retried.max() <= 1200.0,
            "{retried}"
        );
    }
}

#[test]
fn a_gpu_lost_in_mid_batch_costs_no_caller_an_error() {
    one_gpu_fails(
        "kind=lost&gpu=1",
        "gpu 1 is down: the device is lost",
        900.0,
    );
}

#[test]
fn a_gpu_that_hangs_in_mid_batch_costs_no_caller_an_error() {
    one_gpu_fails(
        "kind=hang&gpu=1",
        "gpu 1 is down: a batch did not come back within",
        900.0,
    );
}

#[test]
fn a_gpu_thread_that_panics_costs_no_caller_an_error() {
    one_gpu_fails(
        "kind=panic&gpu=1",
        "gpu 1 is down: its thread panicked",
        900.0,
    );
}

#[test]
fn an_executor_that_does_not_return_is_given_up_by_the_watchdog() {
    // The watchdog grants a thread that does not come back by itself a tenth of a second more.
    one_gpu_fails(
        "kind=block&gpu=1&ms=4000",
        "gpu 1 is down: its executor blocks",
        1000.0,
    );
}

#[test]
fn a_gpu_that_flaps_is_backed_off_and_costs_no_caller_an_error() {
    let _machine = heavy();
    let scale = Scale::chosen();
    let mut server = scale.start_patient(&[]);
    // Every fifth batch is lost, its canaries included.
    server.script("kind=lost&gpu=2&batch=3&every=5");
    let seen = Load::open(0.5 * scale.capacity(), scale.seconds(20.0, 2.5)).run(&server);
    // A request that the flapping GPU loses twice is answered 503; nobody gets anything else.
    assert_eq!(
        seen.others(&[status(200), status(503)]),
        0,
        "{}",
        seen.describe()
    );
    let failed = seen.count(status(503)) as f64 / seen.samples.len() as f64;
    assert!(failed <= 0.001, "{}", seen.describe());
    server.script("kind=clear");
    wait_up(&server, 4);
    let downs = server.end().matches("gpu 2 is down").count();
    assert!((1..=8).contains(&downs), "backed off, {downs} times down");
}

/// A day in which one GPU of four is lost every ten minutes, for two and a half: 144 losses, scaled so that one comes
/// every four seconds and lasts one. That is harder than the day itself, whose losses are further apart in batches.
#[test]
fn a_day_of_losses_costs_less_than_one_request_in_a_thousand() {
    let _machine = heavy();
    let scale = Scale::chosen();
    let mut server = scale.start_patient(&["--log-level", "warn"]);
    let (losses, apart) = (if scale.full { 144 } else { 4 }, scale.seconds(4.0, 0.6));
    let (away, lost) = (apart / 4, "is down: the device is lost");
    let load = Load::open(scale.usual_load(), scale.seconds(4.0 * 145.0, LONG));
    let seen = load.run_until(&server, |began| {
        for number in 1..=losses {
            began.wait(apart * number);
            let (gpu, away) = (number % 4, away.as_millis());
            server.script(&format!("kind=lost&gpu={gpu}&ms={away}"));
            wait_logged(&server, lost, number as usize);
            // The next loss is another one: it does not strike those whom this one sent on, however late it is by now.
            wait_answered(&server, 50);
        }
        scale.go_on(&server, began, 4.0 * 145.0);
    });
    let available = seen.count(status(200)) as f64 / seen.samples.len() as f64;
    eprintln!("a day of losses: {:.4} % answered 200", available * 100.0);
    assert!(available >= 0.999, "{}", seen.describe());
    assert_eq!(
        seen.others(&[status(200), status(429), status(503)]),
        0,
        "{}",
        seen.describe()
    );
    wait_up(&server, 4);
    let downs = server.end().matches(lost).count();
    assert_eq!(downs, losses as usize, "every loss is seen, and said once");
}

#[test]
fn with_all_gpus_lost_callers_are_told_at_once_and_service_resumes_by_itself() {
    let _machine = heavy();
    let scale = Scale::chosen();
    let server = scale.start_patient(&[]);
    // Long enough to see it on a machine that stands still for a while.
    let away = scale.seconds(3.0, 4.0);
    let load = Load::open(scale.usual_load(), scale.seconds(12.0, LONG));
    let seen = load.run_until(&server, |began| {
        began.wait(scale.seconds(3.0, 0.5));
        server.script(&format!("kind=lost&ms={}", away.as_millis()));
        wait_for("readiness to say no", || !is_ready(&server));
        assert_eq!(server.get("/v2/health/live").status, 200);
        let (took, answer) = timed(|| server.infer(&unique("nobody serves")));
        let problem = answer.expect_problem(503);
        assert!(answer.header("Retry-After").is_some(), "{problem}");
        eprintln!("all lost: one 503 took {:.1} ms", took.as_secs_f64() * 1e3);
        wait_for("readiness to say yes", || is_ready(&server));
        scale.go_on(&server, began, 12.0);
    });
    // Between the first loss and the last, and between the first return and the last, the load is too much for who is up.
    assert_eq!(
        seen.others(&[status(200), status(429), status(503)]),
        0,
        "{}",
        seen.describe()
    );
    // From the first refusal of somebody who had not waited before to the last.
    let told: Vec<_> = seen
        .filter(|sample| sample.outcome == status(503))
        .collect();
    let first = told
        .iter()
        .map(|sample| sample.done_ns)
        .min()
        .expect("somebody was told");
    let during = Latencies::of(told.iter().filter(|sample| sample.due_ns > first).copied());
    eprintln!(
        "all lost: {} told, those who came after the loss within {during}",
        told.len()
    );
    let outage = told.last().expect("somebody").due_ns - told[0].due_ns;
    assert!(
        Duration::from_nanos(outage) >= away / 2,
        "an outage of {outage} ns"
    );
    let last = seen.samples.last().expect("requests");
    assert!(last.outcome.is_good(), "service resumed: {last:?}");
    if scale.full {
        assert!(during.percentile(99.0) <= 10.0, "{during}");
    }
    wait_up(&server, 4);
    assert_nobody_waits(&server);
}

/// A file of lines of which one in `every` is poisoned.
fn lines(every: usize) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let line = |n| {
        if n == 0 {
            format!("{POISON} in it\n")
        } else {
            format!("fine {n}\n")
        }
    };
    let text: String = (0..every).map(line).collect();
    std::fs::write(file.path(), text).expect("written");
    file
}

/// Nobody is blamed for what another's input did; gives how many bad and how many good requests there were.
fn assert_blame_is_just(seen: &Seen) -> (usize, usize) {
    let (mut bad, mut good) = (0, 0);
    for sample in &seen.samples {
        let poisoned = seen.input(sample).contains(POISON);
        *(if poisoned { &mut bad } else { &mut good }) += 1;
        // Under a search that is given up both kinds get 503.
        let wrong = if poisoned { status(200) } else { status(422) };
        assert_ne!(sample.outcome, wrong, "{sample:?}");
    }
    (bad, good)
}

#[test]
fn one_bad_input_among_many_gets_its_422_and_nobody_else_does() {
    let _machine = heavy();
    let scale = Scale::chosen();
    let server = scale.start_patient(&[]);
    server.script(&format!("kind=raise&marker={POISON}"));
    // Enough bad ones to see in either size.
    let file = lines(if scale.full { 1000 } else { 200 });
    let load = Load::open(0.4 * scale.capacity(), scale.seconds(30.0, 3.0));
    let seen = load
        .with(|options| options.lines = Some(file.path().to_owned()))
        .run(&server);
    // Searches take GPUs away, so that now and then the load is too much for the others.
    assert_eq!(
        seen.others(&[status(200), status(422), status(429), status(503)]),
        0,
        "{}",
        seen.describe()
    );
    let (bad, good) = assert_blame_is_just(&seen);
    let served = seen.count(status(200)) as f64 / good as f64;
    eprintln!(
        "1 bad among many: {bad} bad, {:.4} % of the good served",
        served * 100.0
    );
    // A bad one may be turned away as anybody may, or run out of time where the batch before its own is searched first.
    let told = seen.count(status(422));
    assert!(
        bad > 0 && told * 10 >= bad * 8,
        "{told} of {bad} bad ones were told"
    );
    assert!(served >= 0.999, "{}", seen.describe());
}

#[test]
fn one_bad_input_in_a_hundred_at_full_load_is_survived() {
    let _machine = heavy();
    let scale = Scale::chosen();
    let server = scale.start(&[]);
    server.script(&format!("kind=raise&marker={POISON}"));
    let file = lines(100);
    let bad_load = Load::open(scale.capacity(), scale.seconds(15.0, 2.0));
    let seen = bad_load
        .with(|options| options.lines = Some(file.path().to_owned()))
        .run(&server);
    // Whoever boards with hardly a batch time left may miss the deadline by a little.
    let allowed = [200, 422, 429, 503, 504].map(status);
    assert_eq!(seen.others(&allowed), 0, "{}", seen.describe());
    let late = seen.count(status(504));
    assert!(late * 500 <= seen.samples.len(), "{}", seen.describe());
    assert_blame_is_just(&seen);
    // The bad ones stop; three seconds later, or as soon as the machine allows, all is as it always was.
    if !scale.full {
        wait_all_served(&server, scale);
        return;
    }
    let settling = Duration::from_secs(3);
    let after = Load::open(scale.usual_load(), settling + Duration::from_secs(5)).run(&server);
    let settled = |sample: &&Sample| sample.due_ns > settling.as_nanos() as u64;
    let strange = after
        .samples
        .iter()
        .filter(settled)
        .filter(|sample| !sample.outcome.is_good())
        .count();
    assert_eq!(strange, 0, "{}", after.describe());
    let latencies = Latencies::of_good(after.samples.iter().filter(settled));
    eprintln!("3 s after one bad in a hundred: {latencies}");
    assert!(latencies.percentile(95.0) <= 250.0, "{latencies}");
}

#[test]
fn a_device_that_raises_on_everything_is_taken_down_and_its_callers_are_not_blamed() {
    let _machine = heavy();
    let scale = Scale::chosen();
    let mut server = scale.start_patient(&[]);
    let load = Load::open(0.4 * scale.capacity(), scale.seconds(15.0, LONG));
    let seen = load.run_until(&server, |began| {
        began.wait(scale.seconds(2.0, 0.5));
        server.script("kind=raise&gpu=3&every=1");
        server.wait_log("gpu 3 is down");
        scale.go_on(&server, began, 15.0);
    });
    assert_eq!(seen.count(status(422)), 0, "{}", seen.describe());
    assert_eq!(seen.others(&[status(200)]), 0, "{}", seen.describe());
    // Down, or just tried again.
    assert_eq!(server.metric("funicular_gpu_up", &[("gpu", "3")]), 0.0);
    server.script("kind=clear");
    wait_up(&server, 4);
    let log = server.end();
    assert_eq!(log.matches("gpu 3 is down").count(), 1, "said once");
}

#[test]
fn a_wrong_number_of_outputs_never_shifts_an_answer() {
    let _machine = light();
    // Every second batch has one output too few, among them those of the search; each is a failed batch.
    let two = [
        "--sim-latency-ms",
        "10",
        "--sim-faults-admin",
        "--gpus",
        "2",
    ];
    let mut server = Server::start(&[&two[..], &PATIENT].concat());
    server.script("kind=count&batch=2&every=4");
    // Callers who think a little, or who is turned away at once would ask far more often than who is served.
    let load = Load::closed(50, Duration::from_secs(2))
        .with(|options| options.think = Some(Span(Duration::from_millis(10))));
    // Whether an answer is its caller's own is checked by the load itself.
    let seen = load.run(&server);
    assert!(
        seen.count(status(200)) > seen.samples.len() / 2,
        "{}",
        seen.describe()
    );
    assert_eq!(
        seen.others(&[status(200), status(422), status(503)]),
        0,
        "{}",
        seen.describe()
    );
    let log = server.end();
    assert!(!log.contains("panicked"), "{log}");
}

#[test]
fn sigterm_in_the_middle_of_a_loss_cuts_nobody_off() {
    let _machine = heavy();
    let scale = Scale::chosen();
    let mut server = scale.start_patient(&[]);
    let load = Load::open(scale.usual_load(), scale.seconds(6.0, LONG));
    let seen = load.run_until(&server, |began| {
        began.wait(scale.seconds(3.0, 0.5));
        server.script("kind=lost&gpu=1");
        server.wait_log("gpu 1 is down");
        server.terminate();
        server.wait_log("ended");
    });
    let allowed = [status(200), status(503), Outcome::Connect];
    assert_eq!(seen.others(&allowed), 0, "{}", seen.describe());
    assert!(seen.count(status(200)) > 0);
    assert_eq!(server.wait_exit().code(), Some(0));
    // Whoever was let in before the signal was answered with an output, the retried too.
    let served_last = seen
        .filter(|sample| sample.outcome.is_good())
        .map(|sample| sample.due_ns)
        .max();
    let refused_before = seen.filter(|sample| {
        sample.outcome == status(503) && Some(sample.due_ns + 1_000_000_000) < served_last
    });
    assert_eq!(refused_before.count(), 0, "{}", seen.describe());
}

#[test]
fn a_server_that_stood_still_recovers() {
    let _machine = heavy();
    let scale = Scale::chosen();
    let mut server = scale.start(&[]);
    let stood = Duration::from_secs(2);
    let load = Load::open(scale.usual_load(), stood + scale.seconds(10.0, 3.0));
    let mut stopped_at = Duration::ZERO;
    let seen = load.run_beside(&server, |began| {
        stopped_at = scale.seconds(3.0, 0.5);
        began.wait(stopped_at);
        server.signal(Signal::STOP);
        began.wait(stopped_at + stood);
        server.signal(Signal::CONT);
    });
    let allowed = [status(200), status(429), status(503), status(504)];
    assert_eq!(seen.others(&allowed), 0, "{}", seen.describe());
    let late = if scale.full {
        let recovered = (stopped_at + stood + Duration::from_secs(2)).as_nanos() as u64;
        let late: Vec<_> = seen.filter(|sample| sample.due_ns > recovered).collect();
        let is_strange = |sample: &&&Sample| !sample.outcome.is_good();
        let strange = late.iter().filter(is_strange).count();
        let count = late.len();
        assert_eq!(strange, 0, "of {count} late ones; {}", seen.describe());
        Latencies::of_good(late.into_iter())
    } else {
        Latencies::of_good(wait_all_served(&server, scale).samples.iter())
    };
    eprintln!("stood still for 2 s: afterwards {late}");
    wait_up(&server, 4);
    assert_nobody_waits(&server);
    let downs = server.end().matches(" is down").count();
    assert_eq!(downs, 0, "a pause is no failure");
}

#[test]
fn who_expired_while_the_server_stood_still_is_told_so_and_not_run() {
    let _machine = light();
    let one = ["--gpus", "1", "--sim-latency-ms", "5"];
    let server = Server::start(&[&one[..], &PATIENT, &HOLDABLE].concat());
    server.hold();
    let running = unique("running");
    let mut first = server.connect();
    first.send(post("", &running));
    server.wait_running(1);
    let mut second = server.connect();
    second.send(post("X-Request-Timeout-Ms: 1500\r\n", &unique("waiting")));
    wait_for(
        "the second to wait, unless its time is over already",
        || server.metric("funicular_queue_depth", &[]) == 1.0 || second.has_news(),
    );
    let due = clock::now() + Duration::from_secs(2);
    server.signal(Signal::STOP);
    wait_for("its time to be over", || clock::now() >= due);
    server.signal(Signal::CONT);
    second.response().expect_problem(504);
    // However it was noticed, it is counted.
    let expired = [("reason", "expired")];
    server.expect_count("funicular_abandoned_total", &expired, 1.0);
    server.release();
    first.response().expect_output(&running);
    assert_eq!(
        server
            .fresh_metrics()
            .value("funicular_slots_filled_total", &[]),
        1.0
    );
    let input = unique("as ever");
    server.infer(&input).expect_output(&input);
}

#[test]
fn bad_inputs_of_one_batch_are_named_and_the_others_served() {
    let _machine = light();
    let one = ["--gpus", "1", "--sim-latency-ms", "20"];
    let server = Server::start(&[&one[..], &PATIENT, &HOLDABLE].concat());
    server.script(&format!("kind=raise&marker={POISON}"));
    for bad in [1, 2, 5] {
        let callers = 40;
        let mut clients: Vec<_> = (0..callers).map(|_| server.connect()).collect();
        let input = |n: usize| {
            if n % (callers / bad) == 3 {
                format!("{POISON} {n}")
            } else {
                unique("fine")
            }
        };
        let inputs: Vec<_> = (0..callers).map(input).collect();
        // They wait for one that takes a second, and board together, if the machine allows.
        server.script("kind=slow&factor=50");
        let mut first = server.connect();
        first.send(post("", "first"));
        clients.iter_mut().zip(&inputs).for_each(|(client, input)| {
            client.send(post("", input));
        });
        first.response().expect_output("first");
        for (client, input) in clients.iter_mut().zip(&inputs) {
            let answer = client.response();
            if input.contains(POISON) {
                let problem = answer.expect_problem(422);
                assert!(
                    problem["detail"]
                        .as_str()
                        .is_some_and(|text| text.contains("not acceptable")),
                    "{problem}"
                );
            } else {
                answer.expect_output(input);
            }
        }
        assert!(
            clients.iter().all(|client| !Client::has_news(client)),
            "nobody is answered twice"
        );
    }
    assert_nobody_waits(&server);
}

//! The engine against servers that misbehave in known ways.

#[expect(
    dead_code,
    reason = "shared with the tests of the program, which use all of it"
)]
#[path = "../support/mod.rs"]
mod support;
mod wrong_answers;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

use funicular_perf::clock::{self, MILLISECOND};
use funicular_perf::engine::{self, EngineError, Observer};
use funicular_perf::latencies::Latencies;
use funicular_perf::options::{Plan, RunOptions};
use funicular_perf::record::{IntervalRecord, Outcome, Recorder, Sample};
use funicular_perf::units::Span;
use support::{Asked, Deed, answer, serve, wait};

/// Only a hang takes as long.
const NEVER: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Watcher {
    start: Arc<OnceLock<u64>>,
    seconds: Vec<IntervalRecord>,
}

impl Observer for Watcher {
    fn started(&mut self, start: u64) {
        self.start.set(start).expect("a run starts once");
    }
    fn tick(&mut self) {}
    fn second(&mut self, interval: &IntervalRecord) {
        self.seconds.push(interval.clone());
    }
}

/// 500 requests in a second, or as `change` says.
fn plan(server: SocketAddr, change: impl FnOnce(&mut RunOptions)) -> Plan {
    let mut options = RunOptions {
        rate: Some(500.0),
        duration: Some(Span(Duration::from_secs(1))),
        connections: Some(50),
        timeout: Some(Span(NEVER)),
        ..RunOptions::default()
    };
    change(&mut options);
    options
        .plan(&format!("http://{server}"), 7, true, 2)
        .expect("a plan")
}

fn drive_watched(server: SocketAddr, change: impl FnOnce(&mut RunOptions)) -> (Recorder, Watcher) {
    let mut watcher = Watcher::default();
    let never = Arc::new(AtomicBool::new(false));
    let recorder = engine::run(&plan(server, change).job, &never, &mut watcher).expect("a run");
    (recorder, watcher)
}

/// A closed loop of `connections` callers until `stop` is set.
fn drive_until(
    stop: &Arc<AtomicBool>,
    server: SocketAddr,
    change: impl FnOnce(&mut RunOptions),
) -> Recorder {
    let plan = plan(server, |options| {
        options.rate = None;
        options.duration = Some(Span(2 * NEVER));
        change(options);
    });
    engine::run(&plan.job, stop, &mut Watcher::default()).expect("a run")
}

fn drive(server: SocketAddr, change: impl FnOnce(&mut RunOptions)) -> Recorder {
    drive_watched(server, change).0
}

/// Every request of the run.
fn samples(recorder: &Recorder) -> &[Sample] {
    recorder.dump.as_ref().expect("a dump")
}

fn count(recorder: &Recorder, outcome: Outcome) -> u64 {
    recorder.count(|other| other == outcome)
}

/// The upper-casing server, after `delay`.
fn right(delay: Duration) -> SocketAddr {
    serve(move |asked| {
        wait(delay);
        answer(200, &asked.right())
    })
}

/// A right answer that says that it is the last one on its connection.
fn last_answer(asked: &Asked) -> Deed {
    let body = asked.right();
    let length = body.len();
    let text =
        format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}");
    Deed::Write(text.into_bytes())
}

#[test]
fn every_request_of_the_schedule_is_sent_and_answered_once() {
    let (recorder, watcher) = drive_watched(right(Duration::from_millis(5)), |options| {
        options.threads = Some(3);
        options.arrivals = Some("poisson".into());
        options.duration = Some(Span(Duration::from_millis(2500)));
        options.tiers = Some("enterprise=10,paid=30,free=60".into());
        options.size = Some("16-3000".into());
    });
    let plan = RunOptions {
        rate: Some(500.0),
        arrivals: Some("poisson".into()),
        duration: Some(Span(Duration::from_millis(2500))),
        ..RunOptions::default()
    };
    let plan = plan
        .plan("http://127.0.0.1:1", 7, false, 2)
        .expect("a plan");
    let engine::Load::Open(schedule) = &plan.job.load else {
        unreachable!("a rate makes an open loop")
    };

    assert_eq!(
        count(&recorder, Outcome::Status(200)),
        schedule.len() as u64
    );
    assert_eq!(recorder.count(|_| true), schedule.len() as u64);
    assert!(recorder.mismatches.is_clean());
    let mut dump = recorder.dump.clone().expect("a dump");
    dump.sort_by_key(|sample| sample.number);
    for (number, (sample, &due)) in dump.iter().zip(schedule.iter()).enumerate() {
        assert_eq!((sample.number, sample.due_ns), (number as u64, due));
        assert!(sample.written_ns.expect("sent") >= due && sample.corrected_ns() >= 5_000_000);
    }
    let seconds: Vec<u32> = watcher.seconds.iter().map(|second| second.second).collect();
    assert_eq!(seconds, (0..seconds.len() as u32).collect::<Vec<_>>());
    let in_seconds: u64 = watcher
        .seconds
        .iter()
        .flat_map(|second| &second.tiers)
        .map(|tier| tier.count())
        .sum();
    assert_eq!(in_seconds, schedule.len() as u64);
}

/// A server that answers nobody before `STALL` is over, and then everybody at once. 1,000 requests a second are due over 10
/// connections, so 400 callers are held up, but only 10 requests can be on their way. Nothing here depends on how fast
/// anybody is: all times are compared with the end of the stall, on the one clock of this process.
#[test]
fn a_stall_shows_in_the_corrected_latencies_and_not_in_the_uncorrected_ones() {
    const STALL: u64 = 400 * MILLISECOND;
    let mut watcher = Watcher::default();
    let start = Arc::clone(&watcher.start);
    let server = serve(move |asked| {
        let end = start.wait() + STALL;
        wait(Duration::from_nanos(end.saturating_sub(clock::now())));
        answer(200, &asked.right())
    });
    let plan = plan(server, |options| {
        options.rate = Some(1000.0);
        options.connections = Some(10);
        options.duration = Some(Span(Duration::from_secs(2)));
    });
    let recorder = engine::run(&plan.job, &Arc::default(), &mut watcher).expect("a run");
    assert_eq!(count(&recorder, Outcome::Status(200)), 2000);

    let held_up = samples(&recorder)
        .iter()
        .filter(|sample| sample.due_ns < STALL);
    assert_eq!(held_up.clone().count(), 400);
    for sample in held_up.clone() {
        assert!(sample.corrected_ns() >= STALL - sample.due_ns, "{sample:?}");
    }
    let on_their_way = held_up.filter(|sample| sample.written_ns.expect("sent") < STALL);
    let on_their_way = on_their_way.count();
    assert!(on_their_way <= 10, "{on_their_way} on 10 connections");
    // A twentieth of all callers were held up for 300 ms and more, a tenth for 200.
    let (corrected, _) = recorder.all_tiers();
    for (percentile, least_ms) in [(95.0, 295.0), (90.0, 195.0)] {
        let found = clock::millis(corrected.percentile_ns(percentile));
        assert!(found > least_ms, "corrected p{percentile}: {found}");
    }
    // Those of the first ten, and at the end of the stall of the next ten, found a free connection.
    let waited = recorder.connection_wait.count();
    assert!(waited >= 380, "{waited} waited");
}

#[test]
fn percentiles_agree_with_a_computation_over_the_dump() {
    let server = serve(|asked| {
        let millis = asked.input().bytes().map(u64::from).sum::<u64>() % 40;
        wait(Duration::from_millis(millis));
        answer(200, &asked.right())
    });
    let recorder = drive(server, |options| {
        options.tiers = Some("paid=1,free=2".into())
    });
    for (tier, record) in recorder.tiers.iter().enumerate() {
        let of_tier = || {
            samples(&recorder)
                .iter()
                .filter(move |sample| sample.tier == tier)
        };
        let corrected = of_tier().map(|sample| sample.done_ns - sample.due_ns);
        let uncorrected = of_tier().map(|sample| sample.done_ns - sample.written_ns.expect("sent"));
        agree(
            &format!("tier {tier}, corrected"),
            corrected.collect(),
            &record.corrected,
        );
        agree(
            &format!("tier {tier}, uncorrected"),
            uncorrected.collect(),
            &record.uncorrected,
        );
    }
}

fn agree(what: &str, mut exact: Vec<u64>, recorded: &Latencies) {
    assert_eq!(recorded.count(), exact.len() as u64, "{what}");
    exact.sort_unstable();
    for percentile in [1.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 100.0] {
        let rank = (percentile / 100.0 * exact.len() as f64).ceil() as usize;
        let exact = exact[rank.max(1) - 1];
        let found = recorded.percentile_ns(percentile);
        assert!(
            found.abs_diff(exact) <= exact / 1000 + 1000,
            "{what}, p{percentile}: {found} for {exact}"
        );
    }
}

#[test]
fn errors_are_counted_by_what_they_were() {
    let asked_so_far = AtomicUsize::new(0);
    let server = serve(
        move |asked| match asked_so_far.fetch_add(1, Ordering::Relaxed) % 10 {
            0 => answer(429, "{}"),
            1 => answer(503, "{}"),
            2 => Deed::Close,
            3 => Deed::Write(b"SSH-2.0-OpenSSH\r\n".to_vec()),
            _ => answer(200, &asked.right()),
        },
    );
    let (recorder, watcher) = drive_watched(server, |options| options.rate = Some(100.0));
    let expected = [
        (Outcome::Status(200), 60),
        (Outcome::Status(429), 10),
        (Outcome::Status(503), 10),
        (Outcome::Closed, 10),
        (Outcome::Malformed, 10),
    ];
    for (outcome, times) in expected {
        assert_eq!(count(&recorder, outcome), times, "{outcome}");
    }
    assert_eq!(recorder.count(Outcome::is_error), 40);
    assert_eq!(
        classes(&watcher),
        BTreeMap::from([("429", 10), ("5xx", 10), ("closed", 10), ("malformed", 10)])
    );
    assert_eq!(
        recorder.all_tiers().0.count(),
        60,
        "only good answers are in the percentiles"
    );
}

/// Errors of all seconds by class.
fn classes(watcher: &Watcher) -> BTreeMap<&str, u64> {
    let mut classes: BTreeMap<&str, u64> = BTreeMap::new();
    for (class, count) in watcher.seconds.iter().flat_map(|second| &second.errors) {
        *classes.entry(class).or_default() += count;
    }
    classes
}

#[test]
fn who_gets_no_answer_in_time_is_given_up_and_nobody_else_suffers() {
    let asked_so_far = AtomicUsize::new(0);
    let silences = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&silences);
    let server = serve(move |asked| {
        if asked_so_far.fetch_add(1, Ordering::Relaxed) % 4 == 1 {
            counted.fetch_add(1, Ordering::Relaxed);
            return Deed::Silence;
        }
        answer(200, &asked.right())
    });
    let (recorder, watcher) = drive_watched(server, |options| {
        options.rate = Some(100.0);
        options.connections = Some(10);
        options.timeout = Some(Span(Duration::from_millis(150)));
    });
    let (good, late) = (
        count(&recorder, Outcome::Status(200)),
        count(&recorder, Outcome::Timeout),
    );
    assert_eq!(good + late, 100);
    // A machine that stands still makes others late, too.
    let silences = silences.load(Ordering::Relaxed) as u64;
    assert!(
        late >= silences,
        "{late} late, {silences} without an answer"
    );
    assert_eq!(classes(&watcher), BTreeMap::from([("timeout", late)]));
    assert_eq!(recorder.all_tiers().0.count(), good);
    assert!(recorder.mismatches.is_clean());
}

/// Every other caller that will hang up gets no answer, so it surely does; the others get theirs at about that time.
#[test]
fn callers_hang_up_and_nobody_else_gets_their_answers() {
    let change = |options: &mut RunOptions| {
        options.hangup = Some("20%".parse().expect("a share"));
        options.hangup_within = Some(Span(Duration::from_millis(40)));
        options.threads = Some(2);
    };
    let traffic = plan(SocketAddr::from(([127, 0, 0, 1], 1)), change)
        .job
        .traffic;
    let leaving: Vec<String> = (0..500)
        .filter(|&number| traffic.plan(number).hangup_after_ns.is_some())
        .map(|number| {
            let mut input = String::new();
            traffic.input(number, &mut input);
            input
        })
        .collect();
    assert!((60..140).contains(&leaving.len()), "{}", leaving.len());
    let unanswered: BTreeSet<String> = leaving.iter().step_by(2).cloned().collect();
    let surely = unanswered.len() as u64;
    let server = serve(move |asked| {
        if unanswered.contains(&asked.input()) {
            return Deed::Silence;
        }
        wait(Duration::from_millis(20));
        answer(200, &asked.right())
    });
    let recorder = drive(server, change);
    let hung_up = count(&recorder, Outcome::HangUp);
    assert!(
        (surely..=leaving.len() as u64).contains(&hung_up),
        "{hung_up}"
    );
    assert_eq!(count(&recorder, Outcome::Status(200)), 500 - hung_up);
    assert!(recorder.mismatches.is_clean());
    assert_eq!(recorder.count(Outcome::is_error), 0);
}

#[test]
fn new_connections_are_new() {
    let server = serve(|asked| {
        assert!(asked.head.contains("connection: close"));
        if asked.earlier > 0 {
            answer(500, "an old connection")
        } else {
            answer(200, &asked.right())
        }
    });
    let recorder = drive(server, |options| {
        options.new_connections = true;
        options.rate = Some(200.0);
    });
    assert_eq!(count(&recorder, Outcome::Status(200)), 200);
}

#[test]
fn a_server_that_closes_idle_connections_is_connected_to_again() {
    let server = serve(|asked| {
        if asked.earlier == 2 {
            last_answer(asked)
        } else {
            answer(200, &asked.right())
        }
    });
    let recorder = drive(server, |options| options.connections = Some(4));
    assert_eq!(count(&recorder, Outcome::Status(200)), 500);
}

/// Nobody is answered before all ten have asked, five times over: one caller that did not go on would hold up all others.
#[test]
fn a_closed_loop_keeps_every_caller_busy() {
    const CALLERS: usize = 10;
    const ROUNDS: usize = 5;
    let stop = Arc::new(AtomicBool::new(false));
    let stop_at_last = Arc::clone(&stop);
    let (asked_so_far, news) = (Mutex::new(0usize), Condvar::new());
    let server = serve(move |asked| {
        let mut so_far = asked_so_far.lock().expect("no panics under the lock");
        *so_far += 1;
        // Those of its round, or everybody of all rounds if it came later.
        let awaited = so_far.next_multiple_of(CALLERS).min(CALLERS * ROUNDS);
        stop_at_last.fetch_or(*so_far == CALLERS * ROUNDS, Ordering::Relaxed);
        news.notify_all();
        let so_far = news.wait_while(so_far, |so_far| *so_far < awaited);
        drop(so_far.expect("no panics under the lock"));
        answer(200, &asked.right())
    });
    let recorder = drive_until(&stop, server, |options| options.connections = Some(CALLERS));
    let good = count(&recorder, Outcome::Status(200));
    assert!(good >= (CALLERS * ROUNDS) as u64, "{good}");
    assert_eq!(recorder.count(|_| true), good);
}

#[test]
fn a_caller_of_a_closed_loop_thinks_between_its_answer_and_its_next_request() {
    const THINK: Duration = Duration::from_millis(30);
    let stop = Arc::new(AtomicBool::new(false));
    let stop_at_last = Arc::clone(&stop);
    let asked_so_far = AtomicUsize::new(0);
    let server = serve(move |asked| {
        wait(Duration::from_millis(5));
        let last = asked_so_far.fetch_add(1, Ordering::Relaxed) >= 100;
        stop_at_last.fetch_or(last, Ordering::Relaxed);
        answer(200, &asked.right())
    });
    let recorder = drive_until(&stop, server, |options| {
        options.connections = Some(10);
        options.think = Some(Span(THINK));
    });
    assert!(count(&recorder, Outcome::Status(200)) >= 100);
    // Who asks next is who has thought for so long, to the nanosecond, and each of them once.
    let mut thought: Vec<u64> = samples(&recorder)
        .iter()
        .map(|sample| sample.done_ns + clock::nanos(THINK))
        .collect();
    for sample in samples(&recorder).iter().filter(|sample| sample.due_ns > 0) {
        let who = thought.iter().position(|&at| at == sample.due_ns);
        thought.swap_remove(who.unwrap_or_else(|| panic!("nobody asks at {}", sample.due_ns)));
    }
    let first = samples(&recorder)
        .iter()
        .filter(|sample| sample.due_ns == 0);
    assert_eq!(first.count(), 10);
}

#[test]
fn other_servers_have_other_shapes() {
    let server = serve(|asked| {
        assert!(asked.head.starts_with("post /predict "), "{}", asked.head);
        assert!(asked.head.contains("x-key: 1"), "{}", asked.head);
        let body: serde_json::Value = serde_json::from_str(&asked.body).expect("JSON");
        let text = body["data"][0]["text"].as_str().expect("a text");
        let body = serde_json::json!({ "outputs": [{ "text": text }] }).to_string();
        let (first, second) = body.split_at(9);
        let chunks = format!(
            "{:x}\r\n{first}\r\n{:x}\r\n{second}\r\n0\r\n\r\n",
            first.len(),
            second.len()
        );
        Deed::Write(
            format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}").into_bytes(),
        )
    });
    let recorder = drive(server, |options| {
        options.path = Some("/predict".into());
        options.request_template = Some(r#"{"data": [{"text": "{input}"}]}"#.into());
        options.headers = vec!["X-Key: 1".into()];
        options.expect = Some("/outputs/0/text".into());
        options.answer = Some("echo".into());
    });
    assert_eq!(count(&recorder, Outcome::Status(200)), 500);
}

#[test]
fn big_inputs_and_answers_go_through() {
    let recorder = drive(right(Duration::ZERO), |options| {
        options.rate = Some(20.0);
        options.size = Some("3000000".into());
    });
    assert_eq!(count(&recorder, Outcome::Status(200)), 20);
}

#[test]
fn the_warm_up_is_sent_but_not_counted() {
    let seen = Arc::new(AtomicUsize::new(0));
    let seen_by_server = Arc::clone(&seen);
    let server = serve(move |asked| {
        seen_by_server.fetch_add(1, Ordering::Relaxed);
        answer(200, &asked.right())
    });
    let recorder = drive(server, |options| {
        options.rate = Some(100.0);
        options.warmup = Some(Span(Duration::from_millis(500)));
    });
    assert_eq!(seen.load(Ordering::Relaxed), 150);
    assert_eq!(recorder.count(|_| true), 100);
    assert_eq!(recorder.lateness.count(), 100);
}

#[test]
fn nobody_at_home_is_an_error_and_a_stop_is_not() {
    let (_socket, address) = support::refusing();
    let slow = |options: &mut RunOptions| {
        options.rate = Some(50.0);
        options.duration = Some(Span(2 * NEVER));
    };
    let stop = Arc::new(AtomicBool::new(false));
    let refused = engine::run(&plan(address, slow).job, &stop, &mut Watcher::default());
    assert!(
        matches!(refused, Err(EngineError::Connect { .. })),
        "{refused:?}"
    );

    struct Stopper(Arc<AtomicBool>);
    impl Observer for Stopper {
        fn started(&mut self, _start: u64) {}
        fn tick(&mut self) {}
        fn second(&mut self, _interval: &IntervalRecord) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let job = plan(right(Duration::ZERO), slow).job;
    let recorder = engine::run(&job, &stop, &mut Stopper(Arc::clone(&stop))).expect("a run");
    let sent = count(&recorder, Outcome::Status(200));
    assert!(
        (50..6000).contains(&sent),
        "{sent} of the 6,000 of the whole run"
    );
}

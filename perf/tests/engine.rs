//! The engine against servers that misbehave in known ways.

mod support;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use funicular_perf::clock::{self, SECOND};
use funicular_perf::engine::{self, EngineError, Observer};
use funicular_perf::options::RunOptions;
use funicular_perf::record::{IntervalRecord, Outcome, Recorder};
use funicular_perf::units::Span;
use support::{Deed, answer, json, serve, wait};

#[derive(Default)]
struct Watcher {
    seconds: Vec<IntervalRecord>,
}

impl Observer for Watcher {
    fn started(&mut self, _start: u64) {}
    fn tick(&mut self) {}
    fn second(&mut self, interval: &IntervalRecord) {
        self.seconds.push(interval.clone());
    }
}

fn drive_watched(server: SocketAddr, change: impl FnOnce(&mut RunOptions)) -> (Recorder, Watcher) {
    let mut options = RunOptions {
        rate: Some(500.0),
        duration: Some(Span(Duration::from_secs(1))),
        connections: Some(50),
        ..RunOptions::default()
    };
    change(&mut options);
    let plan = options
        .plan(&format!("http://{server}"), 7, true, 2)
        .expect("a plan");
    let mut watcher = Watcher::default();
    let recorder =
        engine::run(&plan.job, &Arc::new(AtomicBool::new(false)), &mut watcher).expect("a run");
    (recorder, watcher)
}

fn drive(server: SocketAddr, change: impl FnOnce(&mut RunOptions)) -> Recorder {
    drive_watched(server, change).0
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

/// A server that takes 1 ms and stalls for a tenth of the time, the same shape as one second in ten but five times as fast.
/// 1,000 requests/s over 10 connections: each stall should hold up 200 callers, but only 10 requests can be on their way.
#[test]
fn a_stall_shows_in_the_corrected_percentiles_and_not_in_the_uncorrected_ones() {
    const PERIOD: u64 = 2 * SECOND;
    const STALL: u64 = PERIOD / 10;
    let start = Arc::new(Mutex::new(None));
    let server = serve(move |asked| {
        let now = clock::now();
        let start = *start
            .lock()
            .expect("no panics under the lock")
            .get_or_insert(now);
        let phase = (now - start) % PERIOD;
        let until_stall_ends = if phase >= PERIOD - STALL {
            PERIOD - phase
        } else {
            0
        };
        wait(Duration::from_nanos(until_stall_ends) + Duration::from_millis(1));
        answer(200, &asked.right())
    });
    let recorder = drive(server, |options| {
        options.rate = Some(1000.0);
        options.connections = Some(10);
        options.duration = Some(Span(Duration::from_nanos(2 * PERIOD)));
    });
    assert_eq!(count(&recorder, Outcome::Status(200)), 4000);
    let (corrected, uncorrected) = recorder.all_tiers();
    let ms = |percentile, latencies: &funicular_perf::latencies::Latencies| {
        clock::millis(latencies.percentile_ns(percentile))
    };
    // A tenth of the callers wait between 0 and 200 ms.
    assert!(
        ms(99.0, &corrected) > 120.0,
        "corrected p99 {}",
        ms(99.0, &corrected)
    );
    assert!(
        ms(95.0, &corrected) > 50.0,
        "corrected p95 {}",
        ms(95.0, &corrected)
    );
    // Twenty requests of 4,000 were on their way: half a percent.
    assert!(
        ms(99.0, &uncorrected) < 40.0,
        "uncorrected p99 {}",
        ms(99.0, &uncorrected)
    );
    assert!(
        ms(95.0, &uncorrected) < 20.0,
        "uncorrected p95 {}",
        ms(95.0, &uncorrected)
    );
    assert!(
        ms(100.0, &uncorrected) > 150.0,
        "the stall was there: {}",
        ms(100.0, &uncorrected)
    );
    assert!(
        recorder.connection_wait.count() > 300,
        "{} waited",
        recorder.connection_wait.count()
    );
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
    let mut by_tier: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
    for sample in recorder.dump.as_ref().expect("a dump") {
        by_tier
            .entry(sample.tier)
            .or_default()
            .push(sample.done_ns - sample.due_ns);
    }
    for (tier, mut latencies) in by_tier {
        latencies.sort_unstable();
        for percentile in [1.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 100.0] {
            let rank = (percentile / 100.0 * latencies.len() as f64).ceil() as usize;
            let exact = latencies[rank.max(1) - 1];
            let found = recorder.tiers[tier].corrected.percentile_ns(percentile);
            assert!(
                found.abs_diff(exact) <= exact / 1000 + 1000,
                "tier {tier} p{percentile}: {found} for {exact}"
            );
        }
        assert_eq!(
            recorder.tiers[tier].corrected.count(),
            latencies.len() as u64
        );
    }
}

#[test]
fn a_lying_server_is_found_out() {
    let previous = Mutex::new(String::new());
    let asked_so_far = AtomicUsize::new(0);
    let server = serve(move |asked| {
        let last = std::mem::replace(&mut *previous.lock().expect("no panics"), asked.right());
        // Every hundredth caller gets what the one before it should have got.
        let lie = asked_so_far.fetch_add(1, Ordering::Relaxed) % 100 == 99;
        answer(200, &if lie { last } else { asked.right() })
    });
    let recorder = drive(server, |_| {});
    assert_eq!(recorder.mismatches.wrong, 5);
    assert_eq!(count(&recorder, Outcome::Wrong), 5);
    assert_eq!(count(&recorder, Outcome::Status(200)), 495);
    assert_eq!(recorder.mismatches.examples.len(), 5);
    assert!(!recorder.mismatches.is_clean());
}

#[test]
fn a_double_answer_is_found_out_at_once_and_late() {
    for late in [false, true] {
        let asked_so_far = AtomicUsize::new(0);
        let server = serve(move |asked| {
            let Deed::Write(mut bytes) = answer(200, &asked.right()) else {
                unreachable!("an answer is bytes")
            };
            if asked_so_far.fetch_add(1, Ordering::Relaxed) == 40 {
                let again = bytes.clone();
                bytes.extend_from_slice(&again);
                if late {
                    // The second copy comes with the answer to the next request on this connection.
                    bytes.truncate(bytes.len() - 1);
                }
            }
            Deed::Write(bytes)
        });
        let recorder = drive(server, |options| options.connections = Some(2));
        assert_eq!(recorder.mismatches.double, 1, "late: {late}");
        assert_eq!(recorder.mismatches.wrong, 0);
    }
}

#[test]
fn an_answer_on_an_idle_connection_is_a_double_one_but_a_goodbye_is_not() {
    for (surplus, double) in [(200, 1), (408, 0)] {
        let asked_so_far = AtomicUsize::new(0);
        let (ask, asked_for) = std::sync::mpsc::channel::<std::net::TcpStream>();
        // The second answer leaves 30 ms after the first, when its connection has long been idle.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = ask.send(stream);
            }
        });
        std::thread::spawn(move || {
            for stream in asked_for {
                let first = asked_so_far.fetch_add(1, Ordering::Relaxed);
                std::thread::spawn(move || slow_double(stream, first == 2, surplus));
            }
        });
        // The first connection of all is the engine's look whether anybody is there.
        let recorder = drive(address, |options| {
            options.rate = Some(5.0);
            options.connections = Some(3);
            options.threads = Some(1);
        });
        assert_eq!(recorder.mismatches.double, double, "status {surplus}");
        assert_eq!(count(&recorder, Outcome::Status(200)), 5);
    }
}

fn slow_double(mut stream: std::net::TcpStream, double: bool, status: u16) {
    use std::io::{Read as _, Write as _};
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = stream.read(&mut buffer) {
        let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
        let body = text
            .split("\r\n\r\n")
            .nth(1)
            .expect("the whole request in one read");
        let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
        let right = json(&body["input"].as_str().expect("an input").to_uppercase());
        let Deed::Write(bytes) = answer(200, &right) else {
            unreachable!("an answer is bytes")
        };
        let _ = stream.write_all(&bytes);
        if double {
            wait(Duration::from_millis(30));
            let Deed::Write(bytes) = answer(status, "{}") else {
                unreachable!("an answer is bytes")
            };
            let _ = stream.write_all(&bytes);
        }
    }
}

#[test]
fn errors_are_counted_by_what_they_were() {
    let asked_so_far = AtomicUsize::new(0);
    let server = serve(
        move |asked| match asked_so_far.fetch_add(1, Ordering::Relaxed) % 10 {
            0 => answer(429, "{}"),
            1 => answer(503, "{}"),
            2 => Deed::Silence,
            3 => Deed::Close,
            4 => Deed::Write(b"SSH-2.0-OpenSSH\r\n".to_vec()),
            _ => answer(200, &asked.right()),
        },
    );
    let (recorder, watcher) = drive_watched(server, |options| {
        options.rate = Some(100.0);
        options.timeout = Some(Span(Duration::from_millis(150)));
    });
    let expected = [
        (Outcome::Status(200), 50),
        (Outcome::Status(429), 10),
        (Outcome::Status(503), 10),
        (Outcome::Timeout, 10),
        (Outcome::Closed, 10),
        (Outcome::Malformed, 10),
    ];
    for (outcome, times) in expected {
        assert_eq!(count(&recorder, outcome), times, "{outcome}");
    }
    assert_eq!(recorder.count(Outcome::is_error), 50);
    let mut classes: BTreeMap<&str, u64> = BTreeMap::new();
    for (class, count) in watcher.seconds.iter().flat_map(|second| &second.errors) {
        *classes.entry(class).or_default() += count;
    }
    assert_eq!(
        classes,
        BTreeMap::from([
            ("429", 10),
            ("5xx", 10),
            ("timeout", 10),
            ("closed", 10),
            ("malformed", 10)
        ])
    );
    // Only good answers are in the percentiles: none took as long as a time-out.
    assert!(recorder.all_tiers().0.max_ns() < 140_000_000);
}

#[test]
fn callers_hang_up_and_nobody_else_gets_their_answers() {
    let recorder = drive(right(Duration::from_millis(50)), |options| {
        options.hangup = Some("20%".parse().expect("a share"));
        options.hangup_within = Some(Span(Duration::from_millis(40)));
        options.threads = Some(2);
    });
    let hung_up = count(&recorder, Outcome::HangUp);
    assert!((60..140).contains(&hung_up), "{hung_up}");
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
        let body = asked.right();
        let length = body.len();
        let close = format!(
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        if asked.earlier == 2 {
            Deed::Write(close.into_bytes())
        } else {
            answer(200, &body)
        }
    });
    let recorder = drive(server, |options| options.connections = Some(4));
    assert_eq!(count(&recorder, Outcome::Status(200)), 500);
}

#[test]
fn a_closed_loop_keeps_every_caller_busy_and_lets_it_think() {
    let server = right(Duration::from_millis(20));
    let closed = |think: u64| {
        drive(server, |options| {
            options.rate = None;
            options.connections = Some(10);
            options.think = Some(Span(Duration::from_millis(think)));
        })
    };
    let (busy, thinking) = (closed(0), closed(30));
    let good = |recorder: &Recorder| count(recorder, Outcome::Status(200));
    assert!((300..=510).contains(&good(&busy)), "{} of 500", good(&busy));
    assert!(
        (120..=210).contains(&good(&thinking)),
        "{} of 200",
        good(&thinking)
    );
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
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    drop(listener);
    let plan = |address: SocketAddr| {
        let options = RunOptions {
            rate: Some(50.0),
            ..RunOptions::default()
        };
        options
            .plan(&format!("http://{address}"), 7, false, 2)
            .expect("a plan")
    };
    let stop = Arc::new(AtomicBool::new(false));
    let refused = engine::run(&plan(address).job, &stop, &mut Watcher::default());
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
    let job = plan(right(Duration::ZERO)).job;
    let recorder = engine::run(&job, &stop, &mut Stopper(Arc::clone(&stop))).expect("a run");
    let sent = count(&recorder, Outcome::Status(200));
    assert!(
        (40..1500).contains(&sent),
        "{sent} of the 1,500 of the whole run"
    );
}

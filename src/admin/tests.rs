//! The admin plane over real sockets. Each plane gets a port of its own and lives until the process ends, as do the
//! workers of `may`, which all tests of a process share.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::atomic::AtomicUsize;

use super::*;
use crate::metrics::{GpuSnapshot, QueueSnapshot, Snapshot};
use crate::tier::Tier;

/// Only a hang takes as long.
const SOON: Duration = Duration::from_secs(60);

fn snapshot(gpus: usize) -> Snapshot {
    let gpu = |gpu| GpuSnapshot {
        gpu,
        worker: Some(format!("http://10.0.0.{gpu}:8081")),
        state: "down",
        device: None,
        up: false,
        since: Time::ZERO,
        why: "the device is \"gone\"".to_owned(),
        batch_time_ms: Some(101.5),
        batches: 7,
        running: None,
    };
    Snapshot {
        now: clock::now(),
        started: Time::ZERO,
        executor: "simulated".to_owned(),
        batch_max: 100,
        listen: Some(SocketAddr::from(([127, 0, 0, 1], 8080))),
        admin: None,
        ready: false,
        draining: false,
        zone: "red",
        backlog_seconds: f64::INFINITY,
        capacity_rps: 0.0,
        arrival_rate_rps: 12.5,
        request_memory_bytes: (4_096, 1 << 30),
        queues: [QueueSnapshot {
            waiting: 5,
            retry: 2,
        }; Tier::COUNT],
        gpus: (0..gpus).map(gpu).collect(),
    }
}

fn start(gpus: usize, snapshot: SnapshotFn) -> (Admin, Arc<Metrics>) {
    may::config().set_workers(2).set_stack_size(0x2000);
    let metrics = Arc::new(Metrics::new(gpus, 2));
    let reservation =
        Reservation::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a free port");
    let admin = Admin::start(reservation, Arc::clone(&metrics), snapshot, None).expect("started");
    (admin, metrics)
}

struct Reply {
    code: u16,
    headers: Vec<String>,
    body: String,
}

/// One keep-alive connection.
struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(admin: &Admin) -> Client {
        let stream = TcpStream::connect(admin.addr()).expect("connect");
        stream.set_read_timeout(Some(SOON)).expect("time-out");
        Client(BufReader::new(stream))
    }

    fn send(&mut self, method: &str, target: &str) {
        let request = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        self.0
            .get_mut()
            .write_all(request.as_bytes())
            .expect("sent");
    }

    fn receive(&mut self) -> Reply {
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).expect("a header line");
            if line.trim_end().is_empty() {
                break;
            }
            headers.push(line.trim_end().to_owned());
        }
        let code = headers[0]
            .split(' ')
            .nth(1)
            .and_then(|code| code.parse().ok())
            .expect("a status line");
        let length = headers
            .iter()
            .find_map(|header| header.strip_prefix("Content-Length: "));
        let mut body = vec![
            0;
            length
                .and_then(|length| length.parse().ok())
                .expect("a length")
        ];
        self.0.read_exact(&mut body).expect("a body");
        Reply {
            code,
            headers,
            body: String::from_utf8(body).expect("text"),
        }
    }

    fn call(&mut self, method: &str, target: &str) -> Reply {
        self.send(method, target);
        self.receive()
    }

    /// Asks until the answer's body satisfies `is_enough`.
    fn poll(&mut self, target: &str, is_enough: impl Fn(&str) -> bool) {
        let started = clock::now();
        while !is_enough(&self.call("GET", target).body) {
            std::thread::park_timeout(Duration::from_millis(2));
            assert!(clock::now().since(started) < SOON, "{target} never changed");
        }
    }
}

#[test]
fn the_routes_answer_on_one_connection() {
    let (admin, metrics) = start(2, Box::new(|| snapshot(2)));
    let mut client = Client::connect(&admin);
    let has = |reply: &Reply, header: &str| reply.headers.iter().any(|line| line == header);

    let reply = client.call("GET", "/metrics");
    assert_eq!(reply.code, 200);
    assert!(
        has(&reply, "Content-Type: text/plain; version=0.0.4"),
        "{:?}",
        reply.headers
    );
    assert!(reply.body.contains("\nfunicular_gpu_up{gpu=\"1\"} 0\n"));
    assert_eq!(client.call("GET", "/healthz?verbose").body, "ok\n");
    assert!(client.call("GET", "/").body.contains("/status"));
    assert_eq!(client.call("GET", "/metricsx").code, 404);
    let reply = client.call("POST", "/metrics");
    assert_eq!(reply.code, 405);
    assert!(has(&reply, "Allow: GET"));
    assert_eq!(client.call("HEAD", "/").code, 405);
    assert_eq!(client.call("DELETE", "/nowhere").code, 405);

    metrics
        .core(1)
        .request_finished(Some(Tier::Free), 200, Duration::from_millis(100));
    client.poll("/metrics", |body| {
        body.contains("\nfunicular_requests_total{tier=\"free\",code=\"200\"} 1\n")
    });
}

#[test]
fn the_status_says_what_the_snapshot_says() {
    let (admin, metrics) = start(2, Box::new(|| snapshot(2)));
    metrics.core(0).connection_opened();
    metrics
        .core(0)
        .request_finished(Some(Tier::Free), 503, Duration::ZERO);
    let mut client = Client::connect(&admin);
    // A page that is rendered just now may have the one and not the other.
    client.poll("/status", |body| {
        body.contains("\"503\": 1") && body.contains("\"connections\": 1")
    });
    let reply = client.call("GET", "/status");
    assert!(
        reply
            .headers
            .iter()
            .any(|line| line == "Content-Type: application/json")
    );
    let status: serde_json::Value = serde_json::from_str(&reply.body).expect("JSON");
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(status["listen"], "127.0.0.1:8080");
    assert_eq!(status["zone"], "red");
    assert_eq!(status["backlog_seconds"], serde_json::Value::Null);
    assert_eq!(status["queues"]["paid"]["waiting"], 5);
    assert_eq!(status["connections"], 1);
    let gpu = &status["gpus"][1];
    assert_eq!((&gpu["gpu"], &gpu["state"]), (&1.into(), &"down".into()));
    assert_eq!(gpu["why"], "the device is \"gone\"");
    assert_eq!(gpu["batch_time_ms"], 101.5);
    assert!(
        gpu["since"]
            .as_str()
            .is_some_and(|since| since.ends_with("GMT"))
    );
    assert!(gpu["for_seconds"].as_f64().is_some_and(|age| age > 0.0));
    assert_eq!(status["totals"]["requests_by_code"]["503"], 1);
}

#[test]
fn a_page_larger_than_the_socket_buffers_arrives_whole() {
    let (admin, _metrics) = start(1_600, Box::new(|| snapshot(1_600)));
    let mut client = Client::connect(&admin);
    for _ in 0..3 {
        client.send("GET", "/metrics");
        // Nothing is read until the server has had to stop in the middle of the page.
        thread::park_timeout(Duration::from_millis(50));
        let page = client.receive();
        assert!(page.body.len() > 5_000_000, "{}", page.body.len());
        assert!(page.body.ends_with('\n') && page.body.contains("process_threads"));
    }
}

#[test]
fn many_readers_at_once_cause_few_renderings() {
    let renderings = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&renderings);
    let started = clock::now();
    let (admin, _metrics) = start(
        1,
        Box::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            snapshot(1)
        }),
    );
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = Client::connect(&admin);
                (0..200).for_each(|_| assert_eq!(client.call("GET", "/status").code, 200));
            });
        }
    });
    let allowed = 2 + clock::now().since(started).as_millis() / PERIOD_BUSY.as_millis();
    let made = renderings.load(Ordering::Relaxed) as u128;
    assert!(made <= allowed, "{made} renderings, {allowed} allowed");
}

#[test]
fn a_panic_in_the_snapshot_costs_one_reading_and_no_more() {
    let calls = AtomicUsize::new(0);
    let (go, wait) = crossbeam_channel::bounded::<()>(0);
    let (admin, _metrics) = start(
        1,
        Box::new(move || {
            let call = calls.fetch_add(1, Ordering::Relaxed);
            if call == 1 {
                // Until the first reading has been looked at.
                let _ = wait.recv();
                panic!("planted");
            }
            Snapshot {
                batch_max: call,
                ..snapshot(1)
            }
        }),
    );
    let mut client = Client::connect(&admin);
    let first = client.call("GET", "/status").body;
    assert!(first.contains("\"batch_max\": 0,"), "{first}");
    drop(go);
    client.poll("/status", |body| body.contains("\"batch_max\": 2,"));
    assert_eq!(client.call("GET", "/healthz").code, 200);
}

#[test]
fn dropping_it_ends_the_thread_and_keeps_the_last_reading() {
    let token = Arc::new(());
    let held = Arc::clone(&token);
    let (admin, _metrics) = start(
        1,
        Box::new(move || {
            let _held = &held;
            snapshot(1)
        }),
    );
    let mut client = Client::connect(&admin);
    drop(admin);
    assert_eq!(
        Arc::strong_count(&token),
        1,
        "the thread has gone, and the closure with it"
    );
    assert_eq!(client.call("GET", "/metrics").code, 200);
}

#[test]
fn rendering_is_frequent_only_while_somebody_asks() {
    let now = Time::from_millis_f64(60_000.0);
    assert_eq!(period(0, now), PERIOD_IDLE);
    assert_eq!(period(now.as_nanos(), now), PERIOD_BUSY);
    assert_eq!(period((now - INTEREST).as_nanos(), now), PERIOD_IDLE);
    assert_eq!(
        period(0, Time::from_millis_f64(5.0)),
        PERIOD_IDLE,
        "never asked, just started"
    );
}

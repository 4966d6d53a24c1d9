//! How the server ends: SIGTERM loses nobody's request, and nothing keeps it from ending.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use funicular::clock;
use rustix::process::Signal;

use crate::support::server::{HOLDABLE, PATIENT, STUCK};
use crate::support::tools::{Listening, Reserved};
use crate::support::{
    BOUND, Client, Server, heavy, in_parallel, light, post, timed, unique, wait_for,
};

fn stuck(flags: &[&str]) -> Server {
    Server::start(&[&STUCK, flags].concat())
}

/// One GPU whose batches end when the test says so.
fn held(flags: &[&str]) -> Server {
    let one = ["--gpus", "1", "--sim-latency-ms", "5"];
    let server = Server::start(&[&one[..], &HOLDABLE, flags].concat());
    server.hold();
    server
}

/// A server that ends closes connections on which nothing has come for so long.
const QUIET: Duration = Duration::from_secs(1);

/// What a caller saw of the end.
#[derive(Debug, PartialEq)]
enum Seen {
    /// Its last answer was whole, and said that the connection closes.
    Farewell,
    /// It had been quiet for a second when the server, which was ending by then, closed it.
    Quiet,
}

/// Asks again and again until the server says good-bye.
fn ask_until_the_end(server: &Server, began: &AtomicUsize, ending: &AtomicUsize) -> Seen {
    let mut client = server.connect();
    let mut asked = 0;
    let mut last_sent = clock::now();
    loop {
        let input = unique("to the end");
        let quiet_at_most = clock::now().since(last_sent);
        last_sent = clock::now();
        let sent = client.try_send(post("", &input));
        let response = match sent.and_then(|()| client.try_response()) {
            Ok(Some(response)) => response,
            // On a machine with too much to do this thread may get no turn for so long.
            _ if quiet_at_most >= QUIET && ending.load(Relaxed) > 0 => return Seen::Quiet,
            lost => panic!("request {asked} of a connection was lost: {lost:?}"),
        };
        match response.status {
            200 => drop(response.expect_output(&input)),
            503 => assert_eq!(response.expect_problem(503)["reason"], "draining"),
            // A crowd that is let in slowly is no matter of this test.
            429 => drop(response.expect_problem(429)),
            status => panic!("{status}: {response:?}"),
        }
        asked += 1;
        if asked == 3 {
            began.fetch_add(1, Relaxed);
        }
        if response.closes() {
            client.expect_close();
            return Seen::Farewell;
        }
    }
}

#[test]
fn under_load_everybody_is_answered_and_nobody_is_cut_off() {
    let _machine = heavy();
    let mut server = Server::start(&["--sim-latency-ms", "50"]);
    let (began, ending) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let count = 300;
    let seen = in_parallel(count + 1, |index| {
        if index < count {
            return ask_until_the_end(&server, &began, &ending);
        }
        wait_for("everybody to be served", || began.load(Relaxed) == count);
        ending.store(1, Relaxed);
        server.terminate();
        Seen::Farewell
    });
    let quiet = seen.iter().filter(|&seen| *seen == Seen::Quiet).count();
    assert!(quiet * 2 < count, "{quiet} of {count} had been quiet");
    assert!(server.wait_exit().success());
}

#[test]
fn callers_that_come_anew_are_answered_or_never_taken() {
    let _machine = heavy();
    let mut server = Server::start(&[&PATIENT[..], &["--sim-latency-ms", "20"]].concat());
    let (answered, ending) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let count = 60;
    let lost = in_parallel(count + 1, |index| {
        if index == count {
            wait_for("traffic", || answered.load(Relaxed) >= 3 * count);
            ending.store(1, Relaxed);
            server.terminate();
            return 0;
        }
        let mut not_taken = 0;
        while let Ok(mut client) = Client::try_connect(server.listen()) {
            let input = unique("anew");
            let sent = client.try_send(post("Connection: close\r\n", &input));
            match sent.and_then(|()| client.try_response()) {
                Ok(Some(response)) if response.status == 200 => {
                    response.expect_output(&input);
                    answered.fetch_add(1, Relaxed);
                }
                Ok(Some(response)) => drop(response.expect_problem(503)),
                lost => {
                    assert!(ending.load(Relaxed) > 0, "{lost:?}");
                    not_taken += 1;
                }
            }
        }
        not_taken
    });
    assert!(server.wait_exit().success());
    // Whose handshake was under way when the listeners were closed to newcomers.
    let lost: usize = lost.iter().sum();
    assert!(
        lost <= 5,
        "{lost} connections were taken by the system and not by the server"
    );
}

#[test]
fn an_idle_server_ends_at_once_on_both_signals() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut server = Server::start(&["--sim-latency-ms", "1"]);
        server.infer("x").expect_output("x");
        server.signal(signal);
        assert!(server.wait_exit().success());
    }
}

#[test]
fn a_request_under_way_is_answered() {
    let mut server = held(&["--drain-grace-ms", "600000"]);
    let mut client = server.connect();
    client.send(post("", "under way"));
    server.wait_running(1);
    server.terminate();
    server.wait_log("listeners are closed");
    server.release();
    let response = client.response();
    response.expect_output("under way");
    assert!(response.closes());
    client.expect_close();
    assert!(server.wait_exit().success());
}

#[test]
fn a_request_half_sent_is_refused_once_it_is_whole_and_quiet_connections_close() {
    let _machine = light();
    let slow = [
        "--drain-grace-ms",
        "600000",
        "--header-timeout-ms",
        "600000",
    ];
    let mut server = held(&slow);
    let mut under_way = server.connect();
    under_way.send(post("", "under way"));
    server.wait_running(1);
    let mut quiet = server.connect();
    assert_eq!(quiet.get("/v2/health/live").status, 200);
    let mut half = server.connect();
    let whole = post("", "half");
    half.send(&whole[..20]);
    let mut second = server.connect();
    second.send(&b"GET /v2/health/ready HTTP/1.1\r\nHost: a\r\n\r\n"[..20]);
    wait_for("the connections to be seen", || {
        server.metric("funicular_connections", &[]) == 4.0
    });

    server.terminate();
    server.wait_log("listeners are closed");
    assert!(
        Client::try_connect(server.listen()).is_err(),
        "it still listens"
    );
    half.send(&whole[20..]);
    let response = half.response();
    let problem = response.expect_problem(503);
    assert_eq!(problem["reason"], "draining");
    assert!(response.closes() && response.header("Retry-After").is_some());
    half.expect_close();
    second.send(&b"GET /v2/health/ready HTTP/1.1\r\nHost: a\r\n\r\n"[20..]);
    second.response().expect_problem(503);

    // Long before the grace period ends.
    quiet.expect_close();
    assert!(!under_way.has_news());
    server.release();
    under_way.response().expect_output("under way");
    under_way.expect_close();
    assert!(server.wait_exit().success());
}

#[test]
fn requests_pipelined_behind_one_under_way_are_each_told() {
    let _machine = light();
    let mut server = held(&["--drain-grace-ms", "600000"]);
    let mut client = server.connect();
    let [second, third, fourth, fifth] = ["second", "third", "fourth", "fifth"].map(unique);
    client.send([post("", "under way"), post("", &second)].concat());
    server.wait_running(1);
    // These lie in the socket when the first is answered.
    client.send([post("", &third), post("", &fourth)].concat());
    client.send(post("", &fifth));
    server.terminate();
    server.wait_log("listeners are closed");
    server.release();
    let response = client.response();
    response.expect_output("under way");
    assert!(!response.closes(), "others are still to be answered");
    for (index, _) in [second, third, fourth, fifth].iter().enumerate() {
        let response = client.response();
        let problem = response.expect_problem(503);
        assert_eq!(problem["reason"], "draining");
        assert_eq!(response.closes(), index == 3, "{response:?}");
    }
    client.expect_close();
    assert!(server.wait_exit().success());
}

#[test]
fn whoever_pipelines_without_end_does_not_keep_the_server_from_ending() {
    let _machine = light();
    let mut server = Server::start(&["--sim-latency-ms", "1", "--drain-grace-ms", "600000"]);
    let mut reader = TcpStream::connect(server.listen()).expect("connect");
    reader.set_read_timeout(Some(BOUND)).expect("an option");
    let mut writer = reader.try_clone().expect("a descriptor");
    let many = post("", "y").repeat(100);
    writer.write_all(&many).expect("the server reads");
    let writing = thread::spawn(move || while writer.write_all(&many).is_ok() {});
    reader.read_exact(&mut [0; 1_000]).expect("answers come");
    server.terminate();
    // Until the server has had enough.
    let mut answers = [0; 64 << 10];
    while reader.read(&mut answers).is_ok_and(|bytes| bytes > 0) {}
    // Long before the grace period ends.
    assert!(server.wait_exit().success());
    drop(reader);
    writing.join().expect("it ends with the connection");
}

#[test]
fn the_grace_period_ends_even_if_nobody_hangs_up() {
    let _machine = light();
    let mut server = stuck(&["--drain-grace-ms", "300"]);
    let mut clients: Vec<_> = (0..20).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.send(post("", &unique("stuck")));
    }
    wait_for("all of them to be in", || {
        server.metric("funicular_connections", &[]) == 20.0
    });
    server.terminate();
    // Long before their batches or their deadlines end.
    assert!(server.wait_exit().success());
    for client in &mut clients {
        client.response().expect_problem(503);
        client.expect_close();
    }
}

#[test]
fn who_is_left_is_told_although_the_machine_stood_still_until_the_grace_period_was_over() {
    let _machine = light();
    let mut server = stuck(&["--drain-grace-ms", "1500"]);
    let mut clients: Vec<_> = (0..100).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.send(post("", &unique("stuck")));
    }
    wait_for("all of them to be in", || {
        server.metric("funicular_connections", &[]) == 100.0
    });
    server.terminate();
    server.wait_log("listeners are closed");
    server.signal(Signal::STOP);
    let over = clock::now() + Duration::from_millis(1_500);
    wait_for("the grace period to be over", || clock::now() >= over);
    server.signal(Signal::CONT);
    for client in &mut clients {
        client.response().expect_problem(503);
        client.expect_close();
    }
    assert!(server.wait_exit().success());
}

#[test]
fn a_drain_needs_no_thread_that_is_not_there_yet() {
    let server = Server::start(&["--sim-latency-ms", "1"]);
    let tasks = format!("/proc/{}/task", server.pid());
    // A thread gives itself its name.
    wait_for("the thread", || {
        let mut tasks = fs::read_dir(&tasks).expect("threads").flatten();
        tasks.any(|task| {
            let name = fs::read_to_string(task.path().join("comm"));
            name.is_ok_and(|name| name.trim() == "drain")
        })
    });
}

#[test]
fn during_the_delay_it_serves_but_is_not_ready() {
    let _machine = light();
    let server = Server::start(&["--sim-latency-ms", "1", "--drain-delay-ms", "600000"]);
    let mut open = server.connect();
    open.infer("before").expect_output("before");
    assert_eq!(server.get("/v2/health/ready").status, 200);
    server.terminate();
    wait_for("readiness to say no", || {
        server.get("/v2/health/ready").status == 503
    });
    assert_eq!(server.get("/v2/health/live").status, 200);
    let response = open.infer("meanwhile");
    response.expect_output("meanwhile");
    assert!(response.closes());
    open.expect_close();
    server.infer("a new one").expect_output("a new one");
}

#[test]
fn after_the_delay_it_ends_and_not_before() {
    let mut server = Server::start(&["--sim-latency-ms", "1", "--drain-delay-ms", "700"]);
    let (elapsed, status) = timed(|| {
        server.terminate();
        server.wait_exit()
    });
    assert!(status.success());
    assert!(elapsed >= Duration::from_millis(700), "{elapsed:?}");
}

#[test]
fn a_second_signal_exits_at_once() {
    let _machine = light();
    for phase in ["serving for another", "listeners are closed"] {
        let delay = if phase.starts_with("serving") {
            "600000"
        } else {
            "0"
        };
        let mut server = stuck(&["--drain-grace-ms", "600000", "--drain-delay-ms", delay]);
        let mut client = server.connect();
        client.send(post("", "stuck"));
        wait_for("it to be in", || {
            server.metric("funicular_connections", &[]) == 1.0
        });
        server.terminate();
        server.wait_log(phase);
        // One that follows the first too closely counts as the same.
        let status = server.wait_exit_while(Server::terminate);
        assert_eq!(status.code(), Some(128 + Signal::TERM.as_raw()), "{phase}");
    }
}

#[test]
fn a_signal_need_not_wait_for_the_gpus_to_warm_up() {
    let _machine = light();
    // There is no start-up screen yet that would tell the address.
    let reserved = Reserved::new();
    let listen = reserved.address();
    let text = listen.to_string();
    let flags = [
        "--listen",
        &text,
        "--admin",
        "off",
        "--sim-cold-start-ms",
        "600000",
    ];
    let mut server = Listening::start(env!("CARGO_BIN_EXE_funicular"), &flags, listen);
    assert_eq!(Client::connect(listen).get("/v2/health/live").status, 200);
    Client::connect(listen)
        .get("/v2/health/ready")
        .expect_problem(503);
    let problem = Client::connect(listen)
        .infer("too early")
        .expect_problem(503);
    assert_eq!(problem["reason"], "no_gpu");
    // Long before they are warm.
    let status = server.terminate();
    assert!(status.success(), "{status}");
}

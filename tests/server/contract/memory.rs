//! What all requests hold together is bounded, wherever they stand.

use std::io::Write;
use std::net::Shutdown;
use std::thread;

use crate::support::server::{HOLDABLE, PATIENT, STUCK};
use crate::support::{Client, Server, light, post, unique, wait_for};

const HELD: &str = "funicular_request_memory_bytes";
const MIB: usize = 1 << 20;

/// Whoever has sent a part of a request may take as long as the test needs.
fn server(flags: &[&str]) -> Server {
    let small = [
        "--request-memory-mib",
        "1",
        "--header-timeout-ms",
        "600000",
        "--body-timeout-ms",
        "600000",
    ];
    Server::start(&[&small, flags].concat())
}

/// So many bytes of a request whose end never comes.
fn unfinished(server: &Server, bytes: usize) -> Client {
    let mut client = server.connect();
    client.send(format!(
        "POST /v1/inference HTTP/1.1\r\nHost: a\r\nX-Tier: paid\r\nX-Request-Id: part\r\nContent-Length: {MIB}\r\n\r\n{}",
        "x".repeat(bytes)
    ));
    client
}

/// Fills the memory with parts of bodies until one of them is told that there is none left.
fn fill(server: &Server) -> (Vec<Client>, Client) {
    let mut parts = Vec::new();
    loop {
        assert!(parts.len() < 100, "nobody is refused");
        let before = server.metric(HELD, &[]);
        assert!(before <= MIB as f64, "{before}");
        let client = unfinished(server, 100 << 10);
        wait_for("it to be held or refused", || {
            client.has_news() || server.metric(HELD, &[]) >= before + 90_000.0
        });
        if client.has_news() {
            return (parts, client);
        }
        parts.push(client);
    }
}

#[test]
fn unfinished_bodies_have_a_bound_together_and_small_requests_pass() {
    let _machine = light();
    let server = server(&["--sim-latency-ms", "1"]);
    let (parts, mut refused) = fill(&server);
    let response = refused.response();
    let problem = response.expect_problem(503);
    assert_eq!(
        (&problem["reason"], &problem["request_id"]),
        (&"memory".into(), &"part".into())
    );
    assert!(response.closes() && response.header("Retry-After") == Some("1"));
    refused.expect_close();
    assert!((5..=11).contains(&parts.len()), "{}", parts.len());
    let input = unique("small");
    server.infer(&input).expect_output(&input);
    let shed = [("tier", "paid"), ("reason", "memory")];
    wait_for("the refusal to be counted", || {
        server.metric("funicular_shed_total", &shed) >= 1.0
    });
    assert_eq!(
        server
            .metrics()
            .value("funicular_request_memory_limit_bytes", &[]),
        MIB as f64
    );
    // Those who leave give it back.
    drop(parts);
    wait_for("the memory to be free", || server.metric(HELD, &[]) == 0.0);
    let large = "l".repeat(60_000);
    server.infer(&large).expect_output(&large);
}

#[test]
fn inputs_that_wait_for_an_answer_count() {
    let _machine = light();
    let one = ["--sim-latency-ms", "5", "--gpus", "1"];
    let server = server(&[&one[..], &PATIENT, &HOLDABLE].concat());
    server.hold();
    let inputs: Vec<_> = (0..24)
        .map(|_| format!("{}{}", unique("x"), "y".repeat(60_000)))
        .collect();
    let mut clients: Vec<_> = inputs
        .iter()
        .map(|input| {
            let mut client = server.connect();
            client.send(post("", input));
            client
        })
        .collect();
    wait_for("each of them to be held or refused", || {
        let refused = clients.iter().filter(|client| client.has_news()).count();
        // Of each all but the first 4 KiB.
        let held = server.metric(HELD, &[]) as usize / 55_000;
        refused + held == clients.len()
    });
    server.release();
    let (mut answered, mut refused) = (0, 0);
    for (client, input) in clients.iter_mut().zip(&inputs) {
        let response = client.response();
        if response.status == 200 {
            response.expect_output(input);
            answered += 1;
        } else {
            assert_eq!(response.expect_problem(503)["reason"], "memory");
            refused += 1;
        }
    }
    // 18 of them fill a MiB.
    assert!((15..=18).contains(&answered), "{answered}");
    assert_eq!(refused, 24 - answered);
    wait_for("the memory to be free", || server.metric(HELD, &[]) == 0.0);
}

#[test]
fn heads_count_and_so_does_what_is_pipelined() {
    let _machine = light();
    let server = server(&STUCK);
    let mut heads: Vec<_> = (0..60)
        .map(|_| {
            let mut client = server.connect();
            client.send(format!(
                "GET / HTTP/1.1\r\nHost: a\r\nX: {}",
                "h".repeat(16_000)
            ));
            client
        })
        .collect();
    wait_for("the heads to be held", || {
        server.metric(HELD, &[]) >= 60.0 * 12_288.0
    });
    let mut behind: Vec<_> = (0..12)
        .map(|index| {
            let mut client = server.connect();
            client.send([post("", &format!("first {index}")), vec![b'G'; 60_000]].concat());
            client
        })
        .collect();
    wait_for("some to be refused", || behind.iter().any(Client::has_news));
    for client in behind.iter_mut().filter(|client| client.has_news()) {
        let problem = client.response().expect_problem(503);
        assert_eq!(problem["reason"], "memory");
    }
    heads.clear();
    // What lies behind requests that run stays, as they do.
    wait_for("the memory of the heads to be free", || {
        server.metric(HELD, &[]) <= 12.0 * 61_440.0
    });
}

#[test]
fn answers_that_are_not_taken_count() {
    let _machine = light();
    let server = server(&["--sim-latency-ms", "1"]);
    let input = "a".repeat(60_000);
    // Its answers fill the sockets' buffers, and then the server's.
    let mut client = server.connect();
    let mut sending = client.stream().try_clone().expect("a descriptor");
    let request = post("", &input);
    let sender = thread::spawn(move || {
        for _ in 0..1_000 {
            if sending.write_all(&request).is_err() {
                return;
            }
        }
    });
    wait_for("an answer to be kept", || {
        server.metric(HELD, &[]) >= 32_768.0
    });
    client.response().expect_output(&input);
    // The other thread has the socket as well.
    client.stream().shutdown(Shutdown::Both).expect("a socket");
    sender.join().expect("it ends");
    wait_for("the memory to be free", || server.metric(HELD, &[]) == 0.0);
}

//! What people complain about in other servers, tried on this one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::{Client, Server, heavy, in_parallel, light, post, timed, unique, wait_for};

/// One GPU whose batches take long, and an admission that leaves everything to the queue's bound.
fn slow_server(batch_ms: &str, flags: &[&str]) -> Server {
    let mut all = vec![
        "--gpus",
        "1",
        "--sim-latency-ms",
        batch_ms,
        "--deadline-ms",
        "60000",
    ];
    all.extend(["--target-latency-ms", "60000", "--backlog-yellow-s", "1000"]);
    all.extend(["--backlog-red-s", "2000", "--backlog-limit-s", "3000"]);
    all.extend(flags);
    Server::start(&all)
}

fn wait_waiting(server: &Server, count: usize) {
    wait_for("so many to wait", || {
        server.metric("funicular_queue_depth", &[]) == count as f64
    });
}

/// Sends an inference that is running when this returns.
fn occupy(server: &Server) -> (Client, String) {
    let filled = server.metric("funicular_slots_filled_total", &[]);
    let (mut client, input) = (server.connect(), unique("occupies the GPU"));
    client.send(post("", &input));
    wait_for("it to run", || {
        server.metric("funicular_slots_filled_total", &[]) > filled
    });
    (client, input)
}

#[test]
fn a_queue_bound_holds_for_arrivals_however_far_apart() {
    let _machine = light();
    let server = slow_server("4000", &["--batch-max", "4", "--queue-bound", "4"]);
    let (mut running, input) = occupy(&server);
    let mut waiting = Vec::new();
    for count in 1..=4 {
        let (mut client, input) = (server.connect(), unique("spaced"));
        client.send(post("", &input));
        wait_waiting(&server, count);
        waiting.push((client, input));
    }
    let refused = server.infer(&unique("one too many"));
    let problem = refused.expect_problem(429);
    assert_eq!(problem["reason"], "queue_full", "{problem}");
    assert!(refused.header("Retry-After").is_some(), "{refused:?}");
    running.response().expect_output(&input);
    for (mut client, input) in waiting {
        client.response().expect_output(&input);
    }
}

#[test]
fn a_deadline_counts_from_the_arrival_and_not_from_the_end_of_the_running_batch() {
    let _machine = light();
    let server = slow_server(
        "200",
        &["--sim-faults-admin", "--batch-timeout-ms", "30000"],
    );
    let slow = server.admin_get("/faults?kind=slow&factor=10");
    assert_eq!(slow.status, 200, "{slow:?}");
    let (mut running, input) = occupy(&server);
    // The running batch takes 2 s. Whoever waits for its end is told by the deadline, at the latest.
    let mut client = server.connect();
    client.send(post("X-Request-Timeout-Ms: 600\r\n", &unique("waits")));
    let (took, answer) = timed(|| client.response());
    assert!(matches!(answer.status, 429 | 504), "{answer:?}");
    assert!(took <= Duration::from_millis(1000), "{took:?}");
    running.response().expect_output(&input);
    // A few of the usual kind, or what was measured would say that a second is too short for any batch.
    for _ in 0..4 {
        let usual = unique("as usual");
        client.infer(&usual).expect_output(&usual);
    }
    // In a batch of its own that takes too long, the deadline comes on time as well.
    assert_eq!(server.admin_get("/faults?kind=slow&factor=10").status, 200);
    client.send(post(
        "X-Request-Timeout-Ms: 1000\r\n",
        &unique("is running"),
    ));
    let (took, answer) = timed(|| client.response());
    answer.expect_problem(504);
    assert!(
        took >= Duration::from_millis(990) && took <= Duration::from_millis(1400),
        "{took:?}"
    );
    // The late result is nobody's: the connection's next request gets its own.
    let next = unique("the next on this connection");
    client.infer(&next).expect_output(&next);
    assert_eq!(
        server
            .fresh_metrics()
            .value("funicular_late_results_total", &[]),
        1.0
    );
}

#[test]
fn a_burst_does_not_starve_the_health_check() {
    let _machine = heavy();
    let server = Server::start(&["--sim-latency-ms", "20"]);
    let is_over = AtomicBool::new(false);
    let worst = thread::scope(|scope| {
        let checks = scope.spawn(|| {
            let mut worst = Duration::ZERO;
            while !is_over.load(Ordering::Relaxed) {
                // Each on a connection of its own, as a load balancer does it.
                let (took, answer) = timed(|| server.get("/v2/health/ready"));
                assert_eq!(answer.status, 200, "{answer:?}");
                worst = worst.max(took);
            }
            worst
        });
        in_parallel(8, |_| {
            let mut clients: Vec<_> = (0..100).map(|_| server.connect()).collect();
            for _ in 0..10 {
                clients.iter_mut().for_each(|client| {
                    client.send(post("", &unique("burst")));
                });
                for client in &mut clients {
                    let answer = client.response();
                    assert!(matches!(answer.status, 200 | 429), "{answer:?}");
                }
            }
        });
        is_over.store(true, Ordering::Relaxed);
        checks.join().expect("health answers")
    });
    eprintln!(
        "health check in a burst: {:.1} ms at the worst",
        worst.as_secs_f64() * 1e3
    );
    assert!(worst <= Duration::from_secs(1), "{worst:?}");
}

#[test]
fn batching_goes_on_after_a_wave_of_cancellations() {
    let _machine = heavy();
    let server = Server::start(&["--gpus", "2", "--sim-latency-ms", "50", "--batch-max", "20"]);
    for wave in 0..5 {
        let mut clients: Vec<_> = (0..200).map(|_| server.connect()).collect();
        clients.iter_mut().for_each(|client| {
            client.send(post("", &unique("cancelled")));
        });
        // Half of them with FIN, half with RST.
        for (number, client) in clients.into_iter().enumerate() {
            if number % 2 == 0 {
                client.reset()
            } else {
                drop(client)
            }
        }
        let input = unique("comes after the wave");
        // Of the highest tier: those of the wave who are not seen to be gone yet may well be a reason to refuse free traffic.
        let ask = || {
            server
                .connect()
                .infer_with("X-Tier: enterprise\r\n", &input)
        };
        let (took, answer) = timed(ask);
        answer.expect_output(&input);
        assert!(took <= Duration::from_secs(5), "wave {wave}: {took:?}");
    }
    assert_eq!(
        server.fresh_metrics().value("funicular_queue_depth", &[]),
        0.0
    );
}

#[test]
fn no_gauge_keeps_what_left_early() {
    let _machine = light();
    let server = slow_server("300", &["--batch-max", "2"]);
    let (running, _) = occupy(&server);
    // Leaves while its batch runs.
    running.reset();
    let (mut running, input) = occupy(&server);
    // Leave while they wait: by hanging up, with FIN, past their deadline.
    let mut leaving: Vec<_> = (0..3).map(|_| server.connect()).collect();
    let headers = ["", "", "X-Request-Timeout-Ms: 305\r\n"];
    leaving
        .iter_mut()
        .zip(headers)
        .for_each(|(client, headers)| {
            client.send(post(headers, &unique("leaves early")));
        });
    let mut expiring = leaving.pop().expect("three");
    leaving.pop().expect("two").reset();
    let mut half = leaving.pop().expect("one");
    half.half_close();
    let answer = expiring.response();
    assert!(matches!(answer.status, 200 | 429 | 504), "{answer:?}");
    running.response().expect_output(&input);
    // Leave before they are let in.
    server.connect().send(&post("", "cut off")[..40]);
    assert_eq!(
        server
            .connect()
            .request(post("X-Tier: none\r\n", "x"))
            .status,
        400
    );
    drop((running, expiring, half));
    let at_rest = || {
        let metrics = server.metrics();
        let gauges = [
            "funicular_queue_depth",
            "funicular_retry_queue_depth",
            "funicular_connections",
        ];
        let gauges = gauges.map(|name| metrics.value(name, &[]));
        gauges == [0.0; 3] && server.status()["gpus"][0]["running"].is_null()
    };
    wait_for("every gauge to be 0", at_rest);
}

#[test]
fn readiness_says_no_when_every_worker_is_dead() {
    let _machine = light();
    let server = Server::start(&[
        "--gpus",
        "2",
        "--sim-latency-ms",
        "10",
        "--sim-faults-admin",
    ]);
    assert_eq!(server.get("/v2/health/ready").status, 200);
    assert_eq!(
        server
            .admin_get("/faults?kind=lost&every=1&ms=600000")
            .status,
        200
    );
    // A request of each GPU's next batch; they may be answered by the other one, or not at all.
    wait_for("both GPUs to be down", || {
        let _ = server.infer(&unique("provokes"));
        server.get("/v2/health/ready").status == 503
    });
    assert_eq!(server.get("/v2/health/live").status, 200);
    let (took, answer) = timed(|| server.infer(&unique("refused")));
    answer.expect_problem(503);
    assert!(took <= Duration::from_millis(500), "{took:?}");
    // The page is rendered now and then: one that says no may still be about the moment before the last GPU went down.
    let says_why = |gpu: &serde_json::Value| {
        gpu["up"] == false && gpu["why"].as_str().is_some_and(|why| !why.is_empty())
    };
    wait_for("the status to say so, and why", || {
        let status = server.status();
        let gpus = status["gpus"].as_array().expect("a list");
        status["ready"] == false && gpus.iter().all(says_why)
    });
}

#[test]
fn a_burst_into_full_queues_is_refused_and_breaks_nothing() {
    let _machine = heavy();
    let server = slow_server("100", &["--batch-max", "8", "--queue-bound", "8"]);
    let statuses = in_parallel(8, |_| {
        let mut clients: Vec<_> = (0..50).map(|_| server.connect()).collect();
        let mut statuses = Vec::new();
        for _ in 0..3 {
            let inputs: Vec<_> = clients.iter().map(|_| unique("burst")).collect();
            clients.iter_mut().zip(&inputs).for_each(|(client, input)| {
                client.send(post("", input));
            });
            for (client, input) in clients.iter_mut().zip(&inputs) {
                let answer = client.response();
                if answer.status == 200 {
                    answer.expect_output(input);
                }
                statuses.push(answer.status);
            }
        }
        statuses
    });
    let count = |status| {
        statuses
            .iter()
            .flatten()
            .filter(|&&other| other == status)
            .count()
    };
    assert_eq!(count(200) + count(429), 1200, "{statuses:?}");
    assert!(count(429) > 0, "the queue was full");
    assert!(!server.log().contains("panicked"), "{}", server.log());
    let input = unique("as ever");
    server.infer(&input).expect_output(&input);
}

//! What people complain about in other servers, tried on this one.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::server::{HOLDABLE, PATIENT};
use crate::support::{
    Client, Server, Until, heavy, in_parallel, light, post, timed, unique, wait_for,
};

/// One GPU whose batches can be held, and an admission that leaves everything to the queue's bound.
fn slow_server(batch_ms: &str, flags: &[&str]) -> Server {
    let one = ["--gpus", "1", "--sim-latency-ms", batch_ms];
    Server::start(&[&one[..], &PATIENT, &HOLDABLE, flags].concat())
}

/// Tickets that were launched so far.
fn launched(server: &Server) -> f64 {
    let metrics = server.fresh_metrics();
    metrics.value("funicular_slots_filled_total", &[])
}

/// Sends an inference whose batch is held, and runs when this returns.
fn occupy(server: &Server) -> (Client, String) {
    let before = launched(server);
    server.hold();
    let (mut client, input) = (server.connect(), unique("occupies the GPU"));
    client.send(post("", &input));
    wait_for("it to run", || launched(server) > before);
    (client, input)
}

#[test]
fn a_queue_bound_holds_for_arrivals_however_far_apart() {
    let _machine = light();
    let server = slow_server("5", &["--batch-max", "4", "--queue-bound", "4"]);
    let (mut running, input) = occupy(&server);
    let mut waiting = Vec::new();
    for count in 1..=4 {
        let (mut client, input) = (server.connect(), unique("spaced"));
        client.send(post("", &input));
        server.wait_waiting(count);
        waiting.push((client, input));
    }
    let refused = server.infer(&unique("one too many"));
    let problem = refused.expect_problem(429);
    assert_eq!(problem["reason"], "queue_full", "{problem}");
    assert!(refused.header("Retry-After").is_some(), "{refused:?}");
    server.release();
    running.response().expect_output(&input);
    for (mut client, input) in waiting {
        client.response().expect_output(&input);
    }
}

#[test]
fn a_deadline_counts_from_the_arrival_and_not_from_the_end_of_the_running_batch() {
    let _machine = light();
    let server = slow_server("5", &[]);
    let (mut running, input) = occupy(&server);
    // The running batch does not end. Whoever waits for that is told by the deadline, at the latest.
    let mut client = server.connect();
    client.send(post("X-Request-Timeout-Ms: 600\r\n", &unique("waits")));
    let answer = client.response();
    assert!(matches!(answer.status, 429 | 504), "{answer:?}");
    server.release();
    running.response().expect_output(&input);
    // In a batch of its own that does not end, the deadline comes on time as well.
    let mut expired = 0.0;
    let mut ask = || {
        let in_a_second = post("X-Request-Timeout-Ms: 1000\r\n", &unique("is running"));
        let (took, answer) = timed(|| client.request(&in_a_second));
        expired += f64::from(u8::from(answer.status == 504));
        (took, answer)
    };
    wait_for("it to run out of time while it runs", || {
        server.release();
        // What was held says that a second is too short for any batch, until that is measured anew.
        wait_for("a second to be enough", || ask().1.status == 200);
        server.hold();
        let before = launched(&server);
        let (took, answer) = ask();
        assert!(matches!(answer.status, 429 | 504), "{answer:?}");
        let on_time = answer.status == 429 || took >= Duration::from_millis(990);
        assert!(on_time, "{took:?}");
        // On a machine that stands still its time may be over before it runs.
        answer.status == 504 && launched(&server) > before
    });
    server.release();
    // The late result is nobody's: the connection's next request gets its own.
    let next = unique("the next on this connection");
    client.infer(&next).expect_output(&next);
    let late = || server.metric("funicular_late_results_total", &[]);
    wait_for("the late result to be counted", || late() >= 1.0);
    assert!(late() <= expired, "{} late of {expired}", late());
}

#[test]
fn a_burst_does_not_starve_the_health_check() {
    let _machine = heavy();
    let server = Server::start(&["--sim-latency-ms", "20"]);
    // The burst goes on until health was checked often enough, each time on a connection of its own, as a load balancer does
    // it.
    let (is_over, checked, enough) = (AtomicBool::new(false), AtomicUsize::new(0), 50);
    thread::scope(|scope| {
        let _over = Until(&is_over);
        let burst = |_| {
            let mut clients: Vec<_> = (0..100).map(|_| server.connect()).collect();
            while !is_over.load(Ordering::Relaxed) {
                clients.iter_mut().for_each(|client| {
                    client.send(post("", &unique("burst")));
                });
                for client in &mut clients {
                    let answer = client.response();
                    assert!(matches!(answer.status, 200 | 429), "{answer:?}");
                }
            }
        };
        let bursts = scope.spawn(move || in_parallel(8, burst));
        scope.spawn(|| {
            let _over = Until(&is_over);
            while checked.load(Ordering::Relaxed) < enough && !is_over.load(Ordering::Relaxed) {
                assert_eq!(server.get("/v2/health/ready").status, 200);
                checked.fetch_add(1, Ordering::Relaxed);
            }
        });
        wait_for("health to be told in the burst", || {
            checked.load(Ordering::Relaxed) >= enough || bursts.is_finished()
        });
    });
    assert_eq!(checked.load(Ordering::Relaxed), enough);
}

#[test]
fn batching_goes_on_after_a_wave_of_cancellations() {
    let _machine = heavy();
    let small = ["--gpus", "2", "--sim-latency-ms", "50", "--batch-max", "20"];
    let server = Server::start(&[&small[..], &PATIENT].concat());
    for _wave in 0..5 {
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
        // Of the highest tier: it need not wait until those of the wave are seen to be gone.
        server
            .connect()
            .infer_with("X-Tier: enterprise\r\n", &input)
            .expect_output(&input);
    }
    // Those of the last wave may wait behind it until it is their turn to be found gone.
    server.wait_waiting(0);
}

#[test]
fn no_gauge_keeps_what_left_early() {
    let _machine = light();
    let server = slow_server("300", &["--batch-max", "2"]);
    let (running, _) = occupy(&server);
    // Leaves while its batch runs.
    running.reset();
    server.release();
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
    assert!(matches!(answer.status, 429 | 504), "{answer:?}");
    server.release();
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
    // At once, and not when its deadline passes: that would be a 504.
    let problem = server.infer(&unique("refused")).expect_problem(503);
    assert_eq!(problem["reason"], "no_gpu", "{problem}");
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
    let mut server = slow_server("100", &["--batch-max", "8", "--queue-bound", "8"]);
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
    let input = unique("as ever");
    server.infer(&input).expect_output(&input);
    let log = server.end();
    assert!(!log.contains("panicked"), "{log}");
}

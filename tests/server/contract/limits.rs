//! Limits of what is read, of connections and of queues.

use crate::support::client::post_body;
use crate::support::server::{HOLDABLE, PATIENT, STUCK};
use crate::support::{Client, Server, light, post, unique, wait_for, wait_some};

#[test]
fn bodies_and_inputs_have_limits() {
    let server = Server::start(&[
        "--sim-latency-ms",
        "1",
        "--body-max-bytes",
        "2000",
        "--input-max-bytes",
        "1000",
    ]);
    let mut client = server.connect();
    let fits = "x".repeat(1_000);
    client.infer(&fits).expect_output(&fits);
    let too_long = client.infer(&"x".repeat(1_001));
    too_long.expect_problem(413);
    assert!(!too_long.closes(), "what was read in full need not close");
    client.infer("next").expect_output("next");

    // Declared too long: refused without waiting for it.
    let head = "POST /v1/inference HTTP/1.1\r\nHost: a\r\nContent-Length: 2001\r\n\r\n";
    let response = client.request(head);
    response.expect_problem(413);
    assert!(response.closes());
    client.expect_close();

    // Found out to be too long, in the middle of it.
    let mut client = server.connect();
    let chunk = "y".repeat(900);
    client.send_chunked("", &[&chunk, &chunk, &chunk]);
    let response = client.response();
    response.expect_problem(413);
    assert!(response.closes());
    client.expect_close();
}

#[test]
fn a_refused_upload_can_read_its_answer_while_it_is_still_sending() {
    let server = Server::start(&["--sim-latency-ms", "1", "--body-max-bytes", "100000"]);
    let mut client = server.connect();
    client.send("POST /v1/inference HTTP/1.1\r\nHost: a\r\nContent-Length: 4000000\r\n\r\n");
    for _ in 0..40 {
        if client.try_send("z".repeat(100_000)).is_err() {
            break;
        }
    }
    client.response().expect_problem(413);
}

#[test]
fn targets_and_headers_have_limits() {
    let server = Server::start(&["--sim-latency-ms", "1"]);
    let refused = |request: String, status: u16| {
        let mut client = server.connect();
        let response = client.request(request);
        response.expect_problem(status);
        assert!(response.closes());
        client.expect_close();
    };
    let get =
        |target: &str, headers: &str| format!("GET {target} HTTP/1.1\r\nHost: a\r\n{headers}\r\n");
    refused(get(&format!("/{}", "t".repeat(8_192)), ""), 414);
    refused(format!("GET /{}", "t".repeat(70_000)), 414);
    refused(get("/", &format!("X: {}\r\n", "h".repeat(100_000))), 431);
    refused(get("/", &"X: y\r\n".repeat(129)), 431);
    refused(
        format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}", "h".repeat(100_000)),
        431,
    );

    let mut client = server.connect();
    let target = format!("/?{}", "t".repeat(8_000));
    assert_eq!(client.request(get(&target, "")).status, 200);
    assert_eq!(
        client.request(get("/", &"X: y\r\n".repeat(120))).status,
        200
    );
    let header = format!("X: {}\r\n", "h".repeat(16_000));
    assert_eq!(client.request(get("/", &header)).status, 200);
}

#[test]
fn connections_beyond_the_cap_are_told_so() {
    let server = Server::start(&["--sim-latency-ms", "1", "--max-connections", "8"]);
    let mut served: Vec<Client> = (0..8).map(|_| server.connect()).collect();
    for client in &mut served {
        client.infer("x").expect_output("x");
    }
    for _ in 0..20 {
        let mut beyond = server.connect();
        // Whether they say something first or wait to be spoken to.
        let response = beyond.response();
        let problem = response.expect_problem(503);
        assert_eq!(problem["reason"], "connections");
        assert!(response.closes());
        beyond.expect_close();
    }
    for client in &mut served {
        client.infer("still here").expect_output("still here");
    }
    served.pop();
    wait_for("the place to be free", || {
        let mut client = server.connect();
        let asked = client.try_send(post("", "y"));
        let asked = asked.and_then(|()| client.try_response());
        matches!(asked, Ok(Some(response)) if response.status == 200)
    });
    let metrics = server.fresh_metrics();
    // Counted when they are taken, before they are told.
    assert!(metrics.value("funicular_connections_refused_total", &[]) >= 20.0);
    assert!(metrics.value("funicular_connections", &[]) >= 7.0);
}

#[test]
fn what_can_not_be_answered_in_time_is_shed_with_a_time_to_come_back() {
    let _machine = light();
    // One GPU, one ticket a batch, 200 ms each: five requests a second.
    let slow = ["--gpus", "1", "--batch-max", "1", "--sim-latency-ms", "200"];
    let server = Server::start(&[&slow[..], &HOLDABLE].concat());
    server.hold();
    let inputs: Vec<_> = (0..24).map(|_| unique("crowd")).collect();
    let ask = |input: &String| {
        let mut client = server.connect();
        client.send(post("", input));
        client
    };
    let mut clients: Vec<_> = inputs.iter().map(ask).collect();
    // While not even the first one is served.
    wait_for("some to be told", || clients.iter().any(Client::has_news));
    server.release();
    let mut served = 0;
    for (client, input) in clients.iter_mut().zip(&inputs) {
        let response = client.response();
        if response.status == 200 {
            response.expect_output(input);
            served += 1;
            continue;
        }
        let problem = response.expect_problem(429);
        assert_eq!(problem["tier"], "free");
        assert!(problem["reason"].is_string(), "{problem}");
        let retry_after = response.header("Retry-After").expect("a time");
        assert!(retry_after.parse::<u64>().expect("whole seconds") >= 1);
        assert!(problem["retry_after_ms"].is_u64(), "{problem}");
        assert!(!response.closes(), "shedding is no reason to close");
    }
    assert!((1..24).contains(&served), "{served}");
    let shed = f64::from(24 - served);
    server.expect_count("funicular_shed_total", &[("tier", "free")], shed);
    // Afterwards the server is as it was.
    wait_some("an answer", || {
        let response = server.infer("later");
        (response.status == 200).then_some(())
    });
}

#[test]
fn a_deadline_that_can_not_be_met_is_refused_at_once() {
    let _machine = light();
    let server = Server::start(&["--sim-latency-ms", "1000"]);
    let mut client = server.connect();
    let response = client.infer_with("X-Request-Timeout-Ms: 900\r\n", "x");
    let problem = response.expect_problem(429);
    assert_eq!(problem["reason"], "deadline_too_short");
    let detail = problem["detail"].as_str().expect("text");
    assert!(detail.contains("allows 900 ms: allow more"), "{detail}");
    // It would be refused at any other time too.
    assert_eq!(response.header("Retry-After"), None, "{response:?}");
    assert!(problem.get("retry_after_ms").is_none(), "{problem}");
    // It has not run, nor waited until its deadline had passed: that would be a 504.
    let metrics = server.fresh_metrics();
    assert_eq!(metrics.value("funicular_slots_filled_total", &[]), 0.0);
}

#[test]
fn an_output_beyond_its_limit_is_an_error_and_not_cut() {
    let server = Server::start(&["--sim-latency-ms", "1", "--output-max-bytes", "100"]);
    let mut client = server.connect();
    let fits = "x".repeat(100);
    client.infer(&fits).expect_output(&fits);
    let problem = client.infer(&"x".repeat(101)).expect_problem(500);
    assert!(
        problem["detail"]
            .as_str()
            .expect("text")
            .contains("100 bytes"),
        "{problem}"
    );
    client.infer(&fits).expect_output(&fits);
}

#[test]
fn a_rejected_body_costs_nothing_of_the_gpus() {
    let server = Server::start(&["--sim-latency-ms", "1"]);
    let mut client = server.connect();
    for _ in 0..50 {
        client.request(post_body("", "{}")).expect_problem(400);
    }
    assert_eq!(
        server
            .fresh_metrics()
            .value("funicular_slots_filled_total", &[]),
        0.0
    );
}

#[test]
fn a_full_queue_turns_everybody_else_away_at_once() {
    let _machine = light();
    // Nothing ever leaves, and no zone or forecast says no before the queue does.
    let full = ["--gpus", "1", "--batch-max", "10", "--queue-bound", "20"];
    let server = Server::start(&[&STUCK[..], &PATIENT, &full].concat());
    let mut waiting = Vec::new();
    let refusal = wait_some("the queue to be full", || {
        let mut client = server.connect();
        let (headers, input) = ("X-Tier: enterprise\r\n", unique("full"));
        client.send(post(headers, &input));
        wait_for("it to be taken in or refused", || {
            let depth = server.metric("funicular_queue_depth", &[("tier", "enterprise")]);
            client.has_news() || depth + 10.0 >= waiting.len() as f64 + 1.0
        });
        if client.has_news() {
            return Some(client.response());
        }
        waiting.push(client);
        None
    });
    let problem = refusal.expect_problem(429);
    assert_eq!(problem["reason"], "queue_full", "{problem}");
    assert_eq!(problem["tier"], "enterprise");
    // What fits: a batch under way, perhaps one bound ahead, and the bound of the queue.
    assert!((20..=60).contains(&waiting.len()), "{} wait", waiting.len());
    // Each tier has its own queue.
    let mut paid = server.connect();
    paid.send(post("X-Tier: paid\r\n", "next door"));
    wait_for("it to be taken in", || {
        server.metric("funicular_queue_depth", &[("tier", "paid")]) == 1.0
    });
    assert!(!paid.has_news());
}

//! What happens to those who take their time.

use std::time::Duration;

use crate::support::server::HOLDABLE;
use crate::support::{Client, Response, Server, light, post, timed, unique, wait_for, wait_some};

/// Short time-outs come from a file, as an operator would set them.
fn impatient(settings: &str) -> (tempfile::TempDir, Server) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("funicular.toml");
    std::fs::write(&path, settings).expect("writable");
    let path = path.to_str().expect("text");
    let server = Server::start(&["--config", path, "--sim-latency-ms", "1"]);
    (directory, server)
}

/// The time-out under test. The others are much longer.
const SHORT: Duration = Duration::from_millis(300);

fn expect_not_before_its_time(elapsed: Duration) {
    assert!(elapsed >= SHORT.mul_f64(0.9), "{elapsed:?}");
}

/// The 408 of the time-out under test, and of no other.
fn expect_408(response: &Response) {
    let problem = response.expect_problem(408);
    let detail = problem["detail"].as_str().expect("text");
    assert!(detail.ends_with("within 0.3 s"), "{detail}");
}

#[test]
fn a_head_that_does_not_arrive_in_full_gets_408() {
    let _machine = light();
    let (_file, server) = impatient("[timeouts]\nheader_ms = 300\n");
    for part in ["P", "POST /v1/inference HTTP/1.1\r\nHost: a\r\nX: "] {
        let mut client = server.connect();
        let (elapsed, response) = timed(|| client.request(part));
        expect_408(&response);
        assert!(response.closes());
        expect_not_before_its_time(elapsed);
        client.expect_close();
    }
}

#[test]
fn dripping_does_not_stretch_the_time_for_a_head() {
    let _machine = light();
    let (_file, server) = impatient("[timeouts]\nheader_ms = 300\n");
    let mut client = server.connect();
    let (elapsed, ()) = timed(|| {
        client.send("GET / HTTP/1.1\r\nHost: a\r\nX: ");
        wait_for("the server to have had enough", || {
            client.try_send("x").is_err() || client.has_news()
        });
    });
    expect_not_before_its_time(elapsed);
    expect_408(&client.response());
}

#[test]
fn a_body_that_does_not_arrive_in_full_gets_408() {
    let _machine = light();
    let (_file, server) = impatient("[timeouts]\nbody_ms = 300\n");
    for part in [
        "POST /v1/inference HTTP/1.1\r\nHost: a\r\nContent-Length: 20\r\n\r\n{\"input\"",
        "POST /v1/inference HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"inp\r\n",
    ] {
        let mut client = server.connect();
        let (elapsed, response) = timed(|| client.request(part));
        expect_408(&response);
        assert!(response.closes());
        expect_not_before_its_time(elapsed);
        client.expect_close();
    }
}

#[test]
fn a_quiet_connection_is_closed_without_a_word() {
    let _machine = light();
    let (_file, server) = impatient("[timeouts]\nidle_ms = 300\n");
    let mut client = server.connect();
    let (elapsed, ()) = timed(|| client.expect_close());
    expect_not_before_its_time(elapsed);
    let mut client = wait_some("a request in time", || ask_in_time(&server));
    let (elapsed, ()) = timed(|| client.expect_close());
    expect_not_before_its_time(elapsed);
}

/// Has a request answered, unless this thread stood still so long that the connection was closed before the request came.
fn ask_in_time(server: &Server) -> Option<Client> {
    let mut client = server.connect();
    let sent = client.try_send(post("", "x"));
    let response = sent.and_then(|()| client.try_response()).ok()??;
    response.expect_output("x");
    Some(client)
}

#[test]
fn a_request_that_waits_for_its_answer_is_not_idle() {
    let _machine = light();
    let impatient = [
        "--sim-latency-ms",
        "5",
        "--idle-timeout-ms",
        "300",
        "--header-timeout-ms",
        "300",
        "--body-timeout-ms",
        "300",
        "--write-timeout-ms",
        "300",
    ];
    let server = Server::start(&[&impatient[..], &HOLDABLE].concat());
    server.hold();
    let running = || server.metric("funicular_slots_filled_total", &[]) == 1.0;
    let mut client = wait_some("a request to come in time and to run", || {
        let mut client = server.connect();
        client.try_send(post("", "patience")).ok()?;
        wait_for("it to run or to be closed", || {
            client.has_news() || running()
        });
        running().then_some(client)
    });
    // Others who do nothing are closed meanwhile, one after another, and so its time is over more than once.
    for _ in 0..3 {
        server.connect().expect_close();
    }
    assert!(!client.has_news(), "it was closed, or answered too early");
    server.release();
    client.response().expect_output("patience");
}

/// A client that sends and sends, and reads nothing.
#[test]
fn answers_that_nobody_reads_end_the_connection() {
    let _machine = light();
    let (_file, server) = impatient("[timeouts]\nwrite_ms = 300\n");
    let mut client = narrow(&server);
    let request = post("", &"unread ".repeat(9_000));
    let sent = (0..2_000).try_for_each(|_| client.try_send(&request));
    assert!(sent.is_err(), "the server would have had to keep 120 MB");
    wait_for("the connection to be gone", || {
        server.metric("funicular_connections", &[]) == 0.0
    });
    let input = unique("alive");
    server.infer(&input).expect_output(&input);
}

#[test]
fn a_slow_reader_gets_everything_all_the_same() {
    let (_file, server) = impatient("[timeouts]\nwrite_ms = 20000\n");
    let mut client = server.connect();
    let inputs: Vec<_> = (0..200).map(|_| unique(&"long ".repeat(10_000))).collect();
    std::thread::scope(|scope| {
        let mut sending = client.stream().try_clone().expect("a socket");
        let inputs = &inputs;
        scope.spawn(move || {
            for input in inputs {
                std::io::Write::write_all(&mut sending, &post("", input))
                    .expect("the server reads");
            }
        });
        for input in inputs {
            client.response().expect_output(input);
        }
    });
}

/// A connection with as little room for what it has not read yet as the system allows.
fn narrow(server: &Server) -> Client {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
    let socket = socket.expect("a socket");
    socket.set_recv_buffer_size(4 << 10).expect("a socket");
    socket.connect(&server.listen().into()).expect("connected");
    Client::new(socket.into()).expect("a socket")
}

#[test]
fn a_request_that_comes_while_an_answer_is_still_being_written_is_answered() {
    // More than any system keeps for a socket.
    let server = Server::start(&[
        "--sim-latency-ms",
        "1",
        "--body-max-bytes",
        "20000000",
        "--input-max-bytes",
        "20000000",
        "--output-max-bytes",
        "20000000",
    ]);
    for _ in 0..3 {
        let mut client = narrow(&server);
        let long = unique(&"long ".repeat(2_000_000));
        client.send(post("", &long));
        // By then the server waits for room to write the rest.
        wait_for("the answer to begin", || client.has_news());
        let next = unique("next");
        client.send(post("", &next));
        client.response().expect_output(&long);
        client.response().expect_output(&next);
    }
}

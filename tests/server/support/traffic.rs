//! Callers who ask without pause while something happens to a server. Those who are told to come back later do so, or a
//! server that turns everybody away for a moment would be asked more often in it than in all the time before.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use funicular::clock;

use super::{Client, LOOK_EVERY, Response, Server, output_of, unique, wait_for};

/// What callers saw: the status of every request. An output that is not its input's fails the test at once.
pub fn traffic(server: &Server, callers: usize, meanwhile: impl FnOnce()) -> Vec<u16> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let call = || {
            let mut client = server.connect();
            let mut statuses = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let response = one(server, &mut client);
                statuses.push(response.status);
                if let Some(pause) = asked_to_wait(&response) {
                    let due = clock::now() + pause;
                    while !over.load(Ordering::Relaxed) && clock::now() < due {
                        thread::park_timeout(LOOK_EVERY);
                    }
                }
            }
            statuses
        };
        let threads: Vec<_> = (0..callers).map(|_| scope.spawn(call)).collect();
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(meanwhile));
        over.store(true, Ordering::Relaxed);
        let statuses = threads
            .into_iter()
            .flat_map(|thread| thread.join().expect("no wrong answer"));
        let statuses = statuses.collect();
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        statuses
    })
}

fn one(server: &Server, client: &mut Client) -> Response {
    let input = unique("Traffic");
    let response = client.infer(&input);
    if response.status == 200 {
        assert_eq!(
            response.output(),
            output_of(&input),
            "somebody else's answer"
        );
    }
    if response.closes() {
        *client = server.connect();
    }
    response
}

/// How long the server says to wait, if it does.
fn asked_to_wait(response: &Response) -> Option<Duration> {
    response.header("Retry-After")?;
    let pause = response.json()["retry_after_ms"].as_u64();
    pause.map(Duration::from_millis)
}

/// How many of the requests were not answered with 200.
pub fn failed(statuses: &[u16]) -> usize {
    statuses.iter().filter(|&&status| status != 200).count()
}

/// How often each status came, for a message.
pub fn described(statuses: &[u16]) -> String {
    let mut counts = std::collections::BTreeMap::new();
    for status in statuses {
        *counts.entry(status).or_insert(0) += 1;
    }
    format!("{counts:?}")
}

/// The requests that a server has answered with 200.
pub fn answered(server: &Server) -> f64 {
    server.metric("funicular_requests_total", &[("code", "200")])
}

/// Waits until the server has answered so many more.
pub fn wait_answered(server: &Server, more: usize) {
    let before = answered(server);
    wait_for("more answers", || answered(server) >= before + more as f64);
}

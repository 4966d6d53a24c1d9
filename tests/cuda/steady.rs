//! What the tests with real batch functions, in Python and on the stand-in for a GPU, stand on where a machine is slow: servers
//! whose limits nothing but a hang reaches, readings of `/status` that are not old, and callers each of whom is known to have
//! been answered.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use serde_json::Value;

use crate::support::{Server, output_of, unique, wait_for, wait_some};

/// Limits that a batch function which is merely short of a CPU does not reach, and a backlog that a slow one does not fill:
/// nobody is turned away, and no GPU given up, for want of speed. A test about one of these limits sets it.
const WIDE: [(&str, &str); 6] = [
    ("--deadline-ms", "40000"),
    ("--batch-timeout-ms", "30000"),
    ("--target-latency-ms", "40000"),
    ("--backlog-yellow-s", "1000"),
    ("--backlog-red-s", "2000"),
    ("--backlog-limit-s", "3000"),
];

/// `flags`, and wide limits where they set none.
pub fn widened<'a>(flags: &[&'a str]) -> Vec<&'a str> {
    let unset = WIDE.iter().filter(|(name, _)| !flags.contains(name));
    let wide = unset.flat_map(|(name, value)| [*name, *value]);
    wide.chain(flags.iter().copied()).collect()
}

/// `/status` as of after this call: the second reading that follows the present one was begun after that was served.
pub fn fresh_status(server: &Server) -> Value {
    let uptime = |status: &Value| status["uptime_seconds"].as_f64().expect("a number");
    let mut last = server.status();
    for _ in 0..2 {
        let before = uptime(&last);
        last = wait_some("a newer reading of the status", || {
            Some(server.status()).filter(|reading| uptime(reading) > before)
        });
    }
    last
}

/// Waits until every GPU serves as of after this call. One that has failed must have been missed before.
pub fn wait_all_back(server: &Server) {
    fresh_status(server);
    wait_for("all GPUs to be back", || {
        let status = server.status();
        let gpus = status["gpus"].as_array().expect("GPUs");
        gpus.iter().all(|gpu| gpu["up"] == true)
    });
}

/// How many answers each of the callers has had that ask without pause.
#[derive(Debug)]
pub struct Callers(Vec<AtomicU64>);

impl Callers {
    fn counts(&self) -> Vec<u64> {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        counts.collect()
    }

    /// Waits until each of them has been answered to something that it asked after this call: whatever they wait for now is
    /// over then, retries and all.
    pub fn wait_round(&self) {
        let before = self.counts();
        wait_for("an answer to each caller", || {
            let mut counts = self.counts().into_iter().zip(&before);
            counts.all(|(count, before)| count >= before + 2)
        });
    }
}

/// Ends what goes on until this is set, also when a test fails.
pub struct SetWhenDropped<'a>(pub &'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `trouble` while `count` callers ask without pause, from when each of them was answered until each was again. Every
/// one of them must always get its own answer.
pub fn under_traffic(server: &Server, count: usize, trouble: impl FnOnce(&Callers)) {
    let callers = Callers((0..count).map(|_| AtomicU64::new(0)).collect());
    let (over, failures) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for answered in &callers.0 {
            scope.spawn(|| {
                let mut client = server.connect();
                while !over.load(Ordering::Relaxed) {
                    let text = unique("Traffic");
                    let response = client.infer(&text);
                    if response.status != 200 || response.output() != output_of(&text) {
                        let failed = format!("{text}: {response:?}");
                        let mut failures = failures.lock().unwrap_or_else(PoisonError::into_inner);
                        failures.push(failed);
                    }
                    if response.closes() {
                        client = server.connect();
                    }
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let _over = SetWhenDropped(&over);
        callers.wait_round();
        trouble(&callers);
        callers.wait_round();
    });
    let failures = failures
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    let answers: u64 = callers.counts().iter().sum();
    let first = failures.first();
    assert!(
        first.is_none(),
        "{} of {answers} answers, the first of them: {}",
        failures.len(),
        first.expect("one")
    );
}

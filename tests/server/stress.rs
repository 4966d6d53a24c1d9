//! Thousands of real connections whose callers come and go as they like: nobody gets another one's answer, nobody gets
//! two, and at the end nothing is left. About 200,000 requests; `FUNICULAR_STRESS_ROUNDS` (100) makes it more or fewer.

use std::collections::BTreeMap;

use crate::support::server::PATIENT;
use crate::support::{
    Client, Metrics, Server, heavy, in_parallel, output_of, post, raise_open_files, unique,
};

/// Connections that a thread holds open at a time; it asks on all of them before it reads from any.
const HELD: usize = 50;

/// A small generator of its own: the same numbers every time, and a failure names its seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % sides
    }
}

/// What callers counted.
#[derive(Default)]
struct Tally {
    /// Answers read, by status.
    answered: BTreeMap<u16, u64>,
    /// Whole requests whose answer nobody waited for.
    left: u64,
}

impl Tally {
    fn add(&mut self, other: Tally) {
        for (status, count) in other.answered {
            *self.answered.entry(status).or_default() += count;
        }
        self.left += other.left;
    }

    fn of(&self, status: u16) -> u64 {
        self.answered.get(&status).copied().unwrap_or_default()
    }

    fn total(&self) -> u64 {
        self.answered.values().sum()
    }
}

/// A connection and the inputs whose answers it still owes, in order.
struct Caller {
    client: Client,
    owed: Vec<(String, bool)>,
}

impl Caller {
    fn new(server: &Server) -> Caller {
        Caller {
            client: server.connect(),
            owed: Vec::new(),
        }
    }

    /// Sends one request or a few, some of them in a hurry. False if the caller then vanishes.
    fn ask(&mut self, dice: &mut Dice, tally: &mut Tally) -> Manner {
        let mut bytes = Vec::new();
        for _ in 0..1 + dice.roll(20) / 18 {
            let hurry = dice.roll(10) == 0;
            let tier = ["enterprise", "paid", "free"][dice.roll(3) as usize];
            let deadline = if hurry {
                format!("X-Request-Timeout-Ms: {}\r\n", 1 + dice.roll(40))
            } else {
                String::new()
            };
            let input = unique("stress");
            bytes.extend(post(&format!("X-Tier: {tier}\r\n{deadline}"), &input));
            self.owed.push((input, hurry));
        }
        let manner = Manner::draw(dice);
        match manner {
            Manner::HalfARequest => {
                // Only the last one is cut; those before it are whole.
                let cut = bytes.len() - 1 - dice.roll(30) as usize;
                bytes.truncate(cut);
                tally.left += self.owed.len() as u64 - 1;
            }
            Manner::Fin | Manner::Reset => tally.left += self.owed.len() as u64,
            Manner::Stays => {}
        }
        self.client.send(bytes);
        manner
    }

    /// Reads all answers that are owed.
    fn read(&mut self, tally: &mut Tally) {
        for (input, hurry) in self.owed.drain(..) {
            let response = self.client.response();
            match response.status {
                200 => assert_eq!(response.output(), output_of(&input)),
                status => {
                    assert!(hurry && matches!(status, 429 | 504), "{response:?}");
                    response.expect_problem(status);
                }
            }
            *tally.answered.entry(response.status).or_default() += 1;
        }
        assert!(!self.client.has_news(), "one answer too many");
    }
}

/// How a caller goes on after it has asked.
#[derive(Clone, Copy, PartialEq)]
enum Manner {
    Stays,
    Fin,
    Reset,
    HalfARequest,
}

impl Manner {
    fn draw(dice: &mut Dice) -> Manner {
        match dice.roll(100) {
            0..2 => Manner::Fin,
            2..4 => Manner::Reset,
            4..6 => Manner::HalfARequest,
            _ => Manner::Stays,
        }
    }
}

/// Asks on [`HELD`] connections at a time, so many times over.
fn crowd(server: &Server, seed: u64, rounds: usize) -> Tally {
    let mut dice = Dice(seed);
    let mut tally = Tally::default();
    let mut callers: Vec<_> = (0..HELD).map(|_| Caller::new(server)).collect();
    for _ in 0..rounds {
        let manners: Vec<_> = callers
            .iter_mut()
            .map(|caller| caller.ask(&mut dice, &mut tally))
            .collect();
        for (caller, manner) in callers.iter_mut().zip(manners) {
            if manner == Manner::Stays {
                caller.read(&mut tally);
                continue;
            }
            let left = std::mem::replace(caller, Caller::new(server));
            if manner == Manner::Reset {
                left.client.reset();
            }
        }
    }
    tally
}

#[test]
fn nobody_gets_a_wrong_a_second_or_no_answer() {
    let _machine = heavy();
    let descriptors = raise_open_files();
    let threads = 40.min((descriptors / 3) / HELD);
    let rounds = std::env::var("FUNICULAR_STRESS_ROUNDS")
        .ok()
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(100);
    // Nobody who has time is refused, however long a stall makes a batch look.
    let quick = ["--sim-latency-ms", "10", "--sim-jitter", "0.5"];
    let quiet = ["--log-level", "warn"];
    let mut server = Server::start(&[&quick[..], &quiet, &PATIENT].concat());
    let mut tally = Tally::default();
    for part in in_parallel(threads, |thread| crowd(&server, thread as u64, rounds)) {
        tally.add(part);
    }
    server.wait_for("everything to be over", |server| {
        let metrics = server.metrics();
        let is_zero = |name| metrics.value(name, &[]) == 0.0;
        is_zero("funicular_connections")
            && is_zero("funicular_queue_depth")
            && is_zero("funicular_backlog_seconds")
    });
    // The last batch may be on its way although nobody waits for it any more.
    server.wait_for("every launched ticket to be counted", |server| {
        let metrics = server.metrics();
        metrics.value("funicular_slots_filled_total", &[]) == delivered(&metrics)
    });
    let metrics = server.fresh_metrics();
    eprintln!(
        "{} answers {:?}, {} left without",
        tally.total(),
        tally.answered,
        tally.left
    );
    expect_consistent(&tally, &metrics);
    assert!(
        tally.of(200) * 10 >= tally.total() * 7,
        "{:?}",
        tally.answered
    );
    server.infer("alive").expect_output("alive");
    server.terminate();
    assert!(server.wait_exit().success());
    assert_eq!(server.log(), "", "nothing to warn of");
}

/// What became of launched tickets: each led to an answer, or to a result that came too late.
fn delivered(metrics: &Metrics) -> f64 {
    let answered = metrics.value("funicular_requests_total", &[("code", "200")]);
    answered + metrics.value("funicular_late_results_total", &[])
}

/// What the server counted can be what its callers saw, no more and no less.
fn expect_consistent(tally: &Tally, metrics: &Metrics) {
    let counted = |code: &str| metrics.value("funicular_requests_total", &[("code", code)]);
    let mut answered_to_the_gone = 0.0;
    for code in ["200", "429", "504"] {
        let seen = tally.of(code.parse().expect("a number")) as f64;
        assert!(
            counted(code) >= seen,
            "{code}: {} counted, {seen} seen",
            counted(code)
        );
        answered_to_the_gone += counted(code) - seen;
    }
    let all = metrics.value("funicular_requests_total", &[]);
    let known: f64 = ["200", "429", "504", "499"].into_iter().map(counted).sum();
    assert_eq!(all, known, "no other code, 500 least of all");
    // Those who left were answered in vain, found gone, or, behind another request on a broken connection, never read.
    let left = answered_to_the_gone + counted("499");
    assert!(left <= tally.left as f64, "{left} of {}", tally.left);
    // A late result had a caller that timed out or went.
    let late = metrics.value("funicular_late_results_total", &[]);
    let abandoned = metrics.value("funicular_abandoned_total", &[]);
    assert!(late <= abandoned, "{late} of {abandoned}");
    let given_up = counted("504") + counted("499");
    assert!(
        abandoned >= given_up - metrics.value("funicular_shed_total", &[]),
        "{abandoned} of {given_up}"
    );
    let filled = metrics.value("funicular_slots_filled_total", &[]);
    assert_eq!(filled, delivered(metrics), "launched = answered + late");
}

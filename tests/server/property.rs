//! The whole under random faults: every request gets exactly one answer, and each 200 is its caller's own output.
//!
//! Callers of three kinds share a server whose GPUs are lost, hang, block, panic and slow down at random, and whose
//! batch function raises now and then; rounds follow each other until there were enough requests
//! (`FUNICULAR_REQUESTS`, by default 200,000). The faults follow from `FUNICULAR_SEED`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use funicular_perf::record::{Outcome, Sample};
use funicular_perf::units::{Share, Span};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::load::{Load, Seen, status};
use crate::support::{Server, Until, heavy, wait_for};

const POISON: &str = "poison";
const ROUND: Duration = Duration::from_secs(5);
const REQUESTS_DEFAULT: usize = 200_000;

fn setting<T: std::str::FromStr>(name: &str, default: T) -> T {
    let given = std::env::var(name).ok();
    given.map_or(default, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number"))
    })
}

/// A fault that costs a GPU a reset. The pauses between them leave it time to be trusted again.
fn hard_fault(random: &mut SmallRng) -> String {
    let kind = ["lost", "hang", "panic", "block"][random.random_range(0..4)];
    format!(
        "kind={kind}&gpu={}&ms={}",
        random.random_range(0..4),
        random.random_range(0..400)
    )
}

/// A fault that costs a batch some time. The raising ones make innocent inputs look guilty if they strike twice in the
/// wrong places, so they come only where `may_raise`.
fn soft_fault(random: &mut SmallRng, may_raise: bool) -> String {
    let gpu = random.random_range(0..4);
    match random.random_range(0..3) {
        0 if may_raise => format!("kind=raise&gpu={gpu}"),
        1 if may_raise => format!("kind=count&gpu={gpu}"),
        _ => format!("kind=slow&gpu={gpu}&factor={}", random.random_range(2..8)),
    }
}

/// Nothing but the poison is at fault: so it must be before the first caller comes.
fn only_the_poison(server: &Server) {
    server.script("kind=clear");
    server.script(&format!("kind=raise&marker={POISON}"));
}

/// Scripts faults until `is_over`.
fn torment(server: &Server, random: &mut SmallRng, may_raise: bool, is_over: &AtomicBool) {
    let mut until_hard = 0;
    while !is_over.load(Ordering::Relaxed) {
        if until_hard == 0 {
            until_hard = random.random_range(10..40);
            server.script(&hard_fault(random));
        }
        until_hard -= 1;
        server.script(&soft_fault(random, may_raise));
        thread::park_timeout(Duration::from_millis(random.random_range(20..200)));
    }
}

/// Callers of three kinds: patient ones with now and then a bad input, impatient ones, and some that hang up.
fn callers(lines: &std::path::Path, seed: u64) -> [Load; 3] {
    let tiers = Some("enterprise=10,paid=30,free=60".to_owned());
    let some = |connections| {
        Load::closed(connections, ROUND).with(|options| {
            options.seed = Some(seed);
            options.tiers.clone_from(&tiers);
        })
    };
    [
        some(150).with(|options| options.lines = Some(lines.to_owned())),
        some(100).with(|options| {
            options.deadline = Some(Span(Duration::from_millis(60)));
            options.size = Some("16-2000".to_owned());
        }),
        some(50).with(|options| {
            options.hangup = Some(Share(0.05));
            options.hangup_within = Some(Span(Duration::from_millis(30)));
        }),
    ]
}

fn round(server: &Server, lines: &std::path::Path, number: u64, seed: u64) -> Vec<Seen> {
    let mut random = SmallRng::seed_from_u64(seed ^ number);
    let may_raise = number % 2 == 1;
    let is_over = AtomicBool::new(false);
    let loads = callers(lines, seed ^ number);
    only_the_poison(server);
    let seen: Vec<Seen> = thread::scope(|scope| {
        let _over = Until(&is_over);
        scope.spawn(|| torment(server, &mut random, may_raise, &is_over));
        let running: Vec<_> = loads
            .iter()
            .map(|load| scope.spawn(|| load.run(server)))
            .collect();
        let seen = running
            .into_iter()
            .map(|load| load.join().expect("every 200 is its caller's own"));
        seen.collect()
    });
    for sample in seen.iter().flat_map(|seen| &seen.samples) {
        let allowed = matches!(
            sample.outcome,
            Outcome::HangUp | Outcome::Status(200 | 422 | 429 | 503 | 504)
        );
        assert!(allowed, "seed {seed}, round {number}: {sample:?}");
    }
    for seen in &seen {
        let guilty = |sample: &Sample| seen.input(sample).contains(POISON);
        let mistaken = |sample: &&Sample| match sample.outcome {
            Outcome::Status(200) => guilty(sample),
            Outcome::Status(422) => !may_raise && !guilty(sample),
            _ => false,
        };
        let mistakes: Vec<_> = seen
            .samples
            .iter()
            .filter(|sample| mistaken(sample))
            .collect();
        assert!(
            mistakes.is_empty(),
            "seed {seed}, round {number}: {mistakes:?}"
        );
    }
    seen
}

#[test]
fn under_random_faults_every_request_gets_exactly_one_answer_and_its_own() {
    let _machine = heavy();
    let (enough, seed) = (
        setting("FUNICULAR_REQUESTS", REQUESTS_DEFAULT),
        setting("FUNICULAR_SEED", 1),
    );
    let flags = [
        "--gpus",
        "4",
        "--sim-latency-ms",
        "10",
        "--batch-timeout-ms",
        "150",
        "--sim-faults-admin",
        // As everybody gets it: whoever runs out of time is one of those who are told something.
        "--deadline-ms",
        "auto",
    ];
    let server = Server::start(&[&flags[..], &["--log-level", "warn"]].concat());
    let lines = tempfile::NamedTempFile::new().expect("a file");
    let text: String = (0..500)
        .map(|n| format!("{} {n}\n", if n == 0 { POISON } else { "fine" }))
        .collect();
    std::fs::write(lines.path(), text).expect("written");

    let (mut sent, mut good, mut left, mut number) = (0, 0, 0, 0);
    while sent < enough {
        number += 1;
        let seen = round(&server, lines.path(), number, seed);
        let count = |outcome| seen.iter().map(|seen| seen.count(outcome)).sum::<usize>();
        sent += seen.iter().map(|seen| seen.samples.len()).sum::<usize>();
        good += count(status(200));
        left += count(Outcome::HangUp);
    }
    eprintln!("{sent} requests in {number} rounds: {good} good, {left} hung up");
    assert!(
        good * 2 > sent,
        "{good} of {sent}: too many faults to say anything"
    );
    let at_rest = || {
        let metrics = server.metrics();
        [
            "funicular_queue_depth",
            "funicular_retry_queue_depth",
            "funicular_connections",
        ]
        .iter()
        .all(|gauge| metrics.value(gauge, &[]) == 0.0)
    };
    wait_for("every gauge to be 0", at_rest);
    // The server's own account: nothing was answered twice, nothing forgotten.
    let metrics = server.fresh_metrics();
    let tiers = ["enterprise", "paid", "free"];
    let total = |tier| metrics.value("funicular_requests_total", &[("tier", tier)]);
    let counted = tiers.map(total).iter().sum::<f64>() as usize;
    assert!(
        (sent - left..=sent).contains(&counted),
        "{counted} counted, {sent} sent, {left} hung up"
    );
    assert_eq!(
        metrics.value("funicular_abandoned_total", &[("reason", "dropped")]),
        0.0
    );
}

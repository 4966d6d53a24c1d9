//! Zones, waiting tickets, `Retry-After` and rules, in examples; [`feasibility`] and [`properties`] hold the rest.

mod feasibility;
mod properties;

use std::time::Duration;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const DEADLINE: Duration = Duration::from_secs(2);

/// The rules with a default deadline that the operator set, whatever a batch takes.
fn rules() -> Rules {
    Rules {
        deadline: DefaultDeadline::Fixed(DEADLINE),
        ..Rules::default()
    }
}

fn admission() -> Admission {
    Admission::new(rules())
}

/// `gpus` GPUs, all busy, of 100 in 100 ms.
fn busy(gpus: usize, waiting: [u32; 3]) -> Load {
    Load {
        waiting,
        idle_gpus: 0,
        capacity: gpus as f64 * 1_000.0,
        batch_time: Duration::from_millis(100),
        healthy: gpus,
    }
}

/// A pool of which `idle` GPUs are idle, with batches of `batch_max` in `batch_time`.
fn pool(healthy: usize, idle: usize, batch_max: u32, batch_time: Duration) -> Load {
    Load {
        waiting: [0; 3],
        idle_gpus: idle,
        capacity: healthy as f64 * f64::from(batch_max) / batch_time.as_secs_f64().max(1e-3),
        batch_time,
        healthy,
    }
}

fn reason(verdict: Verdict) -> Option<Reason> {
    match verdict {
        Verdict::Shed { reason, .. } => Some(reason),
        _ => None,
    }
}

fn retry_after(verdict: Verdict) -> Duration {
    match verdict {
        Verdict::Shed { retry_after, .. } | Verdict::NoHealthyGpu { retry_after } => retry_after,
        Verdict::Admit => panic!("admitted"),
        Verdict::DeadlineTooShort { .. } => panic!("nothing to wait for"),
    }
}

/// So long a target that only the zones decide.
fn zones_only() -> Admission {
    Admission::new(Rules {
        target_latency: SECOND * 1_000,
        ..Rules::default()
    })
}

const PATIENT: Duration = Duration::from_secs(1_000_000);

#[test]
fn zones_begin_where_the_table_says_and_follow_the_healthy_gpus() {
    let admission = admission();
    let table = [
        (0, Zone::Green),
        (199, Zone::Green),
        (200, Zone::Yellow),
        (499, Zone::Yellow),
        (500, Zone::Red),
        (999, Zone::Red),
        (1_000, Zone::Limit),
    ];
    for gpus in [1, 4, 14] {
        for (waiting, zone) in table {
            let load = busy(gpus, [0, 0, waiting * gpus as u32]);
            assert_eq!(admission.zone(&load), zone, "{waiting} on each of {gpus}");
        }
    }
    assert_eq!(admission.zone(&busy(4, [0, 0, 1_600])), Zone::Yellow);
    assert_eq!(admission.zone(&busy(2, [0, 0, 1_600])), Zone::Red);
    assert_eq!(admission.zone(&busy(0, [0; 3])), Zone::Limit);
}

#[test]
fn each_zone_sheds_whom_the_table_says() {
    let expected = [
        (100, [1_000, 1_000, 1_000]),
        (350, [1_000, 1_000, 500]),
        (600, [1_000, 800, 0]),
        (750, [1_000, 500, 0]),
        (1_000, [0, 0, 0]),
    ];
    for (waiting, counts) in expected {
        for (tier, count) in Tier::ALL.into_iter().zip(counts) {
            let admission = zones_only();
            // A second apart, so that the arrival rates stay near zero and leave the capacity alone.
            let let_in = (0..1_000)
                .map(|n| Time::ZERO + 100 * n * SECOND)
                .filter(|&now| {
                    admission.judge(now, tier, PATIENT, &busy(1, [0, 0, waiting])) == Verdict::Admit
                })
                .count();
            // Red is 0.5 s to 1 s, yellow 0.2 s to 0.5 s; one off where a share is not exact in binary.
            assert!(let_in.abs_diff(count) <= 1, "{tier} at {waiting}: {let_in}");
        }
    }
}

#[test]
fn reasons_name_the_zone() {
    let judge = |tier, waiting| {
        let admission = zones_only();
        let verdicts =
            (0..3).map(|_| admission.judge(Time::ZERO, tier, PATIENT, &busy(1, [0, 0, waiting])));
        verdicts.filter_map(reason).next()
    };
    assert_eq!(judge(Tier::Free, 350), Some(Reason::ZoneYellow));
    assert_eq!(judge(Tier::Free, 600), Some(Reason::ZoneRed));
    assert_eq!(judge(Tier::Paid, 750), Some(Reason::ZoneRed));
    assert_eq!(judge(Tier::Enterprise, 999), None);
    assert_eq!(judge(Tier::Enterprise, 1_000), Some(Reason::Limit));
    let labels: std::collections::BTreeSet<_> = Reason::ALL.map(Reason::label).into();
    assert_eq!(labels.len(), Reason::ALL.len());
}

#[test]
fn waiting_tickets_are_let_go_when_their_deadline_cannot_be_met_any_more() {
    let admission = admission();
    let look = |gpus, position, remaining_ms| {
        let remaining = Duration::from_millis(remaining_ms);
        admission.rejudge(
            Time::ZERO,
            Tier::Paid,
            position,
            remaining,
            &busy(gpus, [0, 4_000, 0]),
        )
    };
    // 2,000 ahead take 0.5 s on four GPUs, 1 s on two; the batch takes another 0.1 s.
    assert_eq!(look(4, 2_001, 601), None);
    assert_eq!(
        look(4, 2_001, 599).map(|shed| shed.reason),
        Some(Reason::Infeasible)
    );
    assert_eq!(
        look(2, 2_001, 601).map(|shed| shed.reason),
        Some(Reason::Infeasible)
    );
    assert_eq!(
        look(0, 2_001, 601),
        None,
        "what to do without a GPU is not a matter of load"
    );
    let idle = Load {
        idle_gpus: 1,
        ..busy(4, [0, 1, 0])
    };
    assert_eq!(
        admission.rejudge(Time::ZERO, Tier::Paid, 1, Duration::ZERO, &idle),
        None
    );
}

#[test]
fn retry_after_is_the_time_to_drain_below_what_refused() {
    let judge = |tier, waiting| {
        let admission = zones_only();
        let mut verdicts =
            (0..9).map(|_| admission.judge(Time::ZERO, tier, PATIENT, &busy(1, [0, 0, waiting])));
        retry_after(verdicts.find(|verdict| *verdict != Verdict::Admit).unwrap()).as_millis()
    };
    assert_eq!(judge(Tier::Free, 350), 150);
    assert_eq!(judge(Tier::Free, 800), 300);
    assert_eq!(judge(Tier::Free, 3_000), 2_500);
    assert_eq!(judge(Tier::Paid, 3_000), 2_000);
    assert_eq!(judge(Tier::Enterprise, 4_000_000), 60_000);
}

#[test]
fn the_header_rounds_up_to_whole_seconds_from_one_to_sixty() {
    let cases = [
        (0, 1),
        (1, 1),
        (1_000, 1),
        (1_001, 2),
        (59_999, 60),
        (60_001, 60),
        (u64::MAX, 60),
    ];
    for (millis, seconds) in cases {
        assert_eq!(
            retry_after_seconds(Duration::from_millis(millis)),
            seconds,
            "{millis}"
        );
    }
    assert_eq!(retry_after_seconds(Duration::MAX), 60);
}

#[test]
fn a_probe_is_due_when_everybody_is_refused_for_a_second() {
    let admission = admission();
    let at = Time::from_millis_f64;
    let slow = pool(1, 1, 100, 3 * SECOND);
    assert!(!admission.probe_due(at(5_000.0), at(0.0)), "nobody came");
    let verdict = admission.judge(at(5_000.0), Tier::Paid, SECOND, &slow);
    let batch_time = 3 * SECOND;
    assert_eq!(verdict, Verdict::DeadlineTooShort { batch_time });
    assert!(admission.probe_due(at(5_100.0), at(3_000.0)));
    let crowded = Load {
        waiting: [0, 1_000, 0],
        ..pool(1, 0, 100, SECOND)
    };
    let verdict = admission.judge(at(5_000.0), Tier::Paid, DEADLINE, &crowded);
    assert_eq!(reason(verdict), Some(Reason::Infeasible));
    assert!(admission.probe_due(at(5_100.0), at(3_000.0)));
    assert!(
        !admission.probe_due(at(5_100.0), at(4_900.0)),
        "this GPU has just run a batch"
    );
    assert!(
        !admission.probe_due(at(9_000.0), at(3_000.0)),
        "nobody comes any more"
    );
    admission.judge(at(5_200.0), Tier::Paid, 4 * SECOND, &slow);
    assert!(
        !admission.probe_due(at(5_300.0), at(3_000.0)),
        "a batch of real tickets does it"
    );
}

#[test]
fn contradicting_rules_are_refused() {
    assert_eq!(Rules::default().validate(), Ok(()));
    let with = |change: fn(&mut Rules)| {
        let mut rules = Rules::default();
        change(&mut rules);
        rules.validate()
    };
    assert!(with(|rules| rules.yellow = 0.5).is_err());
    assert!(with(|rules| rules.limit = f64::NAN).is_err());
    assert!(with(|rules| rules.yellow = 0.0).is_err());
    assert_eq!(
        with(|rules| rules.min_share = [0.5, 0.5, 0.1]),
        Err(RulesError::MinShare)
    );
    assert_eq!(
        with(|rules| rules.min_share[0] = f64::NAN),
        Err(RulesError::MinShare)
    );
    assert!(with(|rules| rules.target_latency = Duration::ZERO).is_err());
    assert!(with(|rules| rules.deadline = DefaultDeadline::Fixed(Duration::ZERO)).is_err());
}

/// Run by hand in a release build: `cargo test --release -- --ignored --nocapture judge_costs`.
#[test]
#[ignore = "measures time"]
fn judge_costs_well_under_a_third_of_a_microsecond() {
    let admission = admission();
    for (name, tier, waiting) in [
        ("enterprise, let in", Tier::Enterprise, [10, 10, 10]),
        ("paid, let in", Tier::Paid, [10, 10, 10]),
        ("free, let in", Tier::Free, [10, 10, 10]),
        ("free, shed", Tier::Free, [10, 10, 3_000]),
    ] {
        let load = busy(4, waiting);
        let start = crate::clock::now();
        for n in 0..1_000_000_u64 {
            let now = Time::from_nanos(n * 1_000_000);
            std::hint::black_box(admission.judge(now, tier, DEADLINE, &load));
        }
        let nanos = crate::clock::now().since(start).as_nanos() / 1_000_000;
        println!("{name}: {nanos} ns");
        assert!(nanos < 300);
    }
}

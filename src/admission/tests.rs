use std::time::Duration;

use proptest::prelude::*;

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
fn a_lone_server_lets_in_whoever_finds_it_idle_for_any_batch_time() {
    for micros in [
        0,
        1,
        1_000,
        100_000,
        1_999_999,
        2_000_000,
        2_000_001,
        60_000_000,
        u64::MAX,
    ] {
        for batch_max in [1, 2, 100] {
            let load = pool(1, 1, batch_max, Duration::from_micros(micros));
            for tier in Tier::ALL {
                let verdict = admission().judge(Time::ZERO, tier, DEADLINE, &load);
                assert_eq!(verdict, Verdict::Admit, "{batch_max} in {micros} µs");
            }
        }
    }
}

#[test]
fn a_server_of_two_seconds_a_batch_serves_those_who_have_the_time() {
    let busy = pool(1, 0, 100, 2 * SECOND);
    // Found busy with the default of 2 s, its own batch alone would take all of it.
    let verdict = admission().judge(Time::ZERO, Tier::Free, DEADLINE, &busy);
    assert_eq!(reason(verdict), Some(Reason::Infeasible));
    for waiting in [0, 1, 99] {
        let load = Load {
            waiting: [0, 0, waiting],
            ..busy
        };
        let verdict = admission().judge(Time::ZERO, Tier::Free, 6 * SECOND, &load);
        assert_eq!(verdict, Verdict::Admit, "{waiting} waiting");
    }
    let warnings = rules().warnings(2 * SECOND);
    assert!(
        warnings[0].contains("504") && warnings[0].contains("deadline_ms to 5100 or more"),
        "{warnings:?}"
    );
    assert!(rules().warnings(SECOND)[0].contains("busy"));
    assert_eq!(
        rules().warnings(Duration::from_millis(101)),
        Vec::<String>::new()
    );
    assert_eq!(rules().warnings(Duration::ZERO), Vec::<String>::new());
}

#[test]
fn one_full_batch_per_gpu_may_always_wait() {
    for (gpus, batch_max, batch) in [
        (1, 1, 2 * SECOND),
        (4, 1, SECOND),
        (1, 100, 2 * SECOND),
        (3, 7, SECOND / 5),
    ] {
        let mut load = pool(gpus, 0, batch_max, batch);
        load.waiting[2] = gpus as u32 * batch_max - 1;
        let verdict = admission().judge(Time::ZERO, Tier::Free, batch * 10, &load);
        assert_eq!(
            verdict,
            Verdict::Admit,
            "{gpus} GPUs, {batch_max} in {batch:?}"
        );
    }
}

#[test]
fn a_callers_own_deadline_is_kept_or_refused_at_once() {
    let millis = Duration::from_millis;
    let idle = pool(4, 4, 100, millis(100));
    let judge =
        |deadline, load: &Load| reason(admission().judge(Time::ZERO, Tier::Paid, deadline, load));
    let shortest = admission().judge(Time::ZERO, Tier::Paid, millis(100), &idle);
    assert_eq!(shortest, TOO_SHORT);
    assert_eq!(judge(millis(101), &idle), None);
    // A batch that is being filled may be held for another 40 ms, or launch sooner: 20 ms more than a batch is too
    // little.
    let held = Load {
        waiting: [0, 3, 0],
        ..idle
    };
    assert_eq!(judge(millis(120), &held), Some(Reason::Infeasible));
    assert_eq!(judge(millis(141), &held), None);
    // 400 waiting of 4,000 per second: 0.1 s + 0.1 s must be within 80 % of the deadline.
    assert_eq!(
        judge(millis(249), &busy(4, [0, 400, 0])),
        Some(Reason::Infeasible)
    );
    assert_eq!(judge(millis(251), &busy(4, [0, 400, 0])), None);
    // And within 80 % of the target of 500 ms.
    assert_eq!(judge(DEADLINE, &busy(4, [0, 1_199, 0])), None);
    assert_eq!(
        judge(DEADLINE, &busy(4, [0, 1_201, 0])),
        Some(Reason::Infeasible)
    );
    // Those below do not count: they are claimed later.
    assert_eq!(judge(DEADLINE, &busy(4, [0, 100, 1_500])), None);
}

/// Lets in `rate` requests per second of `tier` for three seconds, up to the returned time.
fn feed(admission: &Admission, tier: Tier, rate: u64) -> Time {
    let count = 3 * rate;
    for n in 0..count {
        let now = Time::from_nanos(n * 1_000_000_000 / rate);
        assert_eq!(
            admission.judge(now, tier, DEADLINE, &busy(4, [0; 3])),
            Verdict::Admit
        );
    }
    Time::ZERO + 3 * SECOND
}

#[test]
fn a_lower_tier_is_judged_by_what_is_left_to_it() {
    let admission = admission();
    let now = feed(&admission, Tier::Enterprise, 3_000);
    let judge = |tier, waiting| admission.judge(now, tier, DEADLINE, &busy(4, waiting));
    // 1,000 per second are left, so 300 may wait for 0.3 s.
    assert_eq!(judge(Tier::Free, [0, 0, 280]), Verdict::Admit);
    let refused = judge(Tier::Free, [0, 0, 1_000]);
    assert_eq!(reason(refused), Some(Reason::Infeasible));
    // The 700 too many drain at 1,000 per second.
    assert!(
        (retry_after(refused).as_secs_f64() - 0.7).abs() < 0.1,
        "{refused:?}"
    );
    assert_eq!(judge(Tier::Enterprise, [280, 0, 1_000]), Verdict::Admit);
}

/// With batches of 100 ms.
const TOO_SHORT: Verdict = Verdict::DeadlineTooShort {
    batch_time: Duration::from_millis(100),
};

#[test]
fn who_asks_for_less_than_a_batch_is_told_so_whatever_waits() {
    let ms = Duration::from_millis;
    for load in [
        pool(4, 4, 100, ms(100)),
        busy(4, [0; 3]),
        busy(4, [0, 0, 100_000]),
    ] {
        for tier in Tier::ALL {
            let judge = |deadline| admission().judge(Time::ZERO, tier, deadline, &load);
            assert_eq!(judge(ms(50)), TOO_SHORT);
            assert_eq!(judge(ms(100)), TOO_SHORT);
            assert_ne!(judge(ms(101)), TOO_SHORT);
        }
    }
    // It is no matter of load, but a batch time that keeps everybody out is put to the test.
    let admission = admission();
    let now = Time::ZERO + 10 * SECOND;
    let verdict = admission.judge(now, Tier::Free, ms(50), &pool(4, 4, 100, ms(100)));
    assert_eq!(verdict, TOO_SHORT);
    assert!(admission.probe_due(now, Time::ZERO));
}

#[test]
fn the_servers_own_deadline_is_never_too_short() {
    let rules = Rules {
        deadline: DefaultDeadline::Fixed(Duration::from_millis(50)),
        ..rules()
    };
    let admission = Admission::new(rules);
    let deadline = Duration::from_millis(50);
    let idle = pool(1, 1, 100, Duration::from_millis(100));
    let judge = |load: &Load| admission.judge(Time::ZERO, Tier::Free, deadline, load);
    assert_eq!(judge(&idle), Verdict::Admit);
    // When the GPU is idle again it will be let in.
    assert_eq!(
        retry_after(judge(&busy(1, [0; 3]))),
        Duration::from_millis(100)
    );
}

#[test]
fn no_refusal_for_lack_of_time_says_to_come_back_at_once() {
    let admission = admission();
    // Only a GPU that is idle answers within 110 ms, and one is when a batch has ended.
    let tight = admission.judge(Time::ZERO, Tier::Free, SECOND * 11 / 100, &busy(4, [0; 3]));
    assert_eq!(reason(tight), Some(Reason::Infeasible));
    assert_eq!(retry_after(tight), Duration::from_millis(100));
    // The tiers above leave next to nothing: until the 10 that wait are gone.
    let now = feed(&admission, Tier::Enterprise, 3_950);
    let starved = admission.judge(now, Tier::Free, DEADLINE, &busy(4, [10, 0, 0]));
    assert_eq!(reason(starved), Some(Reason::Infeasible));
    assert!(
        (retry_after(starved).as_secs_f64() - 0.05).abs() < 0.01,
        "{starved:?}"
    );
    let waiting = admission.rejudge(Time::ZERO, Tier::Free, 1, SECOND / 20, &busy(1, [0, 0, 1]));
    assert!(waiting.is_none_or(|shed| shed.retry_after >= Duration::from_millis(100)));
}

#[test]
fn what_was_refused_takes_no_capacity_from_those_below() {
    let admission = admission();
    let mut now = Time::ZERO;
    for n in 0..20_000 {
        now = Time::from_nanos(n * 100_000);
        let verdict = admission.judge(now, Tier::Enterprise, SECOND / 20, &busy(4, [0; 3]));
        assert_eq!(verdict, TOO_SHORT);
    }
    let verdict = admission.judge(now, Tier::Free, DEADLINE, &busy(4, [1, 0, 100]));
    assert_eq!(verdict, Verdict::Admit);
}

#[test]
fn a_batch_that_is_being_filled_takes_along_whoever_has_the_time_for_it() {
    // By the formula even an empty queue would be too long: 1.9 s is more than 80 % of 2 s.
    let mut load = pool(1, 1, 100, Duration::from_millis(1_900));
    for (waiting, expected) in [(0, true), (1, true), (99, true), (100, false)] {
        load.waiting[2] = waiting;
        let verdict = admission().judge(Time::ZERO, Tier::Free, DEADLINE, &load);
        assert_eq!(verdict == Verdict::Admit, expected, "{waiting} waiting");
    }
}

#[test]
fn with_nothing_left_a_tier_is_refused_only_while_higher_ones_wait() {
    let admission = admission();
    let now = feed(&admission, Tier::Enterprise, 4_000);
    let judge = |waiting| admission.judge(now, Tier::Free, DEADLINE, &busy(4, waiting));
    assert_eq!(reason(judge([1, 0, 0])), Some(Reason::Infeasible));
    assert_eq!(judge([0, 0, 1]), Verdict::Admit);
}

#[test]
fn a_promised_share_is_capacity_that_nobody_takes() {
    let mut rules = rules();
    rules.min_share[Tier::Free.index()] = 0.1;
    assert_eq!(rules.validate(), Ok(()));
    let admission = Admission::new(rules);
    let now = feed(&admission, Tier::Enterprise, 4_000);
    // 400 per second are promised: 100 of its own wait 0.25 s, whatever else waits.
    let judge = |tier, waiting| admission.judge(now, tier, DEADLINE, &busy(4, waiting));
    assert_eq!(judge(Tier::Free, [500, 0, 100]), Verdict::Admit);
    assert_eq!(
        reason(judge(Tier::Free, [500, 0, 200])),
        Some(Reason::Infeasible)
    );
    let look =
        |position| admission.rejudge(now, Tier::Free, position, SECOND, &busy(4, [500, 0, 500]));
    assert_eq!(look(500 + 300), None);
    assert!(look(500 + 400).is_some());
    // Enterprise has the other 90 % while free tickets wait.
    assert_eq!(judge(Tier::Enterprise, [1_100, 0, 0]), Verdict::Admit);
    assert_eq!(
        reason(judge(Tier::Enterprise, [1_100, 0, 1])),
        Some(Reason::Infeasible)
    );
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

fn any_tier() -> impl Strategy<Value = Tier> {
    prop::sample::select(Tier::ALL.to_vec())
}

fn any_number() -> impl Strategy<Value = f64> {
    prop_oneof![
        any::<f64>(),
        Just(f64::NAN),
        Just(f64::INFINITY),
        Just(0.0),
        0.0..10_000.0
    ]
}

fn any_duration() -> impl Strategy<Value = Duration> {
    prop_oneof![
        any::<u64>().prop_map(Duration::from_nanos),
        (0_u64..4_000).prop_map(Duration::from_millis),
        Just(Duration::MAX),
        Just(Duration::ZERO),
    ]
}

prop_compose! {
    fn any_load()(
        waiting in prop_oneof![any::<[u32; 3]>(), prop::array::uniform3(0_u32..5_000)],
        idle_gpus in prop_oneof![any::<usize>(), 0_usize..4],
        capacity in any_number(),
        batch_time in any_duration(),
        healthy in prop_oneof![any::<usize>(), 0_usize..8],
    ) -> Load {
        Load { waiting, idle_gpus, capacity, batch_time, healthy }
    }
}

prop_compose! {
    /// Settings of any kind, contradicting ones too.
    fn any_rules()(
        thresholds in prop::array::uniform3(any_number()),
        min_share in prop::array::uniform3(any_number()),
        spans in prop::array::uniform3(any_duration()),
    ) -> Rules {
        let [yellow, red, limit] = thresholds;
        let [target_latency, deadline, hold_max] = spans;
        let deadline = DefaultDeadline::Fixed(deadline);
        Rules { target_latency, deadline, hold_max, yellow, red, limit, min_share, ..Rules::default() }
    }
}

prop_compose! {
    /// A pool as a server knows it, up to deep in overload.
    fn sensible_load()(
        gpus in 1_usize..8,
        idle in 0_usize..8,
        batch_max in 1_u32..200,
        millis in 1_u64..3_000,
        depths in prop::array::uniform3(0.0_f64..1.5),
    ) -> Load {
        let mut load = pool(gpus, idle.min(gpus), batch_max, Duration::from_millis(millis));
        load.waiting = depths.map(|depth| (depth * load.capacity) as u32);
        load
    }
}

proptest! {
    #[test]
    fn every_number_gets_a_verdict(
        rules in any_rules(),
        asks in prop::collection::vec((any::<u64>(), any_tier(), any_duration(), any_load(), any::<usize>()), 1..20),
    ) {
        let _ = (rules.validate(), rules.warnings(asks[0].2));
        let admission = Admission::new(rules);
        for (nanos, tier, span, load, position) in asks {
            let now = Time::from_nanos(nanos);
            match admission.judge(now, tier, span, &load) {
                Verdict::Admit => prop_assert!(load.healthy > 0),
                Verdict::DeadlineTooShort { batch_time } => prop_assert!(span <= batch_time),
                verdict => prop_assert!(retry_after(verdict) <= RETRY_AFTER_MAX),
            }
            let shed = admission.rejudge(now, tier, position, span, &load);
            prop_assert!(shed.is_none_or(|shed| shed.retry_after <= RETRY_AFTER_MAX));
            prop_assert!(load.healthy > 0 || shed.is_none());
            admission.zone(&load);
            admission.probe_due(now, Time::ZERO);
        }
    }

    #[test]
    fn nobody_is_let_in_at_the_limit(load in sensible_load(), tier in any_tier()) {
        let admission = admission();
        let verdict = admission.judge(Time::ZERO, tier, PATIENT, &load);
        prop_assert!(admission.zone(&load) != Zone::Limit || verdict != Verdict::Admit);
    }

    #[test]
    fn a_shallower_backlog_never_lets_in_less(
        load in sensible_load(),
        tier in any_tier(),
        fewer in prop::array::uniform3(0.0_f64..1.0),
        deadline in 1_u64..10_000,
        before in 0_usize..5,
    ) {
        let mut shallower = load;
        for (waiting, part) in shallower.waiting.iter_mut().zip(fewer) {
            *waiting = (f64::from(*waiting) * part) as u32;
        }
        // Two with the same credit: both have let in a share at the same earlier requests.
        let pair = [admission(), admission()];
        for one in &pair {
            for _ in 0..before {
                one.judge(Time::ZERO, tier, PATIENT, &busy(1, [0, 0, 333]));
            }
        }
        let deadline = Duration::from_millis(deadline);
        let deep = pair[0].judge(Time::ZERO, tier, deadline, &load);
        let shallow = pair[1].judge(Time::ZERO, tier, deadline, &shallower);
        prop_assert!(deep != Verdict::Admit || shallow == Verdict::Admit, "{deep:?} {shallow:?}");
    }

    #[test]
    fn a_higher_tier_is_let_in_wherever_a_lower_one_is(
        load in sensible_load(),
        deadline in 1_u64..10_000,
        enterprise in 0_u64..500,
        paid in 0_u64..500,
    ) {
        let admission = admission();
        for n in 0..enterprise.max(paid) {
            let now = Time::from_millis_f64(n as f64);
            let idle = pool(4, 4, 100, Duration::from_millis(100));
            if n < enterprise { admission.judge(now, Tier::Enterprise, DEADLINE, &idle); }
            if n < paid { admission.judge(now, Tier::Paid, DEADLINE, &idle); }
        }
        let now = Time::from_millis_f64(500.0);
        let deadline = Duration::from_millis(deadline);
        let [enterprise, paid, free] =
            Tier::ALL.map(|tier| admission.judge(now, tier, deadline, &load) == Verdict::Admit);
        prop_assert!(!free || paid);
        prop_assert!(!paid || enterprise);
    }
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

#[test]
fn with_more_patience_than_traffic_even_the_first_counts_the_hold() {
    let patient = Rules {
        patience: f64::INFINITY,
        ..rules()
    };
    let load = pool(1, 1, 100, Duration::from_millis(20));
    let verdict = |rules: Rules, deadline| {
        let millis = Duration::from_millis(deadline);
        Admission::new(rules).judge(Time::ZERO, Tier::Free, millis, &load)
    };
    assert_eq!(verdict(rules(), 50), Verdict::Admit);
    // A batch of 20 ms behind a hold of 40 ms.
    assert_ne!(verdict(patient.clone(), 50), Verdict::Admit);
    assert_eq!(verdict(patient, 70), Verdict::Admit);
}

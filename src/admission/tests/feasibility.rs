//! Who can be answered in time: deadlines, the target, and what tiers leave to those below.

use super::*;

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

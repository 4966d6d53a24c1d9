//! What holds for any load, rules and times.

use proptest::prelude::*;

use super::*;

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

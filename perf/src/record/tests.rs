use super::*;
use proptest::prelude::*;

const WINDOW: Window = Window {
    from_ns: SECOND,
    to_ns: 5 * SECOND,
};

fn any_sample() -> impl Strategy<Value = Sample> {
    let outcome = prop_oneof![
        5 => Just(Outcome::Status(200)),
        1 => Just(Outcome::Status(429)),
        1 => Just(Outcome::Timeout),
        1 => Just(Outcome::Wrong),
        1 => Just(Outcome::HangUp),
    ];
    (
        0usize..3,
        outcome,
        0u64..6 * SECOND,
        0u64..SECOND,
        0u64..SECOND,
    )
        .prop_map(|(tier, outcome, due, wait, rest)| {
            let written = due + wait;
            Sample {
                number: due,
                tier,
                outcome,
                due_ns: due,
                written_ns: Some(written),
                done_ns: written + rest,
            }
        })
}

#[test]
fn after_a_stop_only_what_came_before_it_is_measured() {
    let sample = |due_ns, done_ns| Sample {
        number: 0,
        tier: 0,
        outcome: Outcome::Status(200),
        due_ns,
        written_ns: Some(due_ns),
        done_ns,
    };
    let mut recorder = Recorder::new(1, WINDOW, false);
    recorder.stopped(3 * SECOND);
    recorder.ended(sample(2 * SECOND, 2 * SECOND));
    recorder.ended(sample(2 * SECOND, 4 * SECOND));
    assert_eq!(recorder.tiers[0].good_in_window, 1);
    assert_eq!(recorder.count(|_| true), 2);
    let mut total = Recorder::new(1, WINDOW, false);
    total.merge(recorder);
    assert_eq!(total.window().to_ns, 3 * SECOND);
    total.stopped(0);
    assert_eq!(total.window().to_ns, WINDOW.from_ns, "in the warm-up");
}

proptest! {
    #[test]
    fn threads_merge_to_what_one_thread_would_have_recorded(
        samples in prop::collection::vec(any_sample(), 0..200),
        threads in 1usize..5,
    ) {
        let mut whole = Recorder::new(3, WINDOW, false);
        let mut parts: Vec<Recorder> = (0..threads).map(|_| Recorder::new(3, WINDOW, false)).collect();
        for (index, &sample) in samples.iter().enumerate() {
            for recorder in [&mut whole, &mut parts[index % threads]] {
                recorder.noticed(sample.due_ns, sample.due_ns + 5);
                recorder.written(sample.due_ns, Some(7));
                recorder.ended(sample);
            }
        }
        let mut merged = Recorder::new(3, WINDOW, false);
        let mut interval = IntervalRecord::new(0, 3);
        for mut part in parts {
            interval.merge(&part.take_interval());
            merged.merge(part);
        }
        prop_assert_eq!(whole.take_interval(), interval);
        prop_assert_eq!(&merged.tiers, &whole.tiers);
        prop_assert_eq!(&merged.lateness, &whole.lateness);
        prop_assert_eq!(merged.sent, whole.sent);
        prop_assert_eq!(merged.first_good_ns, whole.first_good_ns);
        prop_assert_eq!(merged.mismatches.wrong, whole.mismatches.wrong);
        let measured = samples.iter().filter(|sample| WINDOW.holds(sample.due_ns)).count();
        prop_assert_eq!(merged.count(|_| true), measured as u64);
    }
}

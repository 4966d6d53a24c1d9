use proptest::prelude::*;

use super::*;

const MINUTE: u64 = 60 * SECOND;

fn rate(text: &str, spacing: Spacing) -> Arrivals {
    Arrivals::Rate {
        profile: text.parse().expect("a profile"),
        spacing,
    }
}

#[test]
fn a_constant_rate_ticks_like_a_metronome() {
    let arrivals = Arrivals::Rate {
        profile: Profile::constant(1000.0),
        spacing: Spacing::Constant,
    };
    let schedule = arrivals.schedule(SECOND, 1).expect("short");
    assert_eq!(schedule.len(), 1000);
    for (index, &at) in schedule.iter().enumerate() {
        assert!(at.abs_diff(index as u64 * 1_000_000) <= 1, "{index}: {at}");
    }
}

#[test]
fn poisson_gaps_have_the_mean_and_the_spread_of_an_exponential() {
    let arrivals = Arrivals::Rate {
        profile: Profile::constant(5000.0),
        spacing: Spacing::Poisson,
    };
    let schedule = arrivals.schedule(MINUTE, 7).expect("short");
    let gaps: Vec<f64> = schedule
        .windows(2)
        .map(|pair| (pair[1] - pair[0]) as f64 / 1e9)
        .collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
    assert!((mean * 5000.0 - 1.0).abs() < 0.01, "mean {mean}");
    assert!(
        (variance.sqrt() / mean - 1.0).abs() < 0.02,
        "a coefficient of variation of {}",
        variance.sqrt() / mean
    );
}

#[test]
fn steps_and_ramps_send_what_lies_under_the_curve() {
    let ramp = rate("0:100,30s:10000,60s:10000", Spacing::Constant);
    let schedule = ramp.schedule(MINUTE, 1).expect("short");
    let first_half = schedule.iter().filter(|&&at| at < 30 * SECOND).count();
    assert!(first_half.abs_diff(151_500) <= 1, "{first_half}");
    assert!(schedule.len().abs_diff(451_500) <= 1);

    let step = rate(
        "0:1000,20s:1000,20s:12000,40s:12000,40s:0,50s:0",
        Spacing::Constant,
    );
    let schedule = step.schedule(50 * SECOND, 1).expect("short");
    let count = |from: u64, to: u64| {
        schedule
            .iter()
            .filter(|&&at| (from * SECOND..to * SECOND).contains(&at))
            .count()
    };
    assert!(count(0, 20).abs_diff(20_000) <= 1);
    assert!(count(20, 40).abs_diff(240_000) <= 1);
    assert_eq!(count(41, 50), 0);
}

#[test]
fn a_profile_that_starts_silent_sends_its_first_request_after_the_silence() {
    let schedule = rate("0:0,5s:0,5s:10", Spacing::Constant)
        .schedule(6 * SECOND, 1)
        .expect("short");
    assert_eq!(schedule.len(), 10);
    assert!(schedule[0] >= 5 * SECOND);
}

#[test]
fn profiles_that_make_no_sense_are_refused() {
    for (text, error) in [
        ("", ProfileError::Point(String::new())),
        ("0:100,fast", ProfileError::Point("fast".into())),
        ("0:-1", ProfileError::Point("0:-1".into())),
        ("0:100,20s:5,10s:5", ProfileError::Backwards("10s:5".into())),
        ("5s:100", ProfileError::Start),
        ("0:0,10s:0", ProfileError::Empty),
    ] {
        assert_eq!(text.parse::<Profile>(), Err(error), "{text}");
    }
}

#[test]
fn a_schedule_too_long_to_hold_is_refused_before_it_is_made() {
    let arrivals = Arrivals::Rate {
        profile: Profile::constant(1e9),
        spacing: Spacing::Constant,
    };
    assert_eq!(arrivals.schedule(MINUTE, 1), Err(TooLong));
}

#[test]
fn both_trace_formats_give_the_same_arrivals() {
    let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n\
                 2024-02-28 23:59:59.5000000,374,44\n2024-02-29 00:00:00.5000000,1,2\n2024-03-01 00:00:00.0000000,3,4\n";
    let plain = "100.5\n# noon\n101.5\n\n86501.0\n";
    let azure = Trace::parse("azure", azure).expect("a trace");
    let plain = Trace::parse("azure", plain).expect("a trace");
    assert_eq!(azure, plain);
    assert!((azure.native_rate() - 2.0 / 86_400.5).abs() < 1e-12);
}

#[test]
fn a_trace_is_scaled_to_the_rate_and_starts_over() {
    let trace = Trace::parse("t", "0\n1\n3\n4\n").expect("a trace");
    let arrivals = Arrivals::Trace {
        trace,
        rate: Some(10.0),
    };
    let schedule = arrivals.schedule(100 * SECOND, 1).expect("short");
    assert_eq!(schedule.len(), 1000);
    // Native: 3 gaps in 4 s; at 10/s everything is 13.3 times as fast, and a period lasts 0.4 s.
    assert!(schedule[1].abs_diff(75_000_000) <= 1);
    assert_eq!(schedule[4], 400_000_000);
}

#[test]
fn bad_traces_say_where() {
    let error = Trace::parse("t", "TIMESTAMP\n1\nsoon\n").expect_err("no number");
    assert!(
        matches!(&error, TraceError::Line { line: 3, text } if text == "soon"),
        "{error}"
    );
    let error = Trace::parse("t", "# down\n3\n3\n2\n").expect_err("descending");
    assert!(
        matches!(&error, TraceError::Backwards { line: 4, text } if text == "2"),
        "{error}"
    );
    assert!(matches!(
        Trace::parse("t", "7\n7\n"),
        Err(TraceError::TooShort)
    ));
    assert!(matches!(Trace::parse("t", ""), Err(TraceError::TooShort)));
}

proptest! {
    #[test]
    fn any_schedule_is_sorted_inside_the_run_and_repeats_with_its_seed(
        rates in prop::collection::vec((0.0f64..20.0, 0.0f64..2000.0), 1..6),
        poisson: bool,
        seed: u64,
        duration in 1u64..20,
    ) {
        let mut time = 0.0;
        let mut text = format!("0:{}", rates[0].1 + 1.0);
        for (gap, rate) in &rates {
            time += gap;
            text.push_str(&format!(",{time}:{rate}"));
        }
        let spacing = if poisson { Spacing::Poisson } else { Spacing::Constant };
        let arrivals = rate(&text, spacing);
        let schedule = arrivals.schedule(duration * SECOND, seed).expect("short");
        prop_assert!(schedule.is_sorted());
        prop_assert!(schedule.iter().all(|&at| at < duration * SECOND));
        prop_assert_eq!(&schedule, &arrivals.schedule(duration * SECOND, seed).expect("short"));

        let Arrivals::Rate { profile, .. } = &arrivals else { unreachable!() };
        let expected = profile.integral(duration as f64);
        let slack = if poisson { 6.0 * expected.sqrt() + 6.0 } else { 1.5 };
        prop_assert!((schedule.len() as f64 - expected).abs() <= slack, "{} of {expected}", schedule.len());
    }
}

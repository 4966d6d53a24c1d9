use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

fn written(request: &Request, traffic: &Traffic, number: u64) -> String {
    let mut writer = RequestWriter::new(request, traffic).expect("a request");
    let mut out = Vec::new();
    writer.write(traffic, number, traffic.plan(number).tier, &mut out);
    String::from_utf8(out).expect("text")
}

#[test]
fn a_request_names_its_tier_and_its_length() {
    let mut traffic = Traffic::simple(20);
    traffic.mix = "paid=1".parse().expect("a mix");
    let mut request = Request::inference("127.0.0.1:8080");
    request.deadline_ms = Some(250);
    let text = written(&request, &traffic, 35);
    assert!(
        text.starts_with("POST /v1/inference HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n"),
        "{text}"
    );
    assert!(
        text.contains("\r\nX-Tier: paid\r\nX-Request-Timeout-Ms: 250\r\n"),
        "{text}"
    );
    assert!(
        text.ends_with("\r\nContent-Length: 33\r\n\r\n{\"input\": \"q00001-00000000z one\"}"),
        "{text}"
    );
}

#[test]
fn a_template_takes_the_input_everywhere_and_only_json_escapes_it() {
    let mut traffic = Traffic::simple(16);
    traffic.inputs = Inputs::Lines {
        name: "f".into(),
        lines: vec!["say \"hé\"".into()],
    };
    let mut request = Request::inference("h");
    request.template = "{input}|{input}".into();
    let text = written(&request, &traffic, 0);
    let escaped = r#"q00001-000000000 say \"hé\""#;
    assert!(
        text.ends_with(&format!(
            "Content-Length: {}\r\n\r\n{escaped}|{escaped}",
            2 * escaped.len() + 1
        )),
        "{text}"
    );
    request.content_type = "text/plain".into();
    assert!(
        written(&request, &traffic, 0)
            .ends_with("\r\n\r\nq00001-000000000 say \"hé\"|q00001-000000000 say \"hé\"")
    );
}

#[test]
fn requests_that_would_break_the_wire_are_refused() {
    let traffic = Traffic::simple(16);
    let refused = |change: fn(&mut Request)| {
        let mut request = Request::inference("h");
        change(&mut request);
        RequestWriter::new(&request, &traffic).expect_err("refused")
    };
    assert_eq!(
        refused(|r| r.template = "{}".into()),
        RequestError::NoPlaceholder
    );
    assert!(matches!(
        refused(|r| r.path = "v1".into()),
        RequestError::Path(_)
    ));
    assert!(matches!(
        refused(|r| r.path = "/a b".into()),
        RequestError::Path(_)
    ));
    assert!(matches!(
        refused(|r| r.headers = vec!["X: a\r\nY: b".into()]),
        RequestError::Header(_)
    ));
    assert!(matches!(
        refused(|r| r.headers = vec!["no colon".into()]),
        RequestError::Header(_)
    ));
}

#[test]
fn the_mix_and_the_hangups_follow_their_shares() {
    let mut traffic = Traffic::simple(16);
    traffic.mix = "enterprise=10, paid=30, free=60".parse().expect("a mix");
    traffic.hangup_share = 0.01;
    let mut counts = [0u32; 3];
    let mut hangups = 0;
    for number in 0..100_000 {
        let plan = traffic.plan(number);
        counts[plan.tier] += 1;
        hangups += u32::from(plan.hangup_after_ns.is_some());
        assert!(
            plan.hangup_after_ns
                .is_none_or(|after| after <= traffic.hangup_within_ns)
        );
        assert_eq!(plan, traffic.plan(number));
    }
    for (count, share) in counts.iter().zip([0.1, 0.3, 0.6]) {
        assert!((f64::from(*count) / 1e5 - share).abs() < 0.01, "{counts:?}");
    }
    assert!((800..1200).contains(&hangups), "{hangups}");
}

#[test]
fn bad_mixes_and_sizes_are_refused() {
    assert!(matches!(
        "paid".parse::<TierMix>(),
        Err(TierMixError::Share(_))
    ));
    assert!(matches!(
        "paid=x".parse::<TierMix>(),
        Err(TierMixError::Share(_))
    ));
    assert!(matches!(
        "a\r\nb=1".parse::<TierMix>(),
        Err(TierMixError::Share(_))
    ));
    assert!(matches!(
        "paid=1,paid=2".parse::<TierMix>(),
        Err(TierMixError::Twice(_))
    ));
    assert_eq!("paid=0".parse::<TierMix>(), Err(TierMixError::Empty));
    assert!(matches!(Inputs::sizes("big"), Err(InputsError::Size(_))));
    assert!(matches!(Inputs::sizes("8"), Err(InputsError::Range)));
    assert!(matches!(Inputs::sizes("64-32"), Err(InputsError::Range)));
    assert!(matches!(
        Inputs::sizes("16-4096"),
        Ok(Inputs::Size { from: 16, to: 4096 })
    ));
}

#[test]
fn an_output_is_found_by_its_pointer() {
    let traffic = Traffic::simple(16);
    let mut scratch = String::new();
    let mut check = |pointer: &str, body: &str| {
        let expect = Expect::new(pointer, Answer::Upper).expect("a pointer");
        expect.check(body.as_bytes(), &traffic, 7, &mut scratch) == Checked::Right
    };
    assert!(check(
        "/output",
        r#"{"id":{"output":1},"output":"Q00001-000000007","meta":[1,{"a":null}]}"#
    ));
    assert!(check(
        "/data/1/a~1b",
        r#"{"data":["Q00001-000000008",{"x":true,"a/b":"Q00001-000000007"}]}"#
    ));
    assert!(check("", r#""Q00001-000000007""#));
    assert!(check("body", "Q00001-000000007"));
    assert!(
        check("/output", r#"{"output":"\u0051\u00300001-000000007"}"#),
        "escapes are undone"
    );
    assert!(
        !check("/output", r#"{"output":"Q00001-000000008"}"#),
        "another caller's"
    );
    assert!(
        !check("/output", r#"{"output":"q00001-000000007"}"#),
        "not in upper case"
    );
    assert!(!check("/output", r#"{"output":["Q00001-000000007"]}"#));
    assert!(!check("/output", r#"{"output":"Q00001-000000007"}x"#));
    assert!(!check("/output", r#"{"output":"Q00001-000000007""#));
    assert!(!check("/output", ""));
    assert!(matches!(
        Expect::new("output", Answer::Any),
        Err(ExpectError::Place(_))
    ));
}

proptest! {
    #[test]
    fn inputs_have_their_size_and_are_unique(from in INPUT_BYTES_MIN..200, more in 0usize..200, run in 0u32..60_000_000) {
        let mut traffic = Traffic::simple(16);
        traffic.inputs = Inputs::Size { from, to: from + more };
        traffic.run = run;
        let mut seen = HashSet::new();
        let mut text = String::new();
        for number in (0..300).chain([u64::from(u32::MAX), 1 << 45]) {
            traffic.input(number, &mut text);
            prop_assert!((from..=from + more).contains(&text.len()));
            prop_assert!(seen.insert(text[..INPUT_BYTES_MIN].to_owned()));
        }
    }

    #[test]
    fn any_text_survives_the_trip_through_a_json_body(line in "\\PC{1,40}", number in 0u64..1_000_000) {
        let mut traffic = Traffic::simple(16);
        traffic.inputs = Inputs::Lines { name: "f".into(), lines: vec![line] };
        let text = written(&Request::inference("h"), &traffic, number);
        let (_, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        let value: serde_json::Value = serde_json::from_str(body).expect("JSON");
        let answer = serde_json::json!({"output": value["input"].as_str().expect("text").to_uppercase()});
        let expect = Expect::new("/output", Answer::Upper).expect("a pointer");
        prop_assert_eq!(expect.check(answer.to_string().as_bytes(), &traffic, number, &mut String::new()), Checked::Right);
        prop_assert_eq!(expect.check(answer.to_string().as_bytes(), &traffic, number + 1, &mut String::new()), Checked::Different);
    }
}

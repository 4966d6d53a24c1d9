use proptest::prelude::*;

use super::*;

const INPUT_MAX: usize = 1_000;

fn read(body: &str) -> Result<InferenceRequest<'_>, Rejection> {
    parse_body(body.as_bytes(), INPUT_MAX)
}

#[track_caller]
fn problem(body: &[u8]) -> (String, usize, usize) {
    match parse_body(body, INPUT_MAX) {
        Err(Rejection::Json {
            problem,
            line,
            column,
        }) => (problem.into(), line, column),
        other => panic!("expected a JSON problem, not {other:?}"),
    }
}

#[test]
fn the_example_of_the_design_is_read() {
    let body = r#"{"model": "llm-v1", "input": "What is the capital of France?", "parameters": {"max_tokens": 100, "temperature": 0.7}}"#;
    let request = read(body).expect("accepted");
    assert_eq!(request.input, "What is the capital of France?");
    assert_eq!(request.model.as_deref(), Some("llm-v1"));
    assert_eq!(
        request.parameters,
        Some(r#"{"max_tokens": 100, "temperature": 0.7}"#)
    );
    assert!(
        matches!(request.input, Cow::Borrowed(_)),
        "no copy without escapes"
    );
}

#[test]
fn everything_but_the_input_may_be_left_out() {
    for body in [
        r#"{"input":""}"#,
        r#" {"input":"","model":null,"parameters":null} "#,
        r#"{"unknown":[[{}]],"input":"","other":1e999}"#,
        r#"{"input":"","parameters":{}}"#,
        r#"{"input":"","parameters":{"max_tokens":null,"temperature":null,"top_p":[0]}}"#,
        r#"{"input":"","parameters":{"max_tokens":1,"temperature":2}}"#,
        r#"{"input":"","parameters":{"temperature":0.0}}"#,
    ] {
        let request = read(body).expect(body);
        assert_eq!(request.input, "");
        assert_eq!(request.model, None);
    }
}

#[test]
fn escapes_and_astral_characters_are_decoded() {
    let request = read(r#"{"input":"\u00e9 \ud83d\ude00 \n\"x\""}"#).expect("accepted");
    assert_eq!(request.input, "é 😀 \n\"x\"");
}

#[test]
fn wrong_types_are_named_with_their_place() {
    for (body, name) in [
        (r#"{"input": 5}"#, "input"),
        (r#"{"input": null}"#, "input"),
        (r#"{"input": ["a"]}"#, "input"),
        (r#"{"model":"llm-v1"}"#, "input"),
        (r#"{"input":"","input":""}"#, "input"),
        (r#"{"input":"","model":7}"#, "model"),
        (r#"{"input":"","parameters":[]}"#, "parameters"),
        (r#"{"input":"","parameters":"x"}"#, "parameters"),
        (
            r#"{"input":"","parameters":{"max_tokens":"many"}}"#,
            "max_tokens",
        ),
        (
            r#"{"input":"","parameters":{"max_tokens":0}}"#,
            "max_tokens",
        ),
        (
            r#"{"input":"","parameters":{"max_tokens":-1}}"#,
            "max_tokens",
        ),
        (
            r#"{"input":"","parameters":{"max_tokens":1.5}}"#,
            "max_tokens",
        ),
        (
            r#"{"input":"","parameters":{"max_tokens":1,"max_tokens":2}}"#,
            "max_tokens",
        ),
        (
            r#"{"input":"","parameters":{"temperature":"hot"}}"#,
            "temperature",
        ),
        (
            r#"{"input":"","parameters":{"temperature":2.1}}"#,
            "temperature",
        ),
        (
            r#"{"input":"","parameters":{"temperature":-0.1}}"#,
            "temperature",
        ),
    ] {
        let (problem, line, column) = problem(body.as_bytes());
        assert!(problem.contains(name), "{problem}");
        assert!(!problem.contains(" at line "), "{problem}");
        assert_eq!(line, 1);
        assert!((1..=body.len()).contains(&column), "{body}: {column}");
    }
}

#[test]
fn places_inside_parameters_count_from_the_start_of_the_body() {
    let one_line = r#"{"input":"", "parameters":{"max_tokens":0}}"#;
    let same_alone = r#"{"parameters":{"max_tokens":0},"input":""}"#;
    let shift = r#""input":"", "#.len();
    assert_eq!(
        problem(one_line.as_bytes()).2,
        problem(same_alone.as_bytes()).2 + shift
    );
    let lines = "{\"input\":\"\",\n \"parameters\":\n  {\n\"max_tokens\": 0}}";
    assert_eq!(problem(lines.as_bytes()).1, 4);
}

#[test]
fn what_is_not_a_json_object_is_refused() {
    for body in [
        "",
        " ",
        "hello",
        "[\"hello\"]",
        "\"hello\"",
        "null",
        "5",
        r#"{"input": "hel"#,
        r#"{"input":"a"} x"#,
        r#"{"input":"a",}"#,
        r#"{"input":"\ud800"}"#,
        "{\"input\":\"a\nb\"}",
        "\u{feff}{\"input\":\"a\"}",
        r#"{'input':'a'}"#,
        r#"{"input":"\x"}"#,
    ] {
        problem(body.as_bytes());
    }
    let (what, line, column) = problem(b"{\"input\":\n\"\xff\"}");
    assert!(what.contains("UTF-8"));
    assert_eq!((line, column), (2, 2));
    assert_eq!(
        problem(b"{\"x\":\"\xff\",\"input\":\"\"}").1,
        1,
        "also where it is ignored"
    );
}

#[test]
fn nesting_is_refused_or_skipped_without_recursion() {
    let deep = "[".repeat(200_000);
    problem(deep.as_bytes());
    problem(format!("{{\"input\":{deep}").as_bytes());
    problem(format!("{{\"x\":{deep}").as_bytes());
    problem(format!("{{\"parameters\":{deep}").as_bytes());
    let balanced = format!("{deep}{}", "]".repeat(200_000));
    assert!(read(&format!("{{\"x\":{balanced},\"input\":\"a\"}}")).is_ok());
    problem(format!("{{\"parameters\":{{\"x\":{balanced}}},\"input\":\"a\"}}").as_bytes());
}

#[test]
fn parameters_that_an_executor_might_not_read_are_refused_with_their_place() {
    let number = "1".repeat(5_000);
    let body = format!("{{\"input\":\"a\",\n \"parameters\": {{\n  \"seed\": {number}}}}}");
    let (what, line, column) = problem(body.as_bytes());
    assert!(what.contains("longer than 64"), "{what}");
    assert_eq!((line, column), (3, 11));
    let deep = format!("{}{}", "[".repeat(31), "]".repeat(31));
    let body = |deep: &str| format!("{{\"input\":\"a\",\"parameters\":{{\"x\":{deep}}}}}");
    assert!(read(&body(&deep)).is_ok());
    let (what, line, column) = problem(body(&format!("[{deep}]")).as_bytes());
    assert!(what.contains("nested more than 32"), "{what}");
    assert_eq!((line, column), (1, body("").len() - 1 + 31));
}

#[test]
fn a_long_input_is_too_large_not_malformed() {
    let body = |bytes| format!("{{\"input\":\"{}\"}}", "a".repeat(bytes));
    assert!(read(&body(INPUT_MAX)).is_ok());
    let over = body(INPUT_MAX + 1);
    assert_eq!(read(&over).expect_err("too large").status(), 413);
}

#[test]
fn the_reply_is_the_one_of_the_design() {
    let reply = InferenceReply {
        request_id: "req_abc123",
        output: "a \"b\"\n",
        latency: Duration::from_micros(112_380),
        queue_wait: Duration::from_micros(9_100),
        tokens_used: 14,
    };
    let mut out = Vec::new();
    reply.write(&mut out);
    let expected = r#"{"request_id":"req_abc123","output":"a \"b\"\n","metadata":{"latency_ms":112.4,"queue_wait_ms":9.1,"tokens_used":14}}"#;
    assert_eq!(std::str::from_utf8(&out), Ok(expected));
}

proptest! {
    #[test]
    fn any_input_survives_the_way_in_and_out(input in "\\PC{0,80}|[\\x00-\\x1f\"\\\\]{0,20}", model in "[a-z]{1,8}") {
        let body = serde_json::json!({"input": input, "model": model}).to_string();
        let request = parse_body(body.as_bytes(), 10_000).expect("valid");
        prop_assert_eq!(&*request.input, &input);
        let mut out = Vec::new();
        InferenceReply {
            request_id: "r",
            output: &request.input,
            latency: Duration::ZERO,
            queue_wait: Duration::ZERO,
            tokens_used: 7,
        }.write(&mut out);
        let reply: serde_json::Value = serde_json::from_slice(&out).expect("valid");
        prop_assert_eq!(reply["output"].as_str(), Some(&*input));
    }

    #[test]
    fn arbitrary_bytes_never_panic(body in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse_body(&body, 100);
    }

    #[test]
    fn almost_json_never_panics(body in "[{}\\[\\]\",:a-z0-9 \n\\\\]{0,120}") {
        let _ = parse_body(body.as_bytes(), 100);
        let _ = parse_body(format!("{{\"input\":\"a\",\"parameters\":{body}}}").as_bytes(), 100);
    }
}

#[test]
fn a_wrong_value_is_not_repeated_in_full() {
    for wrong in ["\u{7f}", "x", "é"].map(|what| what.repeat(300_000)) {
        for body in [
            format!(r#"{{"input":"a","parameters":{{"max_tokens":"{wrong}"}}}}"#),
            format!(r#"{{"input":["{wrong}"]}}"#),
        ] {
            let refused = parse_body(body.as_bytes(), 1 << 20).expect_err("a wrong type");
            assert!(
                refused.to_string().len() < 1_000,
                "{} bytes",
                refused.to_string().len()
            );
        }
    }
}

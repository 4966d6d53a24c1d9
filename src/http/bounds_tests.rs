use proptest::prelude::*;
use serde_json::Value;

use super::*;

fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

fn problem(json: &str) -> (&'static str, usize) {
    let beyond = check(json).expect_err(json);
    (beyond.problem, beyond.at)
}

#[test]
fn nesting_is_allowed_to_its_bound() {
    assert_eq!(check(&nested(DEPTH_MAX)), Ok(()));
    let (what, at) = problem(&nested(DEPTH_MAX + 1));
    assert!(what.contains(&format!(" {DEPTH_MAX} ")), "{what}");
    assert_eq!(at, DEPTH_MAX);
    let objects = |depth: usize| format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
    assert_eq!(check(&objects(DEPTH_MAX)), Ok(()));
    problem(&objects(DEPTH_MAX + 1));
    problem(&nested(100_000));
    // Side by side is not one in the other, and brackets in a string are none.
    let wide = format!("[{}]", vec![nested(DEPTH_MAX - 1); 100].join(","));
    assert_eq!(check(&wide), Ok(()));
    let text = format!("{{\"a\\\"{0}\":\"{0}\\\\\"}}", "[".repeat(100));
    assert_eq!(check(&text), Ok(()));
}

#[test]
fn numbers_are_allowed_to_their_bounds() {
    let in_object = |number: &str| format!("{{\"a\": {number}, \"b\": true}}");
    let digits = |count: usize| "1".repeat(count);
    for sound in [
        "0",
        "-0.0",
        "18446744073709551616",
        "1.7976931348623157e308",
        "-1E+308",
        "1e-999999999999",
        "0e999999999999",
        &digits(NUMBER_CHARS_MAX),
        &format!("-{}", digits(NUMBER_CHARS_MAX - 1)),
    ] {
        assert_eq!(check(&in_object(sound)), Ok(()), "{sound}");
    }
    for (wrong, why) in [
        (digits(NUMBER_CHARS_MAX + 1), " 64 "),
        (format!("-{}", digits(NUMBER_CHARS_MAX)), " 64 "),
        (format!("0.{}", digits(NUMBER_CHARS_MAX)), " 64 "),
        (digits(5_000), " 64 "),
        ("1e309".to_owned(), "64-bit"),
        ("-1e999999999999".to_owned(), "64-bit"),
        ("1000E306".to_owned(), "64-bit"),
    ] {
        let (what, at) = problem(&in_object(&wrong));
        assert!(what.contains(why), "{wrong}: {what}");
        assert_eq!(at, "{\"a\": ".len());
    }
    let text = format!("{{\"{0}\":\"1e999 {0}\"}}", digits(100));
    assert_eq!(check(&text), Ok(()), "digits of a string");
}

#[test]
fn surrogates_come_in_pairs() {
    for sound in [
        r"\ud83d\ude00",
        r"\uD83D\uDE00x",
        r"\\ud800",
        r"\ue000\ud7ff\u0000",
    ] {
        assert_eq!(
            check(&format!("{{\"{sound}\":\"{sound}\"}}")),
            Ok(()),
            "{sound}"
        );
    }
    for (wrong, at) in [
        (r"\ud800", 0),
        (r"\ude00", 0),
        (r"a\ud83d\n", 1),
        (r"\ud83d\ud83d\ude00", 0),
        (r"\ud83d\ude00\ude00", 12),
        (r"\ud83dx\ude00", 0),
    ] {
        assert_eq!(problem(&format!("[\"{wrong}\"]")).1, 2 + at, "{wrong}");
        problem(&format!("{{\"{wrong}\":0}}"));
    }
}

/// JSON as it is written: numbers and strings keep their text.
#[derive(Clone, Debug)]
enum Tree {
    Word(&'static str),
    Number(String),
    Text(String),
    List(Vec<Tree>),
    Object(Vec<(String, Tree)>),
}

impl Tree {
    fn written(&self) -> String {
        match self {
            Tree::Word(word) => (*word).to_owned(),
            Tree::Number(number) => number.clone(),
            Tree::Text(text) => format!("\"{text}\""),
            Tree::List(all) => {
                let all: Vec<_> = all.iter().map(Tree::written).collect();
                format!("[{}]", all.join(" , "))
            }
            Tree::Object(all) => {
                let all = all
                    .iter()
                    .map(|(key, value)| format!("\"{key}\":{}", value.written()));
                format!("{{{}}}", all.collect::<Vec<_>>().join(","))
            }
        }
    }

    /// The rule as one would write it down.
    fn is_within(&self, depth: usize) -> bool {
        let is_text = |text: &str| serde_json::from_str::<String>(&format!("\"{text}\"")).is_ok();
        match self {
            Tree::Word(_) => true,
            Tree::Number(number) => {
                let value: f64 = number.parse().expect("a number");
                number.len() <= NUMBER_CHARS_MAX && value.is_finite()
            }
            Tree::Text(text) => is_text(text),
            Tree::List(all) => {
                depth < DEPTH_MAX && all.iter().all(|each| each.is_within(depth + 1))
            }
            Tree::Object(all) => {
                depth < DEPTH_MAX
                    && all
                        .iter()
                        .all(|(key, value)| is_text(key) && value.is_within(depth + 1))
            }
        }
    }
}

fn trees() -> impl Strategy<Value = Tree> {
    let number =
        "-?(0|[1-9][0-9]{0,3}|[1-9][0-9]{58,66})(\\.[0-9]{1,5})?([eE][+-]?(30[0-9]|[0-9]{1,2}))?";
    let text = "([a-z0-9\\[{,]|\\\\[n\"\\\\]|\\\\u00e9|\\\\ud83d\\\\ude00){0,6}(\\\\ud8[0-9]f)?";
    // Most of them sound, or hardly any tree would be.
    let number = prop_oneof![9 => Just("1.5e3".to_owned()), 1 => number];
    let text = prop_oneof![9 => "[a-z]{0,3}(\\\\\"|\\\\\\\\)?", 1 => text];
    let leaf = prop_oneof![
        prop::sample::select(vec!["true", "false", "null"]).prop_map(Tree::Word),
        number.prop_map(Tree::Number),
        text.clone().prop_map(Tree::Text),
    ];
    let inner = leaf.prop_recursive(5, 24, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Tree::List),
            prop::collection::vec((text.clone(), inner), 0..4).prop_map(Tree::Object),
        ]
    });
    (inner, 0..40_usize).prop_map(|(inner, around)| {
        (0..around).fold(inner, |inner, level| match level % 2 {
            0 => Tree::List(vec![inner]),
            _ => Tree::Object(vec![("a".to_owned(), inner)]),
        })
    })
}

proptest! {
    #[test]
    fn what_passes_is_what_the_rule_allows(tree in trees()) {
        let json = tree.written();
        prop_assert_eq!(check(&json).is_ok(), tree.is_within(0), "{}", json);
        if check(&json).is_ok() {
            prop_assert!(serde_json::from_str::<Value>(&json).is_ok(), "{}", json);
        }
    }

    #[test]
    fn no_text_makes_it_panic(json in "([\\[\\]{}\":,0-9eE.+-]|\\\\|\\\\u|\\\\ud8[0-9]{0,2}|é|[a-f]){0,60}") {
        let _ = check(&json);
    }
}

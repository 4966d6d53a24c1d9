use proptest::prelude::*;

use super::*;

fn digest_of(key: &str) -> String {
    Digest::of(key)
        .0
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn entry(key: &str, rest: &str) -> String {
    format!(
        "[[key]]\nname = \"{key}\"\nsha256 = \"{}\"\n{rest}\n",
        digest_of(key)
    )
}

fn parse_error(text: &str) -> String {
    Keys::parse(text).expect_err("refused").to_string()
}

#[test]
fn the_digest_is_the_one_that_sha256sum_prints() {
    // FIPS 180-2, appendix B.1.
    let published = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(digest_of("abc"), published);
    assert_eq!(Digest::from_hex(published), Some(Digest::of("abc")));
}

#[test]
fn a_key_is_found_by_itself_and_by_nothing_else() {
    let text =
        entry("acme", "tier = \"paid\"") + &entry("globex", "tier = \"Enterprise\"\nrate = 10");
    let keys = Keys::parse(&text).unwrap();
    assert_eq!(keys.count(), 2);
    let acme = keys.lookup("acme").unwrap();
    assert_eq!((acme.name(), acme.tier()), ("acme", Tier::Paid));
    assert_eq!(
        keys.lookup("globex").map(|key| key.tier()),
        Some(Tier::Enterprise)
    );
    for other in [
        "",
        "acm",
        "acme ",
        "Acme",
        "acme\n",
        digest_of("acme").as_str(),
    ] {
        assert!(keys.lookup(other).is_none(), "{other:?}");
    }
}

#[test]
fn the_example_in_the_documentation_is_a_key_file() {
    let lines = include_str!("mod.rs").lines();
    let fenced = lines
        .skip_while(|line| !line.starts_with("//! ```"))
        .skip(1);
    let example = fenced.take_while(|line| !line.starts_with("//! ```"));
    let text: String = example
        .map(|line| line.trim_start_matches("//! ").to_owned() + "\n")
        .collect();
    let keys = Keys::parse(&text).unwrap();
    assert_eq!(keys.lookup("secret").expect("known").name(), "acme");
}

#[test]
fn digests_do_not_show_in_debug_output() {
    let keys = Keys::parse(&entry("acme", "tier = \"paid\"")).unwrap();
    assert!(!format!("{keys:?}").contains("sha256"));
    assert!(format!("{keys:?}").contains("Digest(..)"));
}

#[test]
fn mistakes_are_named_with_their_line() {
    let good = entry("acme", "tier = \"paid\"");
    let cases = [
        (
            good.clone() + &good,
            "line 7: this sha256 already stands for the key named \"acme\"",
        ),
        (
            entry("acme", "tier = \"gold\""),
            "line 4: \"gold\": no such tier",
        ),
        (
            entry("acme", "tier = \"paid\"\nrate = 0"),
            "line 5: rate must be between",
        ),
        (
            entry("acme", "tier = \"paid\"\nrate = nan"),
            "line 5: rate must be between",
        ),
        (
            entry("acme", "tier = \"paid\"\nrate = -inf"),
            "line 5: rate must be between",
        ),
        (
            entry("acme", "tier = \"paid\"\nrate = 2e6"),
            "line 5: rate must be between",
        ),
        (
            entry("acme", "tier = \"paid\"\nrate = 1\nburst = 0"),
            "line 6: burst must be between",
        ),
        (
            entry("acme", "tier = \"paid\"\nrate = 1\nburst = -1"),
            "line 6: burst must be between",
        ),
        (
            entry("acme", "tier = \"paid\"\nburst = 5"),
            "line 5: burst needs a rate",
        ),
        (
            entry("acme", "tier = \"paid\"\nrates = 5"),
            "line 5: unknown field `rates`",
        ),
        (entry("acme", "tier = 5"), "line 4: invalid type"),
        (
            entry(" ", "tier = \"paid\""),
            "line 2: name must not be empty",
        ),
        (
            entry("", "tier = \"paid\""),
            "line 3: sha256 is the digest of an empty key",
        ),
        (
            good.replace("sha256 = \"", "sha256 = \"a"),
            "line 3: sha256 must be 64 lower-case hex",
        ),
        (
            good.to_uppercase().replace("[[KEY]]", "[[key]]"),
            "line 2: unknown field `NAME`",
        ),
        (
            "[[key]]\nname = \"x\"\ntier = \"paid\"\n".to_owned(),
            "line 1: missing field `sha256`",
        ),
        ("[[key]\n".to_owned(), "line 1: "),
        (String::new(), "the key file holds no [[key]]"),
    ];
    for (text, expected) in cases {
        let error = parse_error(&text);
        assert!(error.starts_with(expected), "{error:?} for\n{text}");
    }
}

#[test]
fn common_slips_are_told_with_what_to_write() {
    let good = entry("acme", "tier = \"paid\"");
    let cases = [
        (
            good.replace("[[key]]", "[key]"),
            "line 1: write [[key]], with two brackets",
        ),
        (
            "key = 3\n".to_owned(),
            "line 1: invalid type: integer `3`, expected keys: write [[key]] on a line",
        ),
        (
            entry("acme", "tier ="),
            "line 4: tier has no value: write tier = and its value",
        ),
    ];
    for (text, expected) in cases {
        let error = parse_error(&text);
        assert!(error.starts_with(expected), "{error:?} for\n{text}");
    }
}

#[test]
fn upper_case_digests_are_refused() {
    let digest = digest_of("acme");
    let text = entry("acme", "tier = \"paid\"").replace(&digest, &digest.to_uppercase());
    assert!(parse_error(&text).starts_with("line 3: sha256 must be 64 lower-case hex"));
    assert_eq!(Digest::from_hex(&"é".repeat(32)), None);
}

#[test]
fn a_file_is_named_when_it_cannot_be_used() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keys.toml");
    let missing = Keys::load(&path).expect_err("missing").to_string();
    assert!(
        missing.contains("keys.toml") && missing.contains("cannot read"),
        "{missing}"
    );
    std::fs::write(&path, "[[key]]\nname = 5\n").unwrap();
    let wrong = Keys::load(&path).expect_err("wrong").to_string();
    assert!(wrong.contains("keys.toml: line 2: "), "{wrong}");
    std::fs::write(&path, entry("acme", "tier = \"free\"")).unwrap();
    assert!(Keys::load(&path).unwrap().lookup("acme").is_some());
}

#[test]
fn keys_read_again_come_and_go_and_those_that_stay_keep_what_they_have_used() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keys.toml");
    let limited = entry("acme", "tier = \"free\"\nrate = 1\nburst = 2");
    std::fs::write(&path, limited.clone() + &entry("leaves", "tier = \"free\"")).unwrap();
    let keys = Keys::load(&path).unwrap();
    assert!(!keys.reload(&path).unwrap(), "nothing has changed");
    let admit = |bearer: &str| keys.lookup(bearer).unwrap().admit(Time::ZERO).is_ok();
    assert!(admit("acme") && admit("acme") && !admit("acme"));
    std::fs::write(&path, limited + &entry("comes", "tier = \"paid\"")).unwrap();
    assert!(keys.reload(&path).unwrap());
    assert!(keys.lookup("leaves").is_none());
    assert_eq!(keys.lookup("comes").unwrap().tier(), Tier::Paid);
    assert!(!admit("acme"), "its burst is used up as before");
    for wrong in ["[[key]]\nname = 5\n", ""] {
        std::fs::write(&path, wrong).unwrap();
        assert!(keys.reload(&path).is_err());
        assert_eq!(keys.count(), 2, "everything stays as it was");
    }
    std::fs::write(&path, entry("acme", "tier = \"free\"\nrate = 1\nburst = 3")).unwrap();
    assert!(
        keys.reload(&path).unwrap() && admit("acme"),
        "other terms, a fresh start"
    );
}

#[test]
fn a_key_without_a_rate_is_never_limited_and_the_default_burst_is_a_second_of_it() {
    let text = entry("free", "tier = \"free\"") + &entry("ten", "tier = \"paid\"\nrate = 9.5");
    let keys = Keys::parse(&text).unwrap();
    let let_in = |bearer: &str| {
        let key = keys.lookup(bearer).unwrap();
        (0..1_000).filter(|_| key.admit(Time::ZERO).is_ok()).count()
    };
    assert_eq!(let_in("free"), 1_000);
    assert_eq!(let_in("ten"), 10);
}

#[test]
fn the_wait_told_is_exactly_the_wait() {
    let limit = RateLimit::new(100.0, 3);
    let now = Time::from_millis_f64(5_000.0);
    assert!((0..3).all(|_| limit.admit(now).is_ok()));
    let wait = limit.admit(now).unwrap_err();
    assert_eq!(wait, Duration::from_millis(10));
    assert!(limit.admit(now + wait - Duration::from_nanos(1)).is_err());
    assert_eq!(limit.admit(now + wait), Ok(()));
}

#[test]
fn cores_together_get_the_burst_and_no_more() {
    let limit = RateLimit::new(1.0, 1_000);
    let let_in: usize = std::thread::scope(|scope| {
        let count = || {
            (0..1_000)
                .filter(|_| limit.admit(Time::ZERO).is_ok())
                .count()
        };
        let cores: Vec<_> = (0..4).map(|_| scope.spawn(count)).collect();
        cores.into_iter().map(|core| core.join().unwrap()).sum()
    });
    assert_eq!(let_in, 1_000);
}

/// A bucket of tokens that says what it does, in whole nanoseconds of refill.
struct Bucket {
    spacing: u128,
    size: u128,
    level: u128,
    at: u128,
}

impl Bucket {
    fn admit(&mut self, now: u128) -> bool {
        self.level = (self.level + (now - self.at)).min(self.size);
        self.at = now;
        let enough = self.level >= self.spacing;
        if enough {
            self.level -= self.spacing;
        }
        enough
    }
}

proptest! {
    #[test]
    fn it_decides_as_a_plain_token_bucket_does(
        rate in 0.01_f64..10_000.0,
        burst in 1_u32..50,
        gaps in prop::collection::vec(0.0_f64..3.0, 1..300),
    ) {
        let limit = RateLimit::new(rate, burst);
        let spacing = u128::from(limit.spacing);
        let size = spacing * u128::from(burst);
        let mut bucket = Bucket { spacing, size, level: size, at: 0 };
        let mut now = Time::ZERO;
        for gap in gaps {
            now = now + Duration::from_secs_f64(gap / rate);
            let expected = bucket.admit(u128::from(now.as_nanos()));
            let got = limit.admit(now);
            prop_assert_eq!(got.is_ok(), expected);
            if let Err(wait) = got {
                prop_assert_eq!(wait.as_nanos(), spacing - bucket.level);
            }
        }
    }

    #[test]
    fn no_time_and_no_limit_panics(
        rate in RATE_MIN..RATE_MAX,
        burst in 1..=BURST_MAX,
        times in prop::collection::vec(any::<u64>(), 1..50),
    ) {
        let limit = RateLimit::new(rate, burst);
        for nanos in times {
            let _ = limit.admit(Time::from_nanos(nanos));
        }
    }

    #[test]
    fn equality_is_that_of_the_bytes(one in any::<[u8; 32]>(), at in 0_usize..32, flip in any::<u8>()) {
        let mut two = one;
        two[at] ^= flip;
        prop_assert_eq!(Digest(one) == Digest(two), one == two);
    }

    #[test]
    fn any_text_is_parsed_or_refused(text in ".{0,200}") {
        let _ = Keys::parse(&text);
        let _ = Keys::parse(&entry("acme", &text));
    }
}

use proptest::prelude::*;

use super::*;

fn script(lines: &[&str]) -> Script {
    Script::new(
        2,
        lines.iter().map(|line| line.parse().expect("a good line")),
    )
}

fn strikes(script: &Script, gpu: usize, batches: usize) -> Vec<bool> {
    (0..batches)
        .map(|_| script.launched(gpu, &[]).is_some())
        .collect()
}

#[test]
fn a_fault_strikes_its_gpu_at_its_batch_once() {
    let script = script(&["kind=lost,gpu=1,batch=3"]);
    assert_eq!(strikes(&script, 0, 4), [false; 4]);
    assert_eq!(strikes(&script, 1, 4), [false, false, true, false]);
}

#[test]
fn a_fault_for_all_gpus_is_counted_on_each() {
    let script = script(&["kind=hang&batch=2&every=2&times=2"]);
    for gpu in 0..2 {
        assert_eq!(
            strikes(&script, gpu, 7),
            [false, true, false, true, false, false, false]
        );
    }
}

#[test]
fn a_marker_strikes_what_carries_it_however_often() {
    let script = script(&["kind=raise,marker=poison"]);
    let (bad, good) = ([Input::new("some poison here")], [Input::new("fine")]);
    let kinds: Vec<_> = [&bad, &good, &bad]
        .map(|inputs| script.launched(0, inputs))
        .into();
    assert_eq!(
        kinds.iter().map(Option::is_some).collect::<Vec<_>>(),
        [true, false, true]
    );
}

#[test]
fn a_fault_is_printed_as_the_line_that_scripts_it() {
    for (line, printed) in [
        ("kind=lost", "kind=lost,ms=0"),
        (
            "batch=20&gpu=1&kind=hang&ms=7",
            "kind=hang,gpu=1,batch=20,ms=7",
        ),
        ("kind=slow,every=3,times=0", "kind=slow,every=3,factor=10"),
        ("kind=count,every=3,times=1", "kind=count,every=3,times=1"),
        (
            "kind=raise,times=0,ms=5,marker= a=b ",
            "kind=raise,times=0,marker= a=b ",
        ),
    ] {
        assert_eq!(line.parse::<Fault>().expect(line).to_string(), printed);
    }
}

/// Lines with any of the keys, in any order, also those that their kind has no use for.
fn lines() -> impl Strategy<Value = String> {
    let kind = prop::sample::select(&KINDS[..]).prop_map(|kind| format!("kind={kind}"));
    let pair = prop_oneof![
        any::<usize>().prop_map(|gpu| format!("gpu={gpu}")),
        (1_u64..).prop_map(|batch| format!("batch={batch}")),
        (1_u64..).prop_map(|every| format!("every={every}")),
        (0_u64..4).prop_map(|times| format!("times={times}")),
        any::<u64>().prop_map(|ms| format!("ms={ms}")),
        (0.0..=1e4_f64).prop_map(|factor| format!("factor={factor:e}")),
        "[^,&]{0,8}".prop_map(|marker| format!("marker={marker}")),
    ];
    (kind, prop::collection::vec(pair, 0..7))
        .prop_map(|(kind, mut pairs)| {
            pairs.push(kind);
            pairs
        })
        .prop_shuffle()
        .prop_map(|pairs| pairs.join(","))
}

proptest! {
    #[test]
    fn what_is_printed_reads_back_as_the_same_fault(line in lines()) {
        let fault: Fault = line.parse().expect("a good line");
        let printed = fault.to_string();
        prop_assert_eq!(printed.parse(), Ok(fault), "{}", printed);
    }
}

#[test]
fn spaces_are_taken_around_pairs_and_inside_a_marker() {
    let spaced: Fault = " kind = lost , gpu = 1 ".parse().expect("a good line");
    assert_eq!(spaced.to_string(), "kind=lost,gpu=1,ms=0");
    let marker: Fault = "kind=raise,marker=gpu=1 ms=5".parse().expect("a good line");
    assert_eq!(marker.to_string(), "kind=raise,marker=gpu=1 ms=5");
}

#[test]
fn every_kind_is_known_by_its_name() {
    for name in KINDS {
        let fault: Fault = format!("kind={name}").parse().expect(name);
        assert_eq!(fault.kind.name(), name);
    }
}

#[test]
fn clear_forgets_everything() {
    let script = script(&["kind=count", "kind=clear"]);
    assert_eq!(script.launched(0, &[]), None);
}

#[test]
fn what_is_held_is_let_go_by_the_next_clear_and_by_no_earlier_one() {
    let script = script(&["kind=hold,every=1", "kind=clear", "kind=hold,every=1"]);
    let held = script.launched(0, &[]).expect("it is held");
    assert_eq!(held.kind, Kind::Hold);
    assert!(script.holds(held.cleared));
    script.add("kind=clear".parse().expect("a good line"));
    assert!(!script.holds(held.cleared));
    assert_eq!(script.launched(0, &[]), None);
}

#[test]
fn what_can_not_be_followed_is_refused_with_the_reason() {
    for (line, says) in [
        ("", "needs kind"),
        ("gpu=1", "needs kind"),
        ("kind=explode", "kind is one of lost, hang"),
        ("kind", "not key=value"),
        ("kind=lost,gpu=one", "number of a GPU"),
        ("kind=lost,batch=0", "1 or more"),
        ("kind=slow,factor=NaN", "0 to 10000"),
        ("kind=lost,colour=red", "no key"),
        (
            "kind=hang gpu=1",
            "commas between them: write \"kind=hang,gpu=1\"",
        ),
        (
            "kind=slow; factor=3,gpu=1",
            "write \"kind=slow,factor=3,gpu=1\"",
        ),
        ("gpu=1 kind=hang ms=5", "write \"gpu=1,kind=hang,ms=5\""),
        ("kind=hang of all", "panic, clear, not \"hang of all\""),
    ] {
        let error = line.parse::<Fault>().expect_err(line).to_string();
        assert!(error.contains(says), "{line}: {error}");
    }
}

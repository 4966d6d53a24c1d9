//! The search against oracles that know who is bad.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// How a search went.
#[derive(Debug, Default)]
struct Log {
    cleared: Vec<Seat>,
    blamed: Vec<Seat>,
    left: Vec<Seat>,
    /// The canary failed after this many runs.
    device_failed_after: Option<u32>,
    runs: u32,
    rounds: u32,
    canaries: u32,
}

/// Searches a batch of `size`. `passes` sees the number of the run and its seats (none: the canary), `leaves` names who
/// leaves before that run.
fn search(
    size: usize,
    mut passes: impl FnMut(u32, &[Seat]) -> bool,
    mut leaves: impl FnMut(u32) -> Vec<Seat>,
) -> Log {
    let mut search = Search::new(size, "batch".to_owned());
    let mut log = Log::default();
    loop {
        let leaving = leaves(search.runs());
        search.leave(&leaving);
        log.left.extend(leaving);
        let step = search.step();
        log.runs = search.runs();
        let seats = match step {
            Step::Finished => return log,
            Step::Canary => Vec::new(),
            Step::Run(seats) => {
                assert!(!seats.is_empty(), "a run holds somebody");
                assert!(
                    seats.is_sorted(),
                    "outputs, seats and tickets share an order"
                );
                assert!(seats.iter().all(|seat| !log.left.contains(seat)));
                seats
            }
        };
        log.canaries += u32::from(seats.is_empty());
        if passes(search.runs(), &seats) {
            let verdict = search.passed();
            assert_eq!(verdict.cleared, seats);
            log.cleared.extend(verdict.cleared);
            log.blamed
                .extend(verdict.blamed.iter().map(|culprit| culprit.seat));
        } else if seats.is_empty() {
            log.device_failed_after = Some(search.runs());
            return log;
        } else {
            search.failed(format!("{seats:?}"));
            log.rounds += 1;
        }
    }
}

fn nobody(_: u32) -> Vec<Seat> {
    Vec::new()
}

fn sorted(mut seats: Vec<Seat>) -> Vec<Seat> {
    seats.sort_unstable();
    seats
}

#[test]
fn one_bad_input_costs_at_most_log_n_plus_two_runs_wherever_it_sits() {
    for size in 1..=256 {
        for bad in 0..size {
            let log = search(size, |_, seats| !seats.contains(&bad), nobody);
            assert_eq!(log.blamed, [bad], "of {size}");
            let good: Vec<_> = (0..size).filter(|&seat| seat != bad).collect();
            assert_eq!(sorted(log.cleared), good, "{bad} of {size}");
            let most = (size as f64).log2().ceil() as u32 + 2;
            assert!(log.runs <= most, "{bad} of {size}: {} runs", log.runs);
        }
    }
}

#[test]
fn a_hundred_inputs_with_one_bad_take_nine_runs_at_the_worst_and_eight_or_nine_on_average() {
    let runs = |bad: Seat| search(100, |_, seats| !seats.contains(&bad), nobody).runs;
    assert_eq!((0..100).map(runs).max(), Some(9));
    let mean = (0..100).map(runs).sum::<u32>() as f64 / 100.0;
    assert!((8.0..9.0).contains(&mean), "{mean}");
}

#[test]
fn the_blamed_get_the_message_of_their_own_run() {
    let mut search = Search::new(2, "both".to_owned());
    assert_eq!(search.step(), Step::Run(vec![0]));
    search.failed("zero".to_owned());
    assert_eq!(search.step(), Step::Run(vec![1]));
    let verdict = search.passed();
    let message = "zero".to_owned();
    assert_eq!(verdict.blamed, [Culprit { seat: 0, message }]);
    assert_eq!(search.step(), Step::Finished);
}

#[test]
fn a_lone_input_needs_only_the_canary_and_two_bad_ones_share_it() {
    let log = search(1, |_, seats| seats.is_empty(), nobody);
    assert_eq!((log.runs, log.canaries, log.blamed), (1, 1, vec![0]));
    let log = search(2, |_, seats| seats.is_empty(), nobody);
    assert_eq!((log.runs, log.canaries, log.blamed), (3, 1, vec![0, 1]));
}

#[test]
fn a_function_that_raises_once_blames_nobody() {
    for size in 1..=64 {
        let log = search(size, |_, _| true, nobody);
        let blamed = if size == 1 { vec![0] } else { vec![] };
        assert_eq!(log.blamed, blamed, "a batch of one has failed alone");
        assert_eq!(log.cleared.len() + log.blamed.len(), size);
    }
}

#[test]
fn inputs_that_only_fail_together_are_answered() {
    let log = search(
        8,
        |_, seats| !(seats.contains(&2) && seats.contains(&3)),
        nobody,
    );
    assert_eq!(log.blamed, [0; 0]);
    assert_eq!(sorted(log.cleared), (0..8).collect::<Vec<_>>());
}

#[test]
fn a_device_that_raises_on_everything_is_found_out_and_nobody_is_blamed() {
    for size in 1..=256 {
        let log = search(size, |_, _| false, nobody);
        assert_eq!((&log.blamed, &log.cleared), (&vec![], &vec![]));
        let found = log.device_failed_after.expect("the canary was asked");
        assert!(found <= ceil_log2(size) + 4, "{size}: {found} runs");
    }
}

#[test]
fn a_culprit_whose_caller_left_ends_the_search_without_a_canary() {
    let mut search = Search::new(2, "both".to_owned());
    search.step();
    search.passed();
    assert_eq!(search.step(), Step::Run(vec![1]));
    search.failed("one".to_owned());
    search.leave(&[1]);
    assert_eq!(search.step(), Step::Finished);
}

#[test]
fn if_the_suspects_leave_what_went_aside_runs() {
    let mut search = Search::new(4, "all".to_owned());
    assert_eq!(search.step(), Step::Run(vec![0, 1]));
    search.failed("half".to_owned());
    search.leave(&[0, 1]);
    assert_eq!(search.step(), Step::Run(vec![2, 3]));
    assert_eq!(search.passed().cleared, [2, 3]);
    assert_eq!(search.step(), Step::Finished);
}

#[test]
fn rounding_up_logarithms() {
    let logs: Vec<_> = [1, 2, 3, 4, 5, 100, 128, 129].map(ceil_log2).to_vec();
    assert_eq!(logs, [0, 1, 2, 2, 3, 7, 7, 8]);
}

/// What the rounds of a search with `bad` bad inputs among `size` may cost.
fn runs_max(size: usize, bad: usize) -> u32 {
    let rounds = u32::try_from(bad.max(1)).expect("few");
    rounds * (ceil_log2(size) + 3) - 1
}

proptest! {
    #[test]
    fn several_bad_inputs_are_all_blamed_and_all_good_ones_answered(
        size in 1usize..200,
        picks in proptest::collection::vec(any::<proptest::sample::Index>(), 1..12),
    ) {
        let bad: BTreeSet<_> = picks.iter().map(|pick| pick.index(size)).collect();
        let log = search(size, |_, seats| !seats.iter().any(|seat| bad.contains(seat)), nobody);
        prop_assert_eq!(sorted(log.blamed), bad.iter().copied().collect::<Vec<_>>());
        let good: Vec<_> = (0..size).filter(|seat| !bad.contains(seat)).collect();
        prop_assert_eq!(sorted(log.cleared), good);
        prop_assert!(log.runs <= runs_max(size, bad.len()), "{} runs", log.runs);
    }

    #[test]
    fn leavers_are_neither_run_nor_answered_and_the_rest_is_settled(
        size in 1usize..100,
        picks in proptest::collection::vec(any::<proptest::sample::Index>(), 1..6),
        leaving in proptest::collection::vec((0u32..20, any::<proptest::sample::Index>()), 0..40),
    ) {
        let bad: BTreeSet<_> = picks.iter().map(|pick| pick.index(size)).collect();
        let mut settled = BTreeSet::new();
        let log = search(
            size,
            |_, seats| !seats.iter().any(|seat| bad.contains(seat)),
            |run| {
                let at_run = leaving.iter().filter(|(at, _)| *at == run);
                let seats = at_run.map(|(_, pick)| pick.index(size)).collect::<BTreeSet<_>>();
                seats.into_iter().filter(|&seat| settled.insert(seat)).collect()
            },
        );
        for seat in 0..size {
            let answers = [&log.cleared, &log.blamed].map(|seats| seats.contains(&seat));
            if !log.left.contains(&seat) {
                prop_assert_eq!(answers, [!bad.contains(&seat), bad.contains(&seat)]);
            }
        }
    }

    #[test]
    fn whatever_the_function_does_the_search_ends_and_settles_everybody_once(
        size in 1usize..64,
        coins in proptest::collection::vec(any::<bool>(), 1..64),
    ) {
        // A canary that passes always: the device is fine, the function is not.
        let toss = |run: u32, seats: &[Seat]| seats.is_empty() || coins[run as usize % coins.len()];
        let log = search(size, toss, nobody);
        prop_assert!(log.device_failed_after.is_none());
        let settled = [log.cleared, log.blamed].concat();
        prop_assert_eq!(sorted(settled), (0..size).collect::<Vec<_>>());
        prop_assert!(log.runs <= runs_max(size, size));
    }

    #[test]
    fn a_device_that_dies_in_mid_search_gets_nobody_blamed(
        size in 1usize..200,
        bad in any::<proptest::sample::Index>(),
        dies_at in 1u32..12,
    ) {
        let bad = bad.index(size);
        let log = search(size, |run, seats| run < dies_at && !seats.contains(&bad), nobody);
        prop_assert!(log.blamed.iter().all(|&seat| seat == bad));
        if let Some(found) = log.device_failed_after {
            prop_assert!(found <= dies_at + ceil_log2(size) + 5, "{found} after {dies_at}");
        } else {
            prop_assert!(log.runs < dies_at, "a dead device can't end a search");
        }
    }
}

//! Devices that turn batches away, and batches that were made elsewhere.

use super::*;

#[test]
fn a_busy_device_costs_nobody_an_attempt_and_is_tried_again() {
    let (mut rig, texts) = (Rig::new(4, 2), names("good", 60));
    rig.offer(strs(&texts));
    rig.offer(["bad"]);
    rig.start(|_, launch, inputs| match launch % 3 {
        // Canaries and runs of a search among them.
        0 | 1 if launch < 60 => Outcome::Busy(Duration::from_millis(1)),
        _ => fussy(inputs),
    });
    rig.assert_answered(strs(&texts));
    rig.assert_rejected("bad");
    let totals = rig.end();
    assert_eq!(totals.retries, 0);
    assert!(totals.batches["turned_away"] > 5, "{:?}", totals.batches);
    assert_eq!(
        totals.slots_filled, 61,
        "who was turned away filled no slot"
    );
}

#[test]
fn batches_that_arrive_whole_run_as_they_are_in_their_order() {
    let mut rig = Rig::new(4, 1);
    let (first, second) = (["a", "b", "c", "d", "e", "f"], ["g"]);
    rig.offer_whole(&first);
    rig.offer_whole(&second);
    let (seen, ran) = crossbeam_channel::unbounded();
    rig.start(move |_, launch, inputs| {
        let _ = seen.send(inputs.to_vec());
        // Whoever is turned away keeps its place.
        if launch == 1 {
            Outcome::Busy(Duration::from_millis(1))
        } else {
            echo(inputs)
        }
    });
    rig.assert_answered(first.into_iter().chain(second));
    let ran: Vec<_> = ran.try_iter().skip(1).collect();
    assert_eq!(ran, [&first[..], &first, &second]);
    let totals = rig.end();
    // Only what the device took counts.
    assert_eq!((totals.launches["whole"], totals.slots_filled), (2, 7));
    assert_eq!(totals.retries, 0);
}

#[test]
fn a_worker_says_of_a_whole_batch_that_the_function_raised_and_does_not_search() {
    let mut rig = Rig::new(4, 1);
    rig.offer_whole(&["a", "bad"]);
    rig.offer_whole(&["b"]);
    rig.start_with(false, |_, _, inputs| fussy(inputs));
    for text in ["a", "bad"] {
        let raised = Failure::Raised("ValueError: bad".to_owned());
        assert_eq!(rig.result(text), Err(raised));
    }
    rig.assert_answered(["b"]);
    let totals = rig.end();
    assert!(totals.isolations.is_empty() && !totals.launches.contains_key("search"));
}

#[test]
fn a_whole_batch_is_let_in_whole_or_not_at_all() {
    let mut rig = Rig::new(4, 1);
    let texts = names("x", 1001);
    let slot = || Arc::new(Slot::new(Handler::new(Blocker::current(), 0)));
    let ticket = |text: &String| {
        let now = clock::now();
        Box::new(Ticket::new(
            Input::new(text.as_str()),
            Tier::Free,
            now,
            now,
            slot(),
        ))
    };
    let refused = rig.intake.offer_whole(texts.iter().map(ticket).collect());
    let refused = refused.expect_err("more than a queue holds");
    assert_eq!(refused.len(), 1001);
    refused.into_iter().for_each(|ticket| ticket.withdraw());
    assert_eq!(rig.collector.backlog().total(), 0);
    rig.offer_whole(&["a"]);
    assert_eq!(rig.collector.backlog().total(), 1);
    rig.start(|_, _, inputs| echo(inputs));
    rig.assert_answered(["a"]);
    rig.end();
}

//! Searches on scripted executors, with the real collector around them.

mod devices;
mod elsewhere;
mod landing;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crossbeam_channel::{Receiver, Sender, bounded};
use may::sync::Blocker;
use parking_lot::Mutex;

use super::*;
use crate::admission::{Admission, Rules};
use crate::batch::collector::Collector;
use crate::batch::policy::Policy;
use crate::batch::schedule::Scheduler;
use crate::gpu::case::{NO_BUDGET, NO_TIME};
use crate::gpu::executor::{Executor, Lost, Outcome};
use crate::gpu::{Gpu, GpuSettings};
use crate::metrics::labels::BatchOutcome;
use crate::metrics::{Metrics, Totals};
use crate::queue::{Doorbell, Intake, handover};
use crate::slot::{Resolution, Slot};
use crate::ticket::{Failure, Output, Reply, Ticket, TicketSlot};
use crate::tier::Tier;
use crate::wake::{Handler, Mailbox, Mailboxes};

const CANARY: &str = "canary";
const MINUTE: Duration = Duration::from_secs(60);

/// What becomes of a batch: sees its GPU, which launch of that GPU it is (its first canary is 0), and its inputs.
type Script = Arc<dyn Fn(usize, usize, &[String]) -> Outcome + Send + Sync>;

/// An executor that takes no time. The first look at a batch always finds it running, so that another may board.
struct Scripted {
    gpu: usize,
    script: Script,
    staged: [Vec<String>; 2],
    running: Option<(Half, bool)>,
    launches: usize,
}

impl Executor for Scripted {
    fn stage(&mut self, half: Half, inputs: &[Input]) -> Result<(), Lost> {
        assert_ne!(
            self.running.map(|(running, _)| running),
            Some(half),
            "staged over a running batch"
        );
        self.staged[half.index()] = inputs.iter().map(|input| input.text.to_string()).collect();
        Ok(())
    }

    fn launch(&mut self, half: Half) -> Result<(), Lost> {
        assert_eq!(self.running, None, "a GPU runs one batch at a time");
        self.running = Some((half, false));
        Ok(())
    }

    fn wait(&mut self, _: Time) -> Outcome {
        let (half, looked) = self.running.expect("something was launched");
        self.running = Some((half, true));
        if !looked {
            return Outcome::Pending;
        }
        let outcome = (self.script)(self.gpu, self.launches, &self.staged[half.index()]);
        if outcome != Outcome::Pending {
            self.running = None;
            self.launches += 1;
        }
        outcome
    }

    fn may_be_busy(&self) -> bool {
        true
    }

    fn check(&mut self) -> Result<(), Lost> {
        Ok(())
    }

    fn reset(&mut self, _: Time) -> Result<(), Lost> {
        self.running = None;
        Ok(())
    }
}

fn echo(inputs: &[String]) -> Outcome {
    let output = |text: &String| Output {
        text: text.to_uppercase(),
        tokens: None,
    };
    Outcome::Done(inputs.iter().map(|text| Ok(output(text))).collect())
}

/// The batch function of most tests: it can't stand inputs that begin with `bad`.
fn fussy(inputs: &[String]) -> Outcome {
    match inputs.iter().find(|text| text.starts_with("bad")) {
        Some(text) => Outcome::Raised(format!("ValueError: {text}")),
        None => echo(inputs),
    }
}

/// A server without the network.
struct Rig {
    intake: Intake,
    collector: Arc<Collector>,
    metrics: Arc<Metrics>,
    gpus: Vec<Arc<Gpu>>,
    threads: Vec<thread::JoinHandle<()>>,
    slots: HashMap<String, Arc<TicketSlot>>,
}

impl Rig {
    fn new(batch_max: usize, gpus: usize) -> Rig {
        let (doorbell, ear) = Doorbell::new();
        let doorbell = Arc::new(doorbell);
        let (intake, handover, backlog) = handover(1000, Arc::clone(&doorbell));
        let policy = Policy {
            batch_max,
            hold_max: Duration::from_millis(1),
            patience: 0.0,
        };
        let scheduler = Scheduler::new(policy, gpus, backlog);
        let bell =
            rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).expect("an eventfd");
        // Nothing fits in, so everybody is woken directly and no core has to deliver.
        let mailboxes = Arc::new(Mailboxes::new([Mailbox::new(0, bell)]));
        let admission = Arc::new(Admission::new(Rules::default()));
        let collector = Arc::new(Collector::new(
            scheduler,
            handover,
            (doorbell, ear),
            mailboxes,
            admission,
        ));
        let metrics = Arc::new(Metrics::new(gpus, 1));
        let gpu = |index| Arc::new(Gpu::new(index, Arc::clone(&collector), &metrics));
        let gpus = (0..gpus).map(gpu).collect();
        Rig {
            intake,
            collector,
            metrics,
            gpus,
            threads: Vec::new(),
            slots: HashMap::new(),
        }
    }

    fn offer_with(&mut self, text: &str, deadline: Duration) {
        let slot = Arc::new(Slot::new(Handler::new(Blocker::current(), 0)));
        let now = clock::now();
        let ticket = Ticket::new(
            Input::new(text),
            Tier::Paid,
            now,
            now + deadline,
            Arc::clone(&slot),
        );
        self.intake
            .offer(Box::new(ticket))
            .expect("the queue has room");
        self.slots.insert(text.to_owned(), slot);
    }

    fn offer<'a>(&mut self, texts: impl IntoIterator<Item = &'a str>) {
        texts
            .into_iter()
            .for_each(|text| self.offer_with(text, MINUTE));
    }

    /// Offers tickets that arrive as a batch.
    fn offer_whole(&mut self, texts: &[&str]) {
        let now = clock::now();
        let tickets = texts.iter().map(|&text| {
            let slot = Arc::new(Slot::new(Handler::new(Blocker::current(), 0)));
            self.slots.insert(text.to_owned(), Arc::clone(&slot));
            Box::new(Ticket::new(
                Input::new(text),
                Tier::Free,
                now,
                now + MINUTE,
                slot,
            ))
        });
        let offered = self.intake.offer_whole(tickets.collect());
        offered.expect("the queue has room");
    }

    fn start(
        &mut self,
        script: impl Fn(usize, usize, &[String]) -> Outcome + Send + Sync + 'static,
    ) {
        self.start_with(true, script);
    }

    fn start_with(
        &mut self,
        search: bool,
        script: impl Fn(usize, usize, &[String]) -> Outcome + Send + Sync + 'static,
    ) {
        let script: Script = Arc::new(script);
        self.run(search, |gpu| Scripted {
            gpu,
            script: Arc::clone(&script),
            staged: Default::default(),
            running: None,
            launches: 0,
        });
    }

    /// Starts the GPUs on executors of any kind.
    fn run<E: Executor + Send + 'static>(&mut self, search: bool, make: impl Fn(usize) -> E) {
        for gpu in &self.gpus {
            let executor = make(gpu.index);
            let settings = GpuSettings {
                // No executor here waits for its own time: only a machine that stands still would.
                batch_timeout: Some(MINUTE),
                reset_max: Duration::from_secs(10),
                output_max: 1000,
                canary: Input::new(CANARY),
                search,
            };
            let gpu = Arc::clone(gpu);
            let run = || Driver::new(gpu, Box::new(executor), settings).run();
            self.threads.push(thread::spawn(run));
        }
    }

    fn result(&self, text: &str) -> Result<String, Failure> {
        match self.slots[text].wait() {
            Resolution::Answered(Reply { result, .. }) => result.map(|output| output.text),
            other => panic!("{text}: {other:?}"),
        }
    }

    fn assert_answered<'a>(&self, texts: impl IntoIterator<Item = &'a str>) {
        for text in texts {
            assert_eq!(self.result(text), Ok(text.to_uppercase()));
        }
    }

    fn assert_rejected(&self, text: &str) {
        assert_eq!(
            self.result(text),
            Err(Failure::Rejected(format!("ValueError: {text}")))
        );
    }

    fn unavailable(&self, text: &str) -> (&'static str, Duration) {
        match self.result(text) {
            Err(Failure::Unavailable { why, retry_after }) => (why, retry_after),
            other => panic!("{text}: {other:?}"),
        }
    }

    /// Ends the server and returns what it has counted.
    fn end(mut self) -> Totals {
        self.collector.close();
        self.threads
            .drain(..)
            .for_each(|thread| thread.join().expect("a GPU thread does not panic"));
        assert_eq!(
            self.collector.backlog().total(),
            0,
            "everybody left the queues"
        );
        self.metrics.totals()
    }
}

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|i| format!("{prefix}{i}")).collect()
}

fn strs(names: &[String]) -> impl Iterator<Item = &str> {
    names.iter().map(String::as_str)
}

#[test]
fn one_bad_input_of_a_hundred_is_rejected_in_its_own_words_and_all_others_are_answered() {
    for bad_at in [0, 37, 99] {
        let (mut rig, mut texts) = (Rig::new(100, 1), names("good", 100));
        texts[bad_at] = "bad".to_owned();
        rig.offer(strs(&texts));
        rig.start(|_, _, inputs| fussy(inputs));
        rig.assert_answered(strs(&texts).filter(|text| *text != "bad"));
        rig.assert_rejected("bad");
        let totals = rig.end();
        assert_eq!(totals.isolations, [("blamed", 1)].into());
        // The canary that starts the GPU is a probe, the one that proves a guilt another.
        let runs = totals.launches["search"] + totals.launches["probe"] - 1;
        assert!(
            (8..=9).contains(&runs),
            "{runs} runs for a bad input at {bad_at}"
        );
        assert_eq!((totals.slots_filled, totals.retries), (100, 0));
    }
}

#[test]
fn several_bad_inputs_are_found_on_several_gpus() {
    let (mut rig, mut texts) = (Rig::new(25, 3), names("good", 300));
    let bad = names("bad", 9);
    texts
        .iter_mut()
        .step_by(37)
        .zip(&bad)
        .for_each(|(text, bad)| text.clone_from(bad));
    rig.offer(strs(&texts));
    rig.start(|_, _, inputs| fussy(inputs));
    rig.assert_answered(strs(&texts).filter(|text| !text.starts_with("bad")));
    strs(&bad).for_each(|text| rig.assert_rejected(text));
    assert_eq!(rig.end().isolations.keys().collect::<Vec<_>>(), [&"blamed"]);
}

#[test]
fn a_wrong_number_of_outputs_is_no_shifted_answer() {
    let mut rig = Rig::new(8, 1);
    rig.offer(["a", "b", "swallowed", "c", "d"]);
    rig.start(|_, _, inputs| {
        echo(
            &inputs
                .iter()
                .filter(|text| *text != "swallowed")
                .cloned()
                .collect::<Vec<_>>(),
        )
    });
    rig.assert_answered(["a", "b", "c", "d"]);
    let message = "the batch function returned 0 outputs for a batch of 1".to_owned();
    assert_eq!(rig.result("swallowed"), Err(Failure::Rejected(message)));
    assert_eq!(rig.end().isolations, [("blamed", 1)].into());
}

#[test]
fn an_executor_that_names_the_bad_input_needs_no_search() {
    let mut rig = Rig::new(8, 1);
    rig.offer(["a", "bad", "b"]);
    rig.start(|_, _, inputs| {
        let Outcome::Done(mut results) = echo(inputs) else {
            unreachable!()
        };
        let named = inputs
            .iter()
            .zip(&mut results)
            .filter(|(text, _)| text.starts_with("bad"));
        named.for_each(|(text, result)| *result = Err(format!("ValueError: {text}")));
        Outcome::Done(results)
    });
    rig.assert_answered(["a", "b"]);
    rig.assert_rejected("bad");
    assert!(rig.end().isolations.is_empty());
}

#[test]
fn a_function_that_raises_once_costs_nobody_an_answer() {
    let mut rig = Rig::new(8, 1);
    rig.offer(["a", "b", "c"]);
    rig.start(|_, launch, inputs| {
        if launch == 1 {
            Outcome::Raised("moody".to_owned())
        } else {
            echo(inputs)
        }
    });
    rig.assert_answered(["a", "b", "c"]);
    assert_eq!(rig.end().isolations, [("innocent", 1)].into());
}

#[test]
fn a_deadline_without_time_for_another_run_is_told_so_and_the_others_are_searched() {
    let mut rig = Rig::new(8, 1);
    rig.offer(["a", "bad", "b"]);
    rig.offer_with("hurried", MINUTE / 2);
    let collector = Arc::clone(&rig.collector);
    rig.start(move |gpu, launch, inputs| {
        if launch == 1 {
            // L is 40 s from here on, on paper.
            collector.canary(gpu, Duration::from_secs(40));
        }
        fussy(inputs)
    });
    assert_eq!(rig.unavailable("hurried").0, NO_TIME);
    rig.assert_answered(["a", "b"]);
    rig.assert_rejected("bad");
    let totals = rig.end();
    assert_eq!(totals.abandoned["search_stopped"], 1);
    assert_eq!(totals.isolations.keys().collect::<Vec<_>>(), [&"stopped"]);
}

#[test]
fn searches_beyond_their_budget_stop_while_others_wait_and_only_then() {
    let mut rig = Rig::new(2, 1);
    let charged = clock::now();
    rig.collector
        .search_budget()
        .charge(charged, Duration::from_secs(1000));
    rig.offer(["bad0", "a", "waits"]);
    rig.start(|_, _, inputs| fussy(inputs));
    for text in ["bad0", "a"] {
        let (why, retry_after) = rig.unavailable(text);
        assert_eq!(why, NO_BUDGET);
        // Twice of what is allowed has decayed to it after 10 s × ln 2; some of that has passed.
        let pause = Duration::from_secs_f64(10.0 * std::f64::consts::LN_2);
        let (rounding, passed) = (Duration::from_millis(1), clock::now().since(charged));
        assert!(
            retry_after <= pause + rounding && retry_after + passed + rounding >= pause,
            "{retry_after:?} after {passed:?}"
        );
    }
    rig.assert_answered(["waits"]);
    rig.offer(["bad1"]);
    rig.assert_rejected("bad1");
    assert_eq!(rig.end().isolations, [("blamed", 1), ("stopped", 1)].into());
}

#[test]
fn a_batch_that_boarded_behind_one_that_raised_waits_and_costs_nobody_an_attempt() {
    let (mut rig, launched) = (Rig::new(4, 1), Arc::new(Mutex::new(Vec::new())));
    rig.offer(["bad", "a", "b", "c", "d", "e", "f", "g"]);
    let log = Arc::clone(&launched);
    rig.start(move |_, _, inputs| {
        log.lock().push(inputs.join(" "));
        fussy(inputs)
    });
    rig.assert_answered(["a", "b", "c", "d", "e", "f", "g"]);
    rig.assert_rejected("bad");
    assert_eq!(
        *launched.lock(),
        ["canary", "bad a b c", "d e f g", "bad a", "bad", "a b c"],
        "there is time enough to let the others go first"
    );
    let totals = rig.end();
    assert_eq!((totals.retries, totals.slots_filled), (0, 8));
}

#[test]
fn a_batch_on_which_the_function_raises_in_mid_search_is_searched_next() {
    let (mut rig, launched) = (Rig::new(4, 1), Arc::new(Mutex::new(Vec::new())));
    rig.offer(["bad0", "a", "b", "c", "bad1", "d", "e", "f"]);
    let log = Arc::clone(&launched);
    rig.start(move |_, _, inputs| {
        log.lock().push(inputs.join(" "));
        fussy(inputs)
    });
    rig.assert_answered(["a", "b", "c", "d", "e", "f"]);
    rig.assert_rejected("bad0");
    rig.assert_rejected("bad1");
    assert_eq!(
        *launched.lock(),
        [
            "canary",
            "bad0 a b c",
            "bad1 d e f",
            "bad0 a",
            "bad0",
            "a b c",
            "bad1 d",
            "bad1",
            "d e f"
        ]
    );
    assert_eq!(rig.end().isolations, [("blamed", 2)].into());
}

#[test]
fn who_left_or_expired_in_mid_search_is_not_run_again() {
    let (mut rig, launched) = (Rig::new(8, 1), Arc::new(Mutex::new(Vec::new())));
    rig.offer(["bad", "a", "leaver", "late", "b"]);
    let slots = [&rig.slots["leaver"], &rig.slots["late"]].map(Arc::clone);
    let log = Arc::clone(&launched);
    rig.start(move |_, launch, inputs| {
        if launch == 1 {
            assert!(slots[0].leave().is_some() && slots[1].expire().is_some());
        }
        log.lock().push(inputs.join(" "));
        fussy(inputs)
    });
    rig.assert_answered(["a", "b"]);
    rig.assert_rejected("bad");
    assert_eq!(
        *launched.lock(),
        ["canary", "bad a leaver late b", "bad a", "bad", "a b"]
    );
    let totals = rig.end();
    assert_eq!((totals.late_results, totals.abandoned.len()), (0, 0));
}

#[test]
fn a_server_that_ends_in_mid_search_tells_whoever_is_left() {
    let (mut rig, texts) = (Rig::new(8, 1), ["bad", "a", "b", "c"]);
    rig.offer(texts);
    let collector = Arc::clone(&rig.collector);
    rig.start(move |_, launch, inputs| {
        if launch == 2 {
            collector.close();
        }
        fussy(inputs)
    });
    for text in texts {
        assert_eq!(rig.result(text), Err(Failure::Draining));
    }
    rig.end();
}

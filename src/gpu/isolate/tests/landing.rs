//! Batches whose results come back after the device was through with them, while the next batch runs already.

use super::*;

/// What an executor was called for, and with which first input.
type Diary = Arc<Mutex<Vec<(&'static str, String)>>>;

/// An executor that takes no time and gives results to whoever collects them. Like [`Scripted`] it is found running once.
struct Landing {
    diary: Diary,
    /// The collection of the batch that has this input fails, once.
    broken: Option<String>,
    staged: [Vec<String>; 2],
    running: Option<(Half, bool)>,
    landed: Option<Half>,
}

impl Landing {
    fn note(&self, call: &'static str, half: Half) {
        let first = self.staged[half.index()].first().cloned();
        self.diary
            .lock()
            .push((call, first.expect("no batch is empty")));
    }
}

impl Executor for Landing {
    fn stage(&mut self, half: Half, inputs: &[Input]) -> Result<(), Lost> {
        let running = self.running.map(|(running, _)| running);
        assert!(
            running != Some(half) && self.landed != Some(half),
            "staged over a batch whose results are still to come"
        );
        self.staged[half.index()] = inputs.iter().map(|input| input.text.to_string()).collect();
        Ok(())
    }

    fn launch(&mut self, half: Half) -> Result<(), Lost> {
        assert_eq!(self.running, None, "a GPU runs one batch at a time");
        self.note("launch", half);
        self.running = Some((half, false));
        Ok(())
    }

    fn wait(&mut self, _: Time) -> Outcome {
        assert_eq!(
            self.landed, None,
            "results are collected before the next batch is waited for"
        );
        match self.running.as_mut().expect("something was launched") {
            (_, looked @ false) => {
                *looked = true;
                Outcome::Pending
            }
            (half, _) => {
                self.landed = Some(*half);
                self.running = None;
                Outcome::Ended
            }
        }
    }

    fn collect(&mut self, _: Time) -> Result<Vec<Result<Output, String>>, Lost> {
        let half = self.landed.take().expect("asked for once");
        self.note("collect", half);
        let inputs = &self.staged[half.index()];
        if self
            .broken
            .as_ref()
            .is_some_and(|broken| inputs.contains(broken))
        {
            self.broken = None;
            return Err(Lost("the results did not come back in time".to_owned()));
        }
        let output = |text: &String| match text.strip_prefix("bad") {
            Some(_) => Err(format!("ValueError: {text}")),
            None => Ok(Output {
                text: text.to_uppercase(),
                tokens: None,
            }),
        };
        Ok(inputs.iter().map(output).collect())
    }

    fn check(&mut self) -> Result<(), Lost> {
        Ok(())
    }

    fn reset(&mut self, _: Time) -> Result<(), Lost> {
        (self.running, self.landed) = (None, None);
        Ok(())
    }
}

/// One GPU whose batches land, with two full batches waiting, and what it is called for from then on.
fn with_two_batches(texts: &[String], broken: Option<&str>) -> (Rig, Diary) {
    let mut rig = Rig::new(4, 1);
    rig.offer(strs(texts));
    let diary = Diary::default();
    let (kept, broken) = (Arc::clone(&diary), broken.map(str::to_owned));
    rig.run(true, move |_| Landing {
        diary: Arc::clone(&kept),
        broken: broken.clone(),
        staged: Default::default(),
        running: None,
        landed: None,
    });
    (rig, diary)
}

#[test]
fn results_are_collected_after_the_batch_that_had_boarded_has_left() {
    let mut texts = names("good", 8);
    texts[5] = "bad".to_owned();
    let (rig, diary) = with_two_batches(&texts, None);
    rig.assert_answered(strs(&texts).filter(|text| *text != "bad"));
    // The executor has named the input at fault: nothing is searched for.
    rig.assert_rejected("bad");
    let totals = rig.end();
    assert_eq!((totals.retries, totals.isolations.len()), (0, 0));
    let told = diary.lock();
    let calls: Vec<_> = told
        .iter()
        .map(|(call, first)| (*call, first.as_str()))
        .collect();
    let expected = [
        ("launch", CANARY),
        ("collect", CANARY),
        ("launch", "good0"),
        ("launch", "good4"),
        ("collect", "good0"),
        ("collect", "good4"),
    ];
    assert_eq!(calls, expected);
}

#[test]
fn results_that_do_not_come_send_both_batches_to_wait_again() {
    let texts = names("good", 8);
    let (rig, diary) = with_two_batches(&texts, Some("good2"));
    for text in strs(&texts) {
        // There is no other GPU to wait for.
        assert_eq!(rig.result(text), Err(Failure::NoGpu), "{text}");
    }
    let totals = rig.end();
    assert_eq!((totals.retries, totals.batches["lost"]), (8, 2));
    let calls: Vec<_> = diary.lock().iter().map(|(call, _)| *call).collect();
    assert_eq!(calls[2..5], ["launch", "launch", "collect"]);
}

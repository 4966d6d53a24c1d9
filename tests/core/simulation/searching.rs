//! A GPU thread that searches for the inputs at fault after the batch function raised, with the real search and budget.

use std::time::Duration;

use funicular::clock::Time;
use funicular::gpu::case::{Case, NO_BUDGET, NO_TIME, Settled, stopped};
use funicular::gpu::executor::{Half, Outcome};
use funicular::gpu::fate::{self, Returned};
use funicular::gpu::search::Step;
use funicular::gpu::tolerance;
use funicular::queue::Lane;
use funicular::ticket::{Failure, Input, Output};

use super::device::{CANARY, Mark, Run, is_about_inputs};
use super::gpus::{Thread, id_in, id_of, ids_of};
use super::riding::Departure;
use super::shadow::{End, Place, Why};
use super::tally::Event;
use super::world::World;

/// The share of the pool that searches may take is averaged over so many seconds.
const WINDOW: f64 = 10.0;

/// A failed batch: where it lies, its case, and what is known of it.
#[derive(Debug)]
pub struct Failed {
    half: Half,
    case: Case,
    facts: Facts,
}

/// A search, and the run that is under way.
#[derive(Debug)]
pub struct Trial {
    failed: Failed,
    /// The batch that failed in between, and is searched next.
    next: Option<Failed>,
    doing: Doing,
    pub run: Run,
}

/// Who runs.
#[derive(Debug)]
enum Doing {
    /// A full batch of others, for which the search can spare the time.
    Others,
    /// These, of those under search.
    Some(Vec<usize>),
    Canary,
}

/// What is known of a failed batch that the search does not know.
#[derive(Debug)]
struct Facts {
    inputs: usize,
    /// How many of its inputs are bad, whether anybody waits for them or not.
    bad: usize,
    /// Whether the device itself had a part in it.
    sound: bool,
    /// Who has failed alone.
    convicted: Vec<usize>,
}

/// The runs of searches, kept by hand.
#[derive(Debug, Default)]
pub struct Spending(Vec<(Time, Duration)>);

impl Spending {
    fn add(&mut self, now: Time, took: Duration) {
        self.0
            .retain(|(end, _)| now.since(*end).as_secs_f64() < 12.0 * WINDOW);
        self.0.push((now, took));
    }

    /// GPUs that search, on average.
    fn gpus(&self, now: Time) -> f64 {
        let run = |(end, took): &(Time, Duration)| {
            let weight = 1.0 - (-took.as_secs_f64() / WINDOW).exp();
            weight * (-now.since(*end).as_secs_f64() / WINDOW).exp()
        };
        self.0.iter().map(run).sum()
    }
}

impl World {
    /// The batch function raised `message` on the batch of `inputs` inputs in `half` of `gpu`.
    pub(super) fn search(&mut self, gpu: usize, half: Half, inputs: usize, message: String) {
        let failed = self.failed_batch(gpu, half, inputs, message);
        self.go_on_searching(gpu, failed, None);
    }

    fn failed_batch(&mut self, gpu: usize, half: Half, inputs: usize, message: String) -> Failed {
        self.tally.note(Event::Searched);
        let ids = self.held_by(gpu, half);
        assert_eq!(ids.len(), inputs);
        let is_bad = |id: &&usize| self.shadow.records[**id].mark == Mark::Bad;
        let facts = Facts {
            inputs,
            bad: ids.iter().filter(is_bad).count(),
            sound: is_about_inputs(&message),
            convicted: if inputs == 1 { ids } else { Vec::new() },
        };
        let case = Case::new(inputs, message);
        Failed { half, case, facts }
    }

    fn held_by(&self, gpu: usize, half: Half) -> Vec<usize> {
        let it = &self.gpus[gpu];
        it.cell
            .edit(it.generation, half, |batch| ids_of(batch))
            .expect("not seized")
    }

    /// Between two runs: others may have the GPU for one.
    fn go_on_searching(&mut self, gpu: usize, failed: Failed, next: Option<Failed>) {
        if next.is_some() || !self.spares_a_run(gpu, &failed) {
            return self.next_run(gpu, failed, next);
        }
        let Some(batch) = self.bind_ahead(gpu) else {
            return self.next_run(gpu, failed, next);
        };
        self.tally.note(Event::RanInBetween);
        let half = failed.half.other();
        if !self.board(gpu, half, batch) {
            return self.tally.note(Event::SearchLost);
        }
        match self.depart(gpu, half) {
            Departure::NotNeeded => self.next_run(gpu, failed, next),
            Departure::DeviceLost => self.lost_in_search(gpu),
            Departure::Runs(run) => {
                let doing = Doing::Others;
                self.gpus[gpu].thread = Thread::Searching(Box::new(Trial {
                    failed,
                    next,
                    doing,
                    run,
                }));
            }
        }
    }

    /// Whether everybody under search has time for two runs more than the search can still take.
    fn spares_a_run(&self, gpu: usize, failed: &Failed) -> bool {
        let run = self.run_time(gpu);
        let (it, now) = (&self.gpus[gpu], self.now);
        let spares = it.cell.edit(it.generation, failed.half, |batch| {
            failed.case.spares_a_run(batch, now, run)
        });
        let spares = spares.expect("not seized");
        let held = self.held_by(gpu, failed.half);
        let deadlines = held.iter().map(|&id| self.shadow.records[id].deadline);
        let in_a_hurry = deadlines.min().is_none_or(|first| first <= now + 2 * run);
        assert!(!(spares && in_a_hurry), "somebody has no time for others");
        spares
    }

    /// What a run takes, and may take longer than that.
    fn run_time(&self, gpu: usize) -> Duration {
        let batch_time = self.rig.scheduler.batch_time(gpu);
        batch_time + tolerance(batch_time)
    }

    fn lost_in_search(&mut self, gpu: usize) {
        self.tally.note(Event::SearchLost);
        self.fail(gpu);
    }

    fn next_run(&mut self, gpu: usize, mut failed: Failed, mut next: Option<Failed>) {
        if let Some(next) = &mut next {
            self.part(gpu, next.half, &mut next.case);
        }
        self.part(gpu, failed.half, &mut failed.case);
        let step = failed.case.step();
        let (it, half) = (&self.gpus[gpu], failed.half);
        let (doing, inputs) = match step {
            Step::Run(seats) => {
                let case = &failed.case;
                let inputs = it
                    .cell
                    .edit(it.generation, half, |batch| case.inputs(batch, &seats));
                let inputs = inputs.expect("not seized");
                (Doing::Some(inputs.iter().map(id_in).collect()), inputs)
            }
            Step::Canary => (Doing::Canary, vec![Input::new(CANARY)]),
            Step::Finished => return self.close_case(gpu, &failed, next),
        };
        if let Doing::Some(ids) = &doing {
            // Whoever left while the search was between two runs has parted with it.
            let bound = ids.iter().all(|&id| self.shadow.is_bound(id, gpu));
            assert!(bound, "somebody runs for nobody: {ids:?}");
        }
        let relaunched = it.cell.launch(it.generation, half, self.now, |_| true);
        assert_eq!(relaunched, Ok(true));
        let Some(run) = self.start(gpu, &inputs) else {
            return self.lost_in_search(gpu);
        };
        self.gpus[gpu].thread = Thread::Searching(Box::new(Trial {
            failed,
            next,
            doing,
            run,
        }));
    }

    /// Takes out who can't or needn't wait for another run, and checks that it is those and no others.
    fn part(&mut self, gpu: usize, half: Half, case: &mut Case) {
        let now = self.now;
        let pause = self.searches_rest();
        let run_ends = now + self.run_time(gpu);
        let expected: Vec<(usize, Option<End>)> = self
            .held_by(gpu, half)
            .into_iter()
            .filter_map(|id| self.parts(id, run_ends, pause.is_some()))
            .collect();
        let it = &self.gpus[gpu];
        let mut wakes = self.rig.mailboxes.gather();
        let tickets = it.cell.edit(it.generation, half, |batch| {
            case.part(batch, (now, run_ends), pause.is_some(), &mut wakes)
        });
        let tickets = tickets.expect("not seized");
        let left: Vec<usize> = tickets.iter().map(|ticket| id_of(ticket)).collect();
        let must_leave: Vec<usize> = expected.iter().map(|(id, _)| *id).collect();
        assert_eq!(left, must_leave, "who parts with the search");
        let failure = stopped(pause, Duration::ZERO);
        let why = if pause.is_some() { NO_BUDGET } else { NO_TIME };
        assert!(matches!(&failure, Failure::Unavailable { why: said, .. } if *said == why));
        let given_up = fate::give_up(tickets, &failure, &mut wakes);
        drop(wakes);
        let mut stopped = 0;
        for (id, end) in expected {
            let Some(end) = end else { continue };
            self.shadow.resolve(id, end);
            stopped += usize::from(matches!(end, End::Failed(_)));
            match end {
                End::Failed(Why::NoTime) => self.tally.note(Event::NoTime),
                End::Failed(_) => self.tally.note(Event::NoBudget),
                _ => {}
            }
        }
        assert_eq!(given_up, stopped, "who is given up");
    }

    /// Whether ticket `id` must part with a search, and how it ends by that if it has not ended before.
    fn parts(&self, id: usize, run_ends: Time, stop: bool) -> Option<(usize, Option<End>)> {
        let record = &self.shadow.records[id];
        if let Place::Ended(_) = record.place {
            return Some((id, None));
        }
        let end = if record.deadline <= self.now {
            End::Expired
        } else if record.hung_up {
            End::Gone
        } else if stop {
            End::Failed(Why::NoBudget)
        } else if record.deadline < run_ends {
            End::Failed(Why::NoTime)
        } else {
            return None;
        };
        Some((id, Some(end)))
    }

    /// For how long searches must rest, if they must.
    fn searches_rest(&self) -> Option<Duration> {
        let waiting = self.rig.backlog().waiting_in(Lane::Fresh);
        let healthy = self.rig.scheduler.pool().healthy();
        let pause = self.budget.exceeded(self.now, waiting, healthy);
        // The last GPU may search on while it leaves.
        let allowed = 0.5 * healthy.max(1) as f64;
        let spent = self.spending.gpus(self.now);
        match pause {
            Some(_) => assert!(waiting > 0 && spent > allowed * 0.999),
            None => assert!(waiting == 0 || spent < allowed * 1.001),
        }
        pause
    }

    /// The executor returns from a run of a search.
    pub(super) fn back_from_search(&mut self, gpu: usize, trial: Trial) {
        let Trial {
            failed,
            next,
            doing,
            run,
        } = trial;
        let took = self.now.since(run.launched);
        if !matches!(doing, Doing::Others) {
            self.budget.charge(self.now, took);
            self.spending.add(self.now, took);
        }
        let (inputs, was_seized) = (run.inputs, self.gpus[gpu].seized);
        if matches!(run.outcome, Outcome::Busy(_)) && !was_seized {
            return self.others_turned_away(gpu, failed);
        }
        let Some(result) = self.returned_by(gpu, run) else {
            if !was_seized {
                self.tally.note(Event::SearchLost);
            }
            return;
        };
        if result.is_ok() {
            self.measured(gpu, took);
        }
        match doing {
            Doing::Others => self.others_are_back(gpu, failed, inputs, result),
            Doing::Canary if result.is_err() => {
                self.tally.note(Event::Suspected);
                self.fail(gpu);
            }
            Doing::Canary => self.run_passed(gpu, failed, next, (Vec::new(), Vec::new())),
            Doing::Some(ids) => match result {
                Ok(results) => self.run_passed(gpu, failed, next, (ids, results)),
                Err(message) => self.run_failed(gpu, failed, next, (ids, message)),
            },
        }
    }

    /// The device did not take the batch of others, and the search goes on.
    fn others_turned_away(&mut self, gpu: usize, failed: Failed) {
        self.tally.note(Event::TurnedAway);
        self.send_back(gpu, failed.half.other());
        if self.gpus[gpu].device.lost {
            return self.lost_in_search(gpu);
        }
        self.next_run(gpu, failed, None);
    }

    fn others_are_back(&mut self, gpu: usize, failed: Failed, inputs: usize, result: Returned) {
        let half = failed.half.other();
        match result {
            Ok(results) => {
                let it = &self.gpus[gpu];
                let held = it.cell.take(it.generation, half).expect("not seized");
                self.alight(gpu, held.batch.tickets, results);
                self.next_run(gpu, failed, None);
            }
            Err(message) => {
                let next = self.failed_batch(gpu, half, inputs, message);
                self.next_run(gpu, failed, Some(next));
            }
        }
    }

    fn run_failed(
        &mut self,
        gpu: usize,
        mut failed: Failed,
        next: Option<Failed>,
        (ids, message): (Vec<usize>, String),
    ) {
        failed.facts.sound &= is_about_inputs(&message);
        if let [alone] = ids[..] {
            failed.facts.convicted.push(alone);
        }
        failed.case.failed(message);
        self.go_on_searching(gpu, failed, next);
    }

    fn run_passed(
        &mut self,
        gpu: usize,
        mut failed: Failed,
        next: Option<Failed>,
        (ids, results): (Vec<usize>, Vec<Result<Output, String>>),
    ) {
        let (it, case) = (&self.gpus[gpu], &mut failed.case);
        let settled = it
            .cell
            .edit(it.generation, failed.half, |batch| case.passed(batch));
        let Settled { cleared, blamed } = settled.expect("not seized");
        let cleared_ids: Vec<usize> = cleared.iter().map(|ticket| id_of(ticket)).collect();
        assert_eq!(cleared_ids, ids, "who ran and passed is answered");
        ids.iter().for_each(|_| self.tally.note(Event::Cleared));
        self.alight(gpu, cleared, results);
        for (ticket, message) in blamed {
            let id = id_of(&ticket);
            assert!(
                failed.facts.convicted.contains(&id),
                "ticket {id} is blamed and did not fail alone"
            );
            self.tally.note(Event::Blamed);
            self.alight(gpu, vec![ticket], vec![Err(message)]);
        }
        self.go_on_searching(gpu, failed, next);
    }

    /// The search is over; the one of the batch that failed in between follows.
    fn close_case(&mut self, gpu: usize, failed: &Failed, next: Option<Failed>) {
        let Failed { half, case, facts } = failed;
        let it = &self.gpus[gpu];
        let held = it.cell.take(it.generation, *half).expect("not seized");
        assert!(held.batch.tickets.is_empty(), "everybody is settled");
        let log = facts.inputs.next_power_of_two().trailing_zeros();
        let most = match facts.bad {
            0 | 1 => log + 2,
            bad => bad as u32 * (log + 3),
        };
        assert!(
            !facts.sound || case.runs() <= most,
            "{} runs for {facts:?}",
            case.runs()
        );
        match next {
            Some(next) => self.go_on_searching(gpu, next, None),
            None => self.turn_idle(gpu, half.other()),
        }
    }
}

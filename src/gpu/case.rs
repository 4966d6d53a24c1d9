//! A batch under search for the inputs at fault: who of its tickets is where in the [`Search`], who leaves it before its
//! end, and what each is told. Pure; `super::isolate` runs what it asks for.
//!
//! The tickets themselves stay in the GPU's cell, so that whoever fails the GPU finds them there. The case is shown the
//! batch whenever it has to know or to take somebody.

use std::time::Duration;

use crate::batch::Batch;
use crate::clock::Time;
use crate::gpu::search::{Search, Seat, Step};
use crate::ticket::{Failure, Input, Ticket};
use crate::wake::Wakes;

/// Why a search stopped for a ticket: its deadline.
pub const NO_TIME: &str = "an input of its batch made the batch function fail, and its deadline left no time to find out which";
/// Why a search stopped for a ticket: its share of the pool.
pub const NO_BUDGET: &str =
    "an input of its batch made the batch function fail, and too many others do to find out which";

/// See the module's text.
#[derive(Debug)]
pub struct Case {
    search: Search,
    /// The seat that each ticket in the cell had in the failed batch, in the cell's order.
    seats: Vec<Seat>,
}

/// Whom a run that passed settles.
#[derive(Debug, Default)]
pub struct Settled {
    /// Those who ran, in the order of their outputs.
    pub cleared: Vec<Box<Ticket>>,
    /// Those whose guilt is proven by it, and what the batch function said about each.
    pub blamed: Vec<(Box<Ticket>, String)>,
}

impl Case {
    /// The case of a batch of `inputs` inputs on which the batch function raised `message`.
    pub fn new(inputs: usize, message: String) -> Case {
        Case {
            search: Search::new(inputs, message),
            seats: (0..inputs).collect(),
        }
    }

    /// Tickets that are still to be settled.
    pub fn unsettled(&self) -> usize {
        self.seats.len()
    }

    /// Runs asked for so far.
    pub fn runs(&self) -> u32 {
        self.search.runs()
    }

    /// Takes those for whom `leaves` says so out of the cell's `batch`, in order.
    fn draw(
        &mut self,
        batch: &mut Batch,
        mut leaves: impl FnMut(Seat, &mut Ticket) -> bool,
    ) -> (Vec<Seat>, Vec<Box<Ticket>>) {
        let seated = self.seats.drain(..).zip(batch.tickets.drain(..));
        let (mut leaving, mut staying) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
        for (seat, mut ticket) in seated {
            let to = if leaves(seat, &mut ticket) {
                &mut leaving
            } else {
                &mut staying
            };
            to.0.push(seat);
            to.1.push(ticket);
        }
        (self.seats, batch.tickets) = staying;
        leaving
    }

    /// Takes out who can't or needn't wait for another run, one that ends at `run_ends`: callers who left, deadlines that
    /// have passed or come sooner than that, and everybody if `stop`. They are settled if their callers left or their
    /// deadlines passed; the others are to be told [`stopped`].
    pub fn part(
        &mut self,
        batch: &mut Batch,
        (now, run_ends): (Time, Time),
        stop: bool,
        wakes: &mut Wakes<'_>,
    ) -> Vec<Box<Ticket>> {
        let (seats, tickets) = self.draw(batch, |_, ticket| {
            !lives(ticket, now, wakes) || stop || ticket.deadline < run_ends
        });
        self.search.leave(&seats);
        tickets
    }

    /// Whether everybody in `batch` has time for a run of others of length `run` before the search goes on: one more than
    /// the search may need, and another that something slipped by.
    pub fn spares_a_run(&self, batch: &Batch, now: Time, run: Duration) -> bool {
        let first = batch.tickets.iter().map(|ticket| ticket.deadline).min();
        let needed = run * (self.search.runs_left() + 2);
        first.is_some_and(|first| now + needed < first)
    }

    /// What to run now; see [`Search::step`].
    pub fn step(&mut self) -> Step {
        self.search.step()
    }

    /// The inputs of `seats`, which are all there.
    pub fn inputs(&self, batch: &Batch, seats: &[Seat]) -> Vec<Input> {
        let seated = self.seats.iter().zip(&batch.tickets);
        let chosen = seated.filter(|(seat, _)| seats.binary_search(seat).is_ok());
        chosen.map(|(_, ticket)| ticket.input.clone()).collect()
    }

    /// The run that was asked for failed with `message`. Not for a canary: that makes the device the suspect.
    pub fn failed(&mut self, message: String) {
        self.search.failed(message);
    }

    /// The run that was asked for passed, canary or not.
    pub fn passed(&mut self, batch: &mut Batch) -> Settled {
        let verdict = self.search.passed();
        let cleared = |seat, _: &mut Ticket| verdict.cleared.binary_search(&seat).is_ok();
        let mut settled = Settled {
            cleared: self.draw(batch, cleared).1,
            blamed: Vec::new(),
        };
        for culprit in verdict.blamed {
            let (_, tickets) = self.draw(batch, |seat, _| seat == culprit.seat);
            let blamed = tickets
                .into_iter()
                .map(|ticket| (ticket, culprit.message.clone()));
            settled.blamed.extend(blamed);
        }
        settled
    }
}

/// What those are told who part with a search before its end: searches must rest for `pause`, or there was no time; and
/// the pool needs `drain` for those who wait.
pub fn stopped(pause: Option<Duration>, drain: Duration) -> Failure {
    Failure::Unavailable {
        why: pause.map_or(NO_TIME, |_| NO_BUDGET),
        retry_after: pause.unwrap_or_default() + drain,
    }
}

/// Whether somebody still waits for `ticket` and may; if not, it is resolved.
fn lives(ticket: &mut Ticket, now: Time, wakes: &mut Wakes<'_>) -> bool {
    if ticket.deadline <= now {
        let _ = ticket.expire(wakes);
    } else if ticket.peer.is_gone() {
        let _ = ticket.leave(wakes);
    }
    ticket.state().is_live()
}

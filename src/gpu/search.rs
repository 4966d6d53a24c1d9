//! The halving search for the inputs at fault after the batch function raised. Pure: the caller runs what [`Search::step`]
//! asks for and says how it went.
//!
//! ```text
//! the failed batch = suspects
//!   ├─ first half of the suspects passes ─► answered; the other half is suspect
//!   ├─ first half of the suspects fails ──► it is suspect; the other half goes aside, untested
//!   └─ one suspect left, fails alone ─────► a culprit; all that went aside runs together
//!                                             ├─ passes ─► answered; the culprit is blamed, the search is over
//!                                             └─ fails ──► suspects again, and the next round begins
//! ```
//!
//! Failing alone is not enough to be blamed: the device may be what fails. The proof is a later run that passes without
//! the culprit on the same device, whichever comes first: what went aside, a half of the next round, or the canary. The
//! canary is asked when nothing else is left to run, and in the middle of a round when so many runs in a row have failed
//! that the device is the likelier culprit. If the canary fails as well, the caller drops the search and fails the device.
//!
//! A suspect that passes alone (a function that isn't deterministic, inputs that only fail together) is answered like
//! anybody else, and nobody is blamed in its stead.
//!
//! Cost: a round over m suspects takes at most ⌈log₂ m⌉ runs until one stands alone, one more if that one has not run
//! alone yet, and one for the proof. So one bad input among n costs at most ⌈log₂ n⌉ + 2 runs after the failed batch. Every
//! later round costs a canary more at the worst. [`Search::step`] asserts it.
//!
//! Items are known by their seats in the failed batch, 0 to n − 1. Every list of seats in here is ascending, so outputs,
//! seats and the batch's tickets stay in one order.

/// Position of a ticket in the batch that failed.
pub type Seat = usize;

/// So many failed runs in a row make the device suspect while culprits wait for their proof. Two is what a second bad input
/// looks like when the first was isolated; asking then already would cost every such search a canary.
const DOUBT_AFTER: u32 = 4;

/// What to run next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// These seats, at least one, ascending.
    Run(Vec<Seat>),
    /// The canary. If it fails, the device is the suspect: the search is dropped and nobody is blamed.
    Canary,
    /// Nothing: everybody was cleared, blamed or has left.
    Finished,
}

/// An input that failed alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Culprit {
    /// Its seat.
    pub seat: Seat,
    /// What the batch function said about it.
    pub message: String,
}

/// What a run that passed settles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The seats that ran and get their outputs; the same that [`Step::Run`] named.
    pub cleared: Vec<Seat>,
    /// Those whose guilt is now proven.
    pub blamed: Vec<Culprit>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Running {
    Nothing,
    /// The first so many suspects.
    Suspects(usize),
    Aside,
    Canary,
}

/// See the module's text.
#[derive(Debug)]
pub struct Search {
    /// They failed together, or are what is left of such a group after the rest of it passed.
    suspects: Vec<Seat>,
    /// Untested halves. They always sit behind the suspects.
    aside: Vec<Seat>,
    /// Failed alone, not proven yet.
    culprits: Vec<Culprit>,
    running: Running,
    failed_in_a_row: u32,
    runs: u32,
    /// What the rounds begun so far may cost together.
    runs_max: u32,
}

impl Search {
    /// The search after a batch of `size` inputs failed with `message`.
    ///
    /// # Panics
    /// If `size` is 0.
    pub fn new(size: usize, message: String) -> Search {
        assert!(size > 0, "a batch that failed held somebody");
        let mut search = Search {
            suspects: Vec::new(),
            aside: (0..size).collect(),
            culprits: Vec::new(),
            running: Running::Aside,
            failed_in_a_row: 0,
            runs: 0,
            runs_max: 0,
        };
        // The failed batch is the first round's run of everybody; only its canary can't fall due.
        search.failed(message);
        search.runs_max -= 1;
        search.failed_in_a_row = 0;
        search
    }

    /// Runs asked for so far, canaries included, the failed batch not.
    pub fn runs(&self) -> u32 {
        self.runs
    }

    /// Runs that this round may still take at the most, canary included.
    pub fn runs_left(&self) -> u32 {
        self.runs_max - self.runs
    }

    /// Takes `seats`, ascending, out: their callers are gone, or can't wait any longer. Not while something runs.
    pub fn leave(&mut self, seats: &[Seat]) {
        assert_eq!(self.running, Running::Nothing, "what runs can't leave");
        let stays = |seat: &Seat| seats.binary_search(seat).is_err();
        self.suspects.retain(stays);
        self.aside.retain(stays);
        self.culprits.retain(|culprit| stays(&culprit.seat));
    }

    /// What to run now. Answered by [`Search::passed`] or [`Search::failed`].
    pub fn step(&mut self) -> Step {
        assert_eq!(self.running, Running::Nothing, "one run at a time");
        let in_doubt = !self.culprits.is_empty() && self.failed_in_a_row >= DOUBT_AFTER;
        let (running, step) = if !self.suspects.is_empty() && !in_doubt {
            // The larger half first: if it passes, more are answered sooner.
            let count = self.suspects.len().div_ceil(2);
            (
                Running::Suspects(count),
                Step::Run(self.suspects[..count].to_vec()),
            )
        } else if self.suspects.is_empty() && !self.aside.is_empty() {
            (Running::Aside, Step::Run(self.aside.clone()))
        } else if !self.culprits.is_empty() {
            (Running::Canary, Step::Canary)
        } else {
            return Step::Finished;
        };
        self.running = running;
        self.runs += 1;
        self.check_invariants();
        step
    }

    /// The run that [`Search::step`] asked for passed.
    pub fn passed(&mut self) -> Verdict {
        self.failed_in_a_row = 0;
        let cleared = match self.take_running() {
            Running::Suspects(count) => self.suspects.drain(..count).collect(),
            Running::Aside => std::mem::take(&mut self.aside),
            Running::Canary => Vec::new(),
            Running::Nothing => unreachable!("only what runs can pass"),
        };
        self.check_invariants();
        Verdict {
            cleared,
            blamed: std::mem::take(&mut self.culprits),
        }
    }

    /// The run that [`Search::step`] asked for failed with `message`. Not for a canary: that ends the search.
    pub fn failed(&mut self, message: String) {
        self.failed_in_a_row += 1;
        match self.take_running() {
            Running::Suspects(count) => {
                let untested = self.suspects.split_off(count);
                self.aside.splice(..0, untested);
            }
            Running::Aside => {
                self.suspects = std::mem::take(&mut self.aside);
                self.runs_max += ceil_log2(self.suspects.len()) + 3;
            }
            Running::Canary => unreachable!("a canary that fails ends the search"),
            Running::Nothing => unreachable!("only what runs can fail"),
        }
        if let [seat] = self.suspects[..] {
            self.suspects.clear();
            self.culprits.push(Culprit { seat, message });
        }
        self.check_invariants();
    }

    fn take_running(&mut self) -> Running {
        std::mem::replace(&mut self.running, Running::Nothing)
    }

    fn check_invariants(&self) {
        assert!(
            self.runs <= self.runs_max,
            "{} runs where {} suffice: {self:?}",
            self.runs,
            self.runs_max
        );
        debug_assert!(
            self.suspects.iter().chain(&self.aside).is_sorted(),
            "seats stay in order"
        );
    }
}

/// ⌈log₂ n⌉ for n ≥ 1.
fn ceil_log2(n: usize) -> u32 {
    n.next_power_of_two().trailing_zeros()
}

#[cfg(test)]
mod tests;

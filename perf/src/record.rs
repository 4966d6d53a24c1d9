//! What happened to each request, collected per generator thread and merged at the end.
//!
//! A [`Recorder`] holds the whole run of one thread; an [`IntervalRecord`] one second of it, handed over when it is over. A
//! request belongs to the measured part if it was due in it; requests of the warm-up are checked, but not counted.

use std::collections::BTreeMap;
use std::fmt;

use crate::clock::SECOND;
use crate::latencies::Latencies;
use crate::result::Mismatches;

/// Mismatches that are described in words; the others are only counted.
const EXAMPLES_MAX: usize = 5;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// An answer with this status; a 2xx was also the caller's own.
    Status(u16),
    /// No answer in the generator's own time limit.
    Timeout,
    /// The connection ended before the answer did.
    Closed,
    /// No connection could be opened.
    Connect,
    /// The answer was no HTTP.
    Malformed,
    /// A 2xx whose output was not this request's.
    Wrong,
    /// The caller hung up on purpose.
    HangUp,
}

impl Outcome {
    /// True for the caller's own answer.
    pub fn is_good(self) -> bool {
        matches!(self, Outcome::Status(200..=299))
    }

    /// True for anything that a caller would call an error; our own hang-ups are not.
    pub fn is_error(self) -> bool {
        !self.is_good() && self != Outcome::HangUp
    }

    /// The class under which errors are shown over time.
    pub fn class(self) -> &'static str {
        match self {
            Outcome::Status(200..=299) => "2xx",
            Outcome::Status(429) => "429",
            Outcome::Status(300..=399) => "3xx",
            Outcome::Status(400..=499) => "4xx",
            Outcome::Status(_) => "5xx",
            Outcome::Timeout => "timeout",
            Outcome::Closed => "closed",
            Outcome::Connect => "connect",
            Outcome::Malformed => "malformed",
            Outcome::Wrong => "wrong",
            Outcome::HangUp => "hangup",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Status(status) => write!(f, "{status}"),
            other => f.write_str(other.class()),
        }
    }
}

/// One request, ended. Times are nanoseconds after the start of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The request's number.
    pub number: u64,
    /// Index into the tier mix.
    pub tier: usize,
    /// How it ended.
    pub outcome: Outcome,
    /// When it should have left.
    pub due_ns: u64,
    /// When it was written; `None` if it never was.
    pub written_ns: Option<u64>,
    /// When it ended.
    pub done_ns: u64,
}

impl Sample {
    /// Latency as the caller saw it.
    pub fn corrected_ns(&self) -> u64 {
        self.done_ns.saturating_sub(self.due_ns)
    }

    /// Latency from the write, as a generator that waits for the server would count it.
    pub fn uncorrected_ns(&self) -> u64 {
        self.done_ns
            .saturating_sub(self.written_ns.unwrap_or(self.due_ns))
    }
}

/// One tier of a [`Recorder`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TierRecord {
    /// Good answers, from when they were due.
    pub corrected: Latencies,
    /// Good answers, from the write.
    pub uncorrected: Latencies,
    /// Every outcome with its corrected latencies.
    pub outcomes: BTreeMap<Outcome, Latencies>,
    /// Good answers that came inside the measured part, whenever they were due.
    pub good_in_window: u64,
}

impl TierRecord {
    fn merge(&mut self, other: &TierRecord) {
        self.corrected.merge(&other.corrected);
        self.uncorrected.merge(&other.uncorrected);
        for (outcome, latencies) in &other.outcomes {
            self.outcomes.entry(*outcome).or_default().merge(latencies);
        }
        self.good_in_window += other.good_in_window;
    }

    /// Number of requests that ended in an outcome for which `chosen` is true.
    pub fn count(&self, chosen: impl Fn(Outcome) -> bool) -> u64 {
        self.outcomes
            .iter()
            .filter(|(outcome, _)| chosen(**outcome))
            .map(|(_, latencies)| latencies.count())
            .sum()
    }
}

/// The measured part of the run, in nanoseconds after its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// End of the warm-up.
    pub from_ns: u64,
    /// End of the schedule.
    pub to_ns: u64,
}

impl Window {
    fn holds(self, at_ns: u64) -> bool {
        (self.from_ns..self.to_ns).contains(&at_ns)
    }

    /// The second of the measured part in which `at_ns` lies.
    pub fn second(self, at_ns: u64) -> u32 {
        u32::try_from(at_ns.saturating_sub(self.from_ns) / SECOND).unwrap_or(u32::MAX)
    }
}

/// One second of one thread, or of all threads merged.
#[derive(Clone, Debug, PartialEq)]
pub struct IntervalRecord {
    /// The second of the measured part, from 0.
    pub second: u32,
    /// Requests written.
    pub sent: u64,
    /// Good answers per tier, corrected.
    pub tiers: Vec<Latencies>,
    /// Errors per tier.
    pub tier_errors: Vec<u64>,
    /// Errors by class.
    pub errors: BTreeMap<&'static str, u64>,
}

impl IntervalRecord {
    /// An empty second.
    pub fn new(second: u32, tiers: usize) -> IntervalRecord {
        IntervalRecord {
            second,
            sent: 0,
            tiers: vec![Latencies::default(); tiers],
            tier_errors: vec![0; tiers],
            errors: BTreeMap::new(),
        }
    }

    /// Adds the same second of another thread.
    pub fn merge(&mut self, other: &IntervalRecord) {
        self.sent += other.sent;
        for (mine, theirs) in self.tiers.iter_mut().zip(&other.tiers) {
            mine.merge(theirs);
        }
        for (mine, theirs) in self.tier_errors.iter_mut().zip(&other.tier_errors) {
            *mine += theirs;
        }
        for (class, count) in &other.errors {
            *self.errors.entry(class).or_default() += count;
        }
    }
}

/// The whole run of one thread, or of all threads merged.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorder {
    window: Window,
    /// Per tier.
    pub tiers: Vec<TierRecord>,
    /// How late the generator noticed that requests were due.
    pub lateness: Latencies,
    /// How long due requests waited for a free connection; only those that had to.
    pub connection_wait: Latencies,
    /// Requests of the measured part that were written.
    pub sent: u64,
    /// End of the first good answer.
    pub first_good_ns: u64,
    /// Wrong and double answers, warm-up included.
    pub mismatches: Mismatches,
    /// The first few failures below HTTP, in words.
    pub notes: Vec<String>,
    /// The start of the first answer of each status that was not good: why the server refused.
    pub refusals: BTreeMap<u16, String>,
    /// Every sample, if they are wanted.
    pub dump: Option<Vec<Sample>>,
    /// CPU seconds of the threads.
    pub cpu_seconds: f64,
    /// CPU seconds over wall seconds of the busiest thread.
    pub busy_fraction_max: f64,
    interval: IntervalRecord,
}

impl Recorder {
    /// An empty recorder; `dump` keeps every sample.
    pub fn new(tiers: usize, window: Window, dump: bool) -> Recorder {
        Recorder {
            window,
            tiers: vec![TierRecord::default(); tiers],
            lateness: Latencies::default(),
            connection_wait: Latencies::default(),
            sent: 0,
            first_good_ns: u64::MAX,
            mismatches: Mismatches::default(),
            notes: Vec::new(),
            refusals: BTreeMap::new(),
            dump: dump.then(Vec::new),
            cpu_seconds: 0.0,
            busy_fraction_max: 0.0,
            interval: IntervalRecord::new(0, tiers),
        }
    }

    /// The measured part; shorter than planned after a stop.
    pub fn window(&self) -> Window {
        self.window
    }

    /// Notes that a request due at `due_ns` was noticed at `now_ns`.
    pub fn noticed(&mut self, due_ns: u64, now_ns: u64) {
        if self.window.holds(due_ns) {
            self.lateness.record(now_ns.saturating_sub(due_ns));
        }
    }

    /// Notes that a request due at `due_ns` was written, having waited `wait_ns` for a free connection if it had to.
    pub fn written(&mut self, due_ns: u64, wait_ns: Option<u64>) {
        if !self.window.holds(due_ns) {
            return;
        }
        self.sent += 1;
        self.interval.sent += 1;
        if let Some(wait_ns) = wait_ns {
            self.connection_wait.record(wait_ns);
        }
    }

    /// Notes how a request ended.
    pub fn ended(&mut self, sample: Sample) {
        if sample.outcome == Outcome::Wrong {
            self.mismatches.wrong += 1;
        }
        let good = sample.outcome.is_good();
        let tier = &mut self.tiers[sample.tier];
        if good && self.window.holds(sample.done_ns) {
            tier.good_in_window += 1;
        }
        if !self.window.holds(sample.due_ns) {
            return;
        }
        tier.outcomes
            .entry(sample.outcome)
            .or_default()
            .record(sample.corrected_ns());
        if good {
            tier.corrected.record(sample.corrected_ns());
            tier.uncorrected.record(sample.uncorrected_ns());
            self.first_good_ns = self.first_good_ns.min(sample.done_ns);
            self.interval.tiers[sample.tier].record(sample.corrected_ns());
        } else if sample.outcome.is_error() {
            self.interval.tier_errors[sample.tier] += 1;
            *self
                .interval
                .errors
                .entry(sample.outcome.class())
                .or_default() += 1;
        }
        if let Some(dump) = &mut self.dump {
            dump.push(sample);
        }
    }

    /// Keeps the answer of a status that was not good, if it is the first of them.
    pub fn refused(&mut self, status: u16, describe: impl FnOnce() -> String) {
        self.refusals.entry(status).or_insert_with(describe);
    }

    /// Ends the measured part early: nothing was due any more from `at_ns` on, so nothing is measured over that time.
    pub fn stopped(&mut self, at_ns: u64) {
        let window = &mut self.window;
        window.to_ns = window.to_ns.min(at_ns.max(window.from_ns));
    }

    /// Notes bytes on a connection on which no answer was due.
    pub fn double(&mut self, describe: impl FnOnce() -> String) {
        self.mismatches.double += 1;
        self.mismatch(describe);
    }

    /// Keeps a few words about a wrong or double answer, if it is among the first.
    pub fn mismatch(&mut self, describe: impl FnOnce() -> String) {
        if self.mismatches.examples.len() < EXAMPLES_MAX {
            self.mismatches.examples.push(describe());
        }
    }

    /// Keeps a few words about a failure, if it is among the first.
    pub fn note(&mut self, describe: impl FnOnce() -> String) {
        if self.notes.len() < EXAMPLES_MAX {
            self.notes.push(describe());
        }
    }

    /// Takes the second that is being filled, and begins the next one.
    pub fn take_interval(&mut self) -> IntervalRecord {
        let next = IntervalRecord::new(self.interval.second + 1, self.tiers.len());
        std::mem::replace(&mut self.interval, next)
    }

    /// The second that is being filled.
    pub fn second(&self) -> u32 {
        self.interval.second
    }

    /// Adds the run of another thread.
    pub fn merge(&mut self, other: Recorder) {
        for (mine, theirs) in self.tiers.iter_mut().zip(&other.tiers) {
            mine.merge(theirs);
        }
        self.lateness.merge(&other.lateness);
        self.connection_wait.merge(&other.connection_wait);
        self.sent += other.sent;
        self.first_good_ns = self.first_good_ns.min(other.first_good_ns);
        self.mismatches.wrong += other.mismatches.wrong;
        self.mismatches.without_output += other.mismatches.without_output;
        self.mismatches.double += other.mismatches.double;
        self.mismatches.examples.extend(other.mismatches.examples);
        self.mismatches.examples.truncate(EXAMPLES_MAX);
        self.notes.extend(other.notes);
        self.notes.truncate(EXAMPLES_MAX);
        for (status, text) in other.refusals {
            self.refusals.entry(status).or_insert(text);
        }
        // Threads notice a stop within a few milliseconds of each other.
        self.window.to_ns = self.window.to_ns.min(other.window.to_ns);
        if let (Some(mine), Some(theirs)) = (&mut self.dump, other.dump) {
            mine.extend(theirs);
        }
        self.cpu_seconds += other.cpu_seconds;
        self.busy_fraction_max = self.busy_fraction_max.max(other.busy_fraction_max);
    }

    /// Latencies of good answers of all tiers: corrected and uncorrected.
    pub fn all_tiers(&self) -> (Latencies, Latencies) {
        let mut corrected = Latencies::default();
        let mut uncorrected = Latencies::default();
        for tier in &self.tiers {
            corrected.merge(&tier.corrected);
            uncorrected.merge(&tier.uncorrected);
        }
        (corrected, uncorrected)
    }

    /// Number of requests of all tiers that ended in an outcome for which `chosen` is true.
    pub fn count(&self, chosen: impl Fn(Outcome) -> bool + Copy) -> u64 {
        self.tiers.iter().map(|tier| tier.count(chosen)).sum()
    }
}

#[cfg(test)]
mod tests;

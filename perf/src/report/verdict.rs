//! What a run's numbers are worth, before anybody reads them.

use super::number;
use crate::result::RunResult;

/// The outcome of a run, the gravest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Callers got answers that were not theirs: no other number matters.
    Wrong,
    /// Nothing was answered well, so there is nothing to read.
    NoAnswers,
    /// The generator could not keep its schedule: the numbers are its own, not the server's.
    GeneratorBound,
    /// A condition of `--fail-if` held.
    Failed,
    /// Conditions were given and none held.
    Passed,
    /// There were no conditions.
    Measured,
}

impl Verdict {
    /// The verdict on `run`.
    pub fn of(run: &RunResult) -> Self {
        if !run.mismatches.is_clean() {
            Self::Wrong
        } else if run.totals.ok == 0 {
            Self::NoAnswers
        } else if run.generator.generator_bound {
            Self::GeneratorBound
        } else if run.fail_if.iter().any(|c| c.failed) {
            Self::Failed
        } else if run.fail_if.is_empty() {
            Self::Measured
        } else {
            Self::Passed
        }
    }

    /// A word or two for tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Wrong => "wrong answers",
            Self::NoAnswers => "no good answers",
            Self::GeneratorBound => "generator-bound",
            Self::Failed => "failed",
            Self::Passed => "passed",
            Self::Measured => "measured",
        }
    }

    /// The CSS class of its badge.
    pub fn class(self) -> &'static str {
        match self {
            Self::Wrong | Self::NoAnswers | Self::Failed => "critical",
            Self::GeneratorBound => "warning",
            Self::Passed => "good",
            Self::Measured => "neutral",
        }
    }
}

/// Wrong and double answers in words; `None` if every answer was its own, once.
pub fn mismatch_text(run: &RunResult) -> Option<String> {
    let m = &run.mismatches;
    if m.is_clean() {
        return None;
    }
    Some(format!(
        "{} of {} good-looking answers were not their caller's own, and {} bytes came on connections that were owed no answer.",
        number::count(m.wrong),
        number::count(m.wrong + run.totals.ok),
        number::count(m.double)
    ))
}

/// Why the generator, not the server, set the numbers; `None` if it did not.
pub fn generator_text(run: &RunResult) -> Option<String> {
    let g = &run.generator;
    if !g.generator_bound {
        return None;
    }
    let own = format!(
        "It was {} ms late at p99 ({} ms at most) and its busiest thread was busy {} of the time.",
        number::short(g.lateness.p99_ms),
        number::short(g.lateness.max_ms),
        number::percent(g.busy_fraction_max)
    );
    Some(match &g.why {
        Some(why) => format!("{}. {own}", why.trim_end_matches('.')),
        None => own,
    })
}

/// The warnings that are not already said by the boxes above.
pub fn other_warnings(run: &RunResult) -> Vec<String> {
    let said = run
        .generator
        .why
        .as_deref()
        .filter(|_| run.generator.generator_bound);
    let repeats = |text: &str| {
        said.is_some_and(|why| !why.is_empty() && text.contains(why.trim_end_matches('.')))
    };
    run.warnings
        .iter()
        .filter(|text| !repeats(text))
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{FailIfResult, Totals};

    fn run(ok: u64) -> RunResult {
        RunResult {
            totals: Totals {
                ok,
                ..Totals::default()
            },
            ..RunResult::default()
        }
    }

    #[test]
    fn the_gravest_verdict_wins() {
        let mut run = run(10);
        assert_eq!(Verdict::of(&run), Verdict::Measured);
        run.fail_if.push(FailIfResult::default());
        assert_eq!(Verdict::of(&run), Verdict::Passed);
        run.fail_if[0].failed = true;
        assert_eq!(Verdict::of(&run), Verdict::Failed);
        run.generator.generator_bound = true;
        assert_eq!(Verdict::of(&run), Verdict::GeneratorBound);
        run.totals.ok = 0;
        assert_eq!(Verdict::of(&run), Verdict::NoAnswers);
        run.mismatches.double = 1;
        assert_eq!(Verdict::of(&run), Verdict::Wrong);
    }

    #[test]
    fn a_warning_is_not_said_twice() {
        let mut run = run(1);
        run.generator.generator_bound = true;
        run.generator.why = Some("thread 0 was busy".to_owned());
        run.warnings = vec![
            "generator: thread 0 was busy".to_owned(),
            "another".to_owned(),
        ];
        assert_eq!(other_warnings(&run), ["another"]);
        assert!(generator_text(&run).is_some_and(|t| t.starts_with("thread 0 was busy. It was")));
    }
}

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
    /// The gravest verdict on `run`.
    pub fn of(run: &RunResult) -> Self {
        Self::all(run)[0]
    }

    /// Every verdict on `run`, the gravest first; at least one. What came of the conditions is never hidden by a doubt, nor a
    /// doubt by what came of the conditions.
    pub fn all(run: &RunResult) -> Vec<Self> {
        let mut verdicts = Vec::new();
        if !run.mismatches.is_clean() {
            verdicts.push(Self::Wrong);
        } else if run.totals.ok == 0 {
            verdicts.push(Self::NoAnswers);
        }
        if run.generator.generator_bound {
            verdicts.push(Self::GeneratorBound);
        }
        if run.fail_if.iter().any(|c| c.failed) {
            verdicts.push(Self::Failed);
        } else if !run.fail_if.is_empty() {
            verdicts.push(Self::Passed);
        } else if verdicts.is_empty() {
            verdicts.push(Self::Measured);
        }
        verdicts
    }

    /// Every verdict in words, for tables and lines: `generator-bound, failed`.
    pub fn words(run: &RunResult) -> String {
        let words: Vec<&str> = Self::all(run).into_iter().map(Self::word).collect();
        words.join(", ")
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

/// Wrong and double answers in words; `None` if every answer was its own, once. Where not a single answer was right, the
/// check is as likely to be wrong as the server, and the text says so.
pub fn mismatch_text(run: &RunResult) -> Option<String> {
    let m = &run.mismatches;
    if m.is_clean() {
        return None;
    }
    let mut texts = Vec::new();
    if m.wrong > 0 {
        let answers = number::plural(m.wrong + run.totals.ok, "good-looking answer");
        texts.push(format!(
            "{} of {answers} were not what the caller should have got.",
            number::count(m.wrong)
        ));
    }
    texts.extend(check_text(run));
    if m.double > 0 {
        texts.push(format!(
            "{} came on connections that were owed no answer.",
            number::plural(m.double, "answer")
        ));
    }
    Some(texts.join(" "))
}

/// What may be wrong with `--expect` and `--answer` rather than with the server; `None` if nothing speaks for that.
pub fn check_text(run: &RunResult) -> Option<String> {
    let m = &run.mismatches;
    if m.without_output > 0 {
        let place = match run.configuration.expect.as_str() {
            "" => "output where it should stand",
            place => place,
        };
        let answers = number::plural(m.without_output, "answer");
        let have = if m.without_output == 1 { "has" } else { "have" };
        Some(format!("{answers} {have} no {place}; see --expect."))
    } else if m.wrong > 0 && run.totals.ok == 0 {
        Some("Every answer differs: are --expect and --answer right for this server?".to_owned())
    } else {
        None
    }
}

/// Why the generator, not the server, set the numbers; `None` if it did not.
pub fn generator_text(run: &RunResult) -> Option<String> {
    let g = &run.generator;
    if !g.generator_bound {
        return None;
    }
    let own = format!(
        "It was {} ms late at most, and its busiest thread was busy {} of the time.",
        number::short(g.lateness.max_ms),
        number::percent(g.busy_fraction_max)
    );
    Some(match &g.why {
        Some(why) => format!("{}. {own}", capitalised(why.trim_end_matches('.'))),
        None => own,
    })
}

fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(chars).collect()
    })
}

/// What makes the numbers doubtful, each text under its own verdict.
pub fn doubts(run: &RunResult) -> Vec<(Verdict, String)> {
    let wrong = mismatch_text(run).map(|text| (Verdict::Wrong, text));
    let bound = generator_text(run).map(|text| (Verdict::GeneratorBound, text));
    wrong.into_iter().chain(bound).collect()
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
    fn a_doubt_does_not_hide_a_failed_condition() {
        let mut run = run(10);
        assert_eq!(Verdict::words(&run), "measured");
        run.generator.generator_bound = true;
        assert_eq!(Verdict::words(&run), "generator-bound");
        run.fail_if.push(FailIfResult::default());
        assert_eq!(Verdict::words(&run), "generator-bound, passed");
        run.fail_if[0].failed = true;
        assert_eq!(Verdict::words(&run), "generator-bound, failed");
        run.mismatches.wrong = 1;
        assert_eq!(
            Verdict::words(&run),
            "wrong answers, generator-bound, failed"
        );
    }

    #[test]
    fn a_check_that_fits_no_answer_is_doubted_before_the_server() {
        let mut run = run(10);
        assert_eq!((mismatch_text(&run), check_text(&run)), (None, None));
        run.mismatches.wrong = 5;
        assert_eq!(check_text(&run), None, "others were right");
        run.totals.ok = 0;
        assert!(check_text(&run).is_some_and(|text| text.starts_with("Every answer differs")));
        run.mismatches.without_output = 5;
        run.configuration.expect = "/foo".to_owned();
        let text = mismatch_text(&run).expect("wrong");
        assert!(
            text.ends_with("5 answers have no /foo; see --expect."),
            "{text}"
        );
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
        assert!(generator_text(&run).is_some_and(|t| t.starts_with("Thread 0 was busy. It was")));
    }
}

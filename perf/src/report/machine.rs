//! Where, when and with what command a run was made, in words.

use super::number;
use crate::result::RunResult;

/// The day of the run: `2024-05-31`.
pub fn day(run: &RunResult) -> &str {
    run.started_at.get(..10).unwrap_or(&run.started_at)
}

/// The start to the second: `2024-05-31 12:00:05 UTC`.
pub fn start(run: &RunResult) -> String {
    match (run.started_at.get(..10), run.started_at.get(11..19)) {
        (Some(day), Some(time)) => format!("{day} {time} UTC"),
        _ => run.started_at.clone(),
    }
}

/// The machine in a line: CPU, cores, memory, kernel.
pub fn line(run: &RunResult) -> String {
    let m = &run.machine;
    let gib = m.memory_bytes as f64 / 1_073_741_824.0;
    let parts = [
        m.cpu_model.clone(),
        number::plural(u64::from(m.cores), "core"),
        format!("{} GiB", number::short(gib)),
        m.kernel.clone(),
    ];
    parts
        .into_iter()
        .filter(|p| !p.is_empty())
        .collect::<Vec<_>>()
        .join(", ")
}

/// How long was measured, and of how much if the run was stopped early: `30 s`, `4.1 of 20 s`.
pub fn length(run: &RunResult) -> String {
    match run.planned_seconds {
        None => number::duration(run.duration_seconds),
        Some(planned) => format!(
            "{} of {}",
            number::short(run.duration_seconds),
            number::duration(planned)
        ),
    }
}

/// A command line as it would be typed: words that need it are quoted.
pub fn command(words: &[String]) -> String {
    words
        .iter()
        .map(|w| quoted(w))
        .collect::<Vec<_>>()
        .join(" ")
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,%+@".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_can_be_pasted() {
        let words = ["run", "--fail-if", "p95{tier=free}>1s", "it's", ""].map(str::to_owned);
        assert_eq!(
            command(&words),
            r"run --fail-if 'p95{tier=free}>1s' 'it'\''s' ''"
        );
    }

    #[test]
    fn a_stopped_run_says_how_far_it_came() {
        let mut run = RunResult {
            duration_seconds: 4.1,
            ..RunResult::default()
        };
        assert_eq!(length(&run), "4.1 s");
        run.planned_seconds = Some(20.0);
        assert_eq!(length(&run), "4.1 of 20 s");
    }

    #[test]
    fn odd_dates_are_shown_as_they_are() {
        let mut run = RunResult {
            started_at: "2024-05-31T12:00:05.123Z".to_owned(),
            ..RunResult::default()
        };
        assert_eq!(
            (day(&run), start(&run).as_str()),
            ("2024-05-31", "2024-05-31 12:00:05 UTC")
        );
        run.started_at = "gestern".to_owned();
        assert_eq!((day(&run), start(&run).as_str()), ("gestern", "gestern"));
    }
}

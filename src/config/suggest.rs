//! The known name that a mistyped one was probably meant to be.

use clap::error::{ContextKind, ContextValue};

use super::keys::{self, Key};

/// Names less alike than this are not worth proposing: "did you mean" is then noise.
const LIKENESS_MIN: f64 = 0.7;

/// What to write instead of the unknown key `name` of the table `section` (empty for the top level), as the end of a
/// sentence; none if nothing comes near.
///
/// A key that is right but stands in the wrong table is the commonest mistake of all, and its flag's spelling in the
/// file the next; both are found before likeness is asked.
pub fn instead_of(section: &str, name: &str) -> Option<String> {
    let plain = name.trim_start_matches('-').replace('-', "_");
    let elsewhere = |key: &&Key| key.name == plain || flag_as_name(key) == plain;
    if let Some(key) = keys::ALL.iter().find(elsewhere) {
        return Some(proposal(key, section));
    }
    let candidates = keys::ALL.iter().flat_map(|key| {
        let home = if key.section == section { 0.05 } else { 0.0 };
        let by_name = likeness(key.name, &plain);
        let by_flag = strsim::jaro_winkler(&flag_as_name(key), &plain);
        [
            (by_name + home, proposal(key, section)),
            (by_flag, proposal(key, section)),
        ]
    });
    let tables = keys::ALL
        .iter()
        .filter(|key| section.is_empty() && !key.section.is_empty())
        .map(|key| {
            (
                strsim::jaro_winkler(key.section, &plain),
                format!("did you mean the table [{}]?", key.section),
            )
        });
    let (likeness, text) = candidates
        .chain(tables)
        .max_by(|a, b| a.0.total_cmp(&b.0))?;
    (likeness >= LIKENESS_MIN).then_some(text)
}

/// How alike a name and what was typed are, from 0 to 1. Whoever leaves a word out, as in `tier` for `default_tier`, has
/// hardly a letter in common at the start, where letters count most.
fn likeness(name: &str, typed: &str) -> f64 {
    const UNITS: [&str; 6] = ["ms", "s", "bytes", "count", "max", "file"];
    let by_letters = strsim::jaro_winkler(name, typed);
    let is_word_of_it = name.split('_').any(|word| word == typed) && !UNITS.contains(&typed);
    if is_word_of_it {
        by_letters.max(0.85 + 0.1 * by_letters)
    } else {
        by_letters
    }
}

fn flag_as_name(key: &Key) -> String {
    key.flag.trim_start_matches('-').replace('-', "_")
}

fn proposal(key: &Key, section: &str) -> String {
    if key.section == section {
        return format!("did you mean {}?", key.name);
    }
    if key.section.is_empty() {
        return format!("did you mean {}, above all tables?", key.name);
    }
    format!("did you mean {} in the table [{}]?", key.name, key.section)
}

/// With a tip for whoever takes the check of a worker for a command of its own.
pub fn advised(mut error: clap::Error) -> clap::Error {
    if let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidArg)
        && matches!(typed.as_str(), "check" | "worker")
    {
        let tip = "the settings of a worker: funicular worker --check";
        let tips = ContextValue::StyledStrs(vec![tip.into()]);
        error.insert(ContextKind::Suggested, tips);
    }
    error
}

#[cfg(test)]
mod tests {
    use super::{advised, instead_of};
    use crate::config::Cli;

    #[test]
    fn the_check_of_a_worker_is_found_from_either_side() {
        for line in [["worker", "check"], ["check", "worker"]] {
            let error = Cli::parsed(["funicular"].into_iter().chain(line));
            let said = advised(error.expect_err("no such argument")).to_string();
            assert!(said.contains("funicular worker --check"), "{said}");
        }
        let other = advised(Cli::parsed(["funicular", "--gpu"]).expect_err("no flag"));
        assert!(other.to_string().contains("--gpus"), "{other}");
    }

    #[test]
    fn a_slip_of_the_pen_finds_its_neighbour_in_the_same_table() {
        assert_eq!(instead_of("", "gpu").as_deref(), Some("did you mean gpus?"));
        assert_eq!(
            instead_of("batch", "patiense").as_deref(),
            Some("did you mean patience?")
        );
        assert_eq!(
            instead_of("timeouts", "heeder_ms").as_deref(),
            Some("did you mean header_ms?")
        );
        assert_eq!(
            instead_of("", "lisen").as_deref(),
            Some("did you mean listen?")
        );
    }

    #[test]
    fn a_right_name_in_the_wrong_table_is_sent_home() {
        let home = "did you mean hold_max_ms in the table [batch]?";
        assert_eq!(instead_of("", "hold_max_ms").as_deref(), Some(home));
        assert_eq!(
            instead_of("batch", "gpus").as_deref(),
            Some("did you mean gpus, above all tables?")
        );
    }

    #[test]
    fn the_spelling_of_the_flag_is_understood() {
        let home = "did you mean latency_ms in the table [simulated]?";
        assert_eq!(instead_of("", "sim-latency-ms").as_deref(), Some(home));
        assert_eq!(instead_of("", "--sim-latency-ms").as_deref(), Some(home));
        assert_eq!(
            instead_of("drain", "drain_delay_ms").as_deref(),
            Some("did you mean delay_ms?")
        );
    }

    #[test]
    fn a_mistyped_table_finds_its_table() {
        assert_eq!(
            instead_of("", "simulate").as_deref(),
            Some("did you mean the table [simulated]?")
        );
    }

    #[test]
    fn a_word_of_the_name_is_enough() {
        for (typed, meant) in [
            ("tier", "default_tier"),
            ("connections", "max_connections"),
            ("identify", "identity"),
            ("log", "log_level"),
            ("level", "log_level"),
            ("cold", "cold_start_ms"),
            ("keys", "keys_file"),
        ] {
            let found = instead_of("", typed).unwrap_or_default();
            assert!(found.contains(meant), "{typed}: {found}");
        }
    }

    #[test]
    fn nothing_is_proposed_for_a_stranger() {
        assert_eq!(instead_of("", "zzz"), None);
        assert_eq!(instead_of("batch", ""), None);
    }
}

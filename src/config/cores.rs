//! Which cores the acceptor cores are pinned to: `auto`, a count, or a list such as `0,2-3`.

use std::collections::BTreeSet;

use super::values::{FromScalar, Scalar};

/// No machine has a core with a higher number; it bounds the ranges of a list before they are spread out.
const CORE_NUMBER_MAX: usize = 65_535;

/// The operator's choice, before it is compared with the cores that there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoreChoice {
    /// Every core that the process may run on.
    Auto,
    /// So many of them, lowest numbers first.
    Count(usize),
    /// Exactly these, ascending.
    List(Vec<usize>),
}

/// Reads `auto`, a count, or a list of cores and ranges. A single core is a range of one (`2-2`), since a lone number
/// is a count.
pub fn choice(text: &str) -> Result<CoreChoice, String> {
    let text = text.trim();
    if text == "auto" {
        return Ok(CoreChoice::Auto);
    }
    if let Ok(count) = text.parse() {
        return Ok(CoreChoice::Count(count));
    }
    let mut cores = BTreeSet::new();
    for part in text.split(',') {
        let range = range(part.trim()).ok_or_else(|| {
            format!(
                "{text:?} names no cores; write auto, a count such as 4, or a list such as 0,2-3"
            )
        })?;
        for core in range {
            if !cores.insert(core) {
                return Err(format!("{text:?} names core {core} twice"));
            }
        }
    }
    Ok(CoreChoice::List(cores.into_iter().collect()))
}

fn range(part: &str) -> Option<std::ops::RangeInclusive<usize>> {
    let (first, last) = part.split_once('-').unwrap_or((part, part));
    let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (first <= last && last <= CORE_NUMBER_MAX).then_some(first..=last)
}

impl FromScalar for CoreChoice {
    fn from_scalar(scalar: Scalar) -> Result<Self, String> {
        match scalar {
            Scalar::Text(text) => choice(&text),
            Scalar::Integer(count) if count >= 0 => choice(&count.to_string()),
            other => Err(format!(
                "expected \"auto\", a count, or a list such as \"0,2-3\", found {other}"
            )),
        }
    }
}

/// The cores chosen out of the `available` ones, ascending and at least one; or why that can't be.
pub fn pick(choice: &CoreChoice, available: &[usize]) -> Result<Vec<usize>, String> {
    if available.is_empty() {
        return Err("can't tell which cores this process may run on".to_owned());
    }
    match choice {
        CoreChoice::Auto => Ok(available.to_vec()),
        CoreChoice::Count(0) => {
            Err("0 cores can't accept anything; take at least 1, or auto".to_owned())
        }
        CoreChoice::Count(count) if *count > available.len() => {
            let there = available.len();
            Err(format!(
                "{count} cores are more than the {there} that this process may run on; take fewer, or auto"
            ))
        }
        CoreChoice::Count(count) => Ok(available[..*count].to_vec()),
        CoreChoice::List(cores) => match cores.iter().find(|core| !available.contains(core)) {
            Some(core) => Err(format!(
                "this process may not run on core {core}, only on {}",
                list(available)
            )),
            None => Ok(cores.clone()),
        },
    }
}

/// The shortest list that [`choice`] reads back as these cores (ascending): `0,2-3`; `2-2` for core 2 alone.
pub fn list(cores: &[usize]) -> String {
    if let [core] = cores {
        return format!("{core}-{core}");
    }
    let mut parts = Vec::new();
    for run in cores.chunk_by(|a, b| a + 1 == *b) {
        match run {
            [first, .., last] => parts.push(format!("{first}-{last}")),
            lone => parts.extend(lone.iter().map(usize::to_string)),
        }
    }
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_choice_is_auto_a_count_or_a_list() {
        assert_eq!(choice("auto"), Ok(CoreChoice::Auto));
        assert_eq!(choice("2"), Ok(CoreChoice::Count(2)));
        assert_eq!(choice("2-2"), Ok(CoreChoice::List(vec![2])));
        assert_eq!(choice(" 3-4, 0 "), Ok(CoreChoice::List(vec![0, 3, 4])));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "all",
            "3-1",
            "1,,2",
            "0-",
            "-1",
            "1.5",
            "0-99999999999",
            "0-18446744073709551615",
        ] {
            let problem = choice(text).expect_err(text);
            assert!(problem.contains("names no cores"), "{text}: {problem}");
        }
        assert_eq!(
            choice("0-2,1"),
            Err("\"0-2,1\" names core 1 twice".to_owned())
        );
    }

    #[test]
    fn only_cores_that_are_there_are_picked() {
        let available = [1, 2, 5];
        assert_eq!(pick(&CoreChoice::Auto, &available), Ok(vec![1, 2, 5]));
        assert_eq!(pick(&CoreChoice::Count(2), &available), Ok(vec![1, 2]));
        assert_eq!(
            pick(&CoreChoice::List(vec![2, 5]), &available),
            Ok(vec![2, 5])
        );
        let missing =
            pick(&CoreChoice::List(vec![2, 3]), &available).expect_err("core 3 is not there");
        assert_eq!(missing, "this process may not run on core 3, only on 1-2,5");
        assert!(pick(&CoreChoice::Count(4), &available).is_err());
        assert!(pick(&CoreChoice::Count(0), &available).is_err());
        assert!(pick(&CoreChoice::Auto, &[]).is_err());
    }

    proptest! {
        #[test]
        fn a_list_reads_back(cores in prop::collection::btree_set(0_usize..70, 1..40)) {
            let cores: Vec<usize> = cores.into_iter().collect();
            prop_assert_eq!(choice(&list(&cores)), Ok(CoreChoice::List(cores)));
        }
    }
}

//! What is wrong with a line that is no TOML, in the words of whoever wrote it.
//!
//! Used for the configuration and for the key file. The reader of TOML knows what it expected next, which is seldom
//! what the writer did wrong.

/// The `message` of the reader, or a better one, for what it found wrong in `line`.
pub fn explained(line: &str, message: &str) -> String {
    if let Some(name) = without_value(line) {
        return format!("{name} has no value: write {name} = and its value");
    }
    let message = message.trim_end().replace('\n', ", ");
    message.replace(
        "expected a sequence",
        "expected a list: write it in brackets, [ ]",
    )
}

/// The name in a line such as `gpus =`, with or without a comment.
fn without_value(line: &str) -> Option<&str> {
    let (name, rest) = line.split_once('=')?;
    let rest = rest.trim();
    let is_empty = rest.is_empty() || rest.starts_with('#');
    is_empty.then(|| name.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_a_value_is_called_that() {
        let said = "gpus has no value: write gpus = and its value";
        for line in ["gpus =", "  gpus=  # how many?", "gpus = #"] {
            assert_eq!(explained(line, "string values must be quoted"), said);
        }
    }

    #[test]
    fn other_slips_are_told_as_the_reader_tells_them() {
        let message = "string values must be quoted\nexpected a quote\n";
        let said = "string values must be quoted, expected a quote";
        for line in ["model = llm", "gpus", "", "a = '#'"] {
            assert_eq!(explained(line, message), said);
        }
    }
}

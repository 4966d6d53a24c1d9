//! Text that came from outside, made safe for where it is printed.
//!
//! A report carries strings that nobody here chose: server names, error texts, command lines, host names. Every one of
//! them passes through exactly one of these functions on its way into a page, a Markdown table or a terminal.

/// Escapes `text` for HTML and SVG, both as element content and inside a quoted attribute.
///
/// Control characters, which HTML forbids even as references, become U+FFFD; tab and line feed stay.
pub fn html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Units that no line should break off their number.
const UNITS: [&str; 7] = ["%", "ms", "µs", "s", "MiB", "GiB", "min"];

/// As [`html`], for running text: a number and its unit stay on one line.
pub fn prose(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (i, word) in html(text).split(' ').enumerate() {
        let unit = word.trim_end_matches(['.', ',', ';', ':', ')']);
        let joined = UNITS.contains(&unit) && out.ends_with(|c: char| c.is_ascii_digit());
        if i > 0 {
            out.push_str(if joined { "&nbsp;" } else { " " });
        }
        out.push_str(word);
    }
    out
}

/// Escapes `text` for one cell of a Markdown table: no markup, no new cell, no new line.
pub fn markdown(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '|' | '\\' | '`' | '*' | '_' | '[' | ']' | '#' | '~' => {
                out.push('\\');
                out.push(c);
            }
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// `text` as a Markdown code span of one line, whatever backticks it holds.
///
/// Inside a table the pipe still separates cells, so it is escaped there too, which GitHub's tables undo.
pub fn markdown_code(text: &str) -> String {
    let line: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    let fence = "`".repeat(longest_run(&line, '`') + 1);
    let pad = if line.starts_with('`') || line.ends_with('`') {
        " "
    } else {
        ""
    };
    format!("{fence}{pad}{}{pad}{fence}", line.replace('|', "\\|"))
}

/// `text` without anything a terminal would obey (escape sequences, carriage returns).
pub fn terminal(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

fn longest_run(text: &str, wanted: char) -> usize {
    let mut longest = 0;
    let mut run = 0;
    for c in text.chars() {
        run = if c == wanted { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_number_keeps_its_unit() {
        assert_eq!(
            prose("2.1 % of 30 s, 5 ms; a % <b>"),
            "2.1&nbsp;% of 30&nbsp;s, 5&nbsp;ms; a % &lt;b&gt;"
        );
    }

    #[test]
    fn html_leaves_no_markup_alive() {
        assert_eq!(
            html("<img src=x onerror='a'>&\"\u{1b}[31m"),
            "&lt;img src=x onerror=&#39;a&#39;&gt;&amp;&quot;\u{fffd}[31m"
        );
    }

    #[test]
    fn markdown_cannot_leave_its_cell() {
        assert_eq!(markdown("a|b\nc <b> `x`"), "a\\|b c &lt;b&gt; \\`x\\`");
    }

    #[test]
    fn code_span_survives_backticks() {
        assert_eq!(markdown_code("run --a 1"), "`run --a 1`");
        assert_eq!(markdown_code("a ``b`` c"), "```a ``b`` c```");
        assert_eq!(markdown_code("`a`"), "`` `a` ``");
    }

    #[test]
    fn terminal_drops_escape_sequences() {
        assert_eq!(terminal("ok\u{1b}[2J\r"), "ok\u{fffd}[2J\u{fffd}");
    }

    proptest! {
        #[test]
        fn html_unescapes_to_what_went_in(text in "[ -~äß\u{2013}]{0,60}") {
            let back = html(&text)
                .replace("&lt;", "<")
                .replace("&gt;", ">")
                .replace("&quot;", "\"")
                .replace("&#39;", "'")
                .replace("&amp;", "&");
            prop_assert_eq!(back, text.clone());
            let escaped = html(&text);
            prop_assert!(!escaped.contains(['<', '>', '"', '\'']));
        }
    }
}

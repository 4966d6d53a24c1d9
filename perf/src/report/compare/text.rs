//! The comparison for a terminal.

use super::{Row, cautions, differences, heads, letter, ratio_text, rows, title, value_text};
use crate::report::escape;
use crate::report::verdict::Verdict;
use crate::result::RunResult;

/// The comparison as a table for a terminal.
pub fn text(runs: &[RunResult]) -> String {
    let mut out = String::new();
    for (i, run) in runs.iter().enumerate() {
        let verdict = Verdict::words(run);
        out.push_str(&format!(
            "{}  {} ({verdict})\n",
            letter(i),
            escape::terminal(&title(run))
        ));
    }
    for text in differences(runs).iter().chain(&cautions(runs)) {
        out.push_str(&format!("!  {}\n", escape::terminal(text)));
    }
    out.push('\n');
    let mut lines = vec![heads(runs.len())];
    lines.extend(rows(runs).iter().map(text_row));
    out.push_str(&aligned(&lines));
    out
}

fn text_row(row: &Row) -> Vec<String> {
    let mut cells = vec![escape::terminal(&row.name)];
    cells.extend(row.values.iter().map(|v| value_text(*v, row.unit)));
    cells.extend((1..row.values.len()).map(|i| ratio_text(row, i)));
    cells
}

/// Columns lined up: the first to the left, the others to the right.
fn aligned(lines: &[Vec<String>]) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| {
        lines
            .iter()
            .filter_map(|l| l.get(c))
            .map(|t| t.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for line in lines {
        let cells = line
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(c, (text, &width))| {
                if c == 0 {
                    format!("{text:<width$}")
                } else {
                    format!("{text:>width$}")
                }
            });
        out.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        out.push('\n');
    }
    out
}

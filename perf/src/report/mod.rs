//! Reports: a run's [`RunResult`] as something people read.
//!
//! * [`html`]: one run as a page that stands alone: no script, nothing fetched, light, dark, paper, phone.
//! * [`fn@compare`] and [`compare_html`]: runs side by side, with ratios to the first, for a terminal and for a browser.
//! * [`results_markdown`]: the scenario section of `RESULTS.md`.
//!
//! All of them are pure functions of results: they read no clock, no file and no server, so a report can be made again from
//! the JSON at any time and comes out the same. Text that came from outside is escaped where it is printed (`escape`).
//!
//! Read in this order: `page` and `compare` put sections together from `figures`, `gpu` and `budget`, which draw with `chart`
//! on the axes of `scale` through the writer in `svg`.

mod budget;
mod chart;
mod compare;
pub(crate) mod escape;
mod figures;
mod gpu;
pub(crate) mod machine;
mod markdown;
pub(crate) mod number;
mod page;
mod scale;
mod shapes;
mod svg;
pub(crate) mod verdict;

use crate::result::RunResult;

/// One run as a self-contained HTML page.
pub fn html(run: &RunResult) -> String {
    page::page(run)
}

/// Runs side by side for a terminal: one column each, with the ratio to the first.
pub fn compare(runs: &[RunResult]) -> String {
    compare::text(runs)
}

/// Runs side by side as a self-contained HTML page.
pub fn compare_html(runs: &[RunResult]) -> String {
    compare::page(runs)
}

/// The scenario section of `RESULTS.md`: what was asked, what came out, where, when and how.
pub fn results_markdown(runs: &[RunResult]) -> String {
    markdown::results(runs)
}

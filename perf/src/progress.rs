//! What a person at a terminal sees while a run goes on. Without a terminal, nothing.

use indicatif::{ProgressBar, ProgressStyle};

use crate::result::Interval;

/// The live line.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    errors: u64,
}

impl Progress {
    /// A line for a run of so many seconds; `quiet` shows nothing.
    pub fn new(name: &str, seconds: f64, quiet: bool) -> Progress {
        let bar = if quiet {
            ProgressBar::hidden()
        } else {
            ProgressBar::new(seconds.ceil() as u64)
        };
        let template = "{prefix} {elapsed:>4} [{bar:20}] {pos}/{len}s  {msg}";
        let style =
            ProgressStyle::with_template(template).expect("the template is a constant that parses");
        bar.set_style(style.progress_chars("=> "));
        bar.set_prefix(name.to_owned());
        bar.set_message("starting");
        Progress { bar, errors: 0 }
    }

    /// Keeps the clock moving.
    pub fn tick(&self) {
        self.bar.tick();
    }

    /// Shows the second that has just ended.
    pub fn second(&mut self, interval: &Interval) {
        self.errors += interval.errors.values().sum::<u64>();
        let seconds = interval.length_seconds.max(f64::MIN_POSITIVE);
        let latency = &interval.latency;
        self.bar
            .set_position((interval.start_seconds + interval.length_seconds).round() as u64);
        let ms = |value: f64| match latency.count {
            0 => "–".to_owned(),
            _ => format!("{value:.1}"),
        };
        self.bar.set_message(format!(
            "{:.0} of {:.0}/s  p50 {}  p95 {}  p99 {} ms  errors {}",
            latency.count as f64 / seconds,
            interval.offered as f64 / seconds,
            ms(latency.p50_ms),
            ms(latency.p95_ms),
            ms(latency.p99_ms),
            self.errors,
        ));
    }

    /// Takes the line away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

//! The launch rule against its reference: a small discrete-event model of the same rule, whose results on fifteen loads
//! are the table below. Batches of up to 100 take 100 ms, `hold_max` is 40 ms, nothing is bound ahead.
//!
//! The real scheduler is driven by the very arrivals of the reference and must come out within 2 % of it, both if the
//! holder of the token looks at the rule on every event and if it sleeps as the collector does, until its doorbell rings
//! or its time has come. (1 % is demanded here. It comes out within 0.1 % if looked at on every event, 0.4 % asleep.)

mod arrivals;
mod driver;

use std::fmt::Write;

use crate::support::rig::Looks;
use arrivals::Trace;
use driver::{Outcome, replay};

/// Patience 0 is greedy, 1 is paced, infinity is the classic window.
const PATIENCES: [f64; 3] = [0.0, 1.0, f64::INFINITY];

/// p50, p95 and p99 of latency in milliseconds, and the mean batch.
type Figures = [f64; 4];

/// GPUs, arrivals per second, and what comes out at each patience.
type Row = (usize, u32, [Figures; 3]);

#[rustfmt::skip] // one load a line
const POISSON: [Row; 12] = [
    (1, 5, [[100.00, 189.21, 197.90, 1.107], [100.00, 189.21, 197.90, 1.107], [140.00, 187.65, 197.58, 1.244]]),
    (1, 100, [[150.19, 195.35, 199.07, 9.965], [150.19, 195.35, 199.07, 9.965], [150.44, 195.05, 198.96, 9.970]]),
    (1, 700, [[150.12, 194.79, 199.05, 69.444], [150.12, 194.79, 199.05, 69.444], [149.72, 194.92, 198.94, 69.444]]),
    (2, 5, [[100.00, 127.12, 166.59, 1.014], [100.00, 125.76, 158.20, 1.019], [140.00, 140.00, 140.00, 1.204]]),
    (2, 1000, [[144.34, 190.09, 194.14, 49.628], [125.08, 149.81, 153.91, 49.628], [125.01, 150.51, 154.44, 49.751]]),
    (4, 100, [[111.68, 135.08, 147.29, 2.542], [111.45, 126.49, 132.37, 2.568], [124.99, 140.00, 140.00, 4.994]]),
    (4, 3000, [[148.86, 192.85, 197.09, 74.074], [112.63, 123.99, 125.42, 75.377], [116.37, 132.51, 136.11, 99.668]]),
    (14, 5, [[100.00, 100.00, 100.00, 1.000], [100.00, 100.00, 100.00, 1.000], [140.00, 140.00, 140.00, 1.204]]),
    (14, 100, [[100.00, 104.12, 114.05, 1.038], [100.00, 105.00, 108.63, 1.077], [124.99, 140.00, 140.00, 4.994]]),
    (14, 1000, [[104.80, 148.95, 159.69, 7.107], [103.18, 107.81, 109.75, 7.519], [120.56, 138.99, 140.00, 40.816]]),
    (14, 10_000, [[148.75, 192.87, 196.72, 70.522], [103.55, 106.98, 107.67, 72.307], [104.90, 109.78, 110.91, 100.000]]),
    (14, 13_000, [[149.48, 193.90, 197.85, 91.324], [103.63, 107.03, 107.74, 93.371], [103.77, 107.53, 108.39, 100.000]]),
];

#[rustfmt::skip] // one load a line
const RECORDED: [Row; 3] = [
    (14, 100, [[100.00, 107.39, 116.58, 1.073], [100.00, 105.67, 109.56, 1.114], [125.10, 140.00, 140.00, 5.084]]),
    (14, 1000, [[103.81, 118.77, 123.84, 7.146], [103.17, 107.81, 109.83, 7.577], [120.55, 138.95, 140.00, 41.073]]),
    (14, 7000, [[145.41, 186.23, 190.07, 49.340], [103.61, 107.12, 108.11, 51.301], [106.50, 115.09, 118.79, 99.825]]),
];

const TOLERANCE: f64 = 0.01;

fn figures(outcome: &Outcome) -> Figures {
    [
        outcome.quantile_ms(0.5),
        outcome.quantile_ms(0.95),
        outcome.quantile_ms(0.99),
        outcome.batch_size_mean(),
    ]
}

/// Replays `rows` and complains of every figure that is off.
fn compare(rows: &[Row], looks: Looks, arrivals_of: impl Fn(u32) -> Vec<f64>) {
    let mut complaints = String::new();
    for (gpus, rate, expected) in rows {
        let arrivals = arrivals_of(*rate);
        for (patience, expected) in PATIENCES.into_iter().zip(expected) {
            let found = figures(&replay(&arrivals, *gpus, patience, looks));
            let off =
                |(found, expected): (&f64, &f64)| (found - expected).abs() > TOLERANCE * expected;
            if found.iter().zip(expected).any(off) {
                writeln!(
                    complaints,
                    "{gpus} GPUs, {rate}/s, patience {patience}: {found:.2?} instead of {expected:.2?}"
                )
                .expect("a string takes everything");
            }
        }
    }
    assert!(complaints.is_empty(), "{looks:?}\n{complaints}");
}

#[test]
fn poisson_loads_come_out_as_in_the_reference() {
    compare(&POISSON, Looks::Always, arrivals::poisson);
}

#[test]
fn poisson_loads_come_out_the_same_for_a_holder_that_sleeps() {
    compare(&POISSON, Looks::WhenWoken, arrivals::poisson);
}

#[test]
fn recorded_loads_come_out_as_in_the_reference() {
    let Some(trace) = Trace::from_environment() else {
        return;
    };
    for looks in [Looks::Always, Looks::WhenWoken] {
        compare(&RECORDED, looks, |rate| trace.at_rate(rate));
    }
}

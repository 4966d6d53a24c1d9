//! The upper bounds of the histograms' buckets.
//!
//! One list per kind of quantity rather than per family, so that dashboards can add and compare. Bounds are where
//! questions are asked: around one batch time of 100 ms, whole and half deadlines, the hold time of 40 ms.

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;

/// Upper bounds of request durations and queue waits, in nanoseconds: 250 µs to 10 s, fine around one batch time of
/// 100 ms (served at once) and two (waited for the running batch).
pub const LATENCY_BOUNDS: [u64; 45] = [
    250 * US,
    500 * US,
    MS,
    2 * MS,
    3 * MS,
    5 * MS,
    7_500 * US,
    10 * MS,
    15 * MS,
    20 * MS,
    30 * MS,
    40 * MS,
    50 * MS,
    60 * MS,
    70 * MS,
    80 * MS,
    90 * MS,
    95 * MS,
    100 * MS,
    102_500 * US,
    105 * MS,
    107_500 * US,
    110 * MS,
    115 * MS,
    120 * MS,
    130 * MS,
    140 * MS,
    150 * MS,
    165 * MS,
    180 * MS,
    200 * MS,
    225 * MS,
    250 * MS,
    300 * MS,
    350 * MS,
    400 * MS,
    500 * MS,
    650 * MS,
    800 * MS,
    S,
    1_500 * MS,
    2 * S,
    3 * S,
    5 * S,
    10 * S,
];

/// Upper bounds of the stages and of batch durations, in nanoseconds: parsing takes microseconds, a batch seconds.
pub const STAGE_BOUNDS: [u64; 34] = [
    10 * US,
    20 * US,
    50 * US,
    100 * US,
    200 * US,
    500 * US,
    MS,
    2 * MS,
    5 * MS,
    10 * MS,
    15 * MS,
    20 * MS,
    30 * MS,
    40 * MS,
    50 * MS,
    60 * MS,
    75 * MS,
    90 * MS,
    95 * MS,
    100 * MS,
    101 * MS,
    102 * MS,
    105 * MS,
    110 * MS,
    120 * MS,
    150 * MS,
    200 * MS,
    300 * MS,
    500 * MS,
    S,
    2 * S,
    5 * S,
    10 * S,
    30 * S,
];

/// Upper bounds of the gaps between batches, in nanoseconds.
pub const GAP_BOUNDS: [u64; 21] = [
    10 * US,
    20 * US,
    30 * US,
    50 * US,
    75 * US,
    100 * US,
    150 * US,
    200 * US,
    300 * US,
    500 * US,
    750 * US,
    MS,
    2 * MS,
    5 * MS,
    10 * MS,
    20 * MS,
    50 * MS,
    100 * MS,
    200 * MS,
    500 * MS,
    S,
];

/// Upper bounds of the phases of a batch on a device, in nanoseconds: gaps are microseconds, kernels take up to seconds.
pub const PHASE_BOUNDS: [u64; 30] = [
    US,
    2 * US,
    5 * US,
    7_500,
    10 * US,
    15 * US,
    20 * US,
    30 * US,
    50 * US,
    75 * US,
    100 * US,
    150 * US,
    200 * US,
    300 * US,
    500 * US,
    MS,
    2 * MS,
    5 * MS,
    10 * MS,
    20 * MS,
    50 * MS,
    75 * MS,
    100 * MS,
    110 * MS,
    150 * MS,
    200 * MS,
    500 * MS,
    S,
    2 * S,
    10 * S,
];

/// Upper bounds of batch sizes, in tickets.
pub const SIZE_BOUNDS: [u64; 20] = [
    1, 2, 4, 8, 16, 24, 32, 40, 50, 60, 70, 80, 90, 95, 99, 100, 128, 256, 512, 1024,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_ascending(bounds: &[u64]) {
        assert!(
            bounds.windows(2).all(|pair| pair[0] < pair[1]),
            "{bounds:?}"
        );
    }

    #[test]
    fn bounds_ascend() {
        assert_ascending(&LATENCY_BOUNDS);
        assert_ascending(&STAGE_BOUNDS);
        assert_ascending(&GAP_BOUNDS);
        assert_ascending(&PHASE_BOUNDS);
        assert_ascending(&SIZE_BOUNDS);
    }
}

//! Arrival rate of one tier, shared by all acceptor cores without a lock.
//!
//! Two exponentially decayed estimates of the same arrivals are kept, a slow one (0.5 s) and a fast one (a fifth of
//! it), and the larger of the two is believed. The slow one alone is a half second late when the tiers above step
//! up from little: for so long the free tier is let in on capacity that is gone. Simulated at twice the capacity
//! with 10/30/60 enterprise/paid/free, the pair brings the free tier's p95 from about 500 ms to 410–470 and its p99
//! from about 1,050 ms to 500–540, at the same throughput: an estimate on the high side only keeps the lower tier's
//! queue a little shorter, never empty.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::Time;

/// Decay time of the slow estimate, in seconds, where capacity is at least [`WINDOW_REQUESTS`] in that time.
const SLOW_SECONDS: f64 = 0.5;
/// The slow window is never shorter than this many requests take at full capacity: a window that holds a handful of
/// arrivals estimates noise. For one GPU of 1,000 requests per second both bounds are the same.
const WINDOW_REQUESTS: f64 = 500.0;
/// And never longer than this, whatever the capacity, in seconds.
const SLOW_SECONDS_MAX: f64 = 10.0;
/// The fast window's share of the slow one.
const FAST_SHARE: f64 = 0.2;

/// Nanoseconds per tick of the packed time, as a power of two: 2^16 ns = 65.5 µs, which wraps after 78 hours. Ticks
/// are rounded down from absolute time, so that their differences add up without drift.
const TICK_SHIFT: u32 = 16;
const TICK_SECONDS: f64 = (1u64 << TICK_SHIFT) as f64 * 1e-9;

/// The slow window for a server of `capacity` requests per second, in seconds.
pub(super) fn window(capacity: f64) -> f64 {
    (WINDOW_REQUESTS / capacity).clamp(SLOW_SECONDS, SLOW_SECONDS_MAX)
}

/// Arrivals of one tier: the pair of estimates.
#[derive(Debug, Default)]
pub(super) struct ArrivalRate {
    slow: Decayed,
    fast: Decayed,
}

impl ArrivalRate {
    /// Counts an arrival at `now`. `window` is the slow window in seconds.
    pub(super) fn record(&self, now: Time, window: f64) {
        self.slow.record(now, window);
        self.fast.record(now, window * FAST_SHARE);
    }

    /// Arrivals per second around `now`.
    pub(super) fn get(&self, now: Time, window: f64) -> f64 {
        let slow = self.slow.get(now, window);
        slow.max(self.fast.get(now, window * FAST_SHARE))
    }
}

/// One decayed rate: the tick of the last arrival in the high half, the rate right after it (an `f32`) in the low
/// half.
///
/// Relaxed ordering throughout: the word is the whole state and guards nothing else.
#[derive(Debug, Default)]
struct Decayed(AtomicU64);

impl Decayed {
    fn record(&self, now: Time, window: f64) {
        let tick = tick_of(now);
        let step = |word: u64| {
            let (last, rate) = unpack(word);
            // A core whose `now` is a little older than the last arrival must not turn time back.
            let newest = if age(tick, last) > 0 { tick } else { last };
            Some(pack(newest, decay(rate, last, tick, window) + 1.0 / window))
        };
        // The step never declines, so the update cannot fail.
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, step);
    }

    fn get(&self, now: Time, window: f64) -> f64 {
        let (last, rate) = unpack(self.0.load(Ordering::Relaxed));
        decay(rate, last, tick_of(now), window)
    }
}

fn tick_of(now: Time) -> u32 {
    // The cut to 32 bits is the wrap that `age` allows for.
    (now.as_nanos() >> TICK_SHIFT) as u32
}

/// Ticks from `last` to `tick`, negative if `tick` is the older one.
fn age(tick: u32, last: u32) -> i32 {
    tick.wrapping_sub(last).cast_signed()
}

fn decay(rate: f64, last: u32, tick: u32, window: f64) -> f64 {
    // More than half a wrap (39 h) without an arrival reads as a negative age, so the rate counts as fresh until
    // the next arrival but one window later: harmless, and not worth a wider word.
    let seconds = f64::from(age(tick, last).max(0)) * TICK_SECONDS;
    if seconds == 0.0 {
        return rate;
    }
    rate * (-seconds / window).exp()
}

fn pack(tick: u32, rate: f64) -> u64 {
    u64::from(tick) << 32 | u64::from((rate as f32).to_bits())
}

fn unpack(word: u64) -> (u32, f64) {
    let rate = f32::from_bits(word as u32);
    ((word >> 32) as u32, f64::from(rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `rate` evenly spaced arrivals per second for `seconds`, from `from_ms` on.
    fn feed(estimate: &ArrivalRate, rate: f64, from_ms: f64, seconds: f64) -> Time {
        let mut at = from_ms;
        while at < from_ms + seconds * 1e3 {
            estimate.record(Time::from_millis_f64(at), 0.5);
            at += 1e3 / rate;
        }
        Time::from_millis_f64(at)
    }

    #[test]
    fn a_steady_stream_is_measured() {
        for rate in [100.0, 3_200.0, 100_000.0] {
            let estimate = ArrivalRate::default();
            let end = feed(&estimate, rate, 12.3, 4.0);
            let got = estimate.get(end, 0.5);
            // The first figure is what one arrival adds to the fast estimate.
            assert!((got - rate).abs() < 10.0 + 0.001 * rate, "{got} for {rate}");
        }
    }

    #[test]
    fn a_step_up_is_believed_within_two_fast_windows_and_forgotten_in_slow_ones() {
        let estimate = ArrivalRate::default();
        let end = feed(&estimate, 1_000.0, 0.0, 0.2);
        assert!(estimate.get(end, 0.5) > 850.0);
        let later = Time::from_millis_f64(200.0 + 2_500.0);
        assert!(estimate.get(later, 0.5) < 10.0);
    }

    #[test]
    fn a_core_that_is_late_neither_turns_time_back_nor_loses_its_arrival() {
        let estimate = Decayed::default();
        estimate.record(Time::from_millis_f64(500.0), 0.5);
        estimate.record(Time::from_millis_f64(400.0), 0.5);
        assert_eq!(estimate.get(Time::from_millis_f64(500.0), 0.5), 4.0);
    }

    #[test]
    fn the_window_holds_enough_requests_to_measure_anything() {
        assert_eq!(window(4_000.0), 0.5);
        assert_eq!(window(100.0), 5.0);
        assert_eq!(window(1e-300), 10.0);
    }

    #[test]
    fn nothing_is_lost_when_many_cores_record_at_once() {
        let estimate = Decayed::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1_000 {
                        estimate.record(Time::ZERO, 0.5);
                    }
                });
            }
        });
        assert_eq!(estimate.get(Time::ZERO, 0.5), 8_000.0);
    }
}

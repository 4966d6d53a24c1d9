//! What the collector knows of the GPUs: who is idle, who comes back when, and what they can do together. Pure.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::clock::Time;

/// Batch times are never taken for less than this: a division by a batch time of 0 helps nobody.
pub const BATCH_TIME_MIN: Duration = Duration::from_millis(1);

/// A GPU's mean batch time is the plain mean of its first batches, up to so many, and from then on the newest has a weight of
/// one in so many: that follows a changed GPU within about a second of 100 ms batches and smooths jitter to a third.
const BATCHES_IN_MEAN: u32 = 10;

/// What a GPU does, as far as the launch rule is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Not in service.
    Down,
    /// Could take a batch, since this time.
    Idle(Time),
    /// Runs a batch that is expected to end at this time.
    Busy(Time),
}

#[derive(Clone, Debug)]
struct Gpu {
    activity: Activity,
    /// Whether its seat is open. One that was told to leave stays down, whatever its thread still says.
    open: bool,
    /// Decayed mean; `None` before the first batch (or canary).
    batch_time: Option<Duration>,
    /// Batches that count in it, up to [`BATCHES_IN_MEAN`]. A canary does not.
    batches: u32,
}

/// The pool's figures for readers outside the collector's lock: admission and the metrics. Each is exact, a set of
/// them read together may straddle a change.
#[derive(Debug, Default)]
pub struct Capacity {
    healthy: AtomicUsize,
    idle: AtomicUsize,
    per_second_bits: AtomicU64,
    batch_time_nanos: AtomicU64,
}

impl Capacity {
    /// GPUs in service.
    pub fn healthy(&self) -> usize {
        self.healthy.load(Ordering::Acquire)
    }

    /// GPUs in service that run nothing.
    pub fn idle(&self) -> usize {
        self.idle.load(Ordering::Acquire)
    }

    /// Requests per second that the GPUs in service can serve with full batches.
    pub fn per_second(&self) -> f64 {
        f64::from_bits(self.per_second_bits.load(Ordering::Acquire))
    }

    /// L: the mean batch time of the GPUs in service, at least [`BATCH_TIME_MIN`].
    pub fn batch_time(&self) -> Duration {
        Duration::from_nanos(self.batch_time_nanos.load(Ordering::Acquire)).max(BATCH_TIME_MIN)
    }
}

/// All GPUs of the server.
#[derive(Debug)]
pub struct Pool {
    gpus: Vec<Gpu>,
    batch_max: usize,
    idle_since: Time,
    published: Arc<Capacity>,
    scratch: Vec<Duration>,
}

impl Pool {
    /// Seats for `gpus` GPUs, all open and all down, with batches of up to `batch_max`.
    pub fn new(gpus: usize, batch_max: usize) -> Pool {
        let down = Gpu {
            activity: Activity::Down,
            open: true,
            batch_time: None,
            batches: 0,
        };
        Pool {
            gpus: vec![down; gpus],
            batch_max,
            idle_since: Time::ZERO,
            published: Arc::new(Capacity::default()),
            scratch: Vec::with_capacity(gpus),
        }
    }

    /// The published figures.
    pub fn capacity(&self) -> &Arc<Capacity> {
        &self.published
    }

    /// What `gpu` does.
    pub fn activity(&self, gpu: usize) -> Activity {
        self.gpus[gpu].activity
    }

    /// Whether `gpu` may take batches.
    pub fn is_open(&self, gpu: usize) -> bool {
        self.gpus[gpu].open
    }

    /// Takes `gpu` out of service until its seat is opened again: from now on it is down, whatever is said of it.
    pub fn close(&mut self, gpu: usize) {
        self.gpus[gpu].open = false;
        self.set(gpu, Activity::Down);
    }

    /// Another GPU takes the seat `gpu`: down, and nothing is known of it.
    pub fn open(&mut self, gpu: usize) {
        self.gpus[gpu].open = true;
        (self.gpus[gpu].batch_time, self.gpus[gpu].batches) = (None, 0);
        self.set(gpu, Activity::Down);
    }

    /// Changes what `gpu` does. Returns whether the number of GPUs in service or idle changed.
    pub fn set(&mut self, gpu: usize, activity: Activity) -> bool {
        if !self.gpus[gpu].open && activity != Activity::Down {
            return false;
        }
        let before = (self.healthy(), self.idle());
        let idle_before = matches!(self.gpus[gpu].activity, Activity::Idle(_));
        match activity {
            // An idle GPU that says so again has been idle all along.
            Activity::Idle(_) if idle_before => return false,
            Activity::Idle(since) if before.1 == 0 => self.idle_since = since,
            _ => {}
        }
        self.gpus[gpu].activity = activity;
        self.publish();
        before != (self.healthy(), self.idle())
    }

    /// A batch of `gpu` took `took`.
    pub fn measured(&mut self, gpu: usize, took: Duration) {
        let took = took.max(BATCH_TIME_MIN);
        let gpu = &mut self.gpus[gpu];
        // The first call on a device may be a cold one, and a canary is a short input: a batch knows better at once.
        gpu.batches = BATCHES_IN_MEAN.min(gpu.batches + 1);
        let newest = 1.0 / f64::from(gpu.batches);
        let before = gpu.batch_time.unwrap_or_default();
        gpu.batch_time = Some(before.mul_f64(1.0 - newest) + took.mul_f64(newest));
        self.publish();
    }

    /// A canary of `gpu` took `took`. That stands for a batch's time until there is one, and what was measured before no
    /// longer holds.
    pub fn canary(&mut self, gpu: usize, took: Duration) {
        let gpu = &mut self.gpus[gpu];
        (gpu.batch_time, gpu.batches) = (Some(took.max(BATCH_TIME_MIN)), 0);
        self.publish();
    }

    /// L of `gpu`: its own mean, else the pool's.
    pub fn batch_time(&self, gpu: usize) -> Duration {
        self.gpus[gpu]
            .batch_time
            .unwrap_or_else(|| self.published.batch_time())
    }

    /// GPUs in service.
    pub fn healthy(&self) -> usize {
        self.gpus
            .iter()
            .filter(|gpu| gpu.activity != Activity::Down)
            .count()
    }

    /// GPUs in service that run nothing.
    pub fn idle(&self) -> usize {
        self.gpus
            .iter()
            .filter(|gpu| matches!(gpu.activity, Activity::Idle(_)))
            .count()
    }

    /// Since when at least one GPU has been idle (meaningful while one is).
    pub fn idle_since(&self) -> Time {
        self.idle_since
    }

    /// The busy GPUs' times to their expected end at `now`.
    pub fn remaining(&mut self, now: Time) -> &mut [Duration] {
        self.scratch.clear();
        let busy = self.gpus.iter().filter_map(|gpu| match gpu.activity {
            Activity::Busy(ends) => Some(ends.since(now)),
            Activity::Down | Activity::Idle(_) => None,
        });
        self.scratch.extend(busy);
        &mut self.scratch
    }

    fn publish(&self) {
        let known: Vec<Duration> = self
            .gpus
            .iter()
            .filter(|gpu| gpu.activity != Activity::Down)
            .filter_map(|gpu| gpu.batch_time)
            .collect();
        // A sum of nothing would be -0, and shown as that.
        let per_second = known
            .iter()
            .map(|time| self.batch_max as f64 / time.as_secs_f64())
            .fold(0.0, |sum, each| sum + each);
        let out = &self.published;
        out.healthy.store(self.healthy(), Ordering::Release);
        out.idle.store(self.idle(), Ordering::Release);
        out.per_second_bits
            .store(per_second.to_bits(), Ordering::Release);
        if let Some(mean) = known
            .iter()
            .sum::<Duration>()
            .checked_div(known.len() as u32)
        {
            out.batch_time_nanos.store(
                u64::try_from(mean.as_nanos()).unwrap_or(u64::MAX),
                Ordering::Release,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn capacity_follows_the_gpus_in_service_at_once() {
        let mut pool = Pool::new(2, 100);
        assert_eq!(
            (pool.capacity().healthy(), pool.capacity().per_second()),
            (0, 0.0)
        );
        for gpu in 0..2 {
            pool.measured(gpu, 100 * MS);
            assert!(pool.set(gpu, Activity::Idle(Time::ZERO)));
        }
        assert!((pool.capacity().per_second() - 2000.0).abs() < 1e-6);
        assert!(pool.set(0, Activity::Down));
        assert!((pool.capacity().per_second() - 1000.0).abs() < 1e-6);
        assert_eq!((pool.capacity().healthy(), pool.capacity().idle()), (1, 1));
        assert!(pool.set(1, Activity::Down));
        assert_eq!(pool.capacity().per_second().to_string(), "0");
    }

    #[test]
    fn a_closed_seat_stays_down_until_another_gpu_takes_it() {
        let mut pool = Pool::new(2, 100);
        for gpu in 0..2 {
            pool.measured(gpu, (1 + gpu as u32) * 100 * MS);
            pool.set(gpu, Activity::Idle(Time::ZERO));
        }
        pool.close(1);
        assert!(!pool.set(1, Activity::Idle(Time::ZERO)));
        assert!(!pool.set(1, Activity::Busy(Time::MAX)));
        assert_eq!(
            (pool.is_open(1), pool.healthy(), pool.idle()),
            (false, 1, 1)
        );
        assert!((pool.capacity().per_second() - 1000.0).abs() < 1e-6);
        pool.open(1);
        assert_eq!((pool.is_open(1), pool.healthy()), (true, 1));
        assert_eq!(pool.batch_time(1), 100 * MS, "the pool's, none of its own");
        assert!(pool.set(1, Activity::Idle(Time::ZERO)));
    }

    #[test]
    fn the_mean_follows_and_never_falls_below_the_floor() {
        let mut pool = Pool::new(1, 100);
        pool.measured(0, Duration::ZERO);
        assert_eq!(pool.batch_time(0), BATCH_TIME_MIN);
        for _ in 0..100 {
            pool.measured(0, 100 * MS);
        }
        assert!(pool.batch_time(0).abs_diff(100 * MS) < MS);
    }

    #[test]
    fn a_canarys_time_holds_until_a_batch_is_measured() {
        let mut pool = Pool::new(1, 100);
        pool.canary(0, 3_000 * MS);
        assert_eq!(pool.batch_time(0), 3_000 * MS);
        pool.measured(0, 100 * MS);
        assert_eq!(pool.batch_time(0), 100 * MS);
        pool.measured(0, 200 * MS);
        assert_eq!(pool.batch_time(0), 150 * MS);
        pool.canary(0, 50 * MS);
        assert_eq!(pool.batch_time(0), 50 * MS);
        (0..10).for_each(|_| pool.measured(0, 100 * MS));
        pool.measured(0, 200 * MS);
        assert!(pool.batch_time(0).abs_diff(110 * MS) < MS / 1000);
    }

    #[test]
    fn idle_since_is_when_the_first_of_the_idle_became_so() {
        let mut pool = Pool::new(2, 100);
        let at = |ms: f64| Time::from_millis_f64(ms);
        pool.set(0, Activity::Idle(at(1.0)));
        pool.set(1, Activity::Idle(at(2.0)));
        assert!(!pool.set(0, Activity::Idle(at(3.0))));
        assert_eq!(pool.idle_since(), at(1.0));
        pool.set(0, Activity::Busy(at(100.0)));
        pool.set(1, Activity::Busy(at(100.0)));
        pool.set(1, Activity::Idle(at(50.0)));
        assert_eq!(pool.idle_since(), at(50.0));
        assert_eq!(pool.remaining(at(40.0)), &[60 * MS]);
    }
}

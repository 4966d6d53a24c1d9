//! Recording: relaxed adds to atomics that, as a rule, only one thread writes.
//!
//! Each acceptor core and each GPU thread has a recorder of its own; the reader adds them up. Which one is used is a
//! matter of speed only: any thread may use any of them and nothing gets lost, so the watchdog that finishes a batch
//! for a hanging GPU thread simply uses that GPU's.
//!
//! All orderings are `Relaxed`: the numbers order nothing. A reader may thus see a histogram's sum a few observations
//! ahead of or behind its counts; count and buckets agree always, as the count is the sum of the buckets.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::bounds::{GAP_BOUNDS, LATENCY_BOUNDS, PHASE_BOUNDS, SIZE_BOUNDS, STAGE_BOUNDS};
use super::labels::{
    Abandonment, BatchOutcome, CODES, CudaPhase, Isolation, LaunchReason, ShedReason, Stage,
    code_index,
};
use crate::tier::Tier;

/// A number that only rises.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    const fn new() -> Counter {
        Counter(AtomicU64::new(0))
    }

    pub(super) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    fn absorb(&self, other: &Counter) {
        self.add(other.get());
    }
}

/// Adds what `others` have counted to `mine`, one by one.
fn absorb_all<'a>(
    mine: impl IntoIterator<Item = &'a Counter>,
    others: impl IntoIterator<Item = &'a Counter>,
) {
    let pairs = mine.into_iter().zip(others);
    pairs.for_each(|(mine, other)| mine.absorb(other));
}

/// Counts by upper bound, and the sum of what was observed; `N` bounds and one bucket beyond them.
#[derive(Debug)]
pub(super) struct Histogram<const N: usize> {
    bounds: &'static [u64; N],
    buckets: [Counter; N],
    above: Counter,
    sum: Counter,
}

impl<const N: usize> Histogram<N> {
    const fn new(bounds: &'static [u64; N]) -> Histogram<N> {
        let buckets = [const { Counter::new() }; N];
        let (above, sum) = (Counter::new(), Counter::new());
        Histogram {
            bounds,
            buckets,
            above,
            sum,
        }
    }

    /// Counts `value` `times` times, at the price of once.
    fn observe(&self, value: u64, times: u64) {
        let index = self.bounds.partition_point(|&bound| bound < value);
        self.buckets.get(index).unwrap_or(&self.above).add(times);
        self.sum.add(value.saturating_mul(times));
    }

    fn absorb(&self, other: &Histogram<N>) {
        absorb_all(&self.buckets, &other.buckets);
        self.above.absorb(&other.above);
        self.sum.absorb(&other.sum);
    }

    /// Adds what was observed here to `reading`.
    pub(super) fn add_to(&self, reading: &mut Reading) {
        reading.bounds = self.bounds;
        reading.counts.resize(N + 1, 0);
        let buckets = self.buckets.iter().chain([&self.above]);
        for (count, bucket) in reading.counts.iter_mut().zip(buckets) {
            *count += bucket.get();
        }
        reading.sum += self.sum.get();
    }
}

/// What a histogram, or several that were added up, has observed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reading {
    /// Upper bounds, inclusive.
    pub(super) bounds: &'static [u64],
    /// Observations per bound, not cumulative; the last one is what lies above all bounds.
    pub(super) counts: Vec<u64>,
    /// Sum of all observations.
    pub(super) sum: u64,
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// What happens to requests and connections, recorded by one thread.
#[derive(Debug)]
pub struct Recorder {
    /// By tier ([`Tier::COUNT`]: none) and code ([`CODES`]`.len()`: other).
    pub(super) requests: [[Counter; CODES.len() + 1]; Tier::COUNT + 1],
    pub(super) request_duration: [Histogram<45>; Tier::COUNT + 1],
    pub(super) queue_wait: [Histogram<45>; Tier::COUNT],
    pub(super) stages: [Histogram<34>; Stage::COUNT],
    pub(super) shed: [[Counter; ShedReason::COUNT]; Tier::COUNT],
    pub(super) abandoned: [Counter; Abandonment::COUNT],
    pub(super) late_results: Counter,
    pub(super) retries: Counter,
    pub(super) connections_opened: Counter,
    pub(super) connections_closed: Counter,
    pub(super) connections_refused: Counter,
}

impl Recorder {
    pub(super) const fn new() -> Recorder {
        Recorder {
            requests: [const { [const { Counter::new() }; CODES.len() + 1] }; Tier::COUNT + 1],
            request_duration: [const { Histogram::new(&LATENCY_BOUNDS) }; Tier::COUNT + 1],
            queue_wait: [const { Histogram::new(&LATENCY_BOUNDS) }; Tier::COUNT],
            stages: [const { Histogram::new(&STAGE_BOUNDS) }; Stage::COUNT],
            shed: [const { [const { Counter::new() }; ShedReason::COUNT] }; Tier::COUNT],
            abandoned: [const { Counter::new() }; Abandonment::COUNT],
            late_results: Counter::new(),
            retries: Counter::new(),
            connections_opened: Counter::new(),
            connections_closed: Counter::new(),
            connections_refused: Counter::new(),
        }
    }

    /// Adds all that `other` has recorded.
    fn absorb(&self, other: &Recorder) {
        absorb_all(self.requests.as_flattened(), other.requests.as_flattened());
        absorb_all(self.shed.as_flattened(), other.shed.as_flattened());
        absorb_all(&self.abandoned, &other.abandoned);
        let latencies = self.request_duration.iter().chain(&self.queue_wait);
        let others = other.request_duration.iter().chain(&other.queue_wait);
        latencies
            .zip(others)
            .for_each(|(mine, other)| mine.absorb(other));
        let stages = self.stages.iter().zip(&other.stages);
        stages.for_each(|(mine, other)| mine.absorb(other));
        absorb_all(self.singles(), other.singles());
    }

    fn singles(&self) -> [&Counter; 5] {
        [
            &self.late_results,
            &self.retries,
            &self.connections_opened,
            &self.connections_closed,
            &self.connections_refused,
        ]
    }

    /// A request was answered with `status`, or its caller left (499). `tier` is `None` if it was refused before its
    /// tier was known; `duration` is from its first byte to the last byte of the answer.
    pub fn request_finished(&self, tier: Option<Tier>, status: u16, duration: Duration) {
        let tier = tier.map_or(Tier::COUNT, Tier::index);
        self.requests[tier][code_index(status)].add(1);
        self.request_duration[tier].observe(nanos(duration), 1);
    }

    /// A batch claimed a ticket that had waited for `wait`.
    pub fn queue_wait(&self, tier: Tier, wait: Duration) {
        self.queue_wait[tier.index()].observe(nanos(wait), 1);
    }

    /// One ticket spent `duration` in `stage`.
    pub fn stage(&self, stage: Stage, duration: Duration) {
        self.stages[stage.index()].observe(nanos(duration), 1);
    }

    /// Each of `tickets` tickets spent `duration` in `stage`: a whole batch at the price of one ticket.
    pub fn stage_of_batch(&self, stage: Stage, duration: Duration, tickets: usize) {
        self.stages[stage.index()].observe(nanos(duration), tickets as u64);
    }

    /// A request was refused. Its answer is recorded by [`Recorder::request_finished`] besides.
    pub fn shed(&self, tier: Tier, reason: ShedReason) {
        self.shed[tier.index()][reason.index()].add(1);
    }

    /// An admitted ticket was given up.
    pub fn abandoned(&self, reason: Abandonment) {
        self.abandoned[reason.index()].add(1);
    }

    /// A result came for a ticket that was resolved already; it was dropped.
    pub fn late_result(&self) {
        self.late_results.add(1);
    }

    /// A ticket went to its tier's retry lane.
    pub fn retry(&self) {
        self.retries.add(1);
    }

    /// A connection was accepted and will be served.
    pub fn connection_opened(&self) {
        self.connections_opened.add(1);
    }

    /// A connection that had been counted by [`Recorder::connection_opened`] ended.
    pub fn connection_closed(&self) {
        self.connections_closed.add(1);
    }

    /// A connection was turned away at the connection cap.
    pub fn connection_refused(&self) {
        self.connections_refused.add(1);
    }
}

/// What a GPU does, recorded by its GPU thread.
#[derive(Debug)]
pub struct GpuRecorder {
    pub(super) tickets: Recorder,
    pub(super) launches: [Counter; LaunchReason::COUNT],
    pub(super) size: Histogram<20>,
    pub(super) outcomes: [Counter; BatchOutcome::COUNT],
    pub(super) isolations: [Counter; Isolation::COUNT],
    pub(super) duration: Histogram<34>,
    pub(super) gap: Histogram<21>,
    pub(super) busy_nanos: Counter,
    pub(super) cuda_phases: [Histogram<30>; CudaPhase::COUNT],
}

impl Default for GpuRecorder {
    fn default() -> GpuRecorder {
        GpuRecorder::new()
    }
}

impl GpuRecorder {
    pub(super) const fn new() -> GpuRecorder {
        GpuRecorder {
            tickets: Recorder::new(),
            launches: [const { Counter::new() }; LaunchReason::COUNT],
            size: Histogram::new(&SIZE_BOUNDS),
            outcomes: [const { Counter::new() }; BatchOutcome::COUNT],
            isolations: [const { Counter::new() }; Isolation::COUNT],
            duration: Histogram::new(&STAGE_BOUNDS),
            gap: Histogram::new(&GAP_BOUNDS),
            busy_nanos: Counter::new(),
            cuda_phases: [const { Histogram::new(&PHASE_BOUNDS) }; CudaPhase::COUNT],
        }
    }

    /// Adds all that `other` has recorded: a GPU that is no more, and what is summed over all GPUs must not fall.
    pub(super) fn absorb(&self, other: &GpuRecorder) {
        self.tickets.absorb(&other.tickets);
        absorb_all(&self.launches, &other.launches);
        absorb_all(&self.outcomes, &other.outcomes);
        absorb_all(&self.isolations, &other.isolations);
        self.size.absorb(&other.size);
        self.duration.absorb(&other.duration);
        self.gap.absorb(&other.gap);
        let phases = self.cuda_phases.iter().zip(&other.cuda_phases);
        phases.for_each(|(mine, other)| mine.absorb(other));
        self.busy_nanos.absorb(&other.busy_nanos);
    }

    /// Where this GPU's thread records what happens to tickets.
    pub fn tickets(&self) -> &Recorder {
        &self.tickets
    }

    /// A batch of `size` tickets was launched. A probe fills no slots: its `size` is 0 and stays out of the sizes.
    pub fn batch_launched(&self, reason: LaunchReason, size: usize) {
        self.launches[reason.index()].add(1);
        if size > 0 {
            self.size.observe(size as u64, 1);
        }
    }

    /// A batch ended, `duration` after its launch.
    pub fn batch_finished(&self, outcome: BatchOutcome, duration: Duration) {
        self.outcomes[outcome.index()].add(1);
        self.duration.observe(nanos(duration), 1);
    }

    /// A search for bad inputs ended on this GPU.
    pub fn isolation(&self, result: Isolation) {
        self.isolations[result.index()].add(1);
    }

    /// The GPU stood idle for `gap` between two batches although tickets waited.
    pub fn batch_gap(&self, gap: Duration) {
        self.gap.observe(nanos(gap), 1);
    }

    /// A batch of the CUDA executor spent `span` in `phase`.
    pub fn cuda_phase(&self, phase: CudaPhase, span: Duration) {
        self.cuda_phases[phase.index()].observe(nanos(span), 1);
    }

    /// The GPU ran something for `busy`.
    pub fn gpu_busy(&self, busy: Duration) {
        self.busy_nanos.add(nanos(busy));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reading_of(histogram: &Histogram<20>) -> Reading {
        let mut reading = Reading::default();
        histogram.add_to(&mut reading);
        reading
    }

    #[test]
    fn a_bound_belongs_to_its_own_bucket() {
        let histogram = Histogram::new(&SIZE_BOUNDS);
        for value in [0, 1, 100, 101, 1024, 1025] {
            histogram.observe(value, 1);
        }
        let counts = reading_of(&histogram).counts;
        assert_eq!(
            (counts[0], counts[15], counts[16], counts[19], counts[20]),
            (2, 1, 1, 1, 1)
        );
    }

    proptest! {
        #[test]
        fn counts_and_sum_agree_with_a_naive_count(
            values in proptest::collection::vec((0u64..2000, 1u64..5), 0..200),
            split in 0usize..200,
        ) {
            let shards = [Histogram::new(&SIZE_BOUNDS), Histogram::new(&SIZE_BOUNDS)];
            for (at, &(value, times)) in values.iter().enumerate() {
                shards[usize::from(at < split)].observe(value, times);
            }
            let mut merged = Reading::default();
            shards.iter().for_each(|shard| shard.add_to(&mut merged));
            let times_within = |low: u64, high: u64| -> u64 {
                let within = values.iter().filter(|(value, _)| *value >= low && *value <= high);
                within.map(|(_, times)| times).sum()
            };
            let mut low = 0;
            for (index, &bound) in SIZE_BOUNDS.iter().enumerate() {
                prop_assert_eq!(merged.counts[index], times_within(low, bound));
                low = bound + 1;
            }
            prop_assert_eq!(merged.counts[SIZE_BOUNDS.len()], times_within(low, u64::MAX));
            prop_assert_eq!(merged.sum, values.iter().map(|(value, times)| value * times).sum::<u64>());
        }
    }

    #[test]
    fn threads_that_share_a_recorder_lose_nothing() {
        let recorder = Recorder::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        recorder.request_finished(Some(Tier::Paid), 200, Duration::from_millis(1));
                    }
                });
            }
        });
        assert_eq!(recorder.requests[Tier::Paid.index()][0].get(), 40_000);
        let mut reading = Reading::default();
        recorder.request_duration[Tier::Paid.index()].add_to(&mut reading);
        assert_eq!(reading.counts.iter().sum::<u64>(), 40_000);
        assert_eq!(reading.sum, 40_000_000_000);
    }
}

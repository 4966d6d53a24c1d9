//! Admission: who is let in, who is shed, and when to come back.
//!
//! Acceptor cores call [`Admission::judge`] for each request, concurrently; whoever sweeps the waiting room calls
//! [`Admission::sweep`] and judges each waiting ticket again every [`REJUDGE_EVERY`]. Both are pure functions of
//! the numbers they are given and of a few atomics (the shares' credit, the arrival rate of the upper tiers): no
//! clock, no lock, no allocation.
//!
//! The questions, in this order:
//! 1. **Can the server serve at all?** No healthy GPU: 503.
//! 2. **Can it make its deadline?** Under strict priority a tier is served by what the tiers above leave, so the
//!    expected latency is `live tickets of its tier and above / (capacity − arrival rate of the tiers above) + L`,
//!    with L the batch time. It must stay within 80 % of the ticket's deadline and within the target (80 % of
//!    `target_latency`, or 4 L where batches are long). A ticket that boards the very next batch, because a GPU is
//!    idle and its batch is not yet full, needs only the batch itself. One whose caller asks for less time than a
//!    batch takes is told so ([`Verdict::DeadlineTooShort`]): the others can come back later, that one can't.
//! 3. **What does the zone say?** See [`Zone`]: these bind after capacity is lost, and cap the depth.
//!
//! What counts as an arrival is an *admitted* request: what was refused takes no capacity from anybody.
//!
//! # Guarantees
//! * Total: any numbers (NaN, infinities, zeroes) give a verdict, never a panic.
//! * A deeper backlog never lets in more; a zone never refuses a tier while it lets in a lower one; at the limit
//!   nobody is let in.
//! * A request that comes to an idle server (no ticket waiting) with the server's own default deadline is always
//!   let in, however long a batch takes or is believed to take. If it truly takes longer than the deadline, the
//!   caller gets the 504 that the deadline promises, the batch refreshes L, and `funicular check` tells the
//!   operator ([`Rules::warnings`]). The alternative, a 429, would blame load where there is none and could lock
//!   everybody out after one slow batch. Only a caller's own, shorter deadline is refused there.

mod deadline;
mod load;
mod rate;
mod rules;
mod share;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
mod verdict;
mod zone;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_utils::CachePadded;

use crate::clock::Time;
use crate::tier::Tier;

pub use self::deadline::DefaultDeadline;
pub use self::load::Load;
use self::load::{Drain, LEFT_MIN_SHARE, Numbers};
use self::rate::ArrivalRate;
pub use self::rules::{Rules, RulesError};
use self::share::Share;
pub use self::verdict::{RETRY_AFTER_MAX, Reason, Shed, Verdict, retry_after_seconds};
use self::zone::Thresholds;
pub use self::zone::Zone;

/// How often waiting tickets are judged again.
pub const REJUDGE_EVERY: Duration = Duration::from_millis(100);

/// What to tell callers while no GPU is healthy; a reset and a canary take about this long.
const RETRY_AFTER_NO_GPU: Duration = Duration::from_secs(1);

/// Without an admission for so long, a probe batch is due.
const PROBE_AFTER: Duration = Duration::from_secs(1);

/// The part of a ticket's deadline, and of the target, that its expected latency may fill.
const BOUND_SHARE: f64 = 0.8;

/// The target is never below this many batch times: one running, its own, and two of backlog.
const TARGET_BATCHES: f64 = 4.0;

/// Decides who is let in. Shared by all acceptor cores.
#[derive(Debug)]
pub struct Admission {
    rules: Rules,
    /// By tier. Each on a cache line of its own: cores that serve different tiers do not slow each other down.
    tiers: [CachePadded<TierState>; Tier::COUNT],
    /// Nanoseconds of the last admission and of the last refusal as infeasible, within [`STAMP_EVERY`]; for
    /// [`Admission::probe_due`] only.
    last_admitted: CachePadded<AtomicU64>,
    last_infeasible: CachePadded<AtomicU64>,
}

/// How precisely the last admission is remembered: most requests then only read the stamp.
const STAMP_EVERY: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
struct TierState {
    arrivals: ArrivalRate,
    share: Share,
}

impl Admission {
    /// An admission by `rules`, which should have passed [`Rules::validate`]; with any others it decides oddly but
    /// safely.
    pub fn new(rules: Rules) -> Admission {
        Admission {
            rules,
            tiers: Default::default(),
            last_admitted: CachePadded::default(),
            last_infeasible: CachePadded::default(),
        }
    }

    /// The rules it goes by.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Judges a request of `tier` that has `deadline` left, and counts it as an arrival if it is let in.
    pub fn judge(&self, now: Time, tier: Tier, deadline: Duration, load: &Load) -> Verdict {
        let Some(numbers) = Numbers::new(tier, load) else {
            return Verdict::NoHealthyGpu {
                retry_after: RETRY_AFTER_NO_GPU,
            };
        };
        let by_zone = || self.shed_by_zone(now, tier, load, &numbers);
        let refusal = self
            .infeasible(now, tier, deadline, load, &numbers)
            .or_else(|| by_zone().map(Verdict::from));
        if let Some(refusal) = refusal {
            return refusal;
        }
        // The lowest tier has nobody below it whose share its arrivals could take.
        if tier != Tier::Free {
            self.tiers[tier.index()]
                .arrivals
                .record(now, numbers.window);
        }
        stamp(&self.last_admitted, now);
        Verdict::Admit
    }

    /// Judges a waiting ticket again, as [`Sweep::judge`]; for many tickets at a time prepare a [`Sweep`].
    pub fn rejudge(
        &self,
        now: Time,
        tier: Tier,
        position: usize,
        remaining: Duration,
        load: &Load,
    ) -> Option<Shed> {
        self.sweep(now, tier, load)?.judge(position, remaining)
    }

    /// Prepares for judging the waiting tickets of `tier` again. `None` without a healthy GPU: what to do then is
    /// not a matter of load.
    pub fn sweep(&self, now: Time, tier: Tier, load: &Load) -> Option<Sweep> {
        let numbers = Numbers::new(tier, load)?;
        Some(Sweep {
            drain: self.drain(now, tier, load, &numbers),
            boarding: numbers.boarding,
            batch_seconds: numbers.batch_seconds,
        })
    }

    /// The zone that `load` is in; [`Zone::Limit`] if no GPU is healthy.
    pub fn zone(&self, load: &Load) -> Zone {
        Numbers::new(Tier::Enterprise, load).map_or(Zone::Limit, |numbers| {
            self.thresholds(&numbers).zone(numbers.depth())
        })
    }

    /// Whether a GPU that has run nothing since `gpu_idle_since` should run a probe batch now.
    ///
    /// Batch times are measured on batches, so a batch time that makes every deadline infeasible would never be
    /// corrected. When requests are refused as infeasible and none was let in for a second, each GPU that was idle
    /// all that time refreshes its own.
    pub fn probe_due(&self, now: Time, gpu_idle_since: Time) -> bool {
        let since = |stamp: &AtomicU64| now.since(Time::from_nanos(stamp.load(Ordering::Relaxed)));
        let refused = self.last_infeasible.load(Ordering::Relaxed) > 0
            && since(&self.last_infeasible) < PROBE_AFTER;
        refused
            && since(&self.last_admitted) >= PROBE_AFTER
            && now.since(gpu_idle_since) >= PROBE_AFTER
    }

    fn infeasible(
        &self,
        now: Time,
        tier: Tier,
        deadline: Duration,
        load: &Load,
        numbers: &Numbers,
    ) -> Option<Verdict> {
        let ahead = numbers.above + f64::from(load.waiting[tier.index()]);
        let deadline_seconds = deadline.as_secs_f64();
        // Parsing may have taken a little of it.
        let full_deadline =
            deadline_seconds >= 0.95 * self.rules.deadline.with(load.batch_time).as_secs_f64();
        let boards = ahead < numbers.boarding;
        // With so much patience a batch is held for more tickets than the traffic may bring, whoever is in it.
        let always_held = boards && self.rules.patience > 1.0;
        // Else only who is not the first may find the batch held, for as long as `hold_max`.
        let hold = if always_held || (boards && ahead > 0.0) {
            self.rules.hold_max.as_secs_f64()
        } else {
            0.0
        };
        let lone = ahead == 0.0 && full_deadline;
        if boards && (lone || numbers.batch_seconds + hold < deadline_seconds) {
            return None;
        }
        let least = numbers.batch_seconds + if always_held { hold } else { 0.0 };
        if !full_deadline && deadline_seconds <= least {
            stamp(&self.last_infeasible, now);
            let believed = Duration::try_from_secs_f64(least);
            let batch_time = believed.unwrap_or(load.batch_time);
            return Some(Verdict::DeadlineTooShort { batch_time });
        }
        let left = self.left(now, tier, load, numbers);
        let wait = Drain::new(left, self.rules.min_share(tier), numbers).seconds(ahead);
        let target = (BOUND_SHARE * self.rules.target_latency.as_secs_f64())
            .max(TARGET_BATCHES * numbers.batch_seconds);
        let bound = target.min(BOUND_SHARE * deadline_seconds);
        let slack = bound - numbers.batch_seconds;
        let starved = left < LEFT_MIN_SHARE * numbers.capacity && numbers.above > 0.0;
        if !starved && wait <= slack {
            return None;
        }
        stamp(&self.last_infeasible, now);
        // Where the tiers above leave next to nothing, all that waits ahead must be gone.
        let slack = if starved { slack.min(0.0) } else { slack };
        let seconds = until_room(wait, slack, numbers.batch_seconds);
        Some(Shed::new(Reason::Infeasible, seconds).into())
    }

    fn shed_by_zone(&self, now: Time, tier: Tier, load: &Load, numbers: &Numbers) -> Option<Shed> {
        let thresholds = self.thresholds(numbers);
        let depth = numbers.depth();
        let share = thresholds.share(tier, depth);
        if self.tiers[tier.index()].share.take(share) {
            return None;
        }
        let zone = thresholds.zone(depth);
        let reason = match zone {
            Zone::Green | Zone::Yellow => Reason::ZoneYellow,
            Zone::Red => Reason::ZoneRed,
            Zone::Limit => Reason::Limit,
        };
        let excess = numbers.waiting - thresholds.below(zone, tier) * numbers.capacity;
        // No promise shortens this: the excess is everybody's.
        let drain = Drain::new(self.left(now, tier, load, numbers), 0.0, numbers);
        Some(Shed::new(reason, drain.seconds(excess)))
    }

    fn drain(&self, now: Time, tier: Tier, load: &Load, numbers: &Numbers) -> Drain {
        let left = self.left(now, tier, load, numbers);
        Drain::new(left, self.rules.min_share(tier), numbers)
    }

    /// Capacity left to `tier`, in requests per second: what the tiers above do not take and what the tiers below
    /// are not promised, but at least what it is promised itself.
    fn left(&self, now: Time, tier: Tier, load: &Load, numbers: &Numbers) -> f64 {
        let taken: f64 = self.tiers[..tier.index()]
            .iter()
            .map(|above| above.arrivals.get(now, numbers.window))
            .sum();
        let promised: f64 = Tier::ALL[tier.index() + 1..]
            .iter()
            .filter(|below| load.waiting[below.index()] > 0)
            .map(|below| self.rules.min_share(*below))
            .sum();
        let left = numbers.capacity * (1.0 - promised) - taken;
        left.max(self.rules.min_share(tier) * numbers.capacity)
    }

    fn thresholds(&self, numbers: &Numbers) -> Thresholds {
        let Rules {
            yellow, red, limit, ..
        } = self.rules;
        Thresholds::stretched(yellow, red, limit, numbers.batch_seconds)
    }
}

/// Judges the waiting tickets of one tier again, at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Sweep {
    drain: Drain,
    boarding: f64,
    batch_seconds: f64,
}

impl Sweep {
    /// Whether a ticket with `remaining` time to its deadline can still be answered by then; the refusal if not.
    ///
    /// `position` counts the live tickets that are claimed before it, of its tier and of those above, and itself.
    /// Neither the target nor the zones matter any more: it is in.
    pub fn judge(&self, position: usize, remaining: Duration) -> Option<Shed> {
        let ahead = position.saturating_sub(1) as f64;
        if ahead < self.boarding {
            // It boards now; its own deadline decides.
            return None;
        }
        let wait = self.drain.seconds(ahead);
        let slack = remaining.as_secs_f64() - self.batch_seconds;
        let seconds = until_room(wait, slack, self.batch_seconds);
        (wait > slack).then(|| Shed::new(Reason::Infeasible, seconds))
    }
}

/// Seconds until a request that would wait for `wait` has no longer to wait than its `slack`. Without any it is served
/// by a GPU that is idle and by no other, and the next one is idle when a batch has ended.
fn until_room(wait: f64, slack: f64, batch_seconds: f64) -> f64 {
    if slack < 0.0 {
        wait + batch_seconds
    } else {
        wait - slack
    }
}

/// Writes `now` where the last stamp is older than [`STAMP_EVERY`], so that a busy server mostly reads it.
fn stamp(cell: &AtomicU64, now: Time) {
    let last = Time::from_nanos(cell.load(Ordering::Relaxed));
    if now.since(last) >= STAMP_EVERY {
        // Relaxed: a hint, which orders nothing.
        cell.store(now.as_nanos(), Ordering::Relaxed);
    }
}

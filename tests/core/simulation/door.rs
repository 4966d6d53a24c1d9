//! What admission must say, recomputed the long way from the number of those who wait, the capacity and all arrivals.
//!
//! The rate of arrivals is reckoned in coarse ticks and single precision by the server, so where it matters the verdict is
//! worked out for a little less and a little more: between the two either is right.

use std::time::Duration;

use funicular::admission::{DefaultDeadline, Load, Reason, Rules, Verdict};
use funicular::clock::Time;
use funicular::tier::Tier;

/// How far the server's rates may be from exact ones.
const RATE_TOLERANCE: f64 = 2e-3;

/// A probe batch is due after so long without an admission.
const PROBE_AFTER: Duration = Duration::from_secs(1);

/// The server remembers the last admission and the last refusal only so precisely.
const STAMP_EVERY: Duration = Duration::from_millis(20);

/// Arrivals of one tier, decayed over a window.
#[derive(Clone, Copy, Debug, Default)]
struct Decayed {
    rate: f64,
    at: Time,
}

impl Decayed {
    fn get(&self, now: Time, window: f64) -> f64 {
        self.rate * (-now.since(self.at).as_secs_f64() / window).exp()
    }

    fn record(&mut self, now: Time, window: f64) {
        let rate = self.get(now, window) + 1.0 / window;
        *self = Decayed { rate, at: now };
    }
}

/// See the module's text.
#[derive(Debug)]
pub struct Door {
    rules: Rules,
    slow: [Decayed; Tier::COUNT],
    fast: [Decayed; Tier::COUNT],
    credit: [f64; Tier::COUNT],
    last_admitted: Time,
    last_infeasible: Time,
}

/// What must be said.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Opinion {
    Admit,
    /// With a `Retry-After` of so many seconds.
    Shed(Reason, f64),
    /// Whatever waits: the caller asks for less than these seconds, which a batch takes.
    TooShort(f64),
    NoGpu,
}

/// What a batch takes, and how many fit into one.
struct Batches {
    seconds: f64,
    /// Tickets that board the idle GPUs.
    boarding: f64,
}

impl Batches {
    fn of(load: &Load) -> Batches {
        let seconds = load.batch_time.as_secs_f64();
        let batch_max = (load.capacity * seconds / load.healthy as f64).round();
        Batches {
            seconds,
            boarding: load.idle_gpus as f64 * batch_max.max(1.0),
        }
    }
}

fn waiting(load: &Load, tiers: &[Tier]) -> f64 {
    let counts = tiers.iter().map(|tier| load.waiting[tier.index()]);
    f64::from(counts.sum::<u32>())
}

fn above(tier: Tier) -> &'static [Tier] {
    &Tier::ALL[..tier.index()]
}

impl Door {
    pub fn new(rules: Rules) -> Door {
        Door {
            rules,
            slow: Default::default(),
            fast: Default::default(),
            // A hair under one: the first is always let in.
            credit: [1.0 - 1e-9; Tier::COUNT],
            last_admitted: Time::ZERO,
            last_infeasible: Time::ZERO,
        }
    }

    /// Checks `verdict` on a request of `tier` that has `deadline` left, and follows it.
    pub fn check(
        &mut self,
        now: Time,
        tier: Tier,
        deadline: Duration,
        load: &Load,
        verdict: Verdict,
    ) {
        self.check_promises(tier, deadline, load, verdict);
        let [low, high] = [1.0 - RATE_TOLERANCE, 1.0 + RATE_TOLERANCE]
            .map(|factor| self.opinion(now, tier, deadline, load, factor));
        let fits = match (verdict, low, high) {
            (Verdict::Admit, low, high) => [low, high].contains(&Opinion::Admit),
            (Verdict::NoHealthyGpu { .. }, low, _) => low == Opinion::NoGpu,
            (Verdict::DeadlineTooShort { batch_time }, low, _) => {
                let found = batch_time.as_secs_f64();
                matches!(low, Opinion::TooShort(least) if (found - least).abs() < 1e-6)
            }
            (
                Verdict::Shed {
                    reason,
                    retry_after,
                },
                low,
                high,
            ) => fits(reason, retry_after, [low, high]),
        };
        assert!(
            fits,
            "{tier} with {deadline:?}: {verdict:?} instead of {low:?} or {high:?} at {load:?}"
        );
        self.follow(now, tier, load, verdict);
    }

    /// What is promised whatever the rates are.
    fn check_promises(&self, tier: Tier, deadline: Duration, load: &Load, verdict: Verdict) {
        let (admitted, total) = (verdict == Verdict::Admit, waiting(load, &Tier::ALL));
        if load.healthy == 0 {
            return assert!(!admitted, "admitted without a GPU");
        }
        let own_default = deadline >= self.rules.deadline.with(load.batch_time);
        // With a deadline of the operator's there must be a GPU free as well.
        let alone = match self.rules.deadline {
            DefaultDeadline::AtLeast(_) => total == 0.0,
            DefaultDeadline::Fixed(_) => total == 0.0 && load.idle_gpus > 0,
        };
        assert!(
            admitted || !alone || !own_default,
            "a lone {tier} request was refused"
        );
        let (_, _, limit) = self.thresholds(load);
        assert!(
            !admitted || total < limit * load.capacity,
            "admitted beyond the limit"
        );
        if let Verdict::Shed { retry_after, .. } = verdict {
            assert!(retry_after <= Duration::from_secs(60));
        }
    }

    fn follow(&mut self, now: Time, tier: Tier, load: &Load, verdict: Verdict) {
        let index = tier.index();
        let share = self.share(tier, load);
        match verdict {
            Verdict::Admit => {
                let window = window(load);
                if tier != Tier::Free {
                    self.slow[index].record(now, window);
                    self.fast[index].record(now, window / 5.0);
                }
                self.last_admitted = now;
                if share < 1.0 {
                    self.credit[index] += share - 1.0;
                }
            }
            Verdict::DeadlineTooShort { .. }
            | Verdict::Shed {
                reason: Reason::Infeasible,
                ..
            } => self.last_infeasible = now,
            Verdict::Shed { .. } => self.credit[index] += share,
            Verdict::NoHealthyGpu { .. } => {}
        }
    }

    /// The verdict if the arrival rates were `factor` times what they are.
    fn opinion(
        &self,
        now: Time,
        tier: Tier,
        deadline: Duration,
        load: &Load,
        factor: f64,
    ) -> Opinion {
        if load.healthy == 0 {
            return Opinion::NoGpu;
        }
        let left = self.left(now, tier, load, factor);
        if let Some(refusal) = self.too_late(tier, deadline, load, left) {
            return refusal;
        }
        let share = self.share(tier, load);
        // Close to a whole one, rounding decides.
        let slack = (factor - 1.0) / RATE_TOLERANCE * -1e-4;
        if share >= 1.0 || share > 0.0 && self.credit[tier.index()] + share + slack >= 1.0 {
            return Opinion::Admit;
        }
        let (yellow, red, limit) = self.thresholds(load);
        let total = waiting(load, &Tier::ALL);
        let (reason, until) = match total / load.capacity {
            depth if depth < red => (Reason::ZoneYellow, yellow),
            depth if depth < limit => (Reason::ZoneRed, red),
            _ if tier == Tier::Free => (Reason::Limit, red),
            _ => (Reason::Limit, limit),
        };
        let excess = total - until * load.capacity;
        Opinion::Shed(reason, excess / left.max(0.05 * load.capacity))
    }

    /// The refusal, if it would be too late.
    fn too_late(&self, tier: Tier, deadline: Duration, load: &Load, left: f64) -> Option<Opinion> {
        let batches = Batches::of(load);
        let above = waiting(load, above(tier));
        let ahead = above + f64::from(load.waiting[tier.index()]);
        let deadline_seconds = deadline.as_secs_f64();
        let default = self.rules.deadline.with(load.batch_time).as_secs_f64();
        let asks_for_less = deadline_seconds < 0.95 * default;
        let (alone, boards) = (ahead == 0.0, ahead < batches.boarding);
        // A patient server holds even the first; any other may hold whoever is not.
        let patient = boards && self.rules.patience > 1.0;
        let hold = self.rules.hold_max.as_secs_f64();
        let until_launch = if patient || !alone { hold } else { 0.0 };
        let on_board = alone && !asks_for_less || batches.seconds + until_launch < deadline_seconds;
        if boards && on_board {
            return None;
        }
        let least = batches.seconds + if patient { hold } else { 0.0 };
        if asks_for_less && deadline_seconds <= least {
            return Some(Opinion::TooShort(least));
        }
        let target = (0.8 * self.rules.target_latency.as_secs_f64()).max(4.0 * batches.seconds);
        let slack = target.min(0.8 * deadline_seconds) - batches.seconds;
        let wait = self.wait(tier, ahead, load, left);
        let starved = left < 0.05 * load.capacity && above > 0.0;
        // Without slack a GPU must become idle first; where next to nothing is left, everybody ahead must go.
        let seconds = if slack < 0.0 {
            wait + batches.seconds
        } else if starved {
            wait
        } else {
            wait - slack
        };
        (starved || wait > slack).then_some(Opinion::Shed(Reason::Infeasible, seconds))
    }

    /// Seconds until `ahead` tickets of `tier` and above are gone at `left` requests per second.
    fn wait(&self, tier: Tier, ahead: f64, load: &Load, left: f64) -> f64 {
        let strict = ahead / left.max(0.05 * load.capacity);
        let promised = self.rules.min_share[tier.index()] * load.capacity;
        if promised > 0.0 {
            strict.min((ahead - waiting(load, above(tier))).max(0.0) / promised)
        } else {
            strict
        }
    }

    /// Requests per second that are left to `tier`.
    fn left(&self, now: Time, tier: Tier, load: &Load, factor: f64) -> f64 {
        let window = window(load);
        let rate = |tier: &Tier| {
            let slow = self.slow[tier.index()].get(now, window);
            slow.max(self.fast[tier.index()].get(now, window / 5.0))
        };
        let taken: f64 = above(tier).iter().map(rate).sum();
        let below = Tier::ALL[tier.index() + 1..].iter();
        let promised: f64 = below
            .filter(|below| load.waiting[below.index()] > 0)
            .map(|below| self.rules.min_share[below.index()])
            .sum();
        let own = self.rules.min_share[tier.index()] * load.capacity;
        (load.capacity * (1.0 - promised) - factor * taken).max(own)
    }

    fn thresholds(&self, load: &Load) -> (f64, f64, f64) {
        let stretch = (2.0 * load.batch_time.as_secs_f64() / self.rules.yellow).max(1.0);
        let Rules {
            yellow, red, limit, ..
        } = self.rules;
        (yellow * stretch, red * stretch, limit * stretch)
    }

    fn share(&self, tier: Tier, load: &Load) -> f64 {
        let (yellow, red, limit) = self.thresholds(load);
        let depth = waiting(load, &Tier::ALL) / load.capacity;
        if depth < yellow {
            1.0
        } else if depth < red {
            match tier {
                Tier::Free => (red - depth) / (red - yellow),
                Tier::Paid | Tier::Enterprise => 1.0,
            }
        } else if depth < limit {
            match tier {
                Tier::Free => 0.0,
                Tier::Paid => (limit - depth) / (limit - red),
                Tier::Enterprise => 1.0,
            }
        } else {
            0.0
        }
    }

    /// Checks that a waiting ticket, with `ahead` others claimed before it and `remaining` time, was `shed` or kept rightly.
    pub fn check_again(
        &self,
        now: Time,
        tier: Tier,
        (ahead, remaining): (usize, Duration),
        load: &Load,
        shed: bool,
    ) {
        let batches = Batches::of(load);
        let ahead = ahead as f64;
        let [low, high] = [1.0 - RATE_TOLERANCE, 1.0 + RATE_TOLERANCE]
            .map(|factor| self.wait(tier, ahead, load, self.left(now, tier, load, factor)));
        let slack = remaining.as_secs_f64() - batches.seconds;
        let boards = ahead < batches.boarding;
        let right = if shed {
            !boards && high > slack - 1e-6
        } else {
            boards || low <= slack + 1e-6
        };
        assert!(
            right,
            "{tier} behind {ahead} with {remaining:?}: shed {shed}, waits {low} to {high} s at {load:?}"
        );
    }

    /// Checks whether a probe batch is `due` on a GPU that has been idle since `idle_since`.
    pub fn check_probe(&self, now: Time, idle_since: Time, due: bool) {
        let admitted = now.since(self.last_admitted);
        let refused = now.since(self.last_infeasible);
        let idle = now.since(idle_since) >= PROBE_AFTER;
        if due {
            assert!(
                idle && admitted + STAMP_EVERY >= PROBE_AFTER && refused < PROBE_AFTER,
                "a probe that nobody needs"
            );
        } else {
            let needed = admitted >= PROBE_AFTER && refused + STAMP_EVERY < PROBE_AFTER;
            assert!(!(idle && needed), "a probe is missing");
        }
    }
}

/// Whether `retry_after` for `reason` lies between what the two `opinions` say; where they differ, one for it is enough.
fn fits(reason: Reason, retry_after: Duration, opinions: [Opinion; 2]) -> bool {
    let seconds = opinions.map(|opinion| match opinion {
        Opinion::Shed(other, seconds) if other == reason => Some(seconds.clamp(0.0, 60.0)),
        _ => None,
    });
    let [Some(one), Some(other)] = seconds else {
        return seconds.iter().any(Option::is_some);
    };
    let found = retry_after.as_secs_f64();
    found >= one.min(other) * 0.99 - 1e-3 && found <= one.max(other) * 1.01 + 1e-3
}

/// The slow window of the arrival rates, in seconds.
fn window(load: &Load) -> f64 {
    (500.0 / load.capacity).clamp(0.5, 10.0)
}

//! What the launch rule must say, recomputed from the shadow.

use std::time::Duration;

use funicular::batch::policy::Launch;
use funicular::clock::Time;
use funicular::queue::Lane;
use funicular::tier::Tier;

use super::shadow::Shadow;

/// What is known of the GPUs at this moment.
pub struct Pool {
    pub healthy: usize,
    pub idle: usize,
    /// When the busy ones are expected back.
    pub expected: Vec<Time>,
    /// The batch time of the GPU that would launch.
    pub batch_time: Duration,
}

/// What must be decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Launch(Lane, Launch),
    Hold,
    /// So close that rounding decides.
    Either(Lane),
}

/// The lane of the next batch of `gpu`, if anybody waits: retried tickets first, but not twice in a row while fresh ones
/// wait.
pub fn next_lane(shadow: &Shadow, gpu: usize) -> Option<Lane> {
    let waits = |lane| shadow.waiting_in(lane) > 0;
    match (waits(Lane::Fresh), waits(Lane::Retry)) {
        (false, false) => None,
        (true, false) => Some(Lane::Fresh),
        (false, true) => Some(Lane::Retry),
        (true, true) if shadow.retried_last[gpu] => Some(Lane::Fresh),
        (true, true) => Some(Lane::Retry),
    }
}

/// Applies the rule for `gpu`, with `arrival_rate` as the core estimates it.
pub fn verdict(shadow: &Shadow, gpu: usize, now: Time, pool: &Pool, arrival_rate: f64) -> Verdict {
    let Some(lane) = next_lane(shadow, gpu) else {
        return Verdict::Hold;
    };
    let count = shadow.waiting_in(lane);
    let heads = Tier::ALL
        .into_iter()
        .filter_map(|tier| shadow.waiting(lane, tier).first());
    let arrived = heads.map(|&id| shadow.records[id].arrived);
    let oldest = arrived.min().expect("somebody waits in this lane");
    if count >= shadow.batch_max(lane) {
        return Verdict::Launch(lane, Launch::Full);
    }
    if now.since(oldest) >= shadow.policy.hold_max {
        return Verdict::Launch(lane, Launch::Hold);
    }
    if shadow.waiting_in(Lane::Retry) > 0 {
        return Verdict::Launch(lane, Launch::Paced);
    }
    if shadow.policy.patience.is_infinite() {
        return Verdict::Hold;
    }
    if pool.healthy == 1 {
        return Verdict::Launch(lane, Launch::Paced);
    }
    let enough = shadow.policy.patience * arrival_rate * gap(pool, now);
    if (count as f64 - enough).abs() < 1e-3 {
        Verdict::Either(lane)
    } else if count as f64 >= enough {
        Verdict::Launch(lane, Launch::Paced)
    } else {
        Verdict::Hold
    }
}

/// The spacing of launches that can be kept up after one now, in seconds.
fn gap(pool: &Pool, now: Time) -> f64 {
    let mut back: Vec<f64> = pool
        .expected
        .iter()
        .map(|end| end.since(now).as_secs_f64())
        .collect();
    back.sort_by(f64::total_cmp);
    back.push(pool.batch_time.as_secs_f64());
    let spacings = back
        .iter()
        .enumerate()
        .map(|(k, back)| back / (pool.idle + k) as f64);
    spacings.fold(0.0, f64::max)
}

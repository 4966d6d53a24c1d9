//! What a seed fixes for its whole run.

use std::time::Duration;

use funicular::batch::policy::Policy;
use funicular::tier::Tier;

use super::action;
use crate::support::random::Random;
use crate::support::rig::Looks;

/// See the module's text.
#[derive(Clone, Debug)]
pub struct Settings {
    pub policy: Policy,
    pub gpus: usize,
    /// Room for tickets in each tier.
    pub queue_max: usize,
    /// What a batch takes by and large.
    pub batch_time: Duration,
    /// Share by which a batch time may differ from that.
    pub jitter: f64,
    /// At most so many tickets arrive in one action.
    pub burst: usize,
    /// Mean time that passes in one action.
    pub pause: Duration,
    /// Share of the callers that are gone before their ticket is claimed.
    pub hung_up: f64,
    pub looks: Looks,
    /// Part of each batch that is promised to a tier.
    pub min_share: [f64; Tier::COUNT],
}

impl Settings {
    /// Anything from a quiet night on sixteen GPUs to a flood on one.
    pub fn random(random: &mut Random) -> Settings {
        let ms = |ms: f64| Duration::from_secs_f64(ms / 1e3);
        let batch_max = if random.chance(0.1) {
            100
        } else {
            random.count(1, 12)
        };
        let any_patience = random.between(0.3, 3.0);
        let any_hold = ms(random.between(0.5, 50.0));
        let policy = Policy {
            batch_max,
            hold_max: random.pick(&[
                any_hold,
                any_hold,
                Duration::from_millis(40),
                Duration::ZERO,
            ]),
            patience: random.pick(&[0.0, 1.0, 1.0, f64::INFINITY, any_patience]),
        };
        let gpus = random.count(1, 16);
        let batch_time = ms(random.between(2.0, 200.0));
        let burst = random.pick(&[1, 1, 3, 2 * batch_max]);
        let load = random.between(0.05, 1.8);
        let capacity = (gpus * batch_max) as f64 / batch_time.as_secs_f64();
        let arrivals_per_pause = (1 + burst) as f64 / 2.0 * action::ARRIVALS_PER_PAUSE;
        Settings {
            policy,
            gpus,
            queue_max: random.count(batch_max, 8 * batch_max * gpus).min(150),
            batch_time,
            jitter: random.pick(&[0.0, 0.1, 0.5]),
            burst,
            pause: Duration::from_secs_f64(arrivals_per_pause / (load * capacity)),
            hung_up: random.pick(&[0.0, 0.0, 0.2]),
            looks: random.pick(&[Looks::Always, Looks::WhenWoken]),
            min_share: any_min_share(random),
        }
    }
}

/// Mostly nothing; else parts that do not add up to more than the whole.
fn any_min_share(random: &mut Random) -> [f64; Tier::COUNT] {
    if random.chance(0.7) {
        return [0.0; Tier::COUNT];
    }
    let mut left = 1.0;
    [Tier::Free, Tier::Paid, Tier::Enterprise].map(|_| {
        let part = random.between(0.0, 0.6 * left);
        left -= part;
        part
    })
}

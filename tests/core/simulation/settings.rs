//! What a seed fixes for its whole run.

use std::time::Duration;

use funicular::admission::{DefaultDeadline, Rules};
use funicular::batch::policy::Policy;
use funicular::gpu::GpuSettings;
use funicular::ticket::Input;
use funicular::tier::Tier;

use super::action;
use super::device::{CANARY, Function, OUTPUT_MAX};
use crate::support::random::Random;
use crate::support::rig::Looks;

/// See the module's text.
#[derive(Clone, Debug)]
pub struct Settings {
    pub policy: Policy,
    pub rules: Rules,
    /// Whether admission is asked. Where it isn't, everybody with room in a queue gets in, as all those do who were judged
    /// before any of them was counted.
    pub judges: bool,
    pub gpus: usize,
    pub gpu: GpuSettings,
    /// Room for tickets in each tier.
    pub queue_max: usize,
    /// What a batch takes by and large.
    pub batch_time: Duration,
    /// Share by which a batch time may differ from that.
    pub jitter: f64,
    pub function: Function,
    /// Share of the inputs that the batch function can't stand.
    pub bad: f64,
    /// At most so many tickets arrive in one action.
    pub burst: usize,
    /// Mean time that passes in one action.
    pub pause: Duration,
    /// Share of the callers that are gone before their ticket is claimed.
    pub hung_up: f64,
    pub looks: Looks,
}

impl Settings {
    /// Anything from a quiet night on sixteen GPUs to a flood on one.
    pub fn random(random: &mut Random) -> Settings {
        let batch_max = if random.chance(0.1) {
            100
        } else {
            random.count(1, 12)
        };
        let policy = any_policy(random, batch_max);
        let gpus = random.count(1, 16);
        let batch_time = ms(random.between(2.0, 200.0));
        let burst = random.pick(&[1, 1, 3, 2 * batch_max]);
        let load = random.between(0.05, 1.8);
        let capacity = (gpus * batch_max) as f64 / batch_time.as_secs_f64();
        let arrivals_per_pause = (1 + burst) as f64 / 2.0 * action::ARRIVALS_PER_PAUSE;
        let batch_timeout = batch_time.mul_f64(random.between(2.0, 8.0));
        Settings {
            policy,
            rules: any_rules(random, batch_time, &policy),
            judges: random.chance(0.6),
            gpus,
            gpu: GpuSettings {
                batch_timeout: random.chance(0.7).then_some(batch_timeout),
                output_max: OUTPUT_MAX,
                canary: Input::new(CANARY),
                reset_max: Duration::from_secs(300),
                search: true,
            },
            queue_max: random.count(batch_max, 8 * batch_max * gpus).min(150),
            batch_time,
            jitter: random.pick(&[0.0, 0.1, 0.5]),
            function: random.pick(&[Function::Raises, Function::Names, Function::Swallows]),
            bad: random.pick(&[0.0, 0.003, 0.03, 0.3]),
            burst,
            pause: Duration::from_secs_f64(arrivals_per_pause / (load * capacity)),
            hung_up: random.pick(&[0.0, 0.0, 0.2]),
            looks: random.pick(&[Looks::Always, Looks::WhenWoken]),
        }
    }
}

fn ms(ms: f64) -> Duration {
    Duration::from_secs_f64(ms / 1e3)
}

fn any_policy(random: &mut Random, batch_max: usize) -> Policy {
    let any_patience = random.between(0.3, 3.0);
    let any_hold = ms(random.between(0.5, 50.0));
    Policy {
        batch_max,
        hold_max: random.pick(&[
            any_hold,
            any_hold,
            Duration::from_millis(40),
            Duration::ZERO,
        ]),
        patience: random.pick(&[0.0, 1.0, 1.0, f64::INFINITY, any_patience]),
    }
}

/// The zones begin anywhere; a backlog of two batch times is green whatever they say.
fn any_rules(random: &mut Random, batch_time: Duration, policy: &Policy) -> Rules {
    let yellow = random.between(0.01, 0.3);
    let red = yellow * random.between(1.2, 3.0);
    let rules = Rules {
        target_latency: batch_time.mul_f64(random.between(2.0, 30.0)),
        deadline: if random.chance(0.5) {
            DefaultDeadline::AtLeast(batch_time.mul_f64(random.between(2.0, 25.0)))
        } else {
            // An operator may ask for what no batch can do.
            DefaultDeadline::Fixed(batch_time.mul_f64(random.between(0.5, 10.0)))
        },
        hold_max: policy.hold_max,
        patience: policy.patience,
        yellow,
        red,
        limit: red * random.between(1.2, 3.0),
        min_share: any_min_share(random),
    };
    rules.validate().expect("the settings make sense together");
    rules
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

//! What may happen in the simulation, and how often.

use crate::support::random::Random;

/// One step of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Requests arrive.
    Arrive,
    /// Time passes: batches end, deadlines pass, the holder of the token looks again.
    Pause,
    /// A caller hangs up.
    Leave,
    /// Half of all callers hang up.
    LeaveInDroves,
    /// A GPU is lost, with what it runs and what is staged on it.
    Lose,
    /// A GPU comes back into service.
    Recover,
    /// A busy GPU binds its next batch ahead.
    Stage,
    /// A busy GPU overruns and gives back what it has staged.
    Unstage,
}

const WEIGHTS: [(Action, usize); 8] = [
    (Action::Arrive, 400),
    (Action::Pause, 300),
    (Action::Leave, 40),
    (Action::LeaveInDroves, 3),
    (Action::Lose, 20),
    (Action::Recover, 30),
    (Action::Stage, 120),
    (Action::Unstage, 25),
];

/// How many arrivals there are to a pause.
pub const ARRIVALS_PER_PAUSE: f64 = WEIGHTS[0].1 as f64 / WEIGHTS[1].1 as f64;

/// One of the actions, by weight.
pub fn pick(random: &mut Random) -> Action {
    let all: usize = WEIGHTS.iter().map(|(_, weight)| weight).sum();
    let mut left = random.below(all);
    for (action, weight) in WEIGHTS {
        if left < weight {
            return action;
        }
        left -= weight;
    }
    unreachable!("the weights add up to their sum")
}

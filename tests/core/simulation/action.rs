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
    /// A device is lost, with what it runs and what is staged on it, or unnoticed while it is idle.
    Lose,
    /// A device's next run never ends, or its executor does not return from it in time.
    Hang,
    /// A device's next run is many times as slow.
    Slow,
    /// A device is busy with somebody else's batch and will turn the next one away.
    Occupy,
    /// A device raises: once, or on everything until it is reset.
    Raise,
    /// A device that no reset could bring back can be reset again.
    Recover,
    /// Nothing arrives for so long that GPUs come back from their longest back-off.
    Lull,
    /// For a while only callers come who can't wait for a batch.
    Impatience,
    /// The whole machine stands still for a while.
    Stall,
    /// The idle GPU threads ask their executors whether they are there, and admission whether a probe is due.
    Check,
    /// A busy GPU binds its next batch ahead.
    Stage,
    /// A busy GPU overruns and gives back what it has staged.
    Unstage,
    /// A GPU is told to leave.
    Remove,
    /// A GPU comes to a seat that nobody has any more.
    Join,
    /// The server takes leave, ends, and another one begins.
    Drain,
}

const WEIGHTS: [(Action, usize); 19] = [
    (Action::Arrive, 4000),
    (Action::Pause, 3000),
    (Action::Leave, 400),
    (Action::LeaveInDroves, 30),
    (Action::Lose, 100),
    (Action::Hang, 50),
    (Action::Slow, 50),
    (Action::Occupy, 60),
    (Action::Raise, 60),
    (Action::Recover, 200),
    (Action::Lull, 60),
    (Action::Impatience, 15),
    (Action::Stall, 30),
    (Action::Check, 200),
    (Action::Stage, 1200),
    (Action::Unstage, 250),
    (Action::Remove, 60),
    (Action::Join, 90),
    (Action::Drain, 5),
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

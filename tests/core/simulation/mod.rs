//! A deterministic simulation of the core: weighted random actions on a virtual clock, fake GPUs, and naive lists that
//! say after each step what must be true.
//!
//! * [`settings`]: what a seed fixes for its whole run (GPUs, launch rule, batch times, load).
//! * [`action`]: what may happen, and how often.
//! * [`world`]: the clock, the callers and the timers; it performs actions.
//! * [`gpus`]: the world's GPUs, which do what GPU threads do, and [`holder`], the one of them that launches next.
//! * [`shadow`]: where every ticket is, in plain lists; [`rule`]: what the launch rule must say, recomputed from those.
//! * [`check`]: the comparison of the core with its shadow, and the invariants.
//! * [`tally`]: what happened how often, so that a simulation in which nothing happens does not pass.
//!
//! A failure prints the seed and the step; `FUNICULAR_SEED=n` replays that seed alone, `FUNICULAR_SEEDS=n` runs n of them.

mod action;
mod check;
mod gpus;
mod holder;
mod rule;
mod settings;
mod shadow;
mod tally;
mod world;

use std::ops::Range;

use action::Action;
use tally::Tally;
use world::World;

const SEEDS: u32 = 256;
const STEPS: usize = 3000;

/// Says which seed and step it was, should the run panic.
struct Whereabouts {
    seed: u32,
    step: usize,
    action: Option<Action>,
}

impl Drop for Whereabouts {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Whereabouts { seed, step, action } = self;
            eprintln!("seed {seed}, step {step}, {action:?}: replay with FUNICULAR_SEED={seed}");
        }
    }
}

fn run(seed: u32) -> Tally {
    let mut here = Whereabouts {
        seed,
        step: 0,
        action: None,
    };
    let mut world = World::new(seed);
    for step in 0..STEPS {
        let action = world.pick_action();
        here.step = step;
        here.action = Some(action);
        world.perform(action);
    }
    here.action = None;
    world.wind_down()
}

/// Runs those of the seeds that leave `rest` when divided by 2: the tests share them, to run side by side.
fn run_all(rest: u32) {
    let tally = seeds()
        .filter(|seed| seed % 2 == rest)
        .map(run)
        .fold(Tally::default(), Tally::add);
    if seeds().len() >= SEEDS as usize {
        tally.check();
    }
}

fn number(variable: &str) -> Option<u32> {
    let text = std::env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} takes a number, not {text:?}")),
    )
}

fn seeds() -> Range<u32> {
    match number("FUNICULAR_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("FUNICULAR_SEEDS").unwrap_or(SEEDS),
    }
}

#[test]
fn the_core_keeps_its_invariants_even_seeds() {
    run_all(0);
}

#[test]
fn the_core_keeps_its_invariants_odd_seeds() {
    run_all(1);
}

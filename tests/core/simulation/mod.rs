//! A deterministic simulation of the whole core: weighted random actions on a virtual clock, fake devices, and naive lists
//! that say after each step what must be true.
//!
//! The world:
//! * [`settings`]: what a seed fixes for its whole run (GPUs, launch rule, admission, batch times, load).
//! * [`action`]: what may happen, and how often.
//! * [`world`]: the clock, the callers and the timers; it performs actions.
//! * [`device`]: fake devices and the batch function; what may be wrong with them.
//! * [`gpus`]: their threads, which do what GPU threads do: [`holder`] (who launches next), [`riding`], [`boarding`],
//!   [`searching`] for bad inputs, [`failing`] and coming back.
//! * [`watching`]: the watchdog, which judges those who wait again and fails GPUs whose executors block.
//! * [`drain`]: the end of the server.
//!
//! What is checked:
//! * [`shadow`]: where every ticket is, in plain lists.
//! * [`rule`]: what the launch rule must say, and [`door`]: what admission must say, recomputed the long way.
//! * [`check`]: the comparison of the core with its shadow, and the invariants, after each step.
//! * [`tally`]: what happened how often, so that a simulation in which nothing happens does not pass.
//!
//! Real are all parts that decide: admission, scheduler, hand-over, doorbell, tickets and slots, health, cells, searches and
//! their budget, the watchdog's patience, and what becomes of the tickets of a batch. The world only calls them in the order
//! in which the threads do, and takes the place of clock, devices and sockets.
//!
//! A failure prints the seed and the step; `FUNICULAR_SEED=n` replays that seed alone, `FUNICULAR_SEEDS=n` runs n of them.

mod action;
mod boarding;
mod check;
mod device;
mod door;
mod drain;
mod failing;
mod gpus;
mod holder;
mod leaving;
mod riding;
mod rule;
mod searching;
mod settings;
mod shadow;
mod tally;
mod watching;
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

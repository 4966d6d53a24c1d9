//! Tests of the pure core: the waiting room, the launch rule and the pool, driven on a virtual clock.
//!
//! * [`reference`] holds the launch rule against the numbers of a reference model, arrival by arrival.
//! * [`simulation`] drives the core with seeded random actions and checks it against naive lists after each step.
//! * [`support`] is what both are built on.

mod reference;
mod simulation;
mod support;

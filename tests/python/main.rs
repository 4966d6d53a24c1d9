//! The Python executor with a real Python: servers as child processes, functions as a user would write them.
//!
//! Without a `python3` on the PATH every test here says so and is skipped.

mod contract;
mod examples;
mod failures;
mod mistakes;
mod model;
mod oddities;
mod signals;
#[path = "../cuda/steady.rs"]
mod steady;
// What other test binaries use of it is dead code in this one.
#[allow(
    dead_code,
    unused_imports,
    reason = "shared with the tests of the server, which use all of it"
)]
#[path = "../server/support/mod.rs"]
mod support;

//! What the tests of the core share.

pub mod random;
pub mod rig;

//! The primitives the completion slot is built from, in one place so that its model test can swap them for loom's.

pub use parking_lot::Mutex;
pub use std::sync::atomic::{AtomicU8, Ordering};

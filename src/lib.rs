//! Funicular.

pub mod batch;
pub mod admin;
pub mod admission;
pub mod clock;
pub mod config;
pub mod gpu;
pub mod metrics;
pub mod http;
pub mod peer;
pub mod port;
pub mod queue;
pub mod screen;
pub mod slot;
pub mod sync;
pub mod ticket;
pub mod tier;
pub mod wake;

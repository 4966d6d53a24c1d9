//! An open-loop load generator with HDR latency reports.

pub mod arrivals;
pub mod clock;
pub mod http;
pub mod result;
pub mod traffic;

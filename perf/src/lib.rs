//! An open-loop load generator with HDR latency reports.

pub mod result;

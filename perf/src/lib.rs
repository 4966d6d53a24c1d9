//! An open-loop load generator with HDR latency reports.
//!
//! A run, in the order of the modules that it passes through:
//!
//! ```text
//!  options ──► arrivals, traffic ──► engine (threads: http, latencies, record) ──► session ──► result ──► report, summary, files
//!  (checked)   (fixed before the     (keeps the schedule, checks every answer)     ▲ monitor, prometheus: what the server says
//!               start)                                                             ▲ fail_if: what must not be
//! ```
//!
//! `scenario` runs the questions of `perf/scenarios/`, each against a `server` that it starts itself.

pub mod options;
pub mod target;
pub mod units;

pub mod arrivals;
pub mod traffic;

pub mod engine;
pub mod http;
pub mod latencies;
pub mod record;

pub mod assemble;
pub mod fail_if;
pub mod machine;
pub mod monitor;
pub mod progress;
pub mod prometheus;
pub mod session;

pub mod scenario;
pub mod server;

pub mod files;
pub mod report;
pub mod result;
pub mod summary;

pub mod clock;

//! Batches: who shares one, and when it leaves.
//!
//! [`policy`] is the launch rule, [`rate`] the arrival rate that it works with, [`pool`] what is known of the GPUs;
//! [`schedule`] puts them together with the waiting room. All of these are pure. [`collector`] is the shell that GPU
//! threads call: the lock, the token and the doorbell. [`budget`] bounds the time that searches for bad inputs may take.

pub mod budget;
pub mod collector;
pub mod policy;
pub mod pool;
pub mod promise;
pub mod rate;
pub mod schedule;

use crate::batch::policy::Launch;
use crate::queue::Lane;
use crate::ticket::Ticket;

/// Tickets bound to one GPU: 1 to `batch_max` of one lane. Ticket i is input i is output i.
#[derive(Debug)]
pub struct Batch {
    /// The lane they were claimed from.
    pub lane: Lane,
    /// Why it leaves now.
    pub reason: Launch,
    /// The tickets, each in state `Bound` when claimed.
    pub tickets: Vec<Box<Ticket>>,
}

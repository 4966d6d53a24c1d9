//! Funicular: a dynamic-batching server in front of GPU inference.
//!
//! Callers send one string each and wait on their connection; Funicular gathers the strings into batches, gives each
//! batch to a GPU whose batch function takes about the same time whatever the batch holds, and hands every caller its
//! own output.
//!
//! ```text
//!  clients ── HTTP/1.1 ──► http-0 … http-k    acceptor cores: pinned, one coroutine per connection
//!                            read → parse → route → admit ──429──► answer
//!                                               │ try_send, ring if somebody waits for it
//!                          ┌────────────────────┼────────────────────┐
//!                      enterprise             paid                  free      bounded channels: the hand-over
//!                          └────────────────────┼────────────────────┘
//!                                               │ drained into the waiting room: deques, retry lanes
//!                                       the collector (one token, one scheduler)
//!                                               │ claimed by the idle GPU thread that holds the token
//!        gpu-0            gpu-1        …      gpu-n                           one OS thread per GPU, two halves each
//!        stage│launch│wait│demux                                     watchdog: stuck GPUs, hopeless tickets
//!                                               │ slot i ← output i; one kick per acceptor core and batch
//!                            http-*: the waiting coroutine wakes, writes its answer, reads the next request
//!
//!  operators ── HTTP ──► admin plane: pages that the thread `admin` renders, at most a few times a second
//! ```
//!
//! The modules, in the order in which a request meets them:
//!
//! * [`http`] reads, parses and routes it; [`tier`] and [`keys`] say who asks; [`gate`] and [`admission`] whether it is
//!   let in.
//! * [`ticket`], with its [`slot`] and its [`peer`], is what it is from then on; [`queue`] is where it waits.
//! * [`batch`] decides when it leaves and with whom; [`gpu`] runs the batch and gives each ticket its output.
//! * [`wake`] brings the news back to the acceptor core.
//!
//! Around them: [`config`] and [`screen`], [`server`] which starts and ends everything, [`roster`] which
//! changes the GPUs meanwhile where they are on other machines, [`metrics`] and [`admin`],
//! [`port`], [`files`], [`clock`], and [`sync`].
//!
//! What is guaranteed, and where it is enforced:
//!
//! 1. Every admitted ticket is resolved exactly once ([`slot`]); dropping one unresolved answers 500 and is counted
//!    ([`ticket`]).
//! 2. Output i goes to ticket i and to nobody else; a late result goes nowhere ([`gpu`]).
//! 3. A batch holds 1 to `batch_max` live tickets, none past its deadline ([`batch::schedule`]).
//! 4. A GPU runs one batch at a time, a ticket is in at most one and is launched at most twice, searches aside
//!    ([`gpu`]).
//! 5. FIFO inside a tier and lane; no lower tier before a waiting higher one, promised shares aside
//!    ([`batch::schedule`]).
//! 6. `live waiting = admitted + returned − claimed − abandoned`, always; nothing is unbounded ([`queue`]).
//! 7. Nobody waits longer than `hold_max` while a healthy GPU is idle, nor past its deadline ever ([`batch::policy`],
//!    [`http`]).

pub mod admin;
pub mod admission;
pub mod batch;
pub mod clock;
pub mod config;
pub mod files;
pub mod gate;
pub mod gpu;
pub mod http;
pub mod keys;
pub mod metrics;
pub mod peer;
pub mod port;
pub mod queue;
pub mod roster;
pub mod screen;
pub mod server;
pub mod sink;
pub mod slot;
pub mod sync;
pub mod ticket;
pub mod tier;
pub mod wake;

//! The CUDA executor on machines without a GPU: the real binary with a stand-in for NVIDIA's driver library.
//!
//! `fakecuda/` is that library: streams that run by themselves, device memory that the host can't touch, kernels compiled for
//! the host, faults on command, and a journal of every operation in which these tests read order, overlap, and what no
//! correct program does. [`standin`] builds it with g++; without a g++ every test here says so and is skipped. [`machine`] is a
//! machine that has it, [`journal`] reads what happened there.

mod answers;
mod chaos;
mod failures;
mod journal;
mod machine;
mod order;
mod script;
mod standin;
mod start;
mod steady;
mod worker;

#[allow(
    dead_code,
    unused_imports,
    reason = "shared with the tests of the server, which use all of it"
)]
#[path = "../server/support/mod.rs"]
mod support;

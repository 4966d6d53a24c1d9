//! The server from outside: real processes, real sockets.
//!
//! Every test starts the binary on free ports and talks to it as clients, operators and proxies do. Tests run side by
//! side and share two cores with the servers that they start; the heavy ones take turns (see `support`).

mod address_space;
mod admin_port;
mod batch_times;
mod complaints;
mod contract;
mod drain;
mod failure;
mod load;
mod operators;
mod overload;
mod property;
mod readme;
mod real_clients;
mod reload;
mod remote;
mod settings;
mod stress;
mod support;

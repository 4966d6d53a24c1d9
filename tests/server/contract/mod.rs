//! The HTTP contract of the data plane, as any client can hold it against the server.

mod answers;
mod deadlines;
mod framing;
mod keys;
mod limits;
mod memory;
mod refusals;
mod timeouts;

//! The bundled CUDA kernels, on a CPU: the same `.cu` files, compiled by g++ through the headers in `kernels/host/`.
//!
//! * [`answers`]: byte for byte what a plain reference makes of the same batch, and not a byte read or written elsewhere.
//! * [`races`]: ThreadSanitizer finds none, with a thread of the machine for each CUDA thread; and it would find one.
//! * [`module`]: the compiled kernels that the server carries are what their documentation says.
//! * [`batch`] and [`device`] are what they are built on: a batch and its reference, and the program that runs it.
//!
//! Where g++ or a sanitizer is missing, the tests say so and skip. That source and compiled kernels agree is checked by
//! `kernels/check.sh`, which needs clang.

mod answers;
mod batch;
mod device;
mod module;
mod races;

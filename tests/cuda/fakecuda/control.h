// The socket on which a test says what is to go wrong in a program that runs.
#pragma once

namespace fake {

// Serves commands (faults.h) on the Unix socket FAKE_CUDA_CONTROL, if there is one, on a thread of its own. Called once,
// when the driver is initialised.
void serve_commands();

}  // namespace fake

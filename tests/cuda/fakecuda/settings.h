// What the environment says about the machine that is made up, read once when the first call comes.
//
//   FAKE_CUDA_DEVICES       how many devices there are (1)
//   FAKE_CUDA_VERSION       the version of the driver as cuDriverGetVersion gives it (12040: CUDA 12.4)
//   FAKE_CUDA_MEMORY_MIB    memory of each device (4096)
//   FAKE_CUDA_CAPABILITY    its compute capability times ten (90)
//   FAKE_CUDA_LIGHT         if set: no poison, no fingerprints, and kernels in plain C++ without threads in a block, for
//                           measuring the server and not the stand-in
//   FAKE_CUDA_JOURNAL       the file that gets the journal (journal.h)
//   FAKE_CUDA_CONTROL       the Unix socket on which commands are taken (faults.h)
//   FAKE_CUDA_FAULTS        commands to begin with, separated by `;`
#pragma once
#include <cstddef>

namespace fake {

struct Settings {
    int devices;
    int version;
    size_t memory_bytes;
    int capability;
    bool light;
};

const Settings& settings();

}  // namespace fake

// What a module holds: PTX text, a cubin (ELF) or a fatbin.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "abi.h"

namespace fake {

struct Image {
    CUresult code = CUDA_SUCCESS;
    // What the JIT compiler says about it.
    std::string log;
    // Entries and the sizes of their parameters in bytes. Of binaries only the names are read: their entries are taken to
    // have one parameter, a batch.
    std::map<std::string, std::vector<size_t>> entries;
};

// Reads the image that starts there. As in the real interface nothing says how long it is: PTX ends with a NUL, and binaries
// say so themselves.
Image read_image(const void* image);

}  // namespace fake

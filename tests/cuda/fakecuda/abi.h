// The part of the CUDA driver API's binary interface that the stand-in offers: result codes, constants and handle types,
// as NVIDIA documents them. Every name and number here is part of that interface; nothing else of CUDA is needed to build.
#pragma once
#include <cstddef>
#include <cstdint>

#define FAKE_API extern "C" __attribute__((visibility("default"))) CUresult

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUhandle = void*;  // context, stream, event, module, function: all opaque
using CUhostFn = void (*)(void*);

enum : CUresult {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
    CUDA_ERROR_ECC_UNCORRECTABLE = 214,
    CUDA_ERROR_INVALID_PTX = 218,
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701,
    CUDA_ERROR_LAUNCH_TIMEOUT = 702,
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
    CUDA_ERROR_LAUNCH_FAILED = 719,
    CUDA_ERROR_NOT_PERMITTED = 800,
    CUDA_ERROR_SYSTEM_NOT_READY = 802,
    CUDA_ERROR_UNKNOWN = 999,
};

// Device attributes.
enum : int {
    DEVICE_MAX_THREADS_PER_BLOCK = 1,
    DEVICE_MAX_BLOCK_DIM_X = 2,
    DEVICE_MAX_BLOCK_DIM_Y = 3,
    DEVICE_MAX_BLOCK_DIM_Z = 4,
    DEVICE_MAX_GRID_DIM_X = 5,
    DEVICE_MAX_GRID_DIM_Y = 6,
    DEVICE_MAX_GRID_DIM_Z = 7,
    DEVICE_MAX_SHARED_MEMORY_PER_BLOCK = 8,
    DEVICE_WARP_SIZE = 10,
    DEVICE_CLOCK_RATE = 13,
    DEVICE_MULTIPROCESSOR_COUNT = 16,
    DEVICE_CAN_MAP_HOST_MEMORY = 19,
    DEVICE_CONCURRENT_KERNELS = 31,
    DEVICE_ASYNC_ENGINE_COUNT = 40,
    DEVICE_UNIFIED_ADDRESSING = 41,
    DEVICE_COMPUTE_CAPABILITY_MAJOR = 75,
    DEVICE_COMPUTE_CAPABILITY_MINOR = 76,
    DEVICE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
    DEVICE_ATTRIBUTE_MAX = 150,
};

// Function attributes.
enum : int {
    FUNCTION_MAX_THREADS_PER_BLOCK = 0,
    FUNCTION_SHARED_SIZE_BYTES = 1,
    FUNCTION_NUM_REGS = 4,
    FUNCTION_PTX_VERSION = 5,
    FUNCTION_BINARY_VERSION = 6,
    FUNCTION_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
    FUNCTION_PREFERRED_SHARED_MEMORY_CARVEOUT = 9,
    FUNCTION_ATTRIBUTE_MAX = 16,
};

// Options of the JIT compiler.
enum : int {
    JIT_INFO_LOG_BUFFER = 3,
    JIT_INFO_LOG_BUFFER_SIZE_BYTES = 4,
    JIT_ERROR_LOG_BUFFER = 5,
    JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6,
};

enum : unsigned {
    MEMHOSTALLOC_FLAGS = 7,  // portable, mapped, write-combined
    STREAM_NON_BLOCKING = 1,
    EVENT_BLOCKING_SYNC = 1,
    EVENT_DISABLE_TIMING = 2,
};

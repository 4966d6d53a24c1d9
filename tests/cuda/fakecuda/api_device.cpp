// Exported functions about the driver and its devices, which need no context.

#include <cstdio>
#include <cstring>

#include "control.h"
#include "driver.h"
#include "journal.h"

using namespace fake;

FAKE_API cuInit(unsigned flags) {
    Lock lock(driver().mutex);
    if (const CUresult code = driver().faults.on_call(-1, "cuInit")) return code;
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (driver().devices.empty()) return CUDA_ERROR_NO_DEVICE;
    if (!driver().initialised) serve_commands();
    driver().initialised = true;
    return CUDA_SUCCESS;
}

FAKE_API cuDriverGetVersion(int* version) {
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = settings().version;
    return CUDA_SUCCESS;
}

FAKE_API cuDeviceGetCount(int* count) {
    return anywhere("cuDeviceGetCount", -1, [&] {
        if (!count) return CUDA_ERROR_INVALID_VALUE;
        *count = static_cast<int>(driver().devices.size());
        return CUDA_SUCCESS;
    });
}

FAKE_API cuDeviceGet(CUdevice* device, int ordinal) {
    return anywhere("cuDeviceGet", ordinal, [&] {
        if (!device) return CUDA_ERROR_INVALID_VALUE;
        if (!driver().device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
        *device = ordinal;
        return CUDA_SUCCESS;
    });
}

FAKE_API cuDeviceGetName(char* name, int length, CUdevice device) {
    return anywhere("cuDeviceGetName", device, [&] {
        if (!name || length <= 0) return CUDA_ERROR_INVALID_VALUE;
        if (!driver().device(device)) return CUDA_ERROR_INVALID_DEVICE;
        std::snprintf(name, static_cast<size_t>(length), "Stand-in GPU %d", device);
        return CUDA_SUCCESS;
    });
}

FAKE_API cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
    return anywhere("cuDeviceTotalMem_v2", device, [&] {
        const Device* found = driver().device(device);
        if (!bytes) return CUDA_ERROR_INVALID_VALUE;
        if (!found) return CUDA_ERROR_INVALID_DEVICE;
        *bytes = found->memory_bytes;
        return CUDA_SUCCESS;
    });
}

FAKE_API cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
    return anywhere("cuDeviceGetPCIBusId", device, [&] {
        if (!id || length < 13) return CUDA_ERROR_INVALID_VALUE;
        if (!driver().device(device)) return CUDA_ERROR_INVALID_DEVICE;
        std::snprintf(id, static_cast<size_t>(length), "0000:%02X:00.0", (device + 1) & 0xFF);
        return CUDA_SUCCESS;
    });
}

FAKE_API cuDeviceGetAttribute(int* value, int attribute, CUdevice device) {
    return anywhere("cuDeviceGetAttribute", device, [&] {
        if (!value || attribute <= 0 || attribute > DEVICE_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
        if (!driver().device(device)) return CUDA_ERROR_INVALID_DEVICE;
        switch (attribute) {
            case DEVICE_MAX_THREADS_PER_BLOCK:
            case DEVICE_MAX_BLOCK_DIM_X:
            case DEVICE_MAX_BLOCK_DIM_Y: *value = 1024; break;
            case DEVICE_MAX_BLOCK_DIM_Z: *value = 64; break;
            case DEVICE_MAX_GRID_DIM_X: *value = 0x7FFFFFFF; break;
            case DEVICE_MAX_GRID_DIM_Y:
            case DEVICE_MAX_GRID_DIM_Z: *value = 0xFFFF; break;
            case DEVICE_MAX_SHARED_MEMORY_PER_BLOCK: *value = 48 << 10; break;
            case DEVICE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = 227 << 10; break;
            case DEVICE_WARP_SIZE: *value = 32; break;
            case DEVICE_CLOCK_RATE: *value = 1'980'000; break;
            case DEVICE_MULTIPROCESSOR_COUNT: *value = 132; break;
            case DEVICE_ASYNC_ENGINE_COUNT: *value = 2; break;
            case DEVICE_CAN_MAP_HOST_MEMORY:
            case DEVICE_CONCURRENT_KERNELS:
            case DEVICE_UNIFIED_ADDRESSING: *value = 1; break;
            case DEVICE_COMPUTE_CAPABILITY_MAJOR: *value = settings().capability / 10; break;
            case DEVICE_COMPUTE_CAPABILITY_MINOR: *value = settings().capability % 10; break;
            default: *value = 0;
        }
        return CUDA_SUCCESS;
    });
}

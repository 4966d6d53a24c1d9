// The one function that older drivers lack: a library linked without this file is one of them.

#include "driver.h"

using namespace fake;

FAKE_API cuFuncGetParamInfo(CUhandle handle, size_t index, size_t* offset, size_t* size) {
    return in_context("cuFuncGetParamInfo", [&](Context& context, Lock&) -> CUresult {
        auto function = driver().functions.find(handle, context);
        if (!function) return CUDA_ERROR_INVALID_HANDLE;
        if (!offset || index >= function->parameters.size()) return CUDA_ERROR_INVALID_VALUE;
        *offset = 0;
        for (size_t i = 0; i < index; i++) {
            *offset += function->parameters[i];
            const size_t alignment = std::min<size_t>(function->parameters[i + 1], 8);
            *offset = (*offset + alignment - 1) / alignment * alignment;
        }
        if (size) *size = function->parameters[index];
        return CUDA_SUCCESS;
    });
}

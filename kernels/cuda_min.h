/*
 * Stands in for CUDA's own headers when clang compiles a kernel to PTX on a machine without the CUDA toolkit (see clang.flags).
 * It holds what kernels most often need: the function and variable qualifiers, threadIdx and its like, uint4, __ldg, and some
 * atomics. __syncthreads is built into clang. A kernel that needs more wants the toolkit, and then not this header.
 */
#ifndef FUNICULAR_CUDA_MIN_H
#define FUNICULAR_CUDA_MIN_H

#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#define __forceinline__ __inline__ __attribute__((always_inline))

#include <__clang_cuda_builtin_vars.h>

/* The alignment is what makes one 16-byte load or store of it. */
struct __attribute__((aligned(16))) uint4 {
    unsigned int x, y, z, w;
};

template <class T> static __device__ __forceinline__ T __ldg(const T *from)
{
    return *from;
}

static __device__ __forceinline__ unsigned int atomicAdd(unsigned int *at, unsigned int value)
{
    return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}

static __device__ __forceinline__ unsigned long long atomicAdd(unsigned long long *at, unsigned long long value)
{
    return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}

static __device__ __forceinline__ unsigned int atomicMax(unsigned int *at, unsigned int value)
{
    return __nvvm_atom_max_gen_ui(at, value);
}

static __device__ __forceinline__ unsigned int atomicMin(unsigned int *at, unsigned int value)
{
    return __nvvm_atom_min_gen_ui(at, value);
}

#endif

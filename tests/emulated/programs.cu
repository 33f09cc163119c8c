// Kernels of programs that bring their own code, which the emulated driver cannot read: of its test, and of benches/gpu.rs.
#include "common.cuh"

// Ends when the word is not 0. The word may be the host's, in pinned memory.
extern "C" __global__ void hold(const volatile unsigned* word) {
    while (threadIdx.x == 0 && *word == 0) {
    }
    __syncthreads();
}

// Sets the elements of an array.
extern "C" __global__ void fill_f32(float* x, float value, i64 n) {
    for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
        x[i] = value;
    }
}

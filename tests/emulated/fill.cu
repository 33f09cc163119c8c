// Sets the elements of an array: for the test of the emulated driver.
#include "common.cuh"

extern "C" __global__ void fill_f32(float* x, float value, i64 n) {
    for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
        x[i] = value;
    }
}

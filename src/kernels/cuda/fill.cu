// x[i] = value for i < n. Any grid.
extern "C" __global__ void fill_f32(float *x, float value, long long n) {
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) x[i] = value;
}

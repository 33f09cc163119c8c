// Sums over the rows of a matrix, column by column, in a fixed order: gradients of biases and gains. First each part's rows are summed,
// then the parts' sums.
#include "rows.cuh"

// partial[part][column] = the sum of rows part, part + parts, ... in this order, as norm_backward sums what it stores. A thread takes eight
// columns of a part. Grid: (columns, parts).
template <typename T> __device__ __forceinline__ void column_sums(float* partial, const T* x, i64 rows, int width) {
    const int c = (blockIdx.x * blockDim.x + threadIdx.x) * PIECE, columns = min(width - c, PIECE);
    const bool vector = width % PIECE == 0 && is_vector(x);
    float sum[PIECE] = {};
    if (columns <= 0) {
        return;
    }
    if (columns == PIECE) {
#pragma unroll 4
        for (i64 row = blockIdx.y; row < rows; row += gridDim.y) {
            float v[PIECE];
            load_piece(v, x + row * width + c, vector);
#pragma unroll
            for (int j = 0; j < PIECE; j++) {
                sum[j] = __fadd_rn(sum[j], v[j]);
            }
        }
    } else {
        for (i64 row = blockIdx.y; row < rows; row += gridDim.y) {
#pragma unroll
            for (int j = 0; j < PIECE; j++) {
                sum[j] += j < columns ? to_float(x[row * width + c + j]) : 0.0f;
            }
        }
    }
#pragma unroll
    for (int j = 0; j < PIECE; j++) {
        if (j < columns) {
            partial[(i64)blockIdx.y * width + c + j] = sum[j];
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) column_sums_f32(float* partial, const float* x, i64 rows, int width) {
    column_sums(partial, x, rows, width);
}

extern "C" __global__ void __launch_bounds__(256) column_sums_bf16(float* partial, const bf16* x, i64 rows, int width) {
    column_sums(partial, x, rows, width);
}

// Adds the column sums of `partial` ([rows][width]) to `out`; those of columns from `split` on to `other`. A block of sixteen
// warps takes 32 columns: each warp every sixteenth row.
extern "C" __global__ void __launch_bounds__(512) add_columns(float* out, float* other, const float* partial, int rows, int width, int split) {
    __shared__ float sums[16][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, c = blockIdx.x * 32 + lane;
    float sum = 0.0f;
    if (c < width) {
#pragma unroll 4
        for (int row = warp; row < rows; row += 16) {
            sum += partial[(i64)row * width + c];
        }
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && c < width) {
        float all = 0.0f;
        for (int w = 0; w < 16; w++) {
            all += sums[w][lane];
        }
        if (c < split) {
            out[c] += all;
        } else {
            other[c - split] += all;
        }
    }
}

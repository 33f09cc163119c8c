// Sums over the rows of a matrix, column by column, in a fixed order: gradients of biases and gains. First each block sums some
// rows, then the blocks' sums are added up.
#include "rows.cuh"

// partial[split][column] = the sum of rows [split · per, (split + 1) · per). A block of eight warps takes 256 columns
// (blockIdx.x) of one split (blockIdx.y): each warp every eighth row, each lane eight columns.
template <typename T> __device__ __forceinline__ void column_sums(float* partial, const T* x, i64 rows, int width, i64 per) {
    __shared__ float sums[8][256];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, from = blockIdx.x * 256;
    const i64 begin = blockIdx.y * per, end = begin + per < rows ? begin + per : rows;
    float sum[PIECE] = {};
    if (width % PIECE == 0) {
        const bool vector = is_vector(x);
        const int c = from + lane * PIECE;
        if (c < width) {
#pragma unroll 4
            for (i64 row = begin + warp; row < end; row += 8) {
                float v[PIECE];
                load_piece(v, x + row * width + c, vector);
#pragma unroll
                for (int j = 0; j < PIECE; j++) {
                    sum[j] += v[j];
                }
            }
        }
    } else {
        for (i64 row = begin + warp; row < end; row += 8) {
#pragma unroll
            for (int j = 0; j < PIECE; j++) {
                const int c = from + j * 32 + lane;
                sum[j] += c < width ? to_float(x[row * width + c]) : 0.0f;
            }
        }
    }
#pragma unroll
    for (int j = 0; j < PIECE; j++) {
        sums[warp][width % PIECE == 0 ? lane * PIECE + j : j * 32 + lane] = sum[j];
    }
    __syncthreads();
    const int c = from + threadIdx.x;
    if (c < width) {
        float all = 0.0f;
        for (int w = 0; w < 8; w++) {
            all += sums[w][threadIdx.x];
        }
        partial[(i64)blockIdx.y * width + c] = all;
    }
}

extern "C" __global__ void __launch_bounds__(256) column_sums_f32(float* partial, const float* x, i64 rows, int width, i64 per) {
    column_sums(partial, x, rows, width, per);
}

extern "C" __global__ void __launch_bounds__(256) column_sums_bf16(float* partial, const bf16* x, i64 rows, int width, i64 per) {
    column_sums(partial, x, rows, width, per);
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

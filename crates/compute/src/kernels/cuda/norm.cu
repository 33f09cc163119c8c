// LayerNorm and RMSNorm over rows, with the residual sum before them, and their gradients. A row is held in registers, by a warp
// or by a block: read once, written once.
#include "rows.cuh"

// y = norm(x), or of sum = x + residual, which is stored too. `threads` of the block hold a row: 32, or all of them.
template <typename T, int COUNT, bool LAYER, bool VECTOR>
__device__ __forceinline__ void norm_forward(T* y, float* stats, T* sum, const T* x, const T* residual, const float* weight, const float* bias, i64 rows, int d, float eps, int threads) {
    __shared__ float scratch[32];
    const i64 row = blockIdx.x * (i64)(blockDim.x / threads) + threadIdx.x / threads;
    if (row >= rows) {
        return;
    }
    const int t = threadIdx.x % threads;
    float v[COUNT];
    load_held<COUNT, VECTOR>(v, x + row * d, d, t, threads);
    if (residual) {
        float u[COUNT];
        load_held<COUNT, VECTOR>(u, residual + row * d, d, t, threads);
#pragma unroll
        for (int e = 0; e < COUNT; e++) {
            v[e] = stored<T>(v[e] + u[e]);
        }
        store_held<COUNT, VECTOR>(sum + row * d, v, d, t, threads);
    }
    float mean = 0.0f, squares = 0.0f;
    if (LAYER) {
        float all = 0.0f;
#pragma unroll
        for (int e = 0; e < COUNT; e++) {
            all += v[e];
        }
        mean = row_sum(all, threads, scratch) / (float)d;
    }
    each_held<COUNT, VECTOR>(d, t, threads, [&](auto span, int e, int) {
#pragma unroll
        for (int j = 0; j < span.N; j++) {
            const float c = v[e + j] - mean;
            squares = fmaf(c, c, squares);
        }
    });
    const float rstd = 1.0f / sqrtf(row_sum(squares, threads, scratch) / (float)d + eps);
    if (t == 0) {
        if (LAYER) {
            stats[2 * row] = mean;
            stats[2 * row + 1] = rstd;
        } else {
            stats[row] = rstd;
        }
    }
    each_held<COUNT, VECTOR>(d, t, threads, [&](auto span, int e, int i) {
        float w[span.N], b[span.N];
        span.load(w, weight + i);
        if (LAYER) {
            span.load(b, bias + i);
        }
#pragma unroll
        for (int j = 0; j < span.N; j++) {
            const float hat = (v[e + j] - mean) * rstd;
            w[j] = LAYER ? fmaf(hat, w[j], b[j]) : hat * w[j];
        }
        span.store(y + row * d + i, w);
    });
}

// dx = rstd · (g − mean(g) − hat · mean(g · hat)) + skip with g = dy · weight, where RMSNorm has no mean(g). Each block takes
// every gridDim.x-th row, and leaves its sums of dy · hat, and for LayerNorm of dy, in `partial` ([blocks][1 or 2][d]); with SUMS, those of dx in
// `sums` ([blocks][d]), from which the gradient of a bias follows that was added to each row of x.
template <typename T, bool LAYER, bool SUMS, bool VECTOR>
__device__ __forceinline__ void norm_backward(T* dx, float* partial, float* sums, const T* x, const float* weight, const float* stats, const T* dy, const T* skip, i64 rows, int d) {
    constexpr int COUNT = PIECE;
    __shared__ float scratch[64];
    const int t = threadIdx.x, threads = blockDim.x;
    float w[COUNT], dweight[COUNT] = {}, dbias[COUNT] = {}, stored_sums[COUNT] = {};
    load_held<COUNT, VECTOR>(w, weight, d, t, threads);
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        float hat[COUNT], g[COUNT], s[COUNT];
        const float mean = LAYER ? stats[2 * row] : 0.0f, rstd = LAYER ? stats[2 * row + 1] : stats[row];
        if (VECTOR) {
            // All three loads start before the first value is used.
            const int i = t * PIECE;
            Stored<T> of_x = {}, of_dy = {}, of_skip = {};
            if (i < d) {
                of_x = load_stored(x + row * d + i);
                of_dy = load_stored(dy + row * d + i);
                of_skip = load_stored((skip ? skip : dy) + row * d + i);
            }
            spread(hat, of_x);
            spread(g, of_dy);
            spread(s, of_skip);
        } else {
            load_held<COUNT, false>(hat, x + row * d, d, t, threads);
            load_held<COUNT, false>(g, dy + row * d, d, t, threads);
            if (skip) {
                load_held<COUNT, false>(s, skip + row * d, d, t, threads);
            }
        }
        float sum_g = 0.0f, sum_gh = 0.0f;
#pragma unroll
        for (int e = 0; e < COUNT; e++) {
            // After the row's end g is 0, so that hat does not matter there.
            hat[e] = (hat[e] - mean) * rstd;
            dweight[e] = fmaf(g[e], hat[e], dweight[e]);
            if (LAYER) {
                dbias[e] += g[e];
            }
            g[e] *= w[e];
            if (LAYER) {
                sum_g += g[e];
            }
            sum_gh = fmaf(g[e], hat[e], sum_gh);
        }
        if (LAYER) {
            row_sums(sum_g, sum_gh, 64, scratch);
        } else {
            sum_gh = block_sum(sum_gh, scratch);
        }
        const float mean_g = sum_g / (float)d, mean_gh = sum_gh / (float)d;
#pragma unroll
        for (int e = 0; e < COUNT; e++) {
            const float v = rstd * (g[e] - mean_g - hat[e] * mean_gh);
            hat[e] = skip ? v + s[e] : v;
            if (SUMS) {
                // Not fused with the product above, so that a pass over dx has the same sums.
                stored_sums[e] = __fadd_rn(stored_sums[e], stored<T>(hat[e]));
            }
        }
        store_held<COUNT, VECTOR>(dx + row * d, hat, d, t, threads);
    }
    float* to = partial + (i64)blockIdx.x * (LAYER ? 2 : 1) * d;
    store_held<COUNT, VECTOR>(to, dweight, d, t, threads);
    if (LAYER) {
        store_held<COUNT, VECTOR>(to + d, dbias, d, t, threads);
    }
    if (SUMS) {
        store_held<COUNT, VECTOR>(sums + (i64)blockIdx.x * d, stored_sums, d, t, threads);
    }
}

template <typename T, int COUNT, bool LAYER>
__device__ __forceinline__ void forward(T* y, float* stats, T* sum, const T* x, const T* residual, const float* weight, const float* bias, i64 rows, int d, float eps, int threads) {
    if (d % PIECE == 0 && are_vectors(y, sum, x, residual, weight, bias)) {
        norm_forward<T, COUNT, LAYER, true>(y, stats, sum, x, residual, weight, bias, rows, d, eps, threads);
    } else {
        norm_forward<T, COUNT, LAYER, false>(y, stats, sum, x, residual, weight, bias, rows, d, eps, threads);
    }
}

template <typename T, bool LAYER, bool SUMS>
__device__ __forceinline__ void backward(T* dx, float* partial, float* sums, const T* x, const float* weight, const float* stats, const T* dy, const T* skip, i64 rows, int d) {
    if (d % PIECE == 0 && are_vectors(dx, partial, sums, x, weight, dy, skip)) {
        norm_backward<T, LAYER, SUMS, true>(dx, partial, sums, x, weight, stats, dy, skip, rows, d);
    } else {
        norm_backward<T, LAYER, SUMS, false>(dx, partial, sums, x, weight, stats, dy, skip, rows, d);
    }
}

// Rows of up to 1,024 elements are held by a warp, of up to 8,192 by a block, eight elements by each thread.
#define FORWARD(suffix, T, COUNT, LAYER, BOUND)                                                                                \
    extern "C" __global__ void __launch_bounds__(BOUND) norm_##suffix(                                                         \
        T* y, float* stats, T* sum, const T* x, const T* residual, const float* weight, const float* bias, i64 rows, int d,    \
        float eps, int threads) {                                                                                              \
        forward<T, COUNT, LAYER>(y, stats, sum, x, residual, weight, bias, rows, d, eps, threads);                             \
    }
FORWARD(f32_layer, float, 8, true, 1024)
FORWARD(f32_rms, float, 8, false, 1024)
FORWARD(bf16_layer, bf16, 8, true, 1024)
FORWARD(bf16_rms, bf16, 8, false, 1024)
FORWARD(f32_layer_warp, float, 32, true, 128)
FORWARD(f32_rms_warp, float, 32, false, 128)
FORWARD(bf16_layer_warp, bf16, 32, true, 128)
FORWARD(bf16_rms_warp, bf16, 32, false, 128)

#define BACKWARD(suffix, T, LAYER, SUMS, BOUND)                                                                                \
    extern "C" __global__ void __launch_bounds__(BOUND) norm_backward_##suffix(                                                \
        T* dx, float* partial, float* sums, const T* x, const float* weight, const float* stats, const T* dy, const T* skip,   \
        i64 rows, int d) {                                                                                                     \
        backward<T, LAYER, SUMS>(dx, partial, sums, x, weight, stats, dy, skip, rows, d);                                      \
    }
BACKWARD(f32_layer, float, true, true, 256)
BACKWARD(f32_rms, float, false, false, 256)
BACKWARD(bf16_layer, bf16, true, true, 256)
BACKWARD(bf16_rms, bf16, false, false, 256)
BACKWARD(f32_layer_block, float, true, false, 1024)
BACKWARD(f32_rms_block, float, false, false, 1024)
BACKWARD(bf16_layer_block, bf16, true, false, 1024)
BACKWARD(bf16_rms_block, bf16, false, false, 1024)

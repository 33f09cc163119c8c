// Sums of coefficients times tensors, row by row, as kernels/weighted_sum.rs describes them.
#include "rows.cuh"

// The numbers of up to four terms.
struct SumTerms {
    float number[4];
    int is_sigmoid[4];
    int is_previous[4];
    int groups[4];
};

__device__ __forceinline__ float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

// The factor by a scalar, and its derivative in `slope`. A null pointer is 1.
__device__ __forceinline__ float of_scalar(const float* scalar, bool is_sigmoid, float& slope) {
    if (!scalar) {
        slope = 0.0f;
        return 1.0f;
    }
    const float s = is_sigmoid ? sigmoid(scalar[0]) : scalar[0];
    slope = is_sigmoid ? s * (1.0f - s) : 1.0f;
    return s;
}

// The factor by a gate, and its derivative. A null pointer is 1.
template <typename T> __device__ __forceinline__ float of_gate(const T* gate, i64 index, float& slope) {
    if (!gate) {
        slope = 0.0f;
        return 1.0f;
    }
    const float s = sigmoid(to_float(gate[index]));
    slope = s * (1.0f - s);
    return s;
}

// y += coefficient * x for the span at i of a row.
template <typename T, typename Span>
__device__ __forceinline__ void add_term(Span span, float* y, const T* x, const T* gate, float factor, int groups, bool is_previous, i64 row, int i, int width, int seq) {
    if (!x || (is_previous && row % seq == 0)) {
        return;
    }
    float v[Span::N];
    span.load(v, x + (is_previous ? row - 1 : row) * width + i);
#pragma unroll
    for (int j = 0; j < Span::N; j++) {
        float slope;
        const float c = factor * of_gate(gate, row * groups + (i + j) / (width / groups), slope);
        y[j] = fmaf(c, v[j], y[j]);
    }
}

template <typename T>
__device__ __forceinline__ void weighted_sum(T* y, const T* x0, const T* x1, const T* x2, const T* x3, const T* g0, const T* g1, const T* g2, const T* g3, const float* s0, const float* s1, const float* s2, const float* s3, const SumTerms& terms, int width, int seq) {
    const i64 row = blockIdx.x;
    const T* const x[4] = {x0, x1, x2, x3};
    const T* const gates[4] = {g0, g1, g2, g3};
    const float* const scalars[4] = {s0, s1, s2, s3};
    float factor[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float slope;
        factor[k] = terms.number[k] * of_scalar(scalars[k], terms.is_sigmoid[k], slope);
    }
    each_column(width, are_vectors(y, x0, x1, x2, x3), [&](auto span, int i) {
        float sum[span.N] = {};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            add_term(span, sum, x[k], gates[k], factor[k], terms.groups[k], terms.is_previous[k], row, i, width, seq);
        }
        span.store(y + row * width + i, sum);
    });
}

// One warp for each row and group: dx, and of the coefficient's gradient the part of this row and group.
template <typename T>
__device__ __forceinline__ void weighted_sum_backward(T* dx, T* dgate, float* dscalar, const T* dy, const T* x, const T* gate, const float* scalar, float number, int is_sigmoid, int is_previous, i64 rows, int groups, int width, int seq) {
    const int lane = threadIdx.x % 32, channels = width / groups;
    const i64 index = (i64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (index >= rows * groups) {
        return;
    }
    const i64 row = index / groups;
    const int first = (int)(index % groups) * channels;
    float scalar_slope, gate_slope, unused;
    const float of_s = of_scalar(scalar, is_sigmoid, scalar_slope);
    // The row of dy that read this row of x.
    const i64 reader = is_previous ? row + 1 : row;
    const bool is_read = reader < rows && !(is_previous && reader % seq == 0);
    const float factor = is_read ? number * of_s * of_gate(gate, reader * groups + index % groups, unused) : 0.0f;
    for (int i = first + lane; i < first + channels; i += 32) {
        dx[row * width + i] = from_float<T>(is_read ? factor * to_float(dy[reader * width + i]) : 0.0f);
    }
    if (!dgate && !dscalar) {
        return;
    }
    float product = 0.0f;
    if (!is_previous || row % seq != 0) {
        const i64 from = is_previous ? row - 1 : row;
        for (int i = first + lane; i < first + channels; i += 32) {
            product = fmaf(to_float(dy[row * width + i]), to_float(x[from * width + i]), product);
        }
    }
    product = number * warp_sum(product);
    if (lane == 0) {
        const float of_g = of_gate(gate, index, gate_slope);
        if (dgate) {
            dgate[index] = from_float<T>(product * of_s * gate_slope);
        }
        if (dscalar) {
            dscalar[index] = product * scalar_slope * of_g;
        }
    }
}

#define WEIGHTED_SUM(suffix, T)                                                                                                \
    extern "C" __global__ void __launch_bounds__(256) weighted_sum_##suffix(                                                   \
        T* y, const T* x0, const T* x1, const T* x2, const T* x3, const T* g0, const T* g1, const T* g2, const T* g3,          \
        const float* s0, const float* s1, const float* s2, const float* s3, const SumTerms terms, int width, int seq) {        \
        weighted_sum(y, x0, x1, x2, x3, g0, g1, g2, g3, s0, s1, s2, s3, terms, width, seq);                                    \
    }                                                                                                                          \
    extern "C" __global__ void __launch_bounds__(256) weighted_sum_backward_##suffix(                                          \
        T* dx, T* dgate, float* dscalar, const T* dy, const T* x, const T* gate, const float* scalar, float number,            \
        int is_sigmoid, int is_previous, i64 rows, int groups, int width, int seq) {                                           \
        weighted_sum_backward(dx, dgate, dscalar, dy, x, gate, scalar, number, is_sigmoid, is_previous, rows, groups, width,   \
                              seq);                                                                                            \
    }

WEIGHTED_SUM(f32, float)
WEIGHTED_SUM(bf16, bf16)

// The passes of Muon, as kernels/muon.rs describes them.
#include "rows.cuh"

// m becomes momentum*m + rest*g; u becomes that, or with nesterov momentum*m + rest*g once more.
template <typename S>
__device__ __forceinline__ void direction(S* m, const S* g, float* u, i64 n, float momentum, float rest, bool nesterov) {
    each_span(n, are_vectors(m, g, u), [&](auto span, i64 i) {
        float x[span.N], d[span.N];
        span.load(x, m + i);
        span.load(d, g + i);
#pragma unroll
        for (int j = 0; j < span.N; j++) {
            x[j] = stored<S>(fmaf(momentum, x[j], rest * d[j]));
            d[j] = nesterov ? fmaf(momentum, x[j], rest * d[j]) : x[j];
        }
        span.store(m + i, x);
        span.store(u + i, d);
    });
}

// x = u / sqrt(squares[0]), or u / smallest if the root is smaller.
template <typename T>
__device__ __forceinline__ void normalize(T* x, const float* u, const double* squares, i64 n, float smallest) {
    const float root = (float)sqrt(squares[0]);
    const float inverse = 1.0f / (root > smallest ? root : smallest);
    map(n, [inverse](float u) { return u * inverse; }, x, u);
}

// A row of square becomes that of a + b*gram + c*square.
template <typename T> __device__ __forceinline__ void polynomial(T* square, const T* gram, int n, float a, float b, float c) {
    T* to = square + (i64)blockIdx.x * n;
    const T* from = gram + (i64)blockIdx.x * n;
    each_column(n, are_vectors(to, from), [&](auto span, int i) {
        float x[span.N], y[span.N];
        span.load(x, to + i);
        span.load(y, from + i);
#pragma unroll
        for (int j = 0; j < span.N; j++) {
            x[j] = b * y[j] + c * x[j] + (i + j == (int)blockIdx.x ? a : 0.0f);
        }
        span.store(to + i, x);
    });
}

template <typename S, typename T>
__device__ __forceinline__ void step(S* w, const T* x, i64 n, float rate, float decay, bool cautious) {
    const float keep = 1.0f - decay;
    const auto updated = [=](float w, float x) { return (cautious && w * x < 0.0f ? w : w * keep) - rate * x; };
    map(n, updated, w, w, x);
}

#define MUON(suffix, T)                                                                                                        \
    extern "C" __global__ void muon_direction_##suffix(T* m, const T* g, float* u, i64 n, float momentum, float rest,          \
                                                       int nesterov) {                                                         \
        direction(m, g, u, n, momentum, rest, nesterov);                                                                       \
    }                                                                                                                          \
    extern "C" __global__ void muon_normalize_##suffix(T* x, const float* u, const double* squares, i64 n, float smallest) {   \
        normalize(x, u, squares, n, smallest);                                                                                 \
    }                                                                                                                          \
    extern "C" __global__ void muon_polynomial_##suffix(T* square, const T* gram, int n, float a, float b, float c) {          \
        polynomial(square, gram, n, a, b, c);                                                                                  \
    }

#define MUON_STEP(suffix, S, T)                                                                                                \
    extern "C" __global__ void muon_step_##suffix(S* w, const T* x, i64 n, float rate, float decay, int cautious) {            \
        step(w, x, n, rate, decay, cautious);                                                                                  \
    }

MUON(f32, float)
MUON(bf16, bf16)
MUON_STEP(f32_f32, float, float)
MUON_STEP(f32_bf16, float, bf16)
MUON_STEP(bf16_bf16, bf16, bf16)

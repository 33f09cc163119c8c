// AdamW and SGD over flat buffers, in one pass: weights and moments are updated, and the bf16 copy of the weights is made anew.
// State and gradients are stored as S. bf16 state is ROUNDED: scaled gradients before, weights and moments after the arithmetic.
#include "rows.cuh"

// The scalars of kernels/cpu/optimizer.rs.
struct AdamW {
    float beta1, beta2, rest1, rest2, size, inverse, root, eps, scale, shrink, decay;
};

template <bool ROUNDED> __device__ __forceinline__ void adamw_one(const AdamW& a, bool decays, float& w, float& m, float& v, float g) {
    g *= a.scale;
    if (ROUNDED) {
        g = round_bf16(g);
        const float m1 = m + a.rest1 * (g - m), v1 = a.beta2 * v + a.rest2 * g * g;
        const float decayed = decays ? w - a.decay * w : w;
        w = round_bf16(decayed - a.size * m1 / (sqrtf(v1) / a.root + a.eps));
        m = round_bf16(m1);
        v = round_bf16(v1);
    } else {
        m = fmaf(a.beta1, m, a.rest1 * g);
        v = fmaf(a.beta2, v, a.rest2 * g * g);
        w = (decays ? w * a.shrink : w) - a.size * m / (sqrtf(v) * a.inverse + a.eps);
    }
}

// The first `decayed` elements decay; the first `copied` go to `copy`, which may be null. `m` and `v` follow `w` in memory.
template <typename S, bool ROUNDED>
__device__ __forceinline__ void adamw(S* w, S* m, S* v, const S* g, bf16* copy, i64 n, i64 decayed, i64 copied, const AdamW& a) {
    each_span(n, are_vectors(w, m, v, g, copy), [&](auto span, i64 i) {
        float x[span.N], y[span.N], z[span.N], d[span.N];
        span.load(x, w + i);
        span.load(y, m + i);
        span.load(z, v + i);
        span.load(d, g + i);
#pragma unroll
        for (int j = 0; j < span.N; j++) {
            adamw_one<ROUNDED>(a, i + j < decayed, x[j], y[j], z[j], d[j]);
        }
        span.store(w + i, x);
        span.store(m + i, y);
        span.store(v + i, z);
        if (copy && i + span.N <= copied) {
            span.store(copy + i, x);
        } else if (copy && i < copied) {
            for (int j = 0; i + j < copied; j++) {
                copy[i + j] = to_bf16(x[j]);
            }
        }
    });
}

#define ADAMW(name, S, ROUNDED)                                                                                                \
    extern "C" __global__ void __launch_bounds__(256)                                                                          \
        name(S* w, S* m, S* v, const S* g, bf16* copy, i64 n, i64 decayed, i64 copied, float beta1, float beta2,               \
             float rest1, float rest2, float size, float inverse, float root, float eps, float scale, float shrink,            \
             float decay) {                                                                                                    \
        const AdamW a = {beta1, beta2, rest1, rest2, size, inverse, root, eps, scale, shrink, decay};                          \
        adamw<S, ROUNDED>(w, m, v, g, copy, n, decayed, copied, a);                                                            \
    }
ADAMW(adamw_f32, float, false)
ADAMW(adamw_bf16, bf16, true)

template <bool ROUNDED> __device__ __forceinline__ void sgd_one(float& w, float& b, float g, bool momentous, float lr, float momentum, float scale) {
    if (ROUNDED) {
        g = round_bf16(scale * g);
        const float step = momentous ? momentum * b + g : g;
        w = round_bf16(w - lr * step);
        b = round_bf16(step);
    } else if (momentous) {
        b = fmaf(momentum, b, scale * g);
        w -= lr * b;
    } else {
        w -= lr * scale * g;
    }
}

// `b`, the momentum, may be null.
template <typename S, bool ROUNDED>
__device__ __forceinline__ void sgd(S* w, S* b, const S* g, bf16* copy, i64 n, i64 copied, float lr, float momentum, float scale) {
    const i64 all = (i64)gridDim.x * blockDim.x;
    for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n; i += all) {
        float x = to_float(w[i]), y = b ? to_float(b[i]) : 0.0f;
        sgd_one<ROUNDED>(x, y, to_float(g[i]), b != 0, lr, momentum, scale);
        w[i] = from_float<S>(x);
        if (b) {
            b[i] = from_float<S>(y);
        }
        if (copy && i < copied) {
            copy[i] = to_bf16(x);
        }
    }
}

#define SGD(name, S, ROUNDED)                                                                                                  \
    extern "C" __global__ void name(S* w, S* b, const S* g, bf16* copy, i64 n, i64 copied, float lr, float momentum,           \
                                    float scale) {                                                                             \
        sgd<S, ROUNDED>(w, b, g, copy, n, copied, lr, momentum, scale);                                                        \
    }
SGD(sgd_f32, float, false)
SGD(sgd_bf16, bf16, true)

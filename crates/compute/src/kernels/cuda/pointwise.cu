// Element by element, one pass over memory: activations and their gradients, sums, casts, dropout, rotary embedding.
#include "rows.cuh"

// ---- GELU, tanh form ----

template <typename T> __device__ __forceinline__ float gelu_tanh(float x) {
    const float inner = 0.7978845608028654f * x * fmaf(0.044715f * x, x, 1.0f);
    return 1.0f - divide_for<T>(2.0f, exp_for<T>(2.0f * inner) + 1.0f);
}

template <typename T> __device__ __forceinline__ float gelu(float x) {
    return 0.5f * x * (1.0f + gelu_tanh<T>(x));
}

template <typename T> __device__ __forceinline__ float gelu_slope(float x) {
    const float t = gelu_tanh<T>(x), slope = 0.7978845608028654f * fmaf(3.0f * 0.044715f * x, x, 1.0f);
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * slope;
}

// ---- casts ----

extern "C" __global__ void cast_f32_bf16(bf16* y, const float* x, i64 n) {
    map(n, [](float x) { return x; }, y, x);
}

extern "C" __global__ void __launch_bounds__(256, 8) cast_bf16_f32(float* y, const bf16* x, i64 n) {
    map(n, [](float x) { return x; }, y, x);
}

// ---- bias ----

// One block per row: x += bias in place, and with `y`, y = gelu(x).
template <typename T> __device__ __forceinline__ void add_bias(T* x, T* y, const float* bias, int width) {
    T* from = x + (i64)blockIdx.x * width;
    T* to = y ? y + (i64)blockIdx.x * width : 0;
    each_column(width, are_vectors(from, to, bias), [&](auto span, int i) {
        float v[span.N], b[span.N];
        span.load(v, from + i);
        span.load(b, bias + i);
#pragma unroll
        for (int j = 0; j < span.N; j++) {
            v[j] += b[j];
        }
        span.store(from + i, v);
        if (to) {
#pragma unroll
            for (int j = 0; j < span.N; j++) {
                v[j] = gelu<T>(stored<T>(v[j]));
            }
            span.store(to + i, v);
        }
    });
}

// ---- gates: an activation of one half of a row, times the other half ----

template <typename T> __device__ __forceinline__ float sigmoid(float x) {
    return divide_for<T>(1.0f, 1.0f + exp_for<T>(-x));
}

template <typename T> struct Gelu {
    static __device__ __forceinline__ float of(float g) { return gelu<T>(g); }
    static __device__ __forceinline__ void slopes(float& dgate, float& dup, float g, float u, float dy) {
        dup = dy * gelu<T>(g);
        dgate = dy * u * gelu_slope<T>(g);
    }
};

template <typename T> struct Relu {
    static __device__ __forceinline__ float of(float g) { return g < 0.0f ? 0.0f : g; }
    static __device__ __forceinline__ void slopes(float& dgate, float& dup, float g, float u, float dy) {
        dup = g > 0.0f ? dy * g : 0.0f;
        dgate = g > 0.0f ? dy * u : 0.0f;
    }
};

template <typename T> struct Relu2 {
    static __device__ __forceinline__ float of(float g) { return g < 0.0f ? 0.0f : g * g; }
    static __device__ __forceinline__ void slopes(float& dgate, float& dup, float g, float u, float dy) {
        dup = g > 0.0f ? dy * (g * g) : 0.0f;
        dgate = g > 0.0f ? dy * u * (g + g) : 0.0f;
    }
};

template <typename T> struct Silu {
    static __device__ __forceinline__ float of(float g) { return g * sigmoid<T>(g); }
    static __device__ __forceinline__ float slope(float x) {
        const float s = sigmoid<T>(x);
        return s * (x * (1.0f - s) + 1.0f);
    }
    static __device__ __forceinline__ void slopes(float& dgate, float& dup, float g, float u, float dy) {
        const float s = sigmoid<T>(g);
        dup = dy * g * s;
        dgate = dy * u * s * (g * (1.0f - s) + 1.0f);
    }
};

// One block per row: y = f(gate) · up.
template <class F, typename T> __device__ __forceinline__ void gated(T* y, const T* gate_up, int width) {
    const T* gate = gate_up + (i64)blockIdx.x * 2 * width;
    const T* up = gate + width;
    T* to = y + (i64)blockIdx.x * width;
    each_column(width, are_vectors(gate_up, y), [&](auto span, int i) {
        map_span(span, [](float g, float u) { return F::of(g) * u; }, to + i, gate + i, up + i);
    });
}

// One block per row: the gradients of gate and up.
template <class F, typename T> __device__ __forceinline__ void gated_backward(T* dgate_up, const T* gate_up, const T* dy, int width) {
    const T* gate = gate_up + (i64)blockIdx.x * 2 * width;
    const T* up = gate + width;
    const T* from = dy + (i64)blockIdx.x * width;
    T* dgate = dgate_up + (i64)blockIdx.x * 2 * width;
    T* dup = dgate + width;
    each_column(width, are_vectors(gate_up, dy, dgate_up), [&](auto span, int i) {
        float g[span.N], u[span.N], d[span.N];
        span.load(g, gate + i);
        span.load(u, up + i);
        span.load(d, from + i);
#pragma unroll
        for (int j = 0; j < span.N; j++) {
            const float of_gate = g[j], of_up = u[j];
            F::slopes(g[j], u[j], of_gate, of_up, d[j]);
        }
        span.store(dgate + i, g);
        span.store(dup + i, u);
    });
}

// ---- columns ----

// One block per row: copies `width` elements. The strides are those of rows.
template <typename T>
__device__ __forceinline__ void copy_columns(T* to, const T* from, int to_stride, int from_stride, int width) {
    T* const to_row = to + (i64)blockIdx.x * to_stride;
    const T* const from_row = from + (i64)blockIdx.x * from_stride;
    each_column(width, are_vectors(to_row, from_row), [&](auto span, int i) {
        map_span(span, [](float x) { return x; }, to_row + i, from_row + i);
    });
}

// ---- dropout ----

// Samples (blockIdx.y) of `width` elements, in place: y = x · keep where the element's random word is not below `threshold`.
// Sample s of the micro-batch is number `first` + s · `stride` of the global batch.
template <typename T>
__device__ __forceinline__ void dropout(T* x, int samples, i64 width, unsigned key0, unsigned key1, u64 threshold, float keep, u64 first, u64 stride, unsigned step) {
    for (int s = blockIdx.y; s < samples; s += gridDim.y) {
        T* at = x + s * width;
        const bool vector = is_vector(at);
        const unsigned id = (unsigned)(first + (u64)s * stride);
        for (i64 i = (blockIdx.x * (i64)blockDim.x + threadIdx.x) * PIECE; i < width; i += (i64)gridDim.x * blockDim.x * PIECE) {
            const u64 block = (u64)i / 4;
            const Words low = philox(key0, key1, (unsigned)block, (unsigned)(block >> 32), id, step);
            const Words high = philox(key0, key1, (unsigned)(block + 1), (unsigned)((block + 1) >> 32), id, step);
            const auto dropped = [&](float x, int j) {
                return (j < 4 ? low.at[j % 4] : high.at[j % 4]) >= threshold ? x * keep : 0.0f;
            };
            if (i + PIECE <= width) {
                float v[PIECE];
                load_piece(v, at + i, vector);
#pragma unroll
                for (int j = 0; j < PIECE; j++) {
                    v[j] = dropped(v[j], j);
                }
                store_piece(at + i, v, vector);
            } else {
#pragma unroll
                for (int j = 0; j < PIECE; j++) {
                    if (i + j < width) {
                        at[i + j] = from_float<T>(dropped(to_float(at[i + j]), j));
                    }
                }
            }
        }
    }
}

// ---- rotary embedding ----

// One block per row of `stride` elements: rotates its first `heads` heads of `width`, element i below `half` of a head with element i + half,
// by the angles of position start + row mod seq. `sign` -1 rotates back.
template <typename T>
__device__ __forceinline__ void rope(T* x, const float* cos, const float* sin, int stride, int heads, int width, int half, int seq, int start,
                                     float sign) {
    T* row = x + (i64)blockIdx.x * stride;
    const i64 position = start + (int)(blockIdx.x % (unsigned)seq);
    cos += position * half;
    sin += position * half;
    with_span(half % PIECE == 0 && width % PIECE == 0, are_vectors(row, cos, sin), [&](auto span) {
        const int spans = half / span.N;
        for (int k = threadIdx.x; k < heads * spans; k += blockDim.x) {
            const int i = k % spans * span.N;
            T* a = row + (k / spans) * width + i;
            float u[span.N], v[span.N], c[span.N], s[span.N];
            span.load(u, a);
            span.load(v, a + half);
            span.load(c, cos + i);
            span.load(s, sin + i);
#pragma unroll
            for (int j = 0; j < span.N; j++) {
                const float angle = s[j] * sign, low = u[j] * c[j] - v[j] * angle;
                v[j] = v[j] * c[j] + u[j] * angle;
                u[j] = low;
            }
            span.store(a, u);
            span.store(a + half, v);
        }
    });
}

// ---- entry points: bounds keep as many blocks on a multiprocessor as memory needs to be busy ----

#define GATED(suffix, T, name, F)                                                                                              \
    extern "C" __global__ void gated_##suffix##_##name(T* y, const T* gate_up, int width) {                                    \
        gated<F<T>>(y, gate_up, width);                                                                                        \
    }                                                                                                                          \
    extern "C" __global__ void gated_backward_##suffix##_##name(T* dgate_up, const T* gate_up, const T* dy, int width) {       \
        gated_backward<F<T>>(dgate_up, gate_up, dy, width);                                                                    \
    }

#define POINTWISE(suffix, T)                                                                                                   \
    extern "C" __global__ void activate_##suffix##_gelu(T* y, const T* x, i64 n) {                                             \
        map(n, [](float x) { return gelu<T>(x); }, y, x);                                                                      \
    }                                                                                                                          \
    extern "C" __global__ void activate_backward_##suffix##_gelu(T* dy, const T* x, i64 n) {                                   \
        map(n, [](float dy, float x) { return dy * gelu_slope<T>(x); }, dy, dy, x);                                            \
    }                                                                                                                          \
    extern "C" __global__ void activate_##suffix##_relu(T* y, const T* x, i64 n) {                                             \
        map(n, [](float x) { return x < 0.0f ? 0.0f : x; }, y, x);                                                             \
    }                                                                                                                          \
    extern "C" __global__ void activate_backward_##suffix##_relu(T* dy, const T* x, i64 n) {                                   \
        map(n, [](float dy, float x) { return x > 0.0f ? dy : 0.0f; }, dy, dy, x);                                             \
    }                                                                                                                          \
    extern "C" __global__ void activate_##suffix##_relu2(T* y, const T* x, i64 n) {                                            \
        map(n, [](float x) { return x < 0.0f ? 0.0f : x * x; }, y, x);                                                         \
    }                                                                                                                          \
    extern "C" __global__ void activate_backward_##suffix##_relu2(T* dy, const T* x, i64 n) {                                  \
        map(n, [](float dy, float x) { return x > 0.0f ? dy * (x + x) : 0.0f; }, dy, dy, x);                                   \
    }                                                                                                                          \
    extern "C" __global__ void add_##suffix(T* y, const T* x, i64 n) {                                                         \
        map(n, [](float y, float x) { return y + x; }, y, y, x);                                                               \
    }                                                                                                                          \
    extern "C" __global__ void __launch_bounds__(256, 8) add_bias_##suffix(T* x, T* y, const float* bias, int width) {         \
        add_bias(x, y, bias, width);                                                                                           \
    }                                                                                                                          \
    GATED(suffix, T, gelu, Gelu)                                                                                               \
    GATED(suffix, T, relu, Relu)                                                                                               \
    GATED(suffix, T, relu2, Relu2)                                                                                             \
    GATED(suffix, T, silu, Silu)                                                                                               \
    extern "C" __global__ void activate_##suffix##_silu(T* y, const T* x, i64 n) {                                             \
        map(n, [](float x) { return Silu<T>::of(x); }, y, x);                                                                  \
    }                                                                                                                          \
    extern "C" __global__ void activate_backward_##suffix##_silu(T* dy, const T* x, i64 n) {                                   \
        map(n, [](float dy, float x) { return dy * Silu<T>::slope(x); }, dy, dy, x);                                           \
    }                                                                                                                          \
    extern "C" __global__ void softcap_##suffix(T* x, float cap, i64 n) {                                                      \
        map(n, [cap](float x) { return capped<T>(x, cap); }, x, x);                                                            \
    }                                                                                                                          \
    extern "C" __global__ void copy_columns_##suffix(T* to, const T* from, int to_stride, int from_stride, int width) {        \
        copy_columns(to, from, to_stride, from_stride, width);                                                                 \
    }                                                                                                                          \
    extern "C" __global__ void dropout_##suffix(T* x, int samples, i64 width, unsigned key0, unsigned key1, u64 threshold,     \
                                                float keep, u64 first, u64 stride, unsigned step) {                            \
        dropout(x, samples, width, key0, key1, threshold, keep, first, stride, step);                                          \
    }                                                                                                                          \
    extern "C" __global__ void __launch_bounds__(256, 8) rope_##suffix(T* x, const float* cos, const float* sin, int stride, int heads, int width, \
                                             int half, int seq, int start, float sign) {                                       \
        rope(x, cos, sin, stride, heads, width, half, seq, start, sign);                                                              \
    }
POINTWISE(f32, float)
POINTWISE(bf16, bf16)

// Element by element, one pass over memory: activations and their gradients, sums, casts, dropout, rotary embedding.
#include "rows.cuh"

// ---- maps of flat arrays ----

// y = f(x).
template <typename Y, typename X, typename F> __device__ __forceinline__ void map(Y* y, const X* x, i64 n, F f) {
    const bool y_vector = is_vector(y), x_vector = is_vector(x);
    each_piece(
        n,
        [&](i64 i) {
            float v[PIECE];
            load_piece(v, x + i, x_vector);
#pragma unroll
            for (int j = 0; j < PIECE; j++) {
                v[j] = f(v[j]);
            }
            store_piece(y + i, v, y_vector);
        },
        [&](i64 i) { y[i] = from_float<Y>(f(to_float(x[i]))); });
}

// y = f(y, x).
template <typename Y, typename X, typename F> __device__ __forceinline__ void zip(Y* y, const X* x, i64 n, F f) {
    with_known(are_vectors(y, x), [&](auto vector) {
        each_piece(
            n,
            [&](i64 i) {
                float v[PIECE], u[PIECE];
                load_piece(v, y + i, vector);
                load_piece(u, x + i, vector);
#pragma unroll
                for (int j = 0; j < PIECE; j++) {
                    v[j] = f(v[j], u[j]);
                }
                store_piece(y + i, v, vector);
            },
            [&](i64 i) { y[i] = from_float<Y>(f(to_float(y[i]), to_float(x[i]))); });
    });
}

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
    map(y, x, n, [](float x) { return x; });
}

extern "C" __global__ void cast_bf16_f32(float* y, const bf16* x, i64 n) {
    map(y, x, n, [](float x) { return x; });
}

// The first `rounded` elements become bf16 numbers that stay f32, the others are copied; in place, too.
extern "C" __global__ void round_f32(float* y, const float* x, i64 n, i64 rounded) {
    const bool y_vector = is_vector(y), x_vector = is_vector(x);
    each_piece(
        n,
        [&](i64 i) {
            float v[PIECE];
            load_piece(v, x + i, x_vector);
#pragma unroll
            for (int j = 0; j < PIECE; j++) {
                v[j] = i + j < rounded ? round_bf16(v[j]) : v[j];
            }
            store_piece(y + i, v, y_vector);
        },
        [&](i64 i) { y[i] = i < rounded ? round_bf16(x[i]) : x[i]; });
}

// ---- bias ----

// One block per row: x += bias in place, and with `y`, y = gelu(x).
template <typename T> __device__ __forceinline__ void add_bias(T* x, T* y, const float* bias, int width) {
    T* from = x + (i64)blockIdx.x * width;
    T* to = y ? y + (i64)blockIdx.x * width : 0;
    if (width % PIECE == 0) {
        const bool from_vector = is_vector(from), to_vector = is_vector(to), bias_vector = is_vector(bias);
        for (int i = threadIdx.x * PIECE; i < width; i += blockDim.x * PIECE) {
            float v[PIECE], b[PIECE];
            load_piece(v, from + i, from_vector);
            load_piece(b, bias + i, bias_vector);
#pragma unroll
            for (int j = 0; j < PIECE; j++) {
                v[j] += b[j];
            }
            store_piece(from + i, v, from_vector);
            if (to) {
#pragma unroll
                for (int j = 0; j < PIECE; j++) {
                    v[j] = gelu<T>(stored<T>(v[j]));
                }
                store_piece(to + i, v, to_vector);
            }
        }
    } else {
        for (int i = threadIdx.x; i < width; i += blockDim.x) {
            const float v = to_float(from[i]) + bias[i];
            from[i] = from_float<T>(v);
            if (to) {
                to[i] = from_float<T>(gelu<T>(stored<T>(v)));
            }
        }
    }
}

// ---- SwiGLU ----

template <typename T> __device__ __forceinline__ float sigmoid(float x) {
    return divide_for<T>(1.0f, 1.0f + exp_for<T>(-x));
}

// One block per row: y = silu(gate) · up.
template <typename T> __device__ __forceinline__ void swiglu(T* y, const T* gate_up, int width) {
    const T* gate = gate_up + (i64)blockIdx.x * 2 * width;
    const T* up = gate + width;
    T* to = y + (i64)blockIdx.x * width;
    if (width % PIECE == 0) {
        with_known(are_vectors(gate_up, y), [&](auto vector) {
            for (int i = threadIdx.x * PIECE; i < width; i += blockDim.x * PIECE) {
                float g[PIECE], u[PIECE];
                load_piece(g, gate + i, vector);
                load_piece(u, up + i, vector);
#pragma unroll
                for (int j = 0; j < PIECE; j++) {
                    g[j] = g[j] * sigmoid<T>(g[j]) * u[j];
                }
                store_piece(to + i, g, vector);
            }
        });
    } else {
        for (int i = threadIdx.x; i < width; i += blockDim.x) {
            const float g = to_float(gate[i]);
            to[i] = from_float<T>(g * sigmoid<T>(g) * to_float(up[i]));
        }
    }
}

template <typename T> __device__ __forceinline__ void swiglu_slope(float& dgate, float& dup, float g, float u, float dy) {
    const float s = sigmoid<T>(g);
    dup = dy * g * s;
    dgate = dy * u * s * (g * (1.0f - s) + 1.0f);
}

// One block per row: the gradients of gate and up.
template <typename T> __device__ __forceinline__ void swiglu_backward(T* dgate_up, const T* gate_up, const T* dy, int width) {
    const T* gate = gate_up + (i64)blockIdx.x * 2 * width;
    const T* up = gate + width;
    const T* from = dy + (i64)blockIdx.x * width;
    T* dgate = dgate_up + (i64)blockIdx.x * 2 * width;
    T* dup = dgate + width;
    if (width % PIECE == 0) {
        with_known(are_vectors(gate_up, dy, dgate_up), [&](auto vector) {
            for (int i = threadIdx.x * PIECE; i < width; i += blockDim.x * PIECE) {
                float g[PIECE], u[PIECE], d[PIECE];
                load_piece(g, gate + i, vector);
                load_piece(u, up + i, vector);
                load_piece(d, from + i, vector);
#pragma unroll
                for (int j = 0; j < PIECE; j++) {
                    swiglu_slope<T>(g[j], u[j], g[j], u[j], d[j]);
                }
                store_piece(dgate + i, g, vector);
                store_piece(dup + i, u, vector);
            }
        });
    } else {
        for (int i = threadIdx.x; i < width; i += blockDim.x) {
            float g, u;
            swiglu_slope<T>(g, u, to_float(gate[i]), to_float(up[i]), to_float(from[i]));
            dgate[i] = from_float<T>(g);
            dup[i] = from_float<T>(u);
        }
    }
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
            if (i + PIECE <= width) {
                float v[PIECE];
                load_piece(v, at + i, vector);
#pragma unroll
                for (int j = 0; j < PIECE; j++) {
                    const unsigned word = j < 4 ? low.at[j % 4] : high.at[j % 4];
                    v[j] = word >= threshold ? v[j] * keep : 0.0f;
                }
                store_piece(at + i, v, vector);
            } else {
#pragma unroll
                for (int j = 0; j < PIECE; j++) {
                    const unsigned word = j < 4 ? low.at[j % 4] : high.at[j % 4];
                    if (i + j < width) {
                        at[i + j] = from_float<T>(word >= threshold ? to_float(at[i + j]) * keep : 0.0f);
                    }
                }
            }
        }
    }
}

// ---- rotary embedding ----

// One block per row of `stride` elements: rotates its first `heads` heads, element i of a head with element i + half, by the
// angles of position start + row mod seq. `sign` -1 rotates back.
template <typename T>
__device__ __forceinline__ void rope(T* x, const float* cos, const float* sin, int stride, int heads, int half, int seq, int start, float sign) {
    T* row = x + (i64)blockIdx.x * stride;
    const i64 position = start + (int)(blockIdx.x % (unsigned)seq);
    cos += position * half;
    sin += position * half;
    if (half % PIECE == 0) {
        const bool vector = is_vector(row), table_vector = is_vector(cos) && is_vector(sin);
        const int pieces = half / PIECE;
        for (int k = threadIdx.x; k < heads * pieces; k += blockDim.x) {
            const int i = k % pieces * PIECE;
            T* a = row + (k / pieces) * 2 * half + i;
            float u[PIECE], v[PIECE], c[PIECE], s[PIECE];
            load_piece(u, a, vector);
            load_piece(v, a + half, vector);
            load_piece(c, cos + i, table_vector);
            load_piece(s, sin + i, table_vector);
#pragma unroll
            for (int j = 0; j < PIECE; j++) {
                const float angle = s[j] * sign, low = u[j] * c[j] - v[j] * angle;
                v[j] = v[j] * c[j] + u[j] * angle;
                u[j] = low;
            }
            store_piece(a, u, vector);
            store_piece(a + half, v, vector);
        }
    } else {
        for (int k = threadIdx.x; k < heads * half; k += blockDim.x) {
            const int i = k % half;
            T* a = row + (k / half) * 2 * half + i;
            const float u = to_float(a[0]), v = to_float(a[half]), c = cos[i], s = sin[i] * sign;
            a[0] = from_float<T>(u * c - v * s);
            a[half] = from_float<T>(v * c + u * s);
        }
    }
}

// ---- entry points ----

#define POINTWISE(suffix, T)                                                                                               \
    extern "C" __global__ void gelu_##suffix(T* y, const T* x, i64 n) {                                                    \
        map(y, x, n, [](float x) { return gelu<T>(x); });                                                                  \
    }                                                                                                                      \
    extern "C" __global__ void gelu_backward_##suffix(T* dy, const T* x, i64 n) {                                          \
        zip(dy, x, n, [](float dy, float x) { return dy * gelu_slope<T>(x); });                                            \
    }                                                                                                                      \
    extern "C" __global__ void relu_##suffix(T* y, const T* x, i64 n) {                                                    \
        map(y, x, n, [](float x) { return x < 0.0f ? 0.0f : x; });                                                         \
    }                                                                                                                      \
    extern "C" __global__ void relu_backward_##suffix(T* dy, const T* x, i64 n) {                                          \
        zip(dy, x, n, [](float dy, float x) { return x > 0.0f ? dy : 0.0f; });                                             \
    }                                                                                                                      \
    extern "C" __global__ void add_##suffix(T* y, const T* x, i64 n) {                                                     \
        zip(y, x, n, [](float y, float x) { return y + x; });                                                              \
    }                                                                                                                      \
    extern "C" __global__ void add_bias_##suffix(T* x, T* y, const float* bias, int width) {                               \
        add_bias(x, y, bias, width);                                                                                       \
    }                                                                                                                      \
    extern "C" __global__ void swiglu_##suffix(T* y, const T* gate_up, int width) {                                        \
        swiglu(y, gate_up, width);                                                                                         \
    }                                                                                                                      \
    extern "C" __global__ void swiglu_backward_##suffix(T* dgate_up, const T* gate_up, const T* dy, int width) {           \
        swiglu_backward(dgate_up, gate_up, dy, width);                                                                     \
    }                                                                                                                      \
    extern "C" __global__ void dropout_##suffix(T* x, int samples, i64 width, unsigned key0, unsigned key1, u64 threshold, \
                                                float keep, u64 first, u64 stride, unsigned step) {                        \
        dropout(x, samples, width, key0, key1, threshold, keep, first, stride, step);                                      \
    }                                                                                                                      \
    extern "C" __global__ void rope_##suffix(T* x, const float* cos, const float* sin, int stride, int heads, int half,    \
                                             int seq, int start, float sign) {                                             \
        rope(x, cos, sin, stride, heads, half, seq, start, sign);                                                          \
    }
POINTWISE(f32, float)
POINTWISE(bf16, bf16)

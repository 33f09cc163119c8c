// Rows and flat arrays in pieces of eight elements: the parts that kernels of one pass over memory share.
#pragma once

#include "common.cuh"

// Elements that a thread reads or writes at once: one vector of bf16, two of f32.
const int PIECE = 8;

struct __align__(16) FourWords {
    unsigned at[4];
};

// True if pieces from `p` on, at multiples of eight elements, can be read as vectors.
__device__ __forceinline__ bool is_vector(const void* p) {
    return ((u64)p & 15) == 0;
}

// True if `is_vector` holds for all of `arrays`. A null array counts as aligned.
template <typename... Arrays> __device__ __forceinline__ bool are_vectors(const Arrays*... arrays) {
    return (is_vector(arrays) && ...);
}

// An aligned piece as stored in memory.
template <typename T> struct Stored {
    FourWords at[PIECE * sizeof(T) / sizeof(FourWords)];
};

template <typename T> __device__ __forceinline__ Stored<T> load_stored(const T* p) {
    return *reinterpret_cast<const Stored<T>*>(p);
}

__device__ __forceinline__ void spread(float v[PIECE], const Stored<float>& x) {
#pragma unroll
    for (int j = 0; j < PIECE; j++) {
        v[j] = __uint_as_float(x.at[j / 4].at[j % 4]);
    }
}

__device__ __forceinline__ void spread(float v[PIECE], const Stored<bf16>& x) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
        v[2 * j] = __uint_as_float(x.at[0].at[j] << 16);
        v[2 * j + 1] = __uint_as_float(x.at[0].at[j] & 0xffff0000u);
    }
}

template <typename T> __device__ __forceinline__ void load_piece(float v[PIECE], const T* p, bool vector) {
    if (vector) {
        spread(v, load_stored(p));
    } else {
#pragma unroll
        for (int j = 0; j < PIECE; j++) {
            v[j] = to_float(p[j]);
        }
    }
}

__device__ __forceinline__ void pack(Stored<float>& x, const float v[PIECE]) {
#pragma unroll
    for (int j = 0; j < PIECE; j++) {
        x.at[j / 4].at[j % 4] = __float_as_uint(v[j]);
    }
}

__device__ __forceinline__ void pack(Stored<bf16>& x, const float v[PIECE]) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
        x.at[0].at[j] = pack_bf16(v[2 * j], v[2 * j + 1]);
    }
}

template <typename T> __device__ __forceinline__ void store_piece(T* p, const float v[PIECE], bool vector) {
    if (vector) {
        Stored<T> x;
        pack(x, v);
        *reinterpret_cast<Stored<T>*>(p) = x;
    } else {
#pragma unroll
        for (int j = 0; j < PIECE; j++) {
            p[j] = from_float<T>(v[j]);
        }
    }
}

// Elements that a thread reads, computes and writes together: a piece, as vectors (VECTOR) or one by one; or a single element.
template <int COUNT, bool VECTOR> struct Span {
    static const int N = COUNT;

    template <typename T> static __device__ __forceinline__ void load(float* v, const T* p) {
        if constexpr (N == PIECE) {
            load_piece(v, p, VECTOR);
        } else {
            v[0] = to_float(p[0]);
        }
    }

    template <typename T> static __device__ __forceinline__ void store(T* p, const float* v) {
        if constexpr (N == PIECE) {
            store_piece(p, v, VECTOR);
        } else {
            p[0] = from_float<T>(v[0]);
        }
    }
};

// Calls f(span) with the span for arrays that consist of whole pieces, which are either all vectors or all read one by one, or for single
// elements. The span is known when the kernel is compiled. So loads of several arrays are under way at once; after a branch for each
// array, the kernel would wait for each load alone.
template <typename F> __device__ __forceinline__ void with_span(bool whole_pieces, bool vector, F f) {
    if (!whole_pieces) {
        f(Span<1, false>());
    } else if (vector) {
        f(Span<PIECE, true>());
    } else {
        f(Span<PIECE, false>());
    }
}

// A number as an array of T would hold it.
template <typename T> __device__ __forceinline__ float stored(float x) {
    return to_float(from_float<T>(x));
}

// exp and division: for f32 to the last digits, for bf16 as fast as rounding to 8 bits allows.
template <typename T> __device__ __forceinline__ float exp_for(float x) {
    return sizeof(T) == sizeof(float) ? expf(x) : __expf(x);
}
template <typename T> __device__ __forceinline__ float divide_for(float a, float b) {
#ifndef RUNNER_EMULATED
    if (sizeof(T) == sizeof(bf16)) {
        return __fdividef(a, b);
    }
#endif
    return a / b;
}

// tanh(x/c) and c·tanh(x/c).
template <typename T> __device__ __forceinline__ float tanh_of(float x, float cap) {
    return 1.0f - divide_for<T>(2.0f, exp_for<T>(2.0f * (x / cap)) + 1.0f);
}

template <typename T> __device__ __forceinline__ float capped(float x, float cap) {
    return cap * tanh_of<T>(x, cap);
}

// Bits that are set.
__device__ __forceinline__ int count_bits(unsigned x) {
#ifdef RUNNER_EMULATED
    return __builtin_popcount(x);
#else
    return __popc(x);
#endif
}

// ---- a row of `d` elements held by `threads` threads, up to COUNT elements in each one's registers ----
//
// VECTOR: rows are of whole pieces, and all that is loaded and stored is aligned.

// Calls f(span, e, i) for the elements of thread `t`: from register e on it holds the span's elements from i on.
template <int COUNT, bool VECTOR, typename F> __device__ __forceinline__ void each_held(int d, int t, int threads, F f) {
    typedef Span<VECTOR ? PIECE : 1, VECTOR> S;
#pragma unroll
    for (int k = 0; k < COUNT; k += PIECE) {
        const int i = k * threads + t * PIECE;
#pragma unroll
        for (int j = 0; j < PIECE; j += S::N) {
            if (i + j < d) {
                f(S(), k + j, i + j);
            }
        }
    }
}

// The elements of a row, 0 after its end.
template <int COUNT, bool VECTOR, typename T>
__device__ __forceinline__ void load_held(float v[COUNT], const T* row, int d, int t, int threads) {
#pragma unroll
    for (int e = 0; e < COUNT; e++) {
        v[e] = 0.0f;
    }
    each_held<COUNT, VECTOR>(d, t, threads, [&](auto span, int e, int i) { span.load(v + e, row + i); });
}

template <int COUNT, bool VECTOR, typename T>
__device__ __forceinline__ void store_held(T* row, const float v[COUNT], int d, int t, int threads) {
    each_held<COUNT, VECTOR>(d, t, threads, [&](auto span, int e, int i) { span.store(row + i, v + e); });
}

// Two sums at once, over the threads of a row: a warp, or the whole block. `scratch` has 64 elements of shared memory.
__device__ __forceinline__ void row_sums(float& a, float& b, int threads, float* scratch) {
    a = warp_sum(a);
    b = warp_sum(b);
    if (threads > 32) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
        __syncthreads();
        if (lane == 0) {
            scratch[warp] = a;
            scratch[32 + warp] = b;
        }
        __syncthreads();
        a = warp_sum(lane < warps ? scratch[lane] : 0.0f);
        b = warp_sum(lane < warps ? scratch[32 + lane] : 0.0f);
    }
}

__device__ __forceinline__ float row_sum(float x, int threads, float* scratch) {
    return threads > 32 ? block_sum(x, scratch) : warp_sum(x);
}

// ---- flat arrays ----

// Runs `f(span, i)` for the elements from i on of each piece, of `n` elements, and for each element i after the last whole piece.
template <typename F> __device__ __forceinline__ void each_span(i64 n, bool vector, F f) {
    const i64 first = blockIdx.x * (i64)blockDim.x + threadIdx.x, all = (i64)gridDim.x * blockDim.x, pieces = n / PIECE;
    with_span(true, vector, [&](auto span) {
        for (i64 k = first; k < pieces; k += all) {
            f(span, k * PIECE);
        }
    });
    const i64 rest = pieces * PIECE + first;
    if (rest < n) {
        f(Span<1, false>(), rest);
    }
}

// The elements of a span in registers.
template <class S> struct Loaded {
    float at[S::N];
    template <typename T> __device__ __forceinline__ explicit Loaded(const T* p) {
        S::load(at, p);
    }
};

// y = f(x...) for the elements of one span.
template <class S, typename Y, typename F, typename... X> __device__ __forceinline__ void map_span(S, F f, Y* y, const X*... x) {
    const auto compute = [&](const auto&... loaded) {
        float v[S::N];
#pragma unroll
        for (int j = 0; j < S::N; j++) {
            v[j] = f(loaded.at[j]...);
        }
        S::store(y, v);
    };
    compute(Loaded<S>(x)...);
}

// y = f(x...), element by element; y may be one of the arrays that are read.
template <typename Y, typename F, typename... X> __device__ __forceinline__ void map(i64 n, F f, Y* y, const X*... x) {
    each_span(n, are_vectors(y, x...), [&](auto span, i64 i) { map_span(span, f, y + i, (x + i)...); });
}

// ---- rows of `width` elements, one for each block ----

// Runs `f(span, i)` for the elements from i on, which the threads of the block take in turn.
template <typename F> __device__ __forceinline__ void each_column(int width, bool vector, F f) {
    with_span(width % PIECE == 0, vector, [&](auto span) {
        for (int i = threadIdx.x * span.N; i < width; i += blockDim.x * span.N) {
            f(span, i);
        }
    });
}

// Softmax cross-entropy with its gradient in place of the logits, and sums in f64.
#include "rows.cuh"

// `IGNORED_TARGET` of crates/spec/src/data.rs.
const unsigned IGNORE = 0xffffffffu;
const float LOWEST = -3.402823466e38f;

// Runs `f(span, p)` on eight elements at a time where the memory is aligned, and on the single elements before and after. A row of odd
// length begins anywhere. With BACK it goes backward from the row's end, whose elements were read last and are still in a cache.
template <typename T, bool BACK, typename F> __device__ __forceinline__ void each_of_row(T* row, int width, F f) {
    const int misplaced = (int)((u64)row & 15) / (int)sizeof(T), lead = misplaced == 0 ? 0 : 16 / (int)sizeof(T) - misplaced;
    const int head = lead < width ? lead : width;
    const int pieces = (width - head) / PIECE, behind = head + pieces * PIECE;
    for (int k = threadIdx.x; k < pieces; k += blockDim.x) {
        f(Span<PIECE, true>(), row + head + (BACK ? pieces - 1 - k : k) * PIECE);
    }
    if ((int)threadIdx.x < head) {
        f(Span<1, false>(), row + threadIdx.x);
    }
    if ((int)threadIdx.x < width - behind) {
        f(Span<1, false>(), row + behind + threadIdx.x);
    }
}

// One block per row of `vocab` logits, `stride` elements after the one before: loss = logsumexp(logits) − logits[target], 0 where the target is
// ignored. With `gradient`, the logits become scale · (softmax − onehot), 0 in ignored rows. With CAPPED, all this is of cap · tanh(logits / cap).
// The gradient also has that of z · logsumexp².
template <bool CAPPED, typename T>
__device__ __forceinline__ void cross_entropy(float* losses, T* logits, const unsigned* targets, int vocab, int stride, float scale,
                                              int gradient, float cap, float z) {
    const auto value = [cap](float z) { return CAPPED ? capped<T>(z, cap) : z; };
    __shared__ float scratch[32];
    T* row = logits + (i64)blockIdx.x * stride;
    const unsigned target = targets[blockIdx.x];
    if (target == IGNORE) {
        if (threadIdx.x == 0) {
            losses[blockIdx.x] = 0.0f;
        }
        if (gradient) {
            each_of_row<T, false>(row, vocab, [&](auto span, T* p) {
                const float zeros[span.N] = {};
                span.store(p, zeros);
            });
        }
        return;
    }
    // The largest logit so far, and the sum of exponentials relative to it.
    float top = LOWEST, total = 0.0f;
    const float at_target = target < (unsigned)vocab ? value(to_float(row[target])) : NAN;
    each_of_row<T, false>(row, vocab, [&](auto span, T* p) {
        float v[span.N];
        span.load(v, p);
        if (CAPPED) {
#pragma unroll
            for (int j = 0; j < span.N; j++) {
                v[j] = value(v[j]);
            }
        }
        float high = v[0];
#pragma unroll
        for (int j = 1; j < span.N; j++) {
            high = fmaxf(high, v[j]);
        }
        if (high > top) {
            total *= exp_for<T>(top - high);
            top = high;
        }
#pragma unroll
        for (int j = 0; j < span.N; j++) {
            total += exp_for<T>(v[j] - top);
        }
    });
    const float highest = block_max(top, scratch);
    total = block_sum(total * exp_for<T>(top - highest), scratch);
    if (threadIdx.x == 0) {
        // The difference first: a small loss among large logits keeps its digits.
        losses[blockIdx.x] = logf(total) + (highest - at_target);
    }
    if (gradient) {
        // Exactly 1 without z.
        float weight = z == 0.0f ? 1.0f : fmaf(2.0f * z, logf(total) + highest, 1.0f);
        weight = fabsf(weight) > 1e-6f ? weight : 1e-6f;
        const float factor = scale / total * weight, at_hot = total / weight;
        T* hot = row + target;
        each_of_row<T, true>(row, vocab, [&](auto span, T* p) {
            float v[span.N];
            span.load(v, p);
#pragma unroll
            for (int j = 0; j < span.N; j++) {
                const float t = CAPPED ? tanh_of<T>(v[j], cap) : 0.0f, e = exp_for<T>((CAPPED ? cap * t : v[j]) - highest);
                v[j] = (p + j == hot ? e - at_hot : e) * factor;
                if (CAPPED) {
                    v[j] *= 1.0f - t * t;
                }
            }
            span.store(p, v);
        });
    }
}

// ---- sums in f64: of each block's part, then of the parts by one block ----

// One block.
template <typename T> __device__ __forceinline__ void sum(double* out, const T* x, i64 n) {
    __shared__ double scratch[32];
    double sum = 0.0;
    for (i64 i = threadIdx.x; i < n; i += blockDim.x) {
        sum += (double)x[i];
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) {
        *out = sum;
    }
}

template <typename T> __device__ __forceinline__ void squares(double* partial, const T* x, i64 n) {
    __shared__ double scratch[32];
    double sum = 0.0;
    each_span(n, is_vector(x), [&](auto span, i64 i) {
        float v[span.N];
        span.load(v, x + i);
#pragma unroll
        for (int j = 0; j < span.N; j++) {
            sum += (double)v[j] * (double)v[j];
        }
    });
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = sum;
    }
}

// ---- whether all is finite ----

// Adds to `count` a number that is 0 only if all elements are finite.
template <typename T> __device__ __forceinline__ void count_bad(unsigned* count, const T* x, i64 n) {
    __shared__ float scratch[32];
    float bad = 0.0f;
    each_span(n, is_vector(x), [&](auto span, i64 i) {
        float v[span.N];
        span.load(v, x + i);
#pragma unroll
        for (int j = 0; j < span.N; j++) {
            bad = fabsf(v[j]) <= -LOWEST ? bad : 1.0f;
        }
    });
    bad = block_sum(bad, scratch);
    if (threadIdx.x == 0 && bad > 0.0f) {
        atomicAdd(count, 1u);
    }
}

// ---- entry points ----

#define CROSS_ENTROPY(suffix, T, CAPPED)                                                                                   \
    extern "C" __global__ void __launch_bounds__(1024)                                                                     \
        cross_entropy_##suffix(float* losses, T* logits, const unsigned* targets, int vocab, int stride, float scale,      \
                               int gradient, float cap, float z) {                                                                  \
        cross_entropy<CAPPED>(losses, logits, targets, vocab, stride, scale, gradient, cap, z);                               \
    }

#define LOSS(suffix, T)                                                                                                    \
    CROSS_ENTROPY(suffix, T, false)                                                                                        \
    CROSS_ENTROPY(suffix##_capped, T, true)                                                                                \
    extern "C" __global__ void __launch_bounds__(512) squares_##suffix(double* partial, const T* x, i64 n) {               \
        squares(partial, x, n);                                                                                            \
    }                                                                                                                      \
    extern "C" __global__ void count_bad_##suffix(unsigned* count, const T* x, i64 n) {                                    \
        count_bad(count, x, n);                                                                                            \
    }
LOSS(f32, float)
LOSS(bf16, bf16)

#define SUM(suffix, T)                                                                                                     \
    extern "C" __global__ void __launch_bounds__(1024) sum_##suffix(double* out, const T* x, i64 n) {                      \
        sum(out, x, n);                                                                                                    \
    }
SUM(f32, float)
SUM(f64, double)

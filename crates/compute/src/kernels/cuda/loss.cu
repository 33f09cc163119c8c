// Softmax cross-entropy with its gradient in place of the logits, and sums in f64.
#include "rows.cuh"

const unsigned IGNORE = 0xffffffffu;
const float LOWEST = -3.402823466e38f;

// Runs `f` on eight elements at a time where the memory is aligned, and `g` on the single elements before and after. A row of odd
// length begins anywhere. `back` goes from the row's end, where what was read last is still near.
template <typename T, bool BACK, typename F, typename G> __device__ __forceinline__ void each_of_row(T* row, int width, F f, G g) {
    const int misplaced = (int)((u64)row & 15) / (int)sizeof(T), lead = misplaced == 0 ? 0 : 16 / (int)sizeof(T) - misplaced;
    const int head = lead < width ? lead : width;
    const int pieces = (width - head) / PIECE, behind = head + pieces * PIECE;
    for (int k = threadIdx.x; k < pieces; k += blockDim.x) {
        f(row + head + (BACK ? pieces - 1 - k : k) * PIECE);
    }
    if ((int)threadIdx.x < head) {
        g(row + threadIdx.x);
    }
    if ((int)threadIdx.x < width - behind) {
        g(row + behind + threadIdx.x);
    }
}

// One block per row: loss = logsumexp(logits) − logits[target], 0 where the target is ignored. With `gradient`, the logits become
// scale · (softmax − onehot), 0 in ignored rows.
template <typename T>
__device__ __forceinline__ void cross_entropy(float* losses, T* logits, const unsigned* targets, int vocab, float scale, int gradient) {
    __shared__ float scratch[32];
    T* row = logits + (i64)blockIdx.x * vocab;
    const unsigned target = targets[blockIdx.x];
    if (target == IGNORE) {
        if (threadIdx.x == 0) {
            losses[blockIdx.x] = 0.0f;
        }
        if (gradient) {
            float zeros[PIECE];
#pragma unroll
            for (int j = 0; j < PIECE; j++) {
                zeros[j] = 0.0f;
            }
            each_of_row<T, false>(
                row, vocab, [&](T* p) { store_piece(p, zeros, true); }, [&](T* p) { *p = from_float<T>(0.0f); });
        }
        return;
    }
    // The largest logit so far, and the sum of exponentials relative to it.
    float top = LOWEST, total = 0.0f;
    const float at_target = target < (unsigned)vocab ? to_float(row[target]) : NAN;
    each_of_row<T, false>(
        row, vocab,
        [&](T* p) {
            float v[PIECE];
            load_piece(v, p, true);
            float high = v[0];
#pragma unroll
            for (int j = 1; j < PIECE; j++) {
                high = fmaxf(high, v[j]);
            }
            if (high > top) {
                total *= exp_for<T>(top - high);
                top = high;
            }
#pragma unroll
            for (int j = 0; j < PIECE; j++) {
                total += exp_for<T>(v[j] - top);
            }
        },
        [&](T* p) {
            const float v = to_float(*p);
            if (v > top) {
                total *= exp_for<T>(top - v);
                top = v;
            }
            total += exp_for<T>(v - top);
        });
    const float highest = block_max(top, scratch);
    total = block_sum(total * exp_for<T>(top - highest), scratch);
    if (threadIdx.x == 0) {
        // The difference first: a small loss among large logits keeps its digits.
        losses[blockIdx.x] = logf(total) + (highest - at_target);
    }
    if (gradient) {
        const float factor = scale / total;
        T* hot = row + target;
        each_of_row<T, true>(
            row, vocab,
            [&](T* p) {
                float v[PIECE];
                load_piece(v, p, true);
#pragma unroll
                for (int j = 0; j < PIECE; j++) {
                    const float e = exp_for<T>(v[j] - highest);
                    v[j] = (p + j == hot ? e - total : e) * factor;
                }
                store_piece(p, v, true);
            },
            [&](T* p) {
                const float e = exp_for<T>(to_float(*p) - highest);
                *p = from_float<T>((p == hot ? e - total : e) * factor);
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
    const bool vector = is_vector(x);
    double sum = 0.0;
    each_piece(
        n,
        [&](i64 i) {
            float v[PIECE];
            load_piece(v, x + i, vector);
#pragma unroll
            for (int j = 0; j < PIECE; j++) {
                sum += (double)v[j] * (double)v[j];
            }
        },
        [&](i64 i) {
            const double v = (double)to_float(x[i]);
            sum += v * v;
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
    const bool vector = is_vector(x);
    float bad = 0.0f;
    each_piece(
        n,
        [&](i64 i) {
            float v[PIECE];
            load_piece(v, x + i, vector);
#pragma unroll
            for (int j = 0; j < PIECE; j++) {
                bad = fabsf(v[j]) <= -LOWEST ? bad : 1.0f;
            }
        },
        [&](i64 i) { bad = fabsf(to_float(x[i])) <= -LOWEST ? bad : 1.0f; });
    bad = block_sum(bad, scratch);
    if (threadIdx.x == 0 && bad > 0.0f) {
        atomicAdd(count, 1u);
    }
}

// ---- entry points ----

#define LOSS(suffix, T)                                                                                                    \
    extern "C" __global__ void __launch_bounds__(1024) cross_entropy_##suffix(float* losses, T* logits,                    \
                                                                              const unsigned* targets, int vocab,          \
                                                                              float scale, int gradient) {                 \
        cross_entropy(losses, logits, targets, vocab, scale, gradient);                                                    \
    }                                                                                                                      \
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

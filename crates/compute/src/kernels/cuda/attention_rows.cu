// Attention one query per block, without tiles: new tokens over a key-value cache.
//
// A group of 8 or 16 lanes reads one row of a head at a time, 16 numbers per lane, so heads have up to 128 or 256; the block's groups take rows
// in turn, and their sums are added in order at the end.
#include "attention_common.cuh"

#define PER_LANE 16

// A lane's part of a head's row, as f32: chunks of 16 bytes, `LANES` apart; zeros from `width` on.
template <int LANES, typename T> __device__ __forceinline__ void read_row(float (&x)[PER_LANE], const T* row, int width, bool aligned) {
    const int E = Vector<T>::N, lane = threadIdx.x % LANES;
#pragma unroll
    for (int c = 0; c < PER_LANE / E; c++) {
        const int at = (lane + LANES * c) * E;
        if (aligned) {
            Vector<T> v;
            if (at < width) {
                v = load_vector(row + at);
            }
#pragma unroll
            for (int e = 0; e < E; e++) {
                x[c * E + e] = at < width ? to_float(v.at[e]) : 0.f;
            }
        } else {
#pragma unroll
            for (int e = 0; e < E; e++) {
                x[c * E + e] = at + e < width ? to_float(row[at + e]) : 0.f;
            }
        }
    }
}

// The sum over a group's lanes, which all get it.
template <int LANES> __device__ __forceinline__ float group_dot(const float (&a)[PER_LANE], const float (&b)[PER_LANE]) {
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        sum = fmaf(a[i], b[i], sum);
    }
#pragma unroll
    for (int x = LANES / 2; x > 0; x /= 2) {
        sum += __shfl_xor_sync(FULL_MASK, sum, x);
    }
    return sum;
}

// Adds up the groups' parts, each times its factor, and writes the row times `scale`. `sums` has THREADS·PER_LANE numbers of shared
// memory; a barrier comes before and after they are written.
template <int LANES, typename T>
__device__ __forceinline__ void write_row(float* sums, const float (&x)[PER_LANE], const float* factors, float scale, T* row, int width) {
    const int E = Vector<T>::N, GROUPS = THREADS / LANES, WIDTH = LANES * PER_LANE, lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    __syncthreads();
#pragma unroll
    for (int c = 0; c < PER_LANE / E; c++) {
#pragma unroll
        for (int e = 0; e < E; e++) {
            sums[group * WIDTH + (lane + LANES * c) * E + e] = x[c * E + e];
        }
    }
    __syncthreads();
    for (int d = threadIdx.x; d < width; d += THREADS) {
        float sum = 0.f;
        for (int g = 0; g < GROUPS; g++) {
            sum = fmaf(sums[g * WIDTH + d], factors[g], sum);
        }
        row[d] = from_float<T>(sum * scale);
    }
}

// Queries `start ..` of a sample, at q, over the keys and values up to their own, `earlier_keys` of them before it, in caches [batch,
// kv_heads, capacity, width].
// out: [batch·queries, heads·width]. The stride is in elements. Grid: (queries, heads, batch).
template <int LANES, typename T>
__device__ __forceinline__ void attention_rows(const T* q, i64 q_stride, const T* keys, const T* values, T* out, int start, int capacity,
                                               int earlier_keys, int kv_heads, int width, float scale) {
    const int GROUPS = THREADS / LANES, KEYS = 4; // keys of a group at a time
    __shared__ float sums[THREADS * PER_LANE];
    __shared__ float tops[32], totals[32], factors[32];
    const int queries = gridDim.x, heads = gridDim.y, query = gridDim.x - 1 - blockIdx.x, head = blockIdx.y, sample = blockIdx.z;
    const int group = threadIdx.x / LANES;
    const int length = start + query + 1, first = max(start + query - earlier_keys, 0);
    const i64 head_at = ((i64)sample * kv_heads + head / (heads / kv_heads)) * capacity * width;
    const T *k = keys + head_at, *v = values + head_at;
    const bool aligned = is_aligned(q, width) && is_aligned(keys, width) && is_aligned(values, width);

    float x[PER_LANE], o[PER_LANE] = {};
    read_row<LANES>(x, q + ((i64)sample * queries + query) * q_stride + head * width, width, aligned);
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        x[i] *= scale * LOG2_E;
    }
    float top = -INFINITY, total = 0.f;
    for (int from = first; from < length; from += GROUPS * KEYS) {
        float s[KEYS], y[KEYS][PER_LANE];
        float high = top;
#pragma unroll
        for (int n = 0; n < KEYS; n++) {
            const int key = from + n * GROUPS + group;
            read_row<LANES>(y[n], k + (i64)min(key, length - 1) * width, width, aligned);
        }
#pragma unroll
        for (int n = 0; n < KEYS; n++) {
            const int key = from + n * GROUPS + group;
            s[n] = group_dot<LANES>(x, y[n]);
            s[n] = key < length ? s[n] : -INFINITY;
            high = fmaxf(high, s[n]);
        }
        // A group that has seen no key yet has neither a maximum nor anything to shrink.
        const float base = high == -INFINITY ? 0.f : high, shrink = fast_exp2(top - base);
        top = high;
        total *= shrink;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            o[i] *= shrink;
        }
#pragma unroll
        for (int n = 0; n < KEYS; n++) {
            const int key = from + n * GROUPS + group;
            read_row<LANES>(y[n], v + (i64)min(key, length - 1) * width, width, aligned);
        }
#pragma unroll
        for (int n = 0; n < KEYS; n++) {
            const int key = from + n * GROUPS + group;
            float p = fast_exp2(s[n] - base);
            total += p;
            p = key < length ? p : 0.f;
#pragma unroll
            for (int i = 0; i < PER_LANE; i++) {
                o[i] = p > 0.f ? fmaf(p, y[n][i], o[i]) : o[i];
            }
        }
    }
    if (threadIdx.x % LANES == 0) {
        tops[group] = top;
        totals[group] = total;
    }
    __syncthreads();
    float high = tops[0], sum = 0.f;
    for (int g = 1; g < GROUPS; g++) {
        high = fmaxf(high, tops[g]);
    }
    for (int g = 0; g < GROUPS; g++) {
        const float factor = fast_exp2(tops[g] - high);
        sum = fmaf(totals[g], factor, sum);
        if ((int)threadIdx.x == g) {
            factors[g] = factor;
        }
    }
    T* const row = out + ((i64)sample * queries + query) * heads * width + head * width;
    write_row<LANES>(sums, o, factors, 1.f / sum, row, width);
}

// Copies the keys and values of `seq` new tokens per sample to positions `start ..` of the caches [batch, kv_heads, capacity, width].
template <typename T>
__device__ __forceinline__ void cache_append(const T* qkv, T* keys, T* values, int seq, int start, int capacity, int heads, int kv_heads,
                                             int width, i64 count) {
    for (i64 n = blockIdx.x * (i64)blockDim.x + threadIdx.x; n < count; n += (i64)gridDim.x * blockDim.x) {
        // n counts [batch, seq, kv_heads, width].
        const int d = (int)(n % width), kv = (int)(n / width % kv_heads);
        const i64 row = n / width / kv_heads, sample = row / seq;
        const T* from = qkv + row * (heads + 2 * kv_heads) * width + (heads + kv) * width + d;
        const i64 to = ((sample * kv_heads + kv) * capacity + start + row % seq) * width + d;
        keys[to] = from[0];
        values[to] = from[kv_heads * width];
    }
}

#define ATTENTION_ROWS(name, LANES, T)                                                                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS) attention_rows_##name(const T* q, i64 q_stride, const T* keys, const T* values, \
                                                                                T* out, int start, int capacity, int earlier_keys,       \
                                                                                int kv_heads, int width, float scale) {                  \
        attention_rows<LANES, T>(q, q_stride, keys, values, out, start, capacity, earlier_keys, kv_heads, width, scale);                 \
    }

#define CACHE_APPEND(name, T)                                                                                                             \
    extern "C" __global__ void cache_append_##name(const T* qkv, T* keys, T* values, int seq, int start, int capacity, int heads,         \
                                                   int kv_heads, int width, i64 count) {                                                  \
        cache_append<T>(qkv, keys, values, seq, start, capacity, heads, kv_heads, width, count);                                          \
    }

ATTENTION_ROWS(f32, 8, float)
ATTENTION_ROWS(bf16, 8, bf16)
ATTENTION_ROWS(f32_wide, 16, float)
ATTENTION_ROWS(bf16_wide, 16, bf16)
CACHE_APPEND(f32, float)
CACHE_APPEND(bf16, bf16)

// Attention one query (or key) per block, without tiles: new tokens over a key-value cache, and heads wider than the tiles' 128.
//
// A group of 8 or 32 lanes reads one row of a head at a time, 16 numbers per lane, so heads have up to 128 or 512; the block's groups
// take rows in turn, and their sums are added in order at the end.
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
            sum = fmaf(sums[g * WIDTH + d], factors == nullptr ? 1.f : factors[g], sum);
        }
        row[d] = from_float<T>(sum * scale);
    }
}

// Queries `start ..` of a sample, at q, over the keys and values that they see. out: [batch·queries,
// heads·width]; lse: [batch, heads, queries], may be null. Strides are in elements. Grid: (queries, heads, batch).
template <int LANES, typename T>
__device__ __forceinline__ void attention_rows(const T* q, i64 q_stride, const T* keys, const T* values, i64 kv_sample_stride, i64 head_stride,
                                               i64 row_stride, T* out, float* lse, const unsigned* valid_lengths, int start, int kv_heads, int width,
                                               float scale, MASK_PARAMETERS) {
    const int GROUPS = THREADS / LANES, KEYS = 4; // keys of a group at a time
    __shared__ float sums[THREADS * PER_LANE];
    __shared__ float tops[32], totals[32], factors[32];
    const int queries = gridDim.x, heads = gridDim.y, query = gridDim.x - 1 - blockIdx.x, head = blockIdx.y, sample = blockIdx.z;
    const int group = threadIdx.x / LANES;
    const int length = visible_keys(valid_lengths, sample, min(start + query + 1 + later_keys, start + queries));
    const i64 head_at = sample * kv_sample_stride + head / (heads / kv_heads) * head_stride;
    const T *k = keys + head_at, *v = values + head_at;
    const bool aligned = is_aligned(q, width) && is_aligned(keys, width) && is_aligned(values, width);
    const Dropped dropped(key0, key1, first_sample + (unsigned)sample * sample_stride, step, threshold, queries, head);

    float x[PER_LANE], o[PER_LANE] = {};
    read_row<LANES>(x, q + ((i64)sample * queries + query) * q_stride + head * width, width, aligned);
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        x[i] *= scale * LOG2_E;
    }
    float top = -INFINITY, total = 0.f;
    for (int from = 0; from < length; from += GROUPS * KEYS) {
        float s[KEYS], y[KEYS][PER_LANE];
        float high = top;
#pragma unroll
        for (int n = 0; n < KEYS; n++) {
            const int key = from + n * GROUPS + group;
            read_row<LANES>(y[n], k + (i64)min(key, length - 1) * row_stride, width, aligned);
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
            read_row<LANES>(y[n], v + (i64)min(key, length - 1) * row_stride, width, aligned);
        }
#pragma unroll
        for (int n = 0; n < KEYS; n++) {
            const int key = from + n * GROUPS + group;
            float p = fast_exp2(s[n] - base);
            total += p;
            p = key < length && dropped.keeps(query, key) ? p : 0.f;
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
    if (lse != nullptr && threadIdx.x == 0) {
        lse[((i64)sample * heads + head) * queries + query] = (high + log2f(sum)) / LOG2_E;
    }
    T* const row = out + ((i64)sample * queries + query) * heads * width + head * width;
    write_row<LANES>(sums, o, factors, (threshold == 0 ? 1.f : keep) / sum, row, width);
}

// dQ, as attention_queries of attention_backward.cuh computes it over tiles: a block per query. Grid: (seq, heads, batch).
template <int LANES, typename T>
__device__ __forceinline__ void attention_rows_queries(BACKWARD_PARAMETERS(T), int kv_heads, int width, float scale, MASK_PARAMETERS) {
    const int GROUPS = THREADS / LANES;
    __shared__ float sums[THREADS * PER_LANE];
    const int seq = gridDim.x, heads = gridDim.y, query = gridDim.x - 1 - blockIdx.x, head = blockIdx.y, sample = blockIdx.z;
    const int group = threadIdx.x / LANES, stride = (heads + 2 * kv_heads) * width, kv = head / (heads / kv_heads);
    const int length = visible_keys(valid_lengths, sample, min(query + 1 + later_keys, seq));
    const i64 first = (i64)sample * seq, row = ((i64)sample * heads + head) * seq + query;
    const T* const k = qkv + first * stride + (heads + kv) * width;
    const T* const v = k + kv_heads * width;
    const bool aligned = is_aligned(qkv, width) && is_aligned(dout, width);
    const Dropped dropped(key0, key1, first_sample + (unsigned)sample * sample_stride, step, threshold, seq, head);
    float q[PER_LANE], dy[PER_LANE], dq[PER_LANE] = {};
    read_row<LANES>(q, qkv + (first + query) * stride + head * width, width, aligned);
    read_row<LANES>(dy, dout + (first + query) * heads * width + head * width, width, aligned);
    for (int from = 0; from < length; from += GROUPS) {
        const int key = min(from + group, length - 1);
        float x[PER_LANE], y[PER_LANE];
        read_row<LANES>(x, k + (i64)key * stride, width, aligned);
        read_row<LANES>(y, v + (i64)key * stride, width, aligned);
        const float p = fast_exp2((group_dot<LANES>(q, x) * scale - lse[row]) * LOG2_E);
        const float dp = group_dot<LANES>(dy, y);
        float ds = p * ((dropped.keeps(query, key) ? dp * keep : 0.f) - delta[row]);
        ds = from + group < length ? to_float(from_float<T>(ds)) : 0.f;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            dq[i] = fmaf(ds, x[i], dq[i]);
        }
    }
    write_row<LANES>(sums, dq, nullptr, scale, dqkv + (first + query) * stride + head * width, width);
}

// dK and dV, as attention_keys of attention_backward.cuh computes them over tiles: a block per key. Grid: (seq, kv_heads, batch).
template <int LANES, typename T>
__device__ __forceinline__ void attention_rows_keys(BACKWARD_PARAMETERS(T), int heads, int width, float scale, MASK_PARAMETERS) {
    const int GROUPS = THREADS / LANES;
    __shared__ float sums[THREADS * PER_LANE];
    const int seq = gridDim.x, kv_heads = gridDim.y, key = blockIdx.x, kv = blockIdx.y, sample = blockIdx.z;
    const int group = threadIdx.x / LANES, stride = (heads + 2 * kv_heads) * width, shared_by = heads / kv_heads;
    const int visible = visible_keys(valid_lengths, sample, seq);
    const int seen_from = max(key - later_keys, 0), seen_by = seq - seen_from; // the queries that see the key
    const i64 first = (i64)sample * seq;
    const T* const k = qkv + (first + key) * stride + (heads + kv) * width;
    const bool aligned = is_aligned(qkv, width) && is_aligned(dout, width);
    float x[PER_LANE], y[PER_LANE], dk[PER_LANE] = {}, dv[PER_LANE] = {};
    read_row<LANES>(x, k, width, aligned);
    read_row<LANES>(y, k + kv_heads * width, width, aligned);
    const i64 steps = key < visible ? (i64)shared_by * seen_by : 0;
    for (i64 from = 0; from < steps; from += GROUPS) {
        const i64 n = from + group < steps ? from + group : steps - 1;
        const int head = kv * shared_by + (int)(n / seen_by), query = seen_from + (int)(n % seen_by);
        const Dropped dropped(key0, key1, first_sample + (unsigned)sample * sample_stride, step, threshold, seq, head);
        const i64 row = ((i64)sample * heads + head) * seq + query;
        float q[PER_LANE], dy[PER_LANE];
        read_row<LANES>(q, qkv + (first + query) * stride + head * width, width, aligned);
        read_row<LANES>(dy, dout + (first + query) * heads * width + head * width, width, aligned);
        float p = fast_exp2((group_dot<LANES>(q, x) * scale - lse[row]) * LOG2_E);
        const float dp = group_dot<LANES>(dy, y), kept = dropped.keeps(query, key) ? keep : 0.f;
        float ds = p * (dp * kept - delta[row]);
        p = from + group < steps ? to_float(from_float<T>(p * kept)) : 0.f;
        ds = from + group < steps ? to_float(from_float<T>(ds)) : 0.f;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            dv[i] = fmaf(p, dy[i], dv[i]);
            dk[i] = fmaf(ds, q[i], dk[i]);
        }
    }
    T* const to = dqkv + (first + key) * stride + (heads + kv) * width;
    write_row<LANES>(sums, dk, nullptr, scale, to, width);
    write_row<LANES>(sums, dv, nullptr, 1.f, to + kv_heads * width, width);
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

#define ATTENTION_ROWS(name, T, LANES)                                                                                                    \
    extern "C" __global__ void __launch_bounds__(THREADS) attention_rows_##name(                                                          \
        const T* q, i64 q_stride, const T* keys, const T* values, i64 kv_sample_stride, i64 head_stride, i64 row_stride, T* out,          \
        float* lse, const unsigned* valid_lengths, int start, int kv_heads, int width, float scale, MASK_PARAMETERS) {                           \
        attention_rows<LANES, T>(q, q_stride, keys, values, kv_sample_stride, head_stride, row_stride, out, lse, valid_lengths, start, kv_heads, \
                                 width, scale, MASK_ARGUMENTS);                                                                           \
    }

#define ATTENTION_ROWS_BACKWARD(name, T, LANES)                                                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS) attention_rows_queries_##name(BACKWARD_PARAMETERS(T), int kv_heads, int width,  \
                                                                                        float scale, MASK_PARAMETERS) {                   \
        attention_rows_queries<LANES, T>(BACKWARD_ARGUMENTS, kv_heads, width, scale, MASK_ARGUMENTS);                                     \
    }                                                                                                                                     \
    extern "C" __global__ void __launch_bounds__(THREADS) attention_rows_keys_##name(BACKWARD_PARAMETERS(T), int heads, int width,        \
                                                                                     float scale, MASK_PARAMETERS) {                      \
        attention_rows_keys<LANES, T>(BACKWARD_ARGUMENTS, heads, width, scale, MASK_ARGUMENTS);                                           \
    }

#define CACHE_APPEND(name, T)                                                                                                             \
    extern "C" __global__ void cache_append_##name(const T* qkv, T* keys, T* values, int seq, int start, int capacity, int heads,         \
                                                   int kv_heads, int width, i64 count) {                                                  \
        cache_append<T>(qkv, keys, values, seq, start, capacity, heads, kv_heads, width, count);                                          \
    }

ATTENTION_ROWS(f32, float, 8)
ATTENTION_ROWS(bf16, bf16, 8)
ATTENTION_ROWS(wide_f32, float, 32)
ATTENTION_ROWS(wide_bf16, bf16, 32)
ATTENTION_ROWS_BACKWARD(wide_f32, float, 32)
ATTENTION_ROWS_BACKWARD(wide_bf16, bf16, 32)
CACHE_APPEND(f32, float)
CACHE_APPEND(bf16, bf16)

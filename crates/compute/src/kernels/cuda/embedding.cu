// Embedding of token ids with positions, and its gradients: rows of equal ids are brought together by a stable sort, then added
// in a fixed order, so that the sums are the same each time.
#include "rows.cuh"

// One warp per row: y = scale · table[id] + positions[start + row mod seq]. An id beyond the table gives NaN.
template <typename T, typename P>
__device__ __forceinline__ void embed(T* y, const unsigned* ids, const T* table, const P* positions, float scale, i64 rows, int d, int vocab, int seq, int start) {
    const i64 row = blockIdx.x * (i64)(blockDim.x / 32) + threadIdx.x / 32;
    if (row >= rows) {
        return;
    }
    const int lane = threadIdx.x % 32;
    const unsigned id = ids[row];
    const bool known = id < (unsigned)vocab;
    const T* from = table + (known ? (i64)id : 0) * d;
    const P* at = positions ? positions + (i64)(start + (int)(row % seq)) * d : 0;
    T* to = y + row * d;
    with_span(d % PIECE == 0, are_vectors(from, at, to), [&](auto span) {
        for (int i = lane * span.N; i < d; i += 32 * span.N) {
            float v[span.N], p[span.N];
            span.load(v, from + i);
            if (at) {
                span.load(p, at + i);
            }
#pragma unroll
            for (int j = 0; j < span.N; j++) {
                v[j] = known ? v[j] * scale : NAN;
                v[j] = at ? v[j] + p[j] : v[j];
            }
            span.store(to + i, v);
        }
    });
}

#define EMBED(name, T, P)                                                                                                      \
    extern "C" __global__ void __launch_bounds__(256, 8) name(T* y, const unsigned* ids, const T* table, const P* positions, float scale, i64 rows,      \
                                    int d, int vocab, int seq, int start) {                                                    \
        embed<T, P>(y, ids, table, positions, scale, rows, d, vocab, seq, start);                                              \
    }
EMBED(embed_f32, float, float)
EMBED(embed_bf16, bf16, bf16)
EMBED(embed_bf16_fixed, bf16, float)

// ---- a stable radix sort of (id, row), nine bits at a time ----

const int DIGITS = 512, DIGIT_BITS = 9;

// One warp per group of `group` neighbours: how many of each digit it has, counts[digit][group].
extern "C" __global__ void sort_count(unsigned* counts, const unsigned* keys, int n, int group, int shift) {
    __shared__ unsigned count[DIGITS];
    const int lane = threadIdx.x;
    for (int i = lane; i < DIGITS; i += 32) {
        count[i] = 0;
    }
    __syncthreads();
    const int end = min(n, ((int)blockIdx.x + 1) * group);
    for (int i = (int)blockIdx.x * group + lane; i < end; i += 32) {
        atomicAdd(&count[(keys[i] >> shift) % DIGITS], 1u);
    }
    __syncthreads();
    for (int i = lane; i < DIGITS; i += 32) {
        counts[(i64)i * gridDim.x + blockIdx.x] = count[i];
    }
}

// One block: each number becomes the sum of those before it.
extern "C" __global__ void __launch_bounds__(1024) sort_scan(unsigned* x, int n) {
    __shared__ unsigned totals[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int part = (n + (int)blockDim.x - 1) / (int)blockDim.x;
    const int begin = min(n, (int)threadIdx.x * part), end = min(n, begin + part);
    unsigned own = 0;
    for (int i = begin; i < end; i++) {
        own += x[i];
    }
    unsigned sum = own;
    for (int far = 1; far < 32; far *= 2) {
        const unsigned other = __shfl_up_sync(FULL_MASK, sum, far);
        sum += lane >= far ? other : 0;
    }
    if (lane == 31) {
        totals[warp] = sum;
    }
    __syncthreads();
    unsigned before = 0;
    for (int w = 0; w < warps; w++) {
        before += w < warp ? totals[w] : 0;
    }
    before += sum - own;
    for (int i = begin; i < end; i++) {
        const unsigned v = x[i];
        x[i] = before;
        before += v;
    }
}

// One warp per group, as in `sort_count`: brings keys and rows to their places; `rows` null means row i is i.
extern "C" __global__ void sort_scatter(unsigned* keys_out, unsigned* rows_out, const unsigned* keys, const unsigned* rows, const unsigned* places, int n, int group, int shift) {
    __shared__ unsigned next[DIGITS];
    const int lane = threadIdx.x;
    for (int i = lane; i < DIGITS; i += 32) {
        next[i] = places[(i64)i * gridDim.x + blockIdx.x];
    }
    __syncthreads();
    const int end = min(n, ((int)blockIdx.x + 1) * group);
    for (int base = (int)blockIdx.x * group; base < end; base += 32) {
        const int i = base + lane;
        const bool valid = i < end;
        const unsigned key = valid ? keys[i] : 0, digit = (key >> shift) % DIGITS;
        // The lanes with the same digit.
        unsigned same = __ballot_sync(FULL_MASK, valid);
        for (int bit = 0; bit < DIGIT_BITS; bit++) {
            const unsigned with = __ballot_sync(FULL_MASK, (digit >> bit & 1u) != 0);
            same &= (digit >> bit & 1u) ? with : ~with;
        }
        const unsigned place = next[digit] + (unsigned)count_bits(same & ((1u << lane) - 1u));
        __syncthreads();
        if (valid) {
            keys_out[place] = key;
            rows_out[place] = rows ? rows[i] : (unsigned)i;
            if ((same >> lane) == 1u) {
                next[digit] = place + 1;
            }
        }
        __syncthreads();
    }
}

// ---- sums of runs of equal ids ----

// The number of sorted rows that one block adds; `CHUNK` of embedding.rs.
const int CHUNK = 16;

// Columns [0, d) of one chunk, a span at a time. A run within the chunk goes to the table; of a run that others have a part of, the
// part goes to `partial` ([chunks][2][d]): the first run's to row 0 if it began before, the last run's to row 1.
template <class S, typename T>
__device__ __forceinline__ void add_chunk(S span, float* table, float* partial, const unsigned* id, const unsigned* row, const T* dy, float scale, int count, int d, int vocab, bool before, bool after) {
    for (int c = threadIdx.x * span.N; c < d; c += blockDim.x * span.N) {
        for (int e = 0; e < count;) {
            const unsigned run = id[e];
            int end = e + 1;
            while (end < count && id[end] == run) {
                end++;
            }
            const bool first = e == 0 && before, last = end == count && after;
            float* to = first || last ? partial + ((i64)blockIdx.x * 2 + (first ? 0 : 1)) * d + c : table + (i64)run * d + c;
            float sum[span.N] = {};
            if (!(first || last)) {
                if (run >= (unsigned)vocab) {
                    e = end;
                    continue;
                }
                span.load(sum, to);
            }
            for (; e < end; e++) {
                float v[span.N];
                span.load(v, dy + (i64)row[e] * d + c);
#pragma unroll
                for (int j = 0; j < span.N; j++) {
                    sum[j] = fmaf(scale, v[j], sum[j]);
                }
            }
            span.store(to, sum);
        }
    }
}

// One block per chunk of the sorted (id, row) pairs.
template <typename T>
__device__ __forceinline__ void embed_backward(float* table, float* partial, const unsigned* ids, const unsigned* rows, const T* dy, float scale, int n, int d, int vocab) {
    __shared__ unsigned id[CHUNK], row[CHUNK];
    const int begin = (int)blockIdx.x * CHUNK, count = min(CHUNK, n - begin);
    if ((int)threadIdx.x < count) {
        id[threadIdx.x] = ids[begin + threadIdx.x];
        row[threadIdx.x] = rows[begin + threadIdx.x];
    }
    __syncthreads();
    const bool before = begin > 0 && ids[begin - 1] == id[0];
    const bool after = begin + count < n && ids[begin + count] == id[count - 1];
    const unsigned* const chunk_rows = row;
    with_span(d % PIECE == 0, are_vectors(table, dy, partial), [&](auto span) {
        add_chunk(span, table, partial, id, chunk_rows, dy, scale, count, d, vocab, before, after);
    });
}

// A block per chunk and columns: if a run begins in the chunk and goes on after it, adds the run's parts, chunk after chunk, to the table.
extern "C" __global__ void embed_join(float* table, const float* partial, const unsigned* ids, int n, int d, int vocab) {
    const int begin = (int)blockIdx.x * CHUNK, end = min(begin + CHUNK, n);
    const unsigned run = ids[end - 1];
    const bool after = end < n && ids[end] == run;
    const bool before = begin > 0 && ids[begin - 1] == run;  // Then all of the chunk is the middle of one run.
    if (!after || before || run >= (unsigned)vocab) {
        return;
    }
    int last = blockIdx.x + 1, beyond = gridDim.x;  // The last chunk with a part, and one that has none: ids are in order.
    while (beyond - last > 1) {
        const int middle = last + (beyond - last) / 2;
        (ids[middle * CHUNK] == run ? last : beyond) = middle;
    }
    const int c = blockIdx.y * blockDim.x + threadIdx.x;
    if (c >= d) {
        return;
    }
    constexpr int AHEAD = 8;  // A padding token's run is long: loads do not wait for the sum.
    const float* part = partial + (i64)(blockIdx.x + 1) * 2 * d + c;
    float sum = partial[((i64)blockIdx.x * 2 + 1) * d + c];
    int left = last - blockIdx.x;
    for (; left >= AHEAD; left -= AHEAD) {
        float v[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            v[i] = part[(i64)i * 2 * d];
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            sum += v[i];
        }
        part += (i64)AHEAD * 2 * d;
    }
    for (; left > 0; left--, part += 2 * d) {
        sum += *part;
    }
    table[(i64)run * d + c] += sum;
}

// ---- positions ----

// A thread per eight columns of a position, or per column: adds the samples' rows in order.
template <typename T>
__device__ __forceinline__ void position_backward(float* positions, const T* dy, i64 rows, int seq, int d) {
    with_span(d % PIECE == 0, are_vectors(positions, dy), [&](auto span) {
        const i64 k = (blockIdx.x * (i64)blockDim.x + threadIdx.x) * span.N, all = (i64)seq * d, total = rows * d;
        if (k >= all) {
            return;
        }
        float sum[span.N];
        span.load(sum, positions + k);
#pragma unroll 4
        for (i64 i = k; i < total; i += all) {
            float v[span.N];
            span.load(v, dy + i);
#pragma unroll
            for (int j = 0; j < span.N; j++) {
                sum[j] += v[j];
            }
        }
        span.store(positions + k, sum);
    });
}

// ---- rows by number ----

// One warp per row: y[r] = x[rows[r]].
template <typename T> __device__ __forceinline__ void take_rows(T* y, const T* x, const unsigned* rows, i64 count, int d) {
    const i64 r = blockIdx.x * (i64)(blockDim.x / 32) + threadIdx.x / 32;
    if (r >= count) {
        return;
    }
    const T* from = x + (i64)rows[r] * d;
    T* to = y + r * d;
    const int lane = threadIdx.x % 32;
    if (is_aligned(x, d) && is_aligned(y, d)) {
        for (int i = lane * Vector<T>::N; i < d; i += 32 * Vector<T>::N) {
            store_vector(to + i, load_vector(from + i));
        }
    } else {
        for (int i = lane; i < d; i += 32) {
            to[i] = from[i];
        }
    }
}

// ---- entry points ----

#define EMBEDDING(suffix, T)                                                                                               \
    extern "C" __global__ void embed_backward_##suffix(float* table, float* partial, const unsigned* ids,                  \
                                                       const unsigned* rows, const T* dy, float scale, int n, int d,       \
                                                       int vocab) {                                                        \
        embed_backward(table, partial, ids, rows, dy, scale, n, d, vocab);                                                 \
    }                                                                                                                      \
    extern "C" __global__ void position_backward_##suffix(float* positions, const T* dy, i64 rows, int seq, int d) {       \
        position_backward(positions, dy, rows, seq, d);                                                                    \
    }                                                                                                                      \
    extern "C" __global__ void take_rows_##suffix(T* y, const T* x, const unsigned* rows, i64 count, int d) {              \
        take_rows(y, x, rows, count, d);                                                                                   \
    }
EMBEDDING(f32, float)
EMBEDDING(bf16, bf16)

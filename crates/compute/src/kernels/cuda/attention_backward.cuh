// Attention, backward, deterministic: one kernel for dK and dV (a block per 64 keys, over the queries that see them, of all heads
// of the group in order), one for dQ (a block per 64·MT queries, over their keys). Each computes the probabilities again from the saved
// log-sum-exps: seven products instead of five, but no sums between blocks, so neither atomics nor a buffer for dQ in f32.
//
// Both kernels hold results so that a product's fragments are the next product's left operand: scores never go through shared memory.
// There are two buffers for the tiles that they walk over, so that the next tiles arrive while the current ones are used; one buffer where shared
// memory has no room for two.
#pragma once

#include "attention.cuh"

// delta[batch, heads, seq] = Σ out·dout over each head: eight lanes per head of a row. `count` is batch·seq·heads.
template <typename T>
__device__ __forceinline__ void attention_delta(const T* out, const T* dout, float* delta, int seq, int heads, int width, i64 count) {
    const i64 n = (blockIdx.x * (i64)blockDim.x + threadIdx.x) / 8;
    const int lane = threadIdx.x % 8, E = Vector<T>::N;
    float sum = 0.f;
    if (n < count) {
        const T *a = out + n * width, *b = dout + n * width;
        if (is_aligned(out, width) && is_aligned(dout, width)) {
            for (int c = lane * E; c < width; c += 8 * E) {
                const Vector<T> x = load_vector(a + c), y = load_vector(b + c);
#pragma unroll
                for (int i = 0; i < E; i++) {
                    sum = fmaf(to_float(x.at[i]), to_float(y.at[i]), sum);
                }
            }
        } else {
            for (int c = lane; c < width; c += 8) {
                sum = fmaf(to_float(a[c]), to_float(b[c]), sum);
            }
        }
    }
    for (int x = 4; x > 0; x /= 2) {
        sum += __shfl_xor_sync(FULL_MASK, sum, x);
    }
    if (n < count && lane == 0) {
        const i64 row = n / heads;
        delta[(row / seq * heads + n % heads) * seq + row % seq] = sum;
    }
}

// dK and dV, or one of them where registers do not hold the sums of both. Grid: (tiles of 64 keys, kv_heads, batch). Shared memory: 128 + 2·STAGES·QN
// rows of a tile, and 2·STAGES·QN floats.
template <class M, int D, int QN, bool HELD, bool DROPOUT, bool OF_KEYS, bool OF_VALUES>
__device__ __forceinline__ void attention_keys(BACKWARD_PARAMETERS(typename M::T), int seq, int heads, int kv_heads, int width,
                                               float scale, MASK_PARAMETERS) {
    typedef typename M::T T;
    typedef Tile<T, D> Of;
    const int KEYS = 64, NT = QN / 8, STAGES = Of::STAGES;
    DYNAMIC_SHARED(shared);
    unsigned char* const keys = shared;
    unsigned char* const values = keys + KEYS * Of::ROW;
    unsigned char* const queries = values + KEYS * Of::ROW;           // the stages of [QN] queries
    unsigned char* const gradients = queries + STAGES * QN * Of::ROW; // and of dOut
    float* const stats = reinterpret_cast<float*>(gradients + STAGES * QN * Of::ROW); // the stages of [QN] lse·log2(e), [QN] delta

    const Place place;
    const int from = place.tile * KEYS, kv = place.head, sample = place.sample, group = heads / kv_heads;
    const int visible = visible_keys(valid_lengths, sample, seq);
    const int stride = (heads + 2 * kv_heads) * width, out_stride = heads * width;
    const i64 first = (i64)sample * seq; // the sample's first row
    const T* const k = qkv + (first + from) * stride + (heads + kv) * width;
    const T* const v = k + kv_heads * width;
    const bool aligned = is_aligned(qkv, width) && is_aligned(dout, width) && is_aligned(dqkv, width);

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int warp_from = from + warp * 16; // the warp's first key
    const float scale_log2 = scale * LOG2_E;

    // The walk: over the heads of the group, and in each over the tiles of queries that see the block's first key.
    const int first_tile = max(from - later_keys, 0) / QN, tiles = (seq + QN - 1) / QN - first_tile;
    const int steps = from < visible ? group * tiles : 0; // keys that no query sees have gradients of zero

    // Starts to load a head's tiles of queries from `at` on into a stage; returns the statistic that this thread stores there later.
    auto fetch = [&](int head, int at, int stage) {
        Of::template load<QN>(queries + stage * QN * Of::ROW, qkv + (first + at) * stride + head * width, stride, seq - at, width, aligned);
        Of::template load<QN>(gradients + stage * QN * Of::ROW, dout + (first + at) * out_stride + head * width, out_stride, seq - at,
                              width, aligned);
        float stat = 0.f;
        if (threadIdx.x < 2 * QN) {
            const bool is_lse = threadIdx.x < QN;
            const int query = at + threadIdx.x % QN;
            const i64 row = ((i64)sample * heads + head) * seq + query;
            if (query < seq) {
                stat = is_lse ? lse[row] * LOG2_E : delta[row];
            } else {
                stat = is_lse ? INFINITY : 0.f; // probabilities of zero
            }
        }
        return stat;
    };
    auto keep_stat = [&](int stage, float stat) {
        if (threadIdx.x < 2 * QN) {
            stats[stage * 2 * QN + threadIdx.x] = stat;
        }
    };

    Rows<M, D, 1, HELD> key_rows(keys), value_rows(values);
    float dk[1][OF_KEYS ? D / 8 : 8][4], dv[1][OF_VALUES ? D / 8 : 8][4];
    clear(dk);
    clear(dv);
    if (steps > 0) {
        Of::template load<KEYS>(keys, k, stride, seq - from, width, aligned);
        Of::template load<KEYS>(values, v, stride, seq - from, width, aligned);
        keep_stat(0, fetch(kv * group, first_tile * QN, 0));
        copy_commit();
    }
    int head = kv * group, at = first_tile * QN; // of step n
    for (int n = 0; n < steps; n++) {
        const int stage = STAGES == 2 ? n & 1 : 0, next_stage = STAGES == 2 ? stage ^ 1 : 0;
        const bool is_last_tile = at + QN >= seq;
        const int next_head = is_last_tile ? head + 1 : head, next_at = is_last_tile ? first_tile * QN : at + QN;
        finish<M, 0>(dv);
        finish<M, 0>(dk);
        all_loaded<M>(); // this stage, and the other was read
        float stat = 0.f;
        if (STAGES == 2 && n + 1 < steps) {
            stat = fetch(next_head, next_at, next_stage);
        }
        copy_commit();
        if (HELD && n == 0) {
            key_rows.hold();
            value_rows.hold();
        }
        const int sees = at + later_keys; // the last key that the tile's first query sees
        const unsigned char* const q = queries + stage * QN * Of::ROW;
        const unsigned char* const dy = gradients + stage * QN * Of::ROW;
        const float* const row_lse = stats + stage * 2 * QN;
        const float* const row_delta = row_lse + QN;
        if (M::GROUP || (sees + QN - 1 >= warp_from && warp_from < visible)) {
            float p[1][NT][4], ds[1][NT][4];
            product<M, D, 1, NT>(p, key_rows, q);
            if constexpr (M::GROUP) {
                product<M, D, 1, NT>(ds, value_rows, dy);
                finish<M, 1>(p);
            }
            const bool edge = sees < warp_from + 15 || warp_from + 16 > visible;
#pragma unroll
            for (int j = 0; j < NT; j++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    p[0][j][i] = fast_exp2(fmaf(p[0][j][i], scale_log2, -row_lse[j * 8 + 2 * t + i % 2]));
                }
            }
            if (edge) {
#pragma unroll
                for (int j = 0; j < NT; j++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const int column = j * 8 + 2 * t + i % 2, key = warp_from + g + i / 2 * 8;
                        if (key > sees + column || key >= visible) {
                            p[0][j][i] = 0.f;
                        }
                    }
                }
            }
            if constexpr (M::GROUP && !DROPOUT) {
                accumulate<M, D, 1, NT>(dv, p, dy);
                finish<M, 1>(ds);
            } else if constexpr (M::GROUP) {
                finish<M, 0>(ds);
            } else if constexpr (OF_KEYS) {
                product<M, D, 1, NT>(ds, value_rows, dy);
            }
            const Dropped dropped(key0, key1, first_sample + (unsigned)sample * sample_stride, step, threshold, seq, head);
#pragma unroll
            for (int j = 0; j < NT; j++) {
                unsigned kept = 15;
                if (DROPOUT) {
                    kept = dropped.kept_transposed(at + j * 8 + 2 * t, warp_from + g);
                }
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    if (OF_KEYS) {
                        const float difference = row_delta[j * 8 + 2 * t + i % 2];
                        const float dp = !DROPOUT ? ds[0][j][i] : kept >> i & 1 ? ds[0][j][i] * keep : 0.f;
                        ds[0][j][i] = p[0][j][i] * (dp - difference);
                    }
                    if (DROPOUT) {
                        p[0][j][i] = kept >> i & 1 ? p[0][j][i] * keep : 0.f;
                    }
                }
            }
            if constexpr (OF_VALUES && (!M::GROUP || DROPOUT)) {
                accumulate<M, D, 1, NT>(dv, p, dy);
            }
            if constexpr (OF_KEYS) {
                accumulate<M, D, 1, NT>(dk, ds, q);
            }
        }
        if (STAGES == 1) {
            __syncthreads(); // the stage was read
            if (n + 1 < steps) {
                stat = fetch(next_head, next_at, next_stage);
            }
            copy_commit();
        }
        if (n + 1 < steps) {
            keep_stat(next_stage, stat);
        }
        head = next_head;
        at = next_at;
    }

    finish<M, 0>(dv);
    finish<M, 0>(dk);
    all_read<M>();
    // A warp's rows of the keys' and values' tiles are its own.
    if (warp_from < seq) {
        const float key_scale[1][2] = {{scale, scale}}, one[1][2] = {{1.f, 1.f}};
        T* const to = dqkv + (first + warp_from) * stride + (heads + kv) * width;
        if constexpr (OF_KEYS) {
            Of::template store<1>(keys + warp * 16 * Of::ROW, dk, key_scale, to, stride, seq - warp_from, width, aligned);
        }
        if constexpr (OF_VALUES) {
            Of::template store<1>(values + warp * 16 * Of::ROW, dv, one, to + kv_heads * width, stride, seq - warp_from, width, aligned);
        }
    }
}

// dQ. Grid: (tiles of 64·MT queries, heads, batch). Shared memory: 128·MT + 2·STAGES·KN rows of a tile.
template <class M, int D, int MT, int KN, bool HELD, bool DROPOUT>
__device__ __forceinline__ void attention_queries(BACKWARD_PARAMETERS(typename M::T), int seq, int heads, int kv_heads, int width,
                                                  float scale, MASK_PARAMETERS) {
    typedef typename M::T T;
    typedef Tile<T, D> Of;
    const int QUERIES = 64 * MT, NT = KN / 8, STAGES = Of::STAGES;
    DYNAMIC_SHARED(shared);
    unsigned char* const queries = shared;
    unsigned char* const gradients = queries + QUERIES * Of::ROW;
    unsigned char* const keys = gradients + QUERIES * Of::ROW;  // the stages of [KN] keys
    unsigned char* const values = keys + STAGES * KN * Of::ROW; // and values

    const Place place;
    const int from = (gridDim.x - 1 - place.tile) * QUERIES, head = place.head, sample = place.sample;
    const int kv = head / (heads / kv_heads), visible = visible_keys(valid_lengths, sample, seq);
    const int tiles = (min(min(from + QUERIES + later_keys, seq), visible) + KN - 1) / KN;
    const int stride = (heads + 2 * kv_heads) * width, out_stride = heads * width;
    const i64 first = (i64)sample * seq; // the sample's first row
    const T* const k = qkv + first * stride + (heads + kv) * width;
    const T* const v = k + kv_heads * width;
    const bool aligned = is_aligned(qkv, width) && is_aligned(dout, width) && is_aligned(dqkv, width);

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int warp_from = from + warp * 16 * MT; // the warp's first query
    const int warp_sees = warp_from + later_keys; // the last key that it sees
    const float scale_log2 = scale * LOG2_E;
    const Dropped dropped(key0, key1, first_sample + (unsigned)sample * sample_stride, step, threshold, seq, head);

    auto fetch = [&](int tile) {
        const int at = tile * KN, stage = STAGES == 2 ? tile & 1 : 0;
        Of::template load<KN>(keys + stage * KN * Of::ROW, k + (i64)at * stride, stride, seq - at, width, aligned);
        Of::template load<KN>(values + stage * KN * Of::ROW, v + (i64)at * stride, stride, seq - at, width, aligned);
    };
    Of::template load<QUERIES>(queries, qkv + (first + from) * stride + head * width, stride, seq - from, width, aligned);
    Of::template load<QUERIES>(gradients, dout + (first + from) * out_stride + head * width, out_stride, seq - from, width, aligned);
    fetch(0);
    copy_commit();

    Rows<M, D, MT, HELD> query_rows(queries), gradient_rows(gradients);
    float dq[MT][D / 8][4], row_lse[MT][2], row_delta[MT][2], scales[MT][2];
    clear(dq);
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int query = warp_from + m * 16 + half * 8 + g;
            const i64 row = ((i64)sample * heads + head) * seq + query;
            row_lse[m][half] = query < seq ? lse[row] * LOG2_E : INFINITY;
            row_delta[m][half] = query < seq ? delta[row] : 0.f;
            scales[m][half] = scale;
        }
    }

    for (int tile = 0; tile < tiles; tile++) {
        const int at = tile * KN, stage = STAGES == 2 ? tile & 1 : 0;
        finish<M, 0>(dq);
        if (STAGES == 1 && tile > 0) {
            __syncthreads(); // the stage was read
            fetch(tile);
            copy_commit();
        }
        all_loaded<M>(); // this stage, and the other was read
        if (STAGES == 2 && tile + 1 < tiles) {
            fetch(tile + 1);
        }
        copy_commit();
        if (HELD && tile == 0) {
            query_rows.hold();
            gradient_rows.hold();
        }
        if (!M::GROUP && (warp_from >= seq || at > warp_sees + 16 * MT - 1)) {
            continue;
        }
        const unsigned char* const key_tile = keys + stage * KN * Of::ROW;
        float p[MT][NT][4], ds[MT][NT][4];
        product<M, D, MT, NT>(p, query_rows, key_tile);
        if constexpr (M::GROUP) {
            product<M, D, MT, NT>(ds, gradient_rows, values + stage * KN * Of::ROW);
            finish<M, 1>(p);
        }
        const bool edge = at + KN - 1 > warp_sees || at + KN > visible;
#pragma unroll
        for (int m = 0; m < MT; m++) {
#pragma unroll
            for (int n = 0; n < NT; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    p[m][n][i] = fast_exp2(fmaf(p[m][n][i], scale_log2, -row_lse[m][i / 2]));
                }
            }
        }
        if (edge) {
#pragma unroll
            for (int m = 0; m < MT; m++) {
#pragma unroll
                for (int n = 0; n < NT; n++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const int sees = warp_sees + m * 16 + g + i / 2 * 8, key = at + n * 8 + 2 * t + i % 2;
                        if (key > sees || key >= visible) {
                            p[m][n][i] = 0.f;
                        }
                    }
                }
            }
        }
        if constexpr (M::GROUP) {
            finish<M, 0>(ds);
        } else {
            product<M, D, MT, NT>(ds, gradient_rows, values + stage * KN * Of::ROW);
        }
#pragma unroll
        for (int m = 0; m < MT; m++) {
#pragma unroll
            for (int n = 0; n < NT; n++) {
                unsigned kept = 15;
                if (DROPOUT) {
                    kept = dropped.kept(warp_from + m * 16 + g, at + n * 8 + 2 * t);
                }
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float dp = !DROPOUT ? ds[m][n][i] : kept >> i & 1 ? ds[m][n][i] * keep : 0.f;
                    ds[m][n][i] = p[m][n][i] * (dp - row_delta[m][i / 2]);
                }
            }
        }
        accumulate<M, D, MT, NT>(dq, ds, key_tile);
    }

    finish<M, 0>(dq);
    all_read<M>();
    // A warp's rows of the queries' tile are its own.
    if (warp_from < seq) {
        Of::template store<MT>(queries + warp * 16 * MT * Of::ROW, dq, scales, dqkv + (first + warp_from) * stride + head * width, stride,
                               seq - warp_from, width, aligned);
    }
}

#define ATTENTION_DELTA(name, T)                                                                                                          \
    extern "C" __global__ void __launch_bounds__(256)                                                                                     \
        attention_delta_##name(const T* out, const T* dout, float* delta, int seq, int heads, int width, i64 count) {                     \
        attention_delta<T>(out, dout, delta, seq, heads, width, count);                                                                   \
    }

#define ATTENTION_KEYS_KERNEL(name, M, D, QN, HELD, DROPOUT, OF_KEYS, OF_VALUES)                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_##name(BACKWARD_PARAMETERS(M::T), int seq, int heads,              \
                                                                              int kv_heads, int width, float scale, MASK_PARAMETERS) {    \
        attention_keys<M, D, QN, HELD, DROPOUT, OF_KEYS, OF_VALUES>(BACKWARD_ARGUMENTS, seq, heads, kv_heads, width, scale,               \
                                                                    MASK_ARGUMENTS);                                                      \
    }

#define ATTENTION_QUERIES_KERNEL(name, M, D, MT, KN, HELD, DROPOUT)                                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_queries_##name(BACKWARD_PARAMETERS(M::T), int seq, int heads,      \
                                                                                      int kv_heads, int width, float scale,               \
                                                                                      MASK_PARAMETERS) {                                  \
        attention_queries<M, D, MT, KN, HELD, DROPOUT>(BACKWARD_ARGUMENTS, seq, heads, kv_heads, width, scale, MASK_ARGUMENTS);           \
    }

// Without dropout, and with it; then registers are short, and nothing is held.
#define ATTENTION_KEYS(name, M, D, QN, HELD)                                                                                              \
    ATTENTION_KEYS_KERNEL(keys_##name, M, D, QN, HELD, false, true, true)                                                                 \
    ATTENTION_KEYS_KERNEL(keys_##name##_dropout, M, D, QN, false, true, true, true)

// dK and dV by a kernel each.
#define ATTENTION_KEYS_APART(name, M, D, QN)                                                                                              \
    ATTENTION_KEYS_KERNEL(keys_##name, M, D, QN, false, false, true, false)                                                               \
    ATTENTION_KEYS_KERNEL(keys_##name##_dropout, M, D, QN, false, true, true, false)                                                      \
    ATTENTION_KEYS_KERNEL(values_##name, M, D, QN, false, false, false, true)                                                             \
    ATTENTION_KEYS_KERNEL(values_##name##_dropout, M, D, QN, false, true, false, true)

#define ATTENTION_QUERIES(name, M, D, MT, KN, HELD)                                                                                       \
    ATTENTION_QUERIES_KERNEL(name, M, D, MT, KN, HELD, false)                                                                             \
    ATTENTION_QUERIES_KERNEL(name##_dropout, M, D, MT, KN, false, true)

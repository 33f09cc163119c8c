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
//
// `sums`: [batch·⌈seq / 64⌉, (heads + 2·kv_heads)·width], sums over each 64 rows of dqkv; or null.
template <class M, int D, int QN, bool HELD, bool DROPOUT, bool OF_KEYS, bool OF_VALUES>
__device__ __forceinline__ void attention_keys(const typename M::T* qkv, const typename M::T* dout, const float* lse, const float* delta,
                                               typename M::T* dqkv, float* sums, const unsigned* valid_lengths,
                                               const unsigned* documents, const AttentionCall& call) {
    typedef typename M::T T;
    typedef Tile<T, D> Of;
    const int KEYS = 64, NT = QN / 8, STAGES = Of::STAGES, seq = call.seq, width = call.width;
    DYNAMIC_SHARED(shared);
    unsigned char* const keys = shared;
    unsigned char* const values = keys + KEYS * Of::ROW;

    const Place place;
    const int from = place.tile * KEYS, kv = place.head, sample = place.sample, group = call.heads / call.kv_heads;
    const int visible = visible_keys(valid_lengths, sample, seq);
    const i64 first = (i64)sample * seq; // the sample's first row
    const HeadColumns<const T> in(qkv, call, first, kv * group, kv);
    const bool aligned = is_aligned(qkv, width) && is_aligned(dout, width) && is_aligned(dqkv, width);
    const Reach reach(call, documents, sample);
    const QueryWalk<T, D, QN> walk(call, reach, qkv, dout, lse, delta, sample, from, aligned, values + KEYS * Of::ROW);

    const int warp = threadIdx.x / 32, warp_from = from + warp * 16; // the warp's first key
    const int seen_to = reach.last_query(warp_from);                 // the last query that sees it
    const int all_seen_to = reach.last_query(warp_from + 15);        // and the last that sees one of its keys
    const float scale_log2 = call.scale * LOG2_E;
    const int steps = from < visible ? group * walk.tiles : 0; // keys that no query sees have gradients of zero
    int head = kv * group, at = walk.start;                    // of step n

    Rows<M, D, 1, HELD> key_rows(keys), value_rows(values);
    float dk[1][OF_KEYS ? D / 8 : 8][4], dv[1][OF_VALUES ? D / 8 : 8][4];
    clear(dk);
    clear(dv);
    if (steps > 0) {
        Of::template load<KEYS>(keys, in.k + (i64)from * in.stride, in.stride, seq - from, width, aligned);
        Of::template load<KEYS>(values, in.v + (i64)from * in.stride, in.stride, seq - from, width, aligned);
        walk.keep(0, walk.fetch(head, at, 0));
        copy_commit();
    }
    for (int n = 0; n < steps; n++) {
        const int stage = STAGES == 2 ? n & 1 : 0, next_stage = STAGES == 2 ? stage ^ 1 : 0;
        int next_head = head, next_at = at;
        walk.advance(next_head, next_at);
        all_loaded(); // this stage, and the other was read
        float stat = 0.f;
        if (STAGES == 2 && n + 1 < steps) {
            stat = walk.fetch(next_head, next_at, next_stage);
        }
        copy_commit();
        if (HELD && n == 0) {
            key_rows.hold();
            value_rows.hold();
        }
        const int sees = at + call.later_keys; // the last key that the tile's first query sees
        if (sees + QN - 1 >= warp_from && at <= all_seen_to && warp_from < visible) {
            const unsigned char* const q = walk.queries + stage * walk.TILE;
            const unsigned char* const dy = walk.gradients + stage * walk.TILE;
            const float* const row_lse = walk.stats + stage * 2 * QN;
            float p[1][NT][4], ds[1][NT][4];
            product<M, D, 1, NT>(p, key_rows, q);
            probabilities_transposed(p, row_lse, scale_log2);
            if (sees < warp_from + 15 || warp_from + 16 > visible || at + QN - 1 > seen_to) {
                hide_transposed(p, reach, call.later_keys, at, warp_from, visible);
            }
            if constexpr (OF_KEYS) {
                product<M, D, 1, NT>(ds, value_rows, dy);
            }
            const Dropped dropped(call, sample, head);
            score_gradients_transposed<DROPOUT, OF_KEYS>(ds, p, row_lse + QN, dropped, at, warp_from, call.keep);
            if constexpr (OF_VALUES) {
                accumulate<M, D, 1, NT>(dv, p, dy);
            }
            if constexpr (OF_KEYS) {
                accumulate<M, D, 1, NT>(dk, ds, q);
            }
        }
        if (STAGES == 1) {
            __syncthreads(); // the stage was read
            if (n + 1 < steps) {
                stat = walk.fetch(next_head, next_at, next_stage);
            }
            copy_commit();
        }
        if (n + 1 < steps) {
            walk.keep(next_stage, stat);
        }
        head = next_head;
        at = next_at;
    }

    // A warp's rows of the keys' and values' tiles are its own.
    if (warp_from < seq) {
        const float key_scale[1][2] = {{call.scale, call.scale}}, one[1][2] = {{1.f, 1.f}};
        const HeadColumns<T> to(dqkv, call, first + warp_from, kv * group, kv);
        if constexpr (OF_KEYS) {
            Of::template store<1>(keys + warp * 16 * Of::ROW, dk, key_scale, to.k, to.stride, seq - warp_from, width, aligned);
        }
        if constexpr (OF_VALUES) {
            Of::template store<1>(values + warp * 16 * Of::ROW, dv, one, to.v, to.stride, seq - warp_from, width, aligned);
        }
    }
    if (sums) {
        const HeadColumns<float> to(sums, call, (i64)sample * gridDim.x + place.tile, kv * group, kv);
        if constexpr (OF_KEYS) {
            store_row_sums<D, 1>(to.k, dk, call.scale, width, walk.queries);
        }
        if constexpr (OF_VALUES) {
            store_row_sums<D, 1>(to.v, dv, 1.f, width, walk.queries);
        }
    }
}

// dQ. Grid: (tiles of 64·MT queries, heads, batch). Shared memory: 128·MT + 2·STAGES·KN rows of a tile.
template <class M, int D, int MT, int KN, bool HELD, bool DROPOUT>
__device__ __forceinline__ void attention_queries(const typename M::T* qkv, const typename M::T* dout, const float* lse, const float* delta,
                                                  typename M::T* dqkv, float* sums, const unsigned* valid_lengths,
                                                  const unsigned* documents, const AttentionCall& call) {
    typedef typename M::T T;
    typedef Tile<T, D> Of;
    const int QUERIES = 64 * MT, NT = KN / 8, STAGES = Of::STAGES, seq = call.seq, width = call.width;
    DYNAMIC_SHARED(shared);
    unsigned char* const queries = shared;
    unsigned char* const gradients = queries + QUERIES * Of::ROW;
    unsigned char* const keys = gradients + QUERIES * Of::ROW;  // the stages of [KN] keys
    unsigned char* const values = keys + STAGES * KN * Of::ROW; // and values

    const Place place;
    const int from = (gridDim.x - 1 - place.tile) * QUERIES, head = place.head, sample = place.sample;
    const int kv = head / (call.heads / call.kv_heads), visible = visible_keys(valid_lengths, sample, seq);
    const Reach reach(call, documents, sample);
    const int first_tile = max(reach.first_key(from), 0) / KN, out_stride = call.heads * width;
    const int tiles = (min(min(from + QUERIES + call.later_keys, seq), visible) + KN - 1) / KN; // up to the last
    const i64 first = (i64)sample * seq; // the sample's first row
    const HeadColumns<const T> in(qkv, call, first, head, kv);
    const bool aligned = is_aligned(qkv, width) && is_aligned(dout, width) && is_aligned(dqkv, width);

    const int warp = threadIdx.x / 32, warp_from = from + warp * 16 * MT; // the warp's first query
    const int warp_sees = warp_from + call.later_keys;                    // the last key that it sees
    const int warp_first = reach.first_key(warp_from);                    // and the first
    const int warp_last_first = reach.first_key(warp_from + 16 * MT - 1); // the first key that its last query sees
    const float scale_log2 = call.scale * LOG2_E;
    const Dropped dropped(call, sample, head);

    auto fetch = [&](int tile) {
        const int at = tile * KN, stage = STAGES == 2 ? tile & 1 : 0;
        Of::template load<KN>(keys + stage * KN * Of::ROW, in.k + (i64)at * in.stride, in.stride, seq - at, width, aligned);
        Of::template load<KN>(values + stage * KN * Of::ROW, in.v + (i64)at * in.stride, in.stride, seq - at, width, aligned);
    };
    Of::template load<QUERIES>(queries, in.q + (i64)from * in.stride, in.stride, seq - from, width, aligned);
    Of::template load<QUERIES>(gradients, dout + (first + from) * out_stride + head * width, out_stride, seq - from, width, aligned);
    fetch(first_tile);
    copy_commit();

    Rows<M, D, MT, HELD> query_rows(queries), gradient_rows(gradients);
    float dq[MT][D / 8][4], row_lse[MT][2], row_delta[MT][2];
    clear(dq);
    const i64 row = ((i64)sample * call.heads + head) * seq;
    load_statistics(row_lse, row_delta, lse + row, delta + row, warp_from, seq);

    for (int tile = first_tile; tile < tiles; tile++) {
        const int at = tile * KN, stage = STAGES == 2 ? tile & 1 : 0;
        if (STAGES == 1 && tile > first_tile) {
            __syncthreads(); // the stage was read
            fetch(tile);
            copy_commit();
        }
        all_loaded(); // this stage, and the other was read
        if (STAGES == 2 && tile + 1 < tiles) {
            fetch(tile + 1);
        }
        copy_commit();
        if (HELD && tile == first_tile) {
            query_rows.hold();
            gradient_rows.hold();
        }
        if (warp_from >= seq || at > warp_sees + 16 * MT - 1 || at + KN <= warp_first) {
            continue;
        }
        const unsigned char* const key_tile = keys + stage * KN * Of::ROW;
        float p[MT][NT][4], ds[MT][NT][4];
        product<M, D, MT, NT>(p, query_rows, key_tile);
        probabilities(p, row_lse, scale_log2);
        if (at + KN - 1 > warp_sees || at + KN > visible || at < warp_last_first) {
            hide(p, 0.f, reach, call.later_keys, warp_from, at, visible);
        }
        product<M, D, MT, NT>(ds, gradient_rows, values + stage * KN * Of::ROW);
        score_gradients<DROPOUT>(ds, p, row_delta, dropped, warp_from, at, call.keep);
        accumulate<M, D, MT, NT>(dq, ds, key_tile);
    }

    if (first_tile >= tiles) {
        all_loaded(); // all keys of the window are padding
    }
    // A warp's rows of the queries' tile are its own.
    if (warp_from < seq) {
        float scales[MT][2];
#pragma unroll
        for (int m = 0; m < MT; m++) {
            scales[m][0] = scales[m][1] = call.scale;
        }
        const HeadColumns<T> to(dqkv, call, first + warp_from, head, kv);
        Of::template store<MT>(queries + warp * 16 * MT * Of::ROW, dq, scales, to.q, to.stride, seq - warp_from, width, aligned);
    }
    if (sums) {
        // A part for each 64 rows: this block's first has the sums, the others have zeros.
        const int parts = (seq + 63) / 64, part = from / 64;
        const HeadColumns<float> to(sums, call, (i64)sample * parts + part, head, kv);
        store_row_sums<D, MT>(to.q, dq, call.scale, width, keys);
        for (int m = 1; m < MT && part + m < parts; m++) {
            for (int c = threadIdx.x; c < width; c += THREADS) {
                to.q[m * to.stride + c] = 0.f;
            }
        }
    }
}

#define ATTENTION_DELTA(name, T)                                                                                                          \
    extern "C" __global__ void __launch_bounds__(256)                                                                                     \
        attention_delta_##name(const T* out, const T* dout, float* delta, int seq, int heads, int width, i64 count) {                     \
        attention_delta<T>(out, dout, delta, seq, heads, width, count);                                                                   \
    }

// Without dropout, and with it; then registers are short, and nothing is held.
#define ATTENTION_KEYS(name, M, D, QN, HELD)                                                                                              \
    ATTENTION_BACKWARD_KERNEL(name##_keys, M::T, (attention_keys<M, D, QN, HELD, false, true, true>))                                     \
    ATTENTION_BACKWARD_KERNEL(name##_keys_dropout, M::T, (attention_keys<M, D, QN, false, true, true, true>))

// dK and dV by a kernel each.
#define ATTENTION_KEYS_APART(name, M, D, QN)                                                                                              \
    ATTENTION_BACKWARD_KERNEL(name##_keys, M::T, (attention_keys<M, D, QN, false, false, true, false>))                                   \
    ATTENTION_BACKWARD_KERNEL(name##_keys_dropout, M::T, (attention_keys<M, D, QN, false, true, true, false>))                            \
    ATTENTION_BACKWARD_KERNEL(name##_values, M::T, (attention_keys<M, D, QN, false, false, false, true>))                                 \
    ATTENTION_BACKWARD_KERNEL(name##_values_dropout, M::T, (attention_keys<M, D, QN, false, true, false, true>))

#define ATTENTION_QUERIES(name, M, D, MT, KN, HELD)                                                                                       \
    ATTENTION_BACKWARD_KERNEL(name##_queries, M::T, (attention_queries<M, D, MT, KN, HELD, false>))                                       \
    ATTENTION_BACKWARD_KERNEL(name##_queries_dropout, M::T, (attention_queries<M, D, MT, KN, false, true>))

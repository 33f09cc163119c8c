// Attention on Hopper, in bf16: the kernels of attention_forward.cuh and attention_backward.cuh with products of the block's four warps as a
// group. A product is started, and runs beside the warps until they wait for it (`finish`): so the second product of scores, or of values,
// runs during the exponentials of the first. The group reads both tiles from shared memory; nothing is held in registers, all warps take part
// in each product, and a block has 64 rows.
#pragma once

#include "attention.cuh"
#include "mma_sm90.cuh"

// ---- products ----

// Eight of a result's pieces of 8 columns, from piece `n` on: what one instruction computes.
template <int NT> __device__ __forceinline__ float (&eight(float (&x)[1][NT][4], int n))[8][4] {
    return *reinterpret_cast<float(*)[8][4]>(&x[0][n]);
}

// Waits until at most `LATER` of the latest products are still on their way, and so until `x` may be used.
template <int LATER, int NT> __device__ __forceinline__ void finish(float (&x)[1][NT][4]) {
    group_wait<LATER>();
#pragma unroll
    for (int n = 0; n < NT; n += 8) {
        group_use(eight(x, n));
    }
}

// all_loaded, and products see the tiles.
__device__ __forceinline__ void all_loaded_for_group() {
    copy_wait<0>();
    group_fence_shared();
    __syncthreads();
}

// Starts s = A·Bᵀ of two tiles of 64 rows.
template <int D> __device__ __forceinline__ void start_product(float (&s)[1][8][4], const unsigned char* a, const unsigned char* b) {
    const int ROW = Tile<bf16, D>::ROW;
    const unsigned left = group_matrix<ROW>(a), right = group_matrix<ROW>(b);
    group_begin();
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        const int columns = (k / 4 * 1024 + k % 4 * 32) / 16;
        group_product<ROW>(s[0], left + columns, right + columns, k > 0);
    }
    group_commit();
}

// Starts o += P·B with P in registers, and B a tile of 64 rows.
template <int D> __device__ __forceinline__ void start_accumulate(float (&o)[1][D / 8][4], const float (&p)[1][8][4], const unsigned char* b) {
    const int ROW = Tile<bf16, D>::ROW;
    unsigned a[4][4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        pack_step(a[k], p[0], k);
    }
    const unsigned right = group_matrix<ROW>(b);
    group_begin();
#pragma unroll
    for (int k = 0; k < 4; k++) {
#pragma unroll
        for (int n = 0; n < D / 8; n += 8) {
            group_accumulate<ROW>(eight(o, n), a[k], right + (k * 16 * ROW + n / 8 * 1024) / 16);
        }
    }
    group_commit();
}

// ---- kernels ----

// As attention_forward.
template <int D, bool DROPOUT>
__device__ __forceinline__ void attention_forward_sm90(const bf16* qkv, bf16* out, float* lse, const unsigned* valid_lengths,
                                                       const unsigned* documents, const AttentionCall& call) {
    typedef Tile<bf16, D> Of;
    const int ROWS = 64, seq = call.seq, width = call.width;
    DYNAMIC_SHARED(queries);
    unsigned char* const keys = queries + ROWS * Of::ROW;
    unsigned char* const values = keys + ROWS * Of::ROW;

    const Place place;
    const int from = (gridDim.x - 1 - place.tile) * ROWS, head = place.head, sample = place.sample;
    const int visible = visible_keys(valid_lengths, sample, seq);
    const Reach reach(call, documents, sample);
    const int first_tile = max(reach.first_key(from), 0) / ROWS;
    const int tiles = (min(min(from + ROWS + call.later_keys, seq), visible) + ROWS - 1) / ROWS; // up to the last
    const i64 first = (i64)sample * seq; // the sample's first row
    const HeadColumns<const bf16> in(qkv, call, first, head, head / (call.heads / call.kv_heads));
    const bool aligned = is_aligned(qkv, width) && is_aligned(out, width);

    const int warp = threadIdx.x / 32, warp_from = from + warp * 16; // the warp's first query
    const int warp_sees = warp_from + call.later_keys;               // the last key that it sees
    const int warp_last_first = reach.first_key(warp_from + 15);     // and the first that its last query sees
    const float scale_log2 = call.scale * LOG2_E;
    const Dropped dropped(call, sample, head);

    Of::template load<ROWS>(queries, in.q + (i64)from * in.stride, in.stride, seq - from, width, aligned);
    Of::template load<ROWS>(keys, in.k + (i64)first_tile * ROWS * in.stride, in.stride, seq - first_tile * ROWS, width, aligned);
    copy_commit();

    Softmax<1> softmax;
    float o[1][D / 8][4];
    clear(o);
    for (int tile = first_tile; tile < tiles; tile++) {
        const int at = tile * ROWS;
        all_loaded_for_group(); // these keys, and the last values were read
        Of::template load<ROWS>(values, in.v + (i64)at * in.stride, in.stride, seq - at, width, aligned);
        copy_commit();
        float s[1][8][4];
        start_product<D>(s, queries, keys);
        finish<0>(s);
        all_loaded_for_group(); // these values, and the keys were read
        if (tile + 1 < tiles) {
            Of::template load<ROWS>(keys, in.k + (i64)(at + ROWS) * in.stride, in.stride, seq - at - ROWS, width, aligned);
        }
        copy_commit();
        if (at + ROWS - 1 > warp_sees || at + ROWS > visible || at < warp_last_first) {
            hide(s, -INFINITY, reach, call.later_keys, warp_from, at, visible);
        }
        softmax.add(s, o, scale_log2);
        if (DROPOUT) {
            drop(s, dropped, warp_from, at);
        }
        start_accumulate<D>(o, s, values);
        finish<0>(o);
    }

    all_loaded(); // the queries were read, and have arrived where all keys of the window are padding
    if (warp_from < seq) {
        float inverse[1][2];
        softmax.finish(inverse, lse + ((i64)sample * call.heads + head) * seq, warp_from, seq, call.scale, DROPOUT ? call.keep : 1.f);
        const int stride = call.heads * width;
        // A warp's rows of the queries' tile are its own.
        Of::template store<1>(queries + warp * 16 * Of::ROW, o, inverse, out + (first + warp_from) * stride + head * width, stride,
                              seq - warp_from, width, aligned);
    }
}

// As attention_keys.
template <int D, bool DROPOUT>
__device__ __forceinline__ void attention_keys_sm90(const bf16* qkv, const bf16* dout, const float* lse, const float* delta, bf16* dqkv,
                                                    float* sums, const unsigned* valid_lengths, const unsigned* documents,
                                                    const AttentionCall& call) {
    typedef Tile<bf16, D> Of;
    const int ROWS = 64, seq = call.seq, width = call.width;
    DYNAMIC_SHARED(keys);
    unsigned char* const values = keys + ROWS * Of::ROW;

    const Place place;
    const int from = place.tile * ROWS, kv = place.head, sample = place.sample, group = call.heads / call.kv_heads;
    const int visible = visible_keys(valid_lengths, sample, seq);
    const i64 first = (i64)sample * seq; // the sample's first row
    const HeadColumns<const bf16> in(qkv, call, first, kv * group, kv);
    const bool aligned = is_aligned(qkv, width) && is_aligned(dout, width) && is_aligned(dqkv, width);
    const Reach reach(call, documents, sample);
    const QueryWalk<bf16, D, ROWS> walk(call, reach, qkv, dout, lse, delta, sample, from, aligned, values + ROWS * Of::ROW);

    const int warp = threadIdx.x / 32, warp_from = from + warp * 16; // the warp's first key
    const int seen_to = reach.last_query(warp_from);                 // the last query that sees it
    const float scale_log2 = call.scale * LOG2_E;
    const int steps = from < visible ? group * walk.tiles : 0; // keys that no query sees have gradients of zero
    int head = kv * group, at = walk.start;                    // of step n

    float dk[1][D / 8][4], dv[1][D / 8][4];
    clear(dk);
    clear(dv);
    if (steps > 0) {
        Of::template load<ROWS>(keys, in.k + (i64)from * in.stride, in.stride, seq - from, width, aligned);
        Of::template load<ROWS>(values, in.v + (i64)from * in.stride, in.stride, seq - from, width, aligned);
        walk.keep(0, walk.fetch(head, at, 0));
        copy_commit();
    }
    for (int n = 0; n < steps; n++) {
        const int stage = n & 1;
        int next_head = head, next_at = at;
        walk.advance(next_head, next_at);
        finish<0>(dv);
        finish<0>(dk);
        all_loaded_for_group(); // this stage, and the other was read
        float stat = 0.f;
        if (n + 1 < steps) {
            stat = walk.fetch(next_head, next_at, stage ^ 1);
        }
        copy_commit();
        const int sees = at + call.later_keys; // the last key that the tile's first query sees
        const unsigned char* const q = walk.queries + stage * walk.TILE;
        const unsigned char* const dy = walk.gradients + stage * walk.TILE;
        const float* const row_lse = walk.stats + stage * 2 * ROWS;
        float p[1][8][4], ds[1][8][4];
        start_product<D>(p, keys, q);
        start_product<D>(ds, values, dy);
        finish<1>(p);
        const bool edge = sees < warp_from + 15 || warp_from + 16 > visible || at + ROWS - 1 > seen_to;
        probabilities_transposed(p, row_lse, scale_log2);
        if (edge) {
            hide_transposed(p, reach, call.later_keys, at, warp_from, visible);
        }
        if constexpr (DROPOUT) {
            finish<0>(ds);
        } else {
            start_accumulate<D>(dv, p, dy);
            finish<1>(ds);
        }
        const Dropped dropped(call, sample, head);
        score_gradients_transposed<DROPOUT, true>(ds, p, row_lse + ROWS, dropped, at, warp_from, call.keep);
        if constexpr (DROPOUT) {
            start_accumulate<D>(dv, p, dy);
        }
        start_accumulate<D>(dk, ds, q);
        if (n + 1 < steps) {
            walk.keep(stage ^ 1, stat);
        }
        head = next_head;
        at = next_at;
    }

    finish<0>(dv);
    finish<0>(dk);
    __syncthreads(); // the keys and values were read
    // A warp's rows of their tiles are its own.
    if (warp_from < seq) {
        const float key_scale[1][2] = {{call.scale, call.scale}}, one[1][2] = {{1.f, 1.f}};
        const HeadColumns<bf16> to(dqkv, call, first + warp_from, kv * group, kv);
        Of::template store<1>(keys + warp * 16 * Of::ROW, dk, key_scale, to.k, to.stride, seq - warp_from, width, aligned);
        Of::template store<1>(values + warp * 16 * Of::ROW, dv, one, to.v, to.stride, seq - warp_from, width, aligned);
    }
    if (sums) {
        const HeadColumns<float> to(sums, call, (i64)sample * gridDim.x + place.tile, kv * group, kv);
        store_row_sums<D, 1>(to.k, dk, call.scale, width, walk.queries);
        store_row_sums<D, 1>(to.v, dv, 1.f, width, walk.queries);
    }
}

// As attention_queries.
template <int D, bool DROPOUT>
__device__ __forceinline__ void attention_queries_sm90(const bf16* qkv, const bf16* dout, const float* lse, const float* delta, bf16* dqkv,
                                                       float* sums, const unsigned* valid_lengths, const unsigned* documents,
                                                       const AttentionCall& call) {
    typedef Tile<bf16, D> Of;
    const int ROWS = 64, seq = call.seq, width = call.width;
    DYNAMIC_SHARED(queries);
    unsigned char* const gradients = queries + ROWS * Of::ROW;
    unsigned char* const keys = gradients + ROWS * Of::ROW; // two stages of [64] keys
    unsigned char* const values = keys + 2 * ROWS * Of::ROW; // and values

    const Place place;
    const int from = (gridDim.x - 1 - place.tile) * ROWS, head = place.head, sample = place.sample;
    const int kv = head / (call.heads / call.kv_heads), visible = visible_keys(valid_lengths, sample, seq);
    const Reach reach(call, documents, sample);
    const int first_tile = max(reach.first_key(from), 0) / ROWS, out_stride = call.heads * width;
    const int tiles = (min(min(from + ROWS + call.later_keys, seq), visible) + ROWS - 1) / ROWS; // up to the last
    const i64 first = (i64)sample * seq; // the sample's first row
    const HeadColumns<const bf16> in(qkv, call, first, head, kv);
    const bool aligned = is_aligned(qkv, width) && is_aligned(dout, width) && is_aligned(dqkv, width);

    const int warp = threadIdx.x / 32, warp_from = from + warp * 16; // the warp's first query
    const int warp_sees = warp_from + call.later_keys;               // the last key that it sees
    const int warp_last_first = reach.first_key(warp_from + 15);     // and the first that its last query sees
    const float scale_log2 = call.scale * LOG2_E;
    const Dropped dropped(call, sample, head);

    auto fetch = [&](int tile) {
        const int at = tile * ROWS, stage = tile & 1;
        Of::template load<ROWS>(keys + stage * ROWS * Of::ROW, in.k + (i64)at * in.stride, in.stride, seq - at, width, aligned);
        Of::template load<ROWS>(values + stage * ROWS * Of::ROW, in.v + (i64)at * in.stride, in.stride, seq - at, width, aligned);
    };
    Of::template load<ROWS>(queries, in.q + (i64)from * in.stride, in.stride, seq - from, width, aligned);
    Of::template load<ROWS>(gradients, dout + (first + from) * out_stride + head * width, out_stride, seq - from, width, aligned);
    fetch(first_tile);
    copy_commit();

    float dq[1][D / 8][4], row_lse[1][2], row_delta[1][2];
    clear(dq);
    const i64 row = ((i64)sample * call.heads + head) * seq;
    load_statistics(row_lse, row_delta, lse + row, delta + row, warp_from, seq);

    for (int tile = first_tile; tile < tiles; tile++) {
        const int at = tile * ROWS, stage = tile & 1;
        finish<0>(dq);
        all_loaded_for_group(); // this stage, and the other was read
        if (tile + 1 < tiles) {
            fetch(tile + 1);
        }
        copy_commit();
        const unsigned char* const key_tile = keys + stage * ROWS * Of::ROW;
        float p[1][8][4], ds[1][8][4];
        start_product<D>(p, queries, key_tile);
        start_product<D>(ds, gradients, values + stage * ROWS * Of::ROW);
        finish<1>(p);
        probabilities(p, row_lse, scale_log2);
        if (at + ROWS - 1 > warp_sees || at + ROWS > visible || at < warp_last_first) {
            hide(p, 0.f, reach, call.later_keys, warp_from, at, visible);
        }
        finish<0>(ds);
        score_gradients<DROPOUT>(ds, p, row_delta, dropped, warp_from, at, call.keep);
        start_accumulate<D>(dq, ds, key_tile);
    }

    finish<0>(dq);
    all_loaded(); // the queries were read, and have arrived where all keys of the window are padding
    // A warp's rows of their tile are its own.
    if (warp_from < seq) {
        const float scales[1][2] = {{call.scale, call.scale}};
        const HeadColumns<bf16> to(dqkv, call, first + warp_from, head, kv);
        Of::template store<1>(queries + warp * 16 * Of::ROW, dq, scales, to.q, to.stride, seq - warp_from, width, aligned);
    }
    if (sums) {
        const HeadColumns<float> to(sums, call, (i64)sample * gridDim.x + from / ROWS, head, kv);
        store_row_sums<D, 1>(to.q, dq, call.scale, width, keys);
    }
}

// The launch takes these sizes from the lines that use the macros (build/kernels.rs).
#define OF_64_ROWS(PIECES, OTHERS) static_assert(PIECES == 1 && OTHERS == 64, "a block has 64 rows, and tiles of 64");

#define ATTENTION_FORWARD(name, D, PIECES, KEYS)                                                                                          \
    OF_64_ROWS(PIECES, KEYS)                                                                                                              \
    ATTENTION_FORWARD_KERNEL(name, bf16, (attention_forward_sm90<D, false>))                                                              \
    ATTENTION_FORWARD_KERNEL(name##_dropout, bf16, (attention_forward_sm90<D, true>))

#define ATTENTION_KEYS(name, D, QUERIES)                                                                                                  \
    OF_64_ROWS(1, QUERIES)                                                                                                                \
    ATTENTION_BACKWARD_KERNEL(name##_keys, bf16, (attention_keys_sm90<D, false>))                                                         \
    ATTENTION_BACKWARD_KERNEL(name##_keys_dropout, bf16, (attention_keys_sm90<D, true>))

#define ATTENTION_QUERIES(name, D, PIECES, KEYS)                                                                                          \
    OF_64_ROWS(PIECES, KEYS)                                                                                                              \
    ATTENTION_BACKWARD_KERNEL(name##_queries, bf16, (attention_queries_sm90<D, false>))                                                   \
    ATTENTION_BACKWARD_KERNEL(name##_queries_dropout, bf16, (attention_queries_sm90<D, true>))

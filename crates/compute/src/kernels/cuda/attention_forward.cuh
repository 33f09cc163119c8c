// Attention, forward: one block per 64·MT queries of one head, over tiles of KN keys with a running softmax (Dao et al. 2022).
//
// There is one buffer for keys and one for values. Values arrive during Q·Kᵀ, the next keys during the softmax and P·V; other blocks on
// the multiprocessor compute while this one still waits. Keys that no query of the block sees are not read.
#pragma once

#include "attention.cuh"

// qkv: [batch·seq, (heads + 2·kv_heads)·width], out: [batch·seq, heads·width], lse: [batch, heads, seq].
// Grid: (tiles of 64·MT queries, heads, batch). Shared memory: 64·MT + 2·KN rows of a tile.
template <class M, int D, int MT, int KN, bool HELD, bool DROPOUT>
__device__ __forceinline__ void attention_forward(const typename M::T* qkv, typename M::T* out, float* lse, const unsigned* valid_lengths, int seq,
                                                  int heads, int kv_heads, int width, float scale, MASK_PARAMETERS) {
    typedef typename M::T T;
    typedef Tile<T, D> Of;
    const int QUERIES = 64 * MT, NT = KN / 8;
    DYNAMIC_SHARED(shared);
    unsigned char* const keys = shared + QUERIES * Of::ROW;
    unsigned char* const values = keys + KN * Of::ROW;

    const Place place;
    const int from = (gridDim.x - 1 - place.tile) * QUERIES, head = place.head, sample = place.sample;
    const int kv = head / (heads / kv_heads), visible = visible_keys(valid_lengths, sample, seq);
    const int tiles = (min(min(from + QUERIES + later_keys, seq), visible) + KN - 1) / KN;
    const int stride = (heads + 2 * kv_heads) * width;
    const i64 first = (i64)sample * seq; // the sample's first row
    const T* const q = qkv + (first + from) * stride + head * width;
    const T* const k = qkv + first * stride + (heads + kv) * width;
    const T* const v = k + kv_heads * width;
    const bool aligned = is_aligned(qkv, width) && is_aligned(out, width);

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int warp_from = from + warp * 16 * MT; // the warp's first query
    const int warp_sees = warp_from + later_keys; // the last key that it sees
    unsigned char* const own = shared + warp * 16 * MT * Of::ROW;
    const float scale_log2 = scale * LOG2_E;
    const Dropped dropped(key0, key1, first_sample + (unsigned)sample * sample_stride, step, threshold, seq, head);

    Of::template load<QUERIES>(shared, q, stride, seq - from, width, aligned);
    Of::template load<KN>(keys, k, stride, seq, width, aligned);
    copy_commit();

    Rows<M, D, MT, HELD> rows(shared);
    float o[MT][D / 8][4], top[MT][2], sum[MT][2];
    clear(o);
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            top[m][half] = -INFINITY;
            sum[m][half] = 0.f;
        }
    }

    for (int tile = 0; tile < tiles; tile++) {
        const int at = tile * KN;
        all_loaded<M>(); // these keys, and the last values were read
        Of::template load<KN>(values, v + (i64)at * stride, stride, seq - at, width, aligned);
        copy_commit();
        if (HELD && tile == 0) {
            rows.hold();
        }
        const bool busy = M::GROUP || (warp_from < seq && at <= warp_sees + 16 * MT - 1);
        float s[MT][NT][4];
        if (busy) {
            product<M, D, MT, NT>(s, rows, keys);
            finish<M, 0>(s);
        }
        all_loaded<M>(); // these values, and the keys were read
        if (tile + 1 < tiles) {
            Of::template load<KN>(keys, k + (i64)(at + KN) * stride, stride, seq - at - KN, width, aligned);
        }
        copy_commit();
        if (!busy) {
            continue;
        }
        if (at + KN - 1 > warp_sees || at + KN > visible) {
#pragma unroll
            for (int m = 0; m < MT; m++) {
#pragma unroll
                for (int n = 0; n < NT; n++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const int sees = warp_sees + m * 16 + g + i / 2 * 8, key = at + n * 8 + 2 * t + i % 2;
                        if (key > sees || key >= visible) {
                            s[m][n][i] = -INFINITY;
                        }
                    }
                }
            }
        }
#pragma unroll
        for (int m = 0; m < MT; m++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float high = top[m][half];
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    high = fmaxf(high, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
                }
                high = fmaxf(high, __shfl_xor_sync(FULL_MASK, high, 1));
                high = fmaxf(high, __shfl_xor_sync(FULL_MASK, high, 2));
                // All queries see key 0, so `high` is finite unless the scores are not.
                const float base = __fmul_rn(high, scale_log2);
                // Both products are rounded before the difference, without a fused multiply-add: so `shrink` is exactly 1 while the
                // maximum stays the same.
                const float shrink = fast_exp2(__fmul_rn(top[m][half], scale_log2) - base);
                top[m][half] = high;
                sum[m][half] *= shrink;
#pragma unroll
                for (int n = 0; n < D / 8; n++) {
                    o[m][n][2 * half] *= shrink;
                    o[m][n][2 * half + 1] *= shrink;
                }
#pragma unroll
                for (int n = 0; n < NT; n++) {
#pragma unroll
                    for (int i = 2 * half; i < 2 * half + 2; i++) {
                        s[m][n][i] = fast_exp2(fmaf(s[m][n][i], scale_log2, -base));
                        sum[m][half] += s[m][n][i];
                    }
                }
            }
            if (DROPOUT) {
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    const unsigned kept = dropped.kept(warp_from + m * 16 + g, at + n * 8 + 2 * t);
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        s[m][n][i] = kept >> i & 1 ? s[m][n][i] : 0.f;
                    }
                }
            }
        }
        accumulate<M, D, MT, NT>(o, s, values);
        finish<M, 0>(o);
    }

    all_read<M>();
    if (warp_from < seq) {
        float inverse[MT][2];
#pragma unroll
        for (int m = 0; m < MT; m++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float total = sum[m][half];
                total += __shfl_xor_sync(FULL_MASK, total, 1);
                total += __shfl_xor_sync(FULL_MASK, total, 2);
                inverse[m][half] = (DROPOUT ? keep : 1.f) / total;
                const int query = warp_from + m * 16 + half * 8 + g;
                if (t == 0 && query < seq) {
                    lse[((i64)sample * heads + head) * seq + query] = top[m][half] * scale + logf(total);
                }
            }
        }
        const int out_stride = heads * width;
        Of::template store<MT>(own, o, inverse, out + (first + warp_from) * out_stride + head * width, out_stride, seq - warp_from, width,
                               aligned);
    }
}

#define ATTENTION_FORWARD_KERNEL(name, M, D, MT, KN, HELD, DROPOUT)                                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_forward_##name(                                                    \
        const M::T* qkv, M::T* out, float* lse, const unsigned* valid_lengths, int seq, int heads, int kv_heads, int width, float scale,         \
        MASK_PARAMETERS) {                                                                                                                \
        attention_forward<M, D, MT, KN, HELD, DROPOUT>(qkv, out, lse, valid_lengths, seq, heads, kv_heads, width, scale, MASK_ARGUMENTS);        \
    }

// Without dropout, and with it; then registers are short, and nothing is held.
#define ATTENTION_FORWARD(name, M, D, MT, KN, HELD)                                                                                       \
    ATTENTION_FORWARD_KERNEL(name, M, D, MT, KN, HELD, false)                                                                             \
    ATTENTION_FORWARD_KERNEL(name##_dropout, M, D, MT, KN, false, true)

// Attention, forward: one block per 64·MT queries of one head, over tiles of KN keys with a running softmax.
//
// There is one buffer for keys and one for values. Values arrive during Q·Kᵀ, the next keys during the softmax and P·V; other blocks on
// the multiprocessor compute while this one still waits. Keys that no query of the block sees are not read.
#pragma once

#include "attention.cuh"

// qkv: [batch·seq, (heads + 2·kv_heads)·width], out: [batch·seq, heads·width], lse: [batch, heads, seq].
// Grid: (tiles of 64·MT queries, heads, batch). Shared memory: 64·MT + 2·KN rows of a tile.
template <class M, int D, int MT, int KN, bool HELD, bool DROPOUT>
__device__ __forceinline__ void attention_forward(const typename M::T* qkv, typename M::T* out, float* lse, const unsigned* valid_lengths,
                                                  const unsigned* documents, const AttentionCall& call) {
    typedef typename M::T T;
    typedef Tile<T, D> Of;
    const int QUERIES = 64 * MT, NT = KN / 8, seq = call.seq, width = call.width;
    DYNAMIC_SHARED(shared);
    unsigned char* const keys = shared + QUERIES * Of::ROW;
    unsigned char* const values = keys + KN * Of::ROW;

    const Place place;
    const int from = (gridDim.x - 1 - place.tile) * QUERIES, head = place.head, sample = place.sample;
    const int visible = visible_keys(valid_lengths, sample, seq);
    const Reach reach(call, documents, sample);
    const int first_tile = max(reach.first_key(from), 0) / KN;
    const int tiles = (min(min(from + QUERIES + call.later_keys, seq), visible) + KN - 1) / KN; // up to the last
    const i64 first = (i64)sample * seq; // the sample's first row
    const HeadColumns<const T> in(qkv, call, first, head, head / (call.heads / call.kv_heads));
    const bool aligned = is_aligned(qkv, width) && is_aligned(out, width);

    const int warp = threadIdx.x / 32, warp_from = from + warp * 16 * MT; // the warp's first query
    const int warp_sees = warp_from + call.later_keys;                    // the last key that it sees
    const int warp_first = reach.first_key(warp_from);                    // and the first
    const int warp_last_first = reach.first_key(warp_from + 16 * MT - 1); // the first key that its last query sees
    const float scale_log2 = call.scale * LOG2_E;
    const Dropped dropped(call, sample, head);

    Of::template load<QUERIES>(shared, in.q + (i64)from * in.stride, in.stride, seq - from, width, aligned);
    Of::template load<KN>(keys, in.k + (i64)first_tile * KN * in.stride, in.stride, seq - first_tile * KN, width, aligned);
    copy_commit();

    Rows<M, D, MT, HELD> rows(shared);
    Softmax<MT> softmax;
    float o[MT][D / 8][4];
    clear(o);
    for (int tile = first_tile; tile < tiles; tile++) {
        const int at = tile * KN;
        all_loaded(); // these keys, and the last values were read
        Of::template load<KN>(values, in.v + (i64)at * in.stride, in.stride, seq - at, width, aligned);
        copy_commit();
        if (HELD && tile == first_tile) {
            rows.hold();
        }
        const bool busy = warp_from < seq && at <= warp_sees + 16 * MT - 1 && at + KN > warp_first;
        float s[MT][NT][4];
        if (busy) {
            product<M, D, MT, NT>(s, rows, keys);
        }
        all_loaded(); // these values, and the keys were read
        if (tile + 1 < tiles) {
            Of::template load<KN>(keys, in.k + (i64)(at + KN) * in.stride, in.stride, seq - at - KN, width, aligned);
        }
        copy_commit();
        if (!busy) {
            continue;
        }
        if (at + KN - 1 > warp_sees || at + KN > visible || at < warp_last_first) {
            hide(s, -INFINITY, reach, call.later_keys, warp_from, at, visible);
        }
        softmax.add(s, o, scale_log2);
        if (DROPOUT) {
            drop(s, dropped, warp_from, at);
        }
        accumulate<M, D, MT, NT>(o, s, values);
    }

    if (first_tile >= tiles) {
        all_loaded(); // all keys of the window are padding
    }
    if (warp_from < seq) {
        float inverse[MT][2];
        softmax.finish(inverse, lse + ((i64)sample * call.heads + head) * seq, warp_from, seq, call.scale, DROPOUT ? call.keep : 1.f);
        const int stride = call.heads * width;
        // A warp's rows of the queries' tile are its own.
        Of::template store<MT>(shared + warp * 16 * MT * Of::ROW, o, inverse, out + (first + warp_from) * stride + head * width, stride,
                               seq - warp_from, width, aligned);
    }
}

// Without dropout, and with it; then registers are short, and nothing is held.
#define ATTENTION_FORWARD(name, M, D, MT, KN, HELD)                                                                                       \
    ATTENTION_FORWARD_KERNEL(name, M::T, (attention_forward<M, D, MT, KN, HELD, false>))                                                  \
    ATTENTION_FORWARD_KERNEL(name##_dropout, M::T, (attention_forward<M, D, MT, KN, false, true>))

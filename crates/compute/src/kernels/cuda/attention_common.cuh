// The parameters and masks of both families of attention kernels, those over tiles and those over single rows.
#pragma once

#include "common.cuh"

#define THREADS 128
#define LOG2_E 1.4426950408889634f

// What the kernels over tiles are given besides arrays: the shape; how many keys before and after its own position a query sees, if there
// are that many (`Mask::reach`); and the dropout's random key, the place of the batch's samples in the global batch, the optimizer step,
// the threshold below which a random word drops its element (0: no dropout), and the factor on what is kept.
struct AttentionCall {
    int seq, heads, kv_heads, width;
    float scale;
    int earlier_keys, later_keys;
    unsigned key0, key1, first_sample, sample_stride, step, threshold;
    float keep;
};

// The number of a sample's first `keys` keys that lie before its padding: at least one, and all of them without padding.
__device__ __forceinline__ int visible_keys(const unsigned* valid_lengths, int sample, int keys) {
    if (valid_lengths == nullptr) {
        return keys;
    }
    const unsigned n = valid_lengths[sample];
    return n < 1 ? 1 : n < (unsigned)keys ? (int)n : keys;
}

// Which of a sample's keys a query sees, and which queries see a key, as far as it follows from `earlier_keys` and from documents. Both are
// non-decreasing. Positions after the end count as the last for documents.
struct Reach {
    int earlier_keys, last;
    const unsigned *starts, *ends; // of each position's document; null without documents

    // `documents`: [2, batch, seq], the starts and the ends; or null.
    __device__ __forceinline__ Reach(const AttentionCall& call, const unsigned* documents, int sample)
        : earlier_keys(call.earlier_keys), last(call.seq - 1), starts(documents ? documents + (i64)sample * call.seq : nullptr),
          ends(documents ? documents + ((i64)gridDim.z + sample) * call.seq : nullptr) {}

    // The first key that a query sees; may be negative.
    __device__ __forceinline__ int first_key(int query) const {
        const int first = query - earlier_keys;
        return starts ? max(first, (int)starts[min(query, last)]) : first;
    }

    // The last query that sees a key; may be after the end.
    __device__ __forceinline__ int last_query(int key) const {
        const int query = key + earlier_keys;
        return ends ? min(query, (int)ends[min(key, last)] - 1) : query;
    }
};

// The tile, head and sample of this block in a grid of (tiles, heads, samples).
//
// Blocks start in the order of their numbers, and tile 0 of a head takes longest. Were a head's tiles neighbours, the longest tile of the last
// head would start last, and end long after all others. So 32 heads take turns: first tile 0 of each, then tile 1. The cache holds these heads.
struct Place {
    int tile, head, sample;

    __device__ __forceinline__ Place() {
        const int HEADS = 32;
        const int tiles = gridDim.x, heads = gridDim.y;
        const i64 n = ((i64)blockIdx.z * heads + blockIdx.y) * tiles + blockIdx.x, all = (i64)heads * gridDim.z;
        const i64 first = n / (HEADS * (i64)tiles) * HEADS; // of the heads of all samples
        const int rest = (int)(n - first * tiles), together = (int)min(all - first, (i64)HEADS);
        const i64 chosen = first + rest % together;
        tile = rest / together;
        head = (int)(chosen % heads);
        sample = (int)(chosen / heads);
    }
};

// The dropout of one head's probabilities: element (head·seq + query)·seq + key of its sample.
struct Dropped {
    unsigned key0, key1, sample, step, threshold;
    int seq;
    u64 base;

    __device__ __forceinline__ Dropped(const AttentionCall& call, int sample, int head)
        : key0(call.key0), key1(call.key1), sample(call.first_sample + (unsigned)sample * call.sample_stride), step(call.step),
          threshold(call.threshold), seq(call.seq), base((u64)head * call.seq * call.seq) {}

    __device__ __forceinline__ u64 element(int query, int key) const {
        return base + (u64)query * seq + key;
    }

    // 1 if the element is kept.
    __device__ __forceinline__ unsigned one(int query, int key) const {
        return block(query, key) >> (element(query, key) % 4) & 1;
    }

    // True if the element is kept. A threshold of 0 keeps all.
    __device__ __forceinline__ bool keeps(int query, int key) const {
        return threshold == 0 || one(query, key);
    }

    // A bit for each of the elements that are kept, of the four in the block of the random stream that has (query, key).
    __device__ __forceinline__ unsigned block(int query, int key) const {
        const u64 n = element(query, key) / 4;
        const Words w = philox(key0, key1, (unsigned)n, (unsigned)(n >> 32), sample, step);
        unsigned kept = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            kept |= (unsigned)(w.at[i] >= threshold) << i;
        }
        return kept;
    }

    // A bit for each element of a lane's fragment that is kept: bit i for d[i], d[0] being (query, key), rows being queries.
    __device__ __forceinline__ unsigned kept(int query, int key) const {
        if (seq % 4 == 0) {
            // Lanes t and t ^ 1 share the blocks of two rows: each draws one.
            const bool odd = threadIdx.x & 1;
            const unsigned mine = block(odd ? query + 8 : query, key & ~3);
            const unsigned other = __shfl_xor_sync(FULL_MASK, mine, 1);
            return odd ? (other >> 2) | (mine & 12) : (mine & 3) | (other & 3) << 2;
        }
        return one(query, key) | one(query, key + 1) << 1 | one(query + 8, key) << 2 | one(query + 8, key + 1) << 3;
    }

    // The bits of `kept` where rows are keys and columns queries.
    __device__ __forceinline__ unsigned kept_transposed(int query, int key) const {
        if (seq % 4 == 0) {
            // The four lanes of neighbouring rows share the blocks of their four elements: each draws one.
            const int r = threadIdx.x / 4 & 3;
            const unsigned mine = block(query + (r & 1), (key & ~3) + (r & 2) * 4);
            unsigned kept = (mine >> r & 1) << r;
#pragma unroll
            for (int x = 1; x < 4; x++) {
                const unsigned other = __shfl_xor_sync(FULL_MASK, mine, 4 * x);
                kept |= (other >> r & 1) << (r ^ x);
            }
            return kept;
        }
        return one(query, key) | one(query + 1, key) << 1 | one(query, key + 8) << 2 | one(query + 1, key + 8) << 3;
    }
};

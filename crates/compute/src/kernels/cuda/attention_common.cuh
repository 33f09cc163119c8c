// What both families of attention kernels share, those over tiles and those over single rows: parameters and the padding mask.
#pragma once

#include "common.cuh"

#define THREADS 128
#define LOG2_E 1.4426950408889634f

// The last parameters of every attention kernel: the dropout's random key, the place of the batch's samples in the global batch, the
// optimizer step, the threshold below which a random word drops its element (0: no dropout), and the factor on what is kept.
#define DROPOUT_PARAMETERS                                                                                                                \
    unsigned key0, unsigned key1, unsigned first_sample, unsigned sample_stride, unsigned step, unsigned threshold, float keep
#define DROPOUT_ARGUMENTS key0, key1, first_sample, sample_stride, step, threshold, keep

// The first parameters of every backward kernel, of element type T.
#define BACKWARD_PARAMETERS(T)                                                                                                            \
    const T *qkv, const T *dout, const float *lse, const float *delta, T *dqkv, const unsigned *valid_lengths
#define BACKWARD_ARGUMENTS qkv, dout, lse, delta, dqkv, valid_lengths

// How many of a sample's first `keys` keys lie before its padding: at least one, and all of them without padding.
__device__ __forceinline__ int visible_keys(const unsigned* valid_lengths, int sample, int keys) {
    if (valid_lengths == nullptr) {
        return keys;
    }
    const unsigned n = valid_lengths[sample];
    return n < 1 ? 1 : n < (unsigned)keys ? (int)n : keys;
}

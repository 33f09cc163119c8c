// Attention on Hopper's tensor cores, bf16 with f32 sums. Other GPUs take attention_bf16.cu. The kernels leave registers and shared memory for these
// blocks on a multiprocessor: with heads of up to 64, two (keys), three (queries), four (forward); with heads of up to 128, two, two, three.
#if defined(RUNNER_EMULATED) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "attention_sm90.cuh"

// name, width, 64-row pieces of a block, keys of a tile
ATTENTION_FORWARD(bf16_64_sm90, 64, 1, 64)
ATTENTION_FORWARD(bf16_128_sm90, 128, 1, 64)

// name, width, queries of a tile
ATTENTION_KEYS(bf16_64_sm90, 64, 64)
ATTENTION_KEYS(bf16_128_sm90, 128, 64)

// name, width, 64-row pieces of a block, keys of a tile
ATTENTION_QUERIES(bf16_64_sm90, 64, 1, 64)
ATTENTION_QUERIES(bf16_128_sm90, 128, 1, 64)
#endif

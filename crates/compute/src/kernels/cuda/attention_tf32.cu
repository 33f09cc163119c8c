// Attention of f32 numbers on tensor cores: products of TF32, sums in f32.
#include "attention_backward.cuh"
#include "attention_forward.cuh"

// name, arithmetic, width, 16-row pieces of a warp, keys of a tile, queries held in registers
ATTENTION_FORWARD(tf32_64, Tf32, 64, 2, 32, false)
ATTENTION_FORWARD(tf32_128, Tf32, 128, 1, 32, false)
ATTENTION_FORWARD(tf32_256, Tf32, 256, 1, 32, false)

// name, arithmetic, width, queries of a tile, keys and values held in registers
ATTENTION_KEYS(tf32_64, Tf32, 64, 32, false)
ATTENTION_KEYS(tf32_128, Tf32, 128, 16, false)
ATTENTION_KEYS_APART(tf32_256, Tf32, 256, 16)

// name, arithmetic, width, 16-row pieces of a warp, keys of a tile, queries and gradients held in registers
ATTENTION_QUERIES(tf32_64, Tf32, 64, 1, 32, false)
ATTENTION_QUERIES(tf32_128, Tf32, 128, 1, 16, false)
ATTENTION_QUERIES(tf32_256, Tf32, 256, 1, 16, false)

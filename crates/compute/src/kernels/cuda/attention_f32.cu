// Attention in exact f32: multiply-adds in the fragments' layout of the tensor cores.
#include "attention_backward.cuh"
#include "attention_forward.cuh"

// name, arithmetic, width, 16-row pieces of a warp, keys of a tile, queries held in registers
ATTENTION_FORWARD(f32_64, Exact, 64, 2, 32, false)
ATTENTION_FORWARD(f32_128, Exact, 128, 1, 32, false)
ATTENTION_FORWARD(f32_256, Exact, 256, 1, 32, false)

ATTENTION_DELTA(f32, float)

// name, arithmetic, width, queries of a tile, keys and values held in registers
ATTENTION_KEYS(f32_64, Exact, 64, 32, false)
ATTENTION_KEYS(f32_128, Exact, 128, 16, false)
ATTENTION_KEYS_APART(f32_256, Exact, 256, 16)

// name, arithmetic, width, 16-row pieces of a warp, keys of a tile, queries and gradients held in registers
ATTENTION_QUERIES(f32_64, Exact, 64, 1, 32, false)
ATTENTION_QUERIES(f32_128, Exact, 128, 1, 16, false)
ATTENTION_QUERIES(f32_256, Exact, 256, 1, 16, false)

// Attention on tensor cores, bf16 with f32 sums. Heads of another width than a template's are padded with zeros to the next width.
#include "attention_backward.cuh"
#include "attention_forward.cuh"

// name, arithmetic, width, 16-row pieces of a warp, keys of a tile, queries held in registers
ATTENTION_FORWARD(bf16_64, Bf16, 64, 2, 64, true)
ATTENTION_FORWARD(bf16_128, Bf16, 128, 2, 32, false)
ATTENTION_FORWARD(bf16_256, Bf16, 256, 1, 32, false)

ATTENTION_DELTA(bf16, bf16)

// name, arithmetic, width, queries of a tile, keys and values held in registers
ATTENTION_KEYS(bf16_64, Bf16, 64, 32, true)
ATTENTION_KEYS(bf16_128, Bf16, 128, 32, false)
ATTENTION_KEYS_APART(bf16_256, Bf16, 256, 16)

// name, arithmetic, width, 16-row pieces of a warp, keys of a tile, queries and gradients held in registers
ATTENTION_QUERIES(bf16_64, Bf16, 64, 2, 32, false)
ATTENTION_QUERIES(bf16_128, Bf16, 128, 1, 32, false)
ATTENTION_QUERIES(bf16_256, Bf16, 256, 1, 16, false)

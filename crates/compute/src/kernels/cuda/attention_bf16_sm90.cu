// Attention on Hopper's tensor cores, bf16 with f32 sums. Other GPUs take attention_bf16.cu. The kernels leave registers and shared memory for these
// blocks on a multiprocessor: with heads of up to 64, two (keys), three (queries), four (forward); with heads of up to 128, two, two, three.
#include "attention_backward.cuh"
#include "attention_forward.cuh"

#if defined(RUNNER_EMULATED) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
// The parameters of attention_bf16.cu; nothing is held in registers.
ATTENTION_FORWARD(bf16_64_sm90, Grouped, 64, 1, 64, false)
ATTENTION_KEYS(bf16_64_sm90, Grouped, 64, 64, false)
ATTENTION_QUERIES(bf16_64_sm90, Grouped, 64, 1, 64, false)
ATTENTION_FORWARD(bf16_128_sm90, Grouped, 128, 1, 64, false)
ATTENTION_KEYS(bf16_128_sm90, Grouped, 128, 64, false)
ATTENTION_QUERIES(bf16_128_sm90, Grouped, 128, 1, 64, false)
#endif

// SGD over flat buffers, without and with momentum, as optim/sgd.rs computes it.
#include "optimizer.cuh"

#define SGD(name, S, ROUNDED)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256)                                                                          \
        name(S* state, const S* grads, bf16* copy, i64 n, i64 start, i64 end, i64 copied, float lr, float scale) {                    \
        update_group<0>(state, grads, copy, n, start, end, copied, [&](float& w, float*, float g) {                           \
            w = ROUNDED ? round_bf16(w - lr * round_bf16(scale * g)) : w - lr * scale * g;                                     \
        });                                                                                                                    \
    }
SGD(sgd_f32, float, false)
SGD(sgd_bf16, bf16, true)

template <bool ROUNDED> __device__ __forceinline__ void sgd_momentum_one(float& w, float& m, float g, float lr, float momentum, float scale) {
    if (ROUNDED) {
        const float step = momentum * m + round_bf16(scale * g);
        w = round_bf16(w - lr * step);
        m = round_bf16(step);
    } else {
        m = fmaf(momentum, m, scale * g);
        w -= lr * m;
    }
}

#define SGD_MOMENTUM(name, S, ROUNDED)                                                                                         \
    extern "C" __global__ void __launch_bounds__(256)                                                                          \
        name(S* state, const S* grads, bf16* copy, i64 n, i64 start, i64 end, i64 copied, float lr, float momentum, float scale) {    \
        update_group<1>(state, grads, copy, n, start, end, copied, [&](float& w, float* m, float g) {                         \
            sgd_momentum_one<ROUNDED>(w, m[0], g, lr, momentum, scale);                                                        \
        });                                                                                                                    \
    }
SGD_MOMENTUM(sgd_momentum_f32, float, false)
SGD_MOMENTUM(sgd_momentum_bf16, bf16, true)

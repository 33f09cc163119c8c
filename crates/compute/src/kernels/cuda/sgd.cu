// SGD over flat buffers, without and with momentum, as optim/sgd.rs computes it.
#include "optimizer.cuh"

template <bool ROUNDED> struct Sgd {
    float lr, scale;

    __device__ __forceinline__ void operator()(float& w, float*, float g) const {
        w = ROUNDED ? round_bf16(w - lr * round_bf16(scale * g)) : w - lr * scale * g;
    }
};
UPDATE(sgd, Sgd, 0)

template <bool ROUNDED> struct SgdMomentum {
    float lr, momentum, scale;

    __device__ __forceinline__ void operator()(float& w, float* moments, float g) const {
        float& m = moments[0];
        if (ROUNDED) {
            const float step = momentum * m + round_bf16(scale * g);
            w = round_bf16(w - lr * step);
            m = round_bf16(step);
        } else {
            m = fmaf(momentum, m, scale * g);
            w -= lr * m;
        }
    }
};
UPDATE(sgd_momentum, SgdMomentum, 1)

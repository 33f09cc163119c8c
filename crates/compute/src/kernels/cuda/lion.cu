// Lion over flat buffers, as optim/lion.rs computes it.
#include "optimizer.cuh"

template <bool ROUNDED> struct Lion {
    // The scalars of optim/lion.rs.
    float beta1, beta2, rest1, rest2, lr, scale, shrink;

    __device__ __forceinline__ void operator()(float& w, float* moments, float g) const {
        float& m = moments[0];
        g *= scale;
        if (ROUNDED) {
            g = round_bf16(g);
        }
        const float direction = fmaf(beta1, m, rest1 * g);
        // 0 and NaN stay what they are.
        const float change = direction > 0.0f ? lr : direction < 0.0f ? -lr : direction;
        w = w * shrink - change;
        m = fmaf(beta2, m, rest2 * g);
        if (ROUNDED) {
            w = round_bf16(w);
            m = round_bf16(m);
        }
    }
};
UPDATE(lion, Lion, 1)

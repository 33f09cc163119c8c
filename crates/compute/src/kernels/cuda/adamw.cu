// AdamW over flat buffers, as optim/adamw.rs computes it.
#include "optimizer.cuh"

template <bool ROUNDED> struct AdamW {
    // The scalars of optim/adamw.rs.
    float beta1, beta2, rest1, rest2, size, inverse, root, eps, scale, shrink, decay;

    __device__ __forceinline__ void operator()(float& w, float* moments, float g) const {
        float &m = moments[0], &v = moments[1];
        g *= scale;
        if (ROUNDED) {
            g = round_bf16(g);
            const float m1 = m + rest1 * (g - m), v1 = beta2 * v + rest2 * g * g;
            w = round_bf16(w - decay * w - size * m1 / (sqrtf(v1) / root + eps));
            m = round_bf16(m1);
            v = round_bf16(v1);
        } else {
            m = fmaf(beta1, m, rest1 * g);
            v = fmaf(beta2, v, rest2 * g * g);
            w = w * shrink - size * m / (sqrtf(v) * inverse + eps);
        }
    }
};
UPDATE(adamw, AdamW, 2)

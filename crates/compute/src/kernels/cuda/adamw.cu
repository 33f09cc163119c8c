// AdamW over flat buffers, as optim/adamw.rs computes it.
#include "optimizer.cuh"

// The scalars of optim/adamw.rs.
struct AdamW {
    float beta1, beta2, rest1, rest2, size, inverse, root, eps, scale, shrink, decay;
};

template <bool ROUNDED> __device__ __forceinline__ void adamw_one(const AdamW& a, float& w, float& m, float& v, float g) {
    g *= a.scale;
    if (ROUNDED) {
        g = round_bf16(g);
        const float m1 = m + a.rest1 * (g - m), v1 = a.beta2 * v + a.rest2 * g * g;
        w = round_bf16(w - a.decay * w - a.size * m1 / (sqrtf(v1) / a.root + a.eps));
        m = round_bf16(m1);
        v = round_bf16(v1);
    } else {
        m = fmaf(a.beta1, m, a.rest1 * g);
        v = fmaf(a.beta2, v, a.rest2 * g * g);
        w = w * a.shrink - a.size * m / (sqrtf(v) * a.inverse + a.eps);
    }
}

#define ADAMW(name, S, ROUNDED)                                                                                                \
    extern "C" __global__ void __launch_bounds__(256)                                                                          \
        name(S* state, const S* grads, bf16* copy, i64 n, i64 start, i64 end, i64 copied, float beta1, float beta2, float rest1,      \
             float rest2, float size, float inverse, float root, float eps, float scale, float shrink, float decay) {          \
        const AdamW a = {beta1, beta2, rest1, rest2, size, inverse, root, eps, scale, shrink, decay};                          \
        update_group<2>(state, grads, copy, n, start, end, copied, [&](float& w, float* m, float g) {                  \
            adamw_one<ROUNDED>(a, w, m[0], m[1], g);                                                                   \
        });                                                                                                                    \
    }
ADAMW(adamw_f32, float, false)
ADAMW(adamw_bf16, bf16, true)

// Lion over flat buffers, as optim/lion.rs computes it.
#include "optimizer.cuh"

// The scalars of optim/lion.rs.
struct Lion {
    float beta1, beta2, rest1, rest2, lr, scale, shrink;
};

template <bool ROUNDED> __device__ __forceinline__ void lion_one(const Lion& a, float& w, float& m, float g) {
    g *= a.scale;
    if (ROUNDED) {
        g = round_bf16(g);
    }
    const float direction = fmaf(a.beta1, m, a.rest1 * g);
    // 0 and NaN stay what they are.
    const float change = direction > 0.0f ? a.lr : direction < 0.0f ? -a.lr : direction;
    w = w * a.shrink - change;
    m = fmaf(a.beta2, m, a.rest2 * g);
    if (ROUNDED) {
        w = round_bf16(w);
        m = round_bf16(m);
    }
}

#define LION(name, S, ROUNDED)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(256)                                                                          \
        name(S* state, const S* grads, bf16* copy, i64 n, i64 start, i64 end, i64 copied, float beta1, float beta2, float rest1,      \
             float rest2, float lr, float scale, float shrink) {                                                               \
        const Lion a = {beta1, beta2, rest1, rest2, lr, scale, shrink};                                                        \
        update_group<1>(state, grads, copy, n, start, end, copied, [&](float& w, float* m, float g) {                  \
            lion_one<ROUNDED>(a, w, m[0], g);                                                                          \
        });                                                                                                                    \
    }
LION(lion_f32, float, false)
LION(lion_bf16, bf16, true)

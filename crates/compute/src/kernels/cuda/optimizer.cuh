// One pass of an optimizer over flat buffers: weights and moments are updated, and the bf16 copy of the weights is made anew. State and
// gradients are stored as S. bf16 state is ROUNDED: scaled gradients before, weights and moments after the arithmetic.
#pragma once

#include "rows.cuh"

// `w` is n weights, followed in memory by MOMENTS times n moments, of which the second lacks its first `skipped`. Calls one(w, m, g) for each element from `start` to `end`, which sets w and
// m[0], m[1] ... The first `copied` of all weights go to `copy`, which may be null.
template <int MOMENTS, typename S, typename F>
__device__ __forceinline__ void update_group(S* w, const S* g, bf16* copy, i64 n, i64 skipped, i64 start, i64 end,
                                             i64 copied, F one) {
    constexpr int SECTIONS = 1 + MOMENTS;
    const auto section = [&](int k) { return w + k * n - (k > 1 ? skipped : 0); };
    w += start;
    g += start;
    copy = copy ? copy + start : copy;
    copied -= start;
    bool vector = are_vectors(w, g, copy);
#pragma unroll
    for (int k = 1; k < SECTIONS; k++) {
        vector = vector && is_vector(section(k));
    }
    each_span(end - start, vector, [&](auto span, i64 i) {
        float x[SECTIONS][span.N], d[span.N];
#pragma unroll
        for (int k = 0; k < SECTIONS; k++) {
            span.load(x[k], section(k) + i);
        }
        span.load(d, g + i);
#pragma unroll
        for (int j = 0; j < span.N; j++) {
            float numbers[SECTIONS];
#pragma unroll
            for (int k = 0; k < SECTIONS; k++) {
                numbers[k] = x[k][j];
            }
            one(numbers[0], numbers + 1, d[j]);
#pragma unroll
            for (int k = 0; k < SECTIONS; k++) {
                x[k][j] = numbers[k];
            }
        }
#pragma unroll
        for (int k = 0; k < SECTIONS; k++) {
            span.store(section(k) + i, x[k]);
        }
        if (copy && i + span.N <= copied) {
            span.store(copy + i, x[0]);
        } else if (copy && i < copied) {
            for (int j = 0; i + j < copied; j++) {
                copy[i + j] = to_bf16(x[0][j]);
            }
        }
    });
}

// The numbers that an optimizer's elements share, as ElementUpdate::scalars has them.
struct Scalars {
    float at[12];
};

// The kernels of an optimizer, for state of each type. Of<ROUNDED> is a struct of floats, to which the scalars are copied in order, and its
// operator()(float& w, float* m, float g) const updates an element.
#define UPDATE(name, Of, MOMENTS)                                                                                              \
    UPDATE_OF_TYPE(f32_##name, float, Of<false>, MOMENTS)                                                                      \
    UPDATE_OF_TYPE(bf16_##name, bf16, Of<true>, MOMENTS)

#define UPDATE_OF_TYPE(suffix, S, Rule, MOMENTS)                                                                               \
    extern "C" __global__ void __launch_bounds__(256) update_##suffix(S* state, const S* grads, bf16* copy, i64 n,             \
                                                                      i64 skipped, i64 start, i64 end, i64 copied,             \
                                                                      Scalars scalars) {                                       \
        update_group<MOMENTS>(state, grads, copy, n, skipped, start, end, copied, first_scalars<Rule>(scalars));               \
    }

template <typename Rule> __device__ __forceinline__ Rule first_scalars(const Scalars& scalars) {
    static_assert(sizeof(Rule) <= sizeof(Scalars), "more scalars than there is room for");
    Rule rule;
    memcpy(&rule, &scalars, sizeof rule);
    return rule;
}

// The parts that all kernels share: bf16 numbers, vector loads, reductions over warps and blocks, random numbers.
//
// The sources also compile as plain C++ against tests/emulated/emulate.h, where a block's threads are fibers: so their logic is
// tested on machines without a GPU. Inline PTX therefore stands only here, in mma.cuh and in mma_sm90.cuh, beside a software twin.
#pragma once

#ifdef RUNNER_EMULATED
#include "emulate.h"
#else
#include <cstdint>
// Dynamic shared memory, as bytes.
#define DYNAMIC_SHARED(name) extern __shared__ __align__(1024) unsigned char name[]
#endif

#define FULL_MASK 0xffffffffu

typedef long long i64;
typedef unsigned long long u64;

// ---- bf16: the upper half of an f32 ----

struct __align__(2) bf16 {
    unsigned short bits;
};

__device__ __forceinline__ float to_float(bf16 x) {
    return __uint_as_float((unsigned)x.bits << 16);
}

__device__ __forceinline__ float to_float(float x) {
    return x;
}

// To the nearest, ties to even; NaN stays NaN.
__device__ __forceinline__ bf16 to_bf16(float x) {
    bf16 y;
#ifdef RUNNER_EMULATED
    unsigned u = __float_as_uint(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
        y.bits = (unsigned short)((u >> 16) | 0x40u);
    } else {
        y.bits = (unsigned short)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
#else
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#endif
    return y;
}

// Two in one word: `low` in the lower half, as it comes first in memory.
__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
#ifdef RUNNER_EMULATED
    return (unsigned)to_bf16(low).bits | (unsigned)to_bf16(high).bits << 16;
#else
    unsigned y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
#endif
}

__device__ __forceinline__ float round_bf16(float x) {
    return to_float(to_bf16(x));
}

// 2 to the power of x, to two units in the last place; results below the smallest normal number are 0.
__device__ __forceinline__ float fast_exp2(float x) {
#ifdef RUNNER_EMULATED
    const float y = exp2f(x);
    return y < 1.17549435e-38f ? 0.f : y;
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

// Converts an f32 to an element of an array of T.
template <typename T> __device__ __forceinline__ T from_float(float x) {
    if constexpr (sizeof(T) == sizeof(float)) {
        return x;
    } else {
        return to_bf16(x);
    }
}

// ---- vectors: sixteen bytes at once ----

// `Vector<float>` holds 4, `Vector<bf16>` 8 elements; memory must be aligned to 16 bytes.
template <typename T> struct __align__(16) Vector {
    static const int N = 16 / (int)sizeof(T);
    T at[N];
};

template <typename T> __device__ __forceinline__ Vector<T> load_vector(const T* p) {
    return *reinterpret_cast<const Vector<T>*>(p);
}

template <typename T> __device__ __forceinline__ void store_vector(T* p, const Vector<T>& v) {
    *reinterpret_cast<Vector<T>*>(p) = v;
}

// True if rows of `width` elements from `p` on can be read as vectors.
template <typename T> __device__ __forceinline__ bool is_aligned(const T* p, i64 width) {
    return ((u64)p & 15) == 0 && width % Vector<T>::N == 0;
}

// ---- sums and maxima, in a fixed order: every lane, or every thread of the block, gets the result ----

template <typename T> __device__ __forceinline__ T warp_sum(T x) {
    for (int lane = 16; lane > 0; lane /= 2) {
        x += __shfl_xor_sync(FULL_MASK, x, lane);
    }
    return x;
}

__device__ __forceinline__ float warp_max(float x) {
    for (int lane = 16; lane > 0; lane /= 2) {
        x = fmaxf(x, __shfl_xor_sync(FULL_MASK, x, lane));
    }
    return x;
}

// Joins the warps' results: lane w of each warp gets that of warp w, and `rest` where there is no such warp. `scratch` has 32
// elements of shared memory, and may be used again right after.
template <typename T> __device__ __forceinline__ T exchange_warps(T x, T rest, T* scratch) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = (blockDim.x + 31) / 32;
    __syncthreads();
    if (lane == 0) {
        scratch[warp] = x;
    }
    __syncthreads();
    return lane < warps ? scratch[lane] : rest;
}

template <typename T> __device__ __forceinline__ T block_sum(T x, T* scratch) {
    return warp_sum(exchange_warps(warp_sum(x), (T)0, scratch));
}

__device__ __forceinline__ float block_max(float x, float* scratch) {
    return warp_max(exchange_warps(warp_max(x), -INFINITY, scratch));
}

// ---- Philox4x32-10 (Salmon et al. 2011), the stream of crates/spec/src/philox.rs ----

struct Words {
    unsigned at[4];
};

__device__ __forceinline__ Words philox(unsigned key0, unsigned key1, unsigned c0, unsigned c1, unsigned c2, unsigned c3) {
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const u64 a = (u64)c0 * 0xD2511F53u, b = (u64)c2 * 0xCD9E8D57u;
        const unsigned n0 = (unsigned)(b >> 32) ^ c1 ^ key0, n2 = (unsigned)(a >> 32) ^ c3 ^ key1;
        c0 = n0;
        c1 = (unsigned)b;
        c2 = n2;
        c3 = (unsigned)a;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    Words w = {{c0, c1, c2, c3}};
    return w;
}

// The random word of one element of a dropout site: element `element` of the sample `sample` (its place in the global batch).
__device__ __forceinline__ unsigned dropout_word(unsigned key0, unsigned key1, u64 element, unsigned sample, unsigned step) {
    const u64 block = element / 4;
    const Words w = philox(key0, key1, (unsigned)block, (unsigned)(block >> 32), sample, step);
    const unsigned low = element & 1 ? w.at[1] : w.at[0], high = element & 1 ? w.at[3] : w.at[2];
    return element & 2 ? high : low;
}

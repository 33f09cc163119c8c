// Products of a group of four warps, on Hopper (wgmma; PTX ISA, "Asynchronous warpgroup level matrix instructions"), beside their twins for
// emulation.
//
// Tiles have rows of ROW bytes in the order of attention.cuh's chunks, and begin at multiples of 1,024 bytes. Each 8 rows of 64 columns, 128
// bytes, are 1,024 bytes in the order that the PTX ISA calls 128-byte swizzling. A result's fragments are those of mma_bf16 for each 8
// columns; warp w has rows 16·w to 16·w + 15. Products are started; they are done after `group_wait`.
#pragma once

#include "common.cuh"

#ifndef RUNNER_EMULATED

// The lower word of a matrix's descriptor: its address in units of 16 bytes, to which offsets in these units are added, and the
// leading dimension's.
template <int ROW> __device__ __forceinline__ unsigned group_matrix(const unsigned char* tile) {
    return (unsigned)__cvta_generic_to_shared(tile) >> 4 | 8 * ROW >> 4 << 16;
}

// The descriptor: the bytes from each 8 rows to the next, and 128-byte swizzling.
template <int ROW> __device__ __forceinline__ u64 group_descriptor(unsigned matrix) {
    return (u64)(1u << 30 | 8 * ROW >> 4) << 32 | matrix;
}

#define GROUP_RESULT(d)                                                                                                                   \
    "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]),                \
        "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]),            \
        "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),            \
        "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3])
#define GROUP_MULTIPLY                                                                                                                    \
    "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "                                                                               \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "

// D = A·Bᵀ, or with `add` D += A·Bᵀ: 16 columns, from `a` and `b` on, of 64 rows of each of two tiles.
template <int ROW> __device__ __forceinline__ void group_product(float (&d)[8][4], unsigned a, unsigned b, bool add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; " GROUP_MULTIPLY "%32, %33, p, 1, 1, 0, 0; }"
                 : GROUP_RESULT(d)
                 : "l"(group_descriptor<ROW>(a)), "l"(group_descriptor<ROW>(b)), "r"((int)add)
                 : "memory");
}

// D += A·B: 16 columns of 64 rows in registers, as mma_bf16's, and 16 rows of 64 columns of a tile, from `b` on.
template <int ROW> __device__ __forceinline__ void group_accumulate(float (&d)[8][4], const unsigned (&a)[4], unsigned b) {
    asm volatile(GROUP_MULTIPLY "{%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
                 : GROUP_RESULT(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(group_descriptor<ROW>(b))
                 : "memory");
}

// Comes before products that read or add to registers that other instructions wrote.
__device__ __forceinline__ void group_begin() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Closes the set of products that were started since the last set.
__device__ __forceinline__ void group_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most `N` of the latest sets are still on their way.
template <int N> __device__ __forceinline__ void group_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// Comes after the wait for a result, which the compiler could otherwise read before the wait.
__device__ __forceinline__ void group_use(float (&d)[8][4]) {
    asm volatile("" : GROUP_RESULT(d)::"memory");
}

// Makes what this thread stored in shared memory visible to products.
__device__ __forceinline__ void group_fence_shared() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#else

template <int ROW> unsigned group_matrix(const unsigned char* tile) {
    return emulated_group_matrix(tile, 8 * ROW);
}
template <int ROW> void group_product(float (&d)[8][4], unsigned a, unsigned b, bool add) {
    emulated_group_product(d, a, b, 8 * ROW, add);
}
template <int ROW> void group_accumulate(float (&d)[8][4], const unsigned (&a)[4], unsigned b) {
    emulated_group_accumulate(d, a, b, 8 * ROW);
}
inline void group_begin() {
    emulated_group_begin();
}
inline void group_commit() {
    emulated_group_commit();
}
template <int N> void group_wait() {
    emulated_group_wait(N);
}
inline void group_use(float (&)[8][4]) {}
inline void group_fence_shared() {
    emulated_group_fence_shared();
}

#endif

// Tensor-core products and asynchronous copies, each beside a software twin for emulation.
#pragma once

#include "common.cuh"

// The product and the load of an instruction's fragments `d`, `a` and `b`, or `r` from `row`.
#define MMA(instruction)                                                                                                                  \
    asm volatile(instruction " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                                     \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                                         \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
#define LOAD_TILES(instruction)                                                                                                           \
    asm volatile(instruction " {%0,%1,%2,%3}, [%4];"                                                                                      \
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])                                                                         \
                 : "r"((unsigned)__cvta_generic_to_shared(row))                                                                           \
                 : "memory")

// D = A·B + D of one warp: A is 16 × 16 (row-major), B is 16 × 8 (column-major), both bf16; D is 16 × 8, f32.
//
// Fragments (PTX ISA, "Matrix Fragments for mma.m16n8k16"), with g = lane / 4 and t = lane % 4; a word holds two neighbours:
//   a[0] = A[g][2t, 2t+1]      a[1] = A[g+8][2t, 2t+1]      a[2] = A[g][2t+8, 2t+9]      a[3] = A[g+8][2t+8, 2t+9]
//   b[0] = B[2t, 2t+1][g]      b[1] = B[2t+8, 2t+9][g]
//   d[0], d[1] = D[g][2t, 2t+1]      d[2], d[3] = D[g+8][2t, 2t+1]
__device__ __forceinline__ void mma_bf16(float d[4], const unsigned a[4], const unsigned b[2]) {
#ifdef RUNNER_EMULATED
    emulated_mma_bf16(d, a, b);
#else
    MMA("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32");
#endif
}

// D = A·B + D of one warp for TF32: A is 16 × 8, B is 8 × 8. Words are f32 bits (see `to_tf32`).
//   a[0] = A[g][t]      a[1] = A[g+8][t]      a[2] = A[g][t+4]      a[3] = A[g+8][t+4]
//   b[0] = B[t][g]      b[1] = B[t+4][g]      d as in mma_bf16
__device__ __forceinline__ void mma_tf32(float d[4], const unsigned a[4], const unsigned b[2]) {
#ifdef RUNNER_EMULATED
    emulated_mma_tf32(d, a, b);
#else
    MMA("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32");
#endif
}

// To 10 bits of mantissa, to the nearest.
__device__ __forceinline__ unsigned to_tf32(float x) {
#ifdef RUNNER_EMULATED
    unsigned u = __float_as_uint(x);
    return (u & 0x7f800000u) == 0x7f800000u ? u : (u + 0x1000u) & 0xffffe000u;
#else
    unsigned y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
#endif
}

// Four 8 × 8 tiles of 16-bit elements from shared memory: lanes 8i .. 8i+7 give the addresses of the rows of tile i (16 bytes
// each, aligned); r[i] of lane (g, t) holds row g, elements 2t and 2t+1 of tile i.
__device__ __forceinline__ void load_tiles(unsigned r[4], const void* row) {
#ifdef RUNNER_EMULATED
    emulated_load_tiles(r, row);
#else
    LOAD_TILES("ldmatrix.sync.aligned.m8n8.x4.shared.b16");
#endif
}

// The tiles of load_tiles, transposed: r[i] of lane (g, t) holds column g, rows 2t and 2t+1.
__device__ __forceinline__ void load_tiles_transposed(unsigned r[4], const void* row) {
#ifdef RUNNER_EMULATED
    emulated_load_tiles_transposed(r, row);
#else
    LOAD_TILES("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16");
#endif
}

// Starts a copy of 16 bytes from global to shared memory; zeros instead if not `inside`. Both aligned to 16 bytes.
__device__ __forceinline__ void copy_async(void* shared, const void* global, bool inside) {
#ifdef RUNNER_EMULATED
    emulated_copy_async(shared, global, inside);
#else
    const unsigned at = (unsigned)__cvta_generic_to_shared(shared);
    const int bytes = inside ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(global), "r"(bytes) : "memory");
#endif
}

// Closes the group of copies started so far.
__device__ __forceinline__ void copy_commit() {
#ifdef RUNNER_EMULATED
    emulated_copy_commit();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most `N` of the latest groups are still on their way. Other threads see the data after __syncthreads.
template <int N> __device__ __forceinline__ void copy_wait() {
#ifdef RUNNER_EMULATED
    emulated_copy_wait(N);
#else
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

// ---- products of a group of four warps, on Hopper (wgmma; PTX ISA, "Asynchronous warpgroup level matrix instructions") ----
//
// Tiles have rows of ROW bytes in the order of attention.cuh's chunks, and begin at multiples of 1,024 bytes. Each 8 rows of 64 columns, 128
// bytes, are 1,024 bytes in the order that the PTX ISA calls 128-byte swizzling. A result's fragments are those of mma_bf16 for each 8
// columns; warp w has rows 16·w to 16·w + 15. Products are started; they are done after `group_wait`.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

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

#elif defined(RUNNER_EMULATED)

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

#else

// Other GPUs' kernels call none of these.
template <int ROW> __device__ unsigned group_matrix(const unsigned char* tile);
template <int ROW> __device__ void group_product(float (&d)[8][4], unsigned a, unsigned b, bool add);
template <int ROW> __device__ void group_accumulate(float (&d)[8][4], const unsigned (&a)[4], unsigned b);
__device__ void group_begin();
__device__ void group_commit();
template <int N> __device__ void group_wait();
__device__ void group_use(float (&d)[8][4]);
__device__ void group_fence_shared();

#endif

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

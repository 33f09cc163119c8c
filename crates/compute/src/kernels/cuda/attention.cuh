// The parts that the attention kernels over tiles share: tiles in shared memory, and the two kinds of products over them.
//
// A tile is [rows][D] elements in chunks of 16 bytes; chunk c of row r lies at place c ^ (r & 7) of its row, so that eight rows' chunks
// of one column (what ldmatrix reads) lie in all 32 banks. bf16 rows wider than 64 lie in panels: of each 8 rows, columns
// 0 to 63 (1,024 bytes), then columns 64 to 127. A block has 4 warps; a warp owns rows of a product's result, held as the
// fragments of mma.cuh in each kind of arithmetic: lane (g, t) has columns 2t, 2t+1 of rows g and g + 8 of each 16 × 8 piece.
//
// All products of attention are of two kinds, and so one source serves bf16, TF32 and exact f32:
//   product:    S = A·Bᵀ, rows of both from tiles    (Q·Kᵀ, dO·Vᵀ and their transposes)
//   accumulate: O += P·B, P from registers, B a tile (P·V, dS·K, Pᵀ·dO, dSᵀ·Q): a result's fragments are the next product's operand.
//
// On Hopper the block's four warps multiply as a group: together, asynchronously, with both tiles read from shared memory. The functions
// below then only start a product, and `finish` waits for it.
//
// Performance bounds: a bf16 product of 16 × 8 × 16 takes a multiprocessor of an A100 2 clocks (1024 multiply-adds each), and its right
// operand, 256 bytes, as long to come from shared memory (128 bytes a clock). So a warp has two pieces of 16 rows (MT = 2) where
// registers allow: then reads take half of the products' time on an A100. The kernel for dK and dV has two sums, and so one piece: on an A100
// its reads take as long as its products. An H100's full rate, 2048 multiply-adds, needs products of a group.
#pragma once

#include "attention_common.cuh"
#include "mma.cuh"

// ---- arithmetic ----

struct Bf16 {
    typedef bf16 T;
    static const bool TENSOR = true, GROUP = false;
    static __device__ __forceinline__ void mma(float d[4], const unsigned a[4], const unsigned b[2]) {
        mma_bf16(d, a, b);
    }
    static __device__ __forceinline__ void round(unsigned[4]) {}
};

struct Tf32 {
    typedef float T;
    static const bool TENSOR = true, GROUP = false;
    static __device__ __forceinline__ void mma(float d[4], const unsigned a[4], const unsigned b[2]) {
        mma_tf32(d, a, b);
    }
    static __device__ __forceinline__ void round(unsigned w[4]) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w[i] = to_tf32(__uint_as_float(w[i]));
        }
    }
};

struct Exact {
    typedef float T;
    static const bool TENSOR = false, GROUP = false;
    static __device__ __forceinline__ void mma(float*, const unsigned*, const unsigned*) {}
    static __device__ __forceinline__ void round(unsigned*) {}
};

// bf16, multiplied by a group. Results are spread over registers as those of Bf16.
struct Grouped : Bf16 {
    static const bool GROUP = true;
};

// ---- tiles ----

template <typename T, int D> struct Tile {
    static const int E = 16 / (int)sizeof(T); // elements of a chunk
    static const int C = D / E;               // chunks of a row
    static const int ROW = D * (int)sizeof(T);
    static const int STAGES = ROW > 512 ? 1 : 2; // how many tiles of a walk the backward's blocks hold at a time (`stages` of attention.rs)

    static __device__ __forceinline__ int at(int row, int chunk) {
        const int place = ((chunk ^ row) & 7) * 16;
        if (sizeof(T) == 2 && ROW > 128) {
            return (row & ~7) * ROW + (chunk & ~7) * 128 + (row & 7) * 128 + place;
        }
        return row * ROW + (chunk & ~7) * 16 + place;
    }

    // Starts to fill `rows` rows with those at `from`, `stride` elements apart; zeros from row `valid` and from column `width` on.
    template <int ROWS>
    static __device__ __forceinline__ void load(unsigned char* tile, const T* from, int stride, int valid, int width, bool aligned) {
        if (aligned) {
            const int chunk = threadIdx.x % C, first = threadIdx.x / C, step = THREADS / C;
            const T* column = from + first * stride + chunk * E;
            valid = chunk * E < width ? valid - first : 0;
#pragma unroll
            for (int n = 0; n < ROWS / step; n++) {
                // Rows eight apart have their chunks at the same places.
                unsigned char* to = step % 8 == 0 ? tile + at(first, chunk) + n * step * ROW : tile + at(first + n * step, chunk);
                copy_async(to, column, n * step < valid);
                column += step * stride;
            }
        } else {
            for (int i = threadIdx.x; i < ROWS * D; i += THREADS) {
                const int row = i / D, column = i % D;
                T* to = reinterpret_cast<T*>(tile + at(row, column / E)) + column % E;
                *to = row < valid && column < width ? from[row * stride + column] : from_float<T>(0.f);
            }
        }
    }

    // Writes the fragments of a warp's 16·MT rows, times `scale`, to rows at `to`, by way of as many rows of a tile that are the
    // warp's own. Rows from `valid` and columns from `width` on are left out.
    template <int MT>
    static __device__ __forceinline__ void store(unsigned char* tile, const float (&x)[MT][D / 8][4], const float (&scale)[MT][2], T* to,
                                                 int stride, int valid, int width, bool aligned) {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        __syncwarp();
#pragma unroll
        for (int m = 0; m < MT; m++) {
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int row = m * 16 + half * 8 + g, column = n * 8 + 2 * t;
                    unsigned char* p = tile + at(row, column / E) + column % E * (int)sizeof(T);
                    const float a = x[m][n][2 * half] * scale[m][half], b = x[m][n][2 * half + 1] * scale[m][half];
                    if (sizeof(T) == 2) {
                        *reinterpret_cast<unsigned*>(p) = pack_bf16(a, b);
                    } else {
                        reinterpret_cast<float*>(p)[0] = a;
                        reinterpret_cast<float*>(p)[1] = b;
                    }
                }
            }
        }
        __syncwarp();
        if (aligned) {
#pragma unroll
            for (int n = 0; n < 16 * MT * C / 32; n++) {
                const int chunk = (n * 32 + lane) % C, row = (n * 32 + lane) / C;
                if (row < valid && chunk * E < width) {
                    store_vector(to + row * stride + chunk * E, *reinterpret_cast<const Vector<T>*>(tile + at(row, chunk)));
                }
            }
        } else {
            for (int i = lane; i < 16 * MT * D; i += 32) {
                const int row = i / D, column = i % D;
                if (row < valid && column < width) {
                    to[row * stride + column] = *(reinterpret_cast<const T*>(tile + at(row, column / E)) + column % E);
                }
            }
        }
    }
};

// ---- products ----

// The fragments of a warp's 16·MT rows of a tile as the left operand, in registers for the whole kernel (HELD) or read at each use.
template <class M, int D, int MT, bool HELD> struct Rows {
    typedef Tile<typename M::T, D> Of;
    static const int STEPS = Of::C / 2;
    unsigned words[HELD ? STEPS : 1][MT][4];
    const unsigned char* tile; // from the warp's first row on, or the group's

    // `block`: the block's rows.
    __device__ __forceinline__ explicit Rows(const unsigned char* block)
        : tile(block + (M::GROUP ? 0 : threadIdx.x / 32 * 16 * MT * Of::ROW)) {}

    __device__ __forceinline__ void read(unsigned a[MT][4], int step) const {
        const int lane = threadIdx.x % 32, i = lane / 8;
#pragma unroll
        for (int m = 0; m < MT; m++) {
            load_tiles(a[m], tile + Of::at(m * 16 + (i & 1) * 8 + lane % 8, 2 * step + (i >> 1)));
            M::round(a[m]);
        }
    }

    __device__ __forceinline__ void hold() {
        if (HELD) {
#pragma unroll
            for (int k = 0; k < STEPS; k++) {
                read(words[HELD ? k : 0], k);
            }
        }
    }

    __device__ __forceinline__ void step(unsigned a[MT][4], int k) const {
        if (HELD) {
#pragma unroll
            for (int m = 0; m < MT; m++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    a[m][i] = words[HELD ? k : 0][m][i];
                }
            }
        } else {
            read(a, k);
        }
    }
};

// Sets all fragments to zero.
template <int MT, int NT> __device__ __forceinline__ void clear(float (&x)[MT][NT][4]) {
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int n = 0; n < NT; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x[m][n][i] = 0.f;
            }
        }
    }
}

// Eight of a result's pieces of 8 columns, from piece `n` on: what an instruction of a group computes.
template <int NT> __device__ __forceinline__ float (&eight(float (&x)[NT][4], int n))[8][4] {
    return *reinterpret_cast<float(*)[8][4]>(&x[n]);
}

// Waits until at most `LATER` of the group's latest products are still on their way, and so until `x` may be used.
template <class M, int LATER, int NT> __device__ __forceinline__ void finish(float (&x)[1][NT][4]) {
    if constexpr (M::GROUP) {
        group_wait<LATER>();
#pragma unroll
        for (int n = 0; n < NT; n += 8) {
            group_use(eight(x[0], n));
        }
    }
}

template <class M, int LATER, int MT, int NT> __device__ __forceinline__ void finish(float (&)[MT][NT][4]) {
    static_assert(!M::GROUP, "a group has one piece of rows");
}

// Waits for the copies that this thread started, and for all warps: then all see the tiles, and none reads older ones. A group's
// products see what other instructions stored only after a fence.
template <class M> __device__ __forceinline__ void all_loaded() {
    copy_wait<0>();
    if constexpr (M::GROUP) {
        group_fence_shared();
    }
    __syncthreads();
}

// After the last products: the tiles that a group read may be overwritten.
template <class M> __device__ __forceinline__ void all_read() {
    if (M::GROUP) {
        __syncthreads();
    }
}

// s = A·Bᵀ of the warp's rows and 8·NT rows of the tile `b`.
template <class M, int D, int MT, int NT, bool HELD>
__device__ __forceinline__ void product(float (&s)[MT][NT][4], const Rows<M, D, MT, HELD>& rows, const unsigned char* b) {
    typedef Tile<typename M::T, D> Of;
    const int lane = threadIdx.x % 32;
    if constexpr (M::GROUP) {
        const unsigned left = group_matrix<Of::ROW>(rows.tile), right = group_matrix<Of::ROW>(b);
        group_begin();
#pragma unroll
        for (int k = 0; k < D / 16; k++) {
            const int columns = (k / 4 * 1024 + k % 4 * 32) / 16;
            group_product<Of::ROW>(s[0], left + columns, right + columns, k > 0);
        }
        group_commit();
        return;
    }
    clear(s);
    if (M::TENSOR) {
        const int i = lane / 8;
#pragma unroll(HELD ? Of::C / 2 : sizeof(typename M::T) == 2 ? 8 : 4)
        for (int k = 0; k < Of::C / 2; k++) {
            unsigned a[MT][4];
            rows.step(a, k);
#pragma unroll
            for (int n = 0; n < NT / 2; n++) {
                unsigned w[4];
                load_tiles(w, b + Of::at(n * 16 + (i >> 1) * 8 + lane % 8, 2 * k + (i & 1)));
                M::round(w);
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    M::mma(s[m][2 * n], a[m], w);
                    M::mma(s[m][2 * n + 1], a[m], w + 2);
                }
            }
        }
    } else {
        const int g = lane / 4, t = lane % 4;
#pragma unroll 2
        for (int c = 0; c < Of::C; c++) {
            Vector<float> a[MT][2];
#pragma unroll
            for (int m = 0; m < MT; m++) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    a[m][half] = *reinterpret_cast<const Vector<float>*>(rows.tile + Of::at(m * 16 + half * 8 + g, c));
                }
            }
#pragma unroll
            for (int n = 0; n < NT; n++) {
#pragma unroll
                for (int odd = 0; odd < 2; odd++) {
                    const Vector<float> w = *reinterpret_cast<const Vector<float>*>(b + Of::at(n * 8 + 2 * t + odd, c));
#pragma unroll
                    for (int m = 0; m < MT; m++) {
#pragma unroll
                        for (int e = 0; e < 4; e++) {
                            s[m][n][odd] = fmaf(a[m][0].at[e], w.at[e], s[m][n][odd]);
                            s[m][n][2 + odd] = fmaf(a[m][1].at[e], w.at[e], s[m][n][2 + odd]);
                        }
                    }
                }
            }
        }
    }
}

// Columns 16·k to 16·k + 15 of a result's fragments as a left operand.
template <int NT> __device__ __forceinline__ void pack_step(unsigned a[4], const float (&p)[NT][4], int k) {
    a[0] = pack_bf16(p[2 * k][0], p[2 * k][1]);
    a[1] = pack_bf16(p[2 * k][2], p[2 * k][3]);
    a[2] = pack_bf16(p[2 * k + 1][0], p[2 * k + 1][1]);
    a[3] = pack_bf16(p[2 * k + 1][2], p[2 * k + 1][3]);
}

// o += P·B with P in registers (16·MT × 8·NT) and B the first 8·NT rows of a tile.
template <class M, int D, int MT, int NT>
__device__ __forceinline__ void accumulate(float (&o)[MT][D / 8][4], const float (&p)[MT][NT][4], const unsigned char* b) {
    typedef Tile<typename M::T, D> Of;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    if constexpr (M::GROUP) {
        unsigned a[NT / 2][4];
#pragma unroll
        for (int k = 0; k < NT / 2; k++) {
            pack_step(a[k], p[0], k);
        }
        const unsigned right = group_matrix<Of::ROW>(b);
        group_begin();
#pragma unroll
        for (int k = 0; k < NT / 2; k++) {
#pragma unroll
            for (int n = 0; n < D / 8; n += 8) {
                group_accumulate<Of::ROW>(eight(o[0], n), a[k], right + (k * 16 * Of::ROW + n / 8 * 1024) / 16);
            }
        }
        group_commit();
    } else if (M::TENSOR && sizeof(typename M::T) == 2) {
        const int i = lane / 8;
#pragma unroll
        for (int k = 0; k < NT / 2; k++) {
            unsigned a[MT][4];
#pragma unroll
            for (int m = 0; m < MT; m++) {
                pack_step(a[m], p[m], k);
            }
#pragma unroll
            for (int n = 0; n < D / 16; n++) {
                unsigned w[4];
                load_tiles_transposed(w, b + Of::at(k * 16 + (i & 1) * 8 + lane % 8, 2 * n + (i >> 1)));
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    M::mma(o[m][2 * n], a[m], w);
                    M::mma(o[m][2 * n + 1], a[m], w + 2);
                }
            }
        }
    } else if (M::TENSOR) {
        // The sum's terms may be taken in any order: columns t and t + 4 of the operand are columns 2t and 2t + 1 of P.
#pragma unroll
        for (int k = 0; k < NT; k++) {
            unsigned a[MT][4];
#pragma unroll
            for (int m = 0; m < MT; m++) {
                a[m][0] = to_tf32(p[m][k][0]);
                a[m][1] = to_tf32(p[m][k][2]);
                a[m][2] = to_tf32(p[m][k][1]);
                a[m][3] = to_tf32(p[m][k][3]);
            }
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                unsigned w[2];
#pragma unroll
                for (int odd = 0; odd < 2; odd++) {
                    const unsigned char* q = b + Of::at(k * 8 + 2 * t + odd, 2 * n + g / 4);
                    w[odd] = to_tf32(reinterpret_cast<const float*>(q)[g % 4]);
                }
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    M::mma(o[m][n], a[m], w);
                }
            }
        }
    } else {
#pragma unroll
        for (int k = 0; k < NT; k++) {
#pragma unroll
            for (int j = 0; j < 8; j++) {
                float a[MT][2];
#pragma unroll
                for (int m = 0; m < MT; m++) {
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        a[m][half] = __shfl_sync(FULL_MASK, p[m][k][2 * half + (j & 1)], (lane & ~3) | (j / 2));
                    }
                }
#pragma unroll
                for (int n = 0; n < D / 8; n++) {
                    const float* q = reinterpret_cast<const float*>(b + Of::at(k * 8 + j, 2 * n + t / 2)) + 2 * (t % 2);
                    const float low = q[0], high = q[1];
#pragma unroll
                    for (int m = 0; m < MT; m++) {
                        o[m][n][0] = fmaf(a[m][0], low, o[m][n][0]);
                        o[m][n][1] = fmaf(a[m][0], high, o[m][n][1]);
                        o[m][n][2] = fmaf(a[m][1], low, o[m][n][2]);
                        o[m][n][3] = fmaf(a[m][1], high, o[m][n][3]);
                    }
                }
            }
        }
    }
}

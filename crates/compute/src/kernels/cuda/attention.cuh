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
// Hopper's kernels (attention_sm90.cuh) have products of their own, of the block's four warps together, whose results are spread over
// registers in the same way. All else is the same, and here.
//
// Performance bounds: a bf16 product of 16 × 8 × 16 takes a multiprocessor of an A100 2 clocks (1024 multiply-adds each), and its right
// operand, 256 bytes, as long to come from shared memory (128 bytes a clock). So a warp has two pieces of 16 rows (MT = 2) where
// registers allow: then reads take half of the products' time on an A100. The kernel for dK and dV has two sums, and so one piece: on an A100
// its reads take as long as its products.
#pragma once

#include "attention_common.cuh"
#include "mma.cuh"

// ---- arithmetic ----

struct Bf16 {
    typedef bf16 T;
    static const bool TENSOR = true;
    static __device__ __forceinline__ void mma(float d[4], const unsigned a[4], const unsigned b[2]) {
        mma_bf16(d, a, b);
    }
    static __device__ __forceinline__ void round(unsigned[4]) {}
};

struct Tf32 {
    typedef float T;
    static const bool TENSOR = true;
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
    static const bool TENSOR = false;
    static __device__ __forceinline__ void mma(float*, const unsigned*, const unsigned*) {}
    static __device__ __forceinline__ void round(unsigned*) {}
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
    const unsigned char* tile; // from the warp's first row on

    // `block`: the block's rows.
    __device__ __forceinline__ explicit Rows(const unsigned char* block) : tile(block + threadIdx.x / 32 * 16 * MT * Of::ROW) {}

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

// Waits for the copies that this thread started, and for all warps: then all see the tiles, and none reads older ones.
__device__ __forceinline__ void all_loaded() {
    copy_wait<0>();
    __syncthreads();
}

// s = A·Bᵀ of the warp's rows and 8·NT rows of the tile `b`.
template <class M, int D, int MT, int NT, bool HELD>
__device__ __forceinline__ void product(float (&s)[MT][NT][4], const Rows<M, D, MT, HELD>& rows, const unsigned char* b) {
    typedef Tile<typename M::T, D> Of;
    const int lane = threadIdx.x % 32;
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
    if (M::TENSOR && sizeof(typename M::T) == 2) {
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

// ---- what is done to scores between products ----
//
// A warp's fragment x[m][n][i] of lane (g, t) is row 16·m + g + 8·(i / 2), column 8·n + 2·t + i % 2. Where rows are queries, columns are
// keys; "transposed" it is the other way around, for one piece of rows.

// Sets what belongs to keys that a query does not see to `to`. `query` and `at` are the first row's query and the first key.
template <int MT, int NT>
__device__ __forceinline__ void hide(float (&x)[MT][NT][4], float to, const Reach& reach, int later_keys, int query, int at, int visible) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = query + m * 16 + half * 8 + g, first = reach.first_key(row), end = min(row + later_keys + 1, visible);
#pragma unroll
            for (int n = 0; n < NT; n++) {
#pragma unroll
                for (int odd = 0; odd < 2; odd++) {
                    const int key = at + n * 8 + 2 * t + odd;
                    if (key < first || key >= end) {
                        x[m][n][2 * half + odd] = to;
                    }
                }
            }
        }
    }
}

// `query` and `at` are the first column's query and the first row's key.
template <int NT>
__device__ __forceinline__ void hide_transposed(float (&x)[1][NT][4], const Reach& reach, int later_keys, int query, int at, int visible) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int key = at + half * 8 + g, last = key < visible ? reach.last_query(key) : -1;
#pragma unroll
        for (int n = 0; n < NT; n++) {
#pragma unroll
            for (int odd = 0; odd < 2; odd++) {
                const int column = query + n * 8 + 2 * t + odd;
                if (column > last || key > column + later_keys) {
                    x[0][n][2 * half + odd] = 0.f;
                }
            }
        }
    }
}

// Below all scores, and finite also times a scale of up to 1 and log2(e): a row that has seen no key yet has it as its maximum. Scores that
// are hidden, -INFINITY, have exponentials of 0 beside it.
#define NO_SCORE -1.7e38f

// The forward's running softmax over a row's scores (Dao et al. 2022).
template <int MT> struct Softmax {
    float top[MT][2], sum[MT][2];

    __device__ __forceinline__ Softmax() {
#pragma unroll
        for (int m = 0; m < MT; m++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                top[m][half] = NO_SCORE;
                sum[m][half] = 0.f;
            }
        }
    }

    // Turns the next scores into their exponentials, in proportion to those of which `o` is the weighted sum so far, which shrinks.
    template <int NT, int COLUMNS>
    __device__ __forceinline__ void add(float (&s)[MT][NT][4], float (&o)[MT][COLUMNS][4], float scale_log2) {
#pragma unroll
        for (int m = 0; m < MT; m++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float high = top[m][half];
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    high = fmaxf(high, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
                }
                high = fmaxf(high, __shfl_xor_sync(FULL_MASK, high, 1));
                high = fmaxf(high, __shfl_xor_sync(FULL_MASK, high, 2));
                const float base = __fmul_rn(high, scale_log2);
                // Both products are rounded before the difference, without a fused multiply-add: so `shrink` is exactly 1 while the
                // maximum stays the same.
                const float shrink = fast_exp2(__fmul_rn(top[m][half], scale_log2) - base);
                top[m][half] = high;
                sum[m][half] *= shrink;
#pragma unroll
                for (int n = 0; n < COLUMNS; n++) {
                    o[m][n][2 * half] *= shrink;
                    o[m][n][2 * half + 1] *= shrink;
                }
#pragma unroll
                for (int n = 0; n < NT; n++) {
#pragma unroll
                    for (int i = 2 * half; i < 2 * half + 2; i++) {
                        s[m][n][i] = fast_exp2(fmaf(s[m][n][i], scale_log2, -base));
                        sum[m][half] += s[m][n][i];
                    }
                }
            }
        }
    }

    // Stores log-sum-exps of the warp's rows, of queries from `from` on, below `seq`; `inverse` are the factors on `o`, times `keep`. Both are
    // 0 for a query that sees no key.
    __device__ __forceinline__ void finish(float (&inverse)[MT][2], float* lse, int from, int seq, float scale, float keep) const {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
        for (int m = 0; m < MT; m++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float total = sum[m][half];
                total += __shfl_xor_sync(FULL_MASK, total, 1);
                total += __shfl_xor_sync(FULL_MASK, total, 2);
                const bool sees_none = total == 0.f;
                inverse[m][half] = sees_none ? 0.f : keep / total;
                const int query = from + m * 16 + half * 8 + g;
                if (t == 0 && query < seq) {
                    lse[query] = sees_none ? 0.f : top[m][half] * scale + logf(total);
                }
            }
        }
    }
};

// Sets the dropped elements to 0. `query` and `key` are those of the first row and column.
template <int MT, int NT> __device__ __forceinline__ void drop(float (&p)[MT][NT][4], const Dropped& dropped, int query, int key) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int n = 0; n < NT; n++) {
            const unsigned kept = dropped.kept(query + m * 16 + g, key + n * 8 + 2 * t);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                p[m][n][i] = kept >> i & 1 ? p[m][n][i] : 0.f;
            }
        }
    }
}

// Turns scores into probabilities. `lse` are the rows' log-sum-exps times log2(e).
template <int MT, int NT> __device__ __forceinline__ void probabilities(float (&s)[MT][NT][4], const float (&lse)[MT][2], float scale_log2) {
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int n = 0; n < NT; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                s[m][n][i] = fast_exp2(fmaf(s[m][n][i], scale_log2, -lse[m][i / 2]));
            }
        }
    }
}

// `lse` are those of the columns, in shared memory.
template <int NT> __device__ __forceinline__ void probabilities_transposed(float (&s)[1][NT][4], const float* lse, float scale_log2) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < NT; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s[0][n][i] = fast_exp2(fmaf(s[0][n][i], scale_log2, -lse[n * 8 + 2 * t + i % 2]));
        }
    }
}

// Turns gradients of probabilities `p` into gradients of scores. `delta` are the rows'; `query` and `key` as in `drop`.
template <bool DROPOUT, int MT, int NT>
__device__ __forceinline__ void score_gradients(float (&ds)[MT][NT][4], const float (&p)[MT][NT][4], const float (&delta)[MT][2],
                                                const Dropped& dropped, int query, int key, float keep) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int n = 0; n < NT; n++) {
            const unsigned kept = DROPOUT ? dropped.kept(query + m * 16 + g, key + n * 8 + 2 * t) : 15;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float dp = !DROPOUT ? ds[m][n][i] : kept >> i & 1 ? ds[m][n][i] * keep : 0.f;
                ds[m][n][i] = p[m][n][i] * (dp - delta[m][i / 2]);
            }
        }
    }
}

// `delta` are those of the columns, in shared memory. Dropped probabilities become 0, the others are multiplied by `keep`.
template <bool DROPOUT, bool OF_KEYS, int NT>
__device__ __forceinline__ void score_gradients_transposed(float (&ds)[1][NT][4], float (&p)[1][NT][4], const float* delta,
                                                           const Dropped& dropped, int query, int key, float keep) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < NT; n++) {
        const unsigned kept = DROPOUT ? dropped.kept_transposed(query + n * 8 + 2 * t, key + g) : 15;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (OF_KEYS) {
                const float dp = !DROPOUT ? ds[0][n][i] : kept >> i & 1 ? ds[0][n][i] * keep : 0.f;
                ds[0][n][i] = p[0][n][i] * (dp - delta[n * 8 + 2 * t + i % 2]);
            }
            if (DROPOUT) {
                p[0][n][i] = kept >> i & 1 ? p[0][n][i] * keep : 0.f;
            }
        }
    }
}

// ---- where a block's head lies ----

// One query head and its key-value head in a matrix like qkv: in it, its gradients, or sums of their rows.
template <typename T> struct HeadColumns {
    int stride;
    T *q, *k, *v;

    // `first`: the number of the row at which the pointers start.
    __device__ __forceinline__ HeadColumns(T* qkv, const AttentionCall& call, i64 first, int head, int kv)
        : stride((call.heads + 2 * call.kv_heads) * call.width), q(qkv + first * stride + head * call.width),
          k(qkv + first * stride + (call.heads + kv) * call.width), v(k + call.kv_heads * call.width) {}
};

// The statistics of a warp's rows, of queries from `from` on: log-sum-exps times log2(e), and deltas. Rows after the end have probabilities
// of zero.
template <int MT> __device__ __forceinline__ void load_statistics(float (&row_lse)[MT][2], float (&row_delta)[MT][2], const float* lse,
                                                                  const float* delta, int from, int seq) {
    const int g = threadIdx.x % 32 / 4;
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int query = from + m * 16 + half * 8 + g;
            row_lse[m][half] = query < seq ? lse[query] * LOG2_E : INFINITY;
            row_delta[m][half] = query < seq ? delta[query] : 0.f;
        }
    }
}

// The walk of a block that makes gradients of keys or values: over the heads that share its key-value head, and in each over the tiles of QN
// queries of which one sees one of its keys. A stage of the walk holds the tiles of queries and of dOut, and the queries' statistics.
template <typename T, int D, int QN> struct QueryWalk {
    typedef Tile<T, D> Of;
    static const int STAGES = Of::STAGES, TILE = QN * Of::ROW;
    const AttentionCall& call;
    const T *qkv, *dout;
    const float *lse, *delta;
    int sample, start, end, tiles; // the first query, the end of the queries, and the number of tiles in each head
    bool aligned;
    unsigned char *queries, *gradients;
    float* stats; // [QN] log-sum-exps times log2(e), [QN] deltas

    // `from`: the first of the block's 64 keys.
    __device__ __forceinline__ QueryWalk(const AttentionCall& call, const Reach& reach, const T* qkv, const T* dout, const float* lse,
                                         const float* delta, int sample, int from, bool aligned, unsigned char* shared)
        : call(call), qkv(qkv), dout(dout), lse(lse), delta(delta), sample(sample), start(max(from - call.later_keys, 0) / QN * QN),
          end(min(reach.last_query(min(from + 63, call.seq - 1)) + 1, call.seq)), tiles((end + QN - 1) / QN - start / QN), aligned(aligned),
          queries(shared), gradients(queries + STAGES * TILE), stats(reinterpret_cast<float*>(gradients + STAGES * TILE)) {}

    __device__ __forceinline__ void advance(int& head, int& at) const {
        const bool is_last = at + QN >= end;
        head += is_last;
        at = is_last ? start : at + QN;
    }

    // Starts to load a head's tiles of queries from `at` on into a stage; returns the statistic that this thread stores there later.
    __device__ __forceinline__ float fetch(int head, int at, int stage) const {
        const int seq = call.seq, width = call.width, out_stride = call.heads * width, stride = out_stride + 2 * call.kv_heads * width;
        const i64 row = (i64)sample * seq + at;
        Of::template load<QN>(queries + stage * TILE, qkv + row * stride + head * width, stride, seq - at, width, aligned);
        Of::template load<QN>(gradients + stage * TILE, dout + row * out_stride + head * width, out_stride, seq - at, width, aligned);
        const bool is_lse = threadIdx.x < QN;
        const int query = at + threadIdx.x % QN;
        if (threadIdx.x >= 2 * QN) {
            return 0.f;
        }
        if (query >= seq) {
            return is_lse ? INFINITY : 0.f; // probabilities of zero
        }
        const i64 statistic = ((i64)sample * call.heads + head) * seq + query;
        return is_lse ? lse[statistic] * LOG2_E : delta[statistic];
    }

    __device__ __forceinline__ void keep(int stage, float stat) const {
        if (threadIdx.x < 2 * QN) {
            stats[stage * 2 * QN + threadIdx.x] = stat;
        }
    }
};

// ---- sums over rows ----

// Stores the sums of a block's rows of a result, times `scale`, at `to`: a part of the gradient of a bias that was added to each row. It uses
// `shared`, 4·D floats, after a barrier. Whoever uses them next needs one, too.
template <int D, int MT> __device__ __forceinline__ void store_row_sums(float* to, const float (&x)[MT][D / 8][4], float scale, int width,
                                                                       unsigned char* shared) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float* const sums = reinterpret_cast<float*>(shared);
    __syncthreads();
#pragma unroll
    for (int n = 0; n < D / 8; n++) {
#pragma unroll
        for (int odd = 0; odd < 2; odd++) {
            float sum = 0.f;
#pragma unroll
            for (int m = 0; m < MT; m++) {
                sum += x[m][n][odd] + x[m][n][2 + odd];
            }
#pragma unroll
            for (int y = 4; y < 32; y *= 2) {
                sum += __shfl_xor_sync(FULL_MASK, sum, y);
            }
            if (g == 0) {
                sums[warp * D + n * 8 + 2 * t + odd] = sum;
            }
        }
    }
    __syncthreads();
    for (int c = threadIdx.x; c < width; c += THREADS) {
        to[c] = scale * (sums[c] + sums[D + c] + sums[2 * D + c] + sums[3 * D + c]);
    }
}

// ---- entry points ----

#define ATTENTION_FORWARD_KERNEL(name, T, CALL)                                                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_forward_##name(                                                    \
        const T* qkv, T* out, float* lse, const unsigned* valid_lengths, const unsigned* documents, AttentionCall call) {                 \
        CALL(qkv, out, lse, valid_lengths, documents, call);                                                                              \
    }

#define ATTENTION_BACKWARD_KERNEL(name, T, CALL)                                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_backward_##name(                                                   \
        const T* qkv, const T* dout, const float* lse, const float* delta, T* dqkv, float* sums, const unsigned* valid_lengths,           \
        const unsigned* documents, AttentionCall call) {                                                                                  \
        CALL(qkv, dout, lse, delta, dqkv, sums, valid_lengths, documents, call);                                                          \
    }

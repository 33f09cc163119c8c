// A blocked matrix product: operands are packed as f32 into panels that the innermost loop reads in order.
#include "matmul.h"

namespace emulated {

namespace {

const int MR = 16, NR = 6; // a tile of D that fits into registers
const long long KB = 384;  // a panel's part of k that fits into the first-level cache

float load(const Matrix& m, long long i) {
    return m.type == F32 ? ((const float*)m.data)[i] : from_bf16(((const unsigned short*)m.data)[i]);
}

void store(void* to, int type, long long i, float x) {
    if (type == F32) {
        ((float*)to)[i] = x;
    } else {
        ((unsigned short*)to)[i] = to_bf16_bits(x);
    }
}

float read(const void* from, int type, long long i) {
    return type == F32 ? ((const float*)from)[i] : from_bf16(((const unsigned short*)from)[i]);
}

// As the hardware rounds what goes into a TF32 product: to 10 bits, to the nearest.
float to_tf32(float x) {
    unsigned u;
    memcpy(&u, &x, 4);
    return (u & 0x7f800000u) == 0x7f800000u ? x : bits_to_float((u + 0x1000u) & 0xffffe000u);
}

// `width` lines of the operand from line `first` on, each of `k` elements: panel[k][width], zeros behind the last line.
void pack(float* panel, const Matrix& m, long long offset, long long first, long long lines, int width, long long line, long long step,
          long long k, bool tf32) {
    for (int w = 0; w < width; w++) {
        const long long at = offset + (first + w) * line;
        for (long long i = 0; i < k; i++) {
            float x = first + w < lines ? load(m, at + i * step) : 0.0f;
            panel[i * width + w] = tf32 ? to_tf32(x) : x;
        }
    }
}

typedef float Lanes __attribute__((vector_size(32)));

// tile[n][m] += a panel times a panel
void multiply_panels(float* tile, const float* a, const float* b, long long k) {
    Lanes sums[NR][2] = {};
    for (long long i = 0; i < k; i++) {
        Lanes low, high;
        memcpy(&low, a + i * MR, sizeof low);
        memcpy(&high, a + i * MR + 8, sizeof high);
        for (int n = 0; n < NR; n++) {
            const float x = b[i * NR + n];
            sums[n][0] += low * x;
            sums[n][1] += high * x;
        }
    }
    for (int n = 0; n < NR; n++) {
        for (int i = 0; i < MR; i++) {
            tile[n * MR + i] += sums[n][i / 8][i % 8];
        }
    }
}

// GELU by its approximation with tanh, as cuBLASLt has it.
const float ROOT = 0.7978845608028654f, CUBE = 0.044715f;

float gelu(float x) {
    return 0.5f * x * (1.0f + tanhf(ROOT * (x + CUBE * x * x * x)));
}

float gelu_gradient(float x) {
    const float t = tanhf(ROOT * (x + CUBE * x * x * x));
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * ROOT * (1.0f + 3.0f * CUBE * x * x);
}

struct Work {
    const Product* p;
    long long m, n, k, row_panels, column_panels;
    std::vector<float> a, b;
    std::atomic<long long> pack{0}, tile{0};
    int batch;
};

void pack_panels(Work& w) {
    const Product& p = *w.p;
    for (;;) {
        const long long i = w.pack++;
        if (i >= w.row_panels + w.column_panels) {
            return;
        }
        if (i < w.row_panels) {
            pack(&w.a[(size_t)(i * MR * w.k)], p.a, w.batch * p.a.batch, i * MR, w.m, MR, p.a.row, p.a.column, w.k, p.tf32);
        } else {
            const long long j = i - w.row_panels;
            pack(&w.b[(size_t)(j * NR * w.k)], p.b, w.batch * p.b.batch, j * NR, w.n, NR, p.b.column, p.b.row, w.k, p.tf32);
        }
    }
}

// Everything that happens to an element between the sum and memory, except for gradients of biases.
float finish(const Product& p, int batch, long long i, long long j, float sum) {
    float x = p.alpha * sum;
    if (p.beta != 0.0f) {
        x += p.beta * load(p.c, batch * p.c.batch + i * p.c.row + j * p.c.column);
    }
    if (p.epilogue & BIAS) {
        x += read(p.bias, p.bias_type, batch * p.bias_batch + i);
    }
    const long long aux = batch * p.aux_batch + i + j * p.aux_ld;
    if (p.epilogue & DGELU) {
        x *= gelu_gradient(read(p.aux, p.aux_type, aux));
    } else if (p.epilogue & GELU) {
        if (p.epilogue & AUX) {
            store(p.aux, p.aux_type, aux, x);
        }
        x = gelu(x);
    } else if (p.epilogue & RELU) {
        x = x > 0.0f ? x : 0.0f;
    }
    return x;
}

void compute_tiles(Work& w) {
    const Product& p = *w.p;
    for (;;) {
        const long long column = w.tile++;
        if (column >= w.column_panels) {
            return;
        }
        std::vector<float> tiles((size_t)(w.row_panels * MR * NR), 0.0f);
        for (long long k = 0; k < w.k; k += KB) {
            const long long part = std::min(KB, w.k - k);
            for (long long row = 0; row < w.row_panels; row++) {
                multiply_panels(&tiles[(size_t)(row * MR * NR)], &w.a[(size_t)((row * w.k + k) * MR)],
                                &w.b[(size_t)((column * w.k + k) * NR)], part);
            }
        }
        for (long long j = column * NR; j < std::min(w.n, column * NR + NR); j++) {
            for (long long i = 0; i < w.m; i++) {
                const float x = finish(p, w.batch, i, j, tiles[(size_t)((i / MR * NR + j % NR) * MR + i % MR)]);
                store(const_cast<void*>(p.d.data), p.d.type, w.batch * p.d.batch + i * p.d.row + j * p.d.column, x);
            }
        }
    }
}

// Sums of an operand over k, or of D over n.
void bias_gradients(const Product& p, int batch) {
    const Matrix& m = p.epilogue & BGRADB ? p.b : p.epilogue & BGRADA ? p.a : p.d;
    const bool by_column = (p.epilogue & BGRADB) != 0;
    const long long n = by_column ? m.columns : m.rows, other = by_column ? m.rows : m.columns;
    for (long long i = 0; i < n; i++) {
        float sum = 0;
        for (long long k = 0; k < other; k++) {
            sum += load(m, batch * m.batch + (by_column ? k * m.row + i * m.column : i * m.row + k * m.column));
        }
        store(p.bias, p.bias_type, batch * p.bias_batch + i, sum);
    }
}

} // namespace

size_t size_of(int type) {
    return type == F32 ? 4 : 2;
}

void multiply(const Product& p) {
    Work w;
    w.p = &p;
    w.m = p.d.rows;
    w.n = p.d.columns;
    w.k = p.a.columns;
    w.row_panels = (w.m + MR - 1) / MR;
    w.column_panels = (w.n + NR - 1) / NR;
    w.a.resize((size_t)(w.row_panels * MR * w.k));
    w.b.resize((size_t)(w.column_panels * NR * w.k));
    const unsigned more = (double)w.m * (double)w.n * (double)w.k < 1e5 ? 0 : host_threads() - 1;
    for (w.batch = 0; w.batch < p.batches; w.batch++) {
        w.pack = w.tile = 0;
        Helpers::all().together(more, [](void* work) { pack_panels(*(Work*)work); }, &w);
        Helpers::all().together(more, [](void* work) { compute_tiles(*(Work*)work); }, &w);
        if (p.epilogue & (BGRAD | BGRADA | BGRADB)) {
            bias_gradients(p, w.batch);
        }
    }
}

} // namespace emulated

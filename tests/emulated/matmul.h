// The matrix product that all of cuBLAS's functions come down to.
#pragma once

#include "device.h"

namespace emulated {

enum Type { F32 = 0, BF16 = 14 };                              // cudaDataType_t
enum Compute { COMPUTE_32F = 68, COMPUTE_32F_PEDANTIC = 69, COMPUTE_32F_TF32 = 77 }; // cublasComputeType_t

// Element (i, j) of matrix `b` is at b·batch + i·row + j·column.
struct Matrix {
    const void* data;
    int type;
    long long rows, columns;
    long long row, column, batch;
};

enum Epilogue {
    DEFAULT = 1, RELU = 2, BIAS = 4, DRELU = 8, BGRAD = 16, GELU = 32, DGELU = 64, AUX = 128, BGRADA = 256, BGRADB = 512
};

// D = epilogue(alpha·A·B + beta·C); A is m × k, B is k × n, as they are after transposition. Sums are f32, in a fixed order.
struct Product {
    Matrix a, b, c, d;
    float alpha, beta;
    bool tf32;
    int batches;
    int epilogue;                      // bits of Epilogue
    void* bias;                        // m elements; of a gradient of B, n
    int bias_type;
    long long bias_batch;
    void* aux;                         // m × n, before the GELU, by columns
    int aux_type;
    long long aux_ld, aux_batch;
};

size_t size_of(int type);
void multiply(const Product& p);

} // namespace emulated

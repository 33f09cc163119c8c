// cuBLASLt and the part of cuBLAS that candle uses, on top of matmul.h. What they do not support is refused here too; numbers of
// types and attributes are those of cublasLt.h.
#include <array>
#include <set>

#include "matmul.h"
#include "streams.h"

using namespace emulated;

namespace {

typedef int Status;
enum { SUCCESS = 0, INVALID = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };

// The sizes of the library's own structures, which callers may hold by value.
struct Layout {
    int type, order;
    unsigned long long rows, columns;
    long long ld;
    int batches;
    long long stride;
};
struct Desc {
    int compute, scale;
    int pointer_mode;
    int transpose[3];
    int epilogue;
    void *bias, *aux;
    long long bias_stride, aux_ld, aux_stride;
    int bias_type, aux_type;
    int multiprocessors; // that a product is made for: here they are all the same
};
struct Preference {
    unsigned long long workspace;
    unsigned alignment[4];
    unsigned reductions; // how parts of sums may be added: here there are none
};
static_assert(sizeof(Layout) <= 64 && sizeof(Desc) <= 256 && sizeof(Preference) <= 64, "as large as the library's");

// What a choice was made for.
struct Algorithm {
    unsigned long long magic;
    unsigned alignment[4];
    unsigned long long workspace;
    unsigned long long none[4];
};
static_assert(sizeof(Algorithm) == 64, "cublasLtMatmulAlgo_t");
struct Heuristic {
    Algorithm algorithm;
    size_t workspace;
    Status state;
    float waves;
    int none[4];
};
const unsigned long long MAGIC = 0x656d756c61746564;

Status refuse(Status status, const char* why) {
    complain("cublasLtMatmul: %s", why);
    return status;
}

// One attribute: it is copied in either direction, and its size must be right.
struct Field {
    void* at;
    size_t size;
};

Field field_of(Layout& l, int attribute) {
    switch (attribute) {
    case 0: return {&l.type, 4};
    case 1: return {&l.order, 4};
    case 2: return {&l.rows, 8};
    case 3: return {&l.columns, 8};
    case 4: return {&l.ld, 8};
    case 5: return {&l.batches, 4};
    case 6: return {&l.stride, 8};
    default: return {nullptr, 0};
    }
}

Field field_of(Desc& d, int attribute) {
    switch (attribute) {
    case 0: return {&d.compute, 4};
    case 1: return {&d.scale, 4};
    case 2: return {&d.pointer_mode, 4};
    case 3: case 4: case 5: return {&d.transpose[attribute - 3], 4};
    case 7: return {&d.epilogue, 4};
    case 8: return {&d.bias, 8};
    case 10: return {&d.bias_stride, 8};
    case 11: return {&d.aux, 8};
    case 12: return {&d.aux_ld, 8};
    case 13: return {&d.aux_stride, 8};
    case 15: return {&d.multiprocessors, 4};
    case 22: return {&d.aux_type, 4};
    case 26: return {&d.bias_type, 4};
    default: return {nullptr, 0};
    }
}

Field field_of(Preference& p, int attribute) {
    if (attribute == 1) {
        return {&p.workspace, 8};
    }
    if (attribute == 3) {
        return {&p.reductions, 4};
    }
    return attribute >= 5 && attribute <= 8 ? Field{&p.alignment[attribute - 5], 4} : Field{nullptr, 0};
}

template <typename T> Status set(T* object, int attribute, const void* value, size_t size) {
    const Field f = field_of(*object, attribute);
    if (f.at == nullptr) {
        complain("cublasLt: attribute %d is not emulated", attribute);
        return NOT_SUPPORTED;
    }
    if (f.size != size) {
        complain("cublasLt: attribute %d has %zu bytes, not %zu", attribute, f.size, size);
        return INVALID;
    }
    memcpy(f.at, value, size);
    return SUCCESS;
}

template <typename T> Status get(T* object, int attribute, void* value, size_t size, size_t* written) {
    const Field f = field_of(*object, attribute);
    if (f.at == nullptr || size < f.size) {
        return INVALID;
    }
    memcpy(value, f.at, f.size);
    if (written) {
        *written = f.size;
    }
    return SUCCESS;
}

Matrix matrix(const Layout& l, const void* data, bool transposed) {
    const bool by_rows = l.order == 1;
    Matrix m = {data, l.type, (long long)l.rows, (long long)l.columns, by_rows ? l.ld : 1, by_rows ? 1 : l.ld, l.stride};
    if (transposed) {
        std::swap(m.rows, m.columns);
        std::swap(m.row, m.column);
    }
    return m;
}

bool is_type(int type) {
    return type == F32 || type == BF16;
}

// Whether all elements lie in memory of the current device.
bool inside(const Matrix& m, int batches, const char* what, Stream* stream, bool writes) {
    const long long last = (m.rows - 1) * m.row + (m.columns - 1) * m.column + (batches - 1) * m.batch;
    const size_t bytes = (size_t)(last + 1) * size_of(m.type);
    if (!check_range(stream->device, m.data, bytes, what)) {
        return false;
    }
    use(stream, m.data, bytes, writes, what);
    return true;
}

// The library loads a kernel when it first needs it, and the driver then waits for the device.
void load_kernel(const Product& p, Device* device) {
    static std::mutex lock;
    static auto* loaded = new std::set<std::array<long long, 7>>;
    const bool rows_first[] = {p.a.row == 1, p.b.row == 1};
    const std::array<long long, 7> kernel = {device->ordinal, p.a.type, p.d.type, p.epilogue, p.tf32, rows_first[0], rows_first[1]};
    bool is_new;
    {
        std::lock_guard<std::mutex> guard(lock);
        is_new = loaded->insert(kernel).second;
    }
    if (is_new) {
        synchronize(device);
    }
}

// What holds whatever the addresses are.
Status check(const Desc& desc, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
    if (desc.compute != COMPUTE_32F && desc.compute != COMPUTE_32F_PEDANTIC && desc.compute != COMPUTE_32F_TF32) {
        return refuse(NOT_SUPPORTED, "only sums in f32 are emulated");
    }
    if (desc.scale != F32 || desc.pointer_mode != 0 || desc.transpose[2] != 0) {
        return refuse(NOT_SUPPORTED, "alpha and beta are f32 of the host, and C is not transposed");
    }
    if (!is_type(a.type) || a.type != b.type || c.type != d.type || !is_type(d.type) || (a.type == F32 && d.type == BF16)) {
        return refuse(NOT_SUPPORTED, "a combination of types");
    }
    if (desc.compute == COMPUTE_32F_TF32 && a.type != F32) {
        return refuse(NOT_SUPPORTED, "TF32 is for operands in f32");
    }
    const Matrix ma = matrix(a, nullptr, desc.transpose[0] != 0), mb = matrix(b, nullptr, desc.transpose[1] != 0);
    if (ma.columns != mb.rows || ma.rows != (long long)d.rows || mb.columns != (long long)d.columns || c.rows != d.rows || c.columns != d.columns) {
        complain("cublasLtMatmul: shapes %lld x %lld, %lld x %lld do not give %llu x %llu", ma.rows, ma.columns, mb.rows, mb.columns, d.rows,
                 d.columns);
        return INVALID;
    }
    for (const Layout* l : {&a, &b, &c, &d}) {
        if (l->ld < (long long)(l->order == 1 ? l->columns : l->rows) || l->rows == 0 || l->columns == 0) {
            return refuse(INVALID, "a leading dimension smaller than the matrix, or an empty matrix");
        }
        if (l->batches != d.batches) {
            return refuse(INVALID, "different numbers of matrices");
        }
        if (l->order != 0 && l->order != 1) {
            return refuse(NOT_SUPPORTED, "an order of elements");
        }
    }
    const int known = DEFAULT | RELU | BIAS | GELU | DGELU | AUX | BGRAD | BGRADA | BGRADB;
    if ((desc.epilogue & ~known) != 0 || ((desc.epilogue & AUX) && !(desc.epilogue & (GELU | DGELU)))) {
        return refuse(NOT_SUPPORTED, "an epilogue");
    }
    if (desc.epilogue != DEFAULT && d.order != 0) {
        return refuse(NOT_SUPPORTED, "an epilogue of a matrix by rows");
    }
    if ((desc.epilogue & AUX) && (desc.aux_ld % 8 != 0 || desc.aux_ld < (long long)d.rows)) {
        return refuse(NOT_SUPPORTED, "the auxiliary output's leading dimension: not a multiple of 8, or too small");
    }
    return SUCCESS;
}

// Whether there is an algorithm that adds a bias. On an H100, cuBLASLt 13.1 has none for some products in bf16 with odd leading dimensions,
// whose columns begin at addresses that are only multiples of 2: it has one for 5 x 3 x 7, but not for 33 x 65 x 17. Here there is none for all.
bool has_epilogue(const Desc& desc, const Layout& a, const Layout& b, const Layout& d) {
    if (desc.epilogue == DEFAULT) {
        return true;
    }
    for (const Layout* l : {&a, &b, &d}) {
        if (l->type == BF16 && l->ld % 2 != 0) {
            return false;
        }
    }
    return true;
}

} // namespace

// ---- cuBLASLt ----

API Status cublasLtCreate(void** handle) {
    if (current_device() == nullptr) {
        return 1;
    }
    *handle = new int(0);
    return SUCCESS;
}
API Status cublasLtDestroy(void* handle) {
    delete (int*)handle;
    return SUCCESS;
}
API size_t cublasLtGetVersion() {
    return 130000;
}
API const char* cublasLtGetStatusName(Status) {
    return "CUBLAS_STATUS";
}
API const char* cublasLtGetStatusString(Status) {
    return "a status of the emulated cuBLASLt";
}
API Status cublasLtMatrixLayoutCreate(Layout** layout, int type, unsigned long long rows, unsigned long long columns, long long ld) {
    *layout = new Layout{type, 0, rows, columns, ld, 1, 0};
    return SUCCESS;
}
API Status cublasLtMatrixLayoutDestroy(Layout* layout) {
    delete layout;
    return SUCCESS;
}
API Status cublasLtMatrixLayoutSetAttribute(Layout* layout, int attribute, const void* value, size_t size) {
    return set(layout, attribute, value, size);
}
API Status cublasLtMatrixLayoutGetAttribute(Layout* layout, int attribute, void* value, size_t size, size_t* written) {
    return get(layout, attribute, value, size, written);
}
API Status cublasLtMatmulDescCreate(Desc** desc, int compute, int scale) {
    *desc = new Desc{compute, scale, 0, {0, 0, 0}, DEFAULT, nullptr, nullptr, 0, 0, 0, -1, -1};
    return SUCCESS;
}
API Status cublasLtMatmulDescDestroy(Desc* desc) {
    delete desc;
    return SUCCESS;
}
API Status cublasLtMatmulDescSetAttribute(Desc* desc, int attribute, const void* value, size_t size) {
    return set(desc, attribute, value, size);
}
API Status cublasLtMatmulDescGetAttribute(Desc* desc, int attribute, void* value, size_t size, size_t* written) {
    return get(desc, attribute, value, size, written);
}
API Status cublasLtMatmulPreferenceCreate(Preference** preference) {
    *preference = new Preference{0, {256, 256, 256, 256}, ~0u};
    return SUCCESS;
}
API Status cublasLtMatmulPreferenceDestroy(Preference* preference) {
    delete preference;
    return SUCCESS;
}
API Status cublasLtMatmulPreferenceSetAttribute(Preference* preference, int attribute, const void* value, size_t size) {
    return set(preference, attribute, value, size);
}
API Status cublasLtMatmulPreferenceGetAttribute(Preference* preference, int attribute, void* value, size_t size, size_t* written) {
    return get(preference, attribute, value, size, written);
}

API Status cublasLtMatmulAlgoGetHeuristic(void* handle, Desc* desc, Layout* a, Layout* b, Layout* c, Layout* d, Preference* preference,
                                          int wanted, Heuristic* found, int* n) {
    if (wanted < 1 || handle == nullptr) {
        return INVALID;
    }
    *n = 0;
    if (Status s = check(*desc, *a, *b, *c, *d)) {
        return s;
    }
    if (!has_epilogue(*desc, *a, *b, *d)) {
        return NOT_SUPPORTED;
    }
    memset(found, 0, sizeof *found);
    found->algorithm.magic = MAGIC;
    memcpy(found->algorithm.alignment, preference->alignment, sizeof preference->alignment);
    found->waves = 1;
    *n = 1;
    return SUCCESS;
}

API Status cublasLtMatmul(void* handle, Desc* desc, const float* alpha, const void* a, Layout* a_layout, const void* b, Layout* b_layout,
                          const float* beta, const void* c, Layout* c_layout, void* d, Layout* d_layout, const Algorithm* algorithm,
                          void* workspace, size_t workspace_size, void* stream) {
    if (handle == nullptr || alpha == nullptr || beta == nullptr) {
        return INVALID;
    }
    if (Status s = check(*desc, *a_layout, *b_layout, *c_layout, *d_layout)) {
        return s;
    }
    Stream* s = stream_of(stream);
    if (s == nullptr || s->device != current_device()) {
        return refuse(INVALID, "a stream of another device");
    }
    if (workspace_size != 0 && !check_range(current_device(), workspace, workspace_size, "cublasLtMatmul, workspace")) {
        return INVALID;
    }
    const void* const data[] = {a, b, c, d};
    if (algorithm != nullptr) {
        if (algorithm->magic != MAGIC) {
            return refuse(INVALID, "an algorithm that no heuristic gave");
        }
        for (int i = 0; i < 4; i++) {
            if (data[i] && algorithm->alignment[i] != 0 && (uintptr_t)data[i] % algorithm->alignment[i] != 0) {
                complain("cublasLtMatmul: %c is at %p, and the algorithm was chosen for addresses that are multiples of %u", "ABCD"[i], data[i],
                         algorithm->alignment[i]);
                return NOT_SUPPORTED;
            }
        }
    }
    Product p;
    p.a = matrix(*a_layout, a, desc->transpose[0] != 0);
    p.b = matrix(*b_layout, b, desc->transpose[1] != 0);
    p.c = matrix(*c_layout, c, false);
    p.d = matrix(*d_layout, d, false);
    p.alpha = *alpha;
    p.beta = *beta;
    p.tf32 = desc->compute == COMPUTE_32F_TF32;
    p.batches = d_layout->batches;
    p.epilogue = desc->epilogue;
    p.bias = desc->bias;
    p.bias_type = desc->bias_type < 0 ? d_layout->type : desc->bias_type;
    p.bias_batch = desc->bias_stride;
    p.aux = desc->aux;
    p.aux_type = desc->aux_type < 0 ? d_layout->type : desc->aux_type;
    p.aux_ld = desc->aux_ld;
    p.aux_batch = desc->aux_stride;
    if (!inside(p.a, p.batches, "cublasLtMatmul, A", s, false) || !inside(p.b, p.batches, "cublasLtMatmul, B", s, false) ||
        !inside(p.d, p.batches, "cublasLtMatmul, D", s, true) || (p.beta != 0 && !inside(p.c, p.batches, "cublasLtMatmul, C", s, false))) {
        return INVALID;
    }
    if (c == d && (c_layout->ld != d_layout->ld || c_layout->order != d_layout->order || c_layout->stride != d_layout->stride)) {
        return refuse(INVALID, "C and D are one matrix in two layouts");
    }
    if (p.epilogue & (BIAS | BGRAD | BGRADA | BGRADB)) {
        if (!is_type(p.bias_type)) {
            return refuse(NOT_SUPPORTED, "the bias' type");
        }
        const Matrix bias = {p.bias, p.bias_type, p.epilogue & BGRADB ? p.d.columns : p.d.rows, 1, 1, 0, p.bias_batch};
        if (!inside(bias, p.batches, "cublasLtMatmul, bias", s, (p.epilogue & (BGRAD | BGRADA | BGRADB)) != 0)) {
            return INVALID;
        }
        // Real kernels are chosen without a look at it, and may read whole vectors.
        if ((uintptr_t)p.bias % 16 != 0) {
            return refuse(INVALID, "a bias that is not aligned to 16 bytes");
        }
    }
    if (p.epilogue & AUX) {
        const Matrix aux = {p.aux, p.aux_type, p.d.rows, p.d.columns, 1, p.aux_ld, p.aux_batch};
        if (!is_type(p.aux_type) || (uintptr_t)p.aux % 16 != 0 || !inside(aux, p.batches, "cublasLtMatmul, auxiliary output", s, (p.epilogue & DGELU) == 0)) {
            return refuse(INVALID, "the auxiliary output's type, address or size");
        }
    }
    count(MATMULS);
    load_kernel(p, s->device);
    return submit(s, [p] { return multiply(p), 0; }) == 0 ? SUCCESS : EXECUTION_FAILED;
}
// Versions, by parts: major, minor, patch.
API int cublasLtGetProperty(int part, int* value) {
    *value = part == 0 ? 13 : 0;
    return 0;
}
API int nvrtcVersion(int* major, int* minor) {
    *major = 13;
    *minor = 0;
    return 0;
}

// Tests of the emulator itself: kernels that are right give what plain loops give, and those that are wrong are found.
//
// The first half runs kernels of this file by emulate.h alone, the second half talks to libemulated.so as a program would.
#include "mma.cuh"

#include <fcntl.h>
#include <string>

// ---- the checks ----

static int failures = 0;
static void test_products();

#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) {                                                    \
            printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);     \
            failures++;                                                        \
        }                                                                      \
    } while (0)

// What `call` returns, and what it says on the error output.
template <typename F> static std::pair<int, std::string> listen(F call) {
    fflush(stderr);
    FILE* file = tmpfile();
    const int kept = dup(2);
    dup2(fileno(file), 2);
    const int result = call();
    fflush(stderr);
    dup2(kept, 2);
    close(kept);
    std::string text((size_t)lseek(fileno(file), 0, SEEK_END), ' ');
    if (pread(fileno(file), &text[0], text.size(), 0) < 0) {
        text = "";
    }
    fclose(file);
    return {result, text};
}

template <typename F> static void expect(int line, int error, const char* text, F call) {
    const auto heard = listen(call);
    if (heard.first != error || heard.second.find(text) == std::string::npos || heard.second.find('\n') + 1 != heard.second.size()) {
        printf("%s:%d: %d, \"%s\" instead of %d and one line with \"%s\"\n", __FILE__, line, heard.first, heard.second.c_str(), error, text);
        failures++;
    }
}
#define EXPECT(error, text, call) expect(__LINE__, error, text, [&]() -> int { return call; })

// Numbers in [-1, 1) with 8 bits, so that bf16 and TF32 hold them exactly.
static float number(unsigned i) {
    return (float)((int)(i * 2654435761u >> 24) - 128) / 128.0f;
}

static void same(int line, const float* a, const float* b, size_t n, float tolerance) {
    for (size_t i = 0; i < n; i++) {
        if (!(fabsf(a[i] - b[i]) <= tolerance)) {
            printf("%s:%d: element %zu is %g, not %g\n", __FILE__, line, i, (double)a[i], (double)b[i]);
            failures++;
            return;
        }
    }
}
#define SAME(a, b, n, tolerance) same(__LINE__, a, b, n, tolerance)

// ---- kernels that are right ----

extern "C" __global__ void sums(float* out, const float* x, int width) {
    __shared__ float scratch[32];
    float s = 0;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        s += x[blockIdx.x * width + i];
    }
    s = block_sum(s, scratch);
    const float most = block_max(x[blockIdx.x * width + threadIdx.x], scratch);
    if (threadIdx.x == blockDim.x - 1) {
        out[blockIdx.x * 2] = s;
        out[blockIdx.x * 2 + 1] = most;
    }
}

extern "C" __global__ void lanes(int* out) {
    const int lane = threadIdx.x;
    int* o = out + lane * 10;
    o[0] = __shfl_sync(FULL_MASK, lane, 5);
    o[1] = __shfl_xor_sync(FULL_MASK, lane, 3);
    o[2] = __shfl_up_sync(FULL_MASK, lane, 2);
    o[3] = __shfl_down_sync(FULL_MASK, lane, 2);
    o[4] = __shfl_down_sync(FULL_MASK, lane, 1, 8);
    o[5] = (int)__ballot_sync(FULL_MASK, lane % 3 == 0);
    o[6] = __any_sync(FULL_MASK, lane == 31) + 2 * __all_sync(FULL_MASK, lane < 32) + 4 * __all_sync(FULL_MASK, lane < 31);
    o[7] = (int)(__shfl_xor_sync(FULL_MASK, (unsigned long long)lane << 40, 1) >> 40);
    o[8] = (int)__shfl_xor_sync(FULL_MASK, (double)lane, 16);
    o[9] = (int)__shfl_sync(FULL_MASK, (float)lane, lane + 1, 16);
}

// One warp: D = A·B + D by fragments as mma.cuh describes them.
extern "C" __global__ void product(float* d, const unsigned short* a, const unsigned short* b) {
    const int g = threadIdx.x / 4, t = threadIdx.x % 4;
    unsigned fa[4], fb[2];
    for (int i = 0; i < 4; i++) {
        const unsigned short* p = a + (g + i % 2 * 8) * 16 + 2 * t + i / 2 * 8;
        fa[i] = p[0] | (unsigned)p[1] << 16;
    }
    for (int i = 0; i < 2; i++) {
        const unsigned short* p = b + g * 16 + 2 * t + i * 8; // by columns
        fb[i] = p[0] | (unsigned)p[1] << 16;
    }
    float fd[4];
    for (int i = 0; i < 4; i++) {
        fd[i] = d[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
    }
    mma_bf16(fd, fa, fb);
    for (int i = 0; i < 4; i++) {
        d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = fd[i];
    }
}

extern "C" __global__ void product_tf32(float* d, const float* a, const float* b) {
    const int g = threadIdx.x / 4, t = threadIdx.x % 4;
    unsigned fa[4], fb[2];
    for (int i = 0; i < 4; i++) {
        fa[i] = to_tf32(a[(g + i % 2 * 8) * 8 + t + i / 2 * 4]);
    }
    for (int i = 0; i < 2; i++) {
        fb[i] = to_tf32(b[g * 8 + t + i * 4]);
    }
    float fd[4] = {0, 0, 0, 0};
    mma_tf32(fd, fa, fb);
    for (int i = 0; i < 4; i++) {
        d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = fd[i];
    }
}

// The product again, with operands that come by copy_async and ldmatrix: A as it lies, B transposed from rows.
extern "C" __global__ void product_by_tiles(float* d, const unsigned short* a, const unsigned short* b_rows) {
    DYNAMIC_SHARED(memory);
    unsigned short* sa = (unsigned short*)memory;
    unsigned short* sb = sa + 16 * 16;
    const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
    copy_async(sa + lane * 8, a + lane * 8, true);
    copy_async(sb + lane * 8, b_rows + lane % 16 * 8, lane < 16); // the lower half is zeros
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    unsigned fa[4], fb[4];
    load_tiles(fa, sa + (lane % 8 + lane / 8 % 2 * 8) * 16 + lane / 16 * 8);
    load_tiles_transposed(fb, sb + lane * 8);
    float fd[4] = {0, 0, 0, 0};
    mma_bf16(fd, fa, fb);
    for (int i = 0; i < 4; i++) {
        d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = fd[i] + (float)fb[2] + (float)fb[3]; // zeros
    }
}

extern "C" __global__ void count_threads(int* total, int* largest, int* places) {
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    const int z = blockIdx.z * blockDim.z + threadIdx.z;
    atomicAdd(total, 1);
    atomicMax(largest, x + 10 * y + 100 * z);
    places[x + (int)(gridDim.x * blockDim.x) * (y + (int)(gridDim.y * blockDim.y) * z)] += 1;
}

// Two mistakes that no barrier tells: a missing __syncthreads, and a copy that is not waited for.
extern "C" __global__ void hasty(float* out, const float* x, int with_barrier, int with_wait) {
    __shared__ __align__(16) float fixed[64];
    __shared__ __align__(16) float copied[256];
    fixed[threadIdx.x] = (float)threadIdx.x;
    copy_async(copied + threadIdx.x * 4, x, true);
    copy_commit();
    copy_async(copied + threadIdx.x * 4, x + 4, true);
    copy_commit();
    if (with_wait == 2) {
        copy_wait<1>();
    } else if (with_wait == 1) {
        copy_wait<0>();
    }
    out[threadIdx.x + 64] = copied[threadIdx.x * 4];
    if (with_barrier) {
        __syncthreads();
    }
    out[threadIdx.x] = fixed[63 - threadIdx.x];
}

// Reads what it never wrote: all of a block but its first thread.
extern "C" __global__ void unset(float* out, int threads) {
    __shared__ float fixed[8];
    DYNAMIC_SHARED(memory);
    if ((int)threadIdx.x < threads) {
        fixed[threadIdx.x] = out[0] + (float)threadIdx.x;
    }
    if (threadIdx.x == 7) {
        out[0] = fixed[threadIdx.x];
        out[1] = ((float*)memory)[threadIdx.x];
    }
}

static void test_kernels() {
    const int rows = 100, width = 1000, threads = 256;
    std::vector<float> x(rows * width), out(rows * 2), want(rows * 2);
    for (size_t i = 0; i < x.size(); i++) {
        x[i] = number((unsigned)i);
    }
    for (int r = 0; r < rows; r++) {
        double sum = 0;
        want[r * 2 + 1] = -1;
        for (int i = 0; i < width; i++) {
            sum += x[r * width + i];
            want[r * 2 + 1] = i < threads ? fmaxf(want[r * 2 + 1], x[r * width + i]) : want[r * 2 + 1];
        }
        want[r * 2] = (float)sum; // exact: multiples of 1/128
    }
    CHECK(emulated::launch("sums", sums, {rows, 1, 1}, {threads, 1, 1}, 0, out.data(), x.data(), width) == 0);
    SAME(out.data(), want.data(), out.size(), 0);

    int o[32][10];
    CHECK(emulated::launch("lanes", lanes, {1, 1, 1}, {32, 1, 1}, 0, &o[0][0]) == 0);
    for (int i = 0; i < 32; i++) {
        const int right[10] = {5, i ^ 3, i < 2 ? i : i - 2, i > 29 ? i : i + 2, i % 8 == 7 ? i : i + 1, 0x49249249, 3, i ^ 1, i ^ 16,
                               i / 16 * 16 + (i + 1) % 16};
        for (int k = 0; k < 10; k++) {
            CHECK(o[i][k] == right[k]);
        }
    }

    int total = 0, largest = 0;
    std::vector<int> places(8 * 9 * 4);
    CHECK(emulated::launch("count_threads", count_threads, {2, 3, 2}, {4, 3, 2}, 0, &total, &largest, places.data()) == 0);
    CHECK(total == 8 * 9 * 4 && largest == 7 + 80 + 300);
    CHECK(places == std::vector<int>(places.size(), 1));

    float read[2] = {0, 0};
    CHECK(emulated::launch("unset", unset, {1, 1, 1}, {8, 1, 1}, 32, read, 1) == 0);
    CHECK(std::isnan(read[0]) && std::isnan(read[1]));
}

// The number of outputs that are not what they should be.
static int run_hasty(int with_barrier, int with_wait) {
    float out[128];
    alignas(16) float x[8] = {1, 1, 1, 1, 2, 2, 2, 2};
    CHECK(emulated::launch("hasty", hasty, {1, 1, 1}, {64, 1, 1}, 0, out, x, with_barrier, with_wait) == 0);
    int bad = 0;
    for (int i = 0; i < 64; i++) {
        bad += (out[i] != (float)(63 - i)) + (out[64 + i] != 2.0f);
    }
    return bad;
}

// Order of threads shows what depends on it.
static void test_order() {
    CHECK(run_hasty(1, 1) == 0);
    CHECK(run_hasty(1, 2) == 64); // the first group is there, the second is not
    CHECK(run_hasty(1, 0) == 64);
    CHECK(run_hasty(0, 1) == 32); // the first warp reads before the second has written
    setenv("RUNNER_EMULATED_ORDER", "reverse", 1);
    CHECK(run_hasty(1, 1) == 0);
    CHECK(run_hasty(0, 1) == 32);
    test_kernels();
    test_products();
    unsetenv("RUNNER_EMULATED_ORDER");
}

static void test_products() {
    alignas(16) unsigned short a[16][16], b[8][16], b_rows[16][8];
    float d[16][8], got[16][8], d_tf32[16][8], a_tf32[16][8], b_tf32[8][8];
    for (unsigned i = 0; i < 256; i++) {
        a[i / 16][i % 16] = to_bf16(number(i)).bits;
        a_tf32[i / 16][i % 8] = number(i);
    }
    for (unsigned i = 0; i < 128; i++) {
        b[i / 16][i % 16] = b_rows[i % 16][i / 16] = to_bf16(number(1000 + i)).bits;
        b_tf32[i / 16][i % 8] = number(500 + i);
        got[i / 8][i % 8] = number(2000 + i);
    }
    for (int i = 0; i < 16; i++) {
        for (int j = 0; j < 8; j++) {
            d[i][j] = d_tf32[i][j] = 0;
            for (int k = 0; k < 16; k++) {
                d[i][j] += to_float(bf16{a[i][k]}) * to_float(bf16{b[j][k]});
            }
            for (int k = 0; k < 8; k++) {
                d_tf32[i][j] += a_tf32[i][k] * b_tf32[j][k];
            }
        }
    }
    float with_d[16][8];
    for (int i = 0; i < 128; i++) {
        with_d[i / 8][i % 8] = d[i / 8][i % 8] + got[i / 8][i % 8];
    }
    // All sums are exact: multiples of 2^-14 below 2^5.
    CHECK(emulated::launch("product", product, {1, 1, 1}, {32, 1, 1}, 0, &got[0][0], &a[0][0], &b[0][0]) == 0);
    SAME(&got[0][0], &with_d[0][0], 128, 0);
    CHECK(emulated::launch("product_tf32", product_tf32, {1, 1, 1}, {32, 1, 1}, 0, &got[0][0], &a_tf32[0][0], &b_tf32[0][0]) == 0);
    SAME(&got[0][0], &d_tf32[0][0], 128, 0);
    CHECK(emulated::launch("product_by_tiles", product_by_tiles, {1, 1, 1}, {32, 1, 1}, 1024, &got[0][0], &a[0][0], &b_rows[0][0]) == 0);
    SAME(&got[0][0], &d[0][0], 128, 0);
}

// ---- kernels that are wrong ----

enum Mistake {
    NONE, BARRIER_SKIPPED, LANE_RETURNED, LANES_APART, WARP_AND_BLOCK, SIZES_APART, HALF_MASK, INDEX, DYNAMIC_BEHIND, DYNAMIC_FAR, VECTOR,
    COPY, TILES_ROW, ADDRESS, DIVISION
};

extern "C" __global__ void wrong(float* out, int mistake, int zero) {
    __shared__ float fixed[32];
    DYNAMIC_SHARED(memory);
    const int i = threadIdx.x;
    unsigned tiles[4];
    switch (mistake) {
    case BARRIER_SKIPPED:
        if (i < 40) {
            __syncthreads();
        }
        break;
    case LANE_RETURNED:
        if (i == 3) {
            return;
        }
        __syncwarp();
        break;
    case LANES_APART:
        out[i] = i % 2 ? __shfl_xor_sync(FULL_MASK, 1.0f, 1) : (float)__any_sync(FULL_MASK, 1);
        break;
    case WARP_AND_BLOCK:
        if (i % 2) {
            __syncwarp();
        } else {
            __syncthreads();
        }
        break;
    case SIZES_APART: out[i] = i % 2 ? __shfl_xor_sync(FULL_MASK, 1.0f, 1) : (float)__shfl_xor_sync(FULL_MASK, 1.0, 1); break;
    case HALF_MASK: __syncwarp(0xffff); break;
    case INDEX: fixed[i] = 1; break;
    case DYNAMIC_BEHIND: memory[1000 - 60 + i] = 1; break;
    case DYNAMIC_FAR: out[i] = ((float*)memory)[2000 + i]; break;
    case VECTOR: store_vector(out + 1, load_vector(out + 4)); break;
    case COPY: copy_async(memory + 8, out, true); break;
    case TILES_ROW: load_tiles(tiles, memory + i * 8); break;
    case ADDRESS: *(float*)(size_t)(16 + zero) = 1; break;
    case DIVISION: out[i] = (float)((i + 7) / zero); break;
    default: out[i] = 1;
    }
    (void)fixed;
}

static void test_mistakes() {
    alignas(16) float out[64];
    const auto run = [&](int mistake) { return emulated::launch("wrong", wrong, {3, 1, 1}, {64, 1, 1}, 1000, out, mistake, 0); };
    EXPECT(719, "40 threads of 64 wait in __syncthreads, 24 have returned", run(BARRIER_SKIPPED));
    EXPECT(719, "31 lanes of warp 0 wait in __syncwarp, which 1 never reach", run(LANE_RETURNED));
    EXPECT(719, "lanes of one warp meet in different intrinsics: a vote and __shfl_xor_sync", run(LANES_APART));
    EXPECT(719, "16 lanes of warp 0 wait in __syncwarp, which 16 never reach (16 wait in __syncthreads", run(WARP_AND_BLOCK));
    EXPECT(719, "different intrinsics: __shfl_xor_sync and __shfl_xor_sync", run(SIZES_APART));
    EXPECT(719, "mask 0000ffff", run(HALF_MASK));
    EXPECT(700, "the index 32 is outside of the array", run(INDEX));
    EXPECT(700, "byte 1000 was written, of 1000 given", run(DYNAMIC_BEHIND));
    EXPECT(700, "access 8000 bytes behind its start, of 1000 given", run(DYNAMIC_FAR));
    EXPECT(716, "not aligned", run(VECTOR));
    EXPECT(716, "copy_async: the destination", run(COPY));
    EXPECT(716, "load_tiles: a row", run(TILES_ROW));
    EXPECT(700, "access to the address 0x10", run(ADDRESS));
#if defined(__x86_64__) // elsewhere it gives 0, as on a GPU
    EXPECT(719, "division by zero", run(DIVISION));
#endif
    EXPECT(1, "more than 1024 threads", emulated::launch("wrong", wrong, {1, 1, 1}, {1025, 1, 1}, 0, out, 0, 0));
    EXPECT(1, "more than 227 KiB", emulated::launch("wrong", wrong, {1, 1, 1}, {32, 1, 1}, 227 * 1024 + 1, out, 0, 0));
    EXPECT(1, "empty grid", emulated::launch("wrong", wrong, {0, 1, 1}, {32, 1, 1}, 0, out, 0, 0));
    // Where it happened.
    EXPECT(719, "kernel wrong, block (", run(LANE_RETURNED));
    // A launch that failed leaves nothing behind.
    CHECK(run(NONE) == 0);
    test_kernels();
}

// ---- the libraries ----

extern "C" {
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void**, int);
int cuCtxSetCurrent(void*);
int cuMemAllocAsync(void**, size_t, void*);
int cuMemFreeAsync(void*, void*);
int cuMemGetInfo_v2(size_t*, size_t*);
int cuMemcpyHtoDAsync_v2(void*, const void*, size_t, void*);
int cuMemcpyDtoHAsync_v2(void*, const void*, size_t, void*);
int cuMemcpyDtoDAsync_v2(void*, const void*, size_t, void*);
int cuStreamCreate(void**, unsigned);
int cuStreamDestroy_v2(void*);
int cuStreamSynchronize(void*);
int cuStreamWaitEvent(void*, void*, unsigned);
int cuEventCreate(void**, unsigned);
int cuEventRecord(void*, void*);
int cuEventQuery(void*);
int cuEventSynchronize(void*);
int cuModuleLoadData(void**, const void*);
int cuModuleGetFunction(void**, void*, const char*);
int cuFuncSetAttribute(void*, int, int);
int cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
int cublasLtCreate(void**);
int cublasLtDestroy(void*);
int cublasLtMatrixLayoutCreate(void**, int, unsigned long long, unsigned long long, long long);
int cublasLtMatrixLayoutSetAttribute(void*, int, const void*, size_t);
int cublasLtMatrixLayoutDestroy(void*);
int cublasLtMatmulDescCreate(void**, int, int);
int cublasLtMatmulDescSetAttribute(void*, int, const void*, size_t);
int cublasLtMatmulDescDestroy(void*);
int cublasLtMatmul(void*, void*, const void*, const void*, void*, const void*, void*, const void*, const void*, void*, void*, void*,
                   const void*, void*, size_t, void*);
struct ncclId {
    char bytes[128];
};
int ncclGetUniqueId(ncclId*);
int ncclCommInitRank(void**, int, ncclId, int);
int ncclCommDestroy(void*);
int ncclGroupStart();
int ncclGroupEnd();
int ncclAllReduce(const void*, void*, size_t, int, int, void*, void*);
int ncclReduce(const void*, void*, size_t, int, int, int, void*, void*);
int ncclBroadcast(const void*, void*, size_t, int, int, void*, void*);
int ncclAllGather(const void*, void*, size_t, int, void*, void*);
int ncclSend(const void*, size_t, int, int, void*, void*);
int ncclRecv(void*, size_t, int, int, void*, void*);
}

// Memory on the current device.
struct Memory {
    void* at = nullptr;
    size_t bytes;
    explicit Memory(size_t n) : bytes(n) {
        CHECK(cuMemAllocAsync(&at, n, nullptr) == 0);
    }
    template <typename T> explicit Memory(const std::vector<T>& v) : Memory(v.size() * sizeof(T)) {
        CHECK(cuMemcpyHtoDAsync_v2(at, v.data(), bytes, nullptr) == 0);
    }
    Memory(const Memory&) = delete;
    ~Memory() {
        CHECK(cuMemFreeAsync(at, nullptr) == 0);
    }
    template <typename T> std::vector<T> read() const {
        std::vector<T> v(bytes / sizeof(T));
        CHECK(cuMemcpyDtoHAsync_v2(v.data(), at, bytes, nullptr) == 0);
        return v;
    }
};

static void test_driver() {
    void *context = nullptr, *other = nullptr, *stream, *module, *fill = nullptr;
    CHECK(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuDevicePrimaryCtxRetain(&other, 1) == 0);
    EXPECT(201, "", (cuStreamCreate(&stream, 1) == 201 && fputs("\n", stderr)) ? 201 : 0); // no context yet
    CHECK(cuCtxSetCurrent(context) == 0 && cuStreamCreate(&stream, 1) == 0);
    CHECK(cuModuleLoadData(&module, "image") == 0 && cuModuleGetFunction(&fill, module, "fill_f32") == 0);
    void* none;
    EXPECT(500, "there is no kernel nothing", cuModuleGetFunction(&none, module, "nothing"));

    const auto launch = [&](void* address, unsigned shared) {
        float value = 2.5f;
        long long n = 1000;
        void* params[] = {&address, &value, &n};
        return cuLaunchKernel(fill, 4, 1, 1, 128, 1, 1, shared, stream, params, nullptr);
    };
    Memory x(4000);
    CHECK(std::isnan(x.read<float>()[7])); // nobody wrote it
    CHECK(launch(x.at, 0) == 0);
    CHECK(x.read<float>() == std::vector<float>(1000, 2.5f));
    float host[1000];
    EXPECT(1, "kernel fill_f32, parameter 0:", launch(host, 0));
    EXPECT(1, "is not allocated", launch((char*)x.at + 4096, 0));
    EXPECT(1, "only 49152 were asked for", launch(x.at, 50000));
    CHECK(cuFuncSetAttribute(fill, 8, 50000) == 0 && launch(x.at, 50000) == 0);
    EXPECT(1, "in an allocation of 4000", cuMemcpyDtoHAsync_v2(host, (char*)x.at + 4, 4000, stream));
    EXPECT(1, "is not the host's memory", cuMemcpyHtoDAsync_v2(x.at, (char*)x.at + 400, 4, stream));
    EXPECT(1, "overlap", cuMemcpyDtoDAsync_v2(x.at, (char*)x.at + 4, 400, stream));

    // Another device's memory, and its stream.
    CHECK(cuCtxSetCurrent(other) == 0);
    {
        Memory y(64);
        CHECK(cuCtxSetCurrent(context) == 0);
        EXPECT(1, "is memory of device 1, not of device 0", launch(y.at, 0));
        CHECK(cuCtxSetCurrent(other) == 0);
    }
    EXPECT(201, "a stream of device 0", launch(x.at, 0));
    CHECK(cuCtxSetCurrent(context) == 0);

    // There is as much memory as there is, and freed memory can be had again.
    size_t free, total;
    CHECK(cuMemGetInfo_v2(&free, &total) == 0 && total == 64 << 20);
    void *large, *too_much;
    for (int i = 0; i < 3; i++) {
        CHECK(cuMemAllocAsync(&large, 40 << 20, stream) == 0);
        CHECK(cuMemAllocAsync(&too_much, 40 << 20, stream) == 2);
        CHECK(cuMemFreeAsync(large, stream) == 0);
    }
    EXPECT(1, "is freed, but not allocated", cuMemFreeAsync(large, stream));
    void* overrun;
    CHECK(cuMemAllocAsync(&overrun, 3996, stream) == 0);
    CHECK(launch(overrun, 50000) == 0);
    EXPECT(0, "byte 0 behind the end of an allocation of 3996 bytes was written", cuMemFreeAsync(overrun, stream));
}

static std::vector<unsigned short> to_bf16s(const std::vector<float>& v) {
    std::vector<unsigned short> out;
    for (float x : v) {
        out.push_back(to_bf16(x).bits);
    }
    return out;
}

// D (m × n) = op(A)·op(B), by columns, against a plain sum.
static void test_product(bool transpose_a, bool transpose_b, bool in_bf16, bool out_bf16, int compute, int batches) {
    const int m = 37, n = 29, k = 403, lda = (transpose_a ? k : m) + 3, ldb = (transpose_b ? n : k), ldd = m + 1;
    const size_t size_a = (size_t)lda * (transpose_a ? m : k), size_b = (size_t)ldb * (transpose_b ? k : n), size_d = (size_t)ldd * n;
    std::vector<float> a(size_a * batches), b(size_b * batches), c(size_d * batches, 1.0f), want(c);
    for (size_t i = 0; i < a.size(); i++) {
        a[i] = number((unsigned)i);
    }
    for (size_t i = 0; i < b.size(); i++) {
        b[i] = number((unsigned)i + 77);
    }
    for (int z = 0; z < batches; z++) {
        for (int i = 0; i < m; i++) {
            for (int j = 0; j < n; j++) {
                double sum = 0;
                for (int l = 0; l < k; l++) {
                    sum += (double)a[z * size_a + (transpose_a ? l + i * lda : i + l * lda)] * b[z * size_b + (transpose_b ? j + l * ldb : l + j * ldb)];
                }
                want[z * size_d + i + j * ldd] = (float)(0.5 * sum + 2.0); // alpha, and beta times one
            }
        }
    }
    void *handle, *desc = nullptr, *la, *lb, *lc;
    const int in_type = in_bf16 ? 14 : 0, out_type = out_bf16 ? 14 : 0, ta = transpose_a, tb = transpose_b;
    CHECK(cublasLtCreate(&handle) == 0 && cublasLtMatmulDescCreate(&desc, compute, 0) == 0);
    CHECK(cublasLtMatmulDescSetAttribute(desc, 3, &ta, 4) == 0 && cublasLtMatmulDescSetAttribute(desc, 4, &tb, 4) == 0);
    CHECK(cublasLtMatrixLayoutCreate(&la, in_type, transpose_a ? k : m, transpose_a ? m : k, lda) == 0);
    CHECK(cublasLtMatrixLayoutCreate(&lb, in_type, transpose_b ? n : k, transpose_b ? k : n, ldb) == 0);
    CHECK(cublasLtMatrixLayoutCreate(&lc, out_type, m, n, ldd) == 0);
    const long long strides[3] = {(long long)size_a, (long long)size_b, (long long)size_d};
    void* layouts[3] = {la, lb, lc};
    for (int i = 0; i < 3; i++) {
        CHECK(cublasLtMatrixLayoutSetAttribute(layouts[i], 5, &batches, 4) == 0);
        CHECK(cublasLtMatrixLayoutSetAttribute(layouts[i], 6, &strides[i], 8) == 0);
    }
    const float alpha = 0.5f, beta = 2.0f;
    const Memory da = in_bf16 ? Memory(to_bf16s(a)) : Memory(a), db = in_bf16 ? Memory(to_bf16s(b)) : Memory(b);
    const Memory dc = out_bf16 ? Memory(to_bf16s(c)) : Memory(c);
    CHECK(cublasLtMatmul(handle, desc, &alpha, da.at, la, db.at, lb, &beta, dc.at, lc, dc.at, lc, nullptr, nullptr, 0, nullptr) == 0);
    std::vector<float> got;
    if (out_bf16) {
        for (unsigned short x : dc.read<unsigned short>()) {
            got.push_back(to_float(bf16{x}));
        }
        for (float& x : want) {
            x = round_bf16(x);
        }
    } else {
        got = dc.read<float>();
    }
    // Products and sums of such numbers are exact in f32.
    SAME(got.data(), want.data(), want.size(), 0);
    for (void* l : layouts) {
        cublasLtMatrixLayoutDestroy(l);
    }
    cublasLtMatmulDescDestroy(desc);
    cublasLtDestroy(handle);
}

// GELU with its input kept, and the gradient of the bias of a linear layer.
static void test_epilogues() {
    const int m = 16, n = 5, k = 24;
    std::vector<float> a(m * k), b(k * n), bias(m), inner(m * n), outer(m * n), sums(n);
    for (size_t i = 0; i < a.size(); i++) {
        a[i] = number((unsigned)i);
    }
    for (size_t i = 0; i < b.size(); i++) {
        b[i] = number((unsigned)i + 5);
        sums[i / k] += b[i];
    }
    for (int i = 0; i < m; i++) {
        bias[i] = number((unsigned)i + 9);
    }
    for (int j = 0; j < n; j++) {
        for (int i = 0; i < m; i++) {
            double x = bias[i];
            for (int l = 0; l < k; l++) {
                x += (double)a[i + l * m] * b[l + j * k];
            }
            inner[i + j * m] = (float)x;
            outer[i + j * m] = (float)(0.5 * x * (1.0 + tanh(sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x))));
        }
    }
    void *handle, *desc = nullptr, *la, *lb, *ld;
    CHECK(cublasLtCreate(&handle) == 0 && cublasLtMatmulDescCreate(&desc, 68, 0) == 0);
    CHECK(cublasLtMatrixLayoutCreate(&la, 0, m, k, m) == 0 && cublasLtMatrixLayoutCreate(&lb, 0, k, n, k) == 0);
    CHECK(cublasLtMatrixLayoutCreate(&ld, 0, m, n, m) == 0);
    const Memory da(a), db(b), dbias(bias), aux(m * n * 4), d(m * n * 4);
    const float one = 1, zero = 0;
    const auto multiply = [&] {
        return cublasLtMatmul(handle, desc, &one, da.at, la, db.at, lb, &zero, d.at, ld, d.at, ld, nullptr, nullptr, 0, nullptr);
    };
    int epilogue = 32 | 128 | 4;
    long long aux_ld = m;
    CHECK(cublasLtMatmulDescSetAttribute(desc, 7, &epilogue, 4) == 0 && cublasLtMatmulDescSetAttribute(desc, 8, &dbias.at, 8) == 0);
    CHECK(cublasLtMatmulDescSetAttribute(desc, 11, &aux.at, 8) == 0);
    EXPECT(15, "leading dimension: not a multiple of 8", multiply());
    CHECK(cublasLtMatmulDescSetAttribute(desc, 12, &aux_ld, 8) == 0);
    CHECK(multiply() == 0);
    SAME(aux.read<float>().data(), inner.data(), inner.size(), 0);
    SAME(d.read<float>().data(), outer.data(), outer.size(), 2e-6f); // of values up to 8: tanhf, and three roundings
    epilogue = 512;
    const Memory gradient(n * 4);
    CHECK(cublasLtMatmulDescSetAttribute(desc, 7, &epilogue, 4) == 0 && cublasLtMatmulDescSetAttribute(desc, 8, &gradient.at, 8) == 0);
    CHECK(multiply() == 0);
    SAME(gradient.read<float>().data(), sums.data(), n, 0);
    const Memory small(8);
    CHECK(cublasLtMatmulDescSetAttribute(desc, 8, &small.at, 8) == 0);
    EXPECT(7, "cublasLtMatmul, bias: 20 bytes from byte 0 on, in an allocation of 8", multiply());
    for (void* l : {la, lb, ld}) {
        cublasLtMatrixLayoutDestroy(l);
    }
    cublasLtMatmulDescDestroy(desc);
    cublasLtDestroy(handle);
}

// ---- NCCL ----

// Runs `body(rank, communicator)` on as many threads, each on a device of its own if there are enough.
template <typename F> static void on_ranks(int ranks, F body) {
    ncclId id;
    CHECK(ncclGetUniqueId(&id) == 0);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; rank++) {
        threads.emplace_back([=] {
            void *context, *comm;
            CHECK(cuDevicePrimaryCtxRetain(&context, rank % 2) == 0 && cuCtxSetCurrent(context) == 0);
            CHECK(ncclCommInitRank(&comm, ranks, id, rank) == 0);
            body(rank, comm);
            CHECK(ncclCommDestroy(comm) == 0);
        });
    }
    for (std::thread& t : threads) {
        t.join();
    }
}

static void test_nccl() {
    const int ranks = 3;
    on_ranks(ranks, [](int rank, void* comm) {
        const Memory x(std::vector<float>(10, (float)(rank + 1))), all(10 * 4 * ranks), root(40);
        CHECK(ncclAllReduce(x.at, x.at, 10, 7, 0, comm, nullptr) == 0);
        CHECK(x.read<float>() == std::vector<float>(10, 6.0f));
        CHECK(ncclReduce(x.at, root.at, 10, 7, 4, 1, comm, nullptr) == 0); // a mean
        CHECK(rank == 1 ? root.read<float>()[9] == 6.0f : std::isnan(root.read<float>()[9]));

        // 1 + 2^-8 + 2^-8 + ... in bf16: rounded once, at the end.
        const Memory h(to_bf16s(std::vector<float>(4, rank == 0 ? 1.0f : 0.00390625f)));
        CHECK(ncclAllReduce(h.at, h.at, 4, 9, 0, comm, nullptr) == 0);
        CHECK(to_float(bf16{h.read<unsigned short>()[3]}) == 1.0078125f);

        const Memory mine(std::vector<float>(10, (float)rank));
        CHECK(ncclAllGather(mine.at, all.at, 10, 7, comm, nullptr) == 0);
        const std::vector<float> gathered = all.read<float>();
        for (int i = 0; i < 30; i++) {
            CHECK(gathered[i] == (float)(i / 10));
        }
        CHECK(ncclBroadcast(mine.at, x.at, 10, 7, 2, comm, nullptr) == 0);
        CHECK(x.read<float>() == std::vector<float>(10, 2.0f));

        // A ring in a group; receives come first in the program.
        CHECK(ncclGroupStart() == 0);
        CHECK(ncclRecv(root.at, 10, 7, (rank + ranks - 1) % ranks, comm, nullptr) == 0);
        CHECK(ncclSend(mine.at, 10, 7, (rank + 1) % ranks, comm, nullptr) == 0);
        CHECK(ncclGroupEnd() == 0);
        CHECK(root.read<float>() == std::vector<float>(10, (float)((rank + ranks - 1) % ranks)));
    });
    // One rank waits for an operation that the other never calls; ranks that call different ones.
    on_ranks(2, [](int rank, void* comm) {
        const Memory x(40);
        if (rank == 0) {
            const auto heard = listen([&] { return ncclAllReduce(x.at, x.at, 10, 7, 0, comm, nullptr); });
            CHECK(heard.first == 2 && heard.second.find("rank 0 of 2 waited 1 s in all-reduce") != std::string::npos);
        }
    });
    const auto heard = listen([] {
        on_ranks(2, [](int rank, void* comm) {
            const Memory x(40);
            CHECK(ncclAllReduce(x.at, x.at, rank == 0 ? 10 : 9, 7, 0, comm, nullptr) == 5);
        });
        return 0;
    });
    CHECK(heard.second.find("ranks disagree") != std::string::npos);
}

// ---- streams with threads ----

// A stream of the current device, a kernel for it, and NCCL on it.
struct Lane {
    void *stream = nullptr, *event = nullptr, *module = nullptr, *fill = nullptr;
    Lane() {
        CHECK(cuStreamCreate(&stream, 1) == 0 && cuEventCreate(&event, 2) == 0);
        CHECK(cuModuleLoadData(&module, "image") == 0 && cuModuleGetFunction(&fill, module, "fill_f32") == 0);
    }
    int set(void* x, float value, long long n) {
        void* params[] = {&x, &value, &n};
        return cuLaunchKernel(fill, 1, 1, 1, 32, 1, 1, 0, stream, params, nullptr);
    }
    // Another stream's work from here on waits for this one's so far.
    void before(const Lane& other) {
        CHECK(cuEventRecord(event, stream) == 0 && cuStreamWaitEvent(other.stream, event, 0) == 0);
    }
};

// Calls `step(n)` for n from 0 on, each on the rank's thread that is its turn, so that the hosts of two ranks have one order.
struct Turns {
    std::mutex lock;
    std::condition_variable changed;
    int now = 0;
    void wait(int turn) {
        std::unique_lock<std::mutex> guard(lock);
        changed.wait(guard, [&] { return now >= turn; });
    }
    void next() {
        std::lock_guard<std::mutex> guard(lock);
        now++;
        changed.notify_all();
    }
};

static void test_streams() {
    void* context = nullptr;
    CHECK(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0);

    // A send is over when it was received. The host and the other streams of the device go on.
    Turns turns;
    on_ranks(2, [&turns](int rank, void* comm) {
        Lane lane, other;
        Memory x(400), y(400);
        // The first message connects.
        CHECK((rank == 0 ? ncclSend(x.at, 100, 7, 1, comm, lane.stream) : ncclRecv(x.at, 100, 7, 0, comm, lane.stream)) == 0);
        CHECK(cuStreamSynchronize(lane.stream) == 0);
        if (rank == 0) {
            CHECK(lane.set(x.at, 3.0f, 100) == 0 && ncclSend(x.at, 100, 7, 1, comm, lane.stream) == 0);
            CHECK(cuEventRecord(lane.event, lane.stream) == 0 && other.set(y.at, 1.0f, 100) == 0);
            CHECK(cuStreamSynchronize(other.stream) == 0 && cuEventQuery(lane.event) == 600);
            turns.next();
            CHECK(cuEventSynchronize(lane.event) == 0 && cuEventQuery(lane.event) == 0);
        } else {
            turns.wait(1);
            CHECK(ncclRecv(x.at, 100, 7, 0, comm, lane.stream) == 0);
            lane.before(other);
            float got[100];
            CHECK(cuMemcpyDtoHAsync_v2(got, x.at, 400, other.stream) == 0 && got[99] == 3.0f);
        }
        CHECK(cuStreamDestroy_v2(lane.stream) == 0 && cuStreamDestroy_v2(other.stream) == 0);
    });

    // A load waits for the device, and so for a receive whose message is sent after the load.
    Turns loads;
    const auto loading = listen([&loads] {
        on_ranks(2, [&loads](int rank, void* comm) {
            Lane lane;
            Memory x(4);
            CHECK((rank == 0 ? ncclSend(x.at, 1, 7, 1, comm, lane.stream) : ncclRecv(x.at, 1, 7, 0, comm, lane.stream)) == 0);
            CHECK(cuStreamSynchronize(lane.stream) == 0);
            if (rank == 1) {
                void* module;
                CHECK(ncclRecv(x.at, 1, 7, 0, comm, lane.stream) == 0 && cuModuleLoadData(&module, "image") == 0);
                loads.next();
            } else {
                loads.wait(1);
            }
        });
        return 0;
    });
    CHECK(loading.second.find("rank 1 of 2 waited 1 s in receive") != std::string::npos);

    // Ranks that are threads share the launches of their process: those that wait for a sum leave no room for the rank that is missing.
    Turns sums;
    const auto full = listen([&sums] {
        on_ranks(2, [&sums](int rank, void* comm) {
            Lane lane;
            Memory x(4), y(4);
            CHECK(ncclAllReduce(x.at, x.at, 1, 7, 0, comm, lane.stream) == 0 && cuStreamSynchronize(lane.stream) == 0);
            if (rank == 0) {
                CHECK(ncclAllReduce(x.at, x.at, 1, 7, 0, comm, lane.stream) == 0);
                for (int i = 0; i < 15; i++) {
                    CHECK(lane.set(y.at, 1.0f, 1) == 0);
                }
                sums.next();
            } else {
                sums.wait(1);
                CHECK(ncclAllReduce(x.at, x.at, 1, 7, 0, comm, lane.stream) == 0);
            }
            CHECK(cuStreamSynchronize(lane.stream) == 0);
        });
        return 0;
    });
    CHECK(full.second.find("rank 0 of 2 waited 1 s in all-reduce") != std::string::npos);

    // The first sum of a length needs the hosts of all ranks.
    Turns first;
    const auto unconnected = listen([&first] {
        on_ranks(2, [&first](int rank, void* comm) {
            Lane lane;
            Memory x(400);
            if (rank == 0) {
                CHECK(ncclAllReduce(x.at, x.at, 100, 7, 0, comm, lane.stream) == 2);
                first.next();
            } else {
                first.wait(1);
            }
        });
        return 0;
    });
    CHECK(unconnected.second.find("rank 0 of 2 waited 1 s to connect for the first all-reduce of 2^9 bytes") != std::string::npos);

    // Memory that one stream writes and another reads: with an event between them, and without.
    Lane a, b;
    Memory &x = *new Memory(400), &y = *new Memory(400); // nothing can be freed after the mistake
    CHECK(a.set(x.at, 5.0f, 100) == 0);
    a.before(b);
    CHECK(cuMemcpyDtoDAsync_v2(y.at, x.at, 400, b.stream) == 0 && cuStreamSynchronize(b.stream) == 0);
    CHECK(y.read<float>()[99] == 5.0f);
    CHECK(cuMemcpyDtoDAsync_v2(y.at, x.at, 400, b.stream) == 0);
    EXPECT(719, "a race: kernel fill_f32, parameter 0 writes 1 bytes from byte 0 on of an allocation of 400, and does not wait for a copy on "
                "the device, which reads them", a.set(x.at, 6.0f, 100));
}

int main(int argc, char**) {
    setenv("RUNNER_EMULATED_DEVICES", "2", 1);
    setenv("RUNNER_EMULATED_MEMORY", "67108864", 1);
    setenv("RUNNER_EMULATED_NCCL_TIMEOUT", "1", 1);
    if (argc > 1) {
        setenv("RUNNER_EMULATED_STREAMS", "1", 1);
        setenv("RUNNER_EMULATED_LAUNCHES", "16", 1);
        test_streams();
        printf(failures == 0 ? "the tests of streams pass\n" : "%d checks failed\n", failures);
        return failures != 0;
    }
    test_kernels();
    test_products();
    test_order();
    test_mistakes();
    test_driver();
    for (int i = 0; i < 8; i++) {
        test_product(i & 1, i & 2, i & 4, false, 68, 1);
    }
    test_product(true, false, true, true, 68, 3);
    test_product(false, true, false, false, 77, 2);
    test_epilogues();
    test_nccl();
    printf(failures == 0 ? "the emulator's own tests pass\n" : "%d checks failed\n", failures);
    return failures != 0;
}

// Makes the sources in crates/compute/src/kernels/cuda/ compile as C++, and runs them on the CPU: see fibers.h. For g++ and clang++ on Linux:
//
//     c++ -std=c++17 -O2 -fno-strict-aliasing -ffp-contract=fast -fsanitize=alignment,bounds -fno-sanitize-recover=all
//         -DRUNNER_EMULATED -Itests/emulated -Icrates/compute/src/kernels/cuda -x c++ crates/compute/src/kernels/cuda/NAME.cu
//
// (the sanitizers only when compiling, not when linking: their reports come to functions here). A test of one kernel:
//
//     #include "NAME.cu"
//     int main() { ... return emulated::launch("fill_f32", fill_f32, {blocks, 1, 1}, {256, 1, 1}, shared_bytes, x, 1.0f, n); }
//
// What is not here is not emulated: a kernel that uses it does not compile. There are no floating-point atomics on purpose.
#pragma once

#include <cmath>
#include <tuple>
#include <type_traits>

#include "fibers.h"

#ifdef RUNNER_ENTRIES // table.py looks for them
#define __global__ RUNNER_ENTRY
#define __launch_bounds__(...) RUNNER_BOUNDS(__VA_ARGS__)
#else
#define __global__
#define __launch_bounds__(...)
#endif
#define __device__
#define __host__
#define __constant__ static
#define __shared__ static thread_local // one block at a time per host thread
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
#define DYNAMIC_SHARED(name) unsigned char* const name = emulated::now.host->shared

#define threadIdx (emulated::now.thread)
#define blockIdx (emulated::now.block)
#define blockDim (emulated::now.block_dim)
#define gridDim (emulated::now.grid_dim)
#define warpSize 32

// ---- launches ----

namespace emulated {

// Calls a kernel with parameters that are given as the driver API gives them: by their addresses.
template <typename... A> struct Invoke {
    template <size_t... I> static void with(void (*kernel)(A...), void** params, std::index_sequence<I...>) {
        kernel(*static_cast<std::remove_cv_t<A>*>(params[I])...);
    }
    static void invoke(void (*kernel)(), void** params) {
        with(reinterpret_cast<void (*)(A...)>(kernel), params, std::index_sequence_for<A...>());
    }
};

// A kernel as it is found by name. `sizes` are those of its parameters; `addresses` has a bit for each that is a pointer, `constants` for
// each through which nothing is written.
struct Kernel {
    const char* name;
    void (*kernel)();
    void (*invoke)(void (*)(), void**);
    unsigned parameters;
    unsigned char sizes[63];
    unsigned long long addresses, constants;
};

template <typename... A> Kernel describe(const char* name, void (*kernel)(A...)) {
    static_assert(sizeof...(A) < 63, "too many parameters");
    static_assert((std::is_trivially_copyable<A>::value && ...), "parameters are addresses, numbers or structs of numbers");
    static_assert(((sizeof(A) < 256 && alignof(A) <= 8) && ...), "a parameter is too large");
    Kernel k = {name, reinterpret_cast<void (*)()>(kernel), Invoke<A...>::invoke, sizeof...(A), {sizeof(A)..., 0}, 0, 0};
    unsigned i = 0, j = 0;
    ((k.addresses |= (unsigned long long)std::is_pointer<A>::value << i++), ...);
    ((k.constants |= (unsigned long long)std::is_const<std::remove_pointer_t<A>>::value << j++), ...);
    return k;
}

inline int launch(const Kernel& k, Index grid, Index block, size_t shared, void** params) {
    Launch l;
    l.name = k.name;
    l.invoke = k.invoke;
    l.kernel = k.kernel;
    l.params = params;
    l.grid = grid;
    l.block = block;
    l.shared = shared;
    return run(l);
}

// 0, or an error after a line on the error output. Arguments are converted like those of a call.
template <typename... A, typename... B>
int launch(const char* name, void (*kernel)(A...), Index grid, Index block, size_t shared, B... arguments) {
    static_assert(sizeof...(A) == sizeof...(B), "as many arguments as the kernel has parameters");
    std::tuple<std::remove_cv_t<A>...> values(static_cast<A>(arguments)...);
    return std::apply([&](auto&... value) {
        void* params[] = {const_cast<void*>(static_cast<const void*>(&value))..., nullptr};
        return launch(describe(name, kernel), grid, block, shared, params);
    }, values);
}

// ---- meetings of a warp ----

enum Kind { SHUFFLE, SHUFFLE_XOR, SHUFFLE_UP, SHUFFLE_DOWN, VOTE, SYNC, MMA_BF16, MMA_TF32, TILES, TILES_TRANSPOSED, GROUP_PRODUCT, GROUP_ACCUMULATE };

inline const char* kind_name(unsigned kind) {
    static const char* const names[] = {"__shfl_sync", "__shfl_xor_sync", "__shfl_up_sync", "__shfl_down_sync", "a vote",
                                        "__syncwarp",  "mma_bf16",        "mma_tf32",       "load_tiles", "load_tiles_transposed",
                                        "group_product", "group_accumulate"};
    return names[kind & 15];
}

struct Nothing {
    void operator()(Slot*) const {}
};

template <typename T> EMULATED_UNCHECKED T shuffle(unsigned mask, Kind kind, T value, int number, int width) {
    static_assert(std::is_arithmetic<T>::value, "shuffles are of numbers");
    if (width <= 0 || width > 32 || (width & (width - 1)) != 0) {
        fail(LAUNCH_FAILED, "%s with the width %d", kind_name(kind), width);
    }
    Slot mine;
    mine.value = 0;
    memcpy(&mine.value, &value, sizeof value);
    // Sizes must agree too: 4 bytes here and 8 there are different instructions.
    const Slot* slots = meet(mask, kind | (unsigned)sizeof(T) << 4 | (unsigned)width << 8, mine, Nothing());
    const int lane = (int)(now.host->current % 32), start = lane & ~(width - 1);
    int from = lane;
    if (kind == SHUFFLE) {
        from = start + (number & (width - 1));
    } else if (kind == SHUFFLE_XOR) {
        from = (lane ^ number) < start + width ? (lane ^ number) : lane;
    } else if (kind == SHUFFLE_UP) {
        from = lane - number >= start ? lane - number : lane;
    } else {
        from = lane + number < start + width ? lane + number : lane;
    }
    memcpy(&value, &slots[from & 31].value, sizeof value);
    return value;
}

EMULATED_UNCHECKED inline unsigned vote(unsigned mask, int predicate) {
    Slot mine;
    mine.value = predicate != 0;
    const Slot* slots = meet(mask, VOTE, mine, Nothing());
    unsigned all = 0;
    for (int i = 0; i < 32; i++) {
        all |= (unsigned)slots[i].value << i;
    }
    return all;
}

inline float bits_to_float(unsigned bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

} // namespace emulated

inline void __syncthreads() {
    emulated::block_barrier();
}
inline void __syncwarp(unsigned mask = 0xffffffffu) {
    emulated::meet(mask, emulated::SYNC, emulated::Slot(), emulated::Nothing());
}
template <typename T> T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
    return emulated::shuffle(mask, emulated::SHUFFLE, value, lane, width);
}
template <typename T> T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
    return emulated::shuffle(mask, emulated::SHUFFLE_XOR, value, lanes, width);
}
template <typename T> T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
    return emulated::shuffle(mask, emulated::SHUFFLE_UP, value, (int)by, width);
}
template <typename T> T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
    return emulated::shuffle(mask, emulated::SHUFFLE_DOWN, value, (int)by, width);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
    return emulated::vote(mask, predicate);
}
inline int __any_sync(unsigned mask, int predicate) {
    return emulated::vote(mask, predicate) != 0;
}
inline int __all_sync(unsigned mask, int predicate) {
    return emulated::vote(mask, predicate) == 0xffffffffu;
}

// ---- tensor cores and copies, as mma.cuh describes them ----

namespace emulated {

typedef float Eight __attribute__((vector_size(32)));

// D = A·B + D, once all lanes have come: products and sums in f32, in the order of k.
template <bool BF16> EMULATED_UNCHECKED void multiply(Slot* slots) {
    const int K = BF16 ? 16 : 8;
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; lane++) {
        const unsigned* av = static_cast<const unsigned*>(slots[lane].at[1]);
        const unsigned* bv = static_cast<const unsigned*>(slots[lane].at[2]);
        const int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 4; i++) {
            const int row = g + i % 2 * 8, half = i / 2;
            if (BF16) {
                a[row][2 * t + half * 8] = bits_to_float(av[i] << 16);
                a[row][2 * t + half * 8 + 1] = bits_to_float(av[i] & 0xffff0000u);
            } else {
                a[row][t + half * 4] = bits_to_float(av[i] & 0xffffe000u); // the hardware does not see the lower bits
            }
        }
        for (int i = 0; i < 2; i++) {
            if (BF16) {
                b[2 * t + i * 8][g] = bits_to_float(bv[i] << 16);
                b[2 * t + i * 8 + 1][g] = bits_to_float(bv[i] & 0xffff0000u);
            } else {
                b[t + i * 4][g] = bits_to_float(bv[i] & 0xffffe000u);
            }
        }
    }
    for (int row = 0; row < 16; row++) {
        // Lanes 4·(row % 8) .. + 3 hold the row's eight elements, two each.
        float* d[4];
        Eight sums;
        for (int t = 0; t < 4; t++) {
            d[t] = static_cast<float*>(const_cast<void*>(slots[row % 8 * 4 + t].at[0])) + row / 8 * 2;
            sums[2 * t] = d[t][0];
            sums[2 * t + 1] = d[t][1];
        }
        for (int k = 0; k < K; k++) {
            Eight columns;
            memcpy(&columns, b[k], sizeof columns);
            sums += columns * a[row][k];
        }
        for (int t = 0; t < 4; t++) {
            d[t][0] = sums[2 * t];
            d[t][1] = sums[2 * t + 1];
        }
    }
}

// Tile i has its rows at the addresses of lanes 8i .. 8i+7.
template <bool TRANSPOSED> EMULATED_UNCHECKED void read_tiles(Slot* slots) {
    for (int i = 0; i < 4; i++) {
        unsigned short tile[8][8];
        for (int row = 0; row < 8; row++) {
            memcpy(tile[row], slots[i * 8 + row].at[1], 16);
        }
        for (int lane = 0; lane < 32; lane++) {
            const int g = lane / 4, t = lane % 4;
            const unsigned low = TRANSPOSED ? tile[2 * t][g] : tile[g][2 * t];
            const unsigned high = TRANSPOSED ? tile[2 * t + 1][g] : tile[g][2 * t + 1];
            static_cast<unsigned*>(const_cast<void*>(slots[lane].at[0]))[i] = low | high << 16;
        }
    }
}

inline void need_16(const void* address, const char* what) {
    if (((uintptr_t)address & 15) != 0) {
        fail(MISALIGNED, "%s at %p, which is not aligned to 16 bytes", what, address);
    }
}

} // namespace emulated

inline void emulated_mma_bf16(float* d, const unsigned* a, const unsigned* b) {
    emulated::meet(0xffffffffu, emulated::MMA_BF16, {{d, a, b}}, emulated::multiply<true>);
}
inline void emulated_mma_tf32(float* d, const unsigned* a, const unsigned* b) {
    emulated::meet(0xffffffffu, emulated::MMA_TF32, {{d, a, b}}, emulated::multiply<false>);
}
inline void emulated_load_tiles(unsigned* r, const void* row) {
    emulated::need_16(row, "load_tiles: a row");
    emulated::meet(0xffffffffu, emulated::TILES, {{r, row, nullptr}}, emulated::read_tiles<false>);
}
inline void emulated_load_tiles_transposed(unsigned* r, const void* row) {
    emulated::need_16(row, "load_tiles_transposed: a row");
    emulated::meet(0xffffffffu, emulated::TILES_TRANSPOSED, {{r, row, nullptr}}, emulated::read_tiles<true>);
}

namespace emulated {

inline void perform(const Copy& copy) {
    if (copy.from != nullptr) {
        memcpy(copy.to, copy.from, 16);
    } else {
        memset(copy.to, 0, 16);
    }
}

} // namespace emulated

// As late as it may be, so that who waits too little reads old data; in the reverse order of threads, as early.
inline void emulated_copy_async(void* shared, const void* global, bool inside) {
    emulated::need_16(shared, "copy_async: the destination");
    if (inside) {
        emulated::need_16(global, "copy_async: the source");
    }
    emulated::Host* h = emulated::now.host;
    emulated::Fiber& fiber = h->fibers[h->current];
    const emulated::Copy copy = {shared, inside ? global : nullptr, fiber.groups};
    if (h->reverse) {
        emulated::perform(copy);
    } else {
        fiber.copies.push_back(copy);
    }
}
inline void emulated_copy_commit() {
    emulated::now.host->fibers[emulated::now.host->current].groups++;
}
// Until at most `pending` of the closed groups are left.
inline void emulated_copy_wait(unsigned pending) {
    emulated::Fiber& fiber = emulated::now.host->fibers[emulated::now.host->current];
    size_t done = 0;
    while (done < fiber.copies.size() && fiber.groups - fiber.copies[done].group > pending) {
        emulated::perform(fiber.copies[done++]);
    }
    fiber.is_unfenced = true;
    fiber.copies.erase(fiber.copies.begin(), fiber.copies.begin() + (ptrdiff_t)done);
}

// ---- products of four warps, as the PTX ISA describes them ----
//
// They read shared memory as late as they may; with the reverse order of threads, at once. Until then their results are NaN, so that a thread
// which reads or writes them too early gets other numbers.

namespace emulated {

// The number at a place of shared memory, whose 128-byte lines are swizzled.
EMULATED_UNCHECKED inline float swizzled(unsigned place) {
    unsigned short bits;
    memcpy(&bits, now.host->shared + (place ^ (place >> 7 & 7) << 4), 2);
    return bits_to_float((unsigned)bits << 16);
}

EMULATED_UNCHECKED inline void perform(const GroupProduct& p) {
    const unsigned thread = now.host->current % 128, g = thread % 32 / 4, t = thread % 4;
    float a[2][16];
    memcpy(a, p.a, sizeof a);
    for (unsigned half = 0; half < 2 && !p.transposed; half++) {
        const unsigned row = thread / 32 * 16 + half * 8 + g;
        for (unsigned k = 0; k < 16; k++) {
            a[half][k] = swizzled(p.left + row / 8 * p.stride + row % 8 * 128 + k * 2);
        }
    }
    for (unsigned n = 0; n < 8; n++) {
        for (unsigned odd = 0; odd < 2; odd++) {
            const unsigned column = n * 8 + 2 * t + odd;
            float sums[2];
            for (unsigned half = 0; half < 2; half++) {
                const float before = p.is_first ? p.before[n][2 * half + odd] : p.d[n][2 * half + odd];
                sums[half] = p.adds ? before : 0.0f;
            }
            for (unsigned k = 0; k < 16; k++) {
                const float b = p.transposed ? swizzled(p.right + k / 8 * p.stride + k % 8 * 128 + column * 2)
                                             : swizzled(p.right + column / 8 * p.stride + column % 8 * 128 + k * 2);
                sums[0] += a[0][k] * b;
                sums[1] += a[1][k] * b;
            }
            p.d[n][odd] = sums[0];
            p.d[n][2 + odd] = sums[1];
        }
    }
}

EMULATED_UNCHECKED inline void start(GroupProduct p, float (&d)[8][4]) {
    Host* h = now.host;
    Fiber& fiber = h->fibers[h->current];
    if (!fiber.has_begun || fiber.is_unfenced) {
        fail(LAUNCH_FAILED, "a product of four warps without a fence for its %s", fiber.has_begun ? "tiles" : "registers");
    }
    p.d = d;
    p.set = fiber.sets;
    p.is_first = true;
    for (const GroupProduct& other : fiber.products) {
        p.is_first = p.is_first && other.d != p.d;
    }
    memcpy(p.before, d, sizeof p.before);
    if (h->reverse) {
        return perform(p);
    }
    if (p.is_first) {
        memset(d, POISON, sizeof p.before);
    }
    fiber.products.push_back(p);
}

// The left operand's rows in the registers of the lanes that have them.
EMULATED_UNCHECKED inline void read_rows(Slot* slots) {
    for (int lane = 0; lane < 32; lane++) {
        float(*rows)[16] = static_cast<float(*)[16]>(const_cast<void*>(slots[lane].at[1]));
        for (int t = 0; t < 4; t++) {
            const unsigned* a = static_cast<const unsigned*>(slots[lane / 4 * 4 + t].at[0]);
            for (int i = 0; i < 4; i++) {
                rows[i % 2][2 * t + i / 2 * 8] = bits_to_float(a[i] << 16);
                rows[i % 2][2 * t + i / 2 * 8 + 1] = bits_to_float(a[i] & 0xffff0000u);
            }
        }
    }
}

} // namespace emulated

inline unsigned emulated_group_matrix(const unsigned char* tile, unsigned stride) {
    const size_t place = (size_t)(tile - emulated::now.host->shared);
    if (place % 1024 != 0 || stride % 1024 != 0) {
        emulated::fail(emulated::MISALIGNED, "a product of four warps reads a tile at %zu of shared memory, in steps of %u", place, stride);
    }
    return (unsigned)place >> 4;
}
inline void emulated_group_product(float (&d)[8][4], unsigned a, unsigned b, unsigned stride, bool adds) {
    emulated::meet(0xffffffffu, emulated::GROUP_PRODUCT, emulated::Slot(), emulated::Nothing());
    emulated::GroupProduct p = {};
    p.adds = adds;
    p.left = a << 4;
    p.right = b << 4;
    p.stride = stride;
    emulated::start(p, d);
}
inline void emulated_group_accumulate(float (&d)[8][4], const unsigned (&a)[4], unsigned b, unsigned stride) {
    emulated::GroupProduct p = {};
    emulated::meet(0xffffffffu, emulated::GROUP_ACCUMULATE, {{a, p.a, nullptr}}, emulated::read_rows);
    p.adds = p.transposed = true;
    p.right = b << 4;
    p.stride = stride;
    emulated::start(p, d);
}
inline void emulated_group_begin() {
    emulated::now.host->fibers[emulated::now.host->current].has_begun = true;
}
inline void emulated_group_commit() {
    emulated::Fiber& fiber = emulated::now.host->fibers[emulated::now.host->current];
    fiber.has_begun = false;
    fiber.sets++;
}
// Until at most `pending` of the closed sets are left.
inline void emulated_group_wait(unsigned pending) {
    emulated::Fiber& fiber = emulated::now.host->fibers[emulated::now.host->current];
    size_t done = 0;
    while (done < fiber.products.size() && fiber.sets - fiber.products[done].set > pending) {
        emulated::perform(fiber.products[done++]);
    }
    fiber.products.erase(fiber.products.begin(), fiber.products.begin() + (ptrdiff_t)done);
}
inline void emulated_group_fence_shared() {
    emulated::now.host->fibers[emulated::now.host->current].is_unfenced = false;
}

// ---- numbers ----

inline float __uint_as_float(unsigned x) {
    return emulated::bits_to_float(x);
}
inline float __int_as_float(int x) {
    return emulated::bits_to_float((unsigned)x);
}
inline unsigned __float_as_uint(float x) {
    unsigned u;
    memcpy(&u, &x, 4);
    return u;
}
inline int __float_as_int(float x) {
    return (int)__float_as_uint(x);
}
inline double __longlong_as_double(long long x) {
    double y;
    memcpy(&y, &x, 8);
    return y;
}
inline long long __double_as_longlong(double x) {
    long long y;
    memcpy(&y, &x, 8);
    return y;
}

// The host's library has functions of these names, which must not be taken.
#define __expf(x) expf(x)
#define __exp10f(x) exp10f(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __fdividef(x, y) ((float)(x) / (float)(y))
inline float rsqrtf(float x) {
    return 1.0f / sqrtf(x);
}
inline double rsqrt(double x) {
    return 1.0 / sqrt(x);
}
inline float __saturatef(float x) {
    return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; // NaN becomes 0
}
// Never a part of another operation.
inline float alone(float x) {
    asm("" : "+m"(x));
    return x;
}
inline float __fadd_rn(float a, float b) {
    return alone(a + b);
}
inline float __fmul_rn(float a, float b) {
    return alone(a * b);
}
inline float __fdiv_rn(float a, float b) {
    return a / b;
}
inline float __fmaf_rn(float a, float b, float c) {
    return fmaf(a, b, c);
}
inline float __fsqrt_rn(float x) {
    return sqrtf(x);
}

inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}
inline int __popcll(unsigned long long x) {
    return __builtin_popcountll(x);
}
inline int __ffs(int x) {
    return __builtin_ffs(x);
}
inline int __ffsll(long long x) {
    return __builtin_ffsll(x);
}
inline int __clz(int x) {
    return x == 0 ? 32 : __builtin_clz((unsigned)x);
}
inline int __clzll(long long x) {
    return x == 0 ? 64 : __builtin_clzll((unsigned long long)x);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
    return (unsigned)((unsigned long long)a * b >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}

#define EMULATED_MIN_MAX(T)              \
    inline T min(T a, T b) {             \
        return b < a ? b : a;            \
    }                                    \
    inline T max(T a, T b) {             \
        return a < b ? b : a;            \
    }
EMULATED_MIN_MAX(int)
EMULATED_MIN_MAX(unsigned)
EMULATED_MIN_MAX(long)
EMULATED_MIN_MAX(unsigned long)
EMULATED_MIN_MAX(long long)
EMULATED_MIN_MAX(unsigned long long)
#undef EMULATED_MIN_MAX
inline float min(float a, float b) {
    return fminf(a, b);
}
inline float max(float a, float b) {
    return fmaxf(a, b);
}
inline double min(double a, double b) {
    return fmin(a, b);
}
inline double max(double a, double b) {
    return fmax(a, b);
}

template <typename T> T __ldg(const T* p) {
    return *p;
}
template <typename T> T __ldcs(const T* p) {
    return *p;
}
template <typename T> void __stcs(T* p, T x) {
    *p = x;
}

// ---- atomics: blocks run on several host threads ----

namespace emulated {
template <typename T> using Same = typename std::common_type<T>::type; // takes no part in deducing T

template <typename T, typename F> T update(T* p, F f) {
    static_assert(std::is_integral<T>::value, "atomics are of integers: sums of floats would depend on the order");
    T old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(p, &old, f(old), true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
    }
    return old;
}
} // namespace emulated

template <typename T> T atomicAdd(T* p, emulated::Same<T> x) {
    return emulated::update(p, [x](T old) { return (T)(old + x); });
}
template <typename T> T atomicSub(T* p, emulated::Same<T> x) {
    return emulated::update(p, [x](T old) { return (T)(old - x); });
}
template <typename T> T atomicMax(T* p, emulated::Same<T> x) {
    return emulated::update(p, [x](T old) { return old < x ? x : old; });
}
template <typename T> T atomicMin(T* p, emulated::Same<T> x) {
    return emulated::update(p, [x](T old) { return x < old ? x : old; });
}
template <typename T> T atomicOr(T* p, emulated::Same<T> x) {
    return emulated::update(p, [x](T old) { return (T)(old | x); });
}
template <typename T> T atomicAnd(T* p, emulated::Same<T> x) {
    return emulated::update(p, [x](T old) { return (T)(old & x); });
}
template <typename T> T atomicExch(T* p, emulated::Same<T> x) {
    return emulated::update(p, [x](T) { return x; });
}
template <typename T> T atomicCAS(T* p, emulated::Same<T> expected, emulated::Same<T> x) {
    static_assert(std::is_integral<T>::value, "atomics are of integers");
    T old = expected;
    __atomic_compare_exchange_n(p, &old, x, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return old;
}
inline void __threadfence() {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
inline void __threadfence_block() {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

// ---- vectors ----

#define EMULATED_VECTORS(T, name)                             \
    struct __align__(2 * sizeof(T)) name##2 {                 \
        T x, y;                                               \
    };                                                        \
    struct __align__(4 * sizeof(T)) name##4 {                 \
        T x, y, z, w;                                         \
    };                                                        \
    inline name##2 make_##name##2(T x, T y) {                 \
        return {x, y};                                        \
    }                                                         \
    inline name##4 make_##name##4(T x, T y, T z, T w) {       \
        return {x, y, z, w};                                  \
    }
EMULATED_VECTORS(int, int)
EMULATED_VECTORS(unsigned, uint)
EMULATED_VECTORS(float, float)
#undef EMULATED_VECTORS
typedef emulated::Index uint3;
typedef emulated::Index dim3;

// ---- reports of -fsanitize=alignment,bounds, which would otherwise need a library ----

namespace emulated {
struct SourceLine {
    const char* file;
    unsigned line, column;
};
} // namespace emulated

extern "C" __attribute__((weak, noreturn)) void __ubsan_handle_type_mismatch_v1_abort(emulated::SourceLine* at, void* address) {
    emulated::fail(emulated::MISALIGNED, "%s:%u: the address %p is not aligned for the type that it is used as", at->file, at->line, address);
}
extern "C" __attribute__((weak, noreturn)) void __ubsan_handle_out_of_bounds_abort(emulated::SourceLine* at, unsigned long index) {
    emulated::fail(emulated::ILLEGAL_ADDRESS, "%s:%u: the index %ld is outside of the array", at->file, at->line, (long)index);
}

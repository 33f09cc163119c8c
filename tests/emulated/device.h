// What the parts of the emulated driver share: devices and their memory, kernels by name, counts.
#pragma once

#include <map>
#include <string>

#include "emulate.h"

#define API extern "C" __attribute__((visibility("default")))

namespace emulated {

// ---- kernels by name ----

struct Entry {
    Kernel kernel;
    unsigned most_threads;
    std::atomic<unsigned> dynamic_shared{48 * 1024}; // beyond that a kernel must be opted in
    std::atomic<long long> launches{0};
};

inline std::map<std::string, Entry>& entries() {
    static auto* all = new std::map<std::string, Entry>;
    return *all;
}

struct Registered {
    template <typename... A> Registered(const char* name, void (*kernel)(A...), std::initializer_list<long long> bounds) {
        Entry& e = entries()[name];
        e.kernel = describe(name, kernel);
        e.most_threads = (unsigned)*bounds.begin();
    }
};

// ---- devices ----

// Each has a range of addresses of its own, so that an address tells what it is: memory of this device, of another, or the host's.
// Behind each allocation lie bytes of a pattern that nobody may write.
struct Device {
    int ordinal;
    size_t total;                       // bytes that can be allocated
    char* base;                         // of the range, which is larger than `total`: holes between allocations are no concern here
    size_t range;
    std::mutex lock;
    std::map<uintptr_t, size_t> live;   // allocations: start, bytes
    std::map<uintptr_t, size_t> holes;  // free parts of the range
    size_t used, most_used, reserved, most_reserved;
    unsigned long long threshold;       // memory that the pool keeps when it is freed
    std::atomic<int> retained{0};

    // 0 if there is no room.
    uintptr_t allocate(size_t bytes);
    // Ends an allocation, whose addresses are still in use.
    void forget(uintptr_t address);
    // Makes the addresses of an allocation that was forgotten free.
    void release(uintptr_t address, size_t bytes);
    // The allocation in which `address` lies; {0, 0} if none.
    std::pair<uintptr_t, size_t> find(uintptr_t address);
    bool has(const void* p) const {
        return (const char*)p >= base && (const char*)p < base + range;
    }
};

std::vector<Device*>& devices();
// In whose range an address lies; null for the host's.
Device* device_of(const void* p);
// That of the calling thread's current context; null if there is none.
Device* current_device();
// That of a stream handle.
Device* device_of_stream(const void* stream);
// Whether `bytes` bytes from `p` are allocated on `device`. If not, says so, naming `what`.
bool check_range(Device* device, const void* p, size_t bytes, const char* what);

// A line on the error output.
void complain(const char* format, ...) __attribute__((format(printf, 1, 2)));

// ---- what RUNNER_EMULATED_REPORT tells at the end ----

enum Count {
    STREAM_SYNCHRONIZE, EVENT_SYNCHRONIZE, CONTEXT_SYNCHRONIZE, COPY_SYNCHRONOUS, COPY_TO_PAGEABLE, COPY_FROM_PAGEABLE, COPY_PINNED,
    COPY_ON_DEVICE, ALLOCATIONS, MATMULS, COLLECTIVES, CONNECTIONS, COUNTS
};
extern std::atomic<long long> counts[COUNTS];

inline void count(Count c) {
    counts[c]++;
}

inline const char* setting(const char* name, const char* otherwise) {
    const char* text = getenv(name);
    return text && *text ? text : otherwise;
}

// ---- numbers ----

inline float from_bf16(unsigned short bits) {
    return bits_to_float((unsigned)bits << 16);
}

inline unsigned short to_bf16_bits(float x) {
    unsigned u;
    memcpy(&u, &x, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
        return (unsigned short)((u >> 16) | 0x40u);
    }
    return (unsigned short)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

} // namespace emulated

// Devices and their memory.
#include "device.h"

namespace emulated {

namespace {

const size_t GRAIN = 256;  // addresses are multiples of it, as those of CUDA are
const size_t GUARD = 256;  // bytes behind an allocation that nobody may write
const unsigned char GUARD_BYTE = 0xff;

size_t round_up(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

// The rest of the last grain, and the guard.
size_t extent(size_t bytes) {
    return round_up(bytes, GRAIN) + GUARD;
}

bool poison() {
    static const bool on = strcmp(setting("RUNNER_EMULATED_POISON", "1"), "0") != 0;
    return on;
}

std::vector<Device*>* make_devices() {
    auto* all = new std::vector<Device*>;
    const int n = std::max(0, atoi(setting("RUNNER_EMULATED_DEVICES", "1")));
    for (int i = 0; i < n; i++) {
        Device* d = new Device();
        d->ordinal = i;
        d->total = (size_t)strtoull(setting("RUNNER_EMULATED_MEMORY", "2147483648"), nullptr, 10);
        d->range = round_up(d->total * 4 + (64 << 20), 1 << 21);
        d->base = reserve(d->range);
        d->holes[(uintptr_t)d->base] = d->range;
        all->push_back(d);
    }
    return all;
}

} // namespace

std::vector<Device*>& devices() {
    static std::vector<Device*>* all = make_devices();
    return *all;
}

uintptr_t Device::allocate(size_t bytes) {
    std::lock_guard<std::mutex> guard(lock);
    const size_t rounded = round_up(bytes, GRAIN), whole = extent(bytes);
    if (rounded > total || used > total - rounded) {
        return 0;
    }
    auto hole = holes.begin();
    while (hole != holes.end() && hole->second < whole) {
        ++hole;
    }
    if (hole == holes.end()) {
        return 0;
    }
    const uintptr_t address = hole->first;
    const size_t left = hole->second - whole;
    holes.erase(hole);
    if (left != 0) {
        holes[address + whole] = left;
    }
    live[address] = bytes;
    used += rounded;
    most_used = std::max(most_used, used);
    reserved = std::max(reserved, used);
    most_reserved = std::max(most_reserved, reserved);
    // Set, so that a read of what was never written shows as NaN.
    memset((char*)address, POISON, poison() ? bytes : 0);
    memset((char*)address + bytes, GUARD_BYTE, whole - bytes);
    return address;
}

void Device::forget(uintptr_t address) {
    std::lock_guard<std::mutex> guard(lock);
    const auto it = live.find(address);
    used -= round_up(it->second, GRAIN);
    live.erase(it);
    if (reserved > threshold) {
        reserved = std::max<size_t>(used, threshold);
    }
}

void Device::release(uintptr_t address, size_t bytes) {
    std::lock_guard<std::mutex> guard(lock);
    size_t whole = extent(bytes);
    for (size_t i = bytes; i < whole; i++) {
        if (((unsigned char*)address)[i] != GUARD_BYTE) {
            complain("byte %zu behind the end of an allocation of %zu bytes was written", i - bytes, bytes);
            break;
        }
    }
    auto next = holes.lower_bound(address);
    if (next != holes.end() && next->first == address + whole) {
        whole += next->second;
        next = holes.erase(next);
    }
    if (next != holes.begin()) {
        auto before = std::prev(next);
        if (before->first + before->second == address) {
            before->second += whole;
            return;
        }
    }
    holes[address] = whole;
}

std::pair<uintptr_t, size_t> Device::find(uintptr_t address) {
    std::lock_guard<std::mutex> guard(lock);
    auto it = live.upper_bound(address);
    if (it == live.begin()) {
        return {0, 0};
    }
    --it;
    return address < it->first + it->second ? std::pair<uintptr_t, size_t>(*it) : std::pair<uintptr_t, size_t>(0, 0);
}

Device* device_of(const void* p) {
    for (Device* d : devices()) {
        if (d->has(p)) {
            return d;
        }
    }
    return nullptr;
}

bool check_range(Device* device, const void* p, size_t bytes, const char* what) {
    Device* owner = device_of(p);
    if (owner == nullptr) {
        complain("%s: %p is no device memory", what, p);
    } else if (owner != device) {
        complain("%s: %p is memory of device %d, not of device %d", what, p, owner->ordinal, device ? device->ordinal : -1);
    } else {
        const auto found = owner->find((uintptr_t)p);
        if (found.first == 0) {
            complain("%s: %p is not allocated", what, p);
        } else if (bytes > found.first + found.second - (uintptr_t)p) {
            complain("%s: %zu bytes from byte %zu on, in an allocation of %zu", what, bytes, (size_t)((uintptr_t)p - found.first),
                     found.second);
        } else {
            return true;
        }
    }
    return false;
}

void complain(const char* format, ...) {
    char text[600];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "emulated: %s\n", text);
}

// ---- the report ----

std::atomic<long long> counts[COUNTS];

namespace {

// Lines of a name and a number, for tests to read.
struct Report {
    ~Report() {
        const char* where = setting("RUNNER_EMULATED_REPORT", "");
        if (!*where) {
            return;
        }
        FILE* out = strcmp(where, "1") == 0 ? stderr : fopen(where, "w");
        if (out == nullptr) {
            return;
        }
        static const char* const names[COUNTS] = {"synchronize.stream", "synchronize.event", "synchronize.context", "synchronize.copy",
                                                  "synchronize.copy_to_pageable", "copy.from_pageable", "copy.pinned", "copy.on_device",
                                                  "allocations", "matmuls", "collectives", "connections"};
        for (int i = 0; i < COUNTS; i++) {
            fprintf(out, "emulated: %s %lld\n", names[i], counts[i].load());
        }
        for (auto& e : entries()) {
            if (e.second.launches != 0) {
                fprintf(out, "emulated: launch.%s %lld\n", e.first.c_str(), e.second.launches.load());
            }
        }
        for (Device* d : devices()) {
            fprintf(out, "emulated: device.%d.allocated %zu\nemulated: device.%d.most_allocated %zu\n", d->ordinal, d->used, d->ordinal,
                    d->most_used);
        }
        if (out != stderr) {
            fclose(out);
        }
    }
} at_exit;

} // namespace
} // namespace emulated

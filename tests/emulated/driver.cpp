// The driver API: what a program that is linked against libcuda.so.1 calls. What is wrong on hardware is an error here too.
//
// Types and numbers are those of CUDA 13's cuda.h, written out so that no toolkit is needed.
#include <chrono>

#include "streams.h"

using namespace emulated;

namespace {

typedef int Result;
enum {
    SUCCESS = 0,
    ERROR_INVALID_VALUE = 1,
    ERROR_OUT_OF_MEMORY = 2,
    ERROR_NOT_INITIALIZED = 3,
    ERROR_INVALID_DEVICE = 101,
    ERROR_INVALID_CONTEXT = 201,
    ERROR_INVALID_HANDLE = 400,
    ERROR_NOT_FOUND = 500,
    ERROR_NOT_READY = 600,
    ERROR_NOT_SUPPORTED = 801,
};

struct ErrorName {
    int code;
    const char* name;
    const char* text;
};
const ErrorName ERRORS[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    {ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {MISALIGNED, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
};

struct Event : Handle {
    bool timed;
    bool over;                              // the program knows that it is
    std::shared_ptr<Completion> completion; // null if it was never recorded
};

std::atomic<bool> initialized{false};

Handle* as(void* handle, unsigned kind) {
    Handle* h = (Handle*)handle;
    return h != nullptr && (uintptr_t)h > 4096 && h->kind == kind ? h : nullptr;
}

// One context and one pool per device.
Handle* of_device(unsigned kind, int ordinal) {
    static std::vector<Handle>* contexts = [] {
        auto* all = new std::vector<Handle>;
        for (Device* d : devices()) {
            all->push_back({CONTEXT, d});
        }
        return all;
    }();
    static std::vector<Handle>* pools = [] {
        auto* all = new std::vector<Handle>;
        for (Device* d : devices()) {
            all->push_back({POOL, d});
        }
        return all;
    }();
    return &(*(kind == CONTEXT ? contexts : pools))[(size_t)ordinal];
}

bool is_device(int d) {
    return d >= 0 && d < (int)devices().size();
}

// Pinned memory of the host: copies from and to it do not wait.
struct Pinned {
    std::mutex lock;
    std::map<uintptr_t, size_t> live;

    bool has(const void* p) {
        std::lock_guard<std::mutex> guard(lock);
        auto it = live.upper_bound((uintptr_t)p);
        return it != live.begin() && (uintptr_t)p < std::prev(it)->first + std::prev(it)->second;
    }
};
Pinned& pinned() {
    static Pinned* all = new Pinned;
    return *all;
}

// What all calls on a stream have in common.
Result on_stream(void* handle, Stream*& stream) {
    Device* device = current_device();
    if (device == nullptr) {
        return initialized ? ERROR_INVALID_CONTEXT : ERROR_NOT_INITIALIZED;
    }
    stream = stream_of(handle);
    if (stream == nullptr) {
        return ERROR_INVALID_HANDLE;
    }
    if (stream->device != device) {
        complain("a stream of device %d was used while device %d was current", stream->device->ordinal, device->ordinal);
        return ERROR_INVALID_CONTEXT;
    }
    return SUCCESS;
}

// The host waits for all work of the current device, as some calls do besides what they are for.
Result wait_for_device() {
    Device* d = current_device();
    return d == nullptr ? ERROR_INVALID_CONTEXT : synchronize(d);
}

Result copy_in(void* to, const void* from, size_t bytes, void* stream, bool async) {
    Stream* s;
    if (Result e = on_stream(stream, s)) {
        return e;
    }
    if (bytes == 0) {
        return SUCCESS;
    }
    if (!check_range(s->device, to, bytes, "a copy to a device")) {
        return ERROR_INVALID_VALUE;
    }
    if (from == nullptr || device_of(from)) {
        complain("a copy to a device: %p is not the host's memory", from);
        return ERROR_INVALID_VALUE;
    }
    const bool is_pinned = pinned().has(from);
    count(!async ? COPY_SYNCHRONOUS : is_pinned ? COPY_PINNED : COPY_FROM_PAGEABLE);
    use(s, to, bytes, true, "a copy to the device");
    if (asynchronous() && !is_pinned) {
        // The driver takes the bytes at once.
        const auto taken = std::make_shared<std::vector<char>>((const char*)from, (const char*)from + bytes);
        return submit(s, [=] { return memcpy(to, taken->data(), bytes), 0; });
    }
    return submit(s, [=] { return memcpy(to, from, bytes), 0; });
}

Result copy_out(void* to, const void* from, size_t bytes, void* stream, bool async) {
    Stream* s;
    if (Result e = on_stream(stream, s)) {
        return e;
    }
    if (bytes == 0) {
        return SUCCESS;
    }
    if (!check_range(s->device, from, bytes, "a copy from a device")) {
        return ERROR_INVALID_VALUE;
    }
    if (to == nullptr || device_of(to)) {
        complain("a copy from a device: %p is not the host's memory", to);
        return ERROR_INVALID_VALUE;
    }
    const bool is_pinned = pinned().has(to);
    count(!async ? COPY_SYNCHRONOUS : is_pinned ? COPY_PINNED : COPY_TO_PAGEABLE);
    use(s, from, bytes, false, "a copy from the device");
    if (Result e = submit(s, [=] { return memcpy(to, from, bytes), 0; })) {
        return e;
    }
    return async && is_pinned ? SUCCESS : synchronize(s);
}

Result copy_on(void* to, const void* from, size_t bytes, void* stream) {
    Stream* s;
    if (Result e = on_stream(stream, s)) {
        return e;
    }
    if (bytes == 0) {
        return SUCCESS;
    }
    if (!check_range(s->device, to, bytes, "a copy on a device, destination") ||
        !check_range(s->device, from, bytes, "a copy on a device, source")) {
        return ERROR_INVALID_VALUE;
    }
    if ((char*)to < (const char*)from + bytes && (const char*)from < (char*)to + bytes) {
        complain("a copy on a device: source and destination overlap");
        return ERROR_INVALID_VALUE;
    }
    count(COPY_ON_DEVICE);
    use(s, from, bytes, false, "a copy on the device");
    use(s, to, bytes, true, "a copy on the device");
    return submit(s, [=] { return memcpy(to, from, bytes), 0; });
}

template <typename T> Result fill(void* to, T value, size_t n, void* stream) {
    Stream* s;
    if (Result e = on_stream(stream, s)) {
        return e;
    }
    if (n == 0) {
        return SUCCESS;
    }
    if (!check_range(s->device, to, n * sizeof(T), "a memset") || (uintptr_t)to % sizeof(T) != 0) {
        return ERROR_INVALID_VALUE;
    }
    use(s, to, n * sizeof(T), true, "a memset");
    return submit(s, [=] { return std::fill_n((T*)to, n, value), 0; });
}

// Addresses are used again when what was freed there is over; if there are too few, the host waits for it.
Result allocate(void** address, size_t bytes, void* stream) {
    Stream* s;
    if (Result e = on_stream(stream, s)) {
        return e;
    }
    if (bytes == 0) {
        return ERROR_INVALID_VALUE;
    }
    count(ALLOCATIONS);
    *address = (void*)s->device->allocate(bytes);
    if (*address == nullptr && asynchronous()) {
        if (Result e = synchronize(s->device)) {
            return e;
        }
        *address = (void*)s->device->allocate(bytes);
    }
    return *address ? SUCCESS : ERROR_OUT_OF_MEMORY;
}

Result release(void* address, void* stream) {
    Stream* s;
    if (Result e = on_stream(stream, s)) {
        return e;
    }
    Device* d = s->device;
    const auto found = d->find((uintptr_t)address);
    const size_t bytes = found.second;
    if (bytes == 0 || found.first != (uintptr_t)address) {
        complain("%p is freed, but not allocated on device %d", address, d->ordinal);
        return ERROR_INVALID_VALUE;
    }
    use_all(s, (uintptr_t)address, bytes);
    d->forget((uintptr_t)address);
    return submit(s, [=] { return d->release((uintptr_t)address, bytes), 0; }, false);
}

int capability(int digit) {
    static const double version = atof(setting("RUNNER_EMULATED_CC", "9.0"));
    const int tens = (int)(version * 10 + 0.5);
    return digit == 0 ? tens / 10 : tens % 10;
}

// Of a block, if it is asked for: an A100 has less than Hopper.
size_t max_shared() {
    return capability(0) < 9 ? 163 * 1024 : MAX_SHARED;
}

} // namespace

namespace emulated {

Device* current_device() {
    Handle* c = as(now.context, CONTEXT);
    return c ? c->device : nullptr;
}

// 0, 1 and 2 are the current device's default streams.
Device* device_of_stream(const void* stream) {
    if ((uintptr_t)stream <= 2) {
        return current_device();
    }
    Stream* s = stream_of(stream);
    return s ? s->device : nullptr;
}

} // namespace emulated

// ---- the library, devices ----

API Result cuInit(unsigned) {
    initialized = true;
    return devices().empty() ? 100 : SUCCESS;
}
API Result cuDriverGetVersion(int* version) {
    // It runs what was compiled from the same sources, whatever the version of nvcc.
    *version = 99000;
    return SUCCESS;
}
API Result cuGetErrorName(Result error, const char** name) {
    for (const ErrorName& e : ERRORS) {
        if (e.code == error) {
            *name = e.name;
            return SUCCESS;
        }
    }
    *name = nullptr;
    return ERROR_INVALID_VALUE;
}
API Result cuGetErrorString(Result error, const char** text) {
    for (const ErrorName& e : ERRORS) {
        if (e.code == error) {
            *text = e.text;
            return SUCCESS;
        }
    }
    *text = nullptr;
    return ERROR_INVALID_VALUE;
}
API Result cuDeviceGetCount(int* n) {
    *n = (int)devices().size();
    return initialized ? SUCCESS : ERROR_NOT_INITIALIZED;
}
API Result cuDeviceGet(int* device, int ordinal) {
    *device = ordinal;
    return !initialized ? ERROR_NOT_INITIALIZED : is_device(ordinal) ? SUCCESS : ERROR_INVALID_DEVICE;
}
API Result cuDeviceGetName(char* name, int size, int device) {
    snprintf(name, (size_t)size, "Emulated GPU");
    return is_device(device) ? SUCCESS : ERROR_INVALID_DEVICE;
}
API Result cuDeviceGetUuid(unsigned char* uuid, int device) {
    memset(uuid, 0xe3, 16);
    uuid[15] = (unsigned char)device;
    return is_device(device) ? SUCCESS : ERROR_INVALID_DEVICE;
}
API Result cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
    return cuDeviceGetUuid(uuid, device);
}
API Result cuDeviceGetPCIBusId(char* id, int size, int device) {
    snprintf(id, (size_t)size, "0000:%02x:00.0", device + 1);
    return is_device(device) ? SUCCESS : ERROR_INVALID_DEVICE;
}
API Result cuDeviceTotalMem_v2(size_t* bytes, int device) {
    if (!is_device(device)) {
        return ERROR_INVALID_DEVICE;
    }
    *bytes = devices()[(size_t)device]->total;
    return SUCCESS;
}
API Result cuDeviceGetAttribute(int* value, int attribute, int device) {
    if (!is_device(device)) {
        return ERROR_INVALID_DEVICE;
    }
    switch (attribute) {
    case 1: case 2: case 3: *value = 1024; break;    // threads of a block, in x, in y
    case 4: *value = 64; break;                      // in z
    case 5: *value = 0x7fffffff; break;              // blocks in x
    case 6: case 7: *value = 65535; break;           // in y, in z
    case 8: *value = 48 * 1024; break;               // shared memory of a block
    case 9: *value = 65536; break;                   // constant memory
    case 10: *value = 32; break;                     // lanes of a warp
    case 12: case 82: *value = 65536; break;         // registers of a block, of a multiprocessor
    case 13: case 36: *value = 1000000; break;       // clocks, kHz
    case 16: *value = 132; break;                    // multiprocessors
    case 33: *value = device + 1; break;             // PCI bus
    case 37: *value = 5120; break;                   // width of the memory bus
    case 38: *value = 50 << 20; break;               // L2 cache
    case 39: *value = 2048; break;                   // threads of a multiprocessor
    case 31: case 40: case 41: case 78: case 95: case 115: *value = 1; break; // concurrent kernels, copy engines, unified addresses,
                                                                              // priorities, cooperative launches, pools
    case 75: *value = capability(0); break;
    case 76: *value = capability(1); break;
    case 81: *value = 228 * 1024; break;             // shared memory of a multiprocessor
    case 97: *value = (int)max_shared(); break;
    case 106: *value = 32; break;                    // blocks of a multiprocessor
    case 111: *value = 1024; break;                  // shared memory that the driver takes of each block
    default: *value = 0;
    }
    return SUCCESS;
}
// All devices are one memory.
API Result cuMemPoolSetAccess(void*, const void*, size_t) { return SUCCESS; }
API Result cuDeviceCanAccessPeer(int* can, int device, int peer) {
    *can = device != peer;
    return is_device(device) && is_device(peer) ? SUCCESS : ERROR_INVALID_DEVICE;
}
API Result cuCtxEnablePeerAccess(void* context, unsigned) {
    return as(context, CONTEXT) ? SUCCESS : ERROR_INVALID_CONTEXT;
}

// ---- contexts ----

API Result cuDevicePrimaryCtxRetain(void** context, int device) {
    if (!initialized) {
        return ERROR_NOT_INITIALIZED;
    }
    if (!is_device(device)) {
        return ERROR_INVALID_DEVICE;
    }
    devices()[(size_t)device]->retained++;
    *context = of_device(CONTEXT, device);
    return SUCCESS;
}
API Result cuDevicePrimaryCtxRelease_v2(int device) {
    if (!is_device(device)) {
        return ERROR_INVALID_DEVICE;
    }
    return devices()[(size_t)device]->retained-- > 0 ? SUCCESS : ERROR_INVALID_CONTEXT;
}
API Result cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
    if (!is_device(device)) {
        return ERROR_INVALID_DEVICE;
    }
    *flags = 0;
    *active = devices()[(size_t)device]->retained > 0;
    return SUCCESS;
}
API Result cuCtxSetCurrent(void* context) {
    if (context != nullptr && !as(context, CONTEXT)) {
        return ERROR_INVALID_CONTEXT;
    }
    now.context = context;
    return SUCCESS;
}
API Result cuCtxGetCurrent(void** context) {
    *context = now.context;
    return SUCCESS;
}
API Result cuCtxGetDevice(int* device) {
    Device* d = current_device();
    if (d == nullptr) {
        return ERROR_INVALID_CONTEXT;
    }
    *device = d->ordinal;
    return SUCCESS;
}
API Result cuCtxSynchronize() {
    count(CONTEXT_SYNCHRONIZE);
    return wait_for_device();
}
API Result cuCtxSetFlags(unsigned) {
    return current_device() ? SUCCESS : ERROR_INVALID_CONTEXT;
}
API Result cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return SUCCESS;
}

// ---- memory ----

API Result cuMemGetInfo_v2(size_t* free, size_t* total) {
    Device* d = current_device();
    if (d == nullptr) {
        return ERROR_INVALID_CONTEXT;
    }
    std::lock_guard<std::mutex> guard(d->lock);
    *total = d->total;
    *free = d->total - std::min(d->total, d->reserved);
    return SUCCESS;
}
API Result cuMemAlloc_v2(void** address, size_t bytes) {
    const Result e = wait_for_device();
    return e ? e : allocate(address, bytes, nullptr);
}
API Result cuMemFree_v2(void* address) {
    const Result e = wait_for_device();
    return e || !address ? e : release(address, nullptr);
}
API Result cuMemAllocAsync(void** address, size_t bytes, void* stream) {
    return allocate(address, bytes, stream);
}
API Result cuMemAllocFromPoolAsync(void** address, size_t bytes, void* pool, void* stream) {
    return as(pool, POOL) ? allocate(address, bytes, stream) : ERROR_INVALID_VALUE;
}
API Result cuMemFreeAsync(void* address, void* stream) {
    return release(address, stream);
}
API Result cuDeviceGetDefaultMemPool(void** pool, int device) {
    if (!is_device(device)) {
        return ERROR_INVALID_DEVICE;
    }
    *pool = of_device(POOL, device);
    return SUCCESS;
}
API Result cuDeviceGetMemPool(void** pool, int device) {
    return cuDeviceGetDefaultMemPool(pool, device);
}
API Result cuDeviceSetMemPool(int device, void* pool) {
    return is_device(device) && as(pool, POOL) ? SUCCESS : ERROR_INVALID_VALUE;
}
API Result cuMemPoolGetAttribute(void* pool, int attribute, void* value) {
    Handle* p = as(pool, POOL);
    if (p == nullptr) {
        return ERROR_INVALID_VALUE;
    }
    Device* d = p->device;
    std::lock_guard<std::mutex> guard(d->lock);
    unsigned long long* out = (unsigned long long*)value;
    switch (attribute) {
    case 1: case 2: case 3: *(int*)value = 1; break; // when freed memory may be used again
    case 4: *out = d->threshold; break;
    case 5: *out = d->reserved; break;
    case 6: *out = d->most_reserved; break;
    case 7: *out = d->used; break;
    case 8: *out = d->most_used; break;
    default: return ERROR_INVALID_VALUE;
    }
    return SUCCESS;
}
API Result cuMemPoolSetAttribute(void* pool, int attribute, void* value) {
    Handle* p = as(pool, POOL);
    if (p == nullptr) {
        return ERROR_INVALID_VALUE;
    }
    Device* d = p->device;
    std::lock_guard<std::mutex> guard(d->lock);
    const unsigned long long given = attribute < 4 ? 0 : *(unsigned long long*)value;
    switch (attribute) {
    case 1: case 2: case 3: break;
    case 4: d->threshold = given; break;
    case 6: case 8: // marks can only be taken back
        if (given != 0) {
            return ERROR_INVALID_VALUE;
        }
        (attribute == 6 ? d->most_reserved : d->most_used) = attribute == 6 ? d->reserved : d->used;
        break;
    default: return ERROR_INVALID_VALUE;
    }
    return SUCCESS;
}
API Result cuMemPoolTrimTo(void* pool, size_t keep) {
    Handle* p = as(pool, POOL);
    if (p == nullptr) {
        return ERROR_INVALID_VALUE;
    }
    std::lock_guard<std::mutex> guard(p->device->lock);
    p->device->reserved = std::max(p->device->used, std::min(p->device->reserved, keep));
    return SUCCESS;
}
API Result cuMemHostAlloc(void** p, size_t bytes, unsigned) {
    if (Result e = wait_for_device()) {
        return e;
    }
    *p = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (*p == nullptr || bytes == 0) {
        return bytes == 0 ? ERROR_INVALID_VALUE : ERROR_OUT_OF_MEMORY;
    }
    std::lock_guard<std::mutex> guard(pinned().lock);
    pinned().live[(uintptr_t)*p] = bytes;
    return SUCCESS;
}
API Result cuMemAllocHost_v2(void** p, size_t bytes) {
    return cuMemHostAlloc(p, bytes, 0);
}
API Result cuMemFreeHost(void* p) {
    wait_for_device();
    {
        std::lock_guard<std::mutex> guard(pinned().lock);
        if (pinned().live.erase((uintptr_t)p) == 0) {
            return ERROR_INVALID_VALUE;
        }
    }
    free(p);
    return SUCCESS;
}

API Result cuMemcpyHtoD_v2(void* to, const void* from, size_t bytes) {
    return copy_in(to, from, bytes, nullptr, false);
}
API Result cuMemcpyHtoDAsync_v2(void* to, const void* from, size_t bytes, void* stream) {
    return copy_in(to, from, bytes, stream, true);
}
API Result cuMemcpyDtoH_v2(void* to, const void* from, size_t bytes) {
    return copy_out(to, from, bytes, nullptr, false);
}
API Result cuMemcpyDtoHAsync_v2(void* to, const void* from, size_t bytes, void* stream) {
    return copy_out(to, from, bytes, stream, true);
}
API Result cuMemcpyDtoD_v2(void* to, const void* from, size_t bytes) {
    return copy_on(to, from, bytes, nullptr);
}
API Result cuMemcpyDtoDAsync_v2(void* to, const void* from, size_t bytes, void* stream) {
    return copy_on(to, from, bytes, stream);
}
API Result cuMemcpyPeerAsync(void* to, void* to_context, const void* from, void* from_context, size_t bytes, void* stream) {
    Handle *a = as(to_context, CONTEXT), *b = as(from_context, CONTEXT);
    Stream* s;
    if (Result e = on_stream(stream, s)) {
        return e;
    }
    if (!a || !b || !check_range(a->device, to, bytes, "a copy between devices, destination") ||
        !check_range(b->device, from, bytes, "a copy between devices, source")) {
        return ERROR_INVALID_VALUE;
    }
    count(COPY_ON_DEVICE);
    return submit(s, [=] { return memmove(to, from, bytes), 0; });
}
API Result cuMemsetD8Async(void* to, unsigned char value, size_t n, void* stream) {
    return fill(to, value, n, stream);
}
API Result cuMemsetD8_v2(void* to, unsigned char value, size_t n) {
    return fill(to, value, n, nullptr);
}
API Result cuMemsetD16Async(void* to, unsigned short value, size_t n, void* stream) {
    return fill(to, value, n, stream);
}
API Result cuMemsetD32Async(void* to, unsigned value, size_t n, void* stream) {
    return fill(to, value, n, stream);
}
API Result cuMemsetD32_v2(void* to, unsigned value, size_t n) {
    return fill(to, value, n, nullptr);
}

// ---- streams and events ----

API Result cuStreamCreate(void** stream, unsigned flags) {
    Device* d = current_device();
    if (d == nullptr) {
        return ERROR_INVALID_CONTEXT;
    }
    *stream = make_stream(d, (flags & 1) == 0);
    return SUCCESS;
}
API Result cuStreamCreateWithPriority(void** stream, unsigned flags, int) {
    return cuStreamCreate(stream, flags);
}
API Result cuStreamDestroy_v2(void* stream) {
    if ((uintptr_t)stream <= 2 || !stream_of(stream)) {
        return ERROR_INVALID_HANDLE;
    }
    end_stream(stream_of(stream));
    return SUCCESS;
}
API Result cuStreamSynchronize(void* stream) {
    count(STREAM_SYNCHRONIZE);
    Stream* s = stream_of(stream);
    return s ? synchronize(s) : ERROR_INVALID_HANDLE;
}
API Result cuStreamQuery(void* stream) {
    Stream* s = stream_of(stream);
    return !s ? ERROR_INVALID_HANDLE : failure_of(s->device) ? failure_of(s->device) : query(s) ? SUCCESS : ERROR_NOT_READY;
}
API Result cuStreamWaitEvent(void* stream, void* event, unsigned) {
    Stream* s = stream_of(stream);
    Event* e = (Event*)as(event, EVENT);
    if (s == nullptr || e == nullptr) {
        return ERROR_INVALID_HANDLE;
    }
    wait_for(s, e->completion);
    return SUCCESS;
}
API Result cuStreamIsCapturing(void* stream, int* status) {
    *status = 0;
    return stream_of(stream) ? SUCCESS : ERROR_INVALID_HANDLE;
}
API Result cuStreamBeginCapture_v2(void*, int) {
    return ERROR_NOT_SUPPORTED;
}
API Result cuStreamEndCapture(void*, void**) {
    return ERROR_NOT_SUPPORTED;
}
API Result cuLaunchHostFunc(void* stream, void (*call)(void*), void* data) {
    Stream* s = stream_of(stream);
    return s ? submit(s, [=] { return call(data), 0; }) : ERROR_INVALID_HANDLE;
}
API Result cuEventCreate(void** event, unsigned flags) {
    Device* d = current_device();
    if (d == nullptr) {
        return ERROR_INVALID_CONTEXT;
    }
    Event* e = new Event;
    e->kind = EVENT;
    e->device = d;
    e->timed = (flags & 2) == 0;
    e->over = false;
    *event = (Handle*)e;
    return SUCCESS;
}
API Result cuEventDestroy_v2(void* event) {
    Handle* e = as(event, EVENT);
    if (e == nullptr) {
        return ERROR_INVALID_HANDLE;
    }
    e->kind = 0;
    delete (Event*)e;
    return SUCCESS;
}
API Result cuEventRecord(void* event, void* stream) {
    Event* e = (Event*)as(event, EVENT);
    Stream* s = stream_of(stream);
    if (e == nullptr || s == nullptr || s->device != e->device) {
        return ERROR_INVALID_HANDLE;
    }
    e->over = false;
    e->completion = record(s);
    return SUCCESS;
}
API Result cuEventQuery(void* event) {
    Event* e = (Event*)as(event, EVENT);
    if (e == nullptr) {
        return ERROR_INVALID_HANDLE;
    }
    if (e->completion && !query(e->device, *e->completion)) {
        return ERROR_NOT_READY;
    }
    e->over = true;
    return failure_of(e->device);
}
// Who has asked before, and heard that it is over, does not wait here.
API Result cuEventSynchronize(void* event) {
    Event* e = (Event*)as(event, EVENT);
    if (e == nullptr) {
        return ERROR_INVALID_HANDLE;
    }
    if (e->completion && !e->over) {
        count(EVENT_SYNCHRONIZE);
    }
    e->over = true;
    return e->completion ? synchronize(e->device, *e->completion) : SUCCESS;
}
API Result cuEventElapsedTime_v2(float* ms, void* from, void* to) {
    Event *a = (Event*)as(from, EVENT), *b = (Event*)as(to, EVENT);
    if (!a || !b || !a->timed || !b->timed || !a->completion || !b->completion || a->device != b->device) {
        return ERROR_INVALID_HANDLE;
    }
    if (!query(a->device, *a->completion) || !query(b->device, *b->completion)) {
        return ERROR_NOT_READY;
    }
    *ms = std::chrono::duration<float, std::milli>(b->completion->at - a->completion->at).count();
    return SUCCESS;
}
API Result cuEventElapsedTime(float* ms, void* from, void* to) {
    return cuEventElapsedTime_v2(ms, from, to);
}

// ---- modules and kernels ----

// All kernels were compiled in: an image is not looked at, and every module has all of them.
API Result cuModuleLoadData(void** module, const void* image) {
    Device* d = current_device();
    if (d == nullptr) {
        return ERROR_INVALID_CONTEXT;
    }
    if (image == nullptr) {
        return ERROR_INVALID_VALUE;
    }
    if (Result e = wait_for_device()) {
        return e;
    }
    *module = new Handle{MODULE, d};
    return SUCCESS;
}
API Result cuModuleLoadDataEx(void** module, const void* image, unsigned, int*, void**) {
    return cuModuleLoadData(module, image);
}
API Result cuModuleLoad(void** module, const char* path) {
    return cuModuleLoadData(module, path);
}
API Result cuModuleUnload(void* module) {
    Handle* m = as(module, MODULE);
    if (m == nullptr) {
        return ERROR_INVALID_HANDLE;
    }
    m->kind = 0;
    delete m;
    return SUCCESS;
}
API Result cuModuleGetFunction(void** function, void* module, const char* name) {
    if (!as(module, MODULE)) {
        return ERROR_INVALID_HANDLE;
    }
    auto it = entries().find(name);
    if (it == entries().end()) {
        complain("there is no kernel %s", name);
        return ERROR_NOT_FOUND;
    }
    *function = &it->second;
    return SUCCESS;
}
API Result cuModuleGetGlobal_v2(void**, size_t*, void*, const char*) {
    return ERROR_NOT_FOUND;
}
API Result cuFuncGetName(const char** name, void* function) {
    *name = ((Entry*)function)->kernel.name;
    return SUCCESS;
}
API Result cuFuncGetAttribute(int* value, int attribute, void* function) {
    const Entry* e = (const Entry*)function;
    switch (attribute) {
    case 0: *value = (int)e->most_threads; break;
    case 4: *value = 32; break;                                   // registers
    case 5: case 6: *value = capability(0) * 10 + capability(1); break;
    case 8: *value = (int)e->dynamic_shared; break;
    default: *value = 0;
    }
    return SUCCESS;
}
API Result cuFuncSetAttribute(void* function, int attribute, int value) {
    Entry* e = (Entry*)function;
    if (attribute == 8) {
        if (value < 0 || (size_t)value > max_shared()) {
            complain("kernel %s cannot have %d bytes of dynamic shared memory", e->kernel.name, value);
            return ERROR_INVALID_VALUE;
        }
        e->dynamic_shared = (unsigned)value;
    }
    return SUCCESS;
}
API Result cuFuncSetCacheConfig(void*, int) {
    return SUCCESS;
}
API Result cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, void*, int threads, size_t shared, unsigned) {
    if (threads < 1 || threads > (int)MAX_THREADS || shared > max_shared()) {
        *blocks = 0;
        return ERROR_INVALID_VALUE;
    }
    *blocks = std::min({32, 2048 / threads, (int)(228 * 1024 / (shared + 1024))});
    return SUCCESS;
}
API Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* function, int threads, size_t shared) {
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, 0);
}

API Result cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                          void* stream, void** params, void** extra) {
    Stream* s;
    if (Result e = on_stream(stream, s)) {
        return e;
    }
    Entry& entry = *(Entry*)function;
    const Kernel& k = entry.kernel;
    if (extra != nullptr || (params == nullptr && k.parameters != 0)) {
        return ERROR_INVALID_VALUE;
    }
    if (shared > entry.dynamic_shared) {
        complain("kernel %s: %u bytes of dynamic shared memory, of which only %u were asked for", k.name, shared, entry.dynamic_shared.load());
        return ERROR_INVALID_VALUE;
    }
    if ((unsigned long long)bx * by * bz > entry.most_threads) {
        complain("kernel %s: %llu threads, and its launch bounds are %u", k.name, (unsigned long long)bx * by * bz, entry.most_threads);
        return ERROR_INVALID_VALUE;
    }
    const bool waits_for_host = strcmp(k.name, "hold") == 0;
    if (waits_for_host && !asynchronous()) {
        complain("kernel hold waits for the host, which waits for it: set RUNNER_EMULATED_STREAMS=1");
        return ERROR_NOT_SUPPORTED;
    }
    for (unsigned i = 0; i < k.parameters; i++) {
        if (k.addresses >> i & 1) {
            // Null is an absent argument. How far a kernel reaches from an address is not known here.
            void* address = *(void**)params[i];
            char what[200];
            snprintf(what, sizeof what, "kernel %s, parameter %u", k.name, i);
            if (address == nullptr || (waits_for_host && pinned().has(address))) {
                continue;
            }
            if (!check_range(s->device, address, 1, what)) {
                return ERROR_INVALID_VALUE;
            }
            use(s, address, 1, !(k.constants >> i & 1), what);
        }
    }
    // Kernels are loaded at their first launch, unless the driver has loaded all.
    if (entry.launches++ == 0 && asynchronous() && strcmp(setting("CUDA_MODULE_LOADING", "LAZY"), "EAGER") != 0) {
        if (Result e = wait_for_device()) {
            return e;
        }
    }
    if (!asynchronous()) {
        return emulated::launch(k, {gx, gy, gz}, {bx, by, bz}, shared, params);
    }
    // A launch takes its arguments with it, each at a multiple of 8 bytes.
    const auto values = std::make_shared<std::vector<unsigned long long>>();
    std::vector<size_t> places;
    for (unsigned i = 0; i < k.parameters; i++) {
        places.push_back(values->size());
        values->resize(values->size() + (k.sizes[i] + 7) / 8);
        memcpy(&(*values)[places[i]], params[i], k.sizes[i]);
    }
    return submit(s, [=, &k] {
        std::vector<void*> addresses;
        for (size_t place : places) {
            addresses.push_back(&(*values)[place]);
        }
        addresses.push_back(nullptr);
        return emulated::launch(k, {gx, gy, gz}, {bx, by, bz}, shared, addresses.data());
    });
}

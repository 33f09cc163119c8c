// Streams, events, and what is known to be over when an operation begins.
//
// By default work is done when it is submitted, on the submitting thread. With RUNNER_EMULATED_STREAMS each stream has a queue and a
// thread, as on hardware: the host runs ahead, a transfer waits for its peers while other streams go on, and a missing event shows.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>

#include "device.h"

namespace emulated {

// A handle knows its kind, so that a wrong one is found.
enum HandleKind : unsigned { CONTEXT = 0xc0de0001, STREAM, EVENT, MODULE, POOL };

struct Handle {
    unsigned kind;
    Device* device;
};

// Whether streams have threads.
bool asynchronous();

// By stream: how many of its operations are over.
typedef std::vector<unsigned long long> Clock;

struct Queue;

struct Stream : Handle {
    bool waits_for_default; // as streams do that were not made with CU_STREAM_NON_BLOCKING
    size_t index;           // in clocks of its device
    Clock clock;            // what is over when its next operation begins
    std::shared_ptr<Queue> queue;
};

Stream* make_stream(Device* device, bool waits_for_default);
void end_stream(Stream* stream);
// 0, 1 and 2 are the current device's default stream. Null if it is no stream.
Stream* stream_of(const void* handle);

// What a stream has reached.
struct Completion {
    std::mutex lock;
    std::condition_variable changed;
    bool reached = false;
    std::chrono::steady_clock::time_point at;
    Clock clock;
};

// Does `work` in the stream's order. The result is an error of the driver: that of the work, if it is done at once, or one of work
// before, which every later call on the device gets, too. A launch waits until the process has few enough under way.
int submit(Stream* stream, std::function<int()> work, bool is_launch = true);
std::shared_ptr<Completion> record(Stream* stream);
void wait_for(Stream* stream, const std::shared_ptr<Completion>& completion);
// The host waits.
int synchronize(Stream* stream);
int synchronize(Device* device);
int synchronize(Device* device, Completion& completion);
// Whether it is reached.
bool query(Device* device, Completion& completion);
bool query(Stream* stream);
// The first error of the device's work.
int failure_of(Device* device);

// An operation of `stream`, which was just submitted or is next, uses `bytes` bytes from `p`. If an operation that may run at the same
// time uses some of them, and one of the two writes, says so, and the device has failed.
void use(Stream* stream, const void* p, size_t bytes, bool writes, const char* what);
// The allocation at `p` is freed by the next operation of `stream`.
void use_all(Stream* stream, uintptr_t p, size_t bytes);

} // namespace emulated

#include "streams.h"

#include <random>

namespace emulated {

struct Task {
    std::function<int()> work;
    bool is_launch;
};

// Shared by a stream and its thread.
struct Queue {
    std::mutex lock;
    std::condition_variable changed;
    std::deque<Task> tasks; // the first is under way
    bool ended = false;
};

namespace {

// Operations of one stream on the same bytes: the last one is what others must wait for.
struct Use {
    uintptr_t begin, end;
    size_t stream;
    unsigned long long number;
    bool writes;
    std::string what;
};

// The order of a device's operations, as far as streams, events and waits of the host give one.
struct Order {
    std::mutex lock;
    Clock over;                                   // what the host knows
    std::vector<unsigned long long> submitted;    // by stream
    std::vector<size_t> unused;                   // streams that were ended
    std::vector<Stream*> streams;
    std::map<uintptr_t, std::vector<Use>> uses;   // by allocation
    std::atomic<int> failure{0};
    Stream* standard = nullptr;                   // the default stream
};

Order& order_of(Device* device) {
    static auto* all = new std::vector<Order>(devices().size());
    return (*all)[(size_t)device->ordinal];
}

void merge(Clock& into, const Clock& from) {
    if (into.size() < from.size()) {
        into.resize(from.size());
    }
    for (size_t i = 0; i < from.size(); i++) {
        into[i] = std::max(into[i], from[i]);
    }
}

int seed() {
    static const int n = atoi(setting("RUNNER_EMULATED_STREAMS", "0"));
    return n;
}

// What is under way in this process. The launches of a process share its channels to the devices; where they are full, a launch waits.
struct Launches {
    std::mutex lock;
    std::condition_variable changed;
    int room = std::max(1, atoi(setting("RUNNER_EMULATED_LAUNCHES", "1024")));

    static Launches& all() {
        static auto* launches = new Launches;
        return *launches;
    }
    void take() {
        std::unique_lock<std::mutex> guard(lock);
        changed.wait(guard, [&] { return room > 0; });
        room--;
    }
    void give() {
        std::lock_guard<std::mutex> guard(lock);
        room++;
        changed.notify_one();
    }
};

// The work of a stream, with pauses, so that not every run has the same order.
void work_through(std::shared_ptr<Queue> queue, Order& order, unsigned number) {
    ensure_signal_stack();
    std::minstd_rand random((unsigned)seed() * 1000 + number);
    std::unique_lock<std::mutex> guard(queue->lock);
    for (;;) {
        queue->changed.wait(guard, [&] { return queue->ended || !queue->tasks.empty(); });
        if (queue->tasks.empty()) {
            return;
        }
        Task& task = queue->tasks.front();
        guard.unlock();
        if (random() % 16 == 0) {
            std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
        }
        if (const int error = task.work()) {
            int none = 0;
            order.failure.compare_exchange_strong(none, error);
        }
        if (task.is_launch) {
            Launches::all().give();
        }
        guard.lock();
        queue->tasks.pop_front();
        queue->changed.notify_all();
    }
}

void drain(const std::shared_ptr<Queue>& queue) {
    std::unique_lock<std::mutex> guard(queue->lock);
    queue->changed.wait(guard, [&] { return queue->tasks.empty(); });
}

void enqueue(Stream* stream, std::function<int()> work, bool is_launch) {
    if (is_launch) {
        Launches::all().take();
    }
    std::lock_guard<std::mutex> guard(stream->queue->lock);
    stream->queue->tasks.push_back({std::move(work), is_launch});
    stream->queue->changed.notify_all();
}

} // namespace

bool asynchronous() {
    return seed() > 0;
}

int failure_of(Device* device) {
    return order_of(device).failure;
}

Stream* make_stream(Device* device, bool waits_for_default) {
    Order& order = order_of(device);
    Stream* s = new Stream;
    s->kind = STREAM;
    s->device = device;
    s->waits_for_default = waits_for_default;
    s->queue = std::make_shared<Queue>();
    {
        std::lock_guard<std::mutex> guard(order.lock);
        if (order.unused.empty()) {
            s->index = order.submitted.size();
            order.submitted.push_back(0);
        } else {
            s->index = order.unused.back();
            order.unused.pop_back();
        }
        order.streams.push_back(s);
    }
    if (asynchronous()) {
        const unsigned number = (unsigned)(s->index * 8 + (size_t)device->ordinal);
        std::thread(work_through, s->queue, std::ref(order), number).detach();
    }
    return s;
}

// What was submitted is still done.
void end_stream(Stream* s) {
    Order& order = order_of(s->device);
    {
        std::lock_guard<std::mutex> guard(order.lock);
        order.streams.erase(std::find(order.streams.begin(), order.streams.end(), s));
        order.unused.push_back(s->index);
    }
    {
        std::lock_guard<std::mutex> guard(s->queue->lock);
        s->queue->ended = true;
        s->queue->changed.notify_all();
    }
    s->kind = 0;
    delete s;
}

Stream* stream_of(const void* handle) {
    if ((uintptr_t)handle > 2) {
        Stream* s = (Stream*)handle;
        return (uintptr_t)handle > 4096 && s->kind == STREAM ? s : nullptr;
    }
    Device* device = current_device();
    if (device == nullptr) {
        return nullptr;
    }
    Order& order = order_of(device);
    {
        std::lock_guard<std::mutex> guard(order.lock);
        if (order.standard != nullptr) {
            return order.standard;
        }
    }
    Stream* made = make_stream(device, false);
    std::lock_guard<std::mutex> guard(order.lock);
    order.standard = order.standard ? order.standard : made;
    return order.standard;
}

int submit(Stream* s, std::function<int()> work, bool is_launch) {
    if (!asynchronous()) {
        return work();
    }
    Order& order = order_of(s->device);
    if (s == order.standard) {
        // It waits for the others, which wait for it. Here the host does, which waits longer than hardware's.
        std::vector<Stream*> others;
        {
            std::lock_guard<std::mutex> guard(order.lock);
            others = order.streams;
        }
        for (Stream* other : others) {
            if (other->waits_for_default) {
                synchronize(other);
            }
        }
    }
    if (order.failure != 0) {
        return order.failure;
    }
    {
        std::lock_guard<std::mutex> guard(order.lock);
        merge(s->clock, order.over);
        if (s->clock.size() <= s->index) {
            s->clock.resize(s->index + 1);
        }
        s->clock[s->index] = ++order.submitted[s->index];
    }
    enqueue(s, std::move(work), is_launch);
    return s == order.standard ? synchronize(s) : 0;
}

std::shared_ptr<Completion> record(Stream* s) {
    auto completion = std::make_shared<Completion>();
    if (!asynchronous()) {
        completion->reached = true;
        completion->at = std::chrono::steady_clock::now();
        return completion;
    }
    {
        Order& order = order_of(s->device);
        std::lock_guard<std::mutex> guard(order.lock);
        completion->clock = s->clock;
    }
    enqueue(s, [completion] {
        std::lock_guard<std::mutex> guard(completion->lock);
        completion->reached = true;
        completion->at = std::chrono::steady_clock::now();
        completion->changed.notify_all();
        return 0;
    }, false);
    return completion;
}

void wait_for(Stream* s, const std::shared_ptr<Completion>& completion) {
    if (!asynchronous() || completion == nullptr) {
        return;
    }
    {
        Order& order = order_of(s->device);
        std::lock_guard<std::mutex> guard(order.lock);
        merge(s->clock, completion->clock);
    }
    enqueue(s, [completion] {
        std::unique_lock<std::mutex> guard(completion->lock);
        completion->changed.wait(guard, [&] { return completion->reached; });
        return 0;
    }, false);
}

int synchronize(Stream* s) {
    if (!asynchronous()) {
        return 0;
    }
    Order& order = order_of(s->device);
    Clock clock;
    {
        std::lock_guard<std::mutex> guard(order.lock);
        clock = s->clock;
    }
    drain(s->queue);
    std::lock_guard<std::mutex> guard(order.lock);
    merge(order.over, clock);
    return order.failure;
}

int synchronize(Device* device) {
    if (!asynchronous()) {
        return 0;
    }
    Order& order = order_of(device);
    std::vector<std::shared_ptr<Queue>> queues;
    Clock clock;
    {
        std::lock_guard<std::mutex> guard(order.lock);
        for (Stream* s : order.streams) {
            queues.push_back(s->queue);
            merge(clock, s->clock);
        }
    }
    for (const auto& queue : queues) {
        drain(queue);
    }
    std::lock_guard<std::mutex> guard(order.lock);
    merge(order.over, clock);
    return order.failure;
}

int synchronize(Device* device, Completion& completion) {
    {
        std::unique_lock<std::mutex> guard(completion.lock);
        completion.changed.wait(guard, [&] { return completion.reached; });
    }
    Order& order = order_of(device);
    std::lock_guard<std::mutex> guard(order.lock);
    merge(order.over, completion.clock);
    return order.failure;
}

bool query(Device* device, Completion& completion) {
    {
        std::lock_guard<std::mutex> guard(completion.lock);
        if (!completion.reached) {
            return false;
        }
    }
    return synchronize(device, completion), true;
}

bool query(Stream* s) {
    {
        std::lock_guard<std::mutex> guard(s->queue->lock);
        if (!s->queue->tasks.empty()) {
            return false;
        }
    }
    return synchronize(s), true;
}

void use(Stream* s, const void* p, size_t bytes, bool writes, const char* what) {
    if (!asynchronous() || bytes == 0) {
        return;
    }
    const auto allocation = s->device->find((uintptr_t)p);
    Order& order = order_of(s->device);
    std::lock_guard<std::mutex> guard(order.lock);
    // As `submit` will find it.
    merge(s->clock, order.over);
    const uintptr_t begin = (uintptr_t)p, end = begin + bytes;
    const unsigned long long number = order.submitted[s->index] + 1;
    std::vector<Use>& uses = order.uses[allocation.first];
    Use* same = nullptr;
    for (Use& other : uses) {
        if (other.begin == begin && other.end == end && other.stream == s->index && other.writes == writes) {
            same = &other;
        }
        if (other.stream == s->index || other.end <= begin || end <= other.begin || !(writes || other.writes)) {
            continue;
        }
        const unsigned long long over = other.stream < s->clock.size() ? s->clock[other.stream] : 0;
        if (over < other.number) {
            complain("a race: %s %s %zu bytes from byte %zu on of an allocation of %zu, and does not wait for %s, which %s them", what,
                     writes ? "writes" : "reads", bytes, (size_t)(begin - allocation.first), allocation.second, other.what.c_str(),
                     other.writes ? "writes" : "reads");
            int none = 0;
            order.failure.compare_exchange_strong(none, LAUNCH_FAILED);
        }
    }
    if (same != nullptr) {
        same->number = number;
        same->what = what;
    } else {
        uses.push_back({begin, end, s->index, number, writes, what});
    }
}

void use_all(Stream* s, uintptr_t p, size_t bytes) {
    use(s, (const void*)p, bytes, true, "a free");
    if (asynchronous()) {
        Order& order = order_of(s->device);
        std::lock_guard<std::mutex> guard(order.lock);
        order.uses.erase(p);
    }
}

} // namespace emulated

// NCCL between threads of one process. An operation is done when it is called (in a group: when the group ends), on the calling
// thread: a send copies its data into a queue and never waits; the last rank that comes to a collective does it for all.
//
// Sums are in the order of ranks, of bf16 in f32. Who waits longer than a minute gets ncclSystemError.
#include <chrono>
#include <deque>

#include "device.h"

using namespace emulated;

namespace {

enum Status { SUCCESS = 0, CUDA_ERROR = 1, SYSTEM_ERROR = 2, INTERNAL_ERROR = 3, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6 };
enum Type { INT8 = 0, UINT8, INT32, UINT32, INT64, UINT64, F16, FLOAT32, FLOAT64, BFLOAT16 };
enum Reduction { SUM, PROD, MAX, MIN, AVG };
enum Collective { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, SEND, RECEIVE, INIT };

size_t bytes_of(int type) {
    static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return type >= 0 && type <= BFLOAT16 ? sizes[type] : 0;
}

// What all ranks of a communicator must agree upon.
struct Shape {
    int what;
    size_t elements;
    int type, reduction, root;
    bool operator==(const Shape& o) const {
        return what == o.what && elements == o.elements && type == o.type && reduction == o.reduction && root == o.root;
    }
};

// The collectives of a communicator are numbered; this is one that not all ranks have left.
struct Meeting {
    Shape shape;
    std::vector<const void*> from;
    std::vector<void*> to;
    int arrived = 0, left = 0;
    Status status = SUCCESS;
};

struct Clique {
    int ranks;
    std::mutex lock;
    std::condition_variable changed;
    std::vector<bool> present;
    int joined = 0, members = 0;
    bool aborted = false;
    std::map<unsigned long long, Meeting> meetings;
    std::map<std::pair<int, int>, std::deque<std::vector<char>>> sent; // from, to
};

struct Comm {
    std::shared_ptr<Clique> clique;
    int rank;
    Device* device;
    unsigned long long collectives = 0;
    std::atomic<int> error{SUCCESS};
};

struct Operation {
    Comm* comm;
    Shape shape;
    const void* from;
    void* to;
    unsigned long long number;
};

// Opened by a thread with ncclGroupStart.
struct Group {
    int depth = 0;
    std::vector<Operation> operations;
};

Group& group() {
    if (now.group == nullptr) {
        now.group = new Group; // one per thread that ever opens one
    }
    return *(Group*)now.group;
}

struct Id {
    char bytes[128];
};

// A unique id is a number of this process.
struct IdParts {
    char magic[16];
    long long process, number;
};

std::mutex cliques_lock;
std::map<long long, std::shared_ptr<Clique>>& cliques() {
    static auto* all = new std::map<long long, std::shared_ptr<Clique>>;
    return *all;
}

std::chrono::seconds patience() {
    static const int seconds = std::max(1, atoi(setting("RUNNER_EMULATED_NCCL_TIMEOUT", "60")));
    return std::chrono::seconds(seconds);
}

const char* name_of(int what) {
    static const char* const names[] = {"all-reduce", "reduce", "broadcast", "all-gather", "reduce-scatter", "send", "receive", "init"};
    return names[what];
}

Status fail_with(Comm* comm, Status status, const char* why) {
    complain("nccl: rank %d of %d: %s", comm->rank, comm->clique->ranks, why);
    comm->error = status;
    return status;
}

// ---- numbers ----


// R is the type that sums are made in, T that of memory.
template <typename R, typename T, typename Get, typename Put>
void reduce(char* out, const std::vector<const void*>& from, size_t first, size_t n, int how, Get get, Put put) {
    for (size_t i = 0; i < n; i++) {
        R sum = get(((const T*)from[0])[first + i]);
        for (size_t rank = 1; rank < from.size(); rank++) {
            const R x = get(((const T*)from[rank])[first + i]);
            sum = how == PROD ? sum * x : how == MAX ? std::max(sum, x) : how == MIN ? std::min(sum, x) : sum + x;
        }
        if (how == AVG) {
            sum = sum / (R)from.size();
        }
        ((T*)out)[i] = put(sum);
    }
}

template <typename T> void reduce_plain(char* out, const std::vector<const void*>& from, size_t first, size_t n, int how) {
    reduce<T, T>(out, from, first, n, how, [](T x) { return x; }, [](T x) { return x; });
}

void reduce(char* out, const std::vector<const void*>& from, size_t first, size_t n, int type, int how) {
    switch (type) {
    case INT8: return reduce_plain<signed char>(out, from, first, n, how);
    case UINT8: return reduce_plain<unsigned char>(out, from, first, n, how);
    case INT32: return reduce_plain<int>(out, from, first, n, how);
    case UINT32: return reduce_plain<unsigned>(out, from, first, n, how);
    case INT64: return reduce_plain<long long>(out, from, first, n, how);
    case UINT64: return reduce_plain<unsigned long long>(out, from, first, n, how);
    case FLOAT32: return reduce_plain<float>(out, from, first, n, how);
    case FLOAT64: return reduce_plain<double>(out, from, first, n, how);
    default: return reduce<float, unsigned short>(out, from, first, n, how, from_bf16, to_bf16_bits);
    }
}

// All ranks' part of a collective, once all have come.
void perform(Meeting& m) {
    const Shape& s = m.shape;
    const size_t ranks = m.from.size(), size = bytes_of(s.type), bytes = s.elements * size;
    switch (s.what) {
    case ALL_REDUCE:
    case REDUCE: {
        std::vector<char> sum(bytes); // an output may be an input
        reduce(sum.data(), m.from, 0, s.elements, s.type, s.reduction);
        for (size_t r = 0; r < ranks; r++) {
            if (s.what == ALL_REDUCE || (int)r == s.root) {
                memcpy(m.to[r], sum.data(), bytes);
            }
        }
        break;
    }
    case BROADCAST:
        for (size_t r = 0; r < ranks; r++) {
            memmove(m.to[r], m.from[(size_t)s.root], bytes);
        }
        break;
    case ALL_GATHER: {
        std::vector<char> all(bytes * ranks);
        for (size_t r = 0; r < ranks; r++) {
            memcpy(&all[r * bytes], m.from[r], bytes);
        }
        for (size_t r = 0; r < ranks; r++) {
            memcpy(m.to[r], all.data(), all.size());
        }
        break;
    }
    case REDUCE_SCATTER: {
        std::vector<char> all(bytes * ranks);
        reduce(all.data(), m.from, 0, s.elements * ranks, s.type, s.reduction);
        for (size_t r = 0; r < ranks; r++) {
            memcpy(m.to[r], &all[r * bytes], bytes);
        }
        break;
    }
    default: break;
    }
}

// ---- operations: `post` never waits, `finish` does ----

Status post(Operation& op) {
    Clique& c = *op.comm->clique;
    std::lock_guard<std::mutex> guard(c.lock);
    if (op.shape.what == INIT || op.shape.what == RECEIVE) {
        return SUCCESS;
    }
    if (op.shape.what == SEND) {
        const char* data = (const char*)op.from;
        c.sent[{op.comm->rank, op.shape.root}].emplace_back(data, data + op.shape.elements * bytes_of(op.shape.type));
        c.changed.notify_all();
        return SUCCESS;
    }
    op.number = op.comm->collectives++;
    Meeting& m = c.meetings[op.number];
    if (m.arrived == 0) {
        m.shape = op.shape;
        m.from.resize((size_t)c.ranks);
        m.to.resize((size_t)c.ranks);
    } else if (!(m.shape == op.shape)) {
        complain("nccl: rank %d calls %s of %zu elements of type %d (reduction %d, root %d), others %s of %zu of type %d (%d, %d)",
                 op.comm->rank, name_of(op.shape.what), op.shape.elements, op.shape.type, op.shape.reduction, op.shape.root,
                 name_of(m.shape.what), m.shape.elements, m.shape.type, m.shape.reduction, m.shape.root);
        m.status = INVALID_USAGE;
    }
    m.from[(size_t)op.comm->rank] = op.from;
    m.to[(size_t)op.comm->rank] = op.to;
    m.arrived++;
    if (m.arrived == c.ranks) {
        if (m.status == SUCCESS) {
            perform(m);
        }
        c.changed.notify_all();
    }
    return SUCCESS;
}

Status finish(Operation& op) {
    Comm* comm = op.comm;
    Clique& c = *comm->clique;
    std::unique_lock<std::mutex> guard(c.lock);
    const std::pair<int, int> lane = {op.shape.root, comm->rank};
    const auto ready = [&] {
        switch (op.shape.what) {
        case INIT: return c.joined == c.ranks;
        case SEND: return true;
        case RECEIVE: return !c.sent[lane].empty();
        default: return c.meetings[op.number].arrived == c.ranks;
        }
    };
    const bool came = c.changed.wait_for(guard, patience(), [&] { return ready() || c.aborted; });
    if (!ready()) {
        if (came) {
            return fail_with(comm, REMOTE_ERROR, "the communicator was aborted");
        }
        complain("nccl: rank %d of %d waited %lld s in %s", comm->rank, c.ranks, (long long)patience().count(), name_of(op.shape.what));
        return fail_with(comm, SYSTEM_ERROR, "not all ranks came");
    }
    if (op.shape.what == RECEIVE) {
        const std::vector<char> data = std::move(c.sent[lane].front());
        c.sent[lane].pop_front();
        if (data.size() != op.shape.elements * bytes_of(op.shape.type)) {
            complain("nccl: rank %d receives %zu bytes from rank %d, which sent %zu", comm->rank,
                     op.shape.elements * bytes_of(op.shape.type), op.shape.root, data.size());
            return fail_with(comm, INVALID_USAGE, "sizes of a send and its receive differ");
        }
        memcpy(op.to, data.data(), data.size());
    } else if (op.shape.what < SEND) {
        Meeting& m = c.meetings[op.number];
        const Status status = m.status;
        if (++m.left == c.ranks) {
            c.meetings.erase(op.number);
        }
        if (status != SUCCESS) {
            return fail_with(comm, status, "ranks disagree");
        }
    }
    return SUCCESS;
}

// Sends first, then collectives: so one thread may have several ranks in one group.
Status run(std::vector<Operation>& operations) {
    Status status = SUCCESS;
    for (const bool sends : {true, false}) {
        for (Operation& op : operations) {
            if ((op.shape.what == SEND) == sends) {
                post(op);
            }
        }
    }
    for (Operation& op : operations) {
        const Status s = finish(op);
        status = status == SUCCESS ? s : status;
    }
    return status;
}

Status submit(Operation op) {
    if (group().depth > 0) {
        group().operations.push_back(op);
        return SUCCESS;
    }
    std::vector<Operation> one = {op};
    return run(one);
}

Status call(Comm* comm, int what, const void* from, size_t from_elements, void* to, size_t to_elements, size_t elements, int type,
            int reduction, int root, void* stream) {
    if (comm == nullptr) {
        return INVALID_ARGUMENT;
    }
    const int ranks = comm->clique->ranks;
    if (bytes_of(type) == 0 || (type == F16 && what != BROADCAST && what != ALL_GATHER && what != SEND && what != RECEIVE)) {
        return fail_with(comm, INVALID_ARGUMENT, "a type that is not emulated");
    }
    if (reduction < 0 || reduction > AVG || root < 0 || root >= ranks || ((what == SEND || what == RECEIVE) && root == comm->rank)) {
        return fail_with(comm, INVALID_ARGUMENT, "the reduction, the root or the peer");
    }
    if (device_of_stream(stream) != comm->device) {
        return fail_with(comm, INVALID_USAGE, "the stream is not of the communicator's device");
    }
    if (comm->error != SUCCESS) {
        return fail_with(comm, (Status)comm->error.load(), "the communicator failed before");
    }
    const size_t size = bytes_of(type);
    if ((from_elements != 0 && !check_range(comm->device, from, from_elements * size, "nccl, source")) ||
        (to_elements != 0 && !check_range(comm->device, to, to_elements * size, "nccl, destination"))) {
        return INVALID_ARGUMENT;
    }
    count(COLLECTIVES);
    return submit({comm, {what, elements, type, reduction, root}, from, to, 0});
}

} // namespace

// ---- the library's functions ----

API Status ncclGetVersion(int* version) {
    *version = 22700;
    return SUCCESS;
}
API const char* ncclGetErrorString(Status status) {
    static const char* const texts[] = {"no error",         "unhandled cuda error", "unhandled system error (run with NCCL_DEBUG=INFO for details)",
                                        "internal error",   "invalid argument",     "invalid usage",
                                        "remote process exited or there was a network error", "NCCL operation in progress"};
    return status >= 0 && status <= 7 ? texts[status] : "unknown result code";
}
API const char* ncclGetLastError(Comm*) {
    return "see the lines of the emulated NCCL on the error output";
}
API Status ncclGetUniqueId(Id* id) {
    static std::atomic<long long> next{1};
    memset(id, 0, sizeof *id);
    const IdParts parts = {"emulated", (long long)getpid(), next++};
    memcpy(id->bytes, &parts, sizeof parts);
    return SUCCESS;
}

API Status ncclCommInitRankConfig(Comm** comm, int ranks, Id id, int rank, const void*) {
    IdParts parts;
    memcpy(&parts, id.bytes, sizeof parts);
    if (strcmp(parts.magic, "emulated") != 0 || ranks < 1 || rank < 0 || rank >= ranks) {
        return INVALID_ARGUMENT;
    }
    if (parts.process != getpid()) {
        complain("nccl: only between threads of one process");
        return SYSTEM_ERROR;
    }
    Device* device = current_device();
    if (device == nullptr) {
        return CUDA_ERROR;
    }
    std::shared_ptr<Clique> clique;
    {
        std::lock_guard<std::mutex> guard(cliques_lock);
        auto& found = cliques()[parts.number];
        if (!found) {
            found = std::make_shared<Clique>();
            found->ranks = ranks;
            found->present.resize((size_t)ranks);
        }
        clique = found;
    }
    *comm = new Comm;
    (*comm)->clique = clique;
    (*comm)->rank = rank;
    (*comm)->device = device;
    {
        std::lock_guard<std::mutex> guard(clique->lock);
        if (clique->ranks != ranks || clique->present[(size_t)rank]) {
            delete *comm;
            *comm = nullptr;
            complain("nccl: rank %d of %d came twice, or with another number of ranks", rank, ranks);
            return INVALID_USAGE;
        }
        clique->present[(size_t)rank] = true;
        clique->joined++;
        clique->members++;
        clique->changed.notify_all();
    }
    return submit({*comm, {INIT, 0, 0, 0, 0}, nullptr, nullptr, 0});
}
API Status ncclCommInitRank(Comm** comm, int ranks, Id id, int rank) {
    return ncclCommInitRankConfig(comm, ranks, id, rank, nullptr);
}
API Status ncclCommFinalize(Comm* comm) {
    return comm ? SUCCESS : INVALID_ARGUMENT;
}
API Status ncclCommDestroy(Comm* comm) {
    if (comm == nullptr) {
        return SUCCESS;
    }
    {
        std::lock_guard<std::mutex> guard(comm->clique->lock);
        if (--comm->clique->members == 0) {
            for (auto& lane : comm->clique->sent) {
                if (!lane.second.empty() && !comm->clique->aborted) {
                    complain("nccl: %zu messages from rank %d to rank %d were never received", lane.second.size(), lane.first.first, lane.first.second);
                }
            }
        }
    }
    delete comm;
    return SUCCESS;
}
API Status ncclCommAbort(Comm* comm) {
    if (comm == nullptr) {
        return SUCCESS;
    }
    {
        std::lock_guard<std::mutex> guard(comm->clique->lock);
        comm->clique->aborted = true;
        comm->clique->changed.notify_all();
    }
    return ncclCommDestroy(comm);
}
API Status ncclCommGetAsyncError(Comm* comm, Status* error) {
    if (comm == nullptr) {
        return INVALID_ARGUMENT;
    }
    *error = comm->clique->aborted ? REMOTE_ERROR : (Status)comm->error.load();
    return SUCCESS;
}
API Status ncclCommCount(const Comm* comm, int* n) {
    *n = comm->clique->ranks;
    return SUCCESS;
}
API Status ncclCommCuDevice(const Comm* comm, int* device) {
    *device = comm->device->ordinal;
    return SUCCESS;
}
API Status ncclCommUserRank(const Comm* comm, int* rank) {
    *rank = comm->rank;
    return SUCCESS;
}

API Status ncclGroupStart() {
    group().depth++;
    return SUCCESS;
}
API Status ncclGroupEnd() {
    if (group().depth == 0) {
        return INVALID_USAGE;
    }
    if (--group().depth > 0) {
        return SUCCESS;
    }
    std::vector<Operation> operations = std::move(group().operations);
    group().operations.clear();
    return run(operations);
}

API Status ncclAllReduce(const void* from, void* to, size_t n, int type, int reduction, Comm* comm, void* stream) {
    return call(comm, ALL_REDUCE, from, n, to, n, n, type, reduction, 0, stream);
}
API Status ncclReduce(const void* from, void* to, size_t n, int type, int reduction, int root, Comm* comm, void* stream) {
    return call(comm, REDUCE, from, n, to, comm && comm->rank == root ? n : 0, n, type, reduction, root, stream);
}
API Status ncclBroadcast(const void* from, void* to, size_t n, int type, int root, Comm* comm, void* stream) {
    return call(comm, BROADCAST, from, comm && comm->rank == root ? n : 0, to, n, n, type, 0, root, stream);
}
API Status ncclBcast(void* data, size_t n, int type, int root, Comm* comm, void* stream) {
    return ncclBroadcast(data, data, n, type, root, comm, stream);
}
API Status ncclAllGather(const void* from, void* to, size_t n, int type, Comm* comm, void* stream) {
    return call(comm, ALL_GATHER, from, n, to, comm ? n * (size_t)comm->clique->ranks : 0, n, type, 0, 0, stream);
}
API Status ncclReduceScatter(const void* from, void* to, size_t n, int type, int reduction, Comm* comm, void* stream) {
    return call(comm, REDUCE_SCATTER, from, comm ? n * (size_t)comm->clique->ranks : 0, to, n, n, type, reduction, 0, stream);
}
API Status ncclSend(const void* from, size_t n, int type, int peer, Comm* comm, void* stream) {
    return call(comm, SEND, from, n, nullptr, 0, n, type, 0, peer, stream);
}
API Status ncclRecv(void* to, size_t n, int type, int peer, Comm* comm, void* stream) {
    return call(comm, RECEIVE, nullptr, 0, to, n, n, type, 0, peer, stream);
}

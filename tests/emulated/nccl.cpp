// NCCL between threads and processes. An operation is done when it is called (in a group: when the group ends), on the calling thread: a
// send copies its data into a queue and never waits; the last rank that comes to a collective does it for all. For the ranks of other
// processes, threads of the one that made the communicator's id do so; their data goes there and back over a socket.
//
// If streams have threads, an operation is done by its stream's, and a send waits for its receive. Before the first operation of a kind
// and a length, to a power of two, the hosts of its ranks wait for each other, as they do where NCCL connects an algorithm.
//
// Sums are in the order of ranks, of bf16 in f32. Who waits longer than a minute gets ncclSystemError.
#include <chrono>
#include <deque>
#include <set>
#include <tuple>

#include <sys/socket.h>
#include <sys/un.h>

#include "streams.h"

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

struct Message {
    std::vector<char> data;
    bool taken = false;
};

// What ranks connect for: a kind of operation, the logarithm of its bytes, and the ranks of a message.
typedef std::tuple<int, int, int, int> Connection;

struct Clique {
    int ranks;
    std::mutex lock;
    std::condition_variable changed;
    std::vector<bool> present;
    int joined = 0, members = 0;
    bool aborted = false;
    std::map<unsigned long long, Meeting> meetings;
    std::map<std::pair<int, int>, std::deque<std::shared_ptr<Message>>> sent; // from, to
    std::map<Connection, int> connecting;                                     // how many ranks have come
};

struct Comm {
    std::shared_ptr<Clique> clique;
    int rank;
    Device* device;
    unsigned long long collectives = 0;
    std::atomic<int> error{SUCCESS}, pending{0}; // operations on streams
    std::set<Connection> connected;
    // If another process made the id: sockets to it, for operations and for all else.
    int operations = -1, control = -1;
};

struct Operation {
    Comm* comm;
    Shape shape;
    const void* from;
    void* to;
    Stream* stream;
    unsigned long long number;
    std::shared_ptr<Message> message;
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
        op.message = std::make_shared<Message>();
        op.message->data.assign(data, data + op.shape.elements * bytes_of(op.shape.type));
        c.sent[{op.comm->rank, op.shape.root}].push_back(op.message);
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
        case SEND: return !asynchronous() || op.message->taken;
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
        const std::shared_ptr<Message> message = c.sent[lane].front();
        const std::vector<char>& data = message->data;
        c.sent[lane].pop_front();
        message->taken = true;
        c.changed.notify_all();
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

// ---- ranks of other processes ----

// What a socket is for.
enum Role { OPERATIONS, CONTROL };

struct Hello {
    int role, rank, ranks;
};

// Before the data of an operation, or a request on the other socket.
struct Request {
    Shape shape;
    unsigned long long from_bytes, to_bytes;
    int more; // operations of the same group that follow
};

bool send_all(int socket, const void* data, size_t bytes) {
    while (bytes != 0) {
        const ssize_t n = send(socket, data, bytes, MSG_NOSIGNAL);
        if (n <= 0) {
            return false;
        }
        data = (const char*)data + n;
        bytes -= (size_t)n;
    }
    return true;
}

bool receive_all(int socket, void* data, size_t bytes) {
    while (bytes != 0) {
        const ssize_t n = recv(socket, data, bytes, 0);
        if (n <= 0) {
            return false;
        }
        data = (char*)data + n;
        bytes -= (size_t)n;
    }
    return true;
}

sockaddr_un address_of(const IdParts& id, socklen_t* length) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    // An abstract name, which ends with the process.
    const int n = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "runner-emulated-nccl-%lld-%lld", id.process, id.number);
    *length = (socklen_t)(offsetof(sockaddr_un, sun_path) + 1 + (size_t)n);
    return address;
}

Status run(std::vector<Operation>& operations);
Status connect(const Operation& op);
Status join(const std::shared_ptr<Clique>& clique, int ranks, Comm* comm);
void leave(Comm* comm);
std::shared_ptr<Clique> clique_of(long long number, int ranks);

// Does the operations of a rank of another process, until it ends.
void serve_operations(int socket, Comm* comm) {
    std::vector<Operation> operations;
    std::vector<std::vector<char>> from, to;
    Request request;
    while (receive_all(socket, &request, sizeof request)) {
        from.emplace_back(request.from_bytes);
        to.emplace_back(request.to_bytes);
        if (!receive_all(socket, from.back().data(), request.from_bytes)) {
            return;
        }
        operations.push_back({comm, request.shape, nullptr, nullptr, nullptr, 0, nullptr});
        if (request.more != 0) {
            continue;
        }
        for (size_t i = 0; i < operations.size(); i++) {
            operations[i].from = from[i].data();
            operations[i].to = to[i].data();
        }
        const int status = run(operations);
        bool sent = send_all(socket, &status, sizeof status);
        for (size_t i = 0; i < operations.size(); i++) {
            sent = sent && send_all(socket, to[i].data(), to[i].size());
        }
        if (!sent) {
            return;
        }
        operations.clear();
        from.clear();
        to.clear();
    }
}

void serve(int socket, long long number) {
    Hello hello;
    if (!receive_all(socket, &hello, sizeof hello)) {
        close(socket);
        return;
    }
    const std::shared_ptr<Clique> clique = clique_of(number, hello.ranks);
    // Never freed: both threads of a rank use it, and a rank may end in any way.
    static std::mutex lock;
    static auto* ranks = new std::map<std::pair<long long, int>, Comm*>;
    Comm* comm;
    {
        std::lock_guard<std::mutex> guard(lock);
        Comm*& known = (*ranks)[{number, hello.rank}];
        if (known == nullptr) {
            known = new Comm;
            known->clique = clique;
            known->rank = hello.rank;
            known->device = nullptr;
        }
        comm = known;
    }
    if (hello.role == OPERATIONS) {
        serve_operations(socket, comm);
        close(socket);
        return;
    }
    int status = join(clique, hello.ranks, comm);
    send_all(socket, &status, sizeof status);
    Request request;
    bool has_left = false;
    while (!has_left && receive_all(socket, &request, sizeof request)) {
        has_left = request.shape.what == INIT;
        if (!has_left) {
            status = connect({comm, request.shape, nullptr, nullptr, nullptr, 0, nullptr});
            send_all(socket, &status, sizeof status);
        }
    }
    if (has_left) {
        leave(comm);
    } else {
        std::lock_guard<std::mutex> guard(clique->lock);
        clique->aborted = true;
        clique->changed.notify_all();
    }
    close(socket);
}

// Serves the ranks of other processes that come with this id.
void listen_for(const IdParts& id) {
    const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t length;
    const sockaddr_un address = address_of(id, &length);
    if (bind(listener, (const sockaddr*)&address, length) != 0 || listen(listener, 64) != 0) {
        complain("nccl: no socket for other processes");
        return;
    }
    std::thread([listener, number = id.number] {
        for (;;) {
            const int socket = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
            if (socket < 0) {
                return;
            }
            std::thread(serve, socket, number).detach();
        }
    }).detach();
}

int call_to(const IdParts& id, const Hello& hello) {
    const int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t length;
    const sockaddr_un address = address_of(id, &length);
    if (::connect(s, (const sockaddr*)&address, length) != 0 || !send_all(s, &hello, sizeof hello)) {
        close(s);
        return -1;
    }
    return s;
}

// A rank's operations at the process that made the id.
Status run_there(std::vector<Operation>& operations) {
    Comm* comm = operations[0].comm;
    size_t left = operations.size();
    bool well = true;
    const auto bytes = [&](const Operation& op, bool out) {
        const size_t one = op.shape.elements * bytes_of(op.shape.type), all = one * (size_t)comm->clique->ranks;
        const bool is_root = comm->rank == op.shape.root;
        switch (op.shape.what) {
        case SEND: return out ? 0 : one;
        case RECEIVE: return out ? one : 0;
        case REDUCE: return out && !is_root ? 0 : one;
        case BROADCAST: return !out && !is_root ? 0 : one;
        case ALL_GATHER: return out ? all : one;
        case REDUCE_SCATTER: return out ? one : all;
        default: return one;
        }
    };
    for (const Operation& op : operations) {
        const Request request = {op.shape, bytes(op, false), bytes(op, true), (int)--left};
        well = well && send_all(comm->operations, &request, sizeof request) && send_all(comm->operations, op.from, request.from_bytes);
    }
    int status = REMOTE_ERROR;
    well = well && receive_all(comm->operations, &status, sizeof status);
    for (const Operation& op : operations) {
        std::vector<char> data(bytes(op, true));
        well = well && receive_all(comm->operations, data.data(), data.size());
        if (well && status == SUCCESS) {
            memcpy(op.to, data.data(), data.size());
        }
    }
    if (!well || status != SUCCESS) {
        return fail_with(comm, well ? (Status)status : REMOTE_ERROR, "the process that does the operations refused, or ended");
    }
    return SUCCESS;
}

// Waits for the ranks of an operation's kind and length, if it is their first. A transfer that was launched may wait for the same ranks.
Status connect(const Operation& op) {
    Comm* comm = op.comm;
    Clique& c = *comm->clique;
    const int what = op.shape.what, bits = 64 - __builtin_clzll(op.shape.elements * bytes_of(op.shape.type) | 1);
    const bool is_message = what == SEND || what == RECEIVE;
    // A pair is connected once, for all lengths.
    const Connection connection = is_message ? Connection(SEND, 0, what == SEND ? comm->rank : op.shape.root, what == SEND ? op.shape.root : comm->rank)
                                             : Connection(what, bits, 0, 0);
    if (op.shape.elements == 0 || !comm->connected.insert(connection).second) {
        return SUCCESS;
    }
    count(CONNECTIONS);
    if (comm->control >= 0) {
        const Request request = {op.shape, 0, 0, 0};
        int status;
        const bool well = send_all(comm->control, &request, sizeof request) && receive_all(comm->control, &status, sizeof status);
        return well && status == SUCCESS ? SUCCESS : fail_with(comm, well ? (Status)status : REMOTE_ERROR, "not connected");
    }
    const int members = is_message ? 2 : c.ranks;
    std::unique_lock<std::mutex> guard(c.lock);
    c.connecting[connection]++;
    c.changed.notify_all();
    c.changed.wait_for(guard, patience(), [&] { return c.connecting[connection] >= members || c.aborted; });
    if (c.connecting[connection] >= members) {
        return SUCCESS;
    }
    if (c.aborted) {
        return fail_with(comm, REMOTE_ERROR, "the communicator was aborted");
    }
    complain("nccl: rank %d of %d waited %lld s to connect for the first %s of 2^%d bytes", comm->rank, c.ranks, (long long)patience().count(),
             name_of(what), bits);
    return fail_with(comm, SYSTEM_ERROR, "not all ranks came");
}

// Each stream's operations are one launch.
Status launch(const std::vector<Operation>& operations) {
    for (const Operation& op : operations) {
        if (const Status status = connect(op)) {
            return status;
        }
    }
    std::map<Stream*, std::vector<Operation>> by_stream;
    for (const Operation& op : operations) {
        by_stream[op.stream].push_back(op);
    }
    for (auto& one : by_stream) {
        for (const Operation& op : one.second) {
            const size_t bytes = op.shape.elements * bytes_of(op.shape.type);
            const size_t ranks = (size_t)op.comm->clique->ranks;
            char what[100];
            snprintf(what, sizeof what, "%s of rank %d", name_of(op.shape.what), op.comm->rank);
            if (op.from != nullptr && !(op.shape.what == BROADCAST && op.comm->rank != op.shape.root)) {
                use(op.stream, op.from, bytes * (op.shape.what == REDUCE_SCATTER ? ranks : 1), false, what);
            }
            if (op.to != nullptr && !(op.shape.what == REDUCE && op.comm->rank != op.shape.root)) {
                use(op.stream, op.to, bytes * (op.shape.what == ALL_GATHER ? ranks : 1), true, what);
            }
            op.comm->pending++;
        }
        auto work = std::make_shared<std::vector<Operation>>(one.second);
        const int error = submit(one.first, [work] {
            run(*work);
            for (Operation& op : *work) {
                Clique& c = *op.comm->clique;
                std::lock_guard<std::mutex> guard(c.lock);
                op.comm->pending--;
                c.changed.notify_all();
            }
            return 0;
        });
        if (error != 0) {
            for (Operation& op : one.second) {
                op.comm->pending--;
            }
            return CUDA_ERROR;
        }
    }
    return SUCCESS;
}

// Sends first, then collectives: so one thread may have several ranks in one group.
Status run(std::vector<Operation>& operations) {
    if (!operations.empty() && operations[0].comm->operations >= 0) {
        return run_there(operations);
    }
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

// Joining is the host's.
Status start(std::vector<Operation> operations) {
    const bool joins = !operations.empty() && operations[0].shape.what == INIT;
    return asynchronous() && !joins ? launch(operations) : run(operations);
}

Status submit(Operation op) {
    if (group().depth > 0) {
        group().operations.push_back(op);
        return SUCCESS;
    }
    return start({op});
}

// The end of a communicator waits for its operations.
void wait_for_operations(Comm* comm) {
    Clique& c = *comm->clique;
    std::unique_lock<std::mutex> guard(c.lock);
    c.changed.wait_for(guard, patience(), [&] { return comm->pending == 0; });
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
    Stream* const its = stream_of(stream);
    if (its == nullptr || its->device != comm->device) {
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
    return submit({comm, {what, elements, type, reduction, root}, from, to, its, 0, nullptr});
}

std::shared_ptr<Clique> clique_of(long long number, int ranks) {
    std::lock_guard<std::mutex> guard(cliques_lock);
    auto& found = cliques()[number];
    if (!found) {
        found = std::make_shared<Clique>();
        found->ranks = ranks;
        found->present.resize((size_t)ranks);
    }
    return found;
}

// Waits for all ranks.
Status join(const std::shared_ptr<Clique>& clique, int ranks, Comm* comm) {
    {
        std::lock_guard<std::mutex> guard(clique->lock);
        if (clique->ranks != ranks || clique->present[(size_t)comm->rank]) {
            complain("nccl: rank %d of %d came twice, or with another number of ranks", comm->rank, ranks);
            return INVALID_USAGE;
        }
        clique->present[(size_t)comm->rank] = true;
        clique->joined++;
        clique->members++;
        clique->changed.notify_all();
    }
    return submit({comm, {INIT, 0, 0, 0, 0}, nullptr, nullptr, nullptr, 0, nullptr});
}

void leave(Comm* comm) {
    std::lock_guard<std::mutex> guard(comm->clique->lock);
    if (--comm->clique->members == 0) {
        for (auto& lane : comm->clique->sent) {
            if (!lane.second.empty() && !comm->clique->aborted) {
                complain("nccl: %zu messages from rank %d to rank %d were never received", lane.second.size(), lane.first.first, lane.first.second);
            }
        }
    }
}

} // namespace

// ---- the library's functions ----

API Status ncclGetVersion(int* version) {
    *version = 23007;
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
    listen_for(parts);
    return SUCCESS;
}

API Status ncclCommInitRankConfig(Comm** comm, int ranks, Id id, int rank, const void*) {
    IdParts parts;
    memcpy(&parts, id.bytes, sizeof parts);
    if (strcmp(parts.magic, "emulated") != 0 || ranks < 1 || rank < 0 || rank >= ranks) {
        return INVALID_ARGUMENT;
    }
    Device* device = current_device();
    if (device == nullptr) {
        return CUDA_ERROR;
    }
    Comm* made = new Comm;
    made->rank = rank;
    made->device = device;
    int status;
    if (parts.process == getpid()) {
        made->clique = clique_of(parts.number, ranks);
        status = join(made->clique, ranks, made);
    } else {
        made->clique = std::make_shared<Clique>();
        made->clique->ranks = ranks;
        made->operations = call_to(parts, {OPERATIONS, rank, ranks});
        made->control = call_to(parts, {CONTROL, rank, ranks});
        if (made->operations < 0 || made->control < 0 || !receive_all(made->control, &status, sizeof status)) {
            status = fail_with(made, SYSTEM_ERROR, "the process that made the id does not answer");
        }
    }
    if (status == INVALID_USAGE) {
        delete made;
        made = nullptr;
    }
    *comm = made;
    return (Status)status;
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
    wait_for_operations(comm);
    if (comm->control >= 0) {
        // What was aborted says nothing more.
        const Request request = {{INIT, 0, 0, 0, 0}, 0, 0, 0};
        send_all(comm->control, &request, sizeof request);
        close(comm->operations);
        close(comm->control);
    } else {
        leave(comm);
    }
    delete comm;
    return SUCCESS;
}
// Ends the operations, also those that other threads wait for, and frees nothing.
API Status ncclCommRevoke(Comm* comm, int flags) {
    if (comm == nullptr || flags != 0) {
        return INVALID_ARGUMENT;
    }
    if (comm->control >= 0) {
        shutdown(comm->operations, SHUT_RDWR);
        shutdown(comm->control, SHUT_RDWR);
    } else {
        std::lock_guard<std::mutex> guard(comm->clique->lock);
        comm->clique->aborted = true;
        comm->clique->changed.notify_all();
    }
    return SUCCESS;
}
API Status ncclCommAbort(Comm* comm) {
    return comm == nullptr ? SUCCESS : (ncclCommRevoke(comm, 0), ncclCommDestroy(comm));
}
API Status ncclCommGetAsyncError(Comm* comm, Status* error) {
    if (comm == nullptr) {
        return INVALID_ARGUMENT;
    }
    char byte;
    const bool has_ended = comm->control >= 0 && recv(comm->control, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
    *error = comm->clique->aborted || has_ended ? REMOTE_ERROR : (Status)comm->error.load();
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
    return start(std::move(operations));
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

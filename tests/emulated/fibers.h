// Runs a kernel's blocks on the CPU: a block's threads are fibers of one host thread, each of which runs until it must wait.
//
// A thread starts on the stack of one that has ended, if there is one: so a kernel without barriers is a loop of plain calls. Who
// waits at a barrier or a warp intrinsic hands over to the next thread that can go on; if none can, the kernel is wrong, and the
// launch ends with one line that says where. Host threads take blocks from a common counter.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <link.h>
#include <sys/mman.h>
#include <unistd.h>
#if !defined(__x86_64__) && !defined(__aarch64__)
#include <ucontext.h>
#endif

// The emulator's own code does not pay for the checks that kernels are compiled with.
#define EMULATED_UNCHECKED __attribute__((no_sanitize("undefined")))

namespace emulated {

// CUDA's own error numbers, so that a driver can hand them on.
enum Error { OK = 0, INVALID_VALUE = 1, ILLEGAL_ADDRESS = 700, MISALIGNED = 716, LAUNCH_FAILED = 719 };

const unsigned MAX_THREADS = 1024;
const size_t MAX_SHARED = 227 * 1024;
const size_t STACK = 128 * 1024;
const unsigned char POISON = 0xff; // NaN as f32, f64 and bf16; -1 as an integer

struct Index {
    unsigned x, y, z;
};

struct Launch {
    const char* name;
    void (*invoke)(void (*kernel)(), void** params); // unpacks the parameters, calls the kernel
    void (*kernel)();
    void** params;
    Index grid, block;
    size_t shared;
    bool reverse;
    std::atomic<long long> next{0}; // the first block that nobody took yet
    std::atomic<int> error{OK};
};

// ---- switching stacks ----

#if defined(__x86_64__) || defined(__aarch64__)
typedef void* Context; // the stack pointer; the registers that a call preserves lie above it

extern "C" void emulated_switch(Context* save, Context load);
extern "C" void emulated_enter();

// In a group of its own, so that many sources may include this.
#if defined(__x86_64__)
__asm__(R"(
    .pushsection .text.emulated_switch,"axG",@progbits,emulated_switch,comdat
    .weak emulated_switch
    .hidden emulated_switch
    .type emulated_switch,@function
emulated_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .popsection
)");
#else
__asm__(R"(
    .pushsection .text.emulated_switch,"axG",@progbits,emulated_switch,comdat
    .weak emulated_switch
    .hidden emulated_switch
    .type emulated_switch,@function
emulated_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
    .popsection
)");
#endif

inline void switch_context(Context* save, Context* load) {
    emulated_switch(save, *load);
}

// A context that calls `entry` on an empty stack.
inline void make_context(Context* context, char* bottom, size_t size, void (*entry)()) {
    uintptr_t top = ((uintptr_t)bottom + size) & ~(uintptr_t)15;
#if defined(__x86_64__)
    void** sp = (void**)top;
    *--sp = nullptr;        // a return address for `entry`, which never returns
    *--sp = (void*)entry;   // that of emulated_switch
    for (int i = 0; i < 6; i++) {
        *--sp = nullptr;
    }
#else
    void** sp = (void**)(top - 160);
    memset((void*)sp, 0, 160);
    sp[11] = (void*)entry; // x30
#endif
    *context = sp;
}
#else
typedef ucontext_t Context;

inline void switch_context(Context* save, Context* load) {
    swapcontext(save, load);
}

inline void make_context(Context* context, char* bottom, size_t size, void (*entry)()) {
    getcontext(context);
    context->uc_stack.ss_sp = bottom;
    context->uc_stack.ss_size = size;
    context->uc_link = nullptr;
    makecontext(context, entry, 0);
}
#endif

// ---- what a host thread has to run a block ----

// What a lane brings to a meeting.
union Slot {
    const void* at[3];
    unsigned long long value;
};

// Lanes as bits. A lane is in exactly one of `ready`, `meeting`, `barrier` and `done`.
struct Warp {
    unsigned ready, meeting, barrier, done, started;
    unsigned kind;       // what the lanes of `meeting` wait for
    unsigned generation; // meetings so far: a lane may be one meeting ahead of another that has not read its result yet
    Slot slots[2][32];
};

// An asynchronous copy that was started but not waited for.
struct Copy {
    void* to;
    const void* from; // null: zeros
    unsigned group;
};

// A thread's part of a product of four warps that was started but not waited for: two rows of the result, two of each 8 columns.
struct GroupProduct {
    float (*d)[4];
    float before[8][4]; // what `d` held, if this is the first product on its way to it
    bool is_first, adds, transposed;
    float a[2][16]; // the rows of the left operand, if it is not in shared memory
    unsigned left, right, stride; // places in shared memory, and the bytes from each 8 rows to the next
    unsigned set;
};

struct Fiber {
    Context context;
    Index index;
    int stack;
    unsigned groups; // of copies, closed so far
    std::vector<Copy> copies;
    unsigned sets; // of products, closed so far
    std::vector<GroupProduct> products;
    bool has_begun;   // a set of products, with the fence that it needs
    bool is_unfenced; // copies have arrived that products do not see
};

struct Host {
    Launch* launch;
    Index block;
    unsigned threads, finished, at_barrier, current;
    unsigned fresh_stacks; // stacks from here on were never used
    bool reverse; // see `in_reverse`
    Context home;
    Warp warps[MAX_THREADS / 32];
    Fiber fibers[MAX_THREADS];
    std::vector<int> free_stacks;
    char* stacks;
    char* shared_end; // dynamic shared memory lies before it, and pages that cannot be touched behind it
    unsigned char* shared;
};

// All that is thread-local besides kernels' shared memory, in one piece: see `poison_static`.
struct Now {
    Host* host; // not null while a kernel runs
    Index thread, block, block_dim, grid_dim;
    void* context; // the driver's current context
    void* group;   // NCCL's open group
};
inline thread_local Now now = {};

inline const char* kind_name(unsigned kind);

// ---- mistakes ----

// Marks the launch as failed. One line tells where, for the first mistake of a launch only.
inline void report(Host* h, int error, const char* format, va_list arguments) {
    int none = OK;
    if (!h->launch->error.compare_exchange_strong(none, error)) {
        return;
    }
    char text[400], line[700];
    vsnprintf(text, sizeof text, format, arguments);
    const int n = snprintf(line, sizeof line, "emulated: kernel %s, block (%u, %u, %u), thread (%u, %u, %u): %s\n", h->launch->name,
                           h->block.x, h->block.y, h->block.z, now.thread.x, now.thread.y, now.thread.z, text);
    if (write(2, line, (size_t)n) < 0) {
        abort();
    }
}

// Ends the launch, from within a thread of it.
[[noreturn]] inline __attribute__((format(printf, 2, 3))) void fail(int error, const char* format, ...) {
    Host* h = now.host;
    va_list arguments;
    va_start(arguments, format);
    if (h == nullptr) {
        vfprintf(stderr, format, arguments);
        fprintf(stderr, " (emulated, outside of a kernel)\n");
        abort();
    }
    report(h, error, format, arguments);
    va_end(arguments);
    Context lost;
    switch_context(&lost, &h->home);
    abort();
}

// The same, for what shows after a block's end.
inline __attribute__((format(printf, 3, 4))) void fail_block(Host* h, int error, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    report(h, error, format, arguments);
    va_end(arguments);
}

// Nobody can go on.
[[noreturn]] inline void stuck() {
    Host* h = now.host;
    for (unsigned i = 0; i < (h->threads + 31) / 32; i++) {
        const Warp& w = h->warps[i];
        if (w.meeting != 0) {
            fail(LAUNCH_FAILED, "%d lanes of warp %u wait in %s, which %d never reach (%d wait in __syncthreads, %d have returned)",
                 __builtin_popcount(w.meeting), i, kind_name(w.kind), 32 - __builtin_popcount(w.meeting),
                 __builtin_popcount(w.barrier), __builtin_popcount(w.done));
        }
    }
    fail(LAUNCH_FAILED, "%u threads of %u wait in __syncthreads, %u have returned", h->at_barrier, h->threads, h->finished);
}

// ---- threads ----

inline void fiber_main();

// Gives the processor to thread `t`, which must be ready.
EMULATED_UNCHECKED inline void enter(Context* save, unsigned t) {
    Host* h = now.host;
    Fiber& f = h->fibers[t];
    Warp& w = h->warps[t / 32];
    h->current = t;
    now.thread = f.index;
    if (!(w.started >> (t % 32) & 1)) {
        w.started |= 1u << (t % 32);
        if (h->free_stacks.empty()) {
            f.stack = (int)h->fresh_stacks++;
        } else {
            f.stack = h->free_stacks.back();
            h->free_stacks.pop_back();
        }
        // Tops lie at different places in a page, or all would fall on the same few cache lines.
        make_context(&f.context, h->stacks + (size_t)f.stack * STACK + 4096, STACK - 4096 - (size_t)(f.stack % 29) * 128, fiber_main);
    }
    switch_context(save, &f.context);
}

// Whether blocks and threads run from the last to the first. Who forgot a barrier gets other numbers, in one order or the other.
inline bool in_reverse() {
    const char* order = getenv("RUNNER_EMULATED_ORDER");
    return order != nullptr && strcmp(order, "reverse") == 0;
}

// The next lane of `ready`, which is not empty, in the order of threads, after `lane`.
EMULATED_UNCHECKED inline unsigned next_lane(unsigned ready, unsigned lane, bool reverse) {
    if (reverse) {
        const unsigned later = ready & ((1u << lane) - 1);
        return 31 - (unsigned)__builtin_clz(later != 0 ? later : ready);
    }
    const unsigned later = ready & ~((2u << lane) - 1);
    return (unsigned)__builtin_ctz(later != 0 ? later : ready);
}

// A thread that can go on: of the current warp if there is one. -1 if there is none at all.
EMULATED_UNCHECKED inline int next_ready() {
    Host* h = now.host;
    const unsigned warps = (h->threads + 31) / 32;
    unsigned i = h->current / 32;
    if (h->warps[i].ready != 0) {
        return (int)(i * 32 + next_lane(h->warps[i].ready, h->current % 32, h->reverse));
    }
    if (h->warps[i].meeting != 0) {
        return -1; // those lanes wait for others of their warp, who cannot come
    }
    for (unsigned k = 1; k < warps; k++) {
        i = h->reverse ? (i == 0 ? warps - 1 : i - 1) : (i + 1 == warps ? 0 : i + 1);
        if (h->warps[i].ready != 0) {
            return (int)(i * 32 + next_lane(h->warps[i].ready, h->reverse ? 0 : 31, h->reverse));
        }
    }
    return -1;
}

// The current thread cannot go on until another makes it ready.
EMULATED_UNCHECKED inline void wait() {
    Host* h = now.host;
    const unsigned me = h->current;
    const int next = next_ready();
    if (next < 0) {
        stuck();
    }
    enter(&h->fibers[me].context, (unsigned)next);
}

EMULATED_UNCHECKED inline void fiber_main() {
    Host* h = now.host;
    const int stack = h->fibers[h->current].stack;
    for (;;) {
        h->launch->invoke(h->launch->kernel, h->launch->params);
        Warp& w = h->warps[h->current / 32];
        const unsigned bit = 1u << (h->current % 32);
        w.ready &= ~bit;
        w.done |= bit;
        h->finished++;
        h->fibers[h->current].copies.clear();
        if (!h->fibers[h->current].products.empty()) {
            fail(LAUNCH_FAILED, "products of four warps that nobody waited for");
        }
        const int next = next_ready();
        Context lost;
        if (next < 0) {
            if (h->finished != h->threads) {
                stuck();
            }
            switch_context(&lost, &h->home);
        }
        const unsigned t = (unsigned)next;
        Warp& v = h->warps[t / 32];
        if (!(v.started >> (t % 32) & 1)) {
            v.started |= 1u << (t % 32);
            h->current = t;
            h->fibers[t].stack = stack;
            now.thread = h->fibers[t].index;
            continue;
        }
        h->free_stacks.push_back(stack);
        enter(&lost, t);
    }
}

EMULATED_UNCHECKED inline __attribute__((noinline)) void block_barrier() {
    Host* h = now.host;
    if (++h->at_barrier == h->threads) {
        for (unsigned i = 0; i < (h->threads + 31) / 32; i++) {
            h->warps[i].ready |= h->warps[i].barrier;
            h->warps[i].barrier = 0;
        }
        h->at_barrier = 0;
        return;
    }
    Warp& w = h->warps[h->current / 32];
    const unsigned bit = 1u << (h->current % 32);
    w.ready &= ~bit;
    w.barrier |= bit;
    wait();
}

// All 32 lanes of a warp deposit `mine`; the last who comes does `last(slots)`; each gets the slots of all.
template <typename Last> EMULATED_UNCHECKED __attribute__((noinline)) const Slot* meet(unsigned mask, unsigned kind, const Slot& mine, Last last) {
    Host* h = now.host;
    Warp& w = h->warps[h->current / 32];
    const unsigned lane = h->current % 32, bit = 1u << lane;
    if (mask != 0xffffffffu) {
        fail(LAUNCH_FAILED, "%s with the mask %08x: only full warps are emulated", kind_name(kind), mask);
    }
    if (w.meeting != 0 && w.kind != kind) {
        fail(LAUNCH_FAILED, "lanes of one warp meet in different intrinsics: %s and %s", kind_name(w.kind), kind_name(kind));
    }
    w.kind = kind;
    Slot* slots = w.slots[w.generation % 2];
    slots[lane] = mine;
    w.meeting |= bit;
    if (w.meeting == 0xffffffffu) {
        last(slots);
        w.generation++;
        w.meeting = 0;
        w.ready = 0xffffffffu;
    } else {
        w.ready &= ~bit;
        wait();
    }
    return slots;
}

// ---- blocks ----

// The thread-local memory of the object file that this is linked into: kernels' `__shared__` arrays, and `now`.
struct StaticShared {
    ptrdiff_t offset; // of `now`
    size_t size;
};

inline StaticShared find_static_shared() {
    struct Search {
        char* mine; // asking for its address makes it, on a thread that never did
        StaticShared found;
        static int visit(dl_phdr_info* info, size_t, void* self) {
            for (int i = 0; i < info->dlpi_phnum; i++) {
                const auto& part = info->dlpi_phdr[i];
                const ptrdiff_t offset = ((Search*)self)->mine - (char*)info->dlpi_tls_data;
                if (part.p_type == PT_TLS && info->dlpi_tls_data && offset >= 0 && offset < (ptrdiff_t)part.p_memsz) {
                    ((Search*)self)->found = {offset, part.p_memsz};
                    return 1;
                }
            }
            return 0;
        }
    } search = {(char*)&now, {0, 0}};
    dl_iterate_phdr(Search::visit, &search);
    return search.found;
}

// Makes reads of shared memory that the kernel never wrote show.
inline void poison_static() {
    static const StaticShared memory = find_static_shared();
    if (memory.size != 0) {
        const Now saved = now;
        char* start = (char*)&now - memory.offset;
        __asm__ volatile("" : "+r"(start) : : "memory"); // compilers take it for a part of `now`
        memset(start, POISON, memory.size);
        now = saved;
    }
}

// A fault in a kernel ends the launch like other mistakes do; elsewhere, who was there before us gets it.
inline struct sigaction previous_action[3];
inline const int SIGNALS[3] = {SIGSEGV, SIGBUS, SIGFPE};

inline void on_fault(int signal, siginfo_t* info, void*) {
    if (now.host != nullptr) {
        const int error = signal == SIGFPE ? LAUNCH_FAILED : ILLEGAL_ADDRESS;
        const char* at = (const char*)info->si_addr;
        Host* h = now.host;
        if (signal == SIGFPE) {
            fail(error, "division by zero");
        } else if (info->si_code == SI_KERNEL) { // what the processor says of both, without the address
            fail(MISALIGNED, "an access that is not aligned, or to what is no address at all");
        } else if (at >= h->shared_end && at < h->shared_end + 65536) {
            fail(error, "dynamic shared memory: access %td bytes behind its start, of %zu given", at - (const char*)h->shared, h->launch->shared);
        } else if (at >= h->stacks && at < h->stacks + STACK * MAX_THREADS) {
            fail(error, "the stack is full");
        }
        fail(error, "access to the address %p", (const void*)at);
    }
    for (int i = 0; i < 3; i++) {
        if (SIGNALS[i] == signal) {
            sigaction(signal, &previous_action[i], nullptr); // and the instruction faults again
        }
    }
}

inline void install_handlers() {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (int i = 0; i < 3; i++) {
        sigaction(SIGNALS[i], &action, &previous_action[i]);
    }
}

// Faults are handled on a stack of their own: a fiber's may be full. Rust's threads have one already.
inline void ensure_signal_stack() {
    stack_t old;
    if (sigaltstack(nullptr, &old) == 0 && (old.ss_flags & SS_DISABLE)) {
        stack_t stack;
        memset(&stack, 0, sizeof stack);
        stack.ss_size = 64 * 1024;
        stack.ss_sp = mmap(nullptr, stack.ss_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (stack.ss_sp != MAP_FAILED) {
            sigaltstack(&stack, nullptr);
        }
    }
}

inline char* reserve(size_t bytes) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        perror("emulated: mmap");
        abort();
    }
    return (char*)p;
}

// Hosts are lent to whichever thread runs blocks, and kept.
struct Hosts {
    std::mutex lock;
    std::vector<Host*> idle;

    static Hosts& all() {
        static Hosts* hosts = new Hosts; // never destroyed: launches may come late
        return *hosts;
    }

    Host* take() {
        std::lock_guard<std::mutex> guard(lock);
        if (!idle.empty()) {
            Host* h = idle.back();
            idle.pop_back();
            return h;
        }
        Host* h = new Host();
        h->stacks = reserve(STACK * MAX_THREADS);
        for (unsigned i = 0; i < MAX_THREADS; i++) {
            mprotect(h->stacks + i * STACK, 4096, PROT_NONE);
        }
        const size_t room = 256 * 1024, behind = 65536;
        char* p = reserve(room + behind);
        mprotect(p + room, behind, PROT_NONE);
        h->shared_end = p + room;
        return h;
    }

    void give(Host* h) {
        std::lock_guard<std::mutex> guard(lock);
        idle.push_back(h);
    }
};

// Runs one block. `h` keeps the indices of its threads from one block of the launch to the next.
EMULATED_UNCHECKED inline void run_block(Host* h, Launch& launch, long long number) {
    const long long x = launch.grid.x, y = launch.grid.y;
    h->block = {(unsigned)(number % x), (unsigned)(number / x % y), (unsigned)(number / x / y)};
    now.block = h->block;
    h->finished = h->at_barrier = 0;
    h->fresh_stacks = 0; // stacks and copies of a block that failed are given up
    h->free_stacks.clear();
    const unsigned warps = (h->threads + 31) / 32;
    for (unsigned i = 0; i < warps; i++) {
        Warp& w = h->warps[i];
        const unsigned lanes = h->threads - i * 32;
        w.ready = lanes >= 32 ? 0xffffffffu : (1u << lanes) - 1;
        w.meeting = w.barrier = w.done = w.started = 0;
    }
    const size_t rounded = (launch.shared + 15) / 16 * 16;
    memset(h->shared, POISON, rounded);
    now.host = h;
    enter(&h->home, h->reverse ? h->threads - 1 : 0);
    now.host = nullptr;
    for (size_t i = launch.shared; i < rounded && launch.error == OK; i++) {
        if (h->shared[i] != POISON) {
            fail_block(h, ILLEGAL_ADDRESS, "dynamic shared memory: byte %zu was written, of %zu given", i, launch.shared);
        }
    }
}

// Blocks of a launch on this host thread, until all are taken.
inline void run_blocks(Launch& launch) {
    const long long blocks = (long long)launch.grid.x * launch.grid.y * launch.grid.z;
    const long long chunk = blocks / 256 + 1;
    Host* h = nullptr;
    for (;;) {
        const long long first = launch.next.fetch_add(chunk);
        if (first >= blocks || launch.error != OK) {
            break;
        }
        if (h == nullptr) {
            h = Hosts::all().take();
            ensure_signal_stack();
            poison_static();
            h->launch = &launch;
            h->threads = launch.block.x * launch.block.y * launch.block.z;
            for (unsigned t = 0; t < h->threads; t++) {
                // What a launch that failed has left.
                h->fibers[t].copies.clear();
                h->fibers[t].products.clear();
                h->fibers[t].has_begun = h->fibers[t].is_unfenced = false;
                h->fibers[t].index = {t % launch.block.x, t / launch.block.x % launch.block.y, t / launch.block.x / launch.block.y};
            }
            h->reverse = launch.reverse;
            h->shared = (unsigned char*)h->shared_end - (launch.shared + 15) / 16 * 16;
            now.block_dim = launch.block;
            now.grid_dim = launch.grid;
        }
        for (long long i = first; i < first + chunk && i < blocks && launch.error == OK; i++) {
            run_block(h, launch, h->reverse ? blocks - 1 - i : i);
        }
    }
    if (h != nullptr) {
        Hosts::all().give(h);
    }
}

// ---- host threads ----

inline unsigned host_threads() {
    static const unsigned n = [] {
        const char* text = getenv("RUNNER_EMULATED_THREADS");
        const unsigned given = text ? (unsigned)atoi(text) : 0;
        return given != 0 ? given : std::max(1u, std::thread::hardware_concurrency());
    }();
    return n;
}

// Threads that help whoever asks. Never ended: the process ends them.
struct Helpers {
    std::mutex lock;
    std::condition_variable asked, done;
    struct Job {
        void (*work)(void*);
        void* argument;
        unsigned wanted, running;
    };
    std::deque<Job*> jobs;

    static Helpers& all() {
        static Helpers* helpers = [] {
            Helpers* h = new Helpers;
            for (unsigned i = 1; i < host_threads(); i++) {
                std::thread([h] { h->help(); }).detach();
            }
            return h;
        }();
        return *helpers;
    }

    void help() {
        std::unique_lock<std::mutex> guard(lock);
        for (;;) {
            asked.wait(guard, [this] { return !jobs.empty(); });
            Job* job = jobs.front();
            job->running++;
            if (--job->wanted == 0) {
                jobs.pop_front();
            }
            guard.unlock();
            job->work(job->argument);
            guard.lock();
            job->running--;
            done.notify_all();
        }
    }

    // Calls `work(argument)` here and on up to `more` other threads at the same time; returns when all have ended.
    void together(unsigned more, void (*work)(void*), void* argument) {
        Job job = {work, argument, std::min(more, host_threads() - 1), 0};
        if (job.wanted == 0) {
            return work(argument);
        }
        {
            std::lock_guard<std::mutex> guard(lock);
            jobs.push_back(&job);
        }
        asked.notify_all();
        work(argument);
        std::unique_lock<std::mutex> guard(lock);
        for (auto it = jobs.begin(); it != jobs.end(); ++it) {
            if (*it == &job) {
                jobs.erase(it);
                break;
            }
        }
        done.wait(guard, [&job] { return job.running == 0; });
    }
};

// Runs a launch; returns its error.
inline int run(Launch& launch) {
    static const bool ready = (install_handlers(), true);
    (void)ready;
    const Index g = launch.grid, b = launch.block;
    const unsigned long long threads = (unsigned long long)b.x * b.y * b.z;
    const char* wrong = nullptr;
    if (g.x == 0 || g.y == 0 || g.z == 0 || threads == 0) {
        wrong = "an empty grid or block";
    } else if (threads > MAX_THREADS || b.z > 64) {
        wrong = "more than 1024 threads in a block, or more than 64 in z";
    } else if (g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535) {
        wrong = "a grid beyond 2^31 - 1, 65535, 65535";
    } else if (launch.shared > MAX_SHARED) {
        wrong = "more than 227 KiB of shared memory";
    }
    if (wrong) {
        fprintf(stderr, "emulated: kernel %s, grid (%u, %u, %u), block (%u, %u, %u), %zu bytes shared: %s\n", launch.name, g.x, g.y,
                g.z, b.x, b.y, b.z, launch.shared, wrong);
        return INVALID_VALUE;
    }
    launch.reverse = in_reverse();
    const unsigned long long blocks = (unsigned long long)g.x * g.y * g.z;
    // Waking a thread costs some microseconds: as much as a few thousand emulated threads.
    const unsigned more = blocks * threads < 4096 ? 0 : (unsigned)std::min<unsigned long long>(blocks - 1, host_threads() - 1);
    Helpers::all().together(more, [](void* l) { run_blocks(*(Launch*)l); }, &launch);
    return launch.error;
}

} // namespace emulated

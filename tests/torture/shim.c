// A library for LD_PRELOAD that lets a chosen change of the files below a folder fail, or records all of them.
//
// A seccomp filter makes every system call that changes files raise SIGSYS, and the handler of that signal makes the call instead. So
// calls count that do not go through the C library, such as the renames of the crate rustix, which functions of the same names would
// miss. The filter passes calls whose sixth argument, which none of these calls uses, is PASS. Child processes inherit the filter, and
// they inherit this library with their environment.
//
// Environment:
//   TORTURE_FOLDER   absolute path of the folder
//   TORTURE_SHARED   a file of sizeof(struct shared) bytes, the same for all processes of a test, which hold its shared lock
//   TORTURE_CALL     the number of the call that fails, from 1; 0 for none
//   TORTURE_FAULT    the word of that fault, see fault_words
//   TORTURE_LOG      a file to which each call is appended: the line "operation TAB path TAB second path TAB offset TAB bytes", and the
//                    bytes themselves. A call that changed nothing has the operation "none". A symbolic link's second path is its target.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

#define PASS 0x746f7274
#define WRITING (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)
#define COUNT(array) (sizeof(array) / sizeof *(array))

enum fault { NONE, NO_SPACE, FULL, INPUT_OUTPUT, SHORT, TORN, KILL_BEFORE, KILL_AFTER };
static const char *fault_words[] = {
    "none", "no-space", "full", "input-output", "short", "torn", "kill-before", "kill-after",
};

static struct shared {
    uint64_t calls;            // counted so far
    char failed[2 * PATH_MAX]; // "operation TAB path" of the call that failed
} *shared;

static char folder[PATH_MAX];
static uint64_t call_to_fail;
static enum fault fault;
static int log_file = -1;
static volatile int locked; // while a call is made and recorded, so that the log has the calls in their order

// The arguments from which a call takes its paths.
enum form { DESCRIPTOR, PATH, AT_PATH, PATH_PATH, AT_PATH_AT_PATH, PATH_AT_PATH };

static const struct call {
    int number;
    const char *operation;
    enum form form;
    int takes_space; // fails on a full disk
} calls[] = {
    {SYS_open, "open", PATH, 1},                   {SYS_openat, "open", AT_PATH, 1},
    {SYS_write, "write", DESCRIPTOR, 1},           {SYS_pwrite64, "write", DESCRIPTOR, 1},
    {SYS_writev, "write", DESCRIPTOR, 1},          {SYS_pwritev, "write", DESCRIPTOR, 1},
    {SYS_ftruncate, "truncate", DESCRIPTOR, 0},    {SYS_fallocate, "allocate", DESCRIPTOR, 1},
    {SYS_fsync, "sync", DESCRIPTOR, 1},            {SYS_fdatasync, "sync", DESCRIPTOR, 1},
    {SYS_mkdir, "mkdir", PATH, 1},                 {SYS_mkdirat, "mkdir", AT_PATH, 1},
    {SYS_unlink, "remove", PATH, 0},               {SYS_unlinkat, "remove", AT_PATH, 0},
    {SYS_rmdir, "remove", PATH, 0},                {SYS_rename, "rename", PATH_PATH, 1},
    {SYS_renameat, "rename", AT_PATH_AT_PATH, 1},  {SYS_renameat2, "rename", AT_PATH_AT_PATH, 1},
    {SYS_link, "link", PATH_PATH, 1},              {SYS_linkat, "link", AT_PATH_AT_PATH, 1},
    {SYS_symlink, "symlink", PATH_PATH, 1},        {SYS_symlinkat, "symlink", PATH_AT_PATH, 1},
    {SYS_utimensat, "times", AT_PATH, 0},          {SYS_fchmod, "times", DESCRIPTOR, 0},
    // Refused, as by a kernel that lacks them: programs then read and write.
    {SYS_copy_file_range, NULL, DESCRIPTOR, 0}, {SYS_sendfile, NULL, DESCRIPTOR, 0},
};

static long pass(long number, const long *a) {
    long result = syscall(number, a[0], a[1], a[2], a[3], a[4], PASS);
    return result < 0 ? -errno : result;
}

static void fail(const char *what) {
    dprintf(2, "torture: %s: %s\n", what, strerror(errno));
    _exit(97);
}

// The absolute path of `path`, seen from the folder `at`; of the descriptor `at` if `path` is NULL.
static void resolve(int at, const char *path, char *out) {
    char link[64] = "/proc/self/cwd";
    ssize_t length = 0;
    if (at != AT_FDCWD) snprintf(link, sizeof link, "/proc/self/fd/%d", at);
    if (!path || path[0] != '/') length = readlink(link, out, PATH_MAX - 1);
    if (length < 0) length = 0;
    out[length] = 0;
    if (path && path[0]) snprintf(out + length, PATH_MAX - length, length ? "/%s" : "%s", path);
}

static int is_below(const char *path) {
    size_t length = strlen(folder);
    return strncmp(path, folder, length) == 0 && (path[length] == '/' || path[length] == 0);
}

static void resolve_both(const struct call *call, const long *a, char *first, char *second) {
    second[0] = 0;
    switch (call->form) {
    case DESCRIPTOR: resolve(a[0], NULL, first); break;
    case PATH: resolve(AT_FDCWD, (const char *)a[0], first); break;
    case AT_PATH: resolve(a[0], (const char *)a[1], first); break;
    case PATH_PATH: resolve(AT_FDCWD, (const char *)a[0], first), resolve(AT_FDCWD, (const char *)a[1], second); break;
    case AT_PATH_AT_PATH: resolve(a[0], (const char *)a[1], first), resolve(a[2], (const char *)a[3], second); break;
    case PATH_AT_PATH: resolve(a[1], (const char *)a[2], first); break;
    }
    if (!strcmp(call->operation, "symlink")) {
        if (call->form == PATH_PATH) strcpy(first, second);
        snprintf(second, PATH_MAX, "%s", (const char *)a[0]);
    }
}

// The parts of a write, at most 16, of which the first `most` bytes are kept. Returns their number.
static int parts_of(long number, const long *a, struct iovec *parts, size_t most) {
    struct iovec whole = {(void *)a[1], a[2]};
    int is_vector = number == SYS_writev || number == SYS_pwritev, count = 0;
    const struct iovec *from = is_vector ? (const struct iovec *)a[1] : &whole;
    for (int i = 0; i < (is_vector ? a[2] : 1) && i < 16 && most > 0; i++, count++) {
        parts[i] = from[i];
        if (parts[i].iov_len > most) parts[i].iov_len = most;
        most -= parts[i].iov_len;
    }
    return count;
}

static size_t bytes_in(const struct iovec *parts, int count) {
    size_t total = 0;
    for (int i = 0; i < count; i++) total += parts[i].iov_len;
    return total;
}

// Writes half of the bytes. Returns their number, or 0 where there is nothing to halve.
static long write_half(long number, const long *a) {
    struct iovec parts[16];
    long half = bytes_in(parts, parts_of(number, a, parts, SIZE_MAX)) / 2;
    if (half == 0) return 0;
    int count = parts_of(number, a, parts, half), positioned = number == SYS_pwrite64 || number == SYS_pwritev;
    return pass(positioned ? SYS_pwritev : SYS_writev, (long[5]){a[0], (long)parts, count, positioned ? a[3] : 0, 0});
}

static void append_to_log(const char *operation, const char *first, const char *second, long offset,
                          const struct iovec *data, int count) {
    char line[2 * PATH_MAX + 64];
    struct iovec parts[17] = {{line, 0}};
    memcpy(parts + 1, data, count * sizeof *data);
    size_t bytes = bytes_in(data, count);
    const char *text = operation ? operation : "none";
    parts[0].iov_len = snprintf(line, sizeof line, "%s\t%s\t%s\t%ld\t%zu\n", text, first, second, offset, bytes);
    long written = pass(SYS_writev, (long[5]){log_file, (long)parts, count + 1, 0, 0});
    if (written != (long)bytes_in(parts, count + 1)) fail("writing the log");
}

// Makes the call and appends it to the log.
static long record(const struct call *call, const long *a, const char *first, const char *second) {
    const char *operation = call->operation;
    struct iovec parts[16];
    struct stat before = {0};
    int count = 0, is_write = !strcmp(operation, "write"), is_open = !strcmp(operation, "open");
    int is_positioned = call->number == SYS_pwrite64 || call->number == SYS_pwritev;
    long offset = call->number == SYS_ftruncate ? a[1] : is_positioned ? a[3] : 0;
    int existed = call->form == DESCRIPTOR ? fstat(a[0], &before) == 0 : lstat(first, &before) == 0;
    if (is_write && !is_positioned) {
        offset = fcntl(a[0], F_GETFL) & O_APPEND ? before.st_size : lseek(a[0], 0, SEEK_CUR);
    }
    if (is_open) {
        long flags = call->form == PATH ? a[1] : a[2];
        operation = !existed ? "create" : flags & O_TRUNC ? "truncate" : NULL;
    }
    long result = pass(call->number, a);
    if (is_write && result > 0) count = parts_of(call->number, a, parts, result);
    append_to_log(result < 0 ? NULL : operation, first, second, offset, parts, count);
    return result;
}

static long make_call(const struct call *call, const long *a) {
    char first[PATH_MAX], second[PATH_MAX];
    if (!call->operation) return -ENOSYS;
    resolve_both(call, a, first, second);
    if (!is_below(first) && !is_below(second)) return pass(call->number, a);
    uint64_t number = __atomic_add_fetch(&shared->calls, 1, __ATOMIC_SEQ_CST);
    enum fault now = call_to_fail && number == call_to_fail ? fault : NONE;
    if (call_to_fail && number >= call_to_fail && fault == FULL) now = call->takes_space ? NO_SPACE : NONE;
    if (now != NONE && !shared->failed[0]) {
        snprintf(shared->failed, sizeof shared->failed, "%s\t%s", call->operation, second[0] ? second : first);
    }
    if (now == NO_SPACE || now == INPUT_OUTPUT) return now == NO_SPACE ? -ENOSPC : -EIO;
    if (now == KILL_BEFORE) kill(getpid(), SIGKILL);
    long half = (now == SHORT || now == TORN) && !strcmp(call->operation, "write") ? write_half(call->number, a) : 0;
    long result = half ? half : log_file < 0 ? pass(call->number, a) : record(call, a, first, second);
    if (now == KILL_AFTER || now == TORN) kill(getpid(), SIGKILL);
    return result;
}

static void on_signal(int signal, siginfo_t *info, void *context) {
    int saved = errno;
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    long arguments[] = {r[REG_RDI], r[REG_RSI], r[REG_RDX], r[REG_R10], r[REG_R8]};
    const struct call *call = calls;
    while (call->number != info->si_syscall) call++;
    while (log_file >= 0 && __atomic_exchange_n(&locked, 1, __ATOMIC_ACQUIRE)) {}
    r[REG_RAX] = make_call(call, arguments);
    __atomic_store_n(&locked, 0, __ATOMIC_RELEASE);
    errno = saved;
    (void)signal;
}

static void install_filter(void) {
    struct sock_filter filter[8 + 5 * COUNT(calls)];
    int n = 0;
#define ADD(...) filter[n++] = (struct sock_filter)__VA_ARGS__
#define LOAD(field) ADD(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field)))
#define ARGUMENT(i) LOAD(args[i])
#define SKIP_UNLESS(test, value, count) ADD(BPF_JUMP(BPF_JMP | test | BPF_K, value, 0, count))
#define RETURN(action) ADD(BPF_STMT(BPF_RET | BPF_K, action))
    ARGUMENT(5);
    SKIP_UNLESS(BPF_JEQ, PASS, 1);
    RETURN(SECCOMP_RET_ALLOW);
    for (size_t i = 0; i < COUNT(calls); i++) {
        int number = calls[i].number, is_open = number == SYS_open || number == SYS_openat;
        LOAD(nr);
        SKIP_UNLESS(BPF_JEQ, number, is_open || number == SYS_write ? 3 : 1);
        // Standard input, output and error are not of interest, nor is what only reads.
        if (is_open) ARGUMENT(number == SYS_open ? 1 : 2);
        if (is_open) SKIP_UNLESS(BPF_JSET, WRITING, 1);
        if (number == SYS_write) ARGUMENT(0);
        if (number == SYS_write) SKIP_UNLESS(BPF_JGE, 3, 1);
        RETURN(SECCOMP_RET_TRAP);
    }
    RETURN(SECCOMP_RET_ALLOW);
    struct sock_fprog program = {n, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) fail("no_new_privs");
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0)) fail("installing the seccomp filter");
}

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("TORTURE_FOLDER"), *log = getenv("TORTURE_LOG"), *word = getenv("TORTURE_FAULT");
    const char *number = getenv("TORTURE_CALL"), *memory = getenv("TORTURE_SHARED");
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO};
    if (!path || !memory) return;
    sigfillset(&action.sa_mask);
    if (sigaction(SIGSYS, &action, NULL)) fail("sigaction");
    // A parent's filter may be in force already: files are opened past it.
    int file = pass(SYS_openat, (long[5]){AT_FDCWD, (long)memory, O_RDWR | O_CLOEXEC, 0, 0});
    shared = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (shared == MAP_FAILED || flock(file, LOCK_SH)) fail(memory);
    snprintf(folder, sizeof folder, "%s", path);
    call_to_fail = number ? strtoull(number, NULL, 10) : 0;
    while (word && fault < COUNT(fault_words) && strcmp(fault_words[fault], word)) fault++;
    if (fault == COUNT(fault_words)) fail(word);
    long flags = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC;
    if (log && (log_file = pass(SYS_openat, (long[5]){AT_FDCWD, (long)log, flags, 0666, 0})) < 0) fail(log);
    install_filter();
}

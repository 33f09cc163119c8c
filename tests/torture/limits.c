// A library for LD_PRELOAD that gives a process a limit on threads, another time, or a file system without locks.
//
// Environment:
//   LIMIT_THREADS   the number of threads that each process may start; further ones fail with EAGAIN, as under `ulimit -u`
//   LIMIT_LOG       a file to which a line is appended for each thread that failed
//   CLOCK_SECONDS   the time at which each process starts, in seconds since 1970
//   LOCK_ERROR      the error number with which every lock of a file fails
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef int create_function(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

static long threads;

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument) {
    const char *limit = getenv("LIMIT_THREADS"), *log = getenv("LIMIT_LOG");
    create_function *create = (create_function *)dlsym(RTLD_NEXT, "pthread_create");
    if (!limit || __atomic_add_fetch(&threads, 1, __ATOMIC_SEQ_CST) <= atol(limit)) return create(thread, attributes, start, argument);
    int file = log ? open(log, O_WRONLY | O_APPEND | O_CREAT, 0666) : -1;
    if (file >= 0) (void)!write(file, "failed\n", 7), close(file);
    return EAGAIN;
}

int flock(int file, int operation) {
    const char *error = getenv("LOCK_ERROR");
    if (!error) return syscall(SYS_flock, file, operation);
    errno = atoi(error);
    return -1;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    static long begin;
    const char *seconds = getenv("CLOCK_SECONDS");
    int result = syscall(SYS_clock_gettime, clock, time);
    if (result || !seconds || clock != CLOCK_REALTIME) return result;
    if (!begin) begin = time->tv_sec;
    time->tv_sec += atol(seconds) - begin;
    return 0;
}

/* CUDA's libraries, loaded when a function of theirs is first called.
 *
 * The program is linked against these functions in place of the libraries, so it starts where there is no driver. Each one
 * jumps through a slot that first leads to `runner_shim_first`, which finds the function and writes its address into the slot.
 * All arguments stay where they are: general registers, vector registers (128 bits: no function of these takes more), stack.
 *
 * A missing library or function ends the process with a line that says so. The Rust side looks for libraries before it calls
 * any (crates/machine/src/doctor/), so users do not see this line.
 *
 * Where libraries are looked for is the same in crates/machine/src/doctor/library.rs.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HIDDEN __attribute__((visibility("hidden")))

struct library {
    const char *name;
    const char *const *sonames;
    void *handle;
};

struct function {
    void *address;
    const char *name;
    struct library *library;
};

/* Only the assembly names these. */
#define LIBRARY(name, ...)                                                                       \
    static const char *const sonames_##name[] = {__VA_ARGS__ __VA_OPT__(, ) NULL};               \
    HIDDEN __attribute__((used)) struct library runner_library_##name = {#name, sonames_##name, NULL};

LIBRARY(cuda, "libcuda.so.1")
LIBRARY(cublas, "libcublas.so.13", "libcublas.so.12")
LIBRARY(cublasLt, "libcublasLt.so.13", "libcublasLt.so.12")
LIBRARY(curand, "libcurand.so.10")
LIBRARY(nvrtc, "libnvrtc.so.13", "libnvrtc.so.12")
LIBRARY(nccl, "libnccl.so.2")
/* candle's kernels for quantized models, which would double the size of the program. Nothing calls them. */
LIBRARY(quantized)

/* DIR/FILE, or DIR/PACKAGE/lib/FILE as in the folder `nvidia` of a Python environment. */
static void *open_in(const char *dir, size_t length, const char *file) {
    char path[4096];
    void *handle = NULL;
    if (length == 0 || snprintf(path, sizeof path, "%.*s/%s", (int)length, dir, file) >= (int)sizeof path) return NULL;
    if (access(path, F_OK) == 0 && (handle = dlopen(path, RTLD_LAZY))) return handle;
    glob_t found;
    if (snprintf(path, sizeof path, "%.*s/*/lib/%s", (int)length, dir, file) >= (int)sizeof path) return NULL;
    if (glob(path, 0, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc && !handle; i++) handle = dlopen(found.gl_pathv[i], RTLD_LAZY);
    }
    globfree(&found);
    return handle;
}

static void *open_listed(const struct library *library) {
    const char *at = getenv("RUNNER_CUDA_LIBS");
    while (at && *at) {
        size_t length = strcspn(at, ":");
        for (const char *const *file = library->sonames; *file; file++) {
            void *handle = open_in(at, length, *file);
            if (handle) return handle;
        }
        at += length + (at[length] == ':');
    }
    return NULL;
}

static void *open_toolkit(const struct library *library) {
    const char *roots[] = {getenv("CUDA_HOME"), getenv("CUDA_PATH"), "/usr/local/cuda"};
    for (size_t i = 0; i < sizeof roots / sizeof *roots; i++) {
        for (const char *const *file = library->sonames; roots[i] && *roots[i] && *file; file++) {
            char path[4096];
            if (snprintf(path, sizeof path, "%s/lib64/%s", roots[i], *file) >= (int)sizeof path) continue;
            void *handle = access(path, F_OK) == 0 ? dlopen(path, RTLD_LAZY) : NULL;
            if (handle) return handle;
        }
    }
    return NULL;
}

static void *open_library(const struct library *library) {
    void *handle = open_listed(library);
    for (const char *const *file = library->sonames; *file && !handle; file++) handle = dlopen(*file, RTLD_LAZY);
    return handle ? handle : open_toolkit(library);
}

/* `_exit`, because functions that run at a normal exit may call CUDA again. */
__attribute__((noreturn)) static void missing(const struct function *f, const char *what) {
    fprintf(stderr, "error: %s of %s was called, but %s", f->name, f->library->name, what);
    const char *listed = getenv("RUNNER_CUDA_LIBS");
    for (const char *const *file = f->library->sonames; *file; file++) {
        fprintf(stderr, "%s%s", file == f->library->sonames ? "; looked for " : ", ", *file);
    }
    if (*f->library->sonames) {
        fprintf(stderr, " in RUNNER_CUDA_LIBS (%s), the loader's folders, CUDA_HOME/lib64", listed ? listed : "not set");
    }
    fputs("; `runner doctor` tells more\n", stderr);
    fflush(stderr);
    _exit(1);
}

/* Several threads may call this at once: each finds the same address and writes it atomically. */
HIDDEN __attribute__((used)) void *runner_shim_resolve(struct function *f) {
    struct library *library = f->library;
    void *handle = __atomic_load_n(&library->handle, __ATOMIC_ACQUIRE);
    if (!handle) {
        handle = open_library(library);
        if (!handle) missing(f, *library->sonames ? "no such library is to be found" : "this program is built without it");
        __atomic_store_n(&library->handle, handle, __ATOMIC_RELEASE);
    }
    void *address = dlsym(handle, f->name);
    if (!address) missing(f, "the library that was found has no such function: it is older than this program needs");
    __atomic_store_n(&f->address, address, __ATOMIC_RELEASE);
    return address;
}

/* Each function has its own sections, so that the linker drops functions that nothing calls. */
#define SHIM_OF(library, function, jump, first)                          \
    __asm__(".pushsection .text." #function ",\"ax\",%progbits\n"        \
            ".balign 8\n"                                                \
            ".globl " #function "\n"                                     \
            ".hidden " #function "\n"                                    \
            ".type " #function ",%function\n"                            \
            #function ":\n" jump                                         \
            ".Lfirst." #function ":\n" first                             \
            ".size " #function ",.-" #function "\n"                      \
            ".popsection\n"                                              \
            ".pushsection .data.rel." #function ",\"aw\",%progbits\n"    \
            ".balign 8\n"                                                \
            ".Lslot." #function ":\n"                                    \
            ".quad .Lfirst." #function "\n"                              \
            ".quad .Lname." #function "\n"                               \
            ".quad runner_library_" #library "\n"                        \
            ".popsection\n"                                              \
            ".pushsection .rodata." #function ",\"a\",%progbits\n"       \
            ".Lname." #function ": .asciz \"" #function "\"\n"           \
            ".popsection\n");

#if defined(__x86_64__)

#define SHIM(library, function)                                                     \
    SHIM_OF(library, function, "jmp *.Lslot." #function "(%rip)\n",                 \
            "leaq .Lslot." #function "(%rip), %r11\njmp runner_shim_first\n")

__asm__(".pushsection .text.runner_shim_first,\"ax\",@progbits\n"
        ".hidden runner_shim_first\n"
        ".globl runner_shim_first\n"
        ".type runner_shim_first,@function\n"
        "runner_shim_first:\n"
        ".cfi_startproc\n"
        "pushq %rbp\n"
        ".cfi_def_cfa_offset 16\n"
        ".cfi_offset %rbp, -16\n"
        "movq %rsp, %rbp\n"
        ".cfi_def_cfa_register %rbp\n"
        "subq $192, %rsp\n"
        "andq $-16, %rsp\n"
        "movq %rax, (%rsp)\n"
        "movq %rdi, 8(%rsp)\n"
        "movq %rsi, 16(%rsp)\n"
        "movq %rdx, 24(%rsp)\n"
        "movq %rcx, 32(%rsp)\n"
        "movq %r8, 40(%rsp)\n"
        "movq %r9, 48(%rsp)\n"
        "movq %r10, 56(%rsp)\n"
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7\n"
        "movaps %xmm\\n, 64+16*\\n(%rsp)\n"
        ".endr\n"
        "movq %r11, %rdi\n"
        "call runner_shim_resolve\n"
        "movq %rax, %r11\n"
        "movq (%rsp), %rax\n"
        "movq 8(%rsp), %rdi\n"
        "movq 16(%rsp), %rsi\n"
        "movq 24(%rsp), %rdx\n"
        "movq 32(%rsp), %rcx\n"
        "movq 40(%rsp), %r8\n"
        "movq 48(%rsp), %r9\n"
        "movq 56(%rsp), %r10\n"
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7\n"
        "movaps 64+16*\\n(%rsp), %xmm\\n\n"
        ".endr\n"
        "leave\n"
        ".cfi_def_cfa %rsp, 8\n"
        "jmp *%r11\n"
        ".cfi_endproc\n"
        ".size runner_shim_first,.-runner_shim_first\n"
        ".popsection\n");

#elif defined(__aarch64__)

#define SHIM(library, function)                                                                              \
    SHIM_OF(library, function,                                                                               \
            "adrp x16, .Lslot." #function "\nldr x16, [x16, :lo12:.Lslot." #function "]\nbr x16\n",          \
            "adrp x17, .Lslot." #function "\nadd x17, x17, :lo12:.Lslot." #function "\nb runner_shim_first\n")

__asm__(".pushsection .text.runner_shim_first,\"ax\",%progbits\n"
        ".hidden runner_shim_first\n"
        ".globl runner_shim_first\n"
        ".type runner_shim_first,%function\n"
        "runner_shim_first:\n"
        ".cfi_startproc\n"
        "stp x29, x30, [sp, #-224]!\n"
        ".cfi_def_cfa_offset 224\n"
        ".cfi_offset 29, -224\n"
        ".cfi_offset 30, -216\n"
        "mov x29, sp\n"
        "stp x0, x1, [sp, #16]\n"
        "stp x2, x3, [sp, #32]\n"
        "stp x4, x5, [sp, #48]\n"
        "stp x6, x7, [sp, #64]\n"
        "str x8, [sp, #80]\n"
        "stp q0, q1, [sp, #96]\n"
        "stp q2, q3, [sp, #128]\n"
        "stp q4, q5, [sp, #160]\n"
        "stp q6, q7, [sp, #192]\n"
        "mov x0, x17\n"
        "bl runner_shim_resolve\n"
        "mov x16, x0\n"
        "ldp x0, x1, [sp, #16]\n"
        "ldp x2, x3, [sp, #32]\n"
        "ldp x4, x5, [sp, #48]\n"
        "ldp x6, x7, [sp, #64]\n"
        "ldr x8, [sp, #80]\n"
        "ldp q0, q1, [sp, #96]\n"
        "ldp q2, q3, [sp, #128]\n"
        "ldp q4, q5, [sp, #160]\n"
        "ldp q6, q7, [sp, #192]\n"
        "ldp x29, x30, [sp], #224\n"
        ".cfi_restore 29\n"
        ".cfi_restore 30\n"
        ".cfi_def_cfa_offset 0\n"
        "br x16\n"
        ".cfi_endproc\n"
        ".size runner_shim_first,.-runner_shim_first\n"
        ".popsection\n");

#else
#error "CUDA is on x86_64 and aarch64"
#endif

#include "symbols.inc"

/* candle makes a handle of cuBLAS and a generator of cuRAND with each device. Nothing here computes with them: products are
 * cuBLASLt's, random numbers our own. So they are null, and neither library is needed; should something call one with them after
 * all, the library is looked for, and refuses what is null. */
#define MAKES_NULL(function) \
    HIDDEN int function(void **made) { return *made = NULL, 0; }
#define DOES_NOTHING(function) \
    HIDDEN int function(void) { return 0; }
MAKES_NULL(cublasCreate_v2)
DOES_NOTHING(cublasDestroy_v2)
DOES_NOTHING(cublasSetStream_v2)
MAKES_NULL(curandCreateGenerator)
DOES_NOTHING(curandDestroyGenerator)
DOES_NOTHING(curandSetStream)
DOES_NOTHING(curandSetPseudoRandomGeneratorSeed)

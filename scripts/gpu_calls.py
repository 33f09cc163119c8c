#!/usr/bin/env python3
"""Which calls of CUDA's driver wait behind a kernel that does not end, as one of NCCL's does that waits for another rank. One GPU, under 40 s.

    python3 scripts/gpu_calls.py [--results FILE]      # each case in a process of its own, with modules that are loaded eagerly and lazily
    python3 scripts/gpu_calls.py --case NAME

A kernel on one stream runs until the host sets a flag. A thread then makes the case's call; if that has not returned after a second, it waits
for the kernel. If another rank waits for what comes after such a call, the ranks wait in a circle, so a step must not make it for the first time
while a transfer may be under way (crates/executor/src/rehearsal.rs).
"""

import argparse
import ctypes
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import gpu_common as common

MIB = 1 << 20
PATIENCE = 1.0

# `hold` runs until the word at its argument is not 0; `leave` ends at once.
MODULE = """.version 7.0
.target sm_80
.address_size 64
.visible .entry hold%s(.param .u64 word) {
    .reg .pred waits;
    .reg .u32 value;
    .reg .u64 address;
    ld.param.u64 address, [word];
look:
    ld.volatile.global.u32 value, [address];
    setp.eq.u32 waits, value, 0;
    @waits bra look;
    ret;
}
.visible .entry leave%s() { ret; }
"""


class Card:
    """The first GPU with two streams, and memory of each kind."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device, self.context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), device)
        self.call("cuCtxSetCurrent", self.context)
        self.module = self.made("cuModuleLoadData", (MODULE % ("", "")).encode())
        self.hold, self.leave = (self.made("cuModuleGetFunction", self.module, name) for name in (b"hold", b"leave"))
        self.compute, self.other = self.made("cuStreamCreate", 1), self.made("cuStreamCreate", 1)
        # Written by the host, read by the kernel (CU_MEMHOSTALLOC_DEVICEMAP).
        self.flag = self.made("cuMemHostAlloc", ctypes.c_size_t(4096), 2)
        self.seen = ctypes.c_uint64()
        self.call("cuMemHostGetDevicePointer_v2", ctypes.byref(self.seen), self.flag, 0)
        self.set_flag(0)
        self.pool = self.made("cuDeviceGetDefaultMemPool", device)
        # Freed memory stays in the pool, as in the program (CU_MEMPOOL_ATTR_RELEASE_THRESHOLD).
        self.call("cuMemPoolSetAttribute", self.pool, 4, ctypes.byref(ctypes.c_uint64(2**64 - 1)))
        self.tensor = self.address("cuMemAllocAsync", ctypes.c_size_t(64 * MIB), self.compute)
        self.plain = self.address("cuMemAlloc_v2", ctypes.c_size_t(64 * MIB))
        self.pinned, self.event = self.made("cuMemHostAlloc", ctypes.c_size_t(MIB), 0), self.made("cuEventCreate", 0)
        self.call("cuCtxSynchronize")

    def call(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        if code:
            raise RuntimeError(f"{name}: error {code}")

    def made(self, name, *arguments):
        """What a call stores at its first argument."""
        handle = ctypes.c_void_p()
        self.call(name, ctypes.byref(handle), *arguments)
        return handle

    def address(self, name, *arguments):
        place = ctypes.c_uint64()
        self.call(name, ctypes.byref(place), *arguments)
        return place

    def set_flag(self, value):
        ctypes.c_uint32.from_address(self.flag.value).value = value

    def launch(self, kernel, stream, arguments=None):
        self.call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, None)

    def start_waiting(self):
        argument = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.pointer(self.seen), ctypes.c_void_p))
        self.launch(self.hold, self.other, argument)
        time.sleep(0.05)


class Products:
    """cuBLASLt, for its first product of 1,024 × 1,024 × 1,024 in bf16."""

    def __init__(self, card, makes_handle):
        folders = [f for key in ("RUNNER_CUDA_LIBS", "GPU_CHECK_LIBS") for f in os.environ.get(key, "").split(":") if f]
        paths = [os.path.join(folder, name) for name in ("libcublasLt.so.13", "libcublasLt.so.12") for folder in [*folders, ""]]
        self.library = None
        for path in paths:
            try:
                self.library = ctypes.CDLL(path)
                break
            except OSError:
                continue
        if self.library is None:
            raise LookupError("cuBLASLt is not to be found")
        self.card, self.handle = card, ctypes.c_void_p()
        self.data = card.address("cuMemAlloc_v2", ctypes.c_size_t(32 * MIB))
        if makes_handle:
            self.make_handle()

    def checked(self, code):
        if code:
            raise RuntimeError(f"cuBLASLt: status {code}")

    def make_handle(self):
        self.checked(self.library.cublasLtCreate(ctypes.byref(self.handle)))

    def multiply(self):
        description, layout, size = ctypes.c_void_p(), ctypes.c_void_p(), 1024
        # CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16BF.
        self.checked(self.library.cublasLtMatmulDescCreate(ctypes.byref(description), 68, 0))
        self.checked(self.library.cublasLtMatrixLayoutCreate(ctypes.byref(layout), 14, ctypes.c_uint64(size), ctypes.c_uint64(size), ctypes.c_int64(size)))
        a, b, out = (ctypes.c_void_p(self.data.value + index * 8 * MIB) for index in range(3))
        one, zero = ctypes.byref(ctypes.c_float(1)), ctypes.byref(ctypes.c_float(0))
        self.checked(self.library.cublasLtMatmul(self.handle, description, one, a, layout, b, layout, zero, out, layout, out, layout, None, None,
                                                 ctypes.c_size_t(0), self.card.compute))


def cases(card, products):
    size = ctypes.c_size_t
    pageable = ctypes.create_string_buffer(8 * MIB)
    return {
        "cuCtxSynchronize, which must wait": lambda: card.call("cuCtxSynchronize"),
        "cuMemAllocAsync, the pool grows": lambda: card.address("cuMemAllocAsync", size(4096 * MIB), card.compute),
        "cuMemFreeAsync": lambda: card.call("cuMemFreeAsync", card.tensor, card.compute),
        "cuMemPoolTrimTo": lambda: card.call("cuMemPoolTrimTo", card.pool, size(0)),
        "cuMemAlloc": lambda: card.address("cuMemAlloc_v2", size(64 * MIB)),
        "cuMemFree": lambda: card.call("cuMemFree_v2", card.plain),
        "cuMemHostAlloc": lambda: card.made("cuMemHostAlloc", size(64 * MIB), 0),
        "cuMemFreeHost": lambda: card.call("cuMemFreeHost", card.pinned),
        "cuModuleLoadData": lambda: card.made("cuModuleLoadData", (MODULE % ("_2", "_2")).encode()),
        "a kernel's first launch": lambda: card.launch(card.leave, card.compute),
        "cuStreamCreate": lambda: card.made("cuStreamCreate", 1),
        "cuEventDestroy": lambda: card.call("cuEventDestroy_v2", card.event),
        "a copy from pageable memory": lambda: card.call("cuMemcpyHtoDAsync_v2", card.tensor, pageable, size(8 * MIB), card.compute),
        "4,000 launches behind the kernel": lambda: [card.launch(card.leave, card.other) for _ in range(4000)],
        "4,000 launches on another stream": lambda: [card.launch(card.leave, card.compute) for _ in range(4000)],
        "cublasLtCreate": lambda: products(False).make_handle(),
        "the first product of cuBLASLt": lambda: products(True).multiply(),
    }


NAMES = list(cases(None, None))


def one(name):
    """Prints `waits` or `returns`, with milliseconds."""
    card = Card()
    library = Products(card, name.startswith("the first")) if "ublas" in name else None
    action = cases(card, lambda _: library)[name]
    errors = []

    def work():
        try:
            card.call("cuCtxSetCurrent", card.context)
            action()
        except (RuntimeError, LookupError) as error:
            errors.append(str(error))

    card.start_waiting()
    thread, began = threading.Thread(target=work, daemon=True), time.monotonic()
    thread.start()
    thread.join(PATIENCE)
    waits = thread.is_alive()
    card.set_flag(1)
    thread.join(10)
    said = "; ".join(errors) or f"{'waits' if waits else 'returns'}, {1e3 * (time.monotonic() - began):.1f} ms"
    print(said, flush=True)
    # Without the driver's own end, which could wait, too.
    os._exit(1 if errors else 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=NAMES)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--seconds", type=float, default=40)
    options, _ = parser.parse_known_args()
    if options.case:
        return one(options.case)
    notes, clock = common.Notes(options.results, "calls"), common.Clock(options.seconds)
    if not common.driver():
        notes.add("calls behind a kernel", None, note="there is no GPU")
        return 0
    for mode in ("EAGER", "LAZY"):
        for name in NAMES:
            label = f"{name}, modules {mode}"
            if clock.left() < 3:
                notes.add(label, None, note="not reached: no time was left")
                continue
            environment = common.runner_environment(Path()) | {"CUDA_MODULE_LOADING": mode}
            try:
                done = subprocess.run([sys.executable, __file__, "--case", name], env=environment, capture_output=True, text=True, timeout=15)
            except subprocess.TimeoutExpired:
                notes.add(label, None, "waits, and went on doing so", note="after the kernel had ended")
                continue
            said = common.tail(done.stdout or done.stderr, 1)
            notes.add(label, True if done.returncode == 0 else None, said if done.returncode == 0 else "", note="" if done.returncode == 0 else said)
    return 0


if __name__ == "__main__":
    sys.exit(main())

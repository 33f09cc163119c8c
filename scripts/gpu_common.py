"""Functions that the scripts for GPUs share: running the program with its libraries, reading what it recorded, and noting results.

A result is one JSON object a line: `part`, `name`, `ok` (true, false, or null for what was not done), `value`, `limit`, `note`.
Python's standard library alone.
"""

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXPERIMENTS = ROOT / "experiments" / "gpu"


def arguments(description, limit):
    """The arguments of a script for GPUs: the program, folders, the device, and `limit` seconds."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--runner", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, default=limit)
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try this script")
    return parser


class Failed(Exception):
    """A run did not do what it should. The message names the run and what it did."""


def results(path):
    """All results recorded so far. An incomplete last line is left out."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


class Notes:
    """Records results in a file and prints them."""

    def __init__(self, path, part):
        self.path, self.part, self.failed = path, part, False

    def add(self, name, ok, value="", limit="", note="", **more):
        self.failed |= ok is False
        entry = {"part": self.part, "name": name, "ok": ok, "value": value, "limit": limit, "note": note, **more}
        if self.path:
            with self.path.open("a") as file:
                file.write(json.dumps(entry) + "\n")
        word = {True: "ok", False: "FAILED", None: "not done"}[ok]
        said = [f"{word:8} {name}", str(value), f"limit {limit}" if limit else "", note]
        print("  ".join(s for s in said if s), flush=True)


def runner_environment(folder):
    """The program's environment: runs and cache under `folder`, none of the caller's settings, CUDA's libraries where they were found."""
    kept = {"RUNNER_CUDA_LIBS", "RUNNER_GPU_REQUIRED"}
    is_kept = lambda name: not name.startswith("RUNNER_") or name.startswith("RUNNER_EMULATED_") or name in kept
    environment = {k: v for k, v in os.environ.items() if is_kept(k)}
    cache = os.environ.get("GPU_CHECK_CACHE") or str(folder / "cache")
    environment |= {"RUNNER_RUNS": str(folder / "runs"), "RUNNER_CACHE": cache, "NO_COLOR": "1"}
    libraries = [os.environ.get("GPU_CHECK_LIBS", ""), environment.get("LD_LIBRARY_PATH", "")]
    if any(libraries):
        environment["LD_LIBRARY_PATH"] = ":".join(part for part in libraries if part)
    return environment


def flags(settings):
    """A `--set` flag for each entry of a dictionary."""
    return [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]


# Processes that lead sessions of their own, so that they can be ended with all that they started.
LIVE = set()


def spawn(command, **options):
    """Starts a process that does not outlive this one."""
    process = subprocess.Popen([str(part) for part in command], start_new_session=True, **options)
    LIVE.add(process)
    return process


def end_all(number, _frame):
    for process in list(LIVE):
        end(process)
    sys.exit(128 + number)


signal.signal(signal.SIGTERM, end_all)
signal.signal(signal.SIGINT, end_all)


def tail(text, lines=12):
    return "\n".join(text.strip().splitlines()[-lines:])


def stacks(process):
    """Where the threads of a process and of all that it started are, for a message about what does not end: by gdb, or as the kernel tells it."""
    said = []

    def is_member(number):
        try:
            return os.getpgid(number) == process.pid
        except OSError:  # it has just ended
            return False

    for member in [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and is_member(int(path.name))]:
        try:
            done = subprocess.run(["gdb", "-p", str(member), "-batch", "-ex", "thread apply all bt 12"], capture_output=True, text=True, timeout=3)
            frames = [line for line in done.stdout.splitlines() if line.startswith(("#", "Thread"))]
        except (OSError, subprocess.TimeoutExpired):
            frames = []
        if frames:
            said.append(f"process {member}\n" + "\n".join(frames))
            continue
        for task in sorted(Path(f"/proc/{member}/task").glob("*")):
            try:
                said.append(f"process {member}, thread {task.name} ({(task / 'comm').read_text().strip()}): {(task / 'wchan').read_text() or 'runs'}")
            except OSError:
                continue
    return "\n".join(said)


def run(command, folder, limit, expect=(0,), environment=None):
    """Runs a command to its end, for at most `limit` seconds. Returns (exit code, standard output, both outputs)."""
    command = [str(part) for part in command]
    environment = runner_environment(folder) | (environment or {})
    process = spawn(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                    text=True, errors="replace")
    try:
        out, error = process.communicate(timeout=max(limit, 1))
        LIVE.discard(process)
    except subprocess.TimeoutExpired:
        where = stacks(process)
        end(process)
        out, error = process.communicate()
        raise Failed(f"{' '.join(command)}: not done after {limit:.0f} s\n{tail(out + error)}\n{where}") from None
    if expect is not None and process.returncode not in expect:
        raise Failed(f"{' '.join(command)}: exit code {process.returncode}\n{tail(out + error)}")
    return process.returncode, out, out + error


def end(process):
    """Kills a process that leads a session of its own, and the processes that it started."""
    LIVE.discard(process)
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(timeout=3)
        except subprocess.TimeoutExpired:
            continue


def run_folder(folder, name):
    """The newest run of this experiment's name under `folder`/runs."""
    found = sorted((folder / "runs").glob(f"{name}-*/manifest.json"), key=lambda p: p.stat().st_mtime)
    if not found:
        raise Failed(f"there is no run {name} in {folder / 'runs'}")
    return found[-1].parent


def metrics(run_dir, kind):
    path, found = run_dir / "metrics.jsonl", []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            entry = json.loads(line)
        except ValueError:
            raise Failed(f"{path}:{number}: not JSON: {line[:80]!r}") from None
        if entry.get("kind") == kind:
            found.append(entry)
    return found


def summary(run_dir):
    return json.loads((run_dir / "summary.json").read_text())


def losses(run_dir):
    return [entry["loss"] for entry in metrics(run_dir, "train")]


def planned(run_dir):
    """Bytes of memory that the plan counts for each rank, without what only the host's process has."""
    plan = json.loads((run_dir / "plan.json").read_text())
    return [{k: v for k, v in rank["memory"].items() if isinstance(v, int)} for rank in plan["ranks"]]


def planned_tensors(run_dir):
    """Bytes that the plan counts for each rank's tensors: without the driver's context and NCCL's buffers."""
    plan = json.loads((run_dir / "plan.json").read_text())
    return [sum(i["bytes"] * i["count"] for i in rank["memory"]["items"] if i["category"] != "context") for rank in plan["ranks"]]


def driver():
    """(name, bytes, (major, minor)) of every GPU that CUDA's driver shows; nothing without a driver."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    if cuda.cuInit(0) != 0:
        return []
    count, found = ctypes.c_int(0), []
    cuda.cuDeviceGetCount(ctypes.byref(count))
    for index in range(count.value):
        device, memory, major, minor = ctypes.c_int(0), ctypes.c_size_t(0), ctypes.c_int(0), ctypes.c_int(0)
        name = ctypes.create_string_buffer(256)
        cuda.cuDeviceGet(ctypes.byref(device), index)
        cuda.cuDeviceGetName(name, 256, device)
        cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
        cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device)
        cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
        found.append((name.value.decode(errors="replace"), memory.value, (major.value, minor.value)))
    return found


def nccl_version():
    """NCCL's version, such as (2, 30, 4), and its file; None if there is none."""
    folders = [f for key in ("RUNNER_CUDA_LIBS", "GPU_CHECK_LIBS") for f in os.environ.get(key, "").split(":") if f]
    for path in [str(Path(f) / "libnccl.so.2") for f in folders] + ["libnccl.so.2"]:
        try:
            library = ctypes.CDLL(path)
            number = ctypes.c_int(0)
            library.ncclGetVersion(ctypes.byref(number))
        except (OSError, AttributeError):
            continue
        version = number.value
        if version < 10_000:  # up to 2.8: 1000·major + 100·minor + patch
            return (version // 1000, version % 1000 // 100, version % 100), path
        return (version // 10_000, version % 10_000 // 100, version % 100), path
    return None


class MemoryWatch:
    """The most that the driver says is in use on GPU 0 while it runs, beyond what was before, in bytes; None without nvidia-smi."""

    COMMAND = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]

    def __init__(self, on=True):
        self.before = self.read() if on else None
        self.peak = self.before
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.follow, daemon=True)

    def read(self):
        try:
            done = subprocess.run(self.COMMAND, capture_output=True, text=True, timeout=5)
            return int(done.stdout.split()[0]) << 20
        except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
            return None

    def follow(self):
        while not self.stop.wait(0.25):
            self.peak = max(self.peak, self.read() or 0)

    def __enter__(self):
        if self.before is not None:
            self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        if self.before is not None:
            self.thread.join(timeout=6)

    def bytes(self):
        return None if self.before is None else self.peak - self.before


class Clock:
    """The time that a part has left."""

    def __init__(self, seconds):
        self.until = time.monotonic() + seconds

    def left(self):
        return self.until - time.monotonic()

#!/usr/bin/env python3
"""What only a card can tell, each in a part of its own: python3 scripts/gpu_session.py PART --runner ./runner --scratch /tmp/s [--results FILE]

  clocks   the clock and the power of a training step of GPT-2 124M: whether it is slower than its kernels alone because the card slows down
  gaps     the time between kernels, by Nsight Systems (NSYS names the tool where it is not found)
  loading  memory and time until the first step with CUDA_MODULE_LOADING=EAGER and LAZY
  killed   how long the other rank of two lives when one is killed, while they connect and in a step
"""

import json
import os
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import gpu_bench
import gpu_common as common
import gpu_ranks

# The names that nvidia-smi has for the reasons of a lower clock, since and before driver 535.
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
# Bits of these reasons (nvml.h).
WHY = {0x4: "power limit", 0x8: "hardware slowdown", 0x20: "heat", 0x40: "hardware heat", 0x80: "power brake"}


class Samples:
    """Clock, power and reasons of GPU 0, ten times a second while it runs. Nothing without nvidia-smi."""

    def __init__(self):
        self.lines, self.process = [], None

    def __enter__(self):
        for reasons in REASONS if shutil.which("nvidia-smi") else ():
            command = ["nvidia-smi", f"--query-gpu=clocks.sm,power.draw,{reasons}", "--format=csv,noheader,nounits", "--id=0"]
            try:
                is_known = subprocess.run(command, capture_output=True, timeout=10).returncode == 0
            except subprocess.TimeoutExpired:
                is_known = False
            if is_known:
                self.process = common.spawn([*command, "-lms", "100"], stdout=subprocess.PIPE, text=True)
                threading.Thread(target=lambda: self.lines.extend(self.process.stdout), daemon=True).start()
                break
        return self

    def __exit__(self, *_):
        if self.process:
            common.end(self.process)


def busy_samples(lines):
    """(clock in MHz, power in W, reasons) of the samples in which the card worked: those above half of the largest power."""
    samples = []
    for line in lines:
        try:
            clock, power, reasons = line.split(",")
            samples.append((float(clock), float(power), int(reasons, 16)))
        except ValueError:
            continue
    most = max((power for _, power, _ in samples), default=0)
    return [sample for sample in samples if sample[1] > most / 2]


def clocks(options, notes):
    bench = gpu_bench.Bench(options, notes)
    rows = 2 if options.tiny else 64
    bench.steps = lambda _: gpu_bench.TINY_STEPS if options.tiny else (10, 140)
    with Samples() as samples:
        figures = bench.ours("gpt2", "bf16", rows, options.seconds - 2)
    name = f"clock and power of a step, GPT-2 124M bf16, {rows} rows"
    busy = busy_samples(samples.lines)
    if not busy:
        notes.add(name, None, f"{figures['step_ms']:.1f} ms", note="nvidia-smi shows no clocks here")
        return
    clock, power = (statistics.median(column) for column in list(zip(*busy))[:2])
    reasons = sorted({word for _, _, bits in busy for bit, word in WHY.items() if bits & bit})
    note = f"slowed down by: {', '.join(reasons)}" if reasons else "not slowed down"
    notes.add(name, True, f"{figures['step_ms']:.1f} ms at {clock:.0f} MHz, {power:.0f} W", note=note, samples=len(busy))


def gaps_of(kernels):
    """Of (start, end, name) in nanoseconds, in order of start: milliseconds in kernels, between them, and the latter by the kernel before."""
    busy, between, by, until, before = 0, 0, {}, None, ""
    for start, end, name in kernels:
        if until is not None and start > until:
            between += start - until
            by[before] = by.get(before, 0) + start - until
        busy += max(0, end - max(start, until or start))
        if until is None or end > until:
            until, before = end, name
    largest = sorted(by.items(), key=lambda entry: -entry[1])
    return busy / 1e6, between / 1e6, [(name, nanoseconds / 1e6) for name, nanoseconds in largest]


def gaps(options, notes):
    nsys = os.environ.get("NSYS") or shutil.which("nsys")
    if not nsys:
        notes.add("time between kernels", None, note="Nsight Systems (nsys) is not on this machine")
        return
    bench, steps, rows, clock = gpu_bench.Bench(options, notes), 12, 2 if options.tiny else 64, common.Clock(options.seconds)
    settings = bench.settings("gpt2", "bf16", rows) | {"train.steps": steps}
    report = options.scratch / "gaps"
    command = [options.runner, "apply", common.EXPERIMENTS / gpu_bench.MODELS["gpt2"]["file"], "--quiet", "--new", *common.flags(settings)]
    common.run([nsys, "profile", "-t", "cuda", "--force-overwrite", "true", "-o", report, *command], options.scratch, clock.left() - 10)
    common.run([nsys, "export", "--type", "sqlite", "--force-overwrite", "true", "-o", f"{report}.sqlite", f"{report}.nsys-rep"], options.scratch, clock.left())
    query = "SELECT k.start, k.end, s.value FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON k.shortName = s.id ORDER BY k.start"
    with sqlite3.connect(f"{report}.sqlite") as database:
        kernels = database.execute(query).fetchall()
    # The first steps load kernels, and choose algorithms.
    late = kernels[len(kernels) // 2:]
    busy, between, largest = gaps_of(late)
    said = ", ".join(f"after {name} {ms:.2f}" for name, ms in largest[:4])
    notes.add(f"time between kernels, {steps // 2} steps of {rows} rows", True, f"{between:.2f} ms beside {busy:.1f} ms in {len(late)} kernels", note=said)


def small_run(options, steps, more=()):
    settings = {"device": options.device, "precision": "bf16", "train.steps": steps, "eval.at_start": "false"}
    settings |= gpu_ranks.TINY if options.tiny else {}
    return [options.runner, "apply", common.EXPERIMENTS / "parity-llama.yaml", "--new", "--threads", 2, *common.flags(settings | dict(more))]


def loading(options, notes):
    for mode in ("LAZY", "EAGER"):
        folder = options.scratch / f"loading-{mode}"
        folder.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        with common.MemoryWatch(options.device == "cuda") as watch:
            common.run([*small_run(options, 3), "--quiet"], folder, options.seconds / 2, environment={"CUDA_MODULE_LOADING": mode})
        seconds = time.monotonic() - began
        used, planned = watch.bytes(), sum(common.planned_tensors(common.run_folder(folder, "parity-llama")))
        memory = "" if used is None else f", {(used - planned) / 2**20:.0f} MiB beside the tensors"
        notes.add(f"CUDA_MODULE_LOADING={mode}", True, f"{seconds:.1f} s for 3 steps{memory}", note="" if used else "nvidia-smi shows no memory here")


def ranks_of(process):
    """The processes `runner rank …` that a command has started."""
    try:
        children = [word for path in Path(f"/proc/{process}/task").glob("*/children") for word in path.read_text().split()]
        return [int(child) for child in children if Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")[1:2] == [b"rank"]]
    except OSError:  # one of them has just ended
        return []


def is_alive(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (OSError, IndexError):
        return False


def kill_one(options, name, settings, environment, while_connecting, clock):
    """Kills the second of two ranks. Returns the seconds until all ended, and what the command said."""
    folder = options.scratch / f"killed-{name.replace(' ', '-')}-{while_connecting}"
    folder.mkdir(parents=True, exist_ok=True)
    errors = (folder / "errors").open("w+")
    process = common.spawn([*small_run(options, 100_000, {"batch.sequences": 8} | settings), "--json"], cwd=common.ROOT,
                           env=common.runner_environment(folder) | environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True)
    steps = []
    threading.Thread(target=lambda: steps.extend(line for line in process.stdout if '"kind":"train"' in line.replace(" ", "")), daemon=True).start()
    try:
        while len(ranks_of(process.pid)) < 2 or (not while_connecting and len(steps) < 3):
            if process.poll() is not None or clock.left() < 0:
                raise common.Failed(f"{name}: it did not come to the step\n{common.tail((folder / 'errors').read_text())}")
            time.sleep(0.02)
        if while_connecting and options.device == "cuda":
            time.sleep(1)  # until they have opened their GPUs
        ranks = ranks_of(process.pid)
        os.kill(ranks[-1], signal.SIGKILL)
        began = time.monotonic()
        while process.poll() is None or any(map(is_alive, ranks)):
            if clock.left() < 0:
                raise common.Failed(f"{name}: processes are left after {time.monotonic() - began:.0f} s\n{common.stacks(process)}")
            time.sleep(0.02)
        return time.monotonic() - began, (folder / "errors").read_text(), process.wait()
    finally:
        common.end(process)
        errors.close()


def killed(options, notes):
    environment, sharing, why = gpu_ranks.sharing(options.device)
    if why:
        notes.add("a killed rank", None, note=why)
        return
    layouts, clock = gpu_ranks.layouts(1 if sharing else 2, sharing), common.Clock(options.seconds)
    for name in ("ddp 2", "pipeline 2"):
        for while_connecting in (False, True):
            label = f"{name}: one rank killed {'while they connect' if while_connecting else 'in a step'}"
            if clock.left() < 5:
                notes.add(label, None, note="not reached: no time was left")
                continue
            try:
                seconds, said, code = kill_one(options, name, layouts[name], environment, while_connecting, clock)
            except common.Failed as error:
                notes.add(label, False, note=str(error))
                continue
            notes.add(label, code != 0 and seconds < 10, f"all ended after {seconds:.1f} s", "10 s", common.tail(said, 1))


PARTS = {"clocks": clocks, "gaps": gaps, "loading": loading, "killed": killed}


def main():
    parser = common.arguments(__doc__.splitlines()[0], 60)
    parser.add_argument("part", choices=PARTS)
    options = parser.parse_args()
    options.runner, options.threads, options.python = options.runner.resolve(), 2, ""
    options.scratch.mkdir(parents=True, exist_ok=True)
    notes = common.Notes(options.results, options.part)
    try:
        PARTS[options.part](options, notes)
    except (common.Failed, OSError, ValueError, KeyError, sqlite3.Error, json.JSONDecodeError, statistics.StatisticsError) as error:
        notes.add(options.part, False, note=str(error) or repr(error))
    return 1 if notes.failed else 0


if __name__ == "__main__":
    sys.exit(main())

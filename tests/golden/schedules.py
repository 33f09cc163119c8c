#!/usr/bin/env python3
"""Learning rates of PyTorch's schedulers, step by step: writes schedules.safetensors next to this file.

    python schedules.py                                      # writes the fixture (needs torch, numpy)
    python schedules.py --runner ../../target/release/runner # compares with what a run records; writes nothing

PyTorch's schedulers multiply the last rate instead of computing each from its step; what that rounds is part of the
reference. The curve of build-nanogpt is a formula of the step (`nanogpt` below): 19,072 rates of it would fill 150 KB, so
the fixture holds the warmup, the end, and every 37th between; the Rust test has the formula and looks at every step.
"""

import argparse
import json
import math
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, CosineAnnealingWarmRestarts, LinearLR, SequentialLR, StepLR

from shared import save, table

HERE = Path(__file__).resolve().parent
LIMIT = 1e-7  # relative


def rates(lr, steps, scheduler, every=1):
    """What the optimizer of PyTorch would take at each step; the scheduler is advanced after each `every` steps."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler = scheduler(optimizer)
    out = []
    for step in range(steps):
        out.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if (step + 1) % every == 0:
            scheduler.step()
    return np.array(out)


def llama(steps=3000, warmup=1000):
    def make(optimizer):
        rise = LinearLR(optimizer, start_factor=0.1, end_factor=1.0, total_iters=warmup)
        fall = CosineAnnealingLR(optimizer, T_max=steps - warmup, eta_min=0.0)
        return SequentialLR(optimizer, [rise, fall], milestones=[warmup])

    return rates(1e-3, steps, make)


def alpaca(steps=3000):
    """Falls, rises and falls."""
    return rates(3e-5, steps, lambda optimizer: CosineAnnealingLR(optimizer, T_max=1000, eta_min=3e-7))


def restarts(steps=3000, warmup=100):
    """Periods of 200, 400, 800, 1,600 steps after a warmup."""
    def make(optimizer):
        rise = LinearLR(optimizer, start_factor=0.2, end_factor=1.0, total_iters=warmup)
        fall = CosineAnnealingWarmRestarts(optimizer, T_0=200, T_mult=2, eta_min=5e-5)
        return SequentialLR(optimizer, [rise, fall], milestones=[warmup])

    return rates(1e-3, steps, make)


def equal_restarts(steps=3000):
    return rates(2e-3, steps, lambda optimizer: CosineAnnealingWarmRestarts(optimizer, T_0=70))


def tutorial():
    """428 epochs of 7 steps, and 4 steps more."""
    return rates(5.0, 3000, lambda optimizer: StepLR(optimizer, step_size=1, gamma=0.95), every=7)


def nanogpt(steps=19072, warmup=715, peak=6e-4, last=6e-5):
    def at(step):
        if step < warmup:
            return peak * (step + 1) / warmup
        share = (step - warmup) / (steps - warmup)
        return last + 0.5 * (1.0 + math.cos(math.pi * share)) * (peak - last)

    return np.array([at(step) for step in range(steps)])


# What each is in an experiment file.
CURVES = {
    "llama": (llama, "adamw: {lr: 1e-3}", "{warmup: {steps: 1000, from: 0.1}, decay: {cosine: {final: 0}}}"),
    "alpaca": (alpaca, "adamw: {lr: 3e-5}", "{decay: {cosine: {final: 0.01, steps: 1000, repeat: mirror}}}"),
    "restarts": (restarts, "adamw: {lr: 1e-3}", "{warmup: {steps: 100, from: 0.2}, decay: {cosine: {final: 0.05, steps: 200, repeat: restart, period_factor: 2}}}"),
    "equal_restarts": (equal_restarts, "adamw: {lr: 2e-3}", "{decay: {cosine: {final: 0, steps: 70, repeat: restart}}}"),
    "tutorial": (tutorial, "sgd: {lr: 5.0}", "{decay: {step: {every: 7, gamma: 0.95}}}"),
    "nanogpt": (nanogpt, "adamw: {lr: 6e-4}", "{warmup: {steps: 715}, decay: {cosine: {final: 0.1}}}"),
}

EXPERIMENT = """\
version: 1
name: schedule
model: {{family: gpt2, layers: 1, heads: 1, d_model: 8, context_length: 4}}
data: {{tokenizer: {{bytes: {{}}}}, train: {{text: {{files: [text.txt]}}}}, validation: null}}
batch: {{sequences: 1, micro_batch: 1}}
train: {{steps: {steps}}}
optimizer: {{{optimizer}}}
schedule: {schedule}
eval: {{every: 1000000, loss: null}}
checkpoint: {{every: 1000000, keep: 1}}
"""


def recorded(runner, steps, optimizer, schedule):
    """The rates in the record of a run of the smallest model that there is."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RUNNER_")}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "text.txt").write_text("the rate of each step is what counts here. " * 40)
        (folder / "exp.yaml").write_text(EXPERIMENT.format(steps=steps, optimizer=optimizer, schedule=schedule))
        environment["RUNNER_CACHE"] = str(folder / "cache")
        command = [str(runner), "apply", "exp.yaml", "--quiet", "--threads", "1"]
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
        lines = next(folder.glob("runs/*/metrics.jsonl")).read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    return np.array([entry["lr"] for entry in entries if entry["kind"] == "train"])


def relative(ours, reference):
    """The largest difference in relation to the reference; where that is 0, ours must be."""
    apart = np.abs(ours - reference)
    return float(np.max(np.where(reference == 0, apart, apart / np.maximum(np.abs(reference), 1e-300))))


def compare(runner):
    rows = []
    for name, (curve, optimizer, schedule) in CURVES.items():
        reference = curve()
        ours = recorded(runner, len(reference), optimizer, schedule)
        worst = relative(ours, reference)
        rows.append([f"{name}, {len(reference):,} steps: last rate", f"{ours[-1]:.9e}", f"{reference[-1]:.9e}", f"{worst:.1e}"])
    table(rows, ("what", "ours", "reference", "largest relative difference"))
    return all(float(row[3]) <= LIMIT for row in rows)


def write():
    tensors = {name: curve() for name, (curve, *_) in CURVES.items()}
    whole = tensors.pop("nanogpt")
    steps = sorted({*range(720), *range(0, len(whole), 37), *range(len(whole) - 40, len(whole))})
    tensors["nanogpt.steps"] = np.array(steps, dtype=np.uint32)
    tensors["nanogpt.rates"] = whole[steps]
    path = HERE / "schedules.safetensors"
    save(path, tensors, {"versions": json.dumps({"torch": torch.__version__})})
    print(f"{path.name}: {path.stat().st_size:,} bytes")


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--runner", type=Path, help="the binary to compare with")
    runner = arguments.parse_args().runner
    if runner is None:
        write()
    elif not compare(runner.resolve()):
        raise SystemExit(f"further apart than {LIMIT}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""The first 50 steps of build-nanogpt, by the program and by PyTorch from the same weights on the same rows, side by side.

    python benches/peers/build_nanogpt_start.py --text input.txt --tokenizer GPT2-FILES                    # 4 rows of 32
    python benches/peers/build_nanogpt_start.py --text input.txt --tokenizer GPT2-FILES --rows 16 --length 1024

The program runs experiments/gpt2-fineweb-start.yaml with the rows and length given. PyTorch's side is GPT-2 124M from the
weights that the program starts from (exported before), over the text's tokens in their order, with torch.optim.AdamW at
3e-4 as it is by default, which decays biases and norms too, as the experiment does (`decays: all`). With the same weights
and rows the two curves differ by rounding alone, which training enlarges. With 16 x 1,024 and
`--micro-batch 4 --steps 20` both together take 85 minutes of two cores, and 9 GB. Needs torch, safetensors, tokenizers;
`--scratch` needs 4 GB.
"""

import argparse
import json
import math
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

import gpt2

EXPERIMENT = Path(__file__).resolve().parents[2] / "experiments" / "gpt2-fineweb-start.yaml"
NAME = "gpt2-fineweb-start"


def flags(options, **more):
    files = {key: options.tokenizer.resolve() / name for key, name in (("vocab", "vocab.json"), ("merges", "merges.txt"))}
    settings = {
        "data.train.text.files": f"[{options.text.resolve()}]",
        "data.tokenizer.gpt2.vocab": files["vocab"], "data.tokenizer.gpt2.merges": files["merges"],
        "data.layout": f"{{packed: {{length: {options.length}}}}}", "eval.samples": "null",
        "batch.sequences": options.rows, "batch.micro_batch": options.micro_batch or options.rows,
        "train.steps": options.steps,
    }
    return [part for key, value in (settings | more).items() for part in ("--set", f"{key}={value}")]


def first_weights(options, folder):
    """What the program starts from: its weights after one step that moves nothing."""
    still = {"optimizer.adamw.lr": 1e-30, "optimizer.adamw.weight_decay": 0, "train.steps": 1, "batch.sequences": 1,
             "batch.micro_batch": 1, "name": "start"}
    gpt2.runner(options.runner, folder, "apply", EXPERIMENT, "--quiet", "--threads", options.threads, *flags(options, **still))
    run = gpt2.run_folder(folder, "start")
    gpt2.runner(options.runner, folder, "export", run, "--to", "safetensors", folder / "weights")
    gpt2.runner(options.runner, folder, "runs", "rm", run.name, "--yes")
    return folder / "weights" / "model.safetensors"


def ours(options, folder):
    started = time.monotonic()
    gpt2.runner(options.runner, folder, "apply", EXPERIMENT, "--quiet", "--threads", options.threads, *flags(options))
    seconds, run = time.monotonic() - started, gpt2.run_folder(folder, NAME)
    lines = gpt2.metrics(run, "train")
    summary = json.loads((run / "summary.json").read_text())
    memory = summary["peak_rss_bytes"], summary["planned_memory_bytes"]
    return {"losses": [line["loss"] for line in lines], "step_ms": [line["step_ms"] for line in lines],
            "seconds": seconds, "peak_rss_bytes": memory[0], "planned_memory_bytes": memory[1]}


def pytorch(options, weights):
    torch.set_num_threads(options.threads)
    ids = torch.tensor(gpt2.tokenizer(options.tokenizer)(options.text.read_text()))
    model = gpt2.load(weights, heads=12)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    size, at, losses, step_ms, started = options.rows * options.length, 0, [], [], time.monotonic()
    for _ in range(options.steps):
        step_started = time.monotonic()
        rows = ids[at : at + size + 1]
        at = at + size if at + 2 * size + 1 <= len(ids) else 0
        optimizer.zero_grad(set_to_none=True)
        loss = 0.0
        parts = options.rows // (options.micro_batch or options.rows)
        inputs, targets = (part.view(options.rows, -1).chunk(parts) for part in (rows[:-1], rows[1:]))
        for x, y in zip(inputs, targets):
            part = model.loss(x, y) / parts
            part.backward()
            loss += part.item()
        optimizer.step()
        losses.append(loss)
        step_ms.append(1e3 * (time.monotonic() - step_started))
    return {"losses": losses, "step_ms": step_ms, "seconds": time.monotonic() - started,
            "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runner", type=Path, default=Path("target/release/runner"))
    parser.add_argument("--text", type=Path, required=True, help="Tiny Shakespeare")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder with vocab.json and merges.txt")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--micro-batch", type=int, help="rows of a pass [default: all]")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--scratch", type=Path, help="where the folder for weights and runs is made")
    parser.add_argument("--json", type=Path, help="also write all losses to this file")
    options = parser.parse_args()
    options.runner = options.runner.resolve()
    if options.rows % (options.micro_batch or options.rows):
        parser.error("--micro-batch divides --rows")
    with tempfile.TemporaryDirectory(prefix="start-", dir=options.scratch) as name:
        folder = Path(name)
        weights = first_weights(options, folder)
        mine = ours(options, folder)
        if options.json:
            options.json.write_text(json.dumps({"runner": mine}) + "\n")
        with multiprocessing.get_context("spawn").Pool(1) as alone:  # so that its peak of memory is its own
            peer = alone.apply(pytorch, (options, weights))
    apart = [abs(a - b) for a, b in zip(mine["losses"], peer["losses"], strict=True)]
    shown = sorted({0, 1, 2, 3, 4, *range(9, options.steps, 10), options.steps - 1})
    gpt2.show([[i + 1, mine["losses"][i], peer["losses"][i], f"{apart[i]:.1e}"] for i in shown if i < options.steps],
              ("step", "ours", "PyTorch", "difference"))
    print(f"largest difference {max(apart):.1e}, mean {sum(apart) / len(apart):.1e}; ln 50257 = {math.log(50257):.4f}; "
          f"{mine['seconds']:.0f} s and {peer['seconds']:.0f} s with {options.threads} threads each")
    for name, side in ("ours", mine), ("PyTorch", peer):
        planned = f", planned {side['planned_memory_bytes'] / 2**30:.2f}" if "planned_memory_bytes" in side else ""
        print(f"{name}: median {statistics.median(side['step_ms']) / 1e3:.1f} s a step, peak of resident memory "
              f"{side['peak_rss_bytes'] / 2**30:.2f} GiB{planned}")
    if options.json:
        options.json.write_text(json.dumps({"runner": mine, "pytorch": peer}) + "\n")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""nanoGPT's Tiny Shakespeare on a CPU, by the program and by PyTorch: both curves side by side.

    python benches/peers/nanogpt_shakespeare.py --text input.txt [--steps 2000] [--threads 1] [--json curves.json]

The program runs experiments/shakespeare-chars.yaml. PyTorch's side is written after nanoGPT's README and configuration: 4
layers, 4 heads, 128 wide without biases, 12 rows of 64 characters that start anywhere in the first nine tenths of the text,
AdamW at 1e-3 with betas 0.9 and 0.99, warmup of 100 steps, cosine to a tenth, clipping at 1. `--bias` gives it the biases
that GPT-2 and the program's model have. Two things differ in the two runs' data: nanoGPT draws windows with replacement,
the program takes each of the text's windows once per epoch. So the curves are two runs, not one; both models are measured
on all windows of the last tenth. The README says 1.88 for the end.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch

import gpt2

EXPERIMENT = Path(__file__).resolve().parents[2] / "experiments" / "shakespeare-chars.yaml"
ROWS, LENGTH, PUBLISHED = 12, 64, 1.88


@torch.no_grad()
def validation(model, ids):
    """The mean loss over all windows of `ids`."""
    count = (len(ids) - 1) // LENGTH
    inputs, targets = ids[: count * LENGTH].view(count, LENGTH), ids[1 : count * LENGTH + 1].view(count, LENGTH)
    parts = [(model(x, y).item(), len(x)) for x, y in zip(inputs.split(64), targets.split(64))]
    return sum(loss * rows for loss, rows in parts) / count


def pytorch(options):
    """Losses of the steps, [(step, validation loss)] and the seconds."""
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    text = options.text.read_text()
    chars = sorted(set(text))
    index = {c: i for i, c in enumerate(chars)}
    ids = torch.tensor([index[c] for c in text])
    cut = int(0.9 * len(ids))
    model = gpt2.Gpt2(len(chars), LENGTH, layers=4, heads=4, width=128, bias=options.bias)
    optimizer = torch.optim.AdamW(gpt2.groups(model, 0.1), lr=1e-3, betas=(0.9, 0.99), eps=1e-8)
    losses, evaluations, started = [], [], time.monotonic()
    for step in range(options.steps):
        for group in optimizer.param_groups:
            group["lr"] = gpt2.cosine(step, 1e-3, 1e-4, 100, options.steps)
        at = torch.randint(cut - LENGTH, (ROWS,)).tolist()
        rows = torch.stack([ids[i : i + LENGTH + 1] for i in at])
        loss = model(rows[:, :-1], rows[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % options.every == 0 or step + 1 == options.steps:
            evaluations.append((step + 1, validation(model, ids[cut:])))
    return losses, evaluations, time.monotonic() - started


def ours(options, folder):
    settings = {
        "data.train.text.files": f"[{options.text.resolve()}]", "train.steps": options.steps, "seed": options.seed,
        "eval.every": options.every, "eval.loss.rows": 1000000, "eval.samples": "null", "checkpoint.every": 1000000,
    }
    flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    gpt2.runner(options.runner, folder, "apply", EXPERIMENT, "--quiet", "--threads", options.threads, *flags)
    run = gpt2.run_folder(folder, "shakespeare-chars")
    losses = [line["loss"] for line in gpt2.metrics(run, "train")]
    evaluations = [(line["step"], line["val_loss"]) for line in gpt2.metrics(run, "eval")]
    return losses, evaluations, json.loads((run / "summary.json").read_text())["wall_seconds"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runner", type=Path, default=Path("target/release/runner"))
    parser.add_argument("--text", type=Path, required=True, help="Tiny Shakespeare")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--every", type=int, default=250, help="steps between evaluations")
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--bias", action="store_true", help="biases in PyTorch's model too")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also write all losses to this file")
    options = parser.parse_args()
    options.runner = options.runner.resolve()
    with tempfile.TemporaryDirectory(prefix="nanogpt-") as name:
        mine = ours(options, Path(name))
    peer = pytorch(options)

    def recent(losses, step):
        part = losses[max(0, step - 50) : step]
        return sum(part) / len(part)

    rows = []
    for (step, loss), (at, reference) in zip(mine[1], peer[1], strict=True):
        assert step == at, f"evaluations after {step} and {at} steps"
        rows.append([step, recent(mine[0], step), recent(peer[0], step), loss, reference, loss - reference])
    gpt2.show(rows, ("step", "train: ours", "PyTorch", "validation: ours", "PyTorch", "difference"))
    print(f"published: {PUBLISHED}; {mine[2]:.0f} s and {peer[2]:.0f} s with {options.threads} threads each")
    if options.json:
        keys = ("losses", "evaluations", "seconds")
        record = {"runner": dict(zip(keys, mine)), "pytorch": dict(zip(keys, peer))}
        options.json.write_text(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()

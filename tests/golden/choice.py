#!/usr/bin/env python3
"""Multiple choice scored by PyTorch as in build-nanogpt: writes choice.safetensors next to this file.

    python choice.py               # needs torch, transformers, safetensors, numpy

Items and weights of a tiny GPT-2 come from counters (shared.py). The fixture holds the summed loss of each ending, computed
in float64, and what was chosen by the sum and by the mean per token.
"""

import json
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import curves
import generate
from shared import below, mix, save, table

HERE = Path(__file__).resolve().parent
ITEMS, ENDINGS, STREAMS = 150, 4, 2 << 20


def weights():
    """Those of the curves, matrices eight times as large: predictions far from uniform."""
    return {name: value * (8 if value.ndim >= 2 else 1) for name, value in curves.initial_weights("gpt2").items()}


def item(index):
    """Context, endings and label."""
    stream = STREAMS + 8 * index
    sizes = mix(stream + 7, np.arange(ENDINGS + 2))
    context = below(stream, 3 + int(sizes[0] % 10), curves.VOCAB).tolist()
    endings = [below(stream + 1 + e, 2 + int(sizes[1 + e] % 9), curves.VOCAB).tolist() for e in range(ENDINGS)]
    return context, endings, int(sizes[ENDINGS + 1] % ENDINGS)


@torch.no_grad()
def score(model, context, endings):
    """The summed and the mean loss of each ending's tokens."""
    rows = [context + ending for ending in endings]
    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    mask = torch.zeros_like(ids, dtype=torch.bool)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        mask[i, len(context) : len(row)] = True
    logits = model(input_ids=ids).logits[:, :-1]
    losses = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(len(rows), -1)
    losses = losses * mask[:, 1:]
    return losses.sum(dim=1), losses.sum(dim=1) / mask[:, 1:].sum(dim=1)


def run(dtype):
    model = generate.build("gpt2", weights(), dtype, curves.CONFIGS["gpt2"])
    sums, means, labels = [], [], []
    for index in range(ITEMS):
        context, endings, label = item(index)
        both = score(model, context, endings)
        sums.append(both[0].double().numpy())
        means.append(both[1].double().numpy())
        labels.append(label)
    return np.array(sums), np.array(means), np.array(labels)


def main():
    torch.set_num_threads(1)
    sums, means, labels = run(torch.float64)
    error = float(np.abs(run(torch.float32)[0] - sums).max())
    margin = min(float(np.diff(np.sort(v, axis=1)[:, :2]).min()) for v in (sums, means))
    if margin < 100 * error:
        raise SystemExit(f"a choice with a margin of {margin:.1e} is not safe from rounding ({error:.1e})")
    chosen = np.stack([sums.argmin(axis=1), means.argmin(axis=1)]).astype(np.uint32)
    right = (chosen == labels).sum(axis=1)
    table([["items", ITEMS], ["acc: right", right[0]], ["acc_norm: right", right[1]],
           ["float32 - float64, largest", error], ["smallest margin", margin]], ("what", "PyTorch"))
    path = HERE / "choice.safetensors"
    metadata = {"float32_error": json.dumps(error), "versions": json.dumps({"torch": torch.__version__})}
    save(path, {"sums": sums, "right": right.astype(np.uint32)}, metadata)
    print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()

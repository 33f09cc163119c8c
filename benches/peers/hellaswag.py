#!/usr/bin/env python3
"""Scores HellaSwag by the program and by PyTorch, with the same weights, and compares.

    python benches/peers/hellaswag.py --text input.txt --tokenizer GPT2-FILES --items hellaswag_val.jsonl
    python benches/peers/hellaswag.py --run runs/gpt2-0a1b2c3d --heads 12 --tokenizer GPT2-FILES --items hellaswag_val.jsonl

Without `--run` a small GPT-2 is trained on the text first. PyTorch's side is what build-nanogpt does: the ids of the context
and those of a blank and the ending; of each ending's tokens the sum of the losses (`acc`) and their mean (`acc_norm`), the
smallest wins. Both sides' counts must be equal. The items that are decided by the smallest margins, where rounding could
matter, are scored one by one by the program too. Needs torch, safetensors, tokenizers.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F

import gpt2

EXPERIMENT = """\
version: 1
name: hellaswag
model: {{family: gpt2, layers: 2, heads: 4, d_model: 32, context_length: 256}}
data:
  tokenizer: {{gpt2: {{vocab: {tokenizer}/vocab.json, merges: {tokenizer}/merges.txt}}}}
  train: {{text: {{files: [{text}]}}}}
  validation: null
batch: {{sequences: 2, micro_batch: 2}}
train: {{steps: {steps}}}
optimizer: {{adamw: {{lr: 3e-3}}}}
schedule: {{warmup: {{steps: 10}}, decay: {{cosine: {{final: 0.1}}}}}}
eval: {{every: 1000000, loss: null}}
checkpoint: {{every: 1000000, keep: 1}}
"""


@torch.no_grad()
def scores(model, encode, item):
    """Summed and mean loss of each ending."""
    context = encode(item["ctx"])
    rows = [context + encode(" " + ending) for ending in item["endings"]]
    length = max(map(len, rows))
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    counted = torch.zeros(len(rows), length, dtype=torch.bool)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        counted[i, len(context) : len(row)] = True
    counted = counted[:, 1:]
    # Logits of the counted positions only: the others are computed elsewhere to be thrown away.
    logits = model.logits(model.hidden(ids[:, :-1])[counted])
    losses = torch.zeros(counted.shape)
    losses[counted] = F.cross_entropy(logits, ids[:, 1:][counted], reduction="none")
    sums = losses.sum(dim=1)
    return sums, sums / counted.sum(dim=1)


def margin(values):
    """How far the smallest is from the next, in relation to it."""
    low = sorted(values.tolist())
    return (low[1] - low[0]) / low[0]


def ours(options, folder, run, file, limit):
    command = ["eval", run, "--hellaswag", file, "--limit", limit, "--threads", options.threads, "--json"]
    found = json.loads(gpt2.runner(options.runner, folder, *command))
    count = found["hellaswag_n"]
    return round(found["hellaswag_acc"] * count), round(found["hellaswag_acc_norm"] * count), count


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runner", type=Path, default=Path("target/release/runner"))
    parser.add_argument("--run", type=Path, help="a run of a GPT-2 with GPT-2's tokenizer [default: one is trained]")
    parser.add_argument("--heads", type=int, default=4, help="attention heads of the run's model")
    parser.add_argument("--text", type=Path, help="what to train on")
    parser.add_argument("--steps", type=int, default=80, help="how long")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder with vocab.json and merges.txt")
    parser.add_argument("--items", type=Path, required=True, help="hellaswag_val.jsonl")
    parser.add_argument("--limit", type=int, default=1000)
    parser.add_argument("--close", type=int, default=8, help="items of the smallest margins to score one by one")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.runner = options.runner.resolve()
    with tempfile.TemporaryDirectory(prefix="hellaswag-") as name:
        folder = Path(name)
        run = options.run and options.run.resolve()
        if run is None:
            if options.text is None:
                parser.error("--text or --run")
            text = EXPERIMENT.format(tokenizer=options.tokenizer.resolve(), text=options.text.resolve(), steps=options.steps)
            (folder / "exp.yaml").write_text(text)
            gpt2.runner(options.runner, folder, "apply", "exp.yaml", "--quiet", "--threads", options.threads)
            run = gpt2.run_folder(folder, "hellaswag")
        gpt2.runner(options.runner, folder, "export", run, "--to", "safetensors", folder / "weights")
        model = gpt2.load(folder / "weights" / "model.safetensors", options.heads).eval()
        encode = gpt2.tokenizer(options.tokenizer)
        with open(options.items) as file:
            lines = [line for _, line in zip(range(options.limit), file)]
        right, right_norm, margins = 0, 0, []
        picks = []
        for i, line in enumerate(lines):
            item = json.loads(line)
            sums, means = scores(model, encode, item)
            hits = [int(int(v.argmin()) == int(item["label"])) for v in (sums, means)]
            picks.append(hits)
            right, right_norm = right + hits[0], right_norm + hits[1]
            margins.append((min(margin(sums), margin(means)), i))
        acc, norm, count = ours(options, folder, run, options.items.resolve(), options.limit)
        gpt2.show([["items", count, len(lines), count - len(lines)], ["acc: right", acc, right, acc - right],
                   ["acc_norm: right", norm, right_norm, norm - right_norm]], ("what", "ours", "PyTorch", "difference"))
        differ = []
        for relative, i in sorted(margins)[: options.close]:
            (folder / "one.jsonl").write_text(lines[i])
            one = ours(options, folder, run, folder / "one.jsonl", 1)[:2]
            same = list(one) == picks[i]
            differ += [] if same else [i]
            print(f"item {i}: smallest margin {relative:.1e} of the loss, {'the same' if same else 'decided otherwise'}")
    if differ or (acc, norm, count) != (right, right_norm, len(lines)):
        sys.exit("the two do not agree")


if __name__ == "__main__":
    main()

"""A GPT-2 in PyTorch, as the peers of this folder train and score it: own code over `torch` alone.

Parameters have the names of the files that `runner export RUN --to safetensors` writes, and matrices are [out, in] as there.
"""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F


class Norm(nn.Module):
    def __init__(self, width, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class Attention(nn.Module):
    def __init__(self, width, heads, bias):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width, bias=bias)
        self.c_proj = nn.Linear(width, width, bias=bias)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.c_attn(x).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(batch, length, width))


class Mlp(nn.Module):
    def __init__(self, width, bias):
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width, bias=bias)
        self.c_proj = nn.Linear(4 * width, width, bias=bias)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, width, heads, bias):
        super().__init__()
        self.ln_1, self.attn = Norm(width, bias), Attention(width, heads, bias)
        self.ln_2, self.mlp = Norm(width, bias), Mlp(width, bias)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt2(nn.Module):
    """GPT-2 with a tied head and no dropout, initialized as GPT-2 is."""

    def __init__(self, vocab, context, layers, heads, width, bias=True):
        super().__init__()
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(vocab, width), "wpe": nn.Embedding(context, width),
            "h": nn.ModuleList(Block(width, heads, bias) for _ in range(layers)), "ln_f": Norm(width, bias),
        })
        for name, parameter in self.named_parameters():
            if parameter.ndim >= 2:
                scale = (2 * layers) ** -0.5 if name.endswith("c_proj.weight") else 1.0
                nn.init.normal_(parameter, std=0.02 * scale)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def hidden(self, ids):
        """Ids [batch, length] to what the head reads, [batch, length, width]."""
        t = self.transformer
        x = t["wte"](ids) + t["wpe"](torch.arange(ids.shape[1]))
        for block in t["h"]:
            x = block(x)
        return t["ln_f"](x)

    def logits(self, hidden):
        return F.linear(hidden, self.transformer["wte"].weight)

    def forward(self, ids, targets):
        """The mean loss in nats."""
        logits = self.logits(self.hidden(ids))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def load(path, heads):
    """The model in an exported file."""
    from safetensors.torch import load_file

    tensors = load_file(path)
    vocab, width = tensors["transformer.wte.weight"].shape
    context = tensors["transformer.wpe.weight"].shape[0]
    layers = 1 + max(int(name.split(".")[2]) for name in tensors if name.startswith("transformer.h."))
    model = Gpt2(vocab, context, layers, heads, width)
    model.load_state_dict(tensors)
    return model


def groups(model, weight_decay):
    """Matrices decay, vectors do not."""
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]


def tokenizer(folder):
    """GPT-2's, from vocab.json and merges.txt in `folder`: text to ids."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.BPE.from_file(str(Path(folder) / "vocab.json"), str(Path(folder) / "merges.txt")))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return lambda text: made.encode(text).ids


def runner(binary, folder, *arguments):
    """Standard output of the program, with its runs and its cache in `folder`."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RUNNER_")}
    environment |= {"RUNNER_RUNS": str(folder / "runs"), "RUNNER_CACHE": str(folder / "cache")}
    done = subprocess.run([str(binary), *map(str, arguments)], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"runner {' '.join(map(str, arguments))}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def run_folder(folder, name):
    """The one run called `name` under `folder`."""
    found = sorted((folder / "runs").glob(f"{name}-*"))
    if len(found) != 1:
        sys.exit(f"{len(found)} runs called {name} in {folder}, expected one")
    return found[0]


def metrics(run, kind):
    """The lines of one kind in the record of a run."""
    lines = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


def cosine(step, peak, last, warmup, steps):
    """Linear warmup that reaches the peak with its last step, then a cosine."""
    if step < warmup:
        return peak * (step + 1) / warmup
    return last + 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / (steps - warmup))) * (peak - last)


def show(rows, columns):
    """Prints a table."""
    text = [[f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in row] for row in [columns, *rows]]
    widths = [max(len(row[i]) for row in text) for i in range(len(columns))]
    for row in text:
        print("  ".join(cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(zip(row, widths))))

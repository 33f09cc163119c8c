#!/usr/bin/env python3
"""Times training steps of a GPT-2 in PyTorch on the CPU: a peer in compare.py.

    python pytorch_step.py --model small --steps 20 --threads 2
    python pytorch_step.py --layers 2 --heads 4 --d-model 64 --vocab 256 --length 64 --micro-batch 8

Needs `pip install torch numpy`. Written the way one trains with PyTorch today: fused attention, tied head, one batch
cut from a token array per step, clipping, fused AdamW where there is one. The last line of the output is one JSON
object: times of the timed steps, tokens per second (from their median), peak memory (and how much of it was there once
PyTorch was loaded).
"""

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import sys
import time

MODELS = {
    "small": {
        "layers": 4, "heads": 4, "d_model": 128, "vocab": 1024, "context": 128, "length": 128, "micro_batch": 16,
    },
    "gpt2-124m": {
        "layers": 12, "heads": 12, "d_model": 768, "vocab": 50304, "context": 1024, "length": 256, "micro_batch": 4,
    },
}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="small", help="named sizes, which the next options override")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--heads", type=int)
    parser.add_argument("--d-model", type=int)
    parser.add_argument("--vocab", type=int)
    parser.add_argument("--context", type=int, help="rows of the position table (default: at least --length)")
    parser.add_argument("--length", type=int, help="tokens of a sequence")
    parser.add_argument("--micro-batch", type=int, help="sequences of a step")
    parser.add_argument("--ids", type=int, help="token ids are drawn below this (default: the vocabulary)")
    parser.add_argument("--steps", type=int, default=20, help="timed steps")
    parser.add_argument("--warmup", type=int, default=3, help="steps before, not timed")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--mode", choices=["eager", "compile"], default="eager")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32", help="bf16: autocast")
    arguments = parser.parse_args()
    for key, value in MODELS[arguments.model].items():
        if getattr(arguments, key) is None:
            setattr(arguments, key, value)
    arguments.context = max(arguments.context, arguments.length)
    arguments.ids = arguments.ids or arguments.vocab
    if arguments.d_model % arguments.heads:
        parser.error(f"{arguments.heads} heads do not divide {arguments.d_model}")
    if not 0 < arguments.ids <= arguments.vocab:
        parser.error(f"--ids {arguments.ids} is not within the vocabulary of {arguments.vocab}")
    if min(arguments.steps, arguments.threads) < 1 or arguments.warmup < 0:
        parser.error("--steps and --threads are at least 1, --warmup at least 0")
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if arguments.mode == "compile" and not shutil.which(compiler):
        parser.error(f"torch.compile needs a C++ compiler, and there is no {compiler}: install it, or name one in CXX")
    return arguments


ARGUMENTS = parse_arguments()
os.environ["OMP_NUM_THREADS"] = str(ARGUMENTS.threads)  # read once, when torch is loaded

try:
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
except ImportError as error:
    raise SystemExit(f"pytorch_step.py: {sys.executable} has no PyTorch: pip install torch numpy ({error})")


class Attention(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.heads = a.heads
        self.c_attn = nn.Linear(a.d_model, 3 * a.d_model)
        self.c_proj = nn.Linear(a.d_model, a.d_model)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.c_attn(x).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.ln_1 = nn.LayerNorm(a.d_model)
        self.attn = Attention(a)
        self.ln_2 = nn.LayerNorm(a.d_model)
        self.c_fc = nn.Linear(a.d_model, 4 * a.d_model)
        self.c_proj = nn.Linear(4 * a.d_model, a.d_model)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """GPT-2 with a tied head. `tokens`, `targets`: [batch, length]; returns the mean loss in nats."""

    def __init__(self, a):
        super().__init__()
        self.wte = nn.Embedding(a.vocab, a.d_model)
        self.wpe = nn.Embedding(a.context, a.d_model)
        self.blocks = nn.ModuleList(Block(a) for _ in range(a.layers))
        self.ln_f = nn.LayerNorm(a.d_model)
        for name, parameter in self.named_parameters():
            if parameter.ndim >= 2:
                scale = (2 * a.layers) ** -0.5 if name.endswith("c_proj.weight") else 1.0
                nn.init.normal_(parameter, std=0.02 * scale)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def adamw(model):
    """The optimizer, and which of PyTorch's implementations it is."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    for kind in ("fused", "foreach"):
        try:
            return torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), eps=1e-8, **{kind: True}), kind
        except RuntimeError:  # fused on the CPU came with PyTorch 2.4
            continue
    raise SystemExit("PyTorch has neither a fused nor a foreach AdamW for the CPU")


def peak_rss_bytes():
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def main():
    a = ARGUMENTS
    loaded = peak_rss_bytes()
    torch.set_num_threads(a.threads)
    torch.manual_seed(1337)
    model = Gpt2(a)
    optimizer, optimizer_kind = adamw(model)
    parameters = list(model.parameters())
    step_of = torch.compile(model) if a.mode == "compile" else model

    tokens_per_step = a.micro_batch * a.length
    data = torch.randint(a.ids, (64 * tokens_per_step + 1,))
    step_ms, losses = [], []
    for step in range(a.warmup + a.steps):
        start = time.perf_counter()
        at = torch.randint(len(data) - a.length, (a.micro_batch,)).tolist()
        tokens = torch.stack([data[i : i + a.length] for i in at])
        targets = torch.stack([data[i + 1 : i + 1 + a.length] for i in at])
        with torch.autocast("cpu", torch.bfloat16, enabled=a.dtype == "bf16"):
            loss = step_of(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        elapsed = 1e3 * (time.perf_counter() - start)
        timed = step >= a.warmup
        if timed:
            step_ms.append(elapsed)
        note = "" if timed else "  (warmup)"
        rate = 1e3 * tokens_per_step / elapsed
        print(f"step {step + 1:4}  loss {losses[-1]:.4f}  {elapsed:9.3f} ms  {rate:9,.0f} tok/s{note}", flush=True)

    print(json.dumps({
        "model": {key: getattr(a, key) for key in MODELS[a.model]},
        "parameters": sum(p.numel() for p in parameters),
        "mode": a.mode, "dtype": a.dtype, "threads": a.threads, "optimizer": optimizer_kind,
        "torch": torch.__version__, "python": platform.python_version(),
        "tokens_per_step": tokens_per_step, "warmup": a.warmup,
        "step_ms": [round(ms, 3) for ms in step_ms],
        "first_loss": losses[0], "last_loss": losses[-1],
        "tokens_per_second": 1e3 * tokens_per_step / statistics.median(step_ms),
        "peak_rss_bytes": peak_rss_bytes(), "loaded_rss_bytes": loaded,
    }))


if __name__ == "__main__":
    main()

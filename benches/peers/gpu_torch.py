#!/usr/bin/env python3
"""Times training steps in PyTorch on a GPU: the peer of scripts/gpu_bench.py. GPT-2 and Llama as this project has them, own code over
`torch` alone, written the way one trains with it today: scaled_dot_product_attention, fused AdamW, clipping, autocast to bf16
over f32 weights, TF32 by its switch, cross entropy over the whole batch's logits.

    python3 benches/peers/gpu_torch.py --case '{"model": "gpt2", "precision": "bf16", "micro_batch": 64, "mode": "compile"}'
    python3 benches/peers/gpu_torch.py --serve       # a case a line on standard input, a result a line on standard output
    python3 benches/peers/gpu_torch.py --start weights.safetensors --tokens train.bin --rows 16 --length 1024   # losses from given weights

Keys of a case: model (gpt2, llama), precision (fp32, tf32, bf16), mode (eager, compile), micro_batch; steps, warmup; and sizes
(layers, heads, kv_heads, d_model, d_ff, vocab, length). One step is one micro-batch. Steps are timed by events on the device, with
no wait within them. The result is the case with step_ms (median), tokens_per_second, peak memory (allocated and reserved), the first and the
last loss, or `error`.
"""

import argparse
import array
import json
import statistics
import struct
import sys
import time
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

MODELS = {
    "gpt2": {"layers": 12, "heads": 12, "kv_heads": 12, "d_model": 768, "d_ff": 3072, "vocab": 50304, "length": 1024},
    "llama": {"layers": 12, "heads": 12, "kv_heads": 3, "d_model": 768, "d_ff": 3072, "vocab": 50000, "length": 512},
}
OPTIMIZERS = {
    "gpt2": {"lr": 6e-4, "betas": (0.9, 0.95), "all": False},
    "llama": {"lr": 1e-3, "betas": (0.9, 0.99), "all": True},
}
IDS = 50_000


def split_heads(x, heads):
    """[batch, length, heads·width] -> [batch, heads, length, width]."""
    return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


class Gpt2Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        d = c["d_model"]
        self.heads = c["heads"]
        self.ln_1, self.ln_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.c_attn, self.attn_proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.c_fc, self.mlp_proj = nn.Linear(d, c["d_ff"]), nn.Linear(c["d_ff"], d)

    def forward(self, x):
        q, k, v = (split_heads(part, self.heads) for part in self.c_attn(self.ln_1(x)).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_proj(y.transpose(1, 2).reshape(x.shape))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """With a tied head. `tokens`, `targets`: [batch, length]; returns the mean loss."""

    def __init__(self, c):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(c["vocab"], c["d_model"]), nn.Embedding(c.get("context", c["length"]), c["d_model"])
        self.blocks = nn.ModuleList(Gpt2Block(c) for _ in range(c["layers"]))
        self.ln_f = nn.LayerNorm(c["d_model"])
        for name, parameter in self.named_parameters():
            if parameter.ndim >= 2:
                nn.init.normal_(parameter, std=0.02 * ((2 * c["layers"]) ** -0.5 if "_proj" in name else 1.0))
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight, 1e-5)


def rotate(x, cos, sin):
    """Rotary positions, halves against halves. `x`: [batch, heads, length, width]; `cos`, `sin`: [length, width / 2]."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class LlamaBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, self.heads, self.kv_heads = c["d_model"], c["heads"], c["kv_heads"]
        kv = d // self.heads * self.kv_heads
        self.norm_1, self.norm_2 = RmsNorm(d), RmsNorm(d)
        self.sizes = (d, kv, kv)
        self.qkv, self.o = nn.Linear(d, d + 2 * kv, bias=False), nn.Linear(d, d, bias=False)
        self.gate_up, self.down = nn.Linear(d, 2 * c["d_ff"], bias=False), nn.Linear(c["d_ff"], d, bias=False)

    def forward(self, x, cos, sin):
        q, k, v = self.qkv(self.norm_1(x)).split(self.sizes, dim=-1)
        q, k = rotate(split_heads(q, self.heads), cos, sin), rotate(split_heads(k, self.kv_heads), cos, sin)
        y = F.scaled_dot_product_attention(q, k, split_heads(v, self.kv_heads), is_causal=True, enable_gqa=self.heads != self.kv_heads)
        x = x + self.o(y.transpose(1, 2).reshape(x.shape))
        gate, up = self.gate_up(self.norm_2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed = nn.Embedding(c["vocab"], c["d_model"])
        self.blocks = nn.ModuleList(LlamaBlock(c) for _ in range(c["layers"]))
        self.norm, self.head = RmsNorm(c["d_model"]), nn.Linear(c["d_model"], c["vocab"], bias=False)
        half = c["d_model"] // c["heads"] // 2
        angles = torch.outer(torch.arange(c["length"]).float(), 10_000.0 ** (-torch.arange(half).float() / half))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for parameter in self.parameters():
            if parameter.ndim >= 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def adamw(model, settings, device):
    parameters = list(model.parameters())
    decayed = [p for p in parameters if p.ndim >= 2 or settings["all"]]
    groups = [{"params": decayed, "weight_decay": 0.1},
              {"params": [p for p in parameters if p.ndim < 2 and not settings["all"]], "weight_decay": 0.0}]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=settings["lr"], betas=settings["betas"], eps=1e-8,
                             fused=device == "cuda")


def set_precision(precision):
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    torch.backends.cudnn.allow_tf32 = precision != "fp32"


def measure(case, device):
    """Runs one case and returns it with its figures."""
    config = MODELS[case["model"]] | {k: v for k, v in case.items() if k in MODELS["gpt2"]}
    warmup, steps, rows, length = case.get("warmup", 5), case.get("steps", 20), case["micro_batch"], config["length"]
    set_precision(case["precision"])
    torch.manual_seed(1337)
    with torch.device(device):
        model = {"gpt2": Gpt2, "llama": Llama}[case["model"]](config)
    optimizer = adamw(model, OPTIMIZERS[case["model"]], device)
    parameters = list(model.parameters())
    step_of = torch.compile(model, dynamic=False) if case["mode"] == "compile" else model
    data = torch.randint(min(IDS, config["vocab"]), (8, rows, length + 1), device=device)
    on_gpu = device == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()

    def step(index):
        batch = data[index % len(data)]
        with torch.autocast(device, torch.bfloat16, enabled=case["precision"] == "bf16"):
            loss = step_of(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    started = time.perf_counter()
    first = step(0).item()
    prepared = time.perf_counter() - started
    for index in range(1, warmup):
        step(index)
    if on_gpu:
        torch.cuda.synchronize()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
        marks[0].record()
        for index in range(steps):
            loss = step(index)
            marks[index + 1].record()
        torch.cuda.synchronize()
        times = [a.elapsed_time(b) for a, b in zip(marks, marks[1:])]
        memory = {"allocated_bytes": torch.cuda.max_memory_allocated(), "reserved_bytes": torch.cuda.max_memory_reserved()}
    else:
        times, memory = [], {}
        for index in range(steps):
            begun = time.perf_counter()
            loss = step(index)
            times.append(1e3 * (time.perf_counter() - begun))
    median = statistics.median(times)
    return {
        "parameters": sum(p.numel() for p in parameters), "step_ms": median, "step_ms_min": min(times), "step_ms_max": max(times),
        "tokens_per_second": 1e3 * rows * length / median, "first_step_seconds": round(prepared, 2), **memory,
        "first_loss": first, "last_loss": loss.item(), "torch": torch.__version__,
    }


def answer(case, device):
    """What `measure` says, or its error: out of memory is a result, too."""
    try:
        result = measure(case, device)
    except Exception as error:  # noqa: BLE001: whatever it is, the next case is to run
        memory = isinstance(error, torch.OutOfMemoryError) if hasattr(torch, "OutOfMemoryError") else "out of memory" in str(error)
        result = {"error": "out of memory" if memory else f"{type(error).__name__}: {error}".splitlines()[0][:300]}
    if hasattr(torch, "_dynamo"):
        torch._dynamo.reset()
    if device == "cuda":
        torch.cuda.empty_cache()
    return case | result


def read_safetensors(path):
    """{name: f32 tensor} of a file of f32 tensors."""
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    found = {}
    for name, entry in header.items():
        if name != "__metadata__":
            if entry["dtype"] != "F32":
                raise SystemExit(f"{path}: {name} is {entry['dtype']}, not F32")
            begin, end = entry["data_offsets"]
            found[name] = torch.frombuffer(bytearray(content[8 + size + begin : 8 + size + end]), dtype=torch.float32).view(entry["shape"])
    return found


def load_gpt2(path, heads):
    """A Gpt2 with the weights that `runner export RUN --to safetensors` writes (matrices as [out, in])."""
    weights = {name.removeprefix("transformer."): tensor for name, tensor in read_safetensors(path).items()}
    vocab, width = weights["wte.weight"].shape
    layers = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("h."))
    config = {"layers": layers, "heads": heads, "d_model": width, "d_ff": weights["h.0.mlp.c_fc.bias"].shape[0], "vocab": vocab,
              "length": len(weights["wpe.weight"])}
    model, renamed = Gpt2(config), {}
    names = {"attn.c_attn": "c_attn", "attn.c_proj": "attn_proj", "mlp.c_fc": "c_fc", "mlp.c_proj": "mlp_proj", "ln_1": "ln_1", "ln_2": "ln_2"}
    for name, tensor in weights.items():
        if name.startswith("h."):
            _, layer, rest = name.split(".", 2)
            part, kind = rest.rsplit(".", 1)
            name = f"blocks.{layer}.{names[part]}.{kind}"
        if name != "lm_head.weight":
            renamed[name] = tensor
    model.load_state_dict(renamed)
    return model


def start(options, device):
    """Losses of AdamW's first steps at a constant rate (PyTorch's defaults, no clipping) from given weights, over tokens in their order."""
    ids = array.array("H", options.tokens.read_bytes())
    if sys.byteorder != "little":
        ids.byteswap()
    ids = torch.tensor(ids, dtype=torch.long)
    set_precision(options.precision)
    model = load_gpt2(options.start, options.heads).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device == "cuda")
    size, at = options.rows * options.length, 0
    for _ in range(options.steps):
        rows = ids[at : at + size + 1].to(device)
        at = at + size if at + 2 * size + 1 <= len(ids) else 0
        with torch.autocast(device, torch.bfloat16, enabled=options.precision == "bf16"):
            loss = model(rows[:-1].view(options.rows, -1), rows[1:].view(options.rows, -1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        print(json.dumps({"loss": loss.item()}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--case", action="append", help="a JSON object; several times for several")
    what.add_argument("--serve", action="store_true")
    what.add_argument("--start", type=Path, help="a safetensors file of GPT-2's weights")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tokens", type=Path, help="with --start: uint16 tokens without a header")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default="fp32", help="with --start")
    parser.add_argument("--threads", type=int, default=1, help="on a CPU")
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(options.threads)
    if options.device == "cuda" and not torch.cuda.is_available():
        print(f"gpu_torch: this PyTorch ({torch.__version__}) finds no GPU", file=sys.stderr)
        return 3
    if options.start:
        start(options, options.device)
        return 0
    if options.serve:
        print(json.dumps({"ready": torch.__version__}), flush=True)
    for line in sys.stdin if options.serve else options.case:
        print(json.dumps(answer(json.loads(line), options.device)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""20 steps of three public models with learned factors in their sums, in small: writes sums.safetensors next to this file.

    python sums.py                 # needs torch, numpy

`nanochat` is karpathy/nanochat of July 2026; `record18` and `record34` are these records of KellerJordan/modded-nanogpt's
first track. They are stated anew here, with Hugging Face's rotary embedding and names, and trained in float64 by plain
AdamW. How far float32 is from that is printed and stored: that is where the test's tolerance comes from.
"""

import json
from pathlib import Path

import numpy as np
import torch

from shared import save, table

HERE = Path(__file__).resolve().parent
D, HEADS, WIDTH, HIDDEN, VOCABULARY = 16, 2, 8, 64, 61
STEPS, ROWS, LENGTH = 20, 2, 12
EPS, CAP = 1e-6, 15.0

# Of both records: which layers begin with another one's output, and which have which table of values.
MIRROR = {6: 5, 7: 4, 8: 3, 9: 2, 10: 1, 11: 0}
TABLES = {0: 0, 1: 1, 2: 2, 9: 0, 10: 1, 11: 2}

# A window of 4 is a query's own key and three before it; layers that are not in `windows` see all before.
CASES = {
    "nanochat": {
        "layers": 6, "embedding": ["norm", "smear"], "smear_channels": 6, "resid": [1.15, 1.05], "mix": [0.2, 0.05],
        "theta": 100000.0, "rotated": 8, "scale": 1.44 / WIDTH**0.5, "windows": {0: 4, 1: 4, 2: 4, 4: 4},
        "own_tables": [1, 3, 5], "ve_channels": 4, "ve_factor": 3.0, "out": 3,
    },
    "record18": {
        "layers": 12, "embedding": ["norm"], "resid": [1.0, 1.0], "mix": [0.0, 0.0], "no_attention": [7],
        "theta": 1024.0**2, "rotated": 4, "scale": 1 / WIDTH**0.5, "windows": {i: 4 for i in range(12)},
        "skips": MIRROR, "skip": 1.0, "tables": TABLES,
    },
    "record34": {
        "layers": 12, "embedding": ["smear", "norm"], "smear_channels": 4, "resid": [1.0, 1.0], "mix": [0.0, 0.0],
        "no_attention": [7], "no_mlp": [0],
        "theta": 1024.0**2, "rotated": 4, "scale": 0.1, "windows": {i: 4 for i in (1, 2, 3, 5, 6, 8, 9, 10)},
        "skips": MIRROR, "skip": -1.5, "skip_sigmoid": True, "tables": TABLES, "open_channels": 4,
    },
}


def parameters(case):
    """Name: shape, mean and deviation of what is drawn."""
    found = {"model.embed_tokens.weight": ([VOCABULARY, D], 0.0, 0.8), "lm_head.weight": ([VOCABULARY, D], 0.0, 2 / D**0.5)}
    scalar = lambda name, mean: found.update({name: ([1], mean, 0.1)})
    matrix = lambda name, *shape: found.update({f"{name}.weight": (list(shape), 0.0, 0.5 / shape[1] ** 0.5)})
    gate = lambda name, *shape: found.update({f"{name}.weight": (list(shape), 0.0, 1 / shape[1] ** 0.5)})
    values = lambda name: found.update({f"{name}.weight": ([VOCABULARY, D], 0.0, 0.5)})
    if "smear" in case["embedding"]:
        scalar("model.smear", 0.0)
        gate("model.smear_gate", 1, case["smear_channels"])
    if "out" in case:
        scalar("model.out", 0.2)
    for i in sorted(set(case.get("tables", {}).values())):
        values(f"model.ve.{i}")
    for i in range(case["layers"]):
        at = f"model.layers.{i}"
        for name in ("resid", "mix"):
            first, last = case[name]
            scalar(f"{at}.{name}", first + (last - first) * i / (case["layers"] - 1))
        if i in case.get("skips", {}):
            scalar(f"{at}.skip", case["skip"])
        if i not in case.get("no_attention", []):
            for name in "qkvo":
                matrix(f"{at}.self_attn.{name}_proj", D, D)
            if "tables" in case:
                scalar(f"{at}.va", 0.5)
            if i in case.get("tables", {}):
                scalar(f"{at}.vb", 0.5)
            if i in case.get("own_tables", []):
                values(f"{at}.ve")
                gate(f"{at}.ve_gate", HEADS, case["ve_channels"])
            if "open_channels" in case:
                gate(f"{at}.open", HEADS, case["open_channels"])
        if i not in case.get("no_mlp", []):
            matrix(f"{at}.mlp.up_proj", HIDDEN, D)
            matrix(f"{at}.mlp.down_proj", D, HIDDEN)
    return found


def draw(case, seed):
    """Weights, which float32 can represent, and ids of all steps. No scalar is drawn within 0.05 of its mean."""
    random = np.random.default_rng(seed)
    weights = {}
    for name, (shape, mean, deviation) in parameters(case).items():
        away = random.normal(0.0, deviation, shape)
        if shape == [1]:
            away += np.copysign(0.05, away)
        weights[name] = (mean + away).astype(np.float32)
    return weights, random.integers(VOCABULARY, size=(STEPS, ROWS, LENGTH + 1)).astype(np.uint32)


def norm(x):
    return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt()


def gate(weight, x):
    return torch.sigmoid(x[..., :weight.shape[1]] @ weight.T)


def smear(w, x):
    """Adds the token before; the first one has none."""
    factor = w["model.smear"] * gate(w["model.smear_gate.weight"], x[:, 1:])
    return torch.cat([x[:, :1], x[:, 1:] + factor * x[:, :-1]], 1)


def rotate(case, x):
    """Rotates the first dimensions of [rows, length, heads, width]."""
    half = case["rotated"] // 2
    frequencies = case["theta"] ** -(torch.arange(half, dtype=torch.float64) / half)
    angles = torch.outer(torch.arange(x.shape[1], dtype=torch.float64), frequencies)[:, None]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b, rest = x[..., :half], x[..., half:2 * half], x[..., 2 * half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


def attention(case, w, layer, x, ids):
    at = f"model.layers.{layer}"
    heads = lambda y: y.unflatten(-1, (HEADS, WIDTH))
    project = lambda name: heads(x @ w[f"{at}.self_attn.{name}_proj.weight"].T)
    q, k = (rotate(case, norm(project(name))) for name in "qk")
    v = project("v")
    if "tables" in case:
        v = w[f"{at}.va"] * v
    if layer in case.get("tables", {}):
        v = v + w[f"{at}.vb"] * heads(w[f"model.ve.{case['tables'][layer]}.weight"][ids])
    if layer in case.get("own_tables", []):
        v = v + case["ve_factor"] * gate(w[f"{at}.ve_gate.weight"], x)[..., None] * heads(w[f"{at}.ve.weight"][ids])
    back = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
    seen = (back >= 0) & (back < case["windows"].get(layer, LENGTH))
    scores = torch.einsum("rqhd,rkhd->rhqk", q, k) * case["scale"]
    y = torch.einsum("rhqk,rkhd->rqhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), v)
    if "open_channels" in case:
        y = y * gate(w[f"{at}.open.weight"], x)[..., None]
    return y.flatten(-2) @ w[f"{at}.self_attn.o_proj.weight"].T


def mlp(w, layer, x):
    up, down = (w[f"model.layers.{layer}.mlp.{name}_proj.weight"] for name in ("up", "down"))
    return (x @ up.T).relu().square() @ down.T


def logits(case, w, ids):
    x = w["model.embed_tokens.weight"][ids]
    for step in case["embedding"]:
        x = norm(x) if step == "norm" else smear(w, x)
    start, outputs = x, []
    for layer in range(case["layers"]):
        at = f"model.layers.{layer}"
        if layer in case.get("skips", {}):
            skip = w[f"{at}.skip"]
            x = x + (skip.sigmoid() if case.get("skip_sigmoid") else skip) * outputs[case["skips"][layer]]
        x = w[f"{at}.resid"] * x + w[f"{at}.mix"] * start
        if layer not in case.get("no_attention", []):
            x = x + attention(case, w, layer, norm(x), ids)
        if layer not in case.get("no_mlp", []):
            x = x + mlp(w, layer, norm(x))
        outputs.append(x)
    if "out" in case:
        x = x - w["model.out"] * outputs[case["out"]]
    return CAP * torch.tanh(norm(x) @ w["lm_head.weight"].T / CAP)


def train(case, weights, ids, dtype):
    """Losses of all steps, norms of the first step's gradients, and the last weights, in float64."""
    w = {name: torch.nn.Parameter(torch.tensor(value, dtype=dtype)) for name, value in weights.items()}
    optimizer = torch.optim.AdamW(w.values(), lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    losses, norms = [], {}
    for row in torch.from_numpy(ids.astype(np.int64)):
        loss = torch.nn.functional.cross_entropy(logits(case, w, row[:, :-1]).flatten(0, 1), row[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        norms = norms or {name: parameter.grad.double().norm().item() for name, parameter in w.items()}
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses), norms, {name: parameter.detach().double().numpy() for name, parameter in w.items()}


def main():
    torch.set_num_threads(1)
    tensors, errors, rows = {}, {}, []
    for seed, (name, case) in enumerate(CASES.items()):
        weights, ids = draw(case, seed)
        losses, norms, _ = train(case, weights, ids, torch.float64)
        single_losses, single_norms, _ = train(case, weights, ids, torch.float32)
        tensors |= {f"{name}/weights/{key}": value for key, value in weights.items()}
        tensors |= {f"{name}/gradient_norms/{key}": np.array([value]) for key, value in norms.items()}
        tensors |= {f"{name}/ids": ids, f"{name}/losses": losses}
        errors[name] = {"losses": np.abs(single_losses - losses).max(),
                        "gradient_norms": max(abs(single_norms[key] - value) for key, value in norms.items())}
        rows.append([name, losses[0], losses[-1], min(norms.values()), *(f"{error:.1e}" for error in errors[name].values())])
    table(rows, ("model", "first loss", "last loss", "least norm", "float32 - float64, losses", "norms"))
    path = HERE / "sums.safetensors"
    save(path, tensors, {"cases": json.dumps(CASES), "float32_error": json.dumps(errors),
                         "versions": json.dumps({"torch": torch.__version__, "numpy": np.__version__})})
    print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""100 steps of PyTorch's optimizers on gradients that Rust can make too: writes optimizers.safetensors next to this file.

    python optimizers.py           # needs torch, numpy

Four tensors with gradients from a counter, of a size that changes from step to step, so that `clip_grad_norm_` scales
some of them and leaves others. The reference is computed in float64; how far PyTorch's own float32 is from it, in its
default and its fused form, is printed and stored: that is where the test's tolerance comes from.

PyTorch's Muon multiplies in bfloat16, whatever its parameters are. For the reference and for float32 it multiplies in the
parameters' type; how far it is off in bfloat16 is the third number.
"""

import json
from pathlib import Path

import numpy as np
import torch
import torch._dynamo  # which optimizers import, before bfloat16 is replaced

from shared import centred, save, table

HERE = Path(__file__).resolve().parent
STEPS = 100
SHAPES = {"up": (40, 25), "up_bias": (37,), "down": (12, 9), "norm": (25,)}

# Name, clip, and the optimizer over (decayed, not decayed) parameters.
CASES = {
    "adamw": (1.0, lambda decayed, rest, **more: torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
        lr=1e-3, betas=(0.9, 0.95), eps=1e-8, **more)),
    "sgd": (0.5, lambda decayed, rest, **more: torch.optim.SGD(decayed + rest, lr=5.0, **more)),
    "sgd_momentum": (0.5, lambda decayed, rest, **more: torch.optim.SGD(decayed + rest, lr=5.0, momentum=0.9, **more)),
    "muon": (0.5, lambda decayed, rest, **more: Both(
        torch.optim.Muon(decayed, lr=0.02, weight_decay=0.1),
        torch.optim.AdamW(rest, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0, **more))),
    "muon_rms": (0.5, lambda decayed, rest, **more: Both(
        torch.optim.Muon(decayed, lr=1e-3, weight_decay=0.1, momentum=0.9, nesterov=False, ns_steps=4,
                         adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0, **more))),
}


class Both:
    """Two optimizers that step together."""

    def __init__(self, *optimizers):
        self.optimizers = optimizers

    def step(self):
        for optimizer in self.optimizers:
            optimizer.step()


def with_products_in(dtype, run):
    """The result of `run`, in which `torch.bfloat16` is `dtype`."""
    original = torch.bfloat16
    torch.bfloat16 = dtype
    try:
        return run()
    finally:
        torch.bfloat16 = original


def gradient(step, tensor, shape):
    """In [-1, 1) times a power of two: its global norm is between 0.3 and 5 here."""
    size = 2.0 ** -(2 + step % 5)
    return (size * centred(1000 + 8 * step + tensor, int(np.prod(shape)))).reshape(shape)


def train(case, dtype, **more):
    """All weights after the steps, one after the other, in float64; and how many steps were clipped."""
    clip, make = CASES[case]
    parameters = [
        torch.nn.Parameter(torch.from_numpy(centred(i, int(np.prod(shape))).reshape(shape) / 4).to(dtype))
        for i, shape in enumerate(SHAPES.values())
    ]
    optimizer = make([p for p in parameters if p.ndim >= 2], [p for p in parameters if p.ndim < 2], **more)
    clipped = 0
    for step in range(STEPS):
        for i, parameter in enumerate(parameters):
            parameter.grad = torch.from_numpy(gradient(step, i, parameter.shape)).to(dtype)
        clipped += torch.nn.utils.clip_grad_norm_(parameters, clip).item() > clip
        optimizer.step()
    return np.concatenate([p.detach().double().numpy().ravel() for p in parameters]), clipped


def main():
    tensors, errors, rows = {}, {}, []
    for case in CASES:
        exact, clipped = with_products_in(torch.float64, lambda: train(case, torch.float64))
        off = lambda **more: np.abs(train(case, torch.float32, **more)[0] - exact).max()
        single, fused = with_products_in(torch.float32, lambda: (off(), off(fused=True)))
        tensors[case], errors[case] = exact, float(max(single, fused))
        if case.startswith("muon"):
            errors[f"{case}.bf16"] = float(off())
        converted = f"{errors[f'{case}.bf16']:.1e}" if case.startswith("muon") else ""
        rows.append([case, clipped, f"{np.abs(exact).max():.3f}", f"{single:.1e}", f"{fused:.1e}", converted])
    table(rows, ("optimizer", "steps clipped", "largest weight", "float32 - float64", "fused - float64", "bf16 - float64"))
    path = HERE / "optimizers.safetensors"
    save(path, tensors, {"float32_error": json.dumps(errors), "versions": json.dumps({"torch": torch.__version__})})
    print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()

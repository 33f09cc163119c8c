#!/usr/bin/env python3
"""200 training steps of a tiny GPT-2 and a tiny Llama of `transformers`: writes curves.safetensors next to this file.

    python curves.py               # needs torch, transformers, safetensors, numpy; a minute

Initial weights and batches come from counters (shared.py), and Rust makes the same, so that the fixture holds losses only:
of a float64 run, of a float32 run, and of one under `torch.autocast("cpu", torch.bfloat16)`. What the float32 run is off
from the float64 one says how exact a loss curve can be; what the autocast run is off from the float32 one, how far bf16
may be. That is a matter of luck, too, so three data orders are taken.
"""

import json
import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from transformers import GPT2Config, LlamaConfig

import generate
from shared import centred, mix, save, table

HERE = Path(__file__).resolve().parent
VOCAB, ROWS, LENGTH = 128, 8, 32
STEPS, WARMUP, PEAK_LR, LAST, CLIP = 200, 20, 3e-3, 0.1, 1.0
BATCHES = 1 << 20  # where the counters of batches begin
SEEDS = 3

CONFIGS = {
    "gpt2": GPT2Config(
        vocab_size=VOCAB, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=4, n_inner=128, activation_function="gelu_new",
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, layer_norm_epsilon=1e-5, tie_word_embeddings=True,
        bos_token_id=0, eos_token_id=0, use_cache=False, attn_implementation="eager",
    ),
    "llama": LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=88, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=LENGTH, rms_norm_eps=1e-5, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, attention_bias=False, mlp_bias=False,
        attention_dropout=0.0, bos_token_id=0, eos_token_id=0, use_cache=False, attn_implementation="eager",
    ),
}


def initial_weights(family):
    """Matrices of a deviation of 0.02 (GPT-2's residual projections half of that), norms 1, biases 0."""
    model = generate.FAMILIES[family]["model"](CONFIGS[family])
    out = {}
    for stream, (name, like) in enumerate(sorted(generate.export(model).items())):
        if like.ndim >= 2:
            size = 2.0 ** (-6 if name.endswith("c_proj.weight") else -5)
            value = size * centred(stream, like.size).reshape(like.shape)
        else:
            value = np.full(like.shape, 1.0 if name.endswith("weight") else 0.0)
        out[name] = value.astype(np.float32)
    return out


def batch(seed, step):
    """Ids [ROWS, LENGTH + 1]: three of four follow from the one before, the others are drawn."""
    bits = mix(BATCHES + 1000 * seed + step, np.arange(ROWS * (LENGTH + 1))).reshape(ROWS, LENGTH + 1)
    drawn = (bits >> np.uint32(8)) % np.uint32(VOCAB)
    ids = drawn.astype(np.int64)
    for i in range(1, LENGTH + 1):
        ids[:, i] = np.where(bits[:, i] % 4 == 0, drawn[:, i], (5 * ids[:, i - 1] + 7) % VOCAB)
    return torch.from_numpy(ids)


def lr_at(step):
    if step < WARMUP:
        return PEAK_LR * (step + 1) / WARMUP
    share = (step - WARMUP) / (STEPS - WARMUP)
    return PEAK_LR * (LAST + (1 - LAST) * 0.5 * (1 + math.cos(math.pi * share)))


def train(family, weights, seed, dtype, autocast=False):
    model = generate.build(family, weights, dtype, CONFIGS[family])
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=PEAK_LR, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = lr_at(step)
        ids = batch(seed, step)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logits = model(input_ids=ids[:, :-1]).logits
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses)


def main():
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    tensors, rows = {}, []
    for family in CONFIGS:
        weights = initial_weights(family)
        for seed in range(SEEDS):
            single = train(family, weights, seed, torch.float32)
            half = train(family, weights, seed, torch.float32, autocast=True)
            tensors |= {f"{family}.{seed}.float32": single, f"{family}.{seed}.bf16": half}
            pairs = [("bf16 - float32", half, single)]
            if seed == 0:
                exact = tensors[f"{family}.{seed}.float64"] = train(family, weights, seed, torch.float64)
                pairs.insert(0, ("float32 - float64", single, exact))
            for what, a, b in pairs:
                off = np.abs(a - b)
                losses = f"{b[0]:.4f} … {b[-1]:.4f}"
                rows.append([f"{family}, data {seed}, {what}", losses, f"{off.mean():.1e}", f"{off.max():.1e}"])
    table(rows, ("losses of PyTorch", "first … last", "mean difference", "largest"))
    path = HERE / "curves.safetensors"
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    save(path, tensors, {"versions": json.dumps(versions)})
    print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()

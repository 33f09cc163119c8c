#!/usr/bin/env python3
"""Writes tests/fixtures/hf: small folders as `transformers` saves them, each with the logits that PyTorch gives.

    pip install torch transformers safetensors numpy
    python hf.py [NAME...]          # all folders, or these

gpt2                GPT2LMHeadModel, one file, n_inner set
gpt2-sharded        GPT2Model (names without `transformer.`), float16, several files and an index
llama               LlamaForCausalLM, grouped heads, rope_parameters as version 5 writes them, a head of its own
llama-tied          LlamaForCausalLM, bfloat16, tied
llama3              LlamaForCausalLM, bfloat16, tied, head_dim set, rope_type llama3 with frequencies in each of its three bands
llama-linear        LlamaForCausalLM, rope_type linear
llama-yarn          LlamaForCausalLM, rope_type yarn with its defaults, head_dim set
mistral             MistralForCausalLM, a window of 5 in every layer, head_dim set
qwen2               Qwen2ForCausalLM, bfloat16, tied, biases on queries, keys and values
qwen2-window        Qwen2ForCausalLM, a window of 4 from the second layer on
qwen3               Qwen3ForCausalLM, norms of each head's queries and keys, head_dim set
gemma3              Gemma3ForCausalLM, tied, windows of 4 with a rope base of their own, linear rope in the layer without one
olmo2               Olmo2ForCausalLM, norms behind the sublayers and of all queries and keys
olmo3               Olmo3ForCausalLM, as OLMo 2, windows of 4, yarn in the layer without a window
smollm3             SmolLM3ForCausalLM, float16, tied, no rope in every other layer

All are float32 unless it says otherwise. `expected.safetensors` in each holds `tokens` [3, 12] (int64) and `logits`
[3, 12, vocabulary] (float32): computed in float64 from the stored weights, and rounded once. It also holds 20 steps of plain
AdamW from the stored weights in float64: `rows` [20, 2, 13] (int32), `losses` [20] (float64, cross-entropy alone) and
`gradient_norms` [20] (float64, of all parameters). olmo2 is trained with a z-loss. Prints how far logits, losses and norms in
plain float32 are from those, for each folder.
"""

import contextlib
import copy
import os
import shutil
import sys
from pathlib import Path
from unittest import mock

os.environ.setdefault("USE_HUB_KERNELS", "0")

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

HERE = Path(__file__).resolve().parent.parent / "fixtures" / "hf"
VOCAB = 40

GPT2 = {
    "model_type": "gpt2", "vocab_size": VOCAB, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2, "resid_pdrop": 0.0,
    "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0,
}
LLAMA = {
    "model_type": "llama", "vocab_size": VOCAB, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 16, "bos_token_id": 0, "eos_token_id": 0,
    "pad_token_id": None,
}


def rope(theta, kind="default", **more):
    return {"rope_type": kind, "rope_theta": theta, **more}


F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16

# name: seed, stored type, configuration
FOLDERS = {
    "gpt2": (1, F32, GPT2 | {"n_inner": 40}),
    "gpt2-sharded": (2, F16, GPT2 | {"layer_norm_epsilon": 1e-6}),
    "llama": (3, F32, LLAMA | {"rope_parameters": rope(500.0), "rms_norm_eps": 1e-5}),
    "llama-tied": (4, BF16, LLAMA | {"tie_word_embeddings": True}),
    "llama3": (5, BF16, LLAMA | {
        "tie_word_embeddings": True, "head_dim": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 64,
        # Wavelengths 6.3, 13, 28 and 59 beside the bounds 8 and 32.
        "rope_parameters": rope(20.0, "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                original_max_position_embeddings=32)}),
    "llama-linear": (6, F32, LLAMA | {"max_position_embeddings": 32, "rope_parameters": rope(100.0, "linear", factor=2.0)}),
    "llama-yarn": (7, F32, LLAMA | {
        "head_dim": 8, "max_position_embeddings": 4096,
        # The ramp from 1 to 4: 0, 0, 1/3 and 2/3 of the four frequencies are scaled.
        "rope_parameters": rope(500.0, "yarn", factor=4.0, original_max_position_embeddings=1024)}),
    "mistral": (9, F32, LLAMA | {
        "model_type": "mistral", "sliding_window": 5, "head_dim": 6, "rope_parameters": rope(1000.0), "rms_norm_eps": 1e-5}),
    "qwen2": (10, BF16, LLAMA | {"model_type": "qwen2", "tie_word_embeddings": True, "rope_parameters": rope(1000.0)}),
    "qwen2-window": (11, F32, LLAMA | {
        "model_type": "qwen2", "num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    "qwen3": (12, F32, LLAMA | {"model_type": "qwen3", "head_dim": 8, "rope_parameters": rope(1000.0)}),
    "gemma3": (13, F32, LLAMA | {
        "model_type": "gemma3_text", "num_hidden_layers": 4, "head_dim": 6, "query_pre_attn_scalar": 10, "sliding_window": 4,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {"sliding_attention": rope(50.0), "full_attention": rope(1000.0, "linear", factor=8.0)}}),
    "olmo2": (14, F32, LLAMA | {"model_type": "olmo2", "rope_parameters": rope(500.0), "rms_norm_eps": 1e-6}),
    "olmo3": (15, F32, LLAMA | {
        "model_type": "olmo3", "num_hidden_layers": 4, "sliding_window": 4, "rms_norm_eps": 1e-6, "max_position_embeddings": 32,
        # From 0 to 2: 0 and 1/2 of the two frequencies.
        "rope_parameters": {
            "sliding_attention": rope(4.0),
            "full_attention": rope(4.0, "yarn", factor=4.0, original_max_position_embeddings=8, attention_factor=1.2,
                                   beta_fast=2.0, beta_slow=0.5)}}),
    "smollm3": (16, F16, LLAMA | {
        "model_type": "smollm3", "num_hidden_layers": 4, "no_rope_layer_interval": 2, "rope_parameters": rope(1000.0)}),
}
# The factor of the mean squared logarithm of the softmax's denominator in the loss.
Z_LOSS = {"olmo2": 0.05}
STEPS, ROWS, LENGTH = 20, 2, 12
# What is saved, and how, if not the whole model in one file.
SAVED = {"gpt2-sharded": (lambda model: model.transformer, {"max_shard_size": "6KB"})}


@contextlib.contextmanager
def in_float64(model):
    """The library's code computes norms, rotary angles and attention weights in float32 whatever the model's type. What it calls
    float32 is float64 here."""
    with (
        mock.patch.multiple(torch, float=torch.float64, float32=torch.float64),
        mock.patch.object(torch.Tensor, "float", torch.Tensor.double),
    ):
        for module in model.double().modules():
            if type(module).__name__.endswith("RotaryEmbedding"):
                module.__init__(module.config)
        yield


@torch.enable_grad()
def train(model, rows, z_loss):
    """Losses and norms of the gradient of all steps."""
    model.requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    losses, norms = [], []
    for row in rows.long():
        logits = model(row[:, :-1]).logits.flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, row[:, 1:].flatten())
        optimizer.zero_grad()
        (loss + z_loss * logits.logsumexp(-1).square().mean()).backward()
        norms.append(torch.stack([p.grad.double().norm() for p in model.parameters()]).norm().item())
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses, dtype=torch.float64), torch.tensor(norms, dtype=torch.float64)


def write(name):
    seed, dtype, config = FOLDERS[name]
    saved, how = SAVED.get(name, (lambda model: model, {}))
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    random = np.random.Generator(np.random.PCG64(seed))
    for _, p in model.named_parameters():
        centre = 1.0 if p.dim() == 1 and p.mean() > 0.5 else 0.0  # a norm's weights, unless it adds 1
        p.copy_(torch.from_numpy(centre + 0.2 * random.standard_normal(tuple(p.shape))))
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    saved(model.to(dtype)).save_pretrained(folder, **how)
    (folder / "generation_config.json").unlink(missing_ok=True)
    # What was stored, not what was in memory.
    stored = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    tokens = torch.from_numpy(random.integers(0, VOCAB, (3, 12)))
    rows = torch.from_numpy(random.integers(0, VOCAB, (STEPS, ROWS, LENGTH + 1)).astype(np.int32))
    plain, trained = stored(tokens).logits, train(copy.deepcopy(stored), rows, Z_LOSS.get(name, 0.0))
    with in_float64(stored):
        logits = stored(tokens).logits
        losses, norms = train(stored, rows, Z_LOSS.get(name, 0.0))
    expected = {"tokens": tokens, "logits": logits.float().contiguous(), "rows": rows, "losses": losses, "gradient_norms": norms}
    save_file(expected, folder / "expected.safetensors")
    for file in folder.iterdir():
        file.chmod(0o644)
    size = sum(f.stat().st_size for f in folder.iterdir())
    off = [(single - double).abs().max() for single, double in zip((plain, *trained), (logits, losses, norms))]
    print(f"{name:18} {size:6} bytes; largest logit {logits.abs().max():.3f}; loss {losses[0]:.3f} to {losses[-1]:.3f}; "
          f"float32 off by {off[0]:.1e} in logits, {off[1]:.1e} in losses, {off[2]:.1e} in norms")


if __name__ == "__main__":
    with torch.no_grad():
        for name in sys.argv[1:] or FOLDERS:
            write(name)

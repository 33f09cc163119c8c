#!/usr/bin/env python3
"""Writes tests/fixtures/hf: small folders as `transformers` saves them, each with the logits that PyTorch gives.

    pip install torch transformers safetensors numpy
    python hf.py

gpt2          GPT2LMHeadModel, float32, one file, n_inner set
gpt2-sharded  GPT2Model (names without `transformer.`), float16, several files and an index
llama         LlamaForCausalLM, float32, grouped heads, rope_parameters as version 5 writes them, a head of its own
llama-tied    LlamaForCausalLM, bfloat16, tied

`expected.safetensors` in each holds `tokens` [3, 12] (int64) and `logits` [3, 12, vocabulary] (float32): computed in float64
from the stored weights, and rounded once.
"""

import os
import shutil
from pathlib import Path

os.environ.setdefault("USE_HUB_KERNELS", "0")

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from generate import Norm64, Rotary64, attention64, modeling_llama

HERE = Path(__file__).resolve().parent.parent / "fixtures" / "hf"
VOCAB, CONTEXT = 40, 16


def gpt2(**more):
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=VOCAB, n_positions=CONTEXT, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, attn_implementation="eager", **more))


def llama(**more):
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=CONTEXT, bos_token_id=0, eos_token_id=0,
        attn_implementation="eager", **more))


def write(name, model, seed, dtype, save=lambda model: model, **how):
    random = np.random.Generator(np.random.PCG64(seed))
    with torch.no_grad():
        for _, p in model.named_parameters():
            centre = 1.0 if p.dim() == 1 and p.mean() > 0.5 else 0.0
            p.copy_(torch.from_numpy(centre + 0.2 * random.standard_normal(tuple(p.shape))))
    model = model.to(dtype)
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    save(model).save_pretrained(folder, **how)
    (folder / "generation_config.json").unlink(missing_ok=True)
    # What was stored, not what was in memory.
    stored = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").double()
    stored.eval()
    for module in stored.modules():
        if isinstance(module, modeling_llama.LlamaRMSNorm):
            module.__class__ = Norm64
        elif isinstance(module, modeling_llama.LlamaRotaryEmbedding):
            module.__class__ = Rotary64
    tokens = torch.from_numpy(random.integers(0, VOCAB, (3, 12)))
    modeling_llama.eager_attention_forward, eager = attention64, modeling_llama.eager_attention_forward
    with torch.no_grad():
        logits = stored(tokens).logits
    modeling_llama.eager_attention_forward = eager
    save_file({"tokens": tokens, "logits": logits.float().contiguous()}, folder / "expected.safetensors")
    for file in folder.iterdir():
        file.chmod(0o644)
    print(name, sum(f.stat().st_size for f in folder.iterdir()), "bytes; largest logit", float(logits.abs().max()))


if __name__ == "__main__":
    write("gpt2", gpt2(n_inner=40), 1, torch.float32)
    write("gpt2-sharded", gpt2(layer_norm_epsilon=1e-6), 2, torch.float16, save=lambda model: model.transformer, max_shard_size="6KB")
    write("llama", llama(rope_parameters={"rope_type": "default", "rope_theta": 500.0}, rms_norm_eps=1e-5), 3, torch.float32)
    write("llama-tied", llama(tie_word_embeddings=True), 4, torch.bfloat16)

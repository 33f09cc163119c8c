#!/usr/bin/env python3
"""Trains small runs under several layouts, exports them, and compares the logits of `transformers`, and of a GPT-2 built from
llm.c's file, with the program's own.

    pip install torch transformers safetensors numpy
    python hf_logits.py path/to/runner

Prints, for each run and format, the largest difference of a logit and the largest logit; fails if the tokenizer that
`transformers` loads does not give a text back.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("USE_HUB_KERNELS", "0")
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

RUNNER = Path(sys.argv[1]).resolve()
GPT2 = "family: gpt2, layers: 4, heads: 4, d_model: 64, context_length: 64, pad_vocab_to: 128"
LLAMA = "family: llama, layers: 4, heads: 4, kv_heads: 2, d_model: 64, d_ff: 160, context_length: 64, rope_theta: 5000.0"
MESH = "parallel: {mode: pipeline, replicas: 2, pipeline: {stages: 2, microbatches: 2}}"
INTERLEAVED = "parallel: {mode: pipeline, pipeline: {stages: 2, schedule: interleaved_1f1b, chunks: 2, microbatches: 2}}"
BPE = "{bpe: {vocab_size: 500, special_tokens: ['<|endoftext|>']}}"
CASES = [
    ("gpt2-single", GPT2, "", BPE),
    ("gpt2-2x2", GPT2, MESH, BPE),
    ("gpt2-untied-interleaved", GPT2 + ", tie_embeddings: false", INTERLEAVED, "{bytes: {}}"),
    ("llama-single", LLAMA, "", BPE),
    ("llama-2x2", LLAMA, MESH, "{chars: {}}"),
    ("llama-tied-interleaved", LLAMA + ", tie_embeddings: true", INTERLEAVED, BPE),
    ("llama3", LLAMA + ", rope_scaling: {llama3: {factor: 8, low_freq_factor: 1, high_freq_factor: 4, original_context: 32}}", "", BPE),
    ("llama-yarn", LLAMA + ", head_dim: 32, rope_scaling: {yarn: {factor: 4, original_context: 16}}", "", BPE),
    ("llama-biases", LLAMA + ", biases: all", "", BPE),
    *((preset, f"preset: {preset}", "", BPE) for preset in (
        "mistral-nano", "qwen2-nano", "qwen3-nano", "gemma3-nano", "olmo2-nano", "olmo3-nano", "smollm3-nano")),
    ("gemma3-linear", "preset: gemma3-nano, rope_scaling: {linear: {factor: 8}}, pattern: [{layers: 2, window: 16, rope_scaling: {none: {}}}, {}]",
     "", BPE),
    ("olmo3-yarn", "preset: olmo3-nano, rope_scaling: {yarn: {factor: 4, original_context: 16}}, "
     "pattern: [{layers: 3, window: 32, rope_scaling: {none: {}}}, {}]", "", BPE),
]


def runner(folder, *args):
    env = dict(os.environ, RUNNER_CACHE=str(folder / "cache"), RUNNER_RUNS=str(folder / "runs"))
    done = subprocess.run([RUNNER, *map(str, args)], cwd=folder, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{args}: {done.stderr}")
    return done.stdout


def main():
    folder = Path(tempfile.mkdtemp())
    text = " ".join(str(i * i % 997) + ("\n" if i % 9 == 0 else "") for i in range(4000))
    (folder / "input.txt").write_text(text)
    print(f"{'run':26}{'format':18}{'largest difference':>20}{'largest logit':>15}")
    for name, model, parallel, tokenizer in CASES:
        (folder / f"{name}.yaml").write_text(
            f"name: {name}\nmodel: {{{model}}}\ndata: {{tokenizer: {tokenizer}, train: {{text: {{files: [input.txt]}}}}}}\n"
            f"batch: {{sequences: 8}}\ntrain: {{steps: 30}}\noptimizer: {{adamw: {{lr: 1e-2}}}}\n{parallel}\n")
        runner(folder, "apply", f"{name}.yaml", "--threads", "1", "--quiet")
        made = {"hf f32": [], "hf bf16": ["--dtype", "bf16"], "hf f16, trimmed": ["--dtype", "f16", "--vocab", "trimmed"],
                "hf, shards": ["--shard-size", "100KB"]}
        vocab = None
        for format, flags in made.items():
            out = folder / f"{name}-{format.replace(' ', '-')}"
            runner(folder, "export", name, "--to", "hf", out, *flags)
            theirs = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
            if vocab is None:
                hf = AutoTokenizer.from_pretrained(out)
                some = text[1000:1100]
                ids = hf.encode(some, add_special_tokens=False)
                assert hf.decode(ids) == some, (hf.decode(ids), some)
                vocab = theirs.config.vocab_size
                tokens = np.random.default_rng(0).integers(0, len(hf), (4, 64)).tolist()
                (folder / "tokens.json").write_text(json.dumps(tokens))
                runner(folder, "logits", name, "--tokens", folder / "tokens.json", "--out", folder / "ours.safetensors", "--threads", "1")
                ours = load_file(folder / "ours.safetensors")["logits"]
            with torch.no_grad():
                logits = theirs(torch.tensor(tokens)).logits
            show(name, format, ours[..., : logits.shape[-1]], logits)


def show(name, format, ours, theirs):
    print(f"{name:26}{format:18}{float((ours - theirs).abs().max()):20.2e}{float(ours.abs().max()):15.2f}", flush=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Evaluates the same weights by `runner eval --weights` and by `transformers`, and compares: the loss of a text, and each item of HellaSwag.

    python benches/peers/evaluation.py --text input.txt --tokenizer GPT2-FILES --items hellaswag_val.jsonl
    python benches/peers/evaluation.py --run runs/gpt2-0a1b2c3d --text input.txt --items hellaswag_val.jsonl

Without `--run` three models are evaluated: a GPT-2 and a Llama of random weights, in folders that `save_pretrained` wrote, and a small
GPT-2 that the program trained on the text and exported. The loss is that of windows that do not overlap: window i reads the tokens from
i·length on, `length` of them, and predicts the token after each. HellaSwag's context and ending are encoded together, with a blank between them,
as lm-eval does (for these tokenizers also as build-nanogpt does). Of each ending's tokens the sum of the losses (`acc`), their mean
(`acc_norm`), and the sum over the ending's characters (`acc_norm_chars`, lm-eval's `acc_norm`) count, and the smallest wins. Ends with 1 if the losses differ by more than 1e-5, or an item is decided otherwise. Needs torch, transformers, safetensors, tokenizers.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("USE_HUB_KERNELS", "0")
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import gpt2

EXPERIMENT = """\
version: 1
name: trained
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
LOSS_TOLERANCE = 1e-5
VOCAB, CONTEXT = 50257, 256


def random_models():
    """A GPT-2 and a Llama whose logits are far from equal, so that losses and choices say something."""
    torch.manual_seed(0)
    yield "gpt2", GPT2LMHeadModel(GPT2Config(
        vocab_size=VOCAB, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=4, initializer_range=0.2))
    yield "llama", LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCAB, max_position_embeddings=CONTEXT, hidden_size=32, intermediate_size=88, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.2, bos_token_id=0, eos_token_id=0))


def encoder(folder):
    """Encodes text with the tokenizer in the folder, without special tokens."""
    if not (folder / "tokenizer.json").exists():
        return gpt2.tokenizer(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


@torch.no_grad()
def text_loss(model, ids, length, rows):
    """The mean loss of the first rows of `length` inputs, and the number of tokens."""
    count = min((len(ids) - 1) // length, rows or len(ids))
    total = 0.0
    for first in range(0, count, 8):
        part = [ids[i * length : i * length + length + 1] for i in range(first, min(first + 8, count))]
        part = torch.tensor(part)
        logits = model(part[:, :-1]).logits
        total += F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), reduction="none").double().sum().item()
    return total / (count * length), count * length


@torch.no_grad()
def item_losses(model, encode, item):
    """The summed loss of each ending, and its tokens. All endings fit the context, or the front of the context is cut off."""
    context = encode(item["ctx"].rstrip())
    out = []
    for ending in item["endings"]:
        ending = encode(f"{item['ctx']} {ending}")[len(context) :]
        row = (context + ending)[-(model.config.max_position_embeddings + 1) :]
        ids = torch.tensor([row])
        losses = F.cross_entropy(model(ids[:, :-1]).logits[0], ids[0, 1:], reduction="none").double()
        count = min(len(ending), len(losses))
        out.append((losses[-count:].sum().item(), count))
    return out


def compare(options, folder, name, weights):
    """True if both programs agree on the model in the folder `weights`."""
    items_file = folder / f"{name}.jsonl"
    command = ["eval", "--weights", weights, "--text", options.text.resolve(), "--hellaswag", options.items.resolve(),
               "--limit", options.limit, "--items", items_file, "--threads", options.threads, "--json"]
    ours = json.loads(gpt2.runner(options.runner, folder, *command, *(["--rows", options.rows] if options.rows else [])))
    scored = [json.loads(line) for line in items_file.read_text().splitlines()]

    model, encode = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32).eval(), encoder(weights)
    loss, tokens = text_loss(model, encode(options.text.read_text()), model.config.max_position_embeddings, options.rows)
    with open(options.items) as file:
        lines = [json.loads(line) for _, line in zip(range(options.limit), file)]
    assert len(scored) == len(lines), (len(scored), len(lines))
    differ, largest, right, right_norm, right_chars = [], 0.0, 0, 0, 0
    for i, (item, mine) in enumerate(zip(lines, scored)):
        theirs = item_losses(model, encode, item)
        sums, means = [s for s, _ in theirs], [s / n for s, n in theirs]
        per_character = [s / max(len(ending), 1) for s, ending in zip(sums, item["endings"])]
        choices = tuple(losses.index(min(losses)) for losses in (sums, means, per_character))
        largest = max(largest, *(abs(a - b) / b for a, b in zip(mine["losses"], sums)))
        right += choices[0] == int(item["label"])
        right_norm += choices[1] == int(item["label"])
        right_chars += choices[2] == int(item["label"])
        counts = [n for _, n in theirs]
        chosen = mine["choice"], mine["choice_norm"], mine["choice_norm_chars"]
        if (*chosen, mine["tokens"], mine["label"]) != (*choices, counts, int(item["label"])):
            differ.append(i)
    count = ours["hellaswag_n"]
    acc, norm, chars = (round(ours[f"hellaswag_{name}"] * count) for name in ("acc", "acc_norm", "acc_norm_chars"))
    print(f"\n{name}: an ending's loss differs by {largest:.1e} of it at most; {len(differ)} of {count} items are decided otherwise")
    show = lambda loss: f"{loss:.7f}"
    gpt2.show([["loss", show(ours["val_loss"]), show(loss), f"{ours['val_loss'] - loss:.1e}"],
               ["tokens", ours["val_tokens"], tokens, ours["val_tokens"] - tokens],
               ["acc: right", acc, right, acc - right],
               ["acc_norm: right", norm, right_norm, norm - right_norm],
               ["acc_norm_chars: right", chars, right_chars, chars - right_chars]], ("what", "ours", "transformers", "difference"))
    same = abs(ours["val_loss"] - loss) <= LOSS_TOLERANCE and (ours["val_tokens"], acc, norm, chars) == (tokens, right, right_norm, right_chars)
    return same and not differ


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runner", type=Path, default=Path("target/release/runner"))
    parser.add_argument("--run", type=Path, help="a run to evaluate [default: three small models]")
    parser.add_argument("--text", type=Path, required=True, help="the text whose loss is measured")
    parser.add_argument("--rows", type=int, help="measure it on the first rows only")
    parser.add_argument("--steps", type=int, default=80, help="how long the third model is trained")
    parser.add_argument("--tokenizer", type=Path, help="folder with vocab.json and merges.txt of GPT-2")
    parser.add_argument("--items", type=Path, required=True, help="hellaswag_val.jsonl")
    parser.add_argument("--limit", type=int, default=500)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.runner = options.runner.resolve()
    with tempfile.TemporaryDirectory(prefix="evaluation-") as name:
        folder = Path(name)
        models = {}
        run = options.run and options.run.resolve()
        if run is None:
            if options.tokenizer is None:
                parser.error("--tokenizer or --run")
            for name, model in random_models():
                models[name] = folder / name
                model.save_pretrained(models[name])
                for file in ["vocab.json", "merges.txt"]:
                    shutil.copy(options.tokenizer / file, models[name])
            text = EXPERIMENT.format(tokenizer=options.tokenizer.resolve(), text=options.text.resolve(), steps=options.steps)
            (folder / "exp.yaml").write_text(text)
            gpt2.runner(options.runner, folder, "apply", "exp.yaml", "--quiet", "--threads", options.threads)
            run = gpt2.run_folder(folder, "trained")
        models["trained"] = folder / "trained"
        gpt2.runner(options.runner, folder, "export", run, "--to", "hf", models["trained"])
        agreed = [compare(options, folder, name, weights) for name, weights in models.items()]
    if not all(agreed):
        sys.exit("the two do not agree")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Writes the golden fixtures gpt2, llama, encoder, encoder_unmasked and bf16 (.safetensors) next to this file.

    python -m venv .venv
    .venv/bin/pip install torch transformers safetensors numpy
    .venv/bin/python generate.py            # writes all files
    .venv/bin/python generate.py --check    # compares with the files that are there, writes nothing

The models are those of `transformers`, and one made of `torch.nn.TransformerEncoderLayer`; the optimizers and the clipping those of PyTorch. Weights are float32; all
that follows from them is computed in float64 and stored as float32, so that what the fixtures themselves are off by is
one rounding. The same run in plain float32 is made too, with the models untouched, and how far it ends up from the
float64 one is stored in the metadata (`float32_error`): this is where a test can take its tolerances from.

Deterministic: fixed seeds, CPU, one thread. Weights and tokens come from NumPy's PCG64, not from PyTorch.
"""

import argparse
import json
import math
import os
import sys
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("USE_HUB_KERNELS", "0")  # transformers would look for kernels to download

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from safetensors import safe_open
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama
from transformers.pytorch_utils import Conv1D

from shared import save

HERE = Path(__file__).resolve().parent
VOCAB, BATCH, LENGTH = 96, 4, 24
IGNORE = 2**32 - 1  # a target that the loss does not count
STEPS, WARMUP, PEAK_LR, LAST = 20, 5, 3e-3, 0.1
CLIP = 0.5
ADAMW = {"betas": (0.9, 0.95), "eps": 1e-8}
WEIGHT_DECAY = 0.1  # on tensors of two or more dimensions
SGD_STEPS, SGD = 5, {"lr": 0.1, "momentum": 0.9}
SGD_CLIP = 1.8  # in the middle of the gradient norms: some steps are clipped, some are not


def gpt2_config():
    return GPT2Config(
        vocab_size=VOCAB, n_positions=32, n_embd=32, n_layer=2, n_head=4, n_inner=128, activation_function="gelu_new",
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, layer_norm_epsilon=1e-5, tie_word_embeddings=True,
        bos_token_id=0, eos_token_id=0, use_cache=False, attn_implementation="eager",
    )


def llama_config():
    return LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=88, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, rms_norm_eps=1e-5, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, attention_bias=False, mlp_bias=False,
        attention_dropout=0.0, bos_token_id=0, eos_token_id=0, use_cache=False, attn_implementation="eager",
    )


class EncoderConfig(SimpleNamespace):
    def to_dict(self):
        return dict(vars(self))


def encoder_config():
    return EncoderConfig(vocab_size=VOCAB, d_model=32, heads=4, d_ff=48, layers=2, positions=32)


class Encoder(torch.nn.Module):
    """A stack of PyTorch's encoder layers as a language model: embeddings times sqrt(d_model), sinusoidal positions, norms
    behind the sums, ReLU, a causal mask, a head with a bias."""

    CAUSAL = True

    # Parameters by the names that GPT-2 has for them.
    NAMES = {
        "self_attn.in_proj_weight": "attn.c_attn.weight", "self_attn.in_proj_bias": "attn.c_attn.bias",
        "self_attn.out_proj.weight": "attn.c_proj.weight", "self_attn.out_proj.bias": "attn.c_proj.bias",
        "linear1.weight": "mlp.c_fc.weight", "linear1.bias": "mlp.c_fc.bias",
        "linear2.weight": "mlp.c_proj.weight", "linear2.bias": "mlp.c_proj.bias",
        "norm1.weight": "ln_1.weight", "norm1.bias": "ln_1.bias", "norm2.weight": "ln_2.weight", "norm2.bias": "ln_2.bias",
    }

    def __init__(self, config):
        super().__init__()
        d = config.d_model
        self.config = config
        self.embedding = torch.nn.Embedding(config.vocab_size, d)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(
                d, config.heads, config.d_ff, dropout=0.0, activation="relu", batch_first=True, norm_first=False
            )
            for _ in range(config.layers)
        )
        self.head = torch.nn.Linear(d, config.vocab_size)

    def positions(self, length):
        d, dtype = self.config.d_model, self.head.weight.dtype
        rates = torch.exp(torch.arange(0, d, 2, dtype=dtype) * (-math.log(10000.0) / d))
        angles = torch.arange(length, dtype=dtype)[:, None] * rates
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)

    def forward(self, input_ids, lengths=None):
        length = input_ids.shape[1]
        masks = {}
        if self.CAUSAL:
            mask = torch.nn.Transformer.generate_square_subsequent_mask(length, dtype=self.head.weight.dtype)
            masks = {"src_mask": mask, "is_causal": True}
        elif lengths is not None:
            masks = {"src_key_padding_mask": torch.arange(length) >= torch.from_numpy(lengths.astype(np.int64))[:, None]}
        x = self.embedding(input_ids) * math.sqrt(self.config.d_model) + self.positions(length)
        for layer in self.layers:
            x = layer(x, **masks)
        return SimpleNamespace(logits=self.head(x))


class UnmaskedEncoder(Encoder):
    """Without the causal mask: a token sees the whole row, or the first of `lengths` tokens."""

    CAUSAL = False


def our_name(name):
    """A parameter's name in the fixtures: that of Hugging Face."""
    known = {"embedding.weight": "transformer.wte.weight", "head.weight": "lm_head.weight", "head.bias": "lm_head.bias"}
    if name.startswith("layers."):
        _, layer, rest = name.split(".", 2)
        return f"transformer.h.{layer}.{Encoder.NAMES[rest]}"
    return known.get(name, name)


FAMILIES = {
    "gpt2": {"model": GPT2LMHeadModel, "config": gpt2_config, "seed": 2019},
    "llama": {"model": LlamaForCausalLM, "config": llama_config, "seed": 2023},
    "encoder": {"model": Encoder, "config": encoder_config, "seed": 2017},
    "encoder_unmasked": {"model": UnmaskedEncoder, "config": encoder_config, "seed": 2017, "trains": False},
}


# transformers' Llama computes norms, rotary angles and attention weights in float32 whatever the model's type. These
# three do the same in the type of their input; they are put in place for the float64 runs only.


class Norm64(modeling_llama.LlamaRMSNorm):
    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


class Rotary64(modeling_llama.LlamaRotaryEmbedding):
    def forward(self, x, position_ids):
        dim = self.config.hidden_size // self.config.num_attention_heads
        theta = self.config.rope_parameters["rope_theta"]
        inverse = theta ** (-torch.arange(0, dim, 2, dtype=x.dtype) / dim)
        angles = position_ids[..., None].to(x.dtype) * inverse
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos(), angles.sin()


def attention64(module, query, key, value, attention_mask, scaling, dropout=0.0, **_):
    key = modeling_llama.repeat_kv(key, module.num_key_value_groups)
    value = modeling_llama.repeat_kv(value, module.num_key_value_groups)
    weights = F.softmax(query @ key.transpose(2, 3) * scaling + attention_mask, dim=-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


EAGER32 = modeling_llama.eager_attention_forward


def build(family, weights, dtype, config=None):
    """The model of `family`, or of `config`, with `weights` ([out, in] matrices by name), computing in `dtype`."""
    spec = FAMILIES[family]
    model = spec["model"](config or spec["config"]()).to(dtype).train()
    if family == "llama":
        double = dtype == torch.float64
        modeling_llama.eager_attention_forward = attention64 if double else EAGER32
        if double:
            for module in model.modules():
                if isinstance(module, modeling_llama.LlamaRMSNorm):
                    module.__class__ = Norm64
                elif isinstance(module, modeling_llama.LlamaRotaryEmbedding):
                    module.__class__ = Rotary64
    transposed = conv1d_names(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            value = torch.from_numpy(weights[our_name(name)]).to(dtype)
            parameter.copy_(value.T if name in transposed else value)
    return model


def conv1d_names(model):
    """GPT-2's matrices that transformers keeps as [in, out]."""
    return {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, Conv1D)}


def export(model, value=lambda parameter: parameter):
    """`value` of every parameter in float64, matrices as [out, in]."""
    transposed = conv1d_names(model)
    out = {}
    for name, parameter in model.named_parameters():
        tensor = value(parameter).detach().double()
        out[our_name(name)] = (tensor.T if name in transposed else tensor).contiguous().numpy().copy()
    return out


def initial_weights(family, rng):
    """Far from the usual start, so that no bias is 0, no norm weight is 1 and attention is not near uniform."""
    spec = FAMILIES[family]
    model = spec["model"](spec["config"]())
    out = {}
    for name, like in sorted(export(model).items()):
        noise = rng.standard_normal(like.shape)
        if like.ndim >= 2:
            value = 0.15 * noise
        elif name.endswith(".weight"):  # of a norm
            value = 1.0 + 0.2 * noise
        else:
            value = 0.1 * noise
        out[name] = value.astype(np.float32)
    return out


def batches(rng, count):
    """Tokens and targets [count, BATCH, LENGTH], uint32.

    A row follows a rule with noise, so that there is something to learn. Rows end at different lengths: the rest is
    token 0, and its targets are ignored.
    """
    tokens = np.zeros((count, BATCH, LENGTH), dtype=np.uint32)
    targets = np.full((count, BATCH, LENGTH), IGNORE, dtype=np.uint32)
    for b in range(count):
        for r in range(BATCH):
            valid = LENGTH if r % 2 == 0 else int(rng.integers(LENGTH // 3, LENGTH))
            row = np.empty(valid + 1, dtype=np.uint32)
            row[0] = rng.integers(VOCAB)
            for i in range(valid):
                noisy = rng.random() < 0.2
                row[i + 1] = rng.integers(VOCAB) if noisy else (5 * int(row[i]) + 7) % VOCAB
            tokens[b, r, :valid] = row[:-1]
            targets[b, r, :valid] = row[1:]
    return tokens, targets


def loss_of(model, tokens, targets, **options):
    """Logits [BATCH, LENGTH, VOCAB], and the mean negative log-likelihood per valid target in nats."""
    ids = torch.from_numpy(tokens.astype(np.int64))
    wanted = torch.from_numpy(np.where(targets == IGNORE, -100, targets.astype(np.int64)))
    logits = model(input_ids=ids, **options).logits
    return logits, F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=-100)


def lr_at(step):
    """lr·(step+1)/WARMUP, then a cosine to LAST·lr over the other steps."""
    if step < WARMUP:
        return PEAK_LR * (step + 1) / WARMUP
    ratio = (step - WARMUP) / (STEPS - WARMUP)
    return PEAK_LR * (LAST + (1 - LAST) * 0.5 * (1 + math.cos(math.pi * ratio)))


def train(model, optimizer, clip, lrs, tokens, targets):
    """One optimizer step for each of `lrs`, gradients clipped to the global norm `clip`.

    Returns the losses, and the gradient norms before clipping.
    """
    losses, norms = [], []
    for step, lr in enumerate(lrs):
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.zero_grad()
        loss = loss_of(model, tokens[step], targets[step])[1]
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip).item())
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses), np.array(norms)


def results(family, weights, data, dtype):
    """Everything that follows from the weights and the batches, computed in `dtype`, as float64 arrays by name."""
    out = {}
    model = build(family, weights, dtype)
    logits, loss = loss_of(model, *data["batch"])
    loss.backward()
    out["logits"] = logits.detach().double().numpy()
    out["loss"] = np.array(loss.item())
    out |= {f"grads.{name}": value for name, value in export(model, lambda p: p.grad).items()}
    if not FAMILIES[family].get("trains", True):
        lengths = (data["batch"][1] != IGNORE).sum(axis=1)
        logits, loss = loss_of(model, *data["batch"], lengths=lengths)
        return out | {"padded.logits": logits.detach().double().numpy(), "padded.loss": np.array(loss.item())}

    model = build(family, weights, dtype)
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    lrs = [lr_at(step) for step in range(STEPS)]
    optimizer = torch.optim.AdamW(groups, lr=PEAK_LR, **ADAMW)
    out["train.losses"], out["train.grad_norms"] = train(model, optimizer, CLIP, lrs, *data["train"])
    out["train.lrs"] = np.array(lrs)
    out |= {f"final.{name}": value for name, value in export(model).items()}

    if family != "llama":
        model = build(family, weights, dtype)
        optimizer = torch.optim.SGD(model.parameters(), **SGD)
        lrs = [SGD["lr"]] * SGD_STEPS
        out["sgd.losses"], out["sgd.grad_norms"] = train(model, optimizer, SGD_CLIP, lrs, *data["train"])
        out |= {f"sgd.final.{name}": value for name, value in export(model).items()}
    return out


def group_of(name):
    """`grads.model.norm.weight` belongs to `grads`, `train.losses` stands for itself."""
    for prefix in ("sgd.final.", "grads.", "final."):
        if name.startswith(prefix):
            return prefix[:-1]
    return name


def float32_error(family, exact, single):
    """The largest absolute difference of the float32 run from the float64 one, by group.

    The gradient of key biases is 0 in exact arithmetic (a constant added to all scores of a row changes no
    weight). What AdamW makes of its rounding noise means nothing, so those elements stand apart.
    """
    errors = {}
    for name, value in exact.items():
        if name == "train.lrs":
            continue
        difference = np.abs(value - single[name])
        group = group_of(name)
        if family != "llama" and name.endswith("c_attn.bias"):
            third = len(difference) // 3
            keys = float(difference[third : 2 * third].max())
            errors[f"{group}:key biases"] = max(errors.get(f"{group}:key biases", 0.0), keys)
            difference = np.delete(difference, np.s_[third : 2 * third])
        errors[group] = max(errors.get(group, 0.0), float(difference.max()))
    return {name: float(f"{value:.2e}") for name, value in sorted(errors.items())}


def fixture(family):
    """The tensors and the metadata of one file."""
    rng = np.random.Generator(np.random.PCG64(FAMILIES[family]["seed"]))
    weights = initial_weights(family, rng)
    one, many = batches(rng, 1), batches(rng, STEPS)
    data = {"batch": (one[0][0], one[1][0]), "train": many}
    exact = results(family, weights, data, torch.float64)
    errors = float32_error(family, exact, results(family, weights, data, torch.float32))
    # Were one of the float64 replacements not the same function, the two runs would be far apart.
    limits = {"logits": 1e-5, "loss": 1e-6, "grads": 1e-6, "train.losses": 1e-5}
    for name, limit in limits.items():
        if errors.get(name, 0.0) > limit:
            raise SystemExit(f"{family}: float32 and float64 differ by {errors[name]:.1e} in {name}")

    tensors = {f"weights.{name}": value for name, value in weights.items()}
    tensors |= {"tokens": data["batch"][0], "targets": data["batch"][1]}
    trains = "train.losses" in exact
    if trains:
        tensors |= {"train.tokens": many[0], "train.targets": many[1]}
    tensors |= {name: np.array(value, dtype=np.float32, order="C") for name, value in exact.items()}
    settings = {
        "adamw": {**ADAMW, "weight_decay": WEIGHT_DECAY}, "clip_norm": CLIP, "steps": STEPS,
        "schedule": {"peak": PEAK_LR, "warmup": WARMUP, "cosine": {"final": LAST, "steps": STEPS - WARMUP}},
    }
    if not trains:
        settings = {}
    elif family != "llama":
        settings["sgd"] = {**SGD, "clip_norm": SGD_CLIP, "steps": SGD_STEPS}
    config = FAMILIES[family]["config"]().to_dict()
    versions = {"numpy": np.__version__, "torch": torch.__version__, "transformers": transformers.__version__}
    metadata = {
        "config": json.dumps(config, sort_keys=True),
        "float32_error": json.dumps(errors),
        "training": json.dumps(settings, sort_keys=True),
        "versions": json.dumps(versions),
    }
    return tensors, metadata, errors


def bf16_fixture():
    """Bfloat16 tensors under PyTorch's fused optimizers: weights, gradients of every step, and what came out.

    All numbers are bfloat16 values, stored as float32.
    """
    rng = np.random.Generator(np.random.PCG64(16))
    shapes = {"matrix": (24, 32), "vector": (96,)}
    tensors = {}

    def bf16(name, values):
        tensor = torch.from_numpy(values.astype(np.float32)).bfloat16()
        tensors[name] = tensor.float().numpy()
        return tensor

    start = {name: bf16(f"weights.{name}", 0.3 * rng.standard_normal(shape)) for name, shape in shapes.items()}
    # Sizes from 1e-4 to 1, so that eps, decay and rounding all have a say somewhere.
    sizes = {name: 10 ** rng.uniform(-4, 0, shape) for name, shape in shapes.items()}
    grads = [
        {name: bf16(f"grads.{step}.{name}", sizes[name] * rng.standard_normal(shape)) for name, shape in shapes.items()}
        for step in range(STEPS)
    ]
    for kind in ("adamw", "sgd"):
        parameters = {name: torch.nn.Parameter(value.clone()) for name, value in start.items()}
        if kind == "adamw":
            groups = [{"params": [p], "weight_decay": WEIGHT_DECAY if p.ndim >= 2 else 0.0} for p in parameters.values()]
            optimizer = torch.optim.AdamW(groups, lr=PEAK_LR, **ADAMW, fused=True)
        else:
            optimizer = torch.optim.SGD(parameters.values(), **SGD, fused=True)
        for step in grads:
            for name, parameter in parameters.items():
                parameter.grad = step[name].clone()
            optimizer.step()
        moments = {"adamw": {"m": "exp_avg", "v": "exp_avg_sq"}, "sgd": {"m": "momentum_buffer"}}[kind]
        for name, parameter in parameters.items():
            tensors[f"{kind}.{name}"] = parameter.detach().float().numpy()
            for ours, theirs in moments.items():
                state = optimizer.state[parameter][theirs]
                assert state.dtype == torch.bfloat16
                tensors[f"{kind}.{ours}.{name}"] = state.float().numpy()
    settings = {"adamw": {**ADAMW, "weight_decay": WEIGHT_DECAY, "lr": PEAK_LR}, "sgd": SGD, "steps": STEPS}
    versions = {"numpy": np.__version__, "torch": torch.__version__}
    metadata = {"training": json.dumps(settings, sort_keys=True), "versions": json.dumps(versions)}
    return tensors, metadata


def check(path, tensors):
    """Says how far the stored tensors are from freshly computed ones; true if all are within float32's rounding."""
    with safe_open(path, framework="np") as stored:
        if set(stored.keys()) != set(tensors):
            print(f"{path.name}: other tensors: {sorted(set(stored.keys()) ^ set(tensors))}")
            return False
        bad = [n for n in tensors if not np.allclose(stored.get_tensor(n), tensors[n], rtol=1e-6, atol=1e-9)]
    print(f"{path.name}: {len(tensors)} tensors, " + (f"{len(bad)} differ: {bad[:8]}" if bad else "all as stored"))
    return not bad


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--check", action="store_true", help="compare with the stored files, write nothing")
    only_check = arguments.parse_args().check
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    good = True
    path = HERE / "bf16.safetensors"
    tensors, metadata = bf16_fixture()
    if only_check:
        good &= check(path, tensors)
    else:
        save(path, tensors, metadata)
        print(f"{path.name}: {len(tensors)} tensors, {path.stat().st_size:,} bytes")
    for family in FAMILIES:
        tensors, metadata, errors = fixture(family)
        path = HERE / f"{family}.safetensors"
        if only_check:
            good &= check(path, tensors)
            continue
        save(path, tensors, metadata)
        print(f"{path.name}: {len(tensors)} tensors, {path.stat().st_size:,} bytes, loss {float(tensors['loss']):.6f}")
        for name in ("train.losses", "sgd.grad_norms", "train.grad_norms"):
            if name in tensors:
                print(f"  {name:<17}", " ".join(f"{v:.3f}" for v in tensors[name]))
        for name, value in errors.items():
            print(f"  float32 error  {name:<24} {value:.1e}")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Twenty steps of PyTorch's tutorial on DDP and pipelines, in small: writes tutorial.safetensors next to this file.

    python tutorial.py      # needs torch, numpy and what generate.py needs

One process does what the tutorial's two replicas do together. The text lies in columns, each replica reads one half of every
column, and the first 10 batches are read again in each of two epochs. The layers have no causal mask, the rate falls after an epoch, and
gradients are clipped. Each output is compared with the word after it; the tutorial flattens outputs and targets in different orders. Validation text
lies in other columns. Dropout is 0, because two programs do not draw the same masks. Everything is computed in
float64. Text and weights come from counters (`shared.py`), so the fixture has results alone.
"""

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from generate import UnmaskedEncoder, our_name
from shared import below, centred, save

HERE = Path(__file__).resolve().parent
WORDS = 40
COLUMNS, REPLICAS, EVAL_COLUMNS = 4, 2, 3
LENGTH, BATCHES, EPOCHS = 5, 10, 2
LR, GAMMA, CLIP = 5.0, 0.95, 0.5
MODEL = SimpleNamespace(d_model=16, heads=2, d_ff=24, layers=2)


def text(stream, count):
    """`count` words. Most follow from the word before them, so that there is something to learn."""
    noise, jumps = below(stream, count, 4), below(stream + 1, count, WORDS)
    words = [0]
    for i in range(1, count):
        words.append(int(jumps[i]) if noise[i] == 0 else (5 * words[-1] + 7) % WORDS)
    return [f"word{word}" for word in words]


def vocabulary(words):
    """Ids by word: special tokens, then words by frequency, then by spelling."""
    count = Counter(words)
    ordered = ["<unk>", "<pad>", *sorted(count, key=lambda word: (-count[word], word))]
    return {word: i for i, word in enumerate(ordered)}


def columns(ids, count):
    """[height, count]: the text in columns, without what does not fill them."""
    height = len(ids) // count
    return ids[: height * count].view(count, height).t()


def batch(source, start):
    """Inputs and targets [columns, LENGTH]."""
    return source[start : start + LENGTH].t(), source[start + 1 : start + 1 + LENGTH].t()


def model(vocab_size):
    config = SimpleNamespace(**vars(MODEL), vocab_size=vocab_size, positions=LENGTH)
    made = UnmaskedEncoder(config).double()
    named = {our_name(name): parameter for name, parameter in made.named_parameters()}
    with torch.no_grad():
        for i, name in enumerate(sorted(named)):
            values = 0.125 * centred(900 + i, named[name].numel()).reshape(named[name].shape)
            is_norm = ".ln_" in name and name.endswith(".weight")
            named[name].copy_(torch.from_numpy(values + 1.0 if is_norm else values))
    return made


def mean_loss(model, batches):
    losses = [
        torch.nn.functional.cross_entropy(model(input_ids=inputs).logits.flatten(0, 1), targets.flatten(), reduction="none")
        for inputs, targets in batches
    ]
    return torch.cat(losses).mean()


def main():
    train_words, valid_words = text(800, 643), text(810, 181)
    ids = vocabulary(train_words)
    train, valid = (torch.tensor([ids.get(word, 0) for word in words]) for words in (train_words, valid_words))
    whole = columns(train, COLUMNS)
    half = len(whole) // REPLICAS
    replicas = [whole[rank * half : (rank + 1) * half] for rank in range(REPLICAS)]
    evaluated = columns(valid, EVAL_COLUMNS)
    encoder = model(len(ids))
    optimizer = torch.optim.SGD(encoder.parameters(), lr=LR)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=GAMMA)
    losses, norms, rates, validation = [], [], [], []
    for _ in range(EPOCHS):
        for start in range(0, BATCHES * LENGTH, LENGTH):
            optimizer.zero_grad()
            loss = mean_loss(encoder, [batch(replica, start) for replica in replicas])
            loss.backward()
            norms.append(torch.nn.utils.clip_grad_norm_(encoder.parameters(), CLIP).item())
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            losses.append(loss.item())
        with torch.no_grad():
            validation.append(mean_loss(encoder, [batch(evaluated, i * LENGTH) for i in range(BATCHES)]).item())
        scheduler.step()
    results = {"losses": losses, "norms": norms, "rates": rates, "validation": validation}
    path = HERE / "tutorial.safetensors"
    save(path, {name: np.array(values) for name, values in results.items()}, {"versions": json.dumps({"torch": torch.__version__})})
    print(f"{path.name}: {path.stat().st_size:,} bytes; losses {losses[0]:.4f} to {losses[-1]:.4f}, validation {validation}")


if __name__ == "__main__":
    main()

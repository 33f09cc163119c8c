#!/usr/bin/env python3
"""The tokens that the warpers of transformers leave to sample from: writes sampling.json.

    python tests/golden/sampling.py               # needs torch and transformers

The order is that of `GenerationMixin`: temperature, top_k, top_p. With top_k 4, a logit beyond the fourth is equal to it.
"""

import json
from pathlib import Path

import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

LOGITS = [0.25, 2.0, -1.2, 1.5, 1.0, 1.0, 0.5, -1.0, 1.75, 0.0, -0.5, -1.1]
CASES = [(1.0, k, p) for k, p in [(None, None), (3, None), (None, 0.6), (4, 0.999), (5, 0.7), (5, 0.95), (8, 0.3), (8, 1.0), (3, 0.999), (12, 0.5), (40, 0.6), (1, 0.5)]]
CASES += [(2.0, 6, 0.8), (0.5, 6, 0.8), (0.5, None, 0.6)]


def kept(temperature, top_k, top_p):
    scores = TemperatureLogitsWarper(temperature)(None, torch.tensor([LOGITS]))
    if top_k is not None:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p is not None:
        scores = TopPLogitsWarper(top_p)(None, scores)
    probabilities = scores.softmax(-1)[0]
    tokens = probabilities.nonzero().flatten()
    assert probabilities[tokens].min() > 0.01
    return {"temperature": temperature, "top_k": top_k, "top_p": top_p, "kept": tokens.tolist()}


cases = ",\n".join(json.dumps(kept(*case)) for case in CASES)
Path(__file__).with_name("sampling.json").write_text(f'{{"logits": {json.dumps(LOGITS)}, "cases": [\n{cases}\n]}}\n')

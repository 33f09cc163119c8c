"""Reads llm.c's model file and builds a PyTorch GPT-2 from it, by the file's layout alone."""

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

MAGIC = 20240326


def read_model(path):
    """The model in the file `path`, with the tokenizer's vocabulary: rows that pad it are cut off."""
    data = open(path, "rb").read()
    header = np.frombuffer(data, "<i4", 256)
    assert header[0] == MAGIC and header[1] in (3, 5), header[:2]
    max_t, vocab, layers, heads, channels, padded = (int(n) for n in header[2:8])
    assert padded % 128 == 0 and 0 <= padded - vocab < 128
    if header[1] == 3:
        numbers = torch.from_numpy(np.frombuffer(data, "<f4", offset=1024).copy())
    else:
        bits = np.frombuffer(data, "<u2", offset=1024).astype(np.uint32) << 16
        numbers = torch.from_numpy(bits.view(np.float32))
    at = 0

    def take(*shape):
        nonlocal at
        size = int(np.prod(shape))
        out = numbers[at : at + size].reshape(shape)
        assert out.numel() == size
        at += size
        return out

    c = channels
    wte, wpe = take(padded, c), take(max_t, c)
    kinds = {}
    for kind, shape in [
        ("ln_1.weight", (c,)), ("ln_1.bias", (c,)), ("attn.c_attn.weight", (3 * c, c)), ("attn.c_attn.bias", (3 * c,)),
        ("attn.c_proj.weight", (c, c)), ("attn.c_proj.bias", (c,)), ("ln_2.weight", (c,)), ("ln_2.bias", (c,)),
        ("mlp.c_fc.weight", (4 * c, c)), ("mlp.c_fc.bias", (4 * c,)), ("mlp.c_proj.weight", (c, 4 * c)),
        ("mlp.c_proj.bias", (c,)),
    ]:
        kinds[kind] = take(layers, *shape)
    final = {"ln_f.weight": take(c), "ln_f.bias": take(c)}
    assert at == numbers.numel(), (at, numbers.numel())
    assert not wte[vocab:].isnan().any()
    model = GPT2LMHeadModel(GPT2Config(
        vocab_size=vocab, n_positions=max_t, n_embd=c, n_layer=layers, n_head=heads, bos_token_id=0, eos_token_id=0))
    state = {"transformer.wte.weight": wte[:vocab], "lm_head.weight": wte[:vocab], "transformer.wpe.weight": wpe}
    for kind, values in kinds.items():
        for i in range(layers):
            value = values[i]
            # transformers keeps these four as [in, out].
            state[f"transformer.h.{i}.{kind}"] = value.T if value.dim() == 2 else value
    state.update({f"transformer.{name}": value for name, value in final.items()})
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not missing and not unexpected, (missing, unexpected)
    return model.eval()

#!/usr/bin/env python3
"""Writes random tokens to measure speed on, and a tokenizer that has them: no data needs to be carried to a machine.

    python3 scripts/gpu_tokens.py experiments/gpu/tokens

makes DIR/random_train_000001.bin, a token shard of llm.c's format (256 little-endian int32 of header: 20240520, 1, how many;
then uint16 tokens), and DIR/tokenizer.json, whose words are t0, t1, …. Ids are below 50,000, so that they fit GPT-2's
vocabulary of 50,257 and the Llama's of 50,000. The same seed gives the same file. Python's standard library alone.
"""

import argparse
import array
import json
import os
import random
import struct
import sys
from pathlib import Path

MAGIC, VERSION, HEADER = 20240520, 1, 256


def shard(tokens):
    """The bytes of a file of tokens. `tokens`: ids below 65,536."""
    body = array.array("H", tokens)
    if sys.byteorder != "little":
        body.byteswap()
    return struct.pack(f"<{HEADER}i", MAGIC, VERSION, len(body), *[0] * (HEADER - 3)) + body.tobytes()


def tokenizer(ids):
    words = {f"t{i}": i for i in range(ids)}
    model = {"type": "WordLevel", "vocab": words, "unk_token": "t0"}
    parts = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    return json.dumps({"version": "1.0", **parts, "added_tokens": [],
                       "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": model})


def write(path, content):
    """Writes the whole file, or nothing."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    hidden.write_bytes(content)
    hidden.replace(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, default=2_000_000, help="how many [default: 2,000,000, 4 MB]")
    parser.add_argument("--ids", type=int, default=50_000, help="ids are below this [default: 50,000]")
    parser.add_argument("--seed", type=int, default=1337)
    options = parser.parse_args()
    if not 1 <= options.ids <= 65_536 or not 1 <= options.tokens < 2**31:
        parser.error("--ids is 1 to 65,536, --tokens 1 to 2,147,483,647")
    options.folder.mkdir(parents=True, exist_ok=True)
    draws = random.Random(options.seed).choices(range(options.ids), k=options.tokens)
    write(options.folder / "random_train_000001.bin", shard(draws))
    write(options.folder / "tokenizer.json", tokenizer(options.ids).encode())
    print(f"{options.tokens:,} tokens below {options.ids:,} in {options.folder}")


if __name__ == "__main__":
    main()

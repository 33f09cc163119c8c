#!/usr/bin/env python3
"""The text of tokens after a prompt, as Python's tokenizers decodes it: writes continuations.json.

    python continuations.py               # needs tokenizers; reads ../fixtures/tokenizer/structures.json

Each text of structures.json is a prompt, and the first tokens of the next text continue it. The text of the continuation is what the text of
all tokens has after that of the prompt. Where a decoder changes the prompt's own text, there is no such text, and the pair is left out.
"""

import json
from pathlib import Path

from tokenizers import Tokenizer

FOLDER = Path(__file__).parent
NAMES = [
    "GPT-2", "RoBERTa", "Llama 2", "Unigram, a blank in front of all", "Unigram, a blank in front of the first", "WordPiece",
    "words with an end",
]
LENGTH = 12


def continuations(structure):
    tokenizer = Tokenizer.from_str(json.dumps(structure["tokenizer"]))
    decode = lambda ids: tokenizer.decode(ids, skip_special_tokens=False)
    following = structure["documents"][1:] + structure["documents"][:1]
    for index, (prompt, document) in enumerate(zip(structure["prompts"], following)):
        tokens = document[:LENGTH]
        before, whole = decode(prompt), decode(prompt + tokens)
        if prompt and whole.startswith(before):
            yield {"prompt": index, "tokens": tokens, "text": whole.removeprefix(before)}


fixture = json.loads((FOLDER / "../fixtures/tokenizer/structures.json").read_text())
found = {s["name"]: list(continuations(s)) for s in fixture["structures"] if s["name"] in NAMES}
assert set(found) == set(NAMES)
lines = [f"{json.dumps(n)}: [\n" + ",\n".join(json.dumps(c, ensure_ascii=False) for c in found[n]) + "\n]" for n in NAMES]
(FOLDER / "continuations.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")

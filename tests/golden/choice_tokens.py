#!/usr/bin/env python3
"""Contexts and endings of multiple-choice items as lm-eval encodes them, for tokenizers of every structure: writes choice_tokens.json.

    python choice_tokens.py               # needs tokenizers

The rule is that of `_encode_pair` in lm-eval 0.4 (lm_eval/api/model.py): blanks at the end of the context go to the continuation; the
continuation has the tokens of both together after as many as the context has alone. Tokenizers are trained here, on a few lines of text.
"""

import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LINES = [
    "the cat sat on the mat. the dog sat on the cat",
    "a man is on the roof. he sits and sits, then he is off the roof",
    "once there was a dog named Sam. Sam's dog sat; the man's cat did not",
    "it was hot on the mat, and the cat did not sit on it at all.",
] * 4
ITEMS = [
    ("the cat sat on", ["the mat.", "a man", "", "  two blanks"]),
    ("A man is on a roof. he", ["sits.", "is off the roof", "'s not", "é 🙂"]),
    ("the dog ", ["sat", " sat", ".", "'s"]),
    ("the dog \t\n", ["sat", "s"]),
    ("é", ["é", "\u0301 not"]),
    ("it is hot,", ["the mat", ",", "x" * 40]),
]
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_level(prefix_space=False):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=330, initial_alphabet=BYTES, show_progress=False))
    return t


def llama3():
    """Byte-level BPE behind a pattern of its own, and a post-processor that adds a token in front."""
    t = Tokenizer(models.BPE())
    pattern = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=BYTES, special_tokens=["<s>"], show_progress=False)
    t.train_from_iterator(LINES, trainer)
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return t


def prepend():
    """Llama 2's structure: a normalizer that writes `▁` in front, no pre-tokenizer, bytes for unknown characters."""
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    t.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=340, special_tokens=special, show_progress=False))
    written = json.loads(t.to_str())
    written["added_tokens"] = [token for token in written["added_tokens"] if token["id"] < 3]
    t = Tokenizer.from_str(json.dumps(written | {"pre_tokenizer": None}))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    return t


def unigram(scheme):
    t = Tokenizer(models.Unigram())
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    trainer = trainers.UnigramTrainer(vocab_size=80, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    t.train_from_iterator(LINES, trainer)
    return t


def word_piece():
    """BERT's structure, in which blanks have no tokens."""
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer(lowercase=True)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[UNK]", "[CLS]", "[SEP]"]
    t.train_from_iterator(LINES, trainers.WordPieceTrainer(vocab_size=90, special_tokens=special, show_progress=False))
    t.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return t


def across_words():
    """BPE over whole lines: its tokens span the border between a context and an ending."""
    t = Tokenizer(models.BPE(unk_token="?"))
    t.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=200, special_tokens=["?"], show_progress=False))
    return t


def encode_pair(encode, context, continuation):
    blanks = len(context) - len(context.rstrip())
    if blanks > 0:
        continuation, context = context[-blanks:] + continuation, context[:-blanks]
    own = encode(context)
    return own, encode(context + continuation)[len(own) :]


def main():
    tokenizers = {
        "byte_level": byte_level(), "prefix_space": byte_level(True), "llama3": llama3(), "prepend": prepend(),
        "unigram_always": unigram("always"), "unigram_first": unigram("first"), "unigram_never": unigram("never"),
        "word_piece": word_piece(), "across_words": across_words(),
    }
    cases = []
    for name, tokenizer in tokenizers.items():
        encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
        items = []
        for context, endings in ITEMS:
            pairs = [(ending, *encode_pair(encode, context, " " + ending)) for ending in endings]
            # The program refuses an ending without tokens, which lm-eval's assertion stops at.
            pairs = [pair for pair in pairs if pair[2]]
            items.append({"ctx": context, "context": pairs[0][1], "endings": {ending: ids for ending, _, ids in pairs}})
        whole = tokenizer.encode("a cat").ids
        front = whole[: next(i for i in range(len(whole)) if whole[i:][: len(encode("a cat"))] == encode("a cat"))]
        cases.append({"name": name, "front": front, "items": items, "tokenizer": json.loads(tokenizer.to_str())})
    path = Path(__file__).resolve().parent / "choice_tokens.json"
    path.write_text("[" + ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases) + "]\n")
    print(f"{path.name}: {path.stat().st_size:,} bytes, {sum(len(c['items']) for c in cases)} items")


if __name__ == "__main__":
    main()

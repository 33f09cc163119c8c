#!/usr/bin/env python3
"""Folders with vocab.json, merges.txt and other files, as AutoTokenizer reads them: writes tests/fixtures/tokenizer/gpt2_folders.json.

    python tests/golden/gpt2_folders.py        # needs transformers 5 and tokenizers

For each folder the fixture has its files besides the two, and what AutoTokenizer makes of them: the ids of a text, those that it adds to each
text, its special tokens and its end of text. Folders that runner must refuse have a part of the message instead.
"""

import json
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, __version__

TARGET = Path(__file__).resolve().parent.parent / "fixtures" / "tokenizer" / "gpt2_folders.json"
TEXT = "hi <|user|> the cat don't 2024 THE  <|end|>  x[PAD]<|img|><|endoftext|> y"

base = Tokenizer(models.BPE())
base.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
base.train_from_iterator(
    ["the cat sat on the mat and the dog ran 2024 don't THE"] * 9,
    trainers.BpeTrainer(vocab_size=280, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), special_tokens=["<|endoftext|>"], show_progress=False),
)
N = base.get_vocab_size()
with tempfile.TemporaryDirectory() as folder:
    base.model.save(folder)
    VOCAB, MERGES = (Path(folder, name).read_text() for name in ("vocab.json", "merges.txt"))
# A vocabulary without an end of text, and one whose ids have a gap.
WITHOUT = {token: id for token, id in json.loads(VOCAB).items() if token != "<|endoftext|>"}
WITHOUT = json.dumps({token: id - 1 for token, id in WITHOUT.items()})
GAPS = json.dumps({token: id + 5 * (id > 270) for token, id in json.loads(VOCAB).items()})

USER, END = "<|user|>", "<|end|>"
GPT2 = {"config.json": {"model_type": "gpt2", "eos_token_id": 0}}
ADDED = {"added_tokens.json": {USER: N, END: N + 1}}


def decoder(*tokens):
    keys = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"added_tokens_decoder": {str(id): {"content": content} | keys | more for id, content, more in tokens}}


def config(**keys):
    return {"tokenizer_config.json": keys}


def token(content, **flags):
    return {"__type": "AddedToken", "content": content, "lstrip": False, "rstrip": False, "normalized": True, "single_word": False} | flags


FOLDERS = [
    ("nothing", {}),
    ("a length alone", GPT2 | config(model_max_length=1024)),
    ("numbers that are not finite", GPT2 | {"tokenizer_config.json": '{"model_max_length": NaN, "scale": -Infinity}'}),
    ("default tokens as objects", GPT2 | config(bos_token=token("<|endoftext|>"), eos_token=token("<|endoftext|>"), add_prefix_space=False)),
    ("added tokens", GPT2 | ADDED),
    ("added tokens with roles", GPT2 | ADDED | {"special_tokens_map.json": {"eos_token": END, "additional_special_tokens": [USER]}} | config(tokenizer_class="GPT2Tokenizer")),
    ("added tokens that are special", ADDED | config(tokenizer_class="GPT2TokenizerFast", eos_token=END, additional_special_tokens=[USER])),
    ("the map before the configuration", GPT2 | ADDED | {"special_tokens_map.json": {"eos_token": END}} | config(eos_token=USER)),
    ("a decoder before the other files", GPT2 | {"added_tokens.json": {"<|other|>": N + 2}, "special_tokens_map.json": {"eos_token": "<|other|>"}}
        | config(eos_token=END, **decoder((N, USER, {"special": False}), (N + 1, END, {})))),
    ("a decoder with the end of text", GPT2 | config(**decoder((0, "<|endoftext|>", {"normalized": True}), (N, USER, {"lstrip": True, "rstrip": True})))),
    ("roles without tokens", GPT2 | config(eos_token=END, pad_token="[PAD]")),
    ("a role with spaces", GPT2 | config(eos_token=token(END, lstrip=True, rstrip=True))),
    ("a role of the map with spaces", GPT2 | {"special_tokens_map.json": {"eos_token": {"content": END, "lstrip": True, "rstrip": False, "normalized": True, "single_word": False}}}),
    ("a token of the model's own", GPT2 | config(image_token="<|img|>", extra_special_tokens=[USER, END])),
    ("named extra tokens", GPT2 | config(extra_special_tokens={"user_token": USER})),
    ("a space in front", GPT2 | ADDED | config(add_prefix_space=True)),
    ("a begin of text", GPT2 | config(add_bos_token=True)),
    ("both ends", GPT2 | ADDED | config(add_bos_token=True, add_eos_token=True, eos_token=END)),
    ("OPT", {"config.json": {"model_type": "opt"}} | config(bos_token="</s>", eos_token="</s>", unk_token="</s>", pad_token="<pad>", add_bos_token=True)),
    ("CodeGen", {"config.json": {"model_type": "codegen"}} | config(tokenizer_class="CodeGenTokenizer", eos_token=END)),
    ("Llama with GPT-2's class", {"config.json": {"model_type": "llama"}} | ADDED | config(tokenizer_class="GPT2Tokenizer", eos_token=END)),
    ("no end of text", GPT2 | {"vocab.json": WITHOUT} | config(pad_token="[PAD]")),
    ("an end of text that is not in the vocabulary", GPT2 | {"vocab.json": WITHOUT} | config(bos_token=END, eos_token=END, unk_token=END)),
    ("ids with a gap", GPT2 | {"vocab.json": GAPS} | config(model_max_length=64)),
]
OTHER_CLASSES = ["RobertaTokenizer", "BartTokenizer", "CLIPTokenizer", "Qwen2Tokenizer", "GPTNeoXTokenizerFast", "WhisperTokenizer", "PreTrainedTokenizerFast"]
REFUSED = [
    ("another id", GPT2 | {"added_tokens.json": {USER: N + 5, END: N + 1}}, f'the id of "{END}" is {N + 1}, but `AutoTokenizer` reads these files with the id {N}'),
    ("another id in a decoder", GPT2 | config(**decoder((N + 3, USER, {}))), f'the id of "{USER}" is {N + 3}, but'),
    ("two ids", GPT2 | config(**decoder((N, USER, {}), (N + 1, USER, {}))), f'the id of "{USER}" is {N + 1}, but'),
    ("a new token in a gap", GPT2 | {"vocab.json": GAPS} | config(pad_token="[PAD]"), "its ids have gaps"),
    ("text that is not split", GPT2 | config(split_special_tokens=True), "`split_special_tokens: true` is not supported"),
    ("a number for a token", GPT2 | {"tokenizer_config.json": '{"eos_token": NaN}'}, "`eos_token` must be a token, got NaN"),
    ("a broken file", GPT2 | {"added_tokens.json": "{"}, "invalid JSON"),
    ("a list", GPT2 | {"special_tokens_map.json": []}, "it must be a JSON object, got an array"),
    ("a class in the model's file", {"config.json": {"model_type": "gpt2", "tokenizer_class": "RobertaTokenizer"}}, "`tokenizer_class` is `RobertaTokenizer`"),
    ("another model", {"config.json": {"model_type": "qwen2"}}, "the tokenizer of a `qwen2` may differ"),
] + [(name, GPT2 | config(tokenizer_class=name), f"`tokenizer_class` is `{name}`") for name in OTHER_CLASSES]


def text_of(content):
    return content if isinstance(content, str) else json.dumps(content)


def read(files):
    with tempfile.TemporaryDirectory() as folder:
        for name, content in ({"vocab.json": VOCAB, "merges.txt": MERGES} | files).items():
            Path(folder, name).write_text(text_of(content))
        if not {"config.json", "tokenizer_config.json"} & set(files):
            Path(folder, "config.json").write_text('{"model_type": "gpt2"}')
        found = AutoTokenizer.from_pretrained(folder)
        plain = found.encode(TEXT, add_special_tokens=False)
        whole = found.encode(TEXT)
        at = len(whole) - len(plain) - (whole[-len(plain):] != plain)
        return {
            "ids": plain, "prefix": whole[:at], "bos": found.bos_token, "eos": found.eos_token, "size": max(found.get_vocab().values()) + 1,
            "special": sorted([id, token.content] for id, token in found.added_tokens_decoder.items() if token.special),
        }


def case(name, files, more):
    return json.dumps({"name": name, "files": {name: text_of(content) for name, content in files.items()}} | more, ensure_ascii=False)


cases = [case(name, files, read(files)) for name, files in FOLDERS]
cases += [case(name, files, {"refused": words}) for name, files, words in REFUSED]
head = {"transformers": __version__, "text": TEXT, "vocab": VOCAB, "merges": MERGES}
head = ",\n".join(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in head.items())
TARGET.write_text("{" + head + ',\n"folders": [\n' + ",\n".join(cases) + "\n]}\n")

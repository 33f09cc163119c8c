"""Small tokenizers of every structure, and what Python's `tokenizers` makes of some texts: writes tests/fixtures/tokenizer/structures.json.

    python tests/golden/tokenizer_structures.py

Needs `pip install tokenizers`. `crates/data` holds this program's ids of documents and prompts against it.
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, __version__, decoders, models, normalizers, pre_tokenizers, processors, trainers

TARGET = Path(__file__).resolve().parent.parent / "fixtures" / "tokenizer" / "structures.json"
WORDS = (
    "the cat sat on the mat and the dog's bone isn't where we'll look for it, while they've sung in the tall green tree 1984 times.\n"
    "    if x == 1:\n\treturn 1234567\n\nÜber den Wolken 42 été naïve coöperate ﬁne Ⅳ\n日本語 の 文章 です。 🙂 hello  world   again \n"
)
# GPT-4's pattern as `tiktoken` has it, and Llama 3's.
GPT4 = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEXTS = [
    "", " ", "\n", "a", "the cat", " the cat ", "The CAT's 1942 and 1234567", "in 12 1234 123456789 times", "x\n\ny\n  z \n\t\n",
    "    if x == 1:\n        return 2   \n# end  ", "line one\r\nline two \r\n", "it's IT'S we'll WE'LL they've",
    "e\u0301te\u0301 Z\u0351\u0343a\u0308 ﬁ ﬂ Ⅳ ™ ½", "日本語 の 文章", "🙂👨‍👩‍👧🇩🇪 ok", "\u00a0a\u3000b\u2028c\u0085d\u200be", "a<mask>b a <mask> b  <mask>  ",
    "<s>the</s> <s> the </s>", "<R>   x<R>\n y", "LR a LR b", "kingLR king kings", "<|endoftext|> <|endoftext|>a", "xyz ★ unknown ☃", "▁the▁cat ▁",
    "0٣१𝟘 ①", "word" * 40, "\0\x07\x7f", "[CLS] a [SEP]", "tail  ", "''double'' ``ticks``",
]


def add(loaded):
    loaded.add_special_tokens([
        AddedToken("<|endoftext|>", special=True), AddedToken("<s>", special=True), AddedToken("</s>", special=True, normalized=False),
        AddedToken("<mask>", special=True, lstrip=True, normalized=False), AddedToken("<R>", special=True, rstrip=True, normalized=True),
    ])
    loaded.add_tokens([AddedToken("LR", lstrip=True, rstrip=True), AddedToken("king", single_word=True)])
    return loaded


def train(loaded, trainer):
    loaded.train_from_iterator([WORDS * 3], trainer)
    return add(loaded)


def bpe(pre, normalizer=None, size=330, alphabet=True, **model):
    loaded = Tokenizer(models.BPE(**model))
    loaded.pre_tokenizer, loaded.decoder = pre, decoders.ByteLevel()
    if normalizer:
        loaded.normalizer = normalizer
    initial = pre_tokenizers.ByteLevel.alphabet() if alphabet else []
    suffix = {"end_of_word_suffix": model["end_of_word_suffix"]} if model.get("end_of_word_suffix") else {}
    return train(loaded, trainers.BpeTrainer(vocab_size=size, initial_alphabet=initial, show_progress=False, **suffix))


def split(pattern, behavior="isolated", invert=False):
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), behavior, invert), level])


def llama2():
    loaded = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    loaded.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    loaded.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    # Trained on short pieces: without a pre-tokenizer merges cross words.
    special = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces = WORDS.replace("\n", " ").split(" ")
    loaded.train_from_iterator(pieces * 3, trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False))
    written = json.loads(loaded.to_str())
    written["added_tokens"] = [token for token in written["added_tokens"] if token["content"] == "<unk>"]
    loaded = add(Tokenizer.from_str(json.dumps(written)))
    loaded.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", loaded.token_to_id("<s>"))])
    return loaded


def unigram(scheme):
    loaded = Tokenizer(models.Unigram())
    loaded.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    loaded.pre_tokenizer = pre_tokenizers.Metaspace("▁", scheme)
    loaded.decoder = decoders.Metaspace("▁", scheme)
    loaded = train(loaded, trainers.UnigramTrainer(vocab_size=150, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False))
    loaded.post_processor = processors.TemplateProcessing("$A </s>", "$A </s> $B </s>", [("</s>", loaded.token_to_id("</s>"))])
    return loaded


def word_piece():
    loaded = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    loaded.normalizer, loaded.pre_tokenizer, loaded.decoder = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    loaded = train(loaded, trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False))
    loaded.post_processor = processors.BertProcessing(("[SEP]", loaded.token_to_id("[SEP]")), ("[CLS]", loaded.token_to_id("[CLS]")))
    return loaded


def roberta():
    loaded = bpe(pre_tokenizers.ByteLevel(add_prefix_space=True))
    loaded.post_processor = processors.RobertaProcessing(("</s>", loaded.token_to_id("</s>")), ("<s>", loaded.token_to_id("<s>")))
    return loaded


def emptied(loaded):
    """The same tokenizer with empty affixes, as older versions write them."""
    written = json.loads(loaded.to_str())
    written["model"].update(continuing_subword_prefix="", end_of_word_suffix="")
    return Tokenizer.from_str(json.dumps(written))


def llama3():
    loaded = bpe(split(LLAMA3), ignore_merges=True)
    template = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", loaded.token_to_id("<s>"))])
    loaded.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return loaded


STRUCTURES = {
    "GPT-2": lambda: bpe(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "GPT-2 with empty affixes": lambda: emptied(bpe(pre_tokenizers.ByteLevel(add_prefix_space=False))),
    "GPT-4's pattern of tiktoken": lambda: bpe(split(GPT4)),
    "Llama 3": llama3,
    "line anchors": lambda: bpe(split(r"^[ \t]+|\w+|[ \t]+$|[^\w\s]+|\s")),
    "grapheme clusters": lambda: bpe(split(r"\X")),
    "an inverted pattern with a look-behind": lambda: bpe(split(r"(?<=\s)\S+|\A\S+|\h+|\R", "merged_with_previous", invert=True)),
    "POSIX brackets and a class of an intersection": lambda: bpe(split(r"[[:alpha:]&&[^aeiou]]+|[[:digit:]]{,2}+x?|\K\p{Han}")),
    "a lowercasing normalizer": lambda: bpe(pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.Lowercase()),
    "RoBERTa": roberta,
    "Llama 2": llama2,
    "Unigram, a blank in front of all": lambda: unigram("always"),
    "Unigram, a blank in front of the first": lambda: unigram("first"),
    "WordPiece": word_piece,
    "words with an end": lambda: bpe(pre_tokenizers.Whitespace(), normalizers.NFC(), alphabet=False, end_of_word_suffix="</w>"),
}


def main():
    structures = []
    for name, make in STRUCTURES.items():
        loaded = make()
        documents, prompts = [], []
        for out, encode_special in ((documents, True), (prompts, False)):
            loaded.encode_special_tokens = encode_special
            out += [loaded.encode(text, add_special_tokens=False).ids for text in TEXTS]
        structures.append({"name": name, "tokenizer": json.loads(loaded.to_str()), "documents": documents, "prompts": prompts})
    lines = [json.dumps(structure, ensure_ascii=True, separators=(",", ":")) for structure in structures]
    texts = json.dumps(TEXTS, ensure_ascii=True)
    TARGET.write_text('{"texts": ' + texts + ',\n"structures": [\n' + ",\n".join(lines) + "\n]}\n")
    print(f"{len(structures)} structures, {len(TEXTS)} texts by tokenizers {__version__}, {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main()

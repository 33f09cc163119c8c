"""Our encoders beside Python's: tiktoken's gpt2 (built here from GPT-2's two files) and `tokenizers`, on hostile, random and real text.

    python tests/golden/tokenizers_compare.py RUNNER GPT2_FOLDER [FILE...]     # compare; FILEs are real text, a document each
    python tests/golden/tokenizers_compare.py --fixture                       # write tests/fixtures/tokenizer/ again

RUNNER is the binary, GPT2_FOLDER has vocab.json and merges.txt. Needs `pip install tiktoken tokenizers transformers numpy`.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

FIXTURE = Path(__file__).resolve().parent.parent / "fixtures" / "tokenizer"
END = "<|endoftext|>"

HOSTILE = [
    "👨‍👩‍👧‍👦 👩🏽‍🚀 🏳️‍🌈 ❤️ 🇩🇪🇫🇷 \U0001f9d1\U0001f3ff‍\U0001f9b0",
    "שלום עולם، مرحبا بالعالم! \u202eabc\u202c \u200f(א)\u200e",
    "e\u0301 a\u0308o\u0302\u0323 Z\u0351\u0343\u0346a\u0334\u0325lg\u0338o \u0301\u0302\u0303 ก็ นี่ हिन्दी क्षत्रिय",
    "".join(map(chr, range(32))) + "\x7f" + "".join(map(chr, range(0x80, 0xA0))),
    "\0", "\0\0\0a\0 \0b", "a\0",
    " ", "  ", "\n", "\n\n\n", "\t\t\t", " \n \n ", "\r\n\r\n a\r\n  b\r \n\tc", "a \n b", "a\n\n b \n", "x" + " " * 1000 + "y", "x" + "\n" * 777,
    " " * 5000, "\t" * 300 + "a", "\u3000\u3000a \u3000 b", "\u00a0a\u00a0\u00a0b\u2003c\u2028d\u2029e\u0085f\u1680g\u180eh\u200bi\ufeffj",
    "I'm you're he's it'd we'll they've can't I'M YOU'RE HE'S IT'D WE'LL THEY'VE CAN'T 'S 'll'll ''s ' s '\u017f \u2019s 's's",
    "don't'nt y'all'd've 'tis 'twas rock'n'roll '' ''' '''s'''",
    "0123456789 ٠١٢٣٤ ०१२३ 𝟘𝟙𝟚 ①②③ ⅷⅨ ½¾ ㊿ 万 1,234.56 1e-9 0x1F ²³ 一二三",
    "\u0378\u0379\uffff\ufffe\U0001fffe\U000e0001\U0010ffff\ue000\U000f0000 \u05ff \ufdd0 a\u0378b 1\u0378",
    "a" * 5000, "ab" * 3000, "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft" * 20, "日本語" * 1000, "🙂" * 500,
    "=" * 333 + "\n" + "-" * 64 + "--", "!?" * 100, "...---... ~~~ ```python\ndef f(x):\n    return x\t# c\n```",
    END, f"a{END}b", f" {END} ", "<|endoftext|", "<|fim_prefix|>", f"{END}{END}", "<|END|> [PAD] <s></s>",
    "https://example.org/a?b=c&d=%20#e user@example.com C:\\dir\\file.txt",
    "\ufeffbom", "\u200b\u200c\u200d\u2060", "ﬁ ﬂ Ⅳ ™ © ® ℃ Ω Å ſ ẞ ǅ İ ı", "\u1160\u3164\u115f ᄀᄁᆨ 한국어 각", "\U00010400\U00010428 \U0001d400 \U00020000\U0002fa1d",
    "\u0e33\u0eb3 \u0fb2\u0f71\u0f80 ་", "\u0600\u06dd\u070f \u200d\u0dca",
]


def random_texts(count, seed=7):
    """Strings of runs from many blocks of Unicode."""
    rng = random.Random(seed)
    blocks = [
        (0x20, 0x7E), (0x41, 0x7A), (0x61, 0x7A), (0x30, 0x39), (0x00, 0x1F), (0x80, 0xFF), (0x100, 0x24F), (0x300, 0x36F), (0x370, 0x3FF),
        (0x400, 0x4FF), (0x590, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F), (0x1100, 0x11FF), (0x2000, 0x206F), (0x2070, 0x218F), (0x3000, 0x30FF),
        (0x4E00, 0x4FFF), (0xAC00, 0xACFF), (0xE000, 0xE010), (0xFB00, 0xFDFF), (0xFE00, 0xFEFF), (0xFFF0, 0xFFFF), (0x10400, 0x1044F),
        (0x1D400, 0x1D7FF), (0x1F300, 0x1FAFF), (0xE0000, 0xE007F), (0, 0x10FFFF),
    ]
    bits = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'LL", " ", "  ", "\n", "\r\n", "\t", "   \n", " the", "ing", "\u00a0", "\u3000", END]
    texts = []
    while len(texts) < count:
        parts = []
        for _ in range(rng.randint(1, 30)):
            if rng.random() < 0.4:
                parts.append(rng.choice(bits) * rng.choice([1, 1, 1, 2, 5]))
            else:
                first, last = rng.choice(blocks)
                run = (rng.randint(first, last) for _ in range(rng.randint(1, 8)))
                parts.append("".join(chr(c) for c in run if not 0xD800 <= c <= 0xDFFF))
        text = "".join(parts)
        if text:
            texts.append(text)
    return texts


def tiktoken_gpt2(folder):
    """tiktoken's gpt2 without its download: ranks are the ids of vocab.json, as bytes."""
    import tiktoken

    printed = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printed]
    byte_of = {chr(b): b for b in printed} | {chr(256 + i): b for i, b in enumerate(others)}
    vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    ranks = {bytes(byte_of[c] for c in token): id for token, id in vocab.items() if token != END}
    pattern = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
    return tiktoken.Encoding("gpt2", pat_str=pattern, mergeable_ranks=ranks, special_tokens={END: vocab[END]}, explicit_n_vocab=len(vocab))


def library(path):
    from tokenizers import Tokenizer

    loaded = Tokenizer.from_file(str(path))
    loaded.encode_special_tokens = True
    return loaded


def library_gpt2(folder):
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    loaded = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    loaded.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    loaded.decoder = decoders.ByteLevel()
    loaded.add_special_tokens([AddedToken(END, special=True)])
    loaded.encode_special_tokens = True
    return loaded


def ours(runner, spec, texts, end, folder):
    """The ids of each text, by way of shards."""
    import numpy as np

    source = Path(folder) / "texts.jsonl"
    with open(source, "w", encoding="utf-8") as file:
        for text in texts:
            file.write(json.dumps({"text": text}) + "\n")
    command = [runner, "data", "prepare", source, "--tokenizer", spec, "--to", "npy", Path(folder) / "out"]
    environment = dict(os.environ, RUNNER_CACHE=str(Path(folder) / "cache"))
    subprocess.run([*map(str, command), "--name", "x", "--validation", "none", "--force", "--quiet"], check=True, env=environment, stdout=subprocess.DEVNULL)
    tokens = np.concatenate([np.load(p) for p in sorted((Path(folder) / "out").glob("x_train_*.npy"))])
    starts = np.flatnonzero(tokens == end)
    assert len(starts) == len(texts), f"{len(starts)} documents of {len(texts)}"
    return [part[1:].tolist() for part in np.split(tokens, starts)[1:]]


def differences(name, texts, a, b):
    wrong = [i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
    print(f"{name}: {len(texts)} texts, {sum(map(len, a))} tokens, {len(wrong)} differ")
    for i in wrong[:3]:
        print("   ", ascii(texts[i][:200]), a[i][:30], b[i][:30])
    return len(wrong)


def compare(runner, gpt2, files):
    real = []
    for path in files:
        text = Path(path).read_text(encoding="utf-8")
        if path.endswith(".jsonl"):
            for line in text.splitlines():
                item = json.loads(line)
                real += [s for v in item.values() for s in (v if isinstance(v, list) else [v]) if isinstance(s, str) and s]
        else:
            real += [text[i : i + 20_000] for i in range(0, len(text), 20_000)]
    texts = HOSTILE + random_texts(10_000) + real
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        made = ours(runner, f"gpt2:{gpt2}", texts, 50256, folder)
        wrong += differences("GPT-2's files, tiktoken", texts, made, tiktoken_gpt2(gpt2).encode_ordinary_batch(texts))
        encoded = library_gpt2(gpt2).encode_batch(texts, add_special_tokens=False)
        wrong += differences("GPT-2's files, tokenizers", texts, made, [e.ids for e in encoded])

        corpus = Path(folder) / "corpus.txt"
        # A zero byte is refused in a text.
        corpus.write_text("\n".join(HOSTILE + random_texts(500, seed=8) + real[:200]).replace("\0", ""), encoding="utf-8")
        path = Path(folder) / "tokenizer.json"
        command = [runner, "tokenizer", "train", corpus, "--vocab-size", 5000, "--special-token", END, "--special-token", "[PAD]", "--out", path]
        subprocess.run([*map(str, command)], check=True, env=dict(os.environ, RUNNER_CACHE=str(Path(folder) / "cache")))
        made = ours(runner, path, texts, 0, folder)
        encoded = library(path).encode_batch(texts, add_special_tokens=False)
        wrong += differences("trained by us, tokenizers", texts, made, [e.ids for e in encoded])

        from transformers import PreTrainedTokenizerFast

        loaded = PreTrainedTokenizerFast(tokenizer_file=str(path), eos_token=END, pad_token="[PAD]")
        sample = [t for t in texts if END not in t and "[PAD]" not in t][:2000]
        ids = [loaded(t, add_special_tokens=False)["input_ids"] for t in sample]
        index = {t: i for i, t in enumerate(texts)}
        wrong += differences("trained by us, transformers", sample, [made[index[t]] for t in sample], ids)
        back = sum(loaded.decode(i, clean_up_tokenization_spaces=False) != t for i, t in zip(ids, sample))
        print(f"transformers decodes {len(sample) - back} of {len(sample)} to the text")
        wrong += back
    return wrong


def fixture():
    """A small tokenizer that Python trained, and what Python makes of some texts."""
    from tokenizers import Tokenizer, __version__, decoders, models, pre_tokenizers, trainers

    loaded = Tokenizer(models.BPE())
    loaded.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    loaded.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=[END, "[PAD]"], initial_alphabet=alphabet, show_progress=False)
    words = "the cat sat on the mat and the dog's bone isn't where we'll look for it, while they've sung in the tall green tree 1984 times. "
    loaded.train_from_iterator([words * 3, *(t for t in HOSTILE if len(t) < 400)], trainer)
    loaded.encode_special_tokens = True
    texts = [t if len(t) < 400 else t[:200] for t in HOSTILE] + random_texts(120)
    FIXTURE.mkdir(parents=True, exist_ok=True)
    (FIXTURE / "tokenizer.json").write_text(json.dumps(json.loads(loaded.to_str()), ensure_ascii=True, separators=(",", ":")) + "\n")
    cases = [{"text": t, "ids": loaded.encode(t, add_special_tokens=False).ids} for t in texts]
    lines = ",\n".join(json.dumps(case, ensure_ascii=True, separators=(",", ":")) for case in cases)
    (FIXTURE / "cases.json").write_text("[\n" + lines + "\n]\n")
    print(f"{len(cases)} texts by tokenizers {__version__}")


if __name__ == "__main__":
    if sys.argv[1:] == ["--fixture"]:
        fixture()
    elif len(sys.argv) < 3:
        sys.exit(__doc__)
    else:
        sys.exit(1 if compare(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]) else 0)

"""Words of texts as torchtext's `basic_english` splits them, and the ids of whole files.

    python words.py > words.json             the fixture: tricky texts and their words
    python words.py TRAIN [FILE...]          vocabulary of TRAIN; for each file the number of tokens and a hash of its ids
"""

import collections
import hashlib
import itertools
import json
import random
import re
import sys

SINGLE = "'.,()!?"
BLANK = ["<br />", ";", ":"]


def words(text, lowercase=True):
    if lowercase:
        text = text.lower()
    text = text.replace('"', "")
    for sign in SINGLE[:2]:
        text = text.replace(sign, f" {sign} ")
    text = text.replace(BLANK[0], " ")
    for sign in SINGLE[2:]:
        text = text.replace(sign, f" {sign} ")
    for sign in BLANK[1:]:
        text = text.replace(sign, " ")
    return re.sub(r"\s+", " ", text).split()


def vocabulary(texts, min_count=1, special=("<unk>",)):
    counts = collections.Counter(itertools.chain.from_iterable(map(words, texts)))
    for token in special:
        counts.pop(token, None)
    kept = sorted((w for w, n in counts.items() if n >= min_count), key=lambda w: (-counts[w], w))
    return {w: i for i, w in enumerate([*special, *kept])}


def fixture():
    texts = [
        "", " ", "It's a dog's day.", 'He said "no, never!" (twice); why?', "a<br />b<br/>c< br />d<BR />e",
        'x<b"r />y <br" />z a"b"c""', "3.14 1,000 a:b;c e.g. U.S.A. -- don't 'em'", "= Title = \n\n @-@ <unk> @,@ \n",
        "ΟΔΥΣΣΕΥΣ ΑΣ.ΑΣ ΑΣ' Σ Σ\u0301 aΣ\u00adb", "İstanbul STRASSE ﬁn Ǆ", "a\u00a0b\u2003c\u3000d\u200be\u1680f\u0085g",
        "a\x1cb\x1dc\x1ed\x1ff\x0bg\x0ch\x00i", "🙂.🙂 日本 語。",
    ]
    parts = ["<br", " ", "/>", '"', "'", ".", "Σ", "α", "A", "\n", "<br />", ";", "\u00a0", "é", "<", "\x1f", "?!", "\u0345"]
    dice = random.Random(1)
    texts += ["".join(dice.choices(parts, k=dice.randint(1, 9))) for _ in range(400)]
    cases = [{"text": t, "lower": words(t), "cased": words(t, False)} for t in texts]
    print("[" + ",\n".join(json.dumps(c) for c in cases) + "]")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        fixture()
        sys.exit()
    read = [open(name, encoding="utf-8", newline="").read().split("\n") for name in sys.argv[1:]]
    vocab = vocabulary(read[0])
    print(len(vocab), "tokens in the vocabulary")
    for name, lines in zip(sys.argv[1:], read):
        ids = [vocab.get(w, 0) for line in lines for w in words(line)]
        data = b"".join(i.to_bytes(4, "little") for i in ids)
        print(name, len(ids), hashlib.blake2b(data).hexdigest()[:32])

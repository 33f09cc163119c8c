"""JSON objects of a run, which end with the BLAKE3 hash of their content (docs/damage.md)."""

import json
import struct

IV = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
ORDER = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))
START, END, PARENT, ROOT = 1, 2, 4, 8


def compress(chain, words, counter, length, flags):
    state = [*chain, *IV[:4], counter & 0xFFFFFFFF, counter >> 32, length, flags]
    for _ in range(7):
        for step, (a, b, c, d) in enumerate(COLUMNS + DIAGONALS):
            for word, turns in zip(words[2 * step : 2 * step + 2], ((16, 12), (8, 7))):
                state[a] = (state[a] + state[b] + word) & 0xFFFFFFFF
                state[d] = rotate(state[d] ^ state[a], turns[0])
                state[c] = (state[c] + state[d]) & 0xFFFFFFFF
                state[b] = rotate(state[b] ^ state[c], turns[1])
        words = [words[i] for i in ORDER]
    return [state[i] ^ state[i + 8] for i in range(8)]


def rotate(word, turns):
    return (word >> turns | word << (32 - turns)) & 0xFFFFFFFF


def chunk(data, counter, root):
    chain = IV
    blocks = [data[at : at + 64] for at in range(0, len(data), 64)] or [b""]
    for number, block in enumerate(blocks):
        is_last = number == len(blocks) - 1
        flags = (START if number == 0 else 0) | (END | root if is_last else 0)
        chain = compress(chain, struct.unpack("<16I", block.ljust(64, b"\0")), counter, len(block), flags)
    return chain


def tree(data, counter, root):
    if len(data) <= 1024:
        return chunk(data, counter, root)
    # The left part has the largest power of two of chunks that leaves something.
    left = 1024 << ((len(data) - 1) // 1024).bit_length() - 1
    words = tree(data[:left], counter, 0) + tree(data[left:], counter + left // 1024, 0)
    return compress(IV, words, 0, 64, PARENT | root)


def blake3(data):
    return struct.pack("<8I", *tree(data, 0, ROOT)).hex()


def sealed(value):
    """The text of `value`, an object, with the hash of its content."""
    content = json.dumps({key: item for key, item in value.items() if key != "content_hash"}, indent=2)[:-2]
    return f'{content},\n  "content_hash": "{blake3(content.encode())}"\n}}\n'

"""What the scripts of this folder share: files, tables, and numbers that Rust and Python make alike without storing them."""

import json

import numpy as np

DTYPES = {"float32": "F32", "float64": "F64", "uint32": "U32"}


def save(path, tensors, metadata):
    """A safetensors file. The package's own writer puts the metadata in an order that changes from run to run."""
    header, offset = {"__metadata__": metadata}, 0
    for name, value in sorted(tensors.items()):
        header[name] = {"dtype": DTYPES[value.dtype.name], "shape": value.shape,
                        "data_offsets": [offset, offset + value.nbytes]}
        offset += value.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, value in sorted(tensors.items()):
            file.write(value.astype(value.dtype.newbyteorder("<")).tobytes())


def mix(stream, index):
    """32 random bits for each element of `index` (counter-based: SplitMix64's output function over both numbers)."""
    with np.errstate(over="ignore"):
        z = np.asarray(index, dtype=np.uint64) + (np.uint64(stream) << np.uint64(32))
        z = (z + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(32)).astype(np.uint32)


def centred(stream, count):
    """`count` numbers in [-1, 1), multiples of 2^-15: exact in float32, and so is their product with a power of two."""
    bits = mix(stream, np.arange(count)) >> np.uint32(16)
    return bits.astype(np.float64) / 2**15 - 1.0


def below(stream, count, limit):
    """`count` whole numbers below `limit`."""
    return ((mix(stream, np.arange(count)).astype(np.uint64) * np.uint64(limit)) >> np.uint64(32)).astype(np.uint32)


def table(rows, columns=("what", "ours", "reference", "difference")):
    """Prints rows of text or numbers under `columns`."""
    text = [[f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in row] for row in [columns, *rows]]
    widths = [max(len(row[i]) for row in text) for i in range(len(columns))]
    for row in text:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())

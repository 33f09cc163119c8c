"""Token shards of llm.c, nanoGPT and build-nanogpt, which `runner data prepare` writes."""

import os
import struct

_LLMC_HEADER_BYTES = 1024
# The first two numbers of llm.c's header: magic number and version.
_LLMC_TYPES = {(20240520, 1): "<u2", (20240801, 7): "<u4"}


def read_tokens(path: os.PathLike):
    """The tokens in the file `path` as a one-dimensional numpy array, which maps the file and does not read it into memory.

    llm.c's `.bin` has a header, `.npy` is numpy's own; any other file is nanoGPT's `.bin`: 16-bit tokens and nothing else.
    Raises ValueError if the file's size is not the one that the header or the format says.
    """
    import numpy

    size = os.path.getsize(path)
    with open(path, "rb") as file:
        start = file.read(12)
    if start.startswith(b"\x93NUMPY"):
        tokens = numpy.load(path, mmap_mode="r")
        if tokens.ndim != 1 or tokens.dtype.kind not in "ui":
            raise ValueError(f"{os.fspath(path)}: an array of {tokens.ndim} dimensions of {tokens.dtype}, not tokens")
        return tokens
    magic, version, count = struct.unpack("<III", start) if len(start) == 12 else (0, 0, 0)
    dtype = _LLMC_TYPES.get((magic, version))
    if dtype is not None:
        expected = _LLMC_HEADER_BYTES + count * numpy.dtype(dtype).itemsize
        if size != expected:
            raise ValueError(f"{os.fspath(path)}: the header says {count} tokens, {expected} bytes; the file has {size} bytes")
        return numpy.memmap(path, dtype, "r", _LLMC_HEADER_BYTES, (count,))
    if size == 0 or size % 2 != 0:
        raise ValueError(f"{os.fspath(path)}: {size} bytes are not 16-bit tokens")
    return numpy.memmap(path, "<u2", "r")

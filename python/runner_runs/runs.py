"""Runs and their metrics."""

import json
import os
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import List, Optional, Union

from .program import call


@dataclass(frozen=True)
class Run:
    """A run, as `runner runs --json` describes it. Values that a run does not have are None.

    `step`, `tokens` and `seconds` count everything that the model was trained on. `own_steps`, `own_tokens` and `own_seconds`
    leave out what other runs did, from whose checkpoint the run started.
    """

    id: str
    name: str
    path: Path
    status: str
    step: int
    steps: Optional[int]
    own_steps: int
    tokens: Optional[int]
    own_tokens: Optional[int]
    seconds: Optional[float]
    own_seconds: Optional[float]
    loss: Optional[float]
    val_loss: Optional[float]
    best_val_loss: Optional[float]
    val_bits_per_byte: Optional[float]
    tokens_per_second: Optional[float]
    started: Optional[str]
    ended: Optional[str]
    tags: List[str]
    sweep: Optional[dict]
    continued_from: Optional[dict]
    origin: Optional[dict]
    error: Optional[str]

    def __fspath__(self) -> str:
        return os.fspath(self.path)


RunName = Union[str, os.PathLike]


def runs(folder: Optional[os.PathLike] = None) -> List[Run]:
    """All runs in `folder`, the oldest first."""
    return [_run(row) for row in json.loads(call(["runs", "--json"], folder))]


def run(name: RunName, folder: Optional[os.PathLike] = None) -> Run:
    """The run `name`: a folder, an id, or the unique beginning of one."""
    return _run(json.loads(call(["runs", "show", os.fspath(name), "--json"], folder))["run"])


def metrics(*names: RunName, folder: Optional[os.PathLike] = None, frames: str = "pandas"):
    """One row for each step (`kind` is "train") and each evaluation ("eval") of the runs, in one data frame.

    The columns are those of `runner export-metrics --csv`. `frames` is "pandas" or "polars", which must be installed.
    """
    if not names:
        raise TypeError("metrics() needs at least one run")
    if frames not in ("pandas", "polars"):
        raise ValueError(f'frames is "pandas" or "polars", not {frames!r}')
    with tempfile.TemporaryDirectory() as scratch:
        path = os.path.join(scratch, "metrics.csv")
        call(["export-metrics", *map(os.fspath, names), "--csv", path], folder)
        if frames == "polars":
            import polars

            return polars.read_csv(path, infer_schema_length=None)
        import pandas

        return pandas.read_csv(path, float_precision="round_trip")


def _run(row: dict) -> Run:
    known = {field.name: row.get(field.name) for field in fields(Run)}
    return Run(**{**known, "path": Path(known["path"])})

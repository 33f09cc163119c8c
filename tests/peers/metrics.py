"""Compares exported metrics with a run's record, read by the programs that they are for.

    pip install tensorboard pyarrow pandas
    runner export-metrics RUN --tensorboard logs --csv m.csv
    python tests/peers/metrics.py runs/RUN logs m.csv

TensorBoard keeps scalars as 32-bit floats; CSV must agree with the record to the last bit. The event file that the run wrote
while it trained (`log.tensorboard: true`), perhaps killed and resumed, is read and compared too, if there is one.
"""

import json
import math
import pathlib
import sys

import numpy
import pandas
import pyarrow.csv
from tensorboard.backend.event_processing.plugin_event_accumulator import TENSORS, EventAccumulator
from tensorboard.util import tensor_util

run, logs, csv = map(pathlib.Path, sys.argv[1:4])
record = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]

cumulative_tokens = 0
for line in record:
    if line["kind"] == "train":
        line["perplexity"] = math.exp(line["loss"])
        cumulative_tokens += line["tokens"]
    line["cumulative_tokens"] = cumulative_tokens


def check_events(folder):
    """Compares the event file in `folder` with the record, and returns the number of scalars."""
    events = EventAccumulator(str(folder), size_guidance={TENSORS: 0}).Reload()
    tags = events.Tags()["tensors"]

    def points(tag):
        return [(e.step, tensor_util.make_ndarray(e.tensor_proto).item()) for e in events.Tensors(tag)] if tag in tags else []

    times = [e.wall_time for e in events.Tensors("train/loss")]
    assert times == sorted(times)
    checked = 0
    for kind, key, tag in [
        *(("train", k, f"train/{k}") for k in ["epoch", "loss", "perplexity", "lr", "grad_norm", "tokens", "cumulative_tokens", "tokens_per_second", "mfu"]),
        *(("train", f"{k}_ms", f"time/{k}_ms") for k in ["step", "data", "forward", "backward", "optimizer", "comm"]),
        *(("eval", k, f"eval/{k}") for k in ["val_loss", "val_perplexity", "hellaswag_acc", "hellaswag_acc_norm", "hellaswag_acc_norm_chars", "hellaswag_n"]),
    ]:
        expected = [(r["step"], float(numpy.float32(r[key]))) for r in record if r["kind"] == kind and r.get(key) is not None]
        assert len(expected) == len(points(tag)), tag
        for (step, value), (found_step, found) in zip(expected, points(tag)):
            # The exponential function may differ in the last bit of 32.
            assert step == found_step and math.isclose(value, found, rel_tol=2e-7 if key == "perplexity" else 0), (tag, step)
        checked += len(expected)
    return checked


checked = check_events(logs / run.name)
if (run / "tensorboard").exists():
    assert check_events(run / "tensorboard") == checked
    print("the event file of the training: as recorded")

frame = pyarrow.csv.read_csv(csv).to_pandas()
frame = frame[frame["run"] == run.name].reset_index(drop=True)
assert len(frame) == len(record)
for row, line in zip(frame.to_dict("records"), record):
    for key, value in row.items():
        if key not in ("run", "wall_time"):
            equal = math.isclose(value, line[key], rel_tol=1e-15) if key == "perplexity" and key in line else value == line.get(key)
            assert (pandas.isna(value) and line.get(key) is None) or equal, (key, value, line)
print(f"{checked} scalars, {len(record)} rows: as recorded")

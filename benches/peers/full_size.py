#!/usr/bin/env python3
"""A few real steps of the full-size experiments on this machine: losses of every layout beside `single`, times, and peak memory beside
the plan's.

    python benches/peers/full_size.py llama --text wiki.train.tokens --rows 8
    python benches/peers/full_size.py transformer --text wiki.train.tokens --rows 8 --steps 2

Models have their full size; rows, steps, warmup and text are given here. `llama` runs experiments/llama-dp.yaml, llama-ddp.yaml and
llama-pipeline.yaml on lines of the text as documents, and the same model and rows on one rank. `transformer` runs
experiments/transformer-ddp-pipeline.yaml in its 2 x 2 layout and on one rank. Dropout's masks belong to rows, so that a layout changes
rounding alone. The transformer needs 20 GB of memory.
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path

import gpt2

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
SPECIAL = ["[BOT]", "[EOT]", "[PAD]"]


def documents(text, path):
    """One JSON line for each line of the text that is long enough to be a document."""
    lines = [line.strip() for line in text.read_text().splitlines()]
    with path.open("w") as out:
        for line in lines:
            if len(line) >= 200:
                out.write(json.dumps({"text": line}) + "\n")


def llama(options, folder):
    """Layouts of the articles' Llama: name, file, settings."""
    documents(options.text, folder / "documents.jsonl")
    source = {
        "data.tokenizer": json.dumps({"bpe": {"vocab_size": 16_000, "special_tokens": SPECIAL}}),
        "data.train": json.dumps({"jsonl": {"files": [str(folder / "documents.jsonl")], "field": "text"}}),
        "train.epochs": "null", "batch.sequences": options.rows,
        "schedule.warmup.steps": options.steps,
    }
    replicas, micro_batches = 4, 4
    replica_rows = {"batch.micro_batch": options.rows // replicas}
    single = {"parallel": "{mode: single}", "batch.micro_batch": options.rows // micro_batches}
    return [
        ("single", "llama-ddp", source | single),
        ("dp", "llama-dp", source | replica_rows),
        ("ddp", "llama-ddp", source | replica_rows),
        ("pipeline", "llama-pipeline", source),
    ]


def transformer(options, folder):
    """Layouts of the tutorial's transformer: name, file, settings."""
    text = json.dumps({"text": {"files": [str(options.text.resolve())]}})
    source = {"data.train": text, "data.validation": "null", "eval": "null", "train.epochs": "null", "batch.sequences": options.rows}
    micro_batches = options.rows // 2
    layout = source | {"parallel.pipeline.microbatches": min(8, micro_batches)}
    return [("2 x 2", "transformer-ddp-pipeline", layout),
            ("single", "transformer-ddp-pipeline", source | {"parallel": "{mode: single}", "batch.micro_batch": 1})]


def train(options, folder, name, experiment, settings):
    """Trains; returns the losses, the milliseconds of each step, the peak and the planned bytes."""
    never = {"train.steps": options.steps, "checkpoint.every": options.steps, "log.every": 1, "name": "full-size"}
    flags = [part for key, value in (settings | never).items() for part in ("--set", f"{key}={value}")]
    gpt2.runner(options.runner, folder, "apply", EXPERIMENTS / f"{experiment}.yaml", "--quiet", "--threads", options.threads, *flags)
    run = gpt2.run_folder(folder, "full-size")
    lines = gpt2.metrics(run, "train")
    summary = json.loads((run / "summary.json").read_text())
    shutil.rmtree(run)
    return ([line["loss"] for line in lines], [line["step_ms"] for line in lines],
            summary["peak_rss_bytes"], summary["planned_memory_bytes"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("system", choices=["llama", "transformer"])
    parser.add_argument("--runner", type=Path, default=Path("target/release/runner"))
    parser.add_argument("--text", type=Path, required=True, help="a text of a megabyte or more, such as WikiText-2's")
    parser.add_argument("--rows", type=int, default=8, help="rows of a global batch")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", help="one layout by its name")
    parser.add_argument("--scratch", type=Path, help="where the folder for data and runs is made")
    options = parser.parse_args()
    options.runner = options.runner.resolve()
    rows, first = [], None
    with tempfile.TemporaryDirectory(prefix="full-size-", dir=options.scratch) as name:
        folder = Path(name)
        for layout, experiment, settings in {"llama": llama, "transformer": transformer}[options.system](options, folder):
            if options.only not in (None, layout):
                continue
            losses, times, peak, planned = train(options, folder, layout, experiment, settings)
            first = first or losses
            apart = max(abs(a - b) for a, b in zip(first, losses, strict=True))
            gigabytes = [f"{size / 2**30:.2f} GiB" if size else "unknown" for size in (peak, planned)]
            rows.append([layout, " ".join(f"{loss:.6f}" for loss in losses), f"{apart:.1e}",
                         " ".join(f"{time / 1e3:.1f}" for time in times), *gigabytes])
            gpt2.show([rows[-1]], ("layout", "losses", "from the first", "seconds", "peak", "planned"))
    gpt2.show(rows, ("layout", "losses", "from the first", "seconds", "peak", "planned"))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Compares the layouts that `runner plan --search` ranks with their measured steps on this machine.

    cargo build --release
    target/release/runner calibrate            # on the idle machine, just before
    python3 benches/layouts.py                 # ten models, about an hour
    python3 benches/layouts.py --models narrow,wide --rounds 2 --steps 6

For each model it plans every layout of `--ranks` ranks and of one rank with as many threads: mode, sharding, schedule,
micro-batch and recomputation. Then it trains each layout for a few steps, all of them in turn, `--rounds` times, so that
load of the host slows all layouts alike. A layout's time is the median of its steps, without the first `--warmup` of each
run. The table has forecast and measurement of every layout; the verdicts are

- whether the layout with the least forecast is within 5% of the fastest measured one, for each model;
- how many forecasts are within 10% of the measurement.

The calibration is the user's own, so the numbers belong to this machine and this hour. It trains on the built-in corpus,
and writes runs to a folder that it removes.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

# Sizes, rows of a step, and their length: wide and narrow, deep and flat, a large vocabulary, long rows.
MODELS = {
    "narrow": {"family": "gpt2", "layers": 4, "heads": 4, "d_model": 64, "vocab": 512, "length": 64, "rows": 16},
    "small": {"family": "gpt2", "layers": 4, "heads": 4, "d_model": 128, "vocab": 1024, "length": 128, "rows": 16},
    "wide": {"family": "gpt2", "layers": 2, "heads": 8, "d_model": 512, "vocab": 1024, "length": 128, "rows": 8},
    "deep": {"family": "gpt2", "layers": 12, "heads": 4, "d_model": 128, "vocab": 1024, "length": 64, "rows": 16},
    "vocabulary": {"family": "gpt2", "layers": 2, "heads": 4, "d_model": 128, "vocab": 16384, "length": 64, "rows": 8},
    "long": {"family": "gpt2", "layers": 4, "heads": 4, "d_model": 128, "vocab": 1024, "length": 512, "rows": 4},
    "medium": {"family": "gpt2", "layers": 6, "heads": 6, "d_model": 384, "vocab": 4096, "length": 128, "rows": 8},
    "llama-small": {"family": "llama", "layers": 4, "heads": 4, "d_model": 128, "vocab": 1024, "length": 128, "rows": 16},
    "llama-wide": {"family": "llama", "layers": 2, "heads": 8, "d_model": 512, "vocab": 1024, "length": 128, "rows": 8},
    "llama-medium": {"family": "llama", "layers": 6, "heads": 6, "d_model": 384, "vocab": 4096, "length": 64, "rows": 8},
}

EXPERIMENT = """\
version: 1
name: layouts
device: cpu
model:
  family: {family}
  vocab_size: {vocab}
  context_length: {length}
  layers: {layers}
  heads: {heads}
  d_model: {d_model}
data:
  tokenizer: {{bytes: {{}}}}
  train: {{builtin: {{corpus: stories}}}}
  validation: null
  layout: {{packed: {{length: {length}}}}}
batch: {{sequences: {rows}}}
train: {{steps: {steps}, clip_norm: 1.0}}
optimizer: {{adamw: {{lr: 1e-4}}}}
eval: {{every: 1000000000, loss: null}}
checkpoint: {{every: 1000000000, keep: 1}}
log: {{every: 1}}
"""


def divisors(n):
    return [d for d in range(1, n + 1) if n % d == 0]


def layouts(model, ranks, recomputations):
    """Every layout of one rank and of `ranks` ranks, as settings."""
    out = []
    for recompute in recomputations:
        common = {"train.recompute": recompute}
        for size in divisors(model["rows"]):
            out.append({"parallel": "{mode: single}", "batch.micro_batch": size, **common})
        for size in divisors(model["rows"] // ranks):
            shards = ["", ", shard: optimizer", ", shard: gradients", ", shard: parameters"]
            modes = [f"{{mode: dp, replicas: {ranks}}}"] + [f"{{mode: ddp, replicas: {ranks}{s}}}" for s in shards]
            out += [{"parallel": mode, "batch.micro_batch": size, **common} for mode in modes]
        if model["layers"] < ranks:
            continue
        for size in divisors(model["rows"]):
            schedules = ["schedule: 1f1b", "schedule: gpipe", "schedule: zero_bubble"]
            if (model["rows"] // size) % ranks == 0:
                most = model["layers"] // ranks
                schedules += [f"schedule: interleaved_1f1b, chunks: {c}" for c in range(2, most + 1)]
            for schedule in schedules:
                mode = f"{{mode: pipeline, pipeline: {{stages: {ranks}, {schedule}}}}}"
                out.append({"parallel": mode, "batch.micro_batch": size, **common})
    return out


def arguments(layout):
    return [word for key, value in layout.items() for word in ("--set", f"{key}={value}")]


def run(command, **more):
    done = subprocess.run(command, capture_output=True, text=True, **more)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return done.stdout


def forecast(runner, file, layout, threads):
    """The predicted milliseconds of a step, and what they are based on."""
    plan = json.loads(run([runner, "plan", file, "--json", "--threads", str(threads), *arguments(layout)]))
    if "forecast" not in plan:
        sys.exit("there is no forecast: run `runner calibrate` first")
    return 1000 * plan["forecast"]["step_seconds"], plan["forecast"]["basis"]


def measure(runner, file, layout, threads, folder, warmup):
    """The milliseconds of each step of a short run, without the first ones."""
    events = run([runner, "apply", file, "--json", "--new", "--threads", str(threads), "--runs", folder, *arguments(layout)])
    lines = [json.loads(line) for line in events.splitlines()]
    times = [line["step_ms"] for line in lines if line.get("kind") == "train"]
    return times[warmup:]


def compare(name, model, options):
    """Prints the table of a model; returns whether the first choice is within 5%, and each layout's ratio."""
    with tempfile.TemporaryDirectory(prefix="layouts-") as folder:
        file = Path(folder) / "exp.yaml"
        file.write_text(EXPERIMENT.format(**model, steps=options.warmup + options.steps))
        candidates = layouts(model, options.ranks, options.recompute.split(","))
        rows = []
        for layout in candidates:
            milliseconds, basis = forecast(options.runner, file, layout, options.ranks)
            rows.append({"layout": layout, "forecast": milliseconds, "steps": []})
        if basis != "measured":
            print("the calibration comes from a busy machine: the verdicts mean nothing")
        fastest = min(row["forecast"] for row in rows)
        if options.within:
            rows = [row for row in rows if row["forecast"] <= options.within * fastest]
        print(f"\n{name}: {len(rows)} of {len(candidates)} layouts", flush=True)
        for turn in range(options.rounds):
            # The other way round every second time: drift of the host cancels.
            for row in rows if turn % 2 == 0 else reversed(rows):
                row["steps"] += measure(options.runner, file, row["layout"], options.ranks, folder, options.warmup)
        for row in rows:
            row["measured"] = statistics.median(row["steps"])
    # As the search ranks them: divided state comes first only if it is 5% faster.
    rows.sort(key=lambda row: row["forecast"] * (1.05 if "shard" in row["layout"]["parallel"] else 1.0))
    best = min(row["measured"] for row in rows)
    print(f"{'forecast':>10} {'measured':>10} {'ratio':>6} {'to best':>8}  layout")
    for row in rows:
        ratio = row["forecast"] / row["measured"]
        words = f"{row['layout']['parallel']}, micro-batch {row['layout']['batch.micro_batch']}, " \
                f"recompute {row['layout']['train.recompute']}"
        print(f"{row['forecast']:8.1f}ms {row['measured']:8.1f}ms {ratio:6.2f} {row['measured'] / best:8.2f}  {words}")
    chosen = rows[0]["measured"] / best
    print(f"{name}: the first choice takes {chosen:.3f} times as long as the fastest: "
          f"{'within' if chosen <= 1.05 else 'not within'} 5%", flush=True)
    return {"model": name, "first_choice": chosen, "layouts": [
        {**row["layout"], "forecast_ms": row["forecast"], "measured_ms": row["measured"]} for row in rows]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runner", default="target/release/runner", help="the program")
    parser.add_argument("--models", default=",".join(MODELS), help="names, separated by commas: %(default)s")
    parser.add_argument("--ranks", type=int, default=2, help="ranks of a layout, and threads of one rank (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each layout (%(default)s)")
    parser.add_argument("--steps", type=int, default=12, help="measured steps of a run (%(default)s)")
    parser.add_argument("--warmup", type=int, default=4, help="steps that are left out before them (%(default)s)")
    parser.add_argument("--recompute", default="none", help="recomputations, separated by commas (%(default)s)")
    parser.add_argument("--within", type=float, help="measure only layouts with at most so many times the least forecast")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    results = [compare(name, MODELS[name], options) for name in options.models.split(",")]
    good = sum(result["first_choice"] <= 1.05 for result in results)
    ratios = [row["forecast_ms"] / row["measured_ms"] for result in results for row in result["layouts"]]
    near = sum(abs(ratio - 1) <= 0.1 for ratio in ratios)
    print(f"\nfirst choice within 5% of the fastest: {good} of {len(results)} models")
    print(f"forecast within 10% of the measurement: {near} of {len(ratios)} layouts")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()

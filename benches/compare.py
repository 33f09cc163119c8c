#!/usr/bin/env python3
"""Compares whole training runs of this project's binary with PyTorch (pytorch_step.py), and prints the ratios.

    cargo build --release
    python benches/compare.py --model both --threads 2 --rounds 3

Both train the same model on the same batch size from random text, alternating in one sitting (runner, PyTorch, runner,
PyTorch, …), so that whatever else the machine does hits both. A run's figure is the median over its timed steps; the
ratio is taken pair by pair. PyTorch comes from the interpreter that runs this file, or from `--python`.
"""

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Sizes as in pytorch_step.py; `steps` is the default of --steps.
MODELS = {
    "small": {
        "layers": 4, "heads": 4, "d_model": 128, "vocab": 1024, "context": 128, "length": 128, "micro_batch": 16,
        "steps": 40,
    },
    "gpt2-124m": {
        "layers": 12, "heads": 12, "d_model": 768, "vocab": 50304, "context": 1024, "length": 256, "micro_batch": 4,
        "steps": 8,
    },
}
ALPHABET = bytes(range(32, 127))  # printable ASCII: the text is valid whatever reads it

EXPERIMENT = """\
version: 1
name: compare
seed: 1337
device: cpu
model:
  family: gpt2
  vocab_size: {vocab}
  context_length: {context}
  layers: {layers}
  heads: {heads}
  d_model: {d_model}
data:
  tokenizer: {{bytes: {{}}}}
  train: {{text: {{files: ["text.txt"]}}}}
  validation: null
  layout: {{packed: {{length: {length}}}}}
batch: {{sequences: {micro_batch}, micro_batch: {micro_batch}}}
train: {{steps: {total_steps}, clip_norm: 1.0}}
optimizer: {{adamw: {{lr: 6e-4, betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1}}}}
precision: {precision}
eval: {{every: 1000000000, loss: null}}
checkpoint: {{every: 1000000000, keep: 1}}
"""


class Failed(Exception):
    """One side did not finish, or wrote something unreadable."""


def run(command, folder, extra_environment=None):
    """Standard output of `command`, run in `folder`."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RUNNER_")}
    environment |= extra_environment or {}
    done = subprocess.run([str(c) for c in command], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-20:])
        raise Failed(f"{' '.join(str(c) for c in command)}: exit code {done.returncode}\n{tail}")
    return done.stdout


def read_metrics(path, warmup, steps):
    """Tokens per second of each timed train step of a metrics.jsonl, which must hold warmup + steps of them."""
    rates = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            entry = json.loads(line)
            if entry["kind"] == "train":
                rates.append(float(entry["tokens_per_second"]))
        except (ValueError, KeyError, TypeError) as error:
            raise Failed(f"{path.name}:{number}: {error!r} in {line[:100]!r}") from error
    if len(rates) != warmup + steps:
        raise Failed(f"{path.name}: {len(rates)} train steps, expected {warmup + steps}")
    return rates[warmup:]


def only(folder, pattern):
    """The only file under `folder` that matches."""
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise Failed(f"{len(found)} files {pattern} after the run, expected one")
    return found[0]


def read_runner(folder, warmup, steps):
    """The measurements of the run in `folder`."""
    summary = json.loads(only(folder, "runs/*/summary.json").read_text())
    rates = read_metrics(only(folder, "runs/*/metrics.jsonl"), warmup, steps)
    if "peak_rss_bytes" not in summary:
        raise Failed("summary.json has no peak_rss_bytes")
    return {"tokens_per_second": statistics.median(rates), "peak_rss_bytes": int(summary["peak_rss_bytes"])}


def write_experiment(folder, model, warmup, steps, precision):
    """exp.yaml, and random text with a window for every sequence of the run."""
    total_steps = warmup + steps
    (folder / "exp.yaml").write_text(EXPERIMENT.format(**model, total_steps=total_steps, precision=precision))
    size = (total_steps + 1) * model["micro_batch"] * model["length"] + 1
    text = bytes(random.Random(1337).choices(ALPHABET, k=size))
    (folder / "text.txt").write_bytes(text)


def runner_once(options, model, steps):
    # Each run has a folder of its own: it resumes nothing, and it prepares its data outside the timed steps.
    with tempfile.TemporaryDirectory(prefix="compare-", dir=options.scratch) as name:
        folder = Path(name)
        write_experiment(folder, model, options.warmup, steps, options.dtype)
        run([options.runner, "apply", "exp.yaml", "--quiet", "--threads", options.threads], folder)
        return read_runner(folder, options.warmup, steps)


def pytorch_once(options, model, steps):
    sizes = [f"--{key.replace('_', '-')}={model[key]}" for key in
             ("layers", "heads", "d_model", "vocab", "context", "length", "micro_batch")]
    command = [options.python, HERE / "pytorch_step.py", *sizes, "--ids", len(ALPHABET), "--steps", steps]
    command += ["--warmup", options.warmup, "--threads", options.threads, "--mode", options.mode]
    command += ["--dtype", options.dtype, "--json"]
    return json.loads(run(command, HERE).strip().splitlines()[-1])


def spread(values):
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def summarize(rounds):
    """Rounds of {runner, pytorch} as the numbers of the table."""
    out = {}
    for side in ("runner", "pytorch"):
        out[side] = {
            "tokens_per_second": spread([r[side]["tokens_per_second"] for r in rounds]),
            "peak_rss_bytes": max(r[side]["peak_rss_bytes"] for r in rounds),
        }
    out["ratios"] = [r["runner"]["tokens_per_second"] / r["pytorch"]["tokens_per_second"] for r in rounds]
    out["ratio"] = spread(out["ratios"])
    return out


def table(name, result, options):
    """The result of one model as lines of text."""
    lines = [f"{name}: tokens/s, {options.threads} threads, {options.dtype}, PyTorch {options.mode}"]
    lines.append(f"  {'':<10}{'min':>12}{'median':>12}{'max':>12}{'peak memory':>16}")
    for side, label in (("runner", "runner"), ("pytorch", "PyTorch")):
        rate = result[side]["tokens_per_second"]
        memory = f"{result[side]['peak_rss_bytes'] / 2**20:,.0f} MiB"
        rates = "".join(f"{rate[k]:>12,.1f}" for k in ("min", "median", "max"))
        lines.append(f"  {label:<10}{rates}{memory:>16}")
    ratio = result["ratio"]
    lines.append(f"  {'ratio':<10}" + "".join(f"{ratio[k]:>12.3f}" for k in ("min", "median", "max")))
    lines.append("  pair by pair: " + " ".join(f"{value:.3f}" for value in result["ratios"]))
    return "\n".join(lines)


def cpu_name():
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=[*MODELS, "both"], default="small")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of runs")
    parser.add_argument("--steps", type=int, help="timed steps of a run (default: 40 for small, 8 for gpt2-124m)")
    parser.add_argument("--warmup", type=int, default=3, help="steps of a run before them")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--runner", type=Path, default=HERE.parent / "target" / "release" / "runner")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has PyTorch")
    parser.add_argument("--mode", choices=["eager", "compile"], default="eager", help="of PyTorch")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32", help="of both")
    parser.add_argument("--scratch", type=Path, help="folder for the runs, removed afterwards (gpt2-124m: 1.5 GB)")
    parser.add_argument("--json", type=Path, help="also write everything that was measured to this file")
    options = parser.parse_args()
    options.runner = options.runner.resolve()
    if os.path.dirname(options.python):  # not resolved: in a virtual environment it is a link, and must stay one
        options.python = os.path.abspath(options.python)
    if not options.runner.is_file():
        parser.error(f"no binary at {options.runner}: build it (cargo build --release) or say --runner PATH")
    if options.rounds < 1 or options.threads < 1 or options.warmup < 0 or (options.steps or 1) < 1:
        parser.error("--rounds, --steps and --threads are at least 1, --warmup at least 0")
    return options


def main():
    options = parse_arguments()
    record = {"cpu": cpu_name(), "threads": options.threads, "dtype": options.dtype, "mode": options.mode, "models": {}}
    record["load_average"] = os.getloadavg()[0]
    print(f"{record['cpu']}, {os.cpu_count()} cores, load average {record['load_average']:.1f}", flush=True)
    if record["load_average"] > 0.5:
        # Other processes slow down threads that spin while they wait far more than threads that sleep.
        print("compare: the machine is busy with other things; the ratios mean little", file=sys.stderr)
    for name in MODELS if options.model == "both" else [options.model]:
        model = MODELS[name]
        steps = options.steps or model["steps"]
        rounds = []
        for number in range(1, options.rounds + 1):
            pair = {"runner": runner_once(options, model, steps), "pytorch": pytorch_once(options, model, steps)}
            rounds.append(pair)
            rates = {side: f"{pair[side]['tokens_per_second']:,.1f}" for side in pair}
            print(f"{name}, round {number}: runner {rates['runner']}, PyTorch {rates['pytorch']} tok/s", flush=True)
        result = summarize(rounds)
        record["models"][name] = {"steps": steps, "warmup": options.warmup, "rounds": rounds, **result}
        print(table(name, result, options), flush=True)
    if options.json:
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    try:
        main()
    except Failed as error:
        print(f"compare: {error}", file=sys.stderr)
        sys.exit(1)

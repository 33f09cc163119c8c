#!/usr/bin/env python3
"""The first 50 steps of experiments/gpt2-fineweb-start.yaml (GPT-2 124M on Tiny Shakespeare, 16 rows of 1,024) on a GPU, beside PyTorch from
the same weights on the same rows, and beside losses that others logged.

    python3 scripts/gpu_start.py --runner ./runner --data FOLDER --scratch /dev/shm/start [--results FILE]

FOLDER holds the text (input.txt or tinyshakespeare.txt) and GPT-2's vocab.json and merges.txt (there, or in gpt2-tokenizer/); with
logged.json, `{"source": "…", "losses": {"1": 10.9, …}}` by step from 1, those stand beside ours. Others' runs start from other
weights: only the course can be compared.

Limits: fp32 beside PyTorch's fp32, 1e-5 for the first loss (some f32 steps of a loss of 11); from then on training enlarges what rounding
does. On a CPU the two stayed within 3e-6 for the first 30 steps of a smaller batch, and 2.4e-4 where the gradient's norm leapt: 1e-2 at
most here, 1e-3 on average, since products in pieces round more often. bf16 beside autocast, which rounds in other places: 1e-2 for the first,
0.15 at most, 0.03 on average.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import gpu_common as common
from gpu_parity import compare

LIMITS = {"fp32": {"first": 1e-5, "most": 1e-2, "mean": 1e-3}, "bf16": {"first": 1e-2, "most": 0.15, "mean": 0.03}}
NAME = "gpt2-fineweb-start"
EXPERIMENT = common.ROOT / "experiments" / f"{NAME}.yaml"
PEER = common.ROOT / "benches" / "peers" / "gpu_torch.py"


def found_in(folder, *names):
    for name in names:
        if (folder / name).is_file():
            return (folder / name).resolve()
    return None


class Start:
    def __init__(self, options, files):
        self.options, self.files, self.clock = options, files, common.Clock(options.seconds)

    def settings(self, **more):
        o = self.options
        settings = {
            "data.train.text.files": f"[{self.files['text']}]", "data.tokenizer.gpt2.vocab": self.files["vocab"],
            "data.tokenizer.gpt2.merges": self.files["merges"], "data.layout": f"{{packed: {{length: {o.length}}}}}", "eval.samples": "null",
            "batch.sequences": o.rows, "batch.micro_batch": o.rows, "train.steps": o.steps, "device": o.device,
        }
        if o.tiny:
            settings |= {"model": "{preset: gpt2-124m, layers: 2, heads: 4, d_model: 64, context_length: 64}"}
        return common.flags(settings | more)

    def apply(self, name, **more):
        folder = self.options.scratch / name
        folder.mkdir(parents=True, exist_ok=True)
        command = [self.options.runner, "apply", EXPERIMENT, "--quiet", "--threads", self.options.threads, *self.settings(**more)]
        common.run(command, folder, self.clock.left())
        return folder, common.run_folder(folder, NAME)

    def weights(self):
        """The weights that every run starts from: those after a step with a learning rate of 0. On the CPU, on one short row."""
        still = {"optimizer.adamw.lr": 1e-30, "optimizer.adamw.weight_decay": 0, "train.steps": 1, "batch.sequences": 1,
                 "batch.micro_batch": 1, "data.layout": "{packed: {length: 32}}", "device": "cpu"}
        folder, run = self.apply("still", **still)
        common.run([self.options.runner, "export", run, "--to", "safetensors", folder / "weights", "--force"], folder, self.clock.left())
        return folder / "weights" / "model.safetensors"

    def tokens(self):
        folder = self.options.scratch / "text"
        folder.mkdir(parents=True, exist_ok=True)
        # The tokenizer's two files are in one folder.
        common.run([self.options.runner, "data", "prepare", self.files["text"], "--tokenizer", f"gpt2:{self.files['vocab'].parent}",
                    "--to", "nanogpt", folder / "shards", "--validation", "none", "--force"], folder, self.clock.left())
        return folder / "shards" / "train.bin"

    def theirs(self, weights, tokens, precision):
        o = self.options
        heads = 4 if o.tiny else 12
        command = [o.python, PEER, "--device", o.device, "--start", weights, "--tokens", tokens, "--precision", precision, "--heads", heads,
                   "--rows", o.rows, "--length", o.length, "--steps", o.steps]
        done = subprocess.run([str(c) for c in command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=max(1, self.clock.left()))
        if done.returncode != 0:
            raise common.Failed(f"PyTorch: exit code {done.returncode}\n{common.tail(done.stderr, 3)}")
        return [json.loads(line)["loss"] for line in done.stdout.splitlines() if line.startswith("{")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runner", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--python", default=sys.executable, help="interpreter with PyTorch; an empty text for none")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--tiny", action="store_true", help="a small model, to try this script")
    options = parser.parse_args()
    options.runner = options.runner.resolve()
    if options.tiny:
        options.steps, options.rows, options.length = 5, 2, 32
    notes = common.Notes(options.results, "start")
    files = {"text": found_in(options.data, "input.txt", "tinyshakespeare.txt")}
    for key in ("vocab", "merges"):
        name = f"{key}.{'json' if key == 'vocab' else 'txt'}"
        files[key] = found_in(options.data, name, f"gpt2-tokenizer/{name}")
    missing = [key for key, path in files.items() if path is None]
    if missing:
        notes.add("GPT-2's start on Tiny Shakespeare", None, note=f"{options.data} has no {', '.join(missing)}")
        return 0
    start = Start(options, files)
    shown = sorted({s for s in (1, 2, 3, 5, 10, 20, 30, 40, 50) if s <= options.steps} | {options.steps})
    logged = found_in(options.data, "logged.json")
    logged = json.loads(logged.read_text()) if logged else None
    weights = tokens = None
    for precision in ("fp32", "bf16"):
        label = f"GPT-2's start, {precision}"
        try:
            _, run = start.apply(precision, precision=precision)
            mine = common.losses(run)
            if options.python and weights is None:
                weights, tokens = start.weights(), start.tokens()
            peer = start.theirs(weights, tokens, precision) if options.python else None
        except (common.Failed, subprocess.TimeoutExpired, OSError) as error:
            notes.add(label, False, note=str(error))
            continue
        table = {"ours": {s: mine[s - 1] for s in shown}}
        if peer:
            table["PyTorch"] = {s: peer[s - 1] for s in shown}
        if logged:
            table["logged"] = {s: logged["losses"].get(str(s)) for s in shown}
        for name, values in table.items():
            print(f"  {name:8} " + "  ".join(f"{s}: {v:.4f}" for s, v in values.items() if v is not None))
        course = f"{mine[0]:.4f} to {mine[-1]:.4f}"
        if not all(map(lambda v: isinstance(v, float), mine)) or (not options.tiny and mine[-1] > mine[0] - 3):
            notes.add(f"{label}: the loss falls", False, course, "by 3 in 50 steps", losses=table)
        else:
            notes.add(f"{label}: the loss falls", True, course, losses=table)
        if peer:
            apart, wrong = compare(mine, peer, LIMITS[precision])
            value = ", ".join(f"{key} {number:.1e}" for key, number in apart.items())
            notes.add(f"{label}: losses beside PyTorch's", not wrong, value, ", ".join(f"{v:.2g}" for v in LIMITS[precision].values()), wrong)
        else:
            notes.add(f"{label}: losses beside PyTorch's", None, note="there is no PyTorch on this machine")
    if logged is None:
        notes.add("losses that others logged", None, note="logged.json is not in the data's folder")
    return 1 if notes.failed else 0


if __name__ == "__main__":
    sys.exit(main())

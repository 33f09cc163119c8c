#!/usr/bin/env python3
"""Compares training steps of this project on the CPU with those of PyTorch and llm.c, and with their own matrix products.

    cargo build --release && cargo build --release --example products
    python benches/compare.py --modes eager,compile --dtypes fp32,bf16 --products target/release/examples/products

All programs train the same GPT-2 on batches of the same size. They live at once, and all but one are stopped (SIGSTOP). A
program's turn lasts until it has done complete steps for `--turn` seconds; the step in which it was stopped is left out.
A pair is a turn of runner and, next to it, a turn of a peer. Their order alternates (ABBA), because a program that ran just
before finds its data in the caches. Load of the host that lasts longer than a pair slows both sides, so the ratio is taken
pair by pair, and then its median and quartiles. A turn's figure is the mean of its steps, as each program times them.

The peers:
- PyTorch (pytorch_step.py), eager or compiled (`--modes`), from the interpreter that runs this file or from `--python`;
- runner's own matrix products alone (products.rs, `--products`): those of the linear layers and the head, forward and
  backward, without those inside attention. Step time / products time shows what everything else costs;
- llm.c's train_gpt2.c in fp32 (`--llmc`). Its batch and its number of steps are constants of its source. Give it the
  model's batch (B = micro_batch, T = length; here those of gpt2-124m, whose B is llm.c's own) and nothing but training steps:

    sed -i 's/int T = 64;/int T = 256;/; s/step <= 40/1/; s/step % [12]0 == 0/0/' train_gpt2.c
    cc -Ofast -march=native -fopenmp -DOMP -o train_gpt2 train_gpt2.c -lm

If not all programs fit in memory, the remaining pairs are compared in later groups, each with a new run of runner.
"""

import argparse
import array
import json
import os
import platform
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODELS = {
    "small": {
        "layers": 4, "heads": 4, "d_model": 128, "vocab": 1024, "context": 128, "length": 128, "micro_batch": 16,
    },
    "gpt2-124m": {
        "layers": 12, "heads": 12, "d_model": 768, "vocab": 50304, "context": 1024, "length": 256, "micro_batch": 4,
    },
}
ALPHABET = bytes(range(32, 127))  # printable ASCII: the text is valid whatever reads it
BATCHES = 64  # of the training text
ENDLESS = 10**9  # steps
POLL_SECONDS = 0.005
INSTRUCTION_SETS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")

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
train: {{steps: {steps}, clip_norm: 1.0}}
optimizer: {{adamw: {{lr: 6e-4, betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1}}}}
precision: {precision}
eval: {{every: 1000000000, loss: null}}
checkpoint: {{every: 1000000000, keep: 1}}
"""


class Failed(Exception):
    """A program ended, or cannot be compared."""


class Trainer:
    """A program that writes the milliseconds of every training step to a file, and is stopped except in its turns.

    `steps_file` is a pattern relative to `folder`; `milliseconds` is found in each line of a step.
    """

    def __init__(self, label, command, folder, milliseconds, steps_file="output.txt", environment=None):
        self.label, self.folder = label, folder
        self.command = [str(word) for word in command]
        self.milliseconds, self.steps_file = re.compile(milliseconds), steps_file
        self.environment = clean_environment() | (environment or {})
        self.process = self.steps = None

    def start(self, warmup):
        """Starts the program, and stops it after `warmup` steps."""
        shutil.rmtree(self.folder / "runs", ignore_errors=True)  # of a former start
        self.steps, self.unread = None, ""
        with open(self.folder / "output.txt", "w") as output:
            try:
                self.process = subprocess.Popen(
                    self.command, cwd=self.folder, env=self.environment, preexec_fn=os.setpgrp,
                    stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                )
            except OSError as error:
                raise Failed(f"{self.label} cannot be started: {error}") from error
        done = 0
        while done < warmup:
            done += len(self.wait_for_steps())
        self.stop()
        self.new_steps()  # those that ended before the stop: what comes next is the interrupted one

    def new_steps(self):
        """The milliseconds of the steps that were written since the last call."""
        if self.steps is None:
            found = list(self.folder.glob(self.steps_file))
            if not found:
                return []
            self.steps = open(found[0])
        *lines, self.unread = (self.unread + self.steps.read()).split("\n")
        return [float(found[1]) for found in map(self.milliseconds.search, lines) if found]

    def wait_for_steps(self):
        while not (steps := self.new_steps()):
            self.require_life(os.WNOHANG)
            time.sleep(POLL_SECONDS)
        return steps

    def require_life(self, flags):
        """Waits for a change of the process, unless `flags` say otherwise."""
        pid, status = os.waitpid(self.process.pid, flags)
        if pid and not os.WIFSTOPPED(status):
            self.process.returncode = os.waitstatus_to_exitcode(status)
            code = self.process.returncode
            how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
            raise Failed(f"{self.label} ended early ({how}): {' '.join(self.command)}\n{self.last_lines()}")

    def last_lines(self):
        return "\n".join((self.folder / "output.txt").read_text(errors="replace").strip().splitlines()[-20:])

    def stop(self):
        os.killpg(self.process.pid, signal.SIGSTOP)
        self.require_life(os.WUNTRACED)

    def take_turn(self, seconds):
        """The mean milliseconds of at least one complete step, and of as many as last `seconds`."""
        # The first line is that of the interrupted step; before it comes the rest of a line that was being written.
        interrupted = 2 if self.unread else 1
        os.killpg(self.process.pid, signal.SIGCONT)
        steps = []
        while sum(steps[interrupted:]) < 1e3 * seconds:
            steps += self.wait_for_steps()
        self.stop()
        steps += self.new_steps()
        return statistics.mean(steps[interrupted:])

    def resident_bytes(self):
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def end(self):
        """Kills the program, if it is there, and returns its peak memory in bytes."""
        if self.steps:
            self.steps.close()
        if self.process is None or self.process.returncode is not None:
            return None
        os.killpg(self.process.pid, signal.SIGKILL)
        _, status, usage = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def clean_environment():
    return {key: value for key, value in os.environ.items() if not key.startswith("RUNNER_")}


def run(command, folder):
    """Runs a command of the preparation to its end."""
    command = [str(word) for word in command]
    done = subprocess.run(command, cwd=folder, env=clean_environment(), capture_output=True, text=True)
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-20:])
        raise Failed(f"{' '.join(command)}: exit code {done.returncode}\n{tail}")


def tokens_per_step(model):
    return model["micro_batch"] * model["length"]


def runner(options, model, dtype, folder):
    write_experiment(folder, model, dtype)
    command = [options.runner, "apply", "exp.yaml", "--quiet", "--threads", options.threads]
    environment = {"RUNNER_BF16_PRODUCTS": options.bf16_products} if options.bf16_products else None
    return Trainer(f"runner {dtype}", command, folder, r'"step_ms":([\d.]+)', "runs/*/metrics.jsonl", environment)


def write_experiment(folder, model, dtype):
    (folder / "exp.yaml").write_text(EXPERIMENT.format(**model, steps=ENDLESS, precision=dtype))
    (folder / "text.txt").write_bytes(random_text(model))


def random_text(model):
    return bytes(random.Random(1337).choices(ALPHABET, k=BATCHES * tokens_per_step(model) + 1))


def pytorch(options, model, dtype, folder, mode):
    command = [options.python, HERE / "pytorch_step.py", *(f"--{key.replace('_', '-')}={model[key]}" for key in model)]
    command += ["--mode", mode, "--dtype", dtype, "--threads", options.threads]
    command += ["--ids", len(ALPHABET), "--steps", ENDLESS]
    # Without processes that compile, which would wait for work beside the training.
    environment = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
    return Trainer(f"PyTorch {mode} {dtype}", command, folder, r" ([\d.]+) ms ", environment=environment)


def products(options, model, dtype, folder):
    sizes = [f"--{key.replace('_', '-')}={model[key]}" for key in ("layers", "d_model", "vocab")]
    command = [options.products, *sizes, "--rows", tokens_per_step(model)]
    command += ["--dtype", dtype, "--threads", options.threads]
    if options.bf16_products:
        command += ["--bf16-products", options.bf16_products]
    return Trainer(f"products {dtype}", command, folder, r" ([\d.]+) ms$")


def llmc(options, model, folder):
    """llm.c with runner's initial weights, after one step, and the same text."""
    write_experiment(folder, model, "fp32")
    run([options.runner, "apply", "exp.yaml", "--quiet", "--threads", options.threads, "--until-step", 1], folder)
    run([options.runner, "export", "compare", "hf", "--to", "hf"], folder)
    write_llmc_model(folder / "hf", folder / "gpt2_124M.bin")
    tokens = random_text(model)
    header = array.array("i", [20240520, 1, len(tokens)] + 253 * [0])
    shard = header.tobytes() + array.array("H", list(tokens)).tobytes()
    data = folder / "dev" / "data" / "tinyshakespeare"
    data.mkdir(parents=True)
    for split in ("train", "val"):
        (data / f"tiny_shakespeare_{split}.bin").write_bytes(shard)
    # It writes whole blocks to a file unless stdbuf changes that.
    threads = {"OMP_NUM_THREADS": str(options.threads)}
    return Llmc("llm.c fp32", ["stdbuf", "-oL", options.llmc], folder, r"\(took ([\d.]+) ms\)", environment=threads)


def write_llmc_model(source, target):
    """Writes the GPT-2 in a Hugging Face folder as llm.c's model file of version 3: a header of 256 numbers, then the parameters, all layers
    of a kind together, matrices as [out, in], the vocabulary padded to a multiple of 128 rows."""
    import torch
    from safetensors.torch import load_file
    config, tensors = json.loads((source / "config.json").read_text()), load_file(source / "model.safetensors")
    vocabulary, layers, width = config["vocab_size"], config["n_layer"], config["n_embd"]
    padded = -(-vocabulary // 128) * 128
    sizes = [config["n_positions"], vocabulary, layers, config["n_head"], width, padded]
    padding = torch.zeros(padded - vocabulary, width)
    parts = [torch.cat([tensors["transformer.wte.weight"], padding]), tensors["transformer.wpe.weight"]]
    kinds = [f"{part}.{end}" for part in ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj") for end in ("weight", "bias")]
    for kind in kinds:
        for layer in range(layers):
            tensor = tensors[f"transformer.h.{layer}.{kind}"]
            parts.append(tensor.T if tensor.dim() == 2 else tensor)
    parts += [tensors["transformer.ln_f.weight"], tensors["transformer.ln_f.bias"]]
    with open(target, "wb") as file:
        file.write(array.array("i", [20240326, 3, *sizes] + 248 * [0]).tobytes())
        for part in parts:
            file.write(part.contiguous().numpy().astype("<f4").tobytes())


class Llmc(Trainer):
    def start(self, warmup):
        super().start(warmup)
        batches = int(re.search(r"train dataset num_batches: (\d+)", (self.folder / "output.txt").read_text())[1])
        if batches != BATCHES:
            raise Failed(f"llm.c trains {BATCHES / batches:.3g} times as many tokens a step as the others: "
                         "compile it with their B and T (compare.py --help)")


def comparisons(options, model, scratch):
    """The pairs (trainer of runner, peer)."""
    pairs = []
    for dtype in options.dtypes:
        def folder(name):
            path = scratch / f"{name}-{dtype}"
            path.mkdir()
            return path
        ours = runner(options, model, dtype, folder("runner"))
        pairs += [(ours, pytorch(options, model, dtype, folder(mode), mode)) for mode in options.modes]
        if options.products:
            pairs.append((ours, products(options, model, dtype, folder("products"))))
        if options.llmc and dtype == "fp32":
            pairs.append((ours, llmc(options, model, folder("llmc"))))
    return pairs


def start_pair(pair, live, warmup):
    for trainer in pair:
        if trainer not in live:
            live.append(trainer)
            trainer.start(warmup)
            print(f"{trainer.label}: started", file=sys.stderr, flush=True)


def fits(pair, live):
    """True if memory is left for the programs of `pair` that are not live, should each be as large as the largest live one."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        available = next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
        return available > 1.25 * max(trainer.resident_bytes() for trainer in live) * len(set(pair) - set(live))
    except OSError:  # not Linux
        return False


def interleave(pairs, options, name):
    """Lets live trainers take turns. Returns for every pair a list of (milliseconds of runner's step, of the peer's)."""
    turns = {pair: [] for pair in pairs}
    for number in range(1, options.pairs + 1):
        backwards = number % 2 == 0
        for pair in reversed(pairs) if backwards else pairs:
            times = {trainer: trainer.take_turn(options.turn) for trainer in (reversed(pair) if backwards else pair)}
            turns[pair].append(tuple(times[trainer] for trainer in pair))
        ratios = (f"{peer.label} {turns[ours, peer][-1][1] / turns[ours, peer][-1][0]:.2f}" for ours, peer in pairs)
        print(f"{name}, round {number} of {options.pairs}, time / runner's: {', '.join(ratios)}", file=sys.stderr, flush=True)
    return turns


def measure(name, options):
    """Everything that was measured with one model, as it is written to `--json`."""
    model = MODELS[name]
    turns, peaks = {}, {}
    with tempfile.TemporaryDirectory(prefix="compare-", dir=options.scratch) as scratch:
        waiting = comparisons(options, model, Path(scratch))
        while waiting:
            live = []
            try:
                group = [waiting.pop(0)]
                start_pair(group[0], live, options.warmup)
                while waiting and fits(waiting[0], live):
                    group.append(waiting.pop(0))
                    start_pair(group[-1], live, options.warmup)
                turns |= interleave(group, options, name)
            finally:
                for trainer in live:
                    peaks[trainer.label] = max(peaks.get(trainer.label, 0), trainer.end() or 0)
    step_ms = {}
    for pair, times in turns.items():
        for trainer, own in zip(pair, zip(*times)):
            step_ms.setdefault(trainer.label, []).extend(own)
    return {
        "tokens_per_step": tokens_per_step(model),
        "step_ms": {label: quartiles(values) for label, values in step_ms.items()},
        "peak_rss_bytes": peaks,
        "pairs": [
            {"runner": ours.label, "peer": peer.label, "step_ms": times, "ratio": quartiles([b / a for a, b in times])}
            for (ours, peer), times in turns.items()
        ],
    }


def quartiles(values):
    """The three quartiles; the median is the second."""
    return statistics.quantiles(values, method="inclusive") if len(values) > 1 else 3 * values


def table(name, result, options):
    """The result of one model as lines of text."""
    lines = [f"{name}: {options.threads} threads, {result['tokens_per_step']:,} tokens a step, {options.pairs} pairs"]
    lines.append(f"  {'ms a step':<40}{'median':>10}   {'quartiles':<20}{'tokens/s':>10}{'peak memory':>14}")
    for label, (low, median, high) in result["step_ms"].items():
        rate = 1e3 * result["tokens_per_step"] / median
        memory = f"{result['peak_rss_bytes'][label] / 2**20:,.0f} MiB"
        lines.append(f"  {label:<40}{median:>10.1f}   {f'{low:.1f} to {high:.1f}':<20}{rate:>10,.0f}{memory:>14}")
    lines.append(f"  {'ratio of times, pair by pair':<40}{'median':>10}   quartiles")
    for pair in result["pairs"]:
        low, median, high = pair["ratio"]
        label = f"{pair['peer']} / {pair['runner']}"
        if pair["peer"].startswith("products"):
            low, median, high = 1 / high, 1 / median, 1 / low
            label = f"{pair['runner']} / {pair['peer']}"
        lines.append(f"  {label:<40}{median:>10.3f}   {low:.3f} to {high:.3f}")
    return "\n".join(lines)


def cpu():
    """The processor's name, and which of INSTRUCTION_SETS it has."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine(), []
    name = re.search(r"^model name\s*: (.*)$", text, re.M)
    flags = re.search(r"^flags\s*: (.*)$", text, re.M)
    present = flags[1].split() if flags else []
    return name[1] if name else platform.machine(), [name for name in INSTRUCTION_SETS if name in present]


def list_of(*choices):
    """A parser of some of the choices, separated by commas."""
    def parse(text):
        values = [value for value in text.split(",") if value]
        for value in values:
            if value not in choices:
                raise argparse.ArgumentTypeError(f"{value!r} is none of {', '.join(choices)}")
        return list(dict.fromkeys(values))
    return parse


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=[*MODELS, "both"], default="small")
    parser.add_argument("--modes", type=list_of("eager", "compile"), default=["eager"],
                        help="of PyTorch, separated by commas: eager, compile; '' leaves PyTorch out (default: eager)")
    parser.add_argument("--dtypes", type=list_of("fp32", "bf16"), default=["fp32"],
                        help="separated by commas: fp32, bf16 (default: fp32)")
    parser.add_argument("--bf16-products", choices=["amx_bf16", "avx512_bf16", "f32"],
                        help="how runner multiplies bf16 matrices (default: as on this processor)")
    parser.add_argument("--products", type=Path, metavar="PROGRAM", help="target/release/examples/products, built as above")
    parser.add_argument("--llmc", type=Path, metavar="PROGRAM", help="llm.c's train_gpt2, compiled as above")
    parser.add_argument("--pairs", type=int, default=20, help="of turns (default: 20)")
    parser.add_argument("--turn", type=float, default=0.5, metavar="SECONDS", help="length of a turn (default: 0.5)")
    parser.add_argument("--warmup", type=int, default=3, help="steps before its first turn (default: 3)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of each program (default: all cores)")
    parser.add_argument("--runner", type=Path, metavar="PROGRAM", default=HERE.parent / "target" / "release" / "runner",
                        help="default: target/release/runner")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has PyTorch (default: this one)")
    parser.add_argument("--scratch", type=Path,
                        help="folder for the runs, removed afterwards (with --llmc and gpt2-124m: 2 GB)")
    parser.add_argument("--json", type=Path, help="also write everything that was measured to this file")
    options = parser.parse_args()
    if os.path.dirname(options.python):  # not resolved: in a virtual environment it is a link, and must stay one
        options.python = os.path.abspath(options.python)
    builds = {
        "runner": "cargo build --release",
        "products": "cargo build --release --example products",
        "llmc": "compare.py --help says how",
    }
    for key, build in builds.items():
        path = getattr(options, key)
        if path and not path.is_file():
            parser.error(f"--{key}: no program at {path}; build it: {build}")
        setattr(options, key, path and path.resolve())
    if not options.dtypes or not (options.modes or options.products or options.llmc):
        parser.error("nothing to compare: name --dtypes, and at least one of --modes, --products and --llmc")
    if options.llmc and "fp32" not in options.dtypes:
        parser.error("--llmc: llm.c's program for the CPU computes in fp32, which --dtypes leaves out")
    if options.pairs < 1 or options.threads < 1 or options.warmup < 1 or options.turn <= 0:
        parser.error("--pairs, --threads and --warmup are at least 1, --turn is more than 0")
    return options


def main():
    options = parse_arguments()
    for ending in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C does: end the programs, which may be stopped, and the folder
        signal.signal(ending, lambda number, _: sys.exit(128 + number))
    name, instruction_sets = cpu()
    record = {"cpu": name, "instruction_sets": instruction_sets, "cores": os.cpu_count(), "threads": options.threads,
              "load_average": os.getloadavg()[0], "turn_seconds": options.turn, "models": {}}
    print(f"{name}, {os.cpu_count()} cores ({', '.join(instruction_sets) or 'instruction sets unknown'}), "
          f"load average {record['load_average']:.1f}", flush=True)
    if record["load_average"] > 0.5:
        print("compare: the machine is busy with other programs, or was until a minute ago, as after a build. Turns take this "
              "into account, but not altogether: it slows down threads that spin while they wait (PyTorch's, llm.c's) more "
              "than threads that sleep", file=sys.stderr)
    for name in MODELS if options.model == "both" else [options.model]:
        record["models"][name] = measure(name, options)
        print(table(name, record["models"][name], options), flush=True)
    if options.json:
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    try:
        main()
    except Failed as error:
        print(f"compare: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)

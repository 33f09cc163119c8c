#!/usr/bin/env python3
"""Holds training on a GPU against the CPU: 50 steps of a small GPT-2 and a small Llama in each precision, loss by loss.

    python3 scripts/gpu_parity.py --runner ./runner --scratch /tmp/parity [--results FILE]

Both devices run the same plan: the same rows, initial weights and dropout masks, so the losses differ by rounding alone.
Besides: the same plan on the GPU twice gives the same bits, and so does a run that was interrupted and went on.

The limits come from what rounding was measured to do on a CPU in these runs, and in runs of twice the batch:
- `fp32`: sums in another order. Another micro-batch moved a loss by at most 1.6e-7 there. A GPU adds products in pieces, with
  other exp and tanh, so first losses may be some f32 steps of a loss of 7 apart (4.8e-7 each), and training enlarges that.
- `tf32`: only inputs of products are rounded, to 10 bits of mantissa, where bf16 has 7 and rounds activations and gradients too.
  So it stays within what bf16 moves the CPU's own losses by: 1.5e-4 at first, 2e-3 at most, 3.4e-4 on average.
- `bf16`: both sides round in the same places, but a value near the middle falls to either side when a sum before it differs in the
  last bit, and a fused kernel rounds once where the CPU rounds twice. On the CPU another micro-batch alone moved losses by 3e-3
  at most and 6e-4 on average; twice that is granted, and for the first loss four times what bf16 moves it by.
Norms of gradients moved by at most 9e-6 (fp32), by 6.2e-2, 1.1e-2 on average (bf16 beside fp32), and 9.9e-2, 1.5e-2 on average (bf16
under another micro-batch), relative; the same reasons make their limits. tests/gpu_check/test.py shows what mistakes pass none of this.
"""

import argparse
import concurrent.futures
import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path

import gpu_common as common

# The largest absolute difference in nats of the first loss, of any loss, and of the mean over all steps.
LIMITS = {
    "fp32": {"first": 5e-6, "most": 2e-4, "mean": 5e-5},
    "tf32": {"first": 1.5e-4, "most": 2e-3, "mean": 4e-4},
    "bf16": {"first": 6e-4, "most": 6e-3, "mean": 1.2e-3},
}
# The same for the gradients' norms, relative. AdamW hides a gradient of the wrong scale from the losses; the norm shows it.
NORMS = {
    "fp32": {"first": 2e-5, "most": 1e-3, "mean": 1e-4},
    "tf32": {"first": 3e-3, "most": 6e-2, "mean": 1.1e-2},
    "bf16": {"first": 1e-2, "most": 0.2, "mean": 3e-2},
}
MODELS = ("gpt2", "llama")
# Sizes for trying this script without a GPU.
TINY = {"train.steps": 12, "model.d_model": 32, "model.layers": 2, "batch.sequences": 4, "batch.micro_batch": 2}


def compare(mine, reference, limits):
    """How far two curves are apart, {first, most, mean}, and what is wrong with that as a text, or nothing."""
    if not mine or len(mine) != len(reference):
        return {}, f"{len(mine)} losses beside {len(reference)}"
    pairs = list(zip(mine, reference))
    wrong = [step for step, pair in enumerate(pairs, 1) if not all(isinstance(v, float) and math.isfinite(v) for v in pair)]
    if wrong:
        return {}, f"step {wrong[0]}: a loss is not a finite number: {pairs[wrong[0] - 1]}"
    apart = [abs(a - b) for a, b in pairs]
    found = {"first": apart[0], "most": max(apart), "mean": sum(apart) / len(apart)}
    over = [f"{key} {found[key]:.1e} > {limits[key]:.1e}" for key in found if found[key] > limits[key]]
    if over:
        step = next(i for i, a in enumerate(apart, 1) if a > limits["most"] or (i == 1 and a > limits["first"])) \
            if found["most"] > limits["most"] or found["first"] > limits["first"] else apart.index(found["most"]) + 1
        over.append(f"step {step}: {pairs[step - 1][0]:.6f} beside {pairs[step - 1][1]:.6f}")
    return found, "; ".join(over)


class Parity:
    def __init__(self, options, notes):
        self.options, self.notes, self.clock = options, notes, common.Clock(options.seconds)
        self.extra = TINY if options.tiny else {}

    def folder(self, *names):
        return self.options.scratch.joinpath("-".join(names))

    def command(self, model, device, precision, *more, threads):
        settings = {"device": device, "precision": precision} | self.extra
        return [self.options.runner, "apply", common.EXPERIMENTS / f"parity-{model}.yaml", "--quiet", "--threads", threads,
                *common.flags(settings), *more]

    def train(self, model, device, precision, label, *more, threads=1):
        """Makes a run in a folder of its own, and returns its run directory."""
        folder = self.folder(model, precision, label)
        if not (folder / "done").exists():
            folder.mkdir(parents=True, exist_ok=True)
            common.run(self.command(model, device, precision, *more, threads=threads), folder, self.clock.left())
            (folder / "done").touch()
        return common.run_folder(folder, f"parity-{model}")

    def references(self):
        """Makes the CPU's runs at the same time. Returns {(model, precision): run directory}. TF32 is fp32 on a CPU."""
        wanted = [(model, precision) for model in MODELS for precision in ("fp32", "bf16")]
        threads = max(1, self.options.threads // len(wanted))
        with concurrent.futures.ThreadPoolExecutor(len(wanted)) as pool:
            started = [pool.submit(self.train, model, "cpu", precision, "cpu", threads=threads) for model, precision in wanted]
            found = {}
            for key, future in zip(wanted, started):
                try:
                    found[key] = future.result()
                except common.Failed as error:
                    self.notes.add(f"{key[0]} {key[1]} on the CPU", False, note=str(error))
        return {(m, p): found.get((m, "fp32" if p == "tf32" else p)) for m in MODELS for p in LIMITS}

    def check(self, model, precision, reference):
        name = f"{model} {precision}: losses beside the CPU's"
        try:
            mine = self.train(model, self.options.device, precision, "gpu")
        except common.Failed as error:
            self.notes.add(name, False, note=str(error))
            return
        if reference is None:
            self.notes.add(name, None, note="the CPU's run is missing")
        else:
            limits = LIMITS[precision]
            found, wrong = compare(common.losses(mine), common.losses(reference), limits)
            value = ", ".join(f"{key} {number:.1e}" for key, number in found.items())
            note = wrong
            if precision == "tf32" and self.options.device == "cuda" and self.equals_fp32(model, mine):
                note += "; the same losses as fp32: no product used TF32"
            self.notes.add(name, not wrong, value, ", ".join(f"{limits[k]:.2g}" for k in limits), note.removeprefix("; "))
            norms = [[step["grad_norm"] for step in common.metrics(run, "train")] for run in (mine, reference)]
            found, wrong = ({}, "a norm is 0 or missing") if not all(norms[1]) else \
                compare([a / b if a is not None else None for a, b in zip(*norms)], [1.0] * len(norms[1]), NORMS[precision])
            value = ", ".join(f"{key} {number:.1e}" for key, number in found.items())
            self.notes.add(f"{model} {precision}: norms of gradients", not wrong, value, ", ".join(f"{v:.2g}" for v in NORMS[precision].values()), wrong)
            evaluated = [[e["val_loss"] for e in common.metrics(run, "eval")] for run in (mine, reference)]
            _, wrong = compare(*evaluated, {"first": limits["first"], "most": limits["most"], "mean": limits["most"]})
            value = " and ".join(f"{v[-1]:.6f}" for v in evaluated if v)
            self.notes.add(f"{model} {precision}: validation loss", not wrong, value, f"{limits['most']:.0e}", wrong)
        self.same_bits(model, precision, mine)

    def equals_fp32(self, model, mine):
        try:
            return common.losses(common.run_folder(self.folder(model, "fp32", "gpu"), f"parity-{model}")) == common.losses(mine)
        except (common.Failed, OSError):
            return False

    def same_bits(self, model, precision, first):
        """Runs the same plan again, and once more with an interrupt."""
        expected = common.summary(first)["final_hash"]
        for label, what in (("again", "the same bits twice"), ("stopped", "the same bits after an interrupt")):
            name = f"{model} {precision}: {what}"
            if self.clock.left() < 5:
                self.notes.add(name, None, note="no time was left")
                continue
            try:
                note = ""
                if label == "again":
                    run = self.train(model, self.options.device, precision, label)
                else:
                    run, note = self.interrupted(model, precision)
                got = common.summary(run)["final_hash"]
            except (common.Failed, OSError, KeyError) as error:
                self.notes.add(name, False, note=str(error))
                continue
            self.notes.add(name, got == expected, got[:12], expected[:12], note)

    def interrupted(self, model, precision):
        """SIGINT after some steps, then the same command again. A run that ends before the signal is stopped by --until-step instead."""
        folder = self.folder(model, precision, "stopped")
        folder.mkdir(parents=True, exist_ok=True)
        command = self.command(model, self.options.device, precision, threads=1)
        with (folder / "output").open("w") as output:
            process = common.spawn(command, cwd=common.ROOT, env=common.runner_environment(folder), stdin=subprocess.DEVNULL,
                                   stdout=output, stderr=output)
            steps, until = 0, time.monotonic() + min(60, self.clock.left())
            while process.poll() is None and steps < 4 and time.monotonic() < until:
                for path in (folder / "runs").glob(f"parity-{model}-*/metrics.jsonl"):
                    steps = path.read_text().count('"train"')
                time.sleep(0.002)
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            try:
                code = process.wait(timeout=max(1, min(60, self.clock.left())))
                common.LIVE.discard(process)
            except subprocess.TimeoutExpired:
                common.end(process)
                raise common.Failed(f"an interrupt did not end it:\n{common.tail((folder / 'output').read_text())}") from None
        note = f"interrupted after step {steps} or later"
        if code == 0:
            folder = self.folder(model, precision, "until")
            folder.mkdir(parents=True, exist_ok=True)
            stop = "5" if self.options.tiny else "25"
            common.run([*command, "--until-step", stop], folder, self.clock.left())
            note = f"stopped after step {stop}: it was over before an interrupt could come"
        elif code != 130:
            raise common.Failed(f"after an interrupt the exit code is {code}, not 130:\n{common.tail((folder / 'output').read_text())}")
        run = common.run_folder(folder, f"parity-{model}")
        if common.summary(run)["status"] == "done":
            raise common.Failed("it was done before it was stopped")
        common.run(command, folder, self.clock.left())
        return run, note


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runner", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True, help="folder for runs; what is done there is not done again")
    parser.add_argument("--results", type=Path, help="append results to this file")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--threads", type=int, default=4, help="of all runs on the CPU together")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--references-only", action="store_true", help="make the CPU's runs and stop")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try this script")
    options = parser.parse_args()
    options.runner = options.runner.resolve()
    parity = Parity(options, common.Notes(options.results, "parity"))
    references = parity.references()
    if not options.references_only:
        for precision in LIMITS:
            for model in MODELS:
                parity.check(model, precision, references[model, precision])
    return 1 if parity.notes.failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, json.JSONDecodeError, KeyError) as error:
        print(f"gpu_parity: {error!r}", file=sys.stderr)
        sys.exit(1)

#!/usr/bin/env python3
"""Measures training steps on a GPU beside PyTorch in the same sitting: GPT-2 124M (T = 1024, micro-batches of 64, 32 and 16; bf16, TF32,
fp32) and the Llama of 179 million parameters (T = 512); PyTorch eager and compiled, with scaled_dot_product_attention.

    python3 scripts/gpu_bench.py --runner ./runner --scratch /dev/shm/bench --seconds 240 [--results FILE]

What matters most comes first (bf16, 64 rows), so that a time limit costs the least; what is not reached is said. One step is one
micro-batch with clipping and AdamW, on both sides. Ours is `runner apply` on experiments/gpu/*.yaml: the median of `step_ms` in
metrics.jsonl without the first steps and without those that are watched (1, 2, 4, 8, …), held against the clock of this script; it is
ended when it has done its steps, so that no checkpoint of 1.5 GB is written. PyTorch is benches/peers/gpu_torch.py.

MFU by two conventions, of the device's dense peak: llm.c's 6·N + 6·L·d·T FLOPs per token, which counts causal attention once, and
6·N + 12·L·d·T of PaLM and nanoGPT, which counts it in full. N leaves out what is only looked up (position embeddings, and the token
embedding of an untied model).
"""

import argparse
import json
import os
import queue
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import gpu_common as common

PEER = common.ROOT / "benches" / "peers" / "gpu_torch.py"
# Dense peaks of data sheets in FLOP/s, by what the driver calls the device; the first that is part of its name counts.
PEAKS = [
    ("H100 PCIe", {"bf16": 756e12, "tf32": 378e12, "fp32": 51e12}),
    ("H100 NVL", {"bf16": 835e12, "tf32": 417e12, "fp32": 60e12}),
    ("H200", {"bf16": 989.4e12, "tf32": 494.7e12, "fp32": 66.9e12}),
    ("H100", {"bf16": 989.4e12, "tf32": 494.7e12, "fp32": 66.9e12}),
    ("A100", {"bf16": 312e12, "tf32": 156e12, "fp32": 19.5e12}),
    ("L40S", {"bf16": 362e12, "tf32": 183e12, "fp32": 91.6e12}),
    ("4090", {"bf16": 165.2e12, "tf32": 82.6e12, "fp32": 82.6e12}),
]
MODELS = {
    "gpt2": {"file": "gpt2-124m.yaml", "name": "gpu-gpt2-124m", "label": "GPT-2 124M", "layers": 12, "d_model": 768, "length": 1024,
             "looked_up": 1024 * 768},
    "llama": {"file": "llama-179m.yaml", "name": "gpu-llama-179m", "label": "Llama 179M", "layers": 12, "d_model": 768, "length": 512,
              "looked_up": 50000 * 768},
}
# (warmup, timed): at 64 rows of 1,024 a step of fp32 takes about a second, of bf16 an eighth.
STEPS = {"bf16": (6, 20), "tf32": (6, 16), "fp32": (4, 8)}
TINY_STEPS = (3, 6)
TINY = {"layers": 2, "heads": 4, "d_model": 64, "d_ff": 128, "length": 32}


def cases():
    """(who, model, precision, micro-batch, seconds that it is likely to take), the most important first."""
    ours, eager, compiled = "runner", "eager", "compile"
    listed = [(ours, "gpt2", "bf16", 64), (compiled, "gpt2", "bf16", 64), (eager, "gpt2", "bf16", 64)]
    listed += [(ours, "gpt2", "bf16", 32), (ours, "gpt2", "bf16", 16), (ours, "llama", "bf16", 64)]
    listed += [(eager, "llama", "bf16", 64), (ours, "gpt2", "tf32", 64), (eager, "gpt2", "tf32", 64)]
    listed += [(ours, "gpt2", "fp32", 64), (eager, "gpt2", "fp32", 64), (compiled, "gpt2", "bf16", 16), (compiled, "llama", "bf16", 64)]
    listed += [(compiled, "gpt2", "bf16", 32), (eager, "gpt2", "bf16", 32), (eager, "gpt2", "bf16", 16)]
    listed += [(who, "gpt2", precision, rows) for precision in ("tf32", "fp32") for rows in (32, 16) for who in (ours, eager)]
    listed += [(compiled, "gpt2", "tf32", 64), (compiled, "gpt2", "fp32", 64)]
    listed += [(compiled, "gpt2", precision, rows) for precision in ("tf32", "fp32") for rows in (32, 16)]
    return listed


def estimate(who, precision, rows):
    """An estimate in seconds. An error by a factor of two does no harm."""
    steps = sum(STEPS[precision]) * {"bf16": 0.14, "tf32": 0.35, "fp32": 1.4}[precision] * rows / 64
    return steps + {"runner": 5, "eager": 3, "compile": 30}[who]


def peaks_of(name):
    return next((peaks for part, peaks in PEAKS if part in name), {})


def flops_per_token(model, parameters):
    """FLOPs by two conventions: (llm.c's, that of PaLM and nanoGPT)."""
    m = MODELS[model]
    attention = m["layers"] * m["d_model"] * m["length"]
    matrices = 6 * (parameters - m["looked_up"])
    return matrices + 6 * attention, matrices + 12 * attention


class Peer:
    """PyTorch in a process of its own that answers case by case. After a timeout it is killed, and the next case starts another."""

    def __init__(self, options):
        self.options, self.process, self.lines, self.why = options, None, None, None

    def environment(self):
        kept = {k: v for k, v in os.environ.items() if not k.startswith("RUNNER_")}
        cache = Path(os.environ.get("GPU_CHECK_CODE") or self.options.scratch) / "inductor"
        return {"TORCHINDUCTOR_CACHE_DIR": str(cache), "TRITON_CACHE_DIR": str(cache / "triton"), "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
                "TORCHINDUCTOR_AUTOGRAD_CACHE": "1", "PYTHONWARNINGS": "ignore"} | kept

    def start(self, limit):
        self.errors = self.options.scratch / "torch.err"
        self.process = common.spawn([self.options.python, PEER, "--serve", "--device", self.options.device], env=self.environment(),
                                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors.open("a"), text=True)
        self.lines = queue.Queue()
        threading.Thread(target=self.follow, args=(self.process, self.lines), daemon=True).start()
        ready = self.read(limit)
        if "ready" not in ready:
            self.why = ready["error"]
            raise common.Failed(self.why)

    @staticmethod
    def follow(process, lines):
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    def read(self, limit):
        until = time.monotonic() + max(1, limit)
        while True:
            try:
                line = self.lines.get(timeout=max(0.01, until - time.monotonic()))
            except queue.Empty:
                self.close()
                return {"error": f"not done after {limit:.0f} s"}
            if line is None:
                said = common.tail(self.errors.read_text(), 1) if self.errors.exists() else ""
                code = self.process.wait()
                self.close()
                return {"error": f"it ended with exit code {code}: {said}"[:300]}
            try:
                return json.loads(line)
            except ValueError:  # a line that a library printed
                continue

    def ask(self, case, limit):
        if self.why:
            return {"error": self.why}
        clock = common.Clock(limit)
        try:
            if self.process is None:
                self.start(limit)
            self.process.stdin.write(json.dumps(case) + "\n")
            self.process.stdin.flush()
        except (OSError, common.Failed) as error:
            self.close()
            return {"error": str(error)}
        return self.read(clock.left())

    def close(self):
        if self.process:
            common.end(self.process)
            self.process = None


class Bench:
    def __init__(self, options, notes):
        self.options, self.notes, self.clock = options, notes, common.Clock(options.seconds)
        self.peer = Peer(options)
        gpus = common.driver() if options.device == "cuda" else []
        self.device = gpus[0][0] if gpus else "CPU"
        self.peaks, self.memory = peaks_of(self.device), gpus[0][1] if gpus else None

    def tokens(self):
        folder = self.options.scratch / "tokens"
        if not (folder / "tokenizer.json").exists():
            small = ["--tokens", "20000", "--ids", "500"] if self.options.tiny else []
            common.run([sys.executable, common.ROOT / "scripts" / "gpu_tokens.py", folder, *small], self.options.scratch, 60)
        return folder

    def settings(self, model, precision, rows):
        """The settings that replace those of the file."""
        folder = self.tokens().resolve()
        settings = {
            "device": self.options.device, "precision": precision, "batch.sequences": rows, "batch.micro_batch": rows,
            "data.tokenizer": f"{{file: {folder / 'tokenizer.json'}}}", "train.steps": 1_000_000,
            "data.train.tokens.files": f"[{folder / 'random_train_000001.bin'}]",
        }
        if self.options.tiny:
            sizes = {k: v for k, v in TINY.items() if k != "length"} | {"context_length": TINY["length"], "vocab_size": 512}
            settings |= {f"model.{key}": value for key, value in sizes.items()}
            settings |= {"data.layout": f"{{packed: {{length: {TINY['length']}}}}}"}
            settings |= {"model.kv_heads": 2} if model == "llama" else {}
        return settings

    def steps(self, precision):
        return TINY_STEPS if self.options.tiny else STEPS[precision]

    def ours(self, model, precision, rows, limit):
        """The program's figures, read from a run that is stopped after its steps."""
        warmup, timed = self.steps(precision)
        folder = self.options.scratch / f"bench-{model}-{precision}-{rows}"
        folder.mkdir(parents=True, exist_ok=True)
        command = [self.options.runner, "apply", common.EXPERIMENTS / MODELS[model]["file"], "--json", "--new",
                   *common.flags(self.settings(model, precision, rows))]
        command += ["--threads", str(self.options.threads)] if self.options.device == "cpu" else []
        environment = common.runner_environment(self.options.scratch) | {"RUNNER_RUNS": str(folder / "runs")}
        clock, arrivals = common.Clock(limit), []
        with (folder / "errors").open("w") as errors, common.MemoryWatch(self.options.device == "cuda") as watch:
            process = common.spawn(command, cwd=common.ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=errors, text=True)
            lines = queue.Queue()
            threading.Thread(target=Peer.follow, args=(process, lines), daemon=True).start()
            while len(arrivals) < warmup + timed:
                try:
                    line = lines.get(timeout=max(0.01, clock.left()))
                except queue.Empty:
                    break
                if line is None:
                    break
                if '"kind":"train"' in line.replace(" ", ""):
                    arrivals.append(time.monotonic())
            time.sleep(0.3)  # until the last step's line is in metrics.jsonl and nvidia-smi shows its memory
        common.end(process)
        if len(arrivals) < warmup + timed:
            said = common.tail((folder / "errors").read_text(), 8)
            raise common.Failed(f"{len(arrivals)} of {warmup + timed} steps in {limit:.0f} s\n{said}".strip())
        return self.figures(common.run_folder(folder, MODELS[model]["name"]), warmup, timed, arrivals, watch.bytes())

    def figures(self, run, warmup, timed, arrivals, driver_bytes):
        steps = common.metrics(run, "train")[: warmup + timed]
        counted = [s for s in steps[warmup:] if s["step"] & (s["step"] - 1)]
        median = statistics.median(s["step_ms"] for s in counted)
        wall = 1e3 * (arrivals[-1] - arrivals[warmup]) / (timed - 1)
        timeline = json.loads((run / "timeline.json").read_text()) if (run / "timeline.json").exists() else {}
        held = [{k: v for k, v in rank.items() if k != "rank" and isinstance(v, int)} for rank in timeline.get("memory") or []]
        peaks = [(rank.get("device") or {}).get("peak") for rank in timeline.get("memory") or []]
        if self.options.device == "cuda":  # tensors alone: the pool does not count the context and the libraries
            measured = sum(peaks) if peaks and all(peaks) else None
        else:
            measured = sum(sum(rank.get(k, 0) for k in ("weights", "gradients", "optimizer", "step")) for rank in held) or None
        plan = json.loads((run / "plan.json").read_text())
        forecast = plan.get("forecast")
        return {
            "step_ms": median, "forecast_ms": 1e3 * forecast["step_seconds"] if forecast else None,
            "wall_ms": wall, "tokens_per_second": 1e3 * steps[-1]["tokens"] / median,
            "parameters": plan["totals"]["parameters"], "planned": sum(sum(r.values()) for r in common.planned(run)), "planned_tensors": sum(common.planned_tensors(run)),
            "planned_categories": common.planned(run)[0], "measured": measured, "measured_categories": held[0] if held else None,
            "driver_bytes": driver_bytes, "phases": {k: statistics.median(s[k] for s in counted) for k in
                                                     ("data_ms", "forward_ms", "backward_ms", "optimizer_ms") if counted[0].get(k) is not None},
            "first_loss": steps[0]["loss"], "last_loss": steps[-1]["loss"],
        }

    def theirs(self, mode, model, precision, rows, limit):
        warmup, timed = self.steps(precision)
        case = {"model": model, "precision": precision, "micro_batch": rows, "mode": mode, "warmup": warmup, "steps": timed}
        if self.options.tiny:
            case |= TINY | {"kv_heads": 2 if model == "llama" else 4, "vocab": 512}
        found = self.peer.ask(case, limit)
        if "error" in found:
            raise common.Failed(found["error"])
        return found | {"measured": found.get("allocated_bytes"), "driver_bytes": found.get("reserved_bytes")}

    def once(self, who, model, precision, rows):
        label = f"{MODELS[model]['label']}, {precision}, micro-batch {rows}, {'runner' if who == 'runner' else f'PyTorch {who}'}"
        more = {"who": who, "model": model, "precision": precision, "rows": rows, "device": self.device}
        need = 1 if self.options.tiny else 0.6 * estimate(who, precision, rows)
        if self.clock.left() < need:
            self.notes.add(label, None, note="not reached: no time was left", **more)
            return
        # Compiling may take long. It must not take the time that the next cases need.
        limit = min(self.clock.left(), 90) if who == "compile" else self.clock.left()
        try:
            found = self.ours(model, precision, rows, limit) if who == "runner" else self.theirs(who, model, precision, rows, limit)
        except (common.Failed, OSError, KeyError, ValueError, statistics.StatisticsError) as error:
            # A failure of PyTorch does not fail this check.
            self.notes.add(label, False if who == "runner" else None, note=str(error) or repr(error), **more)
            return
        peak, rate = self.peaks.get(precision), found["tokens_per_second"]
        counts = flops_per_token(model, found["parameters"])
        found["mfu"] = [rate * count / peak for count in counts] if peak else None
        note = ""
        if who == "runner":
            if found["wall_ms"] > 1.05 * found["step_ms"]:
                note = f"by this script's clock a step takes {found['wall_ms']:.1f} ms"
            elif found["wall_ms"] < 0.95 * found["step_ms"]:
                note = f"by this script's clock a step takes only {found['wall_ms']:.1f} ms"
        value = f"{rate:,.0f} tokens/s, {found['step_ms']:.2f} ms"
        self.notes.add(label, True, value, note=note, figures=found, **more)

    def memory_check(self):
        """The plan's bytes beside those that were measured, within 5%. On a GPU both are tensors and workspace alone: the most that
        the process's memory pool had in use in the step, and the plan without the driver's context and NCCL's buffers, which are
        outside of the pool and assumed; what the driver shows in use is said beside it."""
        lines = [r for r in common.results(self.options.results) if r["part"] == "bench" and r.get("who") == "runner" and r.get("figures")] \
            if self.options.results else []
        for line in lines:
            f = line["figures"]
            if f["measured"] is None:
                self.notes.add(f"{line['name']}: memory beside the plan's", None, note="timeline.json has no memory")
                continue
            on_gpu = self.options.device == "cuda"
            planned = f["planned_tensors" if on_gpu else "planned"]
            off = f["measured"] / planned - 1
            ok = abs(off) <= 0.05 if on_gpu else None
            driver = f", the driver shows {f['driver_bytes'] / 2**30:.2f} GiB more in use" if f["driver_bytes"] else ""
            beside = f" (without context and communicators, with them {f['planned'] / 2**30:.2f} GiB are planned{driver})" if on_gpu else driver
            self.notes.add(f"{line['name']}: memory beside the plan's", ok, f"{f['measured'] / 2**30:.2f} of {planned / 2**30:.2f} GiB",
                           "5%", f"{off:+.1%}{beside}"
                           + ("" if ok is not None else " (a CPU's are not held to it)"))


def warm(options):
    """Compiles the cases of the benchmark in its order, so that it finds them in PyTorch's cache."""
    bench = Bench(options, common.Notes(None, "warm"))
    try:
        for who, model, precision, rows in cases():
            if who == "compile" and bench.clock.left() > 15:
                case = {"model": model, "precision": precision, "micro_batch": rows, "mode": who, "warmup": 1, "steps": 1}
                said = bench.peer.ask(case, bench.clock.left())
                print(f"{model} {precision} {rows}: {said.get('first_step_seconds', said.get('error'))} s", flush=True)
    finally:
        bench.peer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runner", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--python", default=sys.executable, help="interpreter with PyTorch; an empty text for none")
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--threads", type=int, default=1, help="on a CPU")
    parser.add_argument("--tiny", action="store_true", help="small sizes and few lines, to try this script")
    parser.add_argument("--warm", action="store_true", help="only fill PyTorch's cache of compiled code")
    options = parser.parse_args()
    options.runner = options.runner.resolve()
    options.scratch.mkdir(parents=True, exist_ok=True)
    if options.warm:
        warm(options)
        return 0
    notes = common.Notes(options.results, "bench")
    bench = Bench(options, notes)
    listed = cases()
    if options.tiny:
        listed = [(w, m, p, 2) for w, m, p, rows in listed if rows == 64 and w != "compile" and p != "tf32"]
    try:
        for case in listed:
            if case[0] == "runner" or options.python:
                bench.once(*case)
        bench.memory_check()
    finally:
        bench.peer.close()
    if not options.python:
        notes.add("PyTorch's side", None, note="there is no PyTorch on this machine")
    return 1 if notes.failed else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Tests of what `make gpu-check` runs, without a GPU: python3 tests/gpu_check/test.py target/release/runner

The comparisons are given curves with known mistakes and must notice them; the whole script runs once on the CPU, in small.
"""

import json
import math
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import gpu_bench  # noqa: E402
import gpu_common  # noqa: E402
import gpu_parity  # noqa: E402
import gpu_ranks  # noqa: E402
import gpu_session  # noqa: E402
import gpu_start  # noqa: E402
import gpu_tokens  # noqa: E402

RUNNER = None


def apply(folder, *flags):
    """Losses of the small GPT-2 on the CPU, with some settings changed."""
    settings = gpu_common.flags({"device": "cpu", "train.steps": 30, "model.layers": 2, "model.d_model": 64})
    command = [RUNNER, "apply", gpu_common.EXPERIMENTS / "parity-gpt2.yaml", "--quiet", "--threads", 1, *settings, *flags]
    gpu_common.run(command, folder, 120)
    return gpu_common.losses(gpu_common.run_folder(folder, "parity-gpt2"))


class Compare(unittest.TestCase):
    def test_another_order_of_sums_is_within_the_limits_and_mistakes_are_not(self):
        with tempfile.TemporaryDirectory() as name:
            name = Path(name)
            reference = apply(name / "a")
            verdicts = {
                "micro-batch": apply(name / "b", "--set", "batch.micro_batch=2"),
                "rounding": apply(name / "c", "--set", "precision=bf16"),
                "dropout": apply(name / "d", "--set", "model.dropout=0.11"),
                "decay": apply(name / "e", "--set", "optimizer.adamw.betas=[0.9, 0.96]"),
                "rate": apply(name / "f", "--set", "optimizer.adamw.lr=1.05e-3"),
            }
            wrong = {what: {p: gpu_parity.compare(curve, reference, limits)[1] for p, limits in gpu_parity.LIMITS.items()}
                     for what, curve in verdicts.items()}
        self.assertEqual(set(wrong["micro-batch"].values()), {""})
        self.assertEqual(wrong["rounding"]["bf16"], "")
        self.assertIn(">", wrong["rounding"]["fp32"], "bf16 is not taken for fp32")
        for what in ("dropout", "decay", "rate"):
            for precision, said in wrong[what].items():
                self.assertIn(">", said, f"{what} under the limits of {precision}")

    def test_curves_that_cannot_be_compared(self):
        limits = gpu_parity.LIMITS["fp32"]
        self.assertIn("0 losses", gpu_parity.compare([], [1.0], limits)[1])
        self.assertIn("1 losses beside 2", gpu_parity.compare([1.0], [1.0, 1.0], limits)[1])
        for bad in (math.nan, math.inf, None):
            self.assertIn("step 2", gpu_parity.compare([1.0, bad], [1.0, 1.0], limits)[1])
        self.assertEqual(gpu_parity.compare([1.0, 2.0], [1.0, 2.0], limits)[1], "")


class Numbers(unittest.TestCase):
    def test_flops_are_those_of_the_plan(self):
        """PaLM's count of 65,536 tokens of GPT-2 124M is the plan's figure for MFU."""
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            for model, rows in (("gpt2", 64), ("llama", 64)):
                m = gpu_bench.MODELS[model]
                file = gpu_common.EXPERIMENTS / m["file"]
                _, out, _ = gpu_common.run([RUNNER, "plan", file, "--cluster", "1x1xH100", "--rows", 1000, "--json"], folder, 60)
                totals = json.loads(out)["totals"]
                count = gpu_bench.flops_per_token(model, totals["parameters"])[1] * rows * m["length"]
                self.assertAlmostEqual(count / totals["flops_per_step"], 1, places=9)

    def test_tokens_are_a_shard_of_llm_c(self):
        content = gpu_tokens.shard([1, 49_999, 2])
        self.assertEqual(len(content), 1024 + 6)
        self.assertEqual(content[:12], (20240520).to_bytes(4, "little") + (1).to_bytes(4, "little") + (3).to_bytes(4, "little"))
        self.assertEqual(content[-6:], bytes([1, 0, 0x4F, 0xC3, 2, 0]))

    def test_cards_are_known_by_the_longest_name(self):
        self.assertEqual(gpu_bench.peaks_of("NVIDIA H100 PCIe")["bf16"], 756e12)
        self.assertEqual(gpu_bench.peaks_of("NVIDIA H100 80GB HBM3")["bf16"], 989.4e12)
        self.assertEqual(gpu_bench.peaks_of("Tesla T4"), {})

    def test_gaps_are_counted_where_no_kernel_runs(self):
        # Two that overlap, a gap of 5 after the longer one, and a gap of 1.
        kernels = [(0, 10, "a"), (4, 6, "b"), (15, 20, "c"), (21, 30, "a")]
        busy, between, largest = gpu_session.gaps_of([(start * 10**6, end * 10**6, name) for start, end, name in kernels])
        self.assertEqual((busy, between, largest), (24, 6, [("a", 5), ("c", 1)]))

    def test_samples_of_an_idle_card_are_left_out(self):
        lines = ["345, 70.1, 0x0000000000000001\n", "1755, 690.0, 0x0000000000000004\n", "N/A, N/A, N/A\n", "1980, 600, 0x0\n"]
        self.assertEqual(gpu_session.busy_samples(lines), [(1755, 690, 4), (1980, 600, 0)])

    def test_bf16_comes_first(self):
        order = [case[2] for case in gpu_bench.cases()]
        self.assertEqual(order[:3], ["bf16"] * 3)
        self.assertEqual(len(set(gpu_bench.cases())), len(gpu_bench.cases()))


class Plans(unittest.TestCase):
    """What the parts ask of a GPU is planned for one without having it: a setting that is refused is found here."""

    def plan(self, folder, file, settings, cluster="1x1xH100"):
        flags = gpu_common.flags(settings)
        _, out, _ = gpu_common.run([RUNNER, "plan", file, "--cluster", cluster, "--json", *flags], folder, 60)
        return json.loads(out)

    def options(self, folder, **more):
        known = {"runner": RUNNER, "scratch": folder, "device": "cuda", "tiny": False, "threads": 2, "seconds": 120, "python": ""}
        return type("Options", (), known | more)

    def test_bench(self):
        with tempfile.TemporaryDirectory() as name:
            bench = gpu_bench.Bench(self.options(Path(name)), None)
            for model, precision, rows in sorted({case[1:] for case in gpu_bench.cases() if case[0] == "runner"}):
                file = gpu_common.EXPERIMENTS / gpu_bench.MODELS[model]["file"]
                plan = self.plan(Path(name), file, bench.settings(model, precision, rows))
                tokens = rows * gpu_bench.MODELS[model]["length"]
                forecast = plan["forecast"]
                self.assertAlmostEqual(forecast["tokens_per_second"] * forecast["step_seconds"] / tokens, 1, places=6)

    def test_parity_and_ranks(self):
        with tempfile.TemporaryDirectory() as name:
            for model in gpu_parity.MODELS:
                for precision in gpu_parity.LIMITS:
                    self.plan(Path(name), gpu_common.EXPERIMENTS / f"parity-{model}.yaml", {"device": "cuda", "precision": precision})
            for gpus in (2, 4, 8):
                for settings in gpu_ranks.layouts(gpus).values():
                    base = {"device": "cuda", "precision": "fp32", "batch.sequences": 8, "train.steps": 20}
                    self.plan(Path(name), gpu_common.EXPERIMENTS / "parity-llama.yaml", base | settings, f"1x{gpus}xH100")

    def test_start(self):
        """The run itself as it is planned for a GPU; the weights and tokens that PyTorch gets are made."""
        with tempfile.TemporaryDirectory() as name:
            data = Path(name) / "data"
            small_gpt2_data(data)
            files = {"text": data / "input.txt", "vocab": data / "vocab.json", "merges": data / "merges.txt"}
            start = gpu_start.Start(self.options(Path(name), length=1024, rows=16, steps=50), files)
            for precision in gpu_start.LIMITS:
                flags = start.settings(precision=precision)
                gpu_common.run([RUNNER, "plan", gpu_start.EXPERIMENT, "--cluster", "1x1xH100", *flags], Path(name), 60)
            small = gpu_start.Start(self.options(Path(name), length=32, rows=2, steps=5, tiny=True), files)
            self.assertGreater(small.weights().stat().st_size, 64 * 1024 * 4)
            self.assertGreater(small.tokens().stat().st_size, 2 * len(TEXT.split()))


TEXT = "The first citizen speaks before we proceed any further. " * 400


def small_gpt2_data(folder):
    """A text, and a tokenizer in the form of GPT-2's whose tokens are the bytes."""
    folder.mkdir()
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    letters = [chr(byte) for byte in shown] + [chr(256 + index) for index in range(len(hidden))]
    vocabulary = {letter: index for index, letter in enumerate([*letters, "<|endoftext|>"])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    (folder / "input.txt").write_text(TEXT)


# Stands in for the tool on a machine without one: it notes its arguments, and runs the program that it is given.
SANITIZER = """#!/bin/sh
echo "$2" >>"$0.tools"
while [ "$1" != all ]; do shift; done
shift
exec "$@"
"""


class Script(unittest.TestCase):
    def check(self, *flags, parts="doctor,parity,bench,ranks,start,kernels", environment=None):
        with tempfile.TemporaryDirectory() as name:
            done = subprocess.run([ROOT / "scripts" / "gpu_check.sh", "--cpu", "--out", name, "--scratch", name, "--parts", parts, *flags],
                                  env={"PATH": "/usr/bin:/bin", "RUNNER": str(RUNNER), "PYTHON": sys.executable} | (environment or {}),
                                  capture_output=True, text=True, stdin=subprocess.DEVNULL)
            files = sorted(Path(name).iterdir())
            table = next((f.read_text() for f in files if f.suffix == ".md"), "")
            log = next((f.read_text() for f in files if f.suffix == ".log"), "")
            return done, table, log, files

    def test_all_parts_on_the_cpu(self):
        done, table, log, files = self.check()
        self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr)
        self.assertEqual([f.suffix for f in files], [".jsonl", ".log", ".md"], "nothing else is left behind")
        self.assertIn("| bench | ok |", table)
        self.assertIn("llama bf16: the same bits after an interrupt | ok |", table)
        self.assertIn("no data", table)
        self.assertIn("== parity", log)

    def test_a_session_goes_on_where_it_stopped(self):
        with tempfile.TemporaryDirectory() as name:
            command = [ROOT / "scripts" / "gpu_check.sh", "--session", "--cpu", "--out", name, "--scratch", name]
            environment = {"PATH": "/usr/bin:/bin", "RUNNER": str(RUNNER), "PYTHON": sys.executable}
            begin = lambda: subprocess.run(command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            done = Path(name) / "gpu-check-session.parts"
            whole = begin()
            self.assertEqual(whole.returncode, 0, whole.stdout[-4000:] + whole.stderr)
            parts = [line.split("\t")[0] for line in done.read_text().splitlines()]
            self.assertEqual(parts, ["doctor", "tests", "clocks", "gaps", "calls", "algorithms", "occupied", "kernels", "sanitize", "ranks", "killed", "loading", "bench"])
            self.assertIn("| killed | ddp 2: one rank killed in a step | ok |", whole.stdout)
            # As if it had stopped before its last two parts.
            done.write_text("".join(done.read_text().splitlines(keepends=True)[:-2]))
            rest = begin()
            self.assertEqual(rest.returncode, 0, rest.stdout[-4000:] + rest.stderr)
            self.assertEqual([line.split("\t")[0] for line in done.read_text().splitlines()], parts)
            self.assertIn("== killed: done before", rest.stdout)
            self.assertIn("== loading (at most", rest.stdout)

    def test_start_on_the_cpu(self):
        with tempfile.TemporaryDirectory() as name:
            data = Path(name) / "data"
            small_gpt2_data(data)
            done, table, _, _ = self.check("--data", data, parts="start")
        self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr)
        self.assertIn("GPT-2's start, bf16: the loss falls | ok |", table)

    def test_the_sanitizers_runs_are_valid(self):
        with tempfile.TemporaryDirectory() as name:
            tool = Path(name) / "compute-sanitizer"
            tool.write_text(SANITIZER)
            tool.chmod(0o755)
            done, table, _, _ = self.check(parts="sanitize", environment={"COMPUTE_SANITIZER": str(tool)})
            tools = (Path(name) / "compute-sanitizer.tools").read_text().split()
        self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr)
        self.assertEqual(set(tools), {"memcheck", "racecheck", "synccheck"})
        self.assertEqual(table.count("| ok |") - 1, len(tools), "each run, and the part")
        self.assertNotIn("no time was left", table)

    def test_a_program_that_fails_is_noticed(self):
        global RUNNER
        kept = RUNNER
        with tempfile.TemporaryDirectory() as name:
            broken = Path(name) / "runner"
            broken.write_text("#!/bin/sh\necho 'error: broken' >&2\nexit 1\n")
            broken.chmod(0o755)
            RUNNER = broken
            try:
                done, table, _, _ = self.check(parts="parity,ranks")
            finally:
                RUNNER = kept
        self.assertEqual(done.returncode, 1)
        self.assertIn("| parity | FAILED: exit code 1 |", table)
        self.assertIn("broken", table)

    def test_wrong_requests(self):
        for flags in (["--parts", "speed"], ["--seconds", "0"], ["--data", "/nowhere"], ["--what"], ["--out"]):
            done, _, _, _ = self.check(*flags)
            self.assertEqual(done.returncode, 2, flags)
            self.assertIn("error: ", done.stderr)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: test.py RUNNER [TESTS]")
    RUNNER = Path(sys.argv.pop(1)).resolve()
    unittest.main(verbosity=2)

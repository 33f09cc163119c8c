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

    def test_bf16_comes_first(self):
        order = [case[2] for case in gpu_bench.cases()]
        self.assertEqual(order[:3], ["bf16"] * 3)
        self.assertEqual(len(set(gpu_bench.cases())), len(gpu_bench.cases()))


class Script(unittest.TestCase):
    def check(self, *flags, parts="parity,bench,ranks,start,kernels"):
        with tempfile.TemporaryDirectory() as name:
            done = subprocess.run([ROOT / "scripts" / "gpu_check.sh", "--cpu", "--out", name, "--scratch", name, "--parts", parts, *flags],
                                  env={"PATH": "/usr/bin:/bin", "RUNNER": str(RUNNER), "PYTHON": sys.executable}, capture_output=True,
                                  text=True, stdin=subprocess.DEVNULL)
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

"""Installs the wheel in a fresh virtual environment, trains with the program in it, and reads the run with `runner_runs`.

Usage: test.py WHEEL [--transformers]   (with --transformers also load_hf, which needs torch from PyPI)
"""

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

EXPERIMENT = """\
version: 1
name: micro
model: {family: gpt2, layers: 1, heads: 2, d_model: 32, context_length: 32}
data: {train: {builtin: {corpus: stories}}, validation: {fraction: 0.1}, tokenizer: {bytes: {}}}
batch: {sequences: 4}
train: {steps: 6}
eval: {every: 3, loss: {batches: 2}}
checkpoint: {every: 3}
"""

READ = """\
import sys
import numpy, pandas, polars, runner_runs

(run,) = runner_runs.runs()
assert (run.name, run.status, run.step, run.steps) == ("micro", "done", 6, 6), run
assert runner_runs.run("micro") == run and runner_runs.run(run) == run

frame = runner_runs.metrics("micro")
train = frame[frame.kind == "train"]
assert list(train.step) == [1, 2, 3, 4, 5, 6] and train.loss.iloc[-1] == run.loss, frame
assert frame[frame.kind == "eval"].val_loss.iloc[-1] == run.val_loss, frame
other = runner_runs.metrics(run, frames="polars")
assert other["loss"].drop_nulls().to_list() == train.loss.to_list(), other

for format, file in [("llmc", "s_train_000001.bin"), ("nanogpt", "train.bin"), ("npy", "s_train_000001.npy")]:
    tokens = runner_runs.read_tokens(f"shards-{format}/{file}")
    text = tokens if format == "nanogpt" else tokens[1:]  # the others start with the end-of-text token
    assert tokens.dtype == numpy.uint16 and bytes(text[:50].astype("u1")) == TEXT[:50], (format, tokens)
    assert len(tokens) > 10_000, (format, tokens)
with open("cut.bin", "wb") as cut:
    cut.write(open("shards-llmc/s_train_000001.bin", "rb").read()[:-2])
for wrong, error in [
    (lambda: runner_runs.read_tokens("cut.bin"), ValueError),
    (lambda: runner_runs.run("nothing"), runner_runs.RunnerError),
    (lambda: runner_runs.metrics("micro", frames="arrow"), ValueError),
]:
    try:
        wrong()
    except error as told:
        print(f"{error.__name__}: {told}")
    else:
        raise AssertionError("no error")
if "--transformers" in sys.argv:
    import torch

    model, tokenizer = runner_runs.load_hf("micro", best=True)
    assert model.config.n_layer == 1, model.config
    rows = torch.tensor([list(b"Once upon a time there was a dog")])
    assert model(rows, labels=rows).loss.isfinite()
"""


def main() -> None:
    wheel, options = Path(sys.argv[1]).resolve(), sys.argv[2:]
    with tempfile.TemporaryDirectory() as folder:
        venv.create(os.path.join(folder, "venv"), with_pip=True)
        bin_folder = os.path.join(folder, "venv", "Scripts" if os.name == "nt" else "bin")
        # No program but the wheel's: neither the path nor the variables of this shell are used.
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("RUNNER_", "PYTHON"))}
        environment.update(PATH=bin_folder + os.pathsep + "/usr/bin:/bin", RUNNER_CACHE=os.path.join(folder, "cache"))

        def do(program: str, *arguments: str) -> None:
            subprocess.run([os.path.join(bin_folder, program), *arguments], cwd=folder, env=environment, check=True)

        packages = ["pandas", "polars", "numpy"] + (["torch", "transformers"] if "--transformers" in options else [])
        do("python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel), *packages)
        text = "Once upon a time there was a dog named Ada. She liked the sea.\n" * 400
        Path(folder, "micro.yaml").write_text(EXPERIMENT)
        Path(folder, "text.txt").write_text(text)
        Path(folder, "read.py").write_text(f"TEXT = {text[:50].encode()!r}\n{READ}")
        do("runner", "--version")
        do("runner", "apply", "micro.yaml", "--quiet")
        for format in ["llmc", "nanogpt", "npy"]:
            shards = ["--to", format, f"shards-{format}", "--quiet"]
            if format != "nanogpt":
                shards += ["--name", "s", "--validation", "0.1"]
            do("runner", "data", "prepare", "text.txt", "--tokenizer", "bytes", *shards)
        do("python", "read.py", *options)
    print("the wheel works in a fresh environment")


if __name__ == "__main__":
    main()

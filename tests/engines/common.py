"""What the tests of every engine share: the experiment, and the folder in which the program runs."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNNER = str(Path(sys.argv[1]).resolve())

# A failure must end all ranks within this many seconds.
MAX_SECONDS_TO_END = 60


class NotInstalled(Exception):
    """The command that installs what is missing."""


def experiment(parallel, steps):
    return f"""version: 1
name: engine
model: {{family: gpt2, layers: 4, heads: 2, d_model: 64, context_length: 64, dropout: 0.1}}
data: {{tokenizer: {{chars: {{}}}}, train: {{text: {{files: [input.txt]}}}}, validation: {{fraction: 0.1}}}}
batch: {{sequences: 8, micro_batch: 2}}
train: {{steps: {steps}}}
eval: {{every: 5, at_start: true, loss: {{batches: 3}}, samples: {{prompts: ["1"], count: 1, max_tokens: 4}}}}
checkpoint: {{every: 5, keep: 2}}
parallel: {parallel}
"""


class Folder:
    """A temporary folder with an experiment, in which programs run."""

    def __init__(self, parallel, steps):
        self.temporary = tempfile.TemporaryDirectory()
        self.path = Path(self.temporary.name)
        (self.path / "input.txt").write_text(" ".join(map(str, range(4000))))
        (self.path / "exp.yaml").write_text(experiment(parallel, steps))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.temporary.cleanup()

    def start(self, launcher, runs, **options):
        """Starts `runner apply` under the launcher, with the run in the folder `runs`."""
        command = [*launcher, RUNNER, "apply", "exp.yaml", "--threads", "2", "--runs", runs]
        environment = {**os.environ, "RUNNER_CACHE": str(self.path / "cache"), **options}
        return subprocess.Popen(command, cwd=self.path, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def run(self, launcher, runs):
        """Runs to the end, and returns the final hash."""
        process = self.start(launcher, runs)
        printed, _ = process.communicate(timeout=600)
        assert process.returncode == 0, f"{launcher}: exit code {process.returncode}\n{printed}"
        return self.final_hash(runs)

    def run_dir(self, runs):
        return next(path.parent for path in (self.path / runs).glob("*/manifest.json"))

    def manifest(self, runs):
        return json.loads((self.run_dir(runs) / "manifest.json").read_text())

    def final_hash(self, runs):
        return json.loads((self.run_dir(runs) / "summary.json").read_text())["final_hash"]


def wait_for(what, condition, seconds=120):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"{what}: not within {seconds} s")


def is_rank(process):
    """True if the process with this number runs the program."""
    try:
        return str(Path(f"/proc/{process}/exe").readlink()) == RUNNER
    except OSError:
        return False


def process_of_rank(folder, variable, rank):
    """The process of `rank` by its launcher's `variable`."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            variables = (process / "environ").read_bytes().split(b"\0")
            is_meant = f"{variable}={rank}".encode() in variables and (process / "cwd").readlink() == folder.path
            if is_meant and is_rank(process.name):
                return int(process.name)
        except OSError:
            continue
    return None


def as_root():
    """The flag without which Open MPI's mpirun refuses to work for root."""
    return ["--allow-run-as-root"] if os.geteuid() == 0 else []


def find(program, packages, installer="apt-get install"):
    if path := shutil.which(program):
        return path
    raise NotInstalled(f"{installer} {packages}")

"""Runs under the launchers that clusters have, as the distribution's packages bring them.

    test.py RUNNER [ENGINE...]

Each engine prints what ran. One that is not installed is skipped, with the command that
installs it; if it was named, it fails instead.
"""

import os
import signal
import sys
import time

from common import MAX_SECONDS_TO_END, Folder, NotInstalled, as_root, find, process_of_rank, wait_for
from network import network, torchrun_on_two_nodes
from slurm import slurm

# Every layout of several ranks, and its number of ranks.
LAYOUTS = {
    "ddp of 2": ("{mode: ddp, replicas: 2}", 2),
    "ddp of 4": ("{mode: ddp, replicas: 4}", 4),
    "dp of 2": ("{mode: dp, replicas: 2}", 2),
    "pipeline of 2": ("{mode: pipeline, pipeline: {stages: 2}}", 2),
    "2 replicas of a pipeline of 2": ("{mode: pipeline, replicas: 2, pipeline: {stages: 2}}", 4),
    "ddp of 2, sharded gradients": ("{mode: ddp, replicas: 2, bucket_mb: 0.1, shard: gradients}", 2),
    "ddp of 4, sharded parameters": ("{mode: ddp, replicas: 4, bucket_mb: 0.1, shard: parameters}", 4),
    "2 replicas of a pipeline of 2, sharded optimizer": (
        "{mode: pipeline, replicas: 2, shard: optimizer, pipeline: {stages: 2}}",
        4,
    ),
}


def torch_ranks(folder, ranks, runs):
    """The same ranks, by the variables that torchrun sets."""
    started = []
    for rank in range(ranks):
        place = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "20777"}
        started.append(folder.start([], runs, **place))
    printed = [process.communicate(timeout=600)[0] for process in started]
    assert all(process.returncode == 0 for process in started), printed
    return folder.final_hash(runs)


def mpirun(launcher, rank_variable, reports_killed_ranks):
    """One mpirun: bits of every layout, a rank that fails, is killed or is asked to stop, and the resumed runs.

    A launcher that kills the other ranks at once leaves rank 0 no time to report which rank was lost.
    """
    for name, (parallel, ranks) in LAYOUTS.items():
        with Folder(parallel, 10) as folder:
            threads_or_processes = folder.run([], "local")
            torch = torch_ranks(folder, ranks, "torch")
            launched = folder.run([*launcher, "-n", str(ranks)], "launched")
            assert threads_or_processes == torch == launched, (name, threads_or_processes, torch, launched)
            print(f"  {name}: the final hash of local ranks, of torchrun's variables and of mpirun is {launched[:12]}")

    with Folder("{mode: ddp, replicas: 2}", 10) as folder:
        # Rank 1 has a different file.
        own_steps = ["sh", "-c", f'exec "$@" --set train.steps=1${rank_variable}', "sh"]
        process = folder.start([*launcher, "-n", "2", *own_steps], "launched")
        printed, _ = process.communicate(timeout=MAX_SECONDS_TO_END)
        errors = [line for line in printed.splitlines() if line.startswith("error: ")]
        assert process.returncode != 0 and len(errors) == 1 and "rank 1 has the plan" in errors[0], printed
        print(f"  different plans: {errors[0]}")

    for stop in [signal.SIGKILL, signal.SIGTERM]:
        with Folder("{mode: ddp, replicas: 4}", 60) as folder:
            whole = folder.run([], "local")
            process = folder.start([*launcher, "-n", "4"], "launched")
            wait_for("the first checkpoint", lambda: list((folder.path / "launched").glob("*/checkpoints/*/")))
            rank = wait_for("rank 2", lambda: process_of_rank(folder, rank_variable, 2))
            started = time.monotonic()
            os.kill(rank, stop)
            printed, _ = process.communicate(timeout=MAX_SECONDS_TO_END)
            seconds = time.monotonic() - started
            assert process.returncode != 0, printed
            if stop == signal.SIGKILL:
                lost = [line for line in printed.splitlines() if "rank 2 was lost: " in line]
                assert lost or not reports_killed_ranks, printed
                print(f"  rank 2 killed: all ended after {seconds:.1f} s: {(lost or ['the launcher killed them at once'])[0]}")
            else:
                assert "interrupted" in printed, printed
                print(f"  SIGTERM to rank 2: all stopped after {seconds:.1f} s, mpirun's exit code is {process.returncode}")
            resumed = folder.run([*launcher, "-n", "4"], "launched")
            assert resumed == whole, (stop, resumed, whole)
            print(f"  the resumed run ends in the bits of a whole one: {resumed[:12]}")


def open_mpi():
    program = find("mpirun.openmpi", "openmpi-bin")
    mpirun([program, *as_root(), "--oversubscribe", "--bind-to", "none"], "OMPI_COMM_WORLD_RANK", True)


def mpich():
    mpirun([find("mpirun.mpich", "mpich")], "PMI_RANK", False)


ENGINES = {"open_mpi": open_mpi, "mpich": mpich, "network": network, "torchrun": torchrun_on_two_nodes, "slurm": slurm}


def main():
    names = sys.argv[2:] or list(ENGINES)
    skipped = []
    for name in names:
        print(name, flush=True)
        try:
            ENGINES[name]()
        except NotInstalled as command:
            if sys.argv[2:]:
                raise SystemExit(f"{name} is not installed: {command}")
            skipped.append(f"{name} ({command})")
    print("ran: " + ", ".join(name for name in names if not any(entry.startswith(f"{name} ") for entry in skipped)))
    if skipped:
        print("not installed: " + ", ".join(skipped))


if __name__ == "__main__":
    main()

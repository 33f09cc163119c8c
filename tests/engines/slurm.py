"""A Slurm of two emulated nodes on this machine, in a temporary folder: ranks, runs and sweeps as its jobs."""

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from common import RUNNER, Folder, find, wait_for

PACKAGES = "slurm-wlm munge"
NODES = 2
# A run of so many seconds has not ended when it is warned, within its first half minute.
SECONDS_OF_A_LONG_RUN = 60
# Slurm looks for jobs to warn every 30 seconds.
SHORT_LIMIT = ["--job-option=--time=1", "--job-option=--signal=B:USR1@55"]
# The credential of a requeued job's first start must have expired before it starts again.
CREDENTIAL_SECONDS = 5

CONFIGURATION = """
ClusterName=engines
SlurmctldHost=localhost(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire={credential_seconds}
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
KillWait=5
SchedulerParameters=sched_interval=2,batch_sched_delay=1
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=4 RealMemory=16000 State=UNKNOWN
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=9 PreemptMode=OFF
"""


def free_ports(count):
    """A number of free ports in a row."""
    for first in range(26800, 32000 - count, count):
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return first
        except OSError:
            continue
    raise AssertionError("no free ports")


class Slurm:
    """The daemons of a Slurm. They end with the block that they are used in, however it ends."""

    def __init__(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name)
        self.daemons = []
        self.environment = {
            **os.environ,
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            # The emulated nodes have no names that can be looked up.
            "MASTER_ADDR": "127.0.0.1",
        }

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self):
        folder = self.folder
        folder.chmod(0o755)
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        for name in ["state", *(f"n{node}" for node in range(1, NODES + 1))]:
            (folder / name).mkdir()
        port = free_ports(1 + NODES)
        (folder / "slurm.conf").write_text(CONFIGURATION.format(
            user=subprocess.check_output(["id", "-un"], text=True).strip(), port=port, folder=folder, nodes=NODES,
            host=socket.gethostname().split(".")[0], first=port + 1, last=port + NODES, credential_seconds=CREDENTIAL_SECONDS,
        ))
        munge = [f"--{name}={folder}/{file}" for name, file in {
            "socket": "munge.socket", "key-file": "munge.key", "pid-file": "munged.pid", "log-file": "munged.log", "seed-file": "munged.seed",
        }.items()]
        self.daemon(["munged", "--foreground", "--force", *munge])
        self.wait_for("munged", lambda: (folder / "munge.socket").exists())
        self.daemon(["slurmctld", "-D"])
        for node in range(1, NODES + 1):
            self.daemon(["slurmd", "-D", "-N", f"n{node}"])
        self.wait_for("the nodes", lambda: self.command("sinfo", "--noheader", "--format=%T %D").split() == ["idle", str(NODES)])

    def daemon(self, command):
        output = open(self.folder / f"{command[0]}.out", "ab")
        self.daemons.append(subprocess.Popen(
            [find(command[0], PACKAGES), *command[1:]], env=self.environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True,
        ))

    def wait_for(self, what, condition):
        try:
            wait_for(what, condition, 60)
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.logs()}") from late

    def logs(self):
        """The last lines of the daemons' logs."""
        tails = [f"--- {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-15:]) for path in sorted(self.folder.glob("*.log"))]
        return "\n".join(tails)

    def command(self, *command):
        """The output of a command of Slurm; empty if it fails."""
        return subprocess.run(command, env=self.environment, text=True, capture_output=True).stdout

    def __exit__(self, *_):
        # Jobs are processes of slurmstepd, which no daemon ends with itself.
        if len(self.daemons) > 1:
            self.command("scancel", "--me")
            end = time.monotonic() + 20
            while time.monotonic() < end and self.command("squeue", "--noheader"):
                time.sleep(0.2)
        for daemon in reversed(self.daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in self.daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self.temporary.cleanup()


class SlurmFolder(Folder):
    """A folder in which programs run that call the commands of `slurm`."""

    def __init__(self, slurm, parallel, steps):
        super().__init__(parallel, steps)
        self.slurm = slurm
        self.environment = {**slurm.environment, "RUNNER_CACHE": str(self.path / "cache")}

    def begin(self, *arguments, launcher=(), errors=subprocess.STDOUT, **variables):
        """Starts the program with `arguments` under the launcher."""
        return subprocess.Popen(
            [*launcher, RUNNER, *arguments], cwd=self.path, env={**self.environment, **variables}, text=True,
            stdout=subprocess.PIPE, stderr=errors,
        )

    def printed(self, *arguments, **options):
        """What the program prints, which must succeed."""
        process = self.begin(*arguments, **options)
        printed, errors = process.communicate(timeout=300)
        assert process.returncode == 0, f"{arguments}: exit code {process.returncode}\n{printed}{errors}\n{self.output_of_jobs()}{self.slurm.logs()}"
        return printed

    def json(self, *arguments):
        return json.loads(self.printed(*arguments, "--json", errors=subprocess.PIPE))

    def status(self):
        """The status of the only run."""
        [run] = self.json("runs")
        return run["status"]

    def wait_until_queue_is_empty(self):
        wait_for("the end of all jobs", lambda: not self.slurm.command("squeue", "--noheader"), 180)

    def output_of_jobs(self):
        logs = [*self.path.glob("runs/*/job.log"), *self.path.glob("runs/sweeps/*/points/*.job")]
        return "".join(f"--- {log}\n{log.read_text(errors='replace')}" for log in logs)

    def results(self, runs):
        """Point, status, steps and objective of each point of the newest sweep."""
        rows = self.json("sweep", "results", "--runs", runs)["results"]["rows"]
        return sorted((row["point"], row["status"], row["steps"], row["objective"]) for row in rows)


def ranks_of_srun(slurm):
    """srun starts ranks on one node and on two: the bits of local ranks."""
    for ranks, layout in [(2, "{mode: ddp, replicas: 2}"), (4, "{mode: pipeline, replicas: 2, pipeline: {stages: 2}}")]:
        with SlurmFolder(slurm, layout, 10) as folder:
            local = folder.run([], "local")
            for nodes in [1, 2]:
                name = f"nodes: {nodes}"
                runs = f"nodes-{nodes}"
                srun = ["srun", f"--ntasks={ranks}", f"--nodes={nodes}"]
                printed = folder.printed("apply", "exp.yaml", "--threads", "2", "--runs", runs, launcher=srun, RUNNER_TOKEN="0123456789abcdef")
                found = folder.final_hash(runs)
                assert found == local and "do not share a secret" not in printed, (name, found, local, printed)
                print(f"  {ranks} ranks of srun, {name}: the final hash is that of local ranks, {found[:12]}", flush=True)


def requeued_run(slurm):
    """A run whose time limit is too short is warned, saves and is requeued. It ends in the bits of an uninterrupted one."""
    layout = "{mode: ddp, replicas: 2}"
    with SlurmFolder(slurm, layout, 100) as folder:
        started = time.monotonic()
        folder.run([], "local")
        steps = int(100 * SECONDS_OF_A_LONG_RUN / (time.monotonic() - started))
    with SlurmFolder(slurm, layout, steps) as folder:
        submit = ["submit", "exp.yaml", "--nodes", "2", "--threads", "2", *SHORT_LIMIT]
        # All processors are taken, so the job has to wait.
        blocking = subprocess.Popen(["srun", "--nodes=2", "--ntasks=2", "--cpus-per-task=4", "sleep", "300"], env=slurm.environment, stderr=subprocess.DEVNULL)
        wait_for("the job that blocks", lambda: "RUNNING" in slurm.command("squeue", "--noheader", "--format=%T"))
        printed = folder.printed(*submit)
        assert "submitted" in printed and "2 ranks on 2 nodes" in printed, printed
        assert "already has job" in folder.printed(*submit), "submitted twice"
        assert folder.status() == "pending"
        slurm.command("scancel", "--me", "--state=RUNNING")
        blocking.wait(30)
        wait_for("the start of the run", lambda: folder.status() == "running")
        assert "already has job" in folder.printed(*submit), "submitted while it runs"
        wait_for("the requeue of the run", lambda: folder.status() == "requeued", 90)
        [run] = folder.json("runs")
        assert 0 < run["step"] < run["steps"], run
        print(f"  a submitted run was warned before its time limit, and saved step {run['step']} of {run['steps']}", flush=True)
        wait_for("the end of the run", lambda: folder.status() == "done", 180)
        folder.wait_until_queue_is_empty()
        requeued = folder.final_hash("runs")
        sessions = len(json.loads((folder.run_dir("runs") / "manifest.json").read_text())["sessions"])
        assert sessions > 1, folder.output_of_jobs()
        assert "up to date" in folder.printed(*submit)
        whole = folder.run([], "local")
        assert requeued == whole, (requeued, whole)
        print(f"  Slurm started it {sessions} times, and it ended in the bits of a whole run: {whole[:12]}", flush=True)


def preempted_run(slurm):
    """A job of a higher priority takes the place of a run, which saves within its grace time and is requeued. `scancel` still ends it."""
    with SlurmFolder(slurm, "{mode: single}", 1_000_000) as folder:
        folder.printed("submit", "exp.yaml", "--threads", "1")

        def wait_for_steps():
            wait_for("steps of the run", lambda: folder.status() == "running" and folder.json("runs")[0]["step"] > 0)
            return folder.json("runs")[0]["step"]

        wait_for_steps()
        urgent = ["srun", "--partition=urgent", "--nodes=2", "--ntasks=2", "--cpus-per-task=4", "true"]
        subprocess.run(urgent, env=slurm.environment, stderr=subprocess.DEVNULL, timeout=120, check=True)
        [job] = slurm.command("squeue", "--noheader", "--Format=JobID:20,RestartCnt:8").splitlines()
        number, restarts = job.split()
        assert restarts == "1", (job, folder.output_of_jobs())
        step = folder.json("runs")[0]["step"]
        assert wait_for_steps() >= step > 0
        slurm.command("scancel", number)
        folder.wait_until_queue_is_empty()
        assert folder.status() == "interrupted", folder.output_of_jobs()
        print(f"  preempted after step {step}: saved, requeued and resumed; scancel ended it for good", flush=True)


def cancelled_run(slurm):
    """`scancel` lets a run save, and the run is not started again. The same command submits the rest."""
    with SlurmFolder(slurm, "{mode: ddp, replicas: 2}", 150) as folder:
        folder.printed("submit", "exp.yaml", "--threads", "2")
        wait_for("a checkpoint", lambda: list((folder.path / "runs").glob("*/checkpoints/*/")))
        slurm.command("scancel", "--me")
        folder.wait_until_queue_is_empty()
        [run] = folder.json("runs")
        assert run["status"] == "interrupted" and 0 < run["step"] < run["steps"], (run, folder.output_of_jobs())
        folder.printed("submit", "exp.yaml", "--threads", "2")
        folder.wait_until_queue_is_empty()
        assert folder.status() == "done", folder.output_of_jobs()
        assert folder.final_hash("runs") == folder.run([], "local")
        print(f"  scancel: the run saved step {run['step']}; submitted again, it ended in the bits of a whole run", flush=True)


SWEEP = """sweep:
  name: s
  base: exp.yaml
  parallel: 2
  grid: {optimizer.adamw.lr: [1e-4, 1e-3, 3e-3, 1e-2]}
"""


def sweeps(slurm):
    """A sweep whose points have one rank, and one whose points have two on two nodes: the results of the local sweeps."""
    for ranks, layout, flags in [("one rank", "{mode: single}", []), ("two ranks", "{mode: ddp, replicas: 2}", ["--nodes", "2"])]:
        with SlurmFolder(slurm, layout, 10) as folder:
            (folder.path / "s.yaml").write_text(SWEEP)
            printed = folder.printed("sweep", "s.yaml", "--launcher", "slurm", "--threads", "2", *flags)
            assert "4 points submitted" in printed, printed
            folder.wait_until_queue_is_empty()
            folder.printed("sweep", "s.yaml", "--runs", "local", "--threads", "2", "--quiet")
            on_slurm, local = folder.results("runs"), folder.results("local")
            assert on_slurm == local and all(row[1] == "done" for row in local), (on_slurm, local, folder.output_of_jobs())
            print(f"  a sweep of 4 points of {ranks}: the results of a local sweep", flush=True)


def requeued_point(slurm):
    """One job of an array has the number of the array. It is warned, and requeues itself alone."""
    with SlurmFolder(slurm, "{mode: single}", 1_000_000) as folder:
        # The last job of an array to start has its number.
        (folder.path / "s.yaml").write_text(SWEEP.replace("1e-4, 1e-3, ", ""))
        folder.printed("sweep", "s.yaml", "--launcher", "slurm", "--threads", "1")
        columns = "--Format=JobID:20,ArrayJobID:20,ArrayTaskID:20,StateCompact:8,RestartCnt:8"

        def jobs():
            return [line.split() for line in slurm.command("squeue", "--noheader", "--array", columns).splitlines()]

        wait_for("two runs", lambda: [run for run in folder.json("runs") if run["step"] > 0][1:])
        [(_, array, warned, _, _)] = [job for job in jobs() if job[0] == job[1] and job[3] == "R"]
        # As Slurm warns the script of a job before its time limit.
        slurm.command("scancel", "--batch", "--signal=USR1", f"{array}_{warned}")
        wait_for("the requeue of the point", lambda: any(int(job[4]) > 0 for job in jobs()))
        restarts = {task: (state, int(count)) for _, _, task, state, count in jobs()}
        assert restarts.pop(warned)[1] == 1, restarts
        assert [job for job in restarts.values() if job == ("R", 0)] and not any(count for _, count in restarts.values()), restarts
        slurm.command("scancel", "--me")
        folder.wait_until_queue_is_empty()
        print(f"  point {warned}, whose job has the number of the array, was requeued alone; the others: {restarts}", flush=True)


def early_stopping(slurm):
    """ASHA whose driver is killed several times: the results of the local sweep, and nothing is submitted twice."""
    with SlurmFolder(slurm, "{mode: single}", 20) as folder:
        (folder.path / "s.yaml").write_text(SWEEP + "  early_stop: {asha: {min_steps: 5, reduction: 2}}\n")
        folder.printed("sweep", "s.yaml", "--runs", "local", "--threads", "2", "--quiet")
        # Jobs note what they train, and take so long that the driver is killed while it waits for them.
        template = (Path(__file__).parents[2] / "templates/slurm.sh.j2").read_text()
        assert "\nsrun " in template
        (folder.path / "templates").mkdir()
        noted = '\necho "$SLURM_ARRAY_TASK_ID" {{ command }} >> submitted.txt\nsleep 1\nsrun '
        (folder.path / "templates/slurm.sh.j2").write_text(template.replace("\nsrun ", noted))
        command = ["sweep", "s.yaml", "--launcher", "slurm", "--threads", "2"]
        kills = 0
        for seconds in [1.0, 1.6, 2.3]:
            driver = folder.begin(*command)
            time.sleep(seconds)
            kills += driver.poll() is None
            driver.kill()
            driver.communicate()
        assert kills, "the driver was never killed"
        printed = folder.printed(*command)
        folder.wait_until_queue_is_empty()
        on_slurm, local = folder.results("runs"), folder.results("local")
        assert on_slurm == local, (on_slurm, local, printed, folder.output_of_jobs())
        submitted = (folder.path / "submitted.txt").read_text().splitlines()
        assert len(submitted) == len(set(submitted)), submitted
        print(f"  ASHA: the results of a local sweep, in {len(submitted)} jobs, with {kills} kills of the driver", flush=True)


def slurm():
    # Daemons are installed there.
    os.environ["PATH"] += ":/usr/sbin"
    for program in ["slurmctld", "slurmd", "munged", "srun"]:
        find(program, PACKAGES)
    with Slurm() as daemons:
        ranks_of_srun(daemons)
        requeued_run(daemons)
        preempted_run(daemons)
        cancelled_run(daemons)
        sweeps(daemons)
        requeued_point(daemons)
        early_stopping(daemons)

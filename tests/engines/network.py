"""Runs on two machines, which are network namespaces that a virtual cable joins: the cable is cut, or delays and loses what passes."""

import fcntl
import os
import random
import select
import shlex
import signal
import struct
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from common import MAX_SECONDS_TO_END, Folder, NotInstalled, as_root, find, is_rank, process_of_rank, wait_for

NODES = range(2)
RANKS_PER_NODE = 2
RANKS = [(node, local_rank) for node in NODES for local_rank in range(RANKS_PER_NODE)]
PARALLEL = "{mode: ddp, replicas: 4}"

# The delay of a bad cable in each direction, and the part of its packets that it loses.
DELAY_SECONDS = 0.02
LOSS = 0.01


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class Cable:
    """Two network namespaces, `node-0` and `node-1`, and the cable between them. They are removed however the test ends."""

    count = 0

    def __init__(self):
        Cable.count += 1
        self.namespaces = [f"runner-{os.getpid()}-{Cable.count}-{node}" for node in NODES]
        self.relay = None

    def __enter__(self):
        try:
            for namespace in self.namespaces:
                ip("netns", "add", namespace)
            left, right = self.namespaces
            ip("link", "add", "cable", "netns", left, "type", "veth", "peer", "name", "cable", "netns", right)
            self.connect()
        except BaseException:
            self.__exit__()
            raise
        return self

    def connect(self):
        for node, namespace in enumerate(self.namespaces):
            ip("-n", namespace, "address", "add", f"{self.address(node)}/24", "dev", "cable")
            ip("-n", namespace, "link", "set", "lo", "up")
            ip("-n", namespace, "link", "set", "cable", "up")

    def __exit__(self, *_):
        if self.relay:
            self.relay.close()
        self.kill_all()
        for namespace in self.namespaces:
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True)

    def processes(self):
        """The processes on both nodes."""
        listed = [subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True) for name in self.namespaces]
        return [int(process) for pids in listed for process in pids.stdout.split()]

    def ranks(self):
        return [process for process in self.processes() if is_rank(process)]

    def kill_all(self):
        for process in self.processes():
            os.kill(process, signal.SIGKILL)

    @staticmethod
    def address(node):
        return f"10.77.0.{node + 1}"

    def on(self, node):
        """The beginning of a command that runs on the node."""
        named = ["unshare", "--uts", "sh", "-c", f'hostname node-{node} && exec "$@"', "sh"]
        return ["ip", "netns", "exec", self.namespaces[node], *named]

    def cut(self):
        ip("-n", self.namespaces[1], "link", "set", "cable", "down")

    def mend(self):
        ip("-n", self.namespaces[1], "link", "set", "cable", "up")

    def make_bad(self):
        """Makes the cable delay and lose packets. Returns what does it; `None` if nothing can."""
        netem = f"qdisc add dev cable root netem delay {DELAY_SECONDS * 1000:.0f}ms loss {LOSS:.0%}"
        commands = [["tc", "-n", namespace, *netem.split()] for namespace in self.namespaces]
        if all(subprocess.run(command, capture_output=True).returncode == 0 for command in commands):
            return "netem"
        # The kernel has no netem.
        if not os.access("/dev/net/tun", os.W_OK):
            return None
        ip("-n", self.namespaces[0], "link", "delete", "cable")
        self.relay = Relay(self.namespaces)
        self.connect()
        return "a relay, because the kernel has no netem"


class Relay:
    """A bad cable between two namespaces: a thread that passes on the packets of two virtual network cards."""

    def __init__(self, namespaces):
        self.cards = [self.card(namespace) for namespace in namespaces]
        self.is_closed = False
        self.thread = threading.Thread(target=self.pass_on)
        self.thread.start()

    @staticmethod
    def card(namespace):
        tun_set_interface, tap, without_header = 0x400454CA, 0x0002, 0x1000
        card = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        name = f"r{namespace[-16:]}"[:15]
        fcntl.ioctl(card, tun_set_interface, struct.pack("16sH22s", name.encode(), tap | without_header, b""))
        ip("link", "set", name, "netns", namespace, "name", "cable")
        return card

    def pass_on(self):
        chance = random.Random(1)
        under_way = []
        while not self.is_closed:
            wait = max(0, under_way[0][0] - time.monotonic()) if under_way else 0.1
            for card in select.select(self.cards, [], [], min(wait, 0.1))[0]:
                packet = os.read(card, 1 << 16)
                if chance.random() >= LOSS:
                    to = self.cards[1 - self.cards.index(card)]
                    under_way.append((time.monotonic() + DELAY_SECONDS, to, packet))
            while under_way and under_way[0][0] <= time.monotonic():
                _, to, packet = under_way.pop(0)
                try:
                    os.write(to, packet)
                except OSError:
                    pass  # The packet is lost, like others.

    def close(self):
        self.is_closed = True
        self.thread.join()
        for card in self.cards:
            os.close(card)


def variables(cable, folder, runs):
    """Starts each rank by the variables that launchers set, without a launcher."""
    started = []
    for rank, (node, local_rank) in enumerate(RANKS):
        place = {"RANK": str(rank), "WORLD_SIZE": str(len(RANKS)), "LOCAL_RANK": str(local_rank)}
        started.append(folder.start(cable.on(node), runs, **place, MASTER_ADDR=cable.address(0), MASTER_PORT="20777", RUNNER_TOKEN="t"))
    return started


def torchrun(max_restarts):
    """Starts one torchrun on each node, which starts the ranks."""
    program = find("torchrun", "torch", "pip install")

    def start(cable, folder, runs):
        size = [f"--nnodes={len(NODES)}", f"--nproc-per-node={RANKS_PER_NODE}", f"--max-restarts={max_restarts}"]
        at = [f"--master-addr={cable.address(0)}", "--master-port=29400", "--no-python"]
        launchers = [[*cable.on(node), program, *size, f"--node-rank={node}", *at] for node in NODES]
        return [folder.start(launcher, runs, RUNNER_TOKEN="t") for launcher in launchers]

    return start


def open_mpi(cable, folder, runs):
    """Starts one mpirun, whose agent enters the namespace of the other node in place of ssh."""
    agent = folder.path / "agent"
    agent.write_text("#!/bin/sh\nshift\n" + " ".join(["exec", *map(shlex.quote, cable.on(1)), "sh", "-c", '"$*"']) + "\n")
    agent.chmod(0o755)
    hosts = ",".join(f"{cable.address(node)}:{RANKS_PER_NODE}" for node in NODES)
    wires = ["btl", "tcp,self", "btl_tcp_if_include", "cable", "oob_tcp_if_include", "cable", "plm_rsh_agent", str(agent)]
    settings = [word for pair in zip(wires[::2], wires[1::2]) for word in ("--mca", *pair)]
    # The namespaces have no name service.
    passed_on = ["-x", "RUNNER_CACHE", "-x", f"MASTER_ADDR={cable.address(0)}"]
    command = ["mpirun.openmpi", *as_root(), "--bind-to", "none", "-H", hosts, *passed_on, *settings]
    return [folder.start([*cable.on(0), *command], runs)]


def finish(processes, seconds=120):
    """Waits for their end. Returns the exit codes, and what they printed."""
    end = time.monotonic() + seconds
    printed = [process.communicate(timeout=max(1, end - time.monotonic()))[0] for process in processes]
    return [process.returncode for process in processes], printed


def await_checkpoint(folder, runs):
    wait_for("the first checkpoint", lambda: list((folder.path / runs).glob("*/checkpoints/*/")))


def final_hash(folder, runs, processes):
    codes, printed = finish(processes)
    assert not any(codes), (codes, *printed)
    return folder.final_hash(runs)


def cut(name, start):
    """The bits of two nodes, and of a run that continues after the cable was cut."""
    lines = []
    with Folder(PARALLEL, 100) as folder, Cable() as cable:
        whole = folder.run([], "local")
        over_cable = final_hash(folder, "whole", start(cable, folder, "whole"))
        assert over_cable == whole, (name, over_cable, whole)
        lines.append(f"{name}: 2 nodes of 2 ranks end in the bits of local ranks, {whole[:12]}")

        processes = start(cable, folder, "cut")
        await_checkpoint(folder, "cut")
        cable.cut()
        started = time.monotonic()
        wait_for("the end of all ranks", lambda: not cable.ranks(), MAX_SECONDS_TO_END)
        seconds = time.monotonic() - started
        if start is open_mpi:
            # It waits for its daemon on the other node.
            cable.kill_all()
        codes, printed = finish(processes)
        errors = [line for text in printed for line in text.splitlines() if line.startswith("error: ")]
        # What ranks of the other node print does not reach an mpirun.
        lost = ["rank 2 on node-1 was lost: ", "rank 0 on node-0 was lost: "][: len(processes)]
        named = [error for error in errors if any(text in error for text in lost)]
        assert all(codes) and len(named) == len(errors) == len(lost), (codes, *printed)
        lines.append(f"{name}: the cable was cut, and all ranks ended within {seconds:.0f} s:")
        lines.extend(f"  {error}" for error in errors)
        cable.mend()
        resumed = final_hash(folder, "cut", start(cable, folder, "cut"))
        assert resumed == whole, (name, resumed, whole)
        lines.append(f"{name}: the resumed run ends in the bits of a whole one")
    return lines


def bad_cable():
    with Folder(PARALLEL, 20) as folder, Cable() as cable:
        whole = folder.run([], "local")
        by = cable.make_bad()
        if not by:
            return ["not tried: a delayed and lossy cable, because the kernel has neither netem nor /dev/net/tun"]
        started = time.monotonic()
        assert final_hash(folder, "bad", variables(cable, folder, "bad")) == whole
        seconds = time.monotonic() - started
    what = f"{DELAY_SECONDS * 1000:.0f} ms of delay and {LOSS:.0%} of loss in each direction ({by})"
    return [f"{what}: the same bits after {seconds:.0f} s"]


def kill_under_torchrun():
    with Folder(PARALLEL, 100) as folder, Cable() as cable:
        whole = folder.run([], "local")
        processes = torchrun(1)(cable, folder, "killed")
        await_checkpoint(folder, "killed")
        os.kill(wait_for("rank 3", lambda: process_of_rank(folder, "RANK", 3)), signal.SIGKILL)
        assert final_hash(folder, "killed", processes) == whole
        first, second = folder.manifest("killed")["sessions"]
        assert "rank 3 on node-1 was lost: " in first["error"] and second["restarts"] == 1, (first, second)
    return [f"torchrun --max-restarts=1: {first['error']}; restarted, and ended in the bits of a whole run"]


def concurrently(*scenarios):
    """Each of them waits most of the time."""
    with ThreadPoolExecutor() as pool:
        for result in [pool.submit(*scenario) for scenario in scenarios]:
            for line in result.result():
                print(f"  {line}", flush=True)


def need_namespaces():
    find("ip", "iproute2")
    try:
        with Cable():
            pass
    except subprocess.CalledProcessError as error:
        raise NotInstalled(f"it needs network namespaces: {error.stderr.strip()}") from error


def network():
    need_namespaces()
    scenarios = [(cut, "variables", variables), (bad_cable,)]
    try:
        find("mpirun.openmpi", "openmpi-bin")
        scenarios.append((cut, "Open MPI", open_mpi))
    except NotInstalled as command:
        print(f"  without Open MPI ({command})")
    concurrently(*scenarios)


def torchrun_on_two_nodes():
    need_namespaces()
    concurrently((cut, "torchrun", torchrun(0)), (kill_under_torchrun,))

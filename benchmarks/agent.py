"""Measures what an agent costs its node: CPU and memory of the agent, and of its reader of GPUs.

    python -m benchmarks.agent [--ranks 8] [--gpus 8] [--seconds 60] [--no-heartbeat]

A real tower, a real agent and a real job of small Python programs run on this machine. The driver
of the GPUs is a library of ours, so that the calls themselves cost nothing: what is measured is our
own work. Other load on the machine makes the figures worse: also the processes that others start,
because the agent looks at each new one. Without these, on a machine that others use, too:

    unshare --pid --fork --mount-proc python -m benchmarks.agent

Every figure is worse on a busy machine, where caches are cold and cores shared. So a fixed piece of
work is done once a second in the same time, by a process that sleeps in between as an agent does.
The cost of the agent divided by that of this work is about the same with any load.

Exporters of others run beside it (`benchmarks/agent_peers.py`): of GPUs on the same library, and of
the node. All are scraped every 15 s.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from statistics import fmean

from benchmarks.agent_peers import Running, find_port, running_peers, scraping
from watchtower.drills.environment import Environment
from watchtower.drills.gpus import SPINS, WORKS, Gpus
from watchtower.drills.job import TrainingJob
from watchtower.drills.kernel_log import KernelLogs
from watchtower.drills.launching import Layout, node_name

WORK = [f"{n} (python) S {n} 0 0 " + " ".join(map(str, range(n, n + 45))) for n in range(160)]
"""The fixed piece of work: parse these texts, as an agent parses /proc, and write them as JSON."""

STEPS_BEFORE = 5
START_DEADLINE_S = 120.0
TOGETHER = "agent and reader"


def read_cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read_pss_mb(pid: int) -> float:
    """Return the memory of a process; shared memory counts in parts."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def find_child(parent: int, word: str) -> int | None:
    """Return the pid of the child with this word in its command line, if there is one."""
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        if word in Path(f"/proc/{child}/cmdline").read_text():
            return int(child)
    return None


def work_once() -> float:
    """Do the fixed piece of work. Return its CPU seconds."""
    began = time.process_time()
    parsed = [[int(word) for word in line.rpartition(") ")[2].split()[1:]] for line in WORK]
    json.loads(json.dumps(parsed))
    return time.process_time() - began


def work_on(seconds: float, costs: SimpleQueue[list[float]]) -> None:
    """Do the fixed piece of work once a second, and put its costs into a queue."""
    found, until = [], time.monotonic() + seconds
    while time.monotonic() < until:
        found.append(work_once())
        time.sleep(1.0)
    costs.put(found)


def measure(ranks: int, gpus: int, seconds: float, *, heartbeat: bool) -> None:
    """Run a job on one node, and print the costs of its agent."""
    with tempfile.TemporaryDirectory(prefix="watchtower-bench-") as name:
        folder = Path(name)
        environment = Environment(
            folder,
            nodes=1,
            interval_s=1.0,
            detection={},
            forwarded=False,
            start_deadline_s=START_DEADLINE_S,
        )
        if gpus:
            environment.kernel_logs = KernelLogs(folder)
            environment.gpus = Gpus(folder, gpus)
        port = find_port()
        environment.agent_options = ("--port", str(port))
        with environment:
            job = TrainingJob("bench", "stdlib", Layout(ranks=ranks, nodes=1), folder)
            job.launch({"step_s": 1.0, "beats": heartbeat})
            try:
                _wait_for_steps(job)
                if environment.gpus is not None:
                    shown = [
                        (job.pid(rank), WORKS if rank % 2 else SPINS)
                        for rank in range(min(ranks, gpus))
                    ]
                    environment.gpus.show(node_name(0), shown)
                driver = environment.gpus.environment(node_name(0)) if environment.gpus else {}
                with running_peers(driver, gpus=bool(gpus)) as peers:
                    addresses = [f"127.0.0.1:{port}", *(peer.address for peer in peers)]
                    with scraping(addresses) as answers:
                        time.sleep(5.0)
                        _print(find_child(os.getpid(), f"--port\0{port}"), peers, seconds)
                    for address, count in answers.items():
                        if not count:
                            print(f"  {address} answered no scrape", flush=True)
            finally:
                job.end()


def _wait_for_steps(job: TrainingJob) -> None:
    deadline = time.monotonic() + START_DEADLINE_S
    while (job.log.step or 0) < STEPS_BEFORE:
        if time.monotonic() > deadline:
            raise SystemExit(f"the job does not step:\n{job.tail()}")
        job.poll()
        time.sleep(0.2)


def _print(agent: int, peers: Sequence[Running], seconds: float) -> None:
    own = {"agent": agent, "reader of GPUs": find_child(agent, "gpu.program")}
    own = {what: pid for what, pid in own.items() if pid is not None}
    pids = own | {peer.name: peer.pid for peer in peers}
    costs: SimpleQueue[list[float]] = multiprocessing.SimpleQueue()
    worker = multiprocessing.Process(target=work_on, args=(seconds, costs))
    before = {what: read_cpu_s(pid) for what, pid in pids.items()}
    worker.start()
    time.sleep(seconds)
    cost = {
        what: ((read_cpu_s(pid) - before[what]) / seconds, read_pss_mb(pid))
        for what, pid in pids.items()
    }
    cost[TOGETHER] = tuple(sum(cost[what][n] for what in own) for n in (0, 1))
    total = cost[TOGETHER][0]
    for what, (share, memory) in cost.items():
        is_own = what in own or what == TOGETHER
        # In a short run the kernel may not have counted any of their time.
        beside = "" if is_own or not total else f", {share / total:.1f} times agent and reader"
        print(f"  {what:<16} {share:7.2%} of a core, {memory:5.1f} MB{beside}", flush=True)
    fixed_s = fmean(costs.get())
    worker.join()
    quick_s = min(work_once() for _ in range(50))
    print(
        f"  the fixed work costs {fixed_s:7.2%} of a core ({1e3 * fixed_s:.1f} ms each; "
        f"{1e3 * quick_s:.1f} ms without pauses): agent and reader cost "
        f"{total / fixed_s:.1f} of it",
        flush=True,
    )
    print(f"  load of the machine: {os.getloadavg()[0]:.1f}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--gpus", type=int, default=8, help="0: a node without GPUs")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--no-heartbeat", action="store_true")
    args = parser.parse_args()
    for gpus in sorted({0, args.gpus}):
        print(f"{args.ranks} ranks, {gpus} GPUs, {args.seconds:g} s:", flush=True)
        measure(args.ranks, gpus, args.seconds, heartbeat=not args.no_heartbeat)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Measures what samples of native places cost the agent, and whether they slow their targets.

Cost: CPU of the child and duration of one round over 8 ranks, of blocked ones and of ranks that
spin. Each target has the mappings of a process with torch, if torch is installed.

Harm: a target that maps, touches and unmaps memory all the time, because a reader of mappings takes
the same lock. Its steps are timed alone and while it is sampled every 0.2 s, in turns within one
run. An agent takes a sample of a stalled job twice, and of one without heartbeats every 30 s.

Beside it: one process read by our child, which stops nothing, and by `py-spy dump --native`, which
gives names of functions and stops the process. An agent never does the second.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

from agent.children import ChildRunner, child_command
from agent.dumpers.native_places import NativePlaces
from agent.dumpers.python_stacks import find_py_spy
from agent.procfs import Proc

SAMPLE_EVERY_S = 0.2
IN_A_ROW = 20
"""Steps alone or sampled, before the other."""
PREPARE = """
import sys, time
try:
    import torch
except ImportError:
    pass
print("ready", flush=True)
"""
BLOCKED = PREPARE + "time.sleep(600)"
SPINNING = PREPARE + "while True: pass"
MAPPING = """
import mmap, sys, time
print("ready", flush=True)
for _ in sys.stdin:
    began = time.perf_counter()
    for _ in range(200):
        area = mmap.mmap(-1, 1 << 20)
        area[::4096] = b"x" * 256
        area.close()
    print(time.perf_counter() - began, flush=True)
"""


@contextmanager
def targets(code: str, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Start processes and wait until they have begun."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    try:
        for process in started:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
        yield started
    finally:
        for process in started:
            process.kill()
            process.__exit__(None, None, None)


def measure_cost(
    places: NativePlaces, code: str, ranks: int, rounds: int
) -> tuple[float, float, int]:
    """Return the child's CPU and the duration of a round in ms, and how many places it found."""
    cpu, took, found = [], [], 0
    with targets(code, ranks) as processes:
        pids = [process.pid for process in processes]
        time.sleep(0.5)
        for _ in range(rounds):
            before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            found = len(places.sample(pids, "uid:0"))
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            took.append(time.perf_counter() - began)
            cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return median(cpu) * 1e3, median(took) * 1e3, found


def measure_harm(places: NativePlaces, steps: int) -> tuple[float, float]:
    """Return the median step of the target in ms: alone, and while it is sampled."""
    times: dict[bool, list[float]] = {False: [], True: []}
    wanted, over = threading.Event(), threading.Event()

    def keep_sampling(pid: int) -> None:
        while not over.wait(SAMPLE_EVERY_S):
            if wanted.is_set():
                places.sample([pid], "uid:0")

    with targets(MAPPING, 1) as (process,):
        assert process.stdin
        assert process.stdout
        sampler = threading.Thread(target=keep_sampling, args=(process.pid,))
        sampler.start()
        for number in range(steps):
            is_sampled = number // IN_A_ROW % 2 == 1
            wanted.set() if is_sampled else wanted.clear()
            process.stdin.write("\n")
            process.stdin.flush()
            times[is_sampled].append(float(process.stdout.readline()))
        over.set()
        sampler.join()
    return median(times[False]) * 1e3, median(times[True]) * 1e3


@dataclass(frozen=True, slots=True)
class ToolCost:
    """The cost of one read of one process by a tool."""

    took_s: float
    cpu_s: float
    memory_mb: float
    """Largest resident memory of the tool."""
    stopped_s: float
    """How long the process was stopped, as seen in /proc."""


def run_tool(command: list[str], pid: int) -> ToolCost:
    """Run a tool on a process, and check all the time whether the process is stopped."""
    proc, over, stopped = Proc(), threading.Event(), 0.0

    def watch() -> None:
        nonlocal stopped
        last, was_stopped = time.perf_counter(), False
        while not over.is_set():
            stat, now = proc.stat(pid), time.perf_counter()
            is_stopped = stat is not None and stat.state == "t"
            stopped += now - last if is_stopped and was_stopped else 0.0
            last, was_stopped = now, is_stopped
            time.sleep(0)

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    tool = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(tool.pid, 0)
    took = time.perf_counter() - began
    tool.returncode = os.waitstatus_to_exitcode(status)
    over.set()
    watcher.join()
    return ToolCost(took, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, stopped)


def print_tools(code: str, name: str, rounds: int) -> None:
    """Print the costs of both tools on one process, as medians."""
    with targets(code, 1) as (process,):
        pid = process.pid
        tools = {
            "our child": child_command("agent.dumpers.native_child", Proc().path, str(pid)),
            "py-spy --native": [find_py_spy(), "dump", "--json", "--native", "--pid", str(pid)],
        }
        time.sleep(0.5)
        for tool, command in tools.items():
            costs = [run_tool(list(command), pid) for _ in range(rounds)]
            took, cpu, memory, stopped = (
                median(getattr(each, field) for each in costs) for field in ToolCost.__slots__
            )
            print(
                f"one {name} process, {tool}: {took:.2f} s, {cpu:.2f} s CPU, {memory:.0f} MB; "
                f"the process is stopped for {stopped:.2f} s"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument(
        "--steps", type=int, default=400, help=f"in turns of {IN_A_ROW}, every other one sampled"
    )
    arguments = parser.parse_args()
    ranks = arguments.ranks
    places = NativePlaces(Proc(), ChildRunner())
    for name, code in (("blocked", BLOCKED), ("spinning", SPINNING)):
        cpu, took, found = measure_cost(places, code, ranks, arguments.rounds)
        print(f"{name}: {found} of {ranks} ranks, {cpu:.0f} ms CPU and {took:.0f} ms per round")
    for name, code in (("blocked", BLOCKED), ("spinning", SPINNING)):
        print_tools(code, name, arguments.rounds)
    alone, sampled = measure_harm(places, arguments.steps)
    print(
        f"step of a target that maps all the time: {alone:.1f} ms alone, {sampled:.1f} ms sampled, "
        f"ratio {sampled / alone:.3f}"
    )


if __name__ == "__main__":
    main()

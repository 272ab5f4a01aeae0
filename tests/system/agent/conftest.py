"""Fixtures that start processes for tests of the agent and clean up after them."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.collectors.traffic import TcpBytes
from agent.procfs import Proc
from agent.ranks.discovery import Discovery
from agent.ranks.found_rank import FoundRank
from agent.ranks.process_table import ProcessTable
from agent.watching.rank import WatchedRank
from tests.agent.conftest import tower  # noqa: F401 - a fixture
from tests.agent.dumpers.record_listeners import listen, short_deadline  # noqa: F401 - fixtures
from tests.system.agent.agent_processes import RunningAgent, Victim, new_mark
from tests.system.agent.fake_gpus import gpus  # noqa: F401 - a fixture
from tests.waiting import wait_until


@pytest.fixture
def mark() -> str:
    """The environment of this test's ranks, so that no other rank is checked."""
    return new_mark()


@pytest.fixture
def start(mark: str) -> Iterator[Callable[..., Victim]]:
    """Start a training process with these environment variables."""
    started: list[Victim] = []

    def start_one(
        command: list[str] | None = None, *, expect: bool = True, **environment: str
    ) -> Victim:
        started.append(Victim({"WATCHTOWER_TEST": mark, **environment}, command, expect=expect))
        return started[-1]

    yield start_one
    for victim in started:
        victim.close()


@pytest.fixture
def ranks(start: Callable[..., Victim]) -> list[Victim]:
    """Two ranks of one job, three steps in."""
    both = [start(RANK=str(rank), WORLD_SIZE="2", WATCHTOWER_JOB="llama") for rank in range(2)]
    for rank in both:
        rank.do("for step in range(3): beat(step)")
    return both


@pytest.fixture
def run_agent(tmp_path: Path, mark: str) -> Iterator[Callable[..., RunningAgent]]:
    """Start an agent that watches this test's ranks only."""
    running: list[RunningAgent] = []

    def run(tower_url: str, *options: str, **environment: str) -> RunningAgent:
        match = ("--match", f"WATCHTOWER_TEST={mark}")
        log = tmp_path / f"agent-{len(running)}.log"
        running.append(RunningAgent(tower_url, *match, *options, log=log, **environment))
        return running[-1]

    yield run
    for agent in running:
        agent.close()


@pytest.fixture
def find(mark: str) -> Callable[[], list[FoundRank]]:
    """Find the ranks of this test. Between two searches hours pass, so that each check is due."""
    proc = Proc()
    match = {"WATCHTOWER_TEST": mark}
    discovery = Discovery(proc, ProcessTable(proc), match=match, host="gpu-1", own_pid=-1)
    hours = itertools.count(1)
    return lambda: discovery.find_all(3600.0 * next(hours))


@pytest.fixture
def ptrace() -> None:
    """Skip where one process of this user may not read another one."""
    try:
        with open("/proc/sys/kernel/yama/ptrace_scope", encoding="ascii") as file:
            scope = int(file.read())
    except OSError:
        scope = 0
    if scope and os.geteuid() != 0:
        pytest.skip(f"Yama forbids py-spy here: run `sysctl kernel.yama.ptrace_scope=0` ({scope})")


@pytest.fixture
def watch(mark: str) -> Callable[[], WatchedRank]:
    """Watch the only rank of this test."""

    def watch_it() -> WatchedRank:
        proc = Proc()
        discovery = Discovery(
            proc,
            ProcessTable(proc),
            match={"WATCHTOWER_TEST": mark},
            host="gpu-1",
            own_pid=-1,
        )
        # Beside many other processes the first tick does not come to all of them.
        (found,) = wait_until(lambda: discovery.tick(time.monotonic()), "the rank is found")
        return WatchedRank(proc, found, time.monotonic(), TcpBytes(), 1.0)

    return watch_it

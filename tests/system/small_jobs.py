"""Launches a job of a few ranks on one node beside a tower and an agent."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from watchtower.commands.client import NotFoundError, TowerClient
from watchtower.drills.environment import Environment
from watchtower.drills.gpus import Gpus
from watchtower.drills.kernel_log import KernelLogs
from watchtower.drills.launching import MARK, free_port, node_mark
from watchtower.drills.settings import read_config

PROGRAMS = Path(__file__).parent / "programs"
RANKS, CULPRIT = 4, 1
DETECTION: dict[str, object] = {
    "suspect_floor_s": 2.0,
    "hung_floor_s": 3.0,
    "moving_floor_s": 6.0,
    "phase_patience_s": 600.0,
}
"""A job that steps several times a second is hung within 10 s, or in 10 minutes."""


class SmallJob:
    """A running job and what the tower says of it."""

    def __init__(
        self, name: str, client: TowerClient, place: Environment, pids: tuple[int, ...]
    ) -> None:
        self.name = name
        self.place = place
        self.pids = pids
        """By rank."""
        self.client = client

    def verdict(self) -> dict:
        """Return its verdict now; of an unknown job only the status "unseen"."""
        try:
            return self.client.verdict(self.name)
        except NotFoundError:
            return {"status": "unseen", "step": None}

    def wait_for(self, condition: Callable[[dict], bool], deadline_s: float) -> dict:
        """Return the first verdict for which the condition holds."""
        until = time.monotonic() + deadline_s
        while not condition(verdict := self.verdict()):
            assert time.monotonic() < until, verdict
            time.sleep(0.1)
        return verdict


Prepare = Callable[[Environment], contextlib.AbstractContextManager[None]]


FAST = read_config(Path(__file__).parent / "e2e" / "fast.toml").detection
"""The settings of the tower for drills in tests."""


def beside(
    folder: Path, detection: Mapping[str, object] = DETECTION, *, nodes: int = 1
) -> Environment:
    """Return a tower and agents, which watch the jobs of this folder."""
    return Environment(
        folder,
        nodes=nodes,
        interval_s=0.5,
        detection=dict(detection),
        forwarded=False,
        start_deadline_s=120.0,
    )


@contextlib.contextmanager
def launched(
    program: str,
    folder: Path,
    *words: str,
    prepare: Prepare | None = None,
    detection: Mapping[str, object] = DETECTION,
    ranks: int = RANKS,
    of_rank: Mapping[int, Mapping[str, str]] | None = None,
    **environment: str,
) -> Iterator[SmallJob]:
    """Start tower, agent and ranks; on leaving all of them end.

    `prepare` gives the agent a root of its own with GPUs, and changes it before the ranks start.
    """
    place = beside(folder, detection)
    if prepare is not None:
        place.kernel_logs, place.gpus = KernelLogs(folder), Gpus(folder)
    with (
        place,
        prepare(place) if prepare else contextlib.nullcontext(),
        started(
            place, program, *words, name=program, ranks=ranks, of_rank=of_rank, **environment
        ) as job,
    ):
        yield job


@contextlib.contextmanager
def started(
    place: Environment,
    program: str,
    *words: str,
    name: str,
    ranks: int = RANKS,
    node: int = 0,
    of_rank: Mapping[int, Mapping[str, str]] | None = None,
    **environment: str,
) -> Iterator[SmallJob]:
    """Start ranks beside a tower and agents that run; on leaving the ranks end.

    `node`: the number of their node. `of_rank`: more variables of single ranks.
    """
    # The port is not chosen earlier: the tower or the agent might take it.
    port, pids = str(free_port()), list[int]()
    with contextlib.ExitStack() as stack:
        for rank in range(ranks):
            process = subprocess.Popen(
                [sys.executable, str(PROGRAMS / f"{program}.py"), *words],
                env={
                    **os.environ,
                    MARK: node_mark(place.folder, node),
                    "WATCHTOWER_JOB": name,
                    "WORLD_SIZE": str(ranks),
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "CULPRIT": str(CULPRIT),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": port,
                    "TMPDIR": str(place.folder),
                    **environment,
                    **(of_rank or {}).get(rank, {}),
                },
                stdin=subprocess.DEVNULL,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            pids.append(process.pid)
        yield SmallJob(name, TowerClient(place.tower_url), place, tuple(pids))

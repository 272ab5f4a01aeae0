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
        self._client = client

    def verdict(self) -> dict:
        """Return its verdict now; of an unknown job only the status "unseen"."""
        try:
            return self._client.verdict(self.name)
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


@contextlib.contextmanager
def launched(
    program: str,
    folder: Path,
    *words: str,
    prepare: Prepare | None = None,
    detection: Mapping[str, object] = DETECTION,
    **environment: str,
) -> Iterator[SmallJob]:
    """Start tower, agent and ranks; on leaving all of them end.

    `prepare` gives the agent a root of its own with GPUs, and changes it before the ranks start.
    """
    place = Environment(
        folder,
        nodes=1,
        interval_s=0.5,
        detection=dict(detection),
        forwarded=False,
        start_deadline_s=60.0,
    )
    if prepare is not None:
        place.kernel_logs, place.gpus = KernelLogs(folder), Gpus(folder)
    with place, contextlib.ExitStack() as stack:
        # Not earlier: the tower or the agent might take it.
        port, pids = str(free_port()), list[int]()
        if prepare is not None:
            stack.enter_context(prepare(place))
        for rank in range(RANKS):
            process = subprocess.Popen(
                [sys.executable, str(PROGRAMS / f"{program}.py"), *words],
                env={
                    **os.environ,
                    MARK: node_mark(folder, 0),
                    "WATCHTOWER_JOB": program,
                    "WORLD_SIZE": str(RANKS),
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "CULPRIT": str(CULPRIT),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": port,
                    "TMPDIR": str(folder),
                    **environment,
                },
                stdin=subprocess.DEVNULL,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            pids.append(process.pid)
        yield SmallJob(program, TowerClient(place.tower_url), place, tuple(pids))

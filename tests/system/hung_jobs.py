"""Small jobs of simulated agents that report to a real tower over HTTP."""

from __future__ import annotations

import contextlib
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import msgspec

from tests.jobs.scenes import Rank
from tests.towers import JSON
from watchtower.wire.report import ProcessState, Report

REPORT_S = 0.25
STEP_S = 0.5

PATIENT = {"suspect_floor_s": 5.0, "hung_floor_s": 6.0}
"""Floors of tests in which one false incident, of a job that a busy machine delays, is a failure.
Longer than `silence_s`: a job whose reports are late is not reported before it is suspect."""

FAST = f"""
[detection]
suspect_floor_s = {PATIENT["suspect_floor_s"]}
hung_floor_s = {PATIENT["hung_floor_s"]}
startup_grace_s = 6
settle_s = 1
silence_s = 4
"""
"""Settings of a tower that finds a stopped rank within some 9 s."""

now = time.monotonic


@dataclass
class SmallJob:
    """Two ranks on a node of their own, which step until a test stops rank 1."""

    name: str
    ranks: list[Rank] = field(default_factory=list)

    def __post_init__(self) -> None:
        for rank in range(2):
            begun = Rank(rank, self.node, pid=100 + rank, beat_at=now(), started_at=now())
            self.ranks.append(begun)

    @property
    def node(self) -> str:
        return f"node-of-{self.name}"

    def stop(self) -> None:
        """The effect of SIGSTOP on rank 1: rank 0 waits for it."""
        self.ranks[1].state = ProcessState.STOPPED

    def resume(self) -> None:
        """The effect of SIGCONT."""
        self.ranks[1].state = ProcessState.SLEEPING

    def report(self) -> Report:
        """The report that an agent on this node would send now."""
        is_stepping = self.ranks[1].state is not ProcessState.STOPPED
        for rank in self.ranks:
            rank.advanced = 0
            if is_stepping and now() - rank.beat_at >= STEP_S:
                # The usual length, also on a busy machine: the tower's patience follows it.
                rank.advanced, rank.interval_s = 1, STEP_S
                rank.step, rank.beat_at = rank.step + 1, now()
        vitals = tuple(
            replace(rank.vitals(len(self.ranks), now()), job=self.name) for rank in self.ranks
        )
        return Report(
            version=1, node=self.node, agent_id=self.node, interval_s=REPORT_S, ranks=vitals
        )


@contextlib.contextmanager
def reporting(url: str, *jobs: SmallJob) -> Iterator[None]:
    """Report every job to the tower in the background."""
    is_over = threading.Event()

    def report_all() -> None:
        while not is_over.wait(REPORT_S):
            for job in jobs:
                request = urllib.request.Request(
                    f"{url}/ingest/v1/report", msgspec.json.encode(job.report()), JSON
                )
                with (
                    contextlib.suppress(OSError),  # the tower restarts
                    urllib.request.urlopen(request, timeout=5),
                ):
                    pass

    thread = threading.Thread(target=report_all)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()

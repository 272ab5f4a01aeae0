"""Agents that a test plays itself, over real HTTP: their ranks are imagined, the tower is real."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from tests.diagnosis.builders import FETCHING, IN_ALL_REDUCE, a_stack
from watchtower.wire.dumps import DumpBatch, KernelWait, RankDump, ThreadDump
from watchtower.wire.report import Beat, ProcessState, RankVitals, Report
from watchtower.wire.stacks import Stack

INTERVAL_S = 0.2
TIMEOUT_S = 30.0


def post(url: str, path: str, body: bytes) -> bytes:
    """Post JSON; raises OSError if it is refused."""
    request = urllib.request.Request(f"{url}{path}", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
        return reply.read()


def get(url: str, path: str) -> dict:
    """Get JSON. Raises OSError if the tower refuses."""
    with urllib.request.urlopen(f"{url}{path}", timeout=TIMEOUT_S) as reply:
        return msgspec.json.decode(reply.read())


@dataclass
class ImaginedJob:
    """A job on one node, whose agent reports five times a second in a thread of its own."""

    url: str
    name: str
    ranks: int = 4
    pids_from: int = 1000
    owner: str = "uid:1000"
    beside: Sequence[RankVitals] = ()
    """Processes that the same agent reports, and that are not of this job."""
    stack_of: Callable[[int], Sequence[Stack]] | None = None
    """The stacks of a rank's threads, main first; by default one fetches, the others wait."""
    hangs_in: int | None = None
    """Rank that hangs, once it does."""
    hung_at: float = 0.0
    step: int = 0
    beat_at: float = field(default_factory=time.monotonic)
    _stops: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> ImaginedJob:
        self._thread = threading.Thread(target=self._report_on, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stops.set()
        self._thread.join(TIMEOUT_S)

    def hang(self, rank: int) -> None:
        """No rank beats from now on; one of them is the reason."""
        self.hung_at, self.hangs_in = time.monotonic(), rank

    def verdict(self) -> dict:
        return get(self.url, f"/api/v1/jobs/{self.name}/verdict")

    def send_dumps(self) -> None:
        """Send two rounds of dumps of all ranks."""
        for number in (1, 2):
            post(self.url, "/ingest/v1/dumps", msgspec.json.encode(self.batch(number)))

    def batch(self, number: int) -> DumpBatch:
        stacks = {rank: self._stacks_of(rank) for rank in range(self.ranks)}
        dumps = [
            RankDump(
                rank=rank,
                pid=self.pids_from + rank,
                start_time=self.pids_from + rank,
                kernel=KernelWait(state=ProcessState.SLEEPING),
                threads=tuple(
                    ThreadDump(name=f"t{n}", digest=stack.digest, main=n == 0)
                    for n, stack in enumerate(stacks[rank])
                ),
            )
            for rank in stacks
        ]
        distinct = {stack.digest: stack for found in stacks.values() for stack in found}
        return DumpBatch(
            version=1,
            id=f"{self.name}-{number}-{time.monotonic_ns()}",
            node=f"node-{self.name}",
            job=self.name,
            owner=self.owner,
            round=number,
            reason="deadline",
            held_s=0.0,
            ranks=tuple(dumps),
            stacks=tuple(distinct.values()),
        )

    def _stacks_of(self, rank: int) -> Sequence[Stack]:
        if self.stack_of is not None:
            return self.stack_of(rank)
        return [a_stack(FETCHING if rank == self.hangs_in else IN_ALL_REDUCE)]

    def _report_on(self) -> None:
        while not self._stops.wait(INTERVAL_S):
            now = time.monotonic()
            advanced = 0
            if self.hangs_in is None:
                self.step, advanced = self.step + 1, 1
                self.beat_at = now
            beat = Beat(
                step=self.step,
                age_s=now - self.beat_at,
                advanced=advanced,
                interval_s=INTERVAL_S if advanced else 0.0,
            )
            vitals = [
                RankVitals(
                    job=self.name,
                    owner=self.owner,
                    launched=True,
                    rank=rank,
                    pid=self.pids_from + rank,
                    start_time=self.pids_from + rank,
                    world_size=self.ranks,
                    found_age_s=10.0,
                    beat=beat,
                    state=ProcessState.SLEEPING,
                )
                for rank in range(self.ranks)
            ]
            node = f"node-{self.name}"
            report = Report(
                version=1,
                node=node,
                agent_id=node,
                interval_s=INTERVAL_S,
                ranks=(*vitals, *self.beside),
            )
            post(self.url, "/ingest/v1/report", msgspec.json.encode(report))

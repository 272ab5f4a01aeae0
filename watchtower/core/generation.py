"""A generation: one life of a job, its ranks as last reported and what was dumped of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from watchtower.core.pace import Pace
from watchtower.wire.dumps import RankDump
from watchtower.wire.report import AgentLimits, RankVitals
from watchtower.wire.stacks import Stack

MAX_STACKS = 8192
"""Distinct stacks of a generation in memory; beyond it only those of the latest dumps stay."""

MAX_RETIRED = 4096
"""Processes of earlier generations remembered, so that their last reports are not taken as new."""


class ProcessKey(NamedTuple):
    """What tells one process from another, through pid reuse too."""

    node: str
    pid: int
    start_time: int


@dataclass(slots=True)
class RankRecord:
    """One rank of one generation, as last reported."""

    key: ProcessKey
    vitals: RankVitals
    seen_at: float
    first_seen_at: float
    moved_at: float
    """When its process tree was last seen to use CPU or storage."""
    ended_at: float | None = None
    dumps: list[tuple[float, RankDump]] = field(default_factory=list)
    """(taken at, dump), oldest first, the last two."""

    @property
    def is_live(self) -> bool:
        """Whether the process was there when last reported."""
        return self.ended_at is None

    def age_s(self, now: float, interval_s: float) -> float:
        """Seconds since the last beat. Grows between reports, but only for two of them: a late
        report must not make a rank look late."""
        beat = self.vitals.beat
        return 0.0 if beat is None else beat.age_s + min(now - self.seen_at, 2 * interval_s)


@dataclass(slots=True)
class NodeRecord:
    """One node's agent."""

    agent_id: str
    seen_at: float
    interval_s: float
    limits: AgentLimits
    ranks: set[tuple[str, int]] = field(default_factory=set)
    """(job, rank) of what it reports, and of what it stopped to report only just now."""


@dataclass(slots=True)
class Generation:
    """One life of a job: the ranks between two restarts."""

    job: str
    number: int
    began_at: float
    ranks: dict[int, RankRecord] = field(default_factory=dict)
    rivals: dict[ProcessKey, tuple[RankVitals, float]] = field(default_factory=dict)
    """Second processes that claim a taken rank, and when they were last reported."""
    paces: dict[str, Pace] = field(default_factory=dict)
    stacks: dict[str, Stack] = field(default_factory=dict)
    resumed_at: float = float("-inf")
    """When the job last came back from being suspended: ages count from there."""

    @property
    def world_size(self) -> int:
        """Ranks the job says it has, else the highest rank seen plus one."""
        said = max((r.vitals.world_size or 0 for r in self.ranks.values()), default=0)
        return max(said, max(self.ranks, default=-1) + 1)

    def pace(self, phase: str) -> Pace:
        """Step times in `phase`."""
        return self.paces.setdefault(phase, Pace())

    def keep_stacks(self, stacks: Iterable[Stack]) -> None:
        """Keep the stacks that dumps name by digest; when too many, those still named."""
        self.stacks.update({stack.digest: stack for stack in stacks})
        if len(self.stacks) > MAX_STACKS:
            dumps = (dump for record in self.ranks.values() for _, dump in record.dumps)
            named = {digest for dump in dumps for digest in digests_of(dump)}
            self.stacks = {d: stack for d, stack in self.stacks.items() if d in named}

    def live(self) -> Iterator[RankRecord]:
        """Ranks whose process is there."""
        return (record for record in self.ranks.values() if record.is_live)

    def step(self) -> int:
        """The lowest step that every rank with a page has beaten, -1 before the first."""
        steps = [r.vitals.beat.step for r in self.ranks.values() if r.vitals.beat is not None]
        return min(steps, default=-1)


@dataclass(slots=True)
class Job:
    """One job through its generations."""

    name: str
    generation: Generation
    retired: dict[ProcessKey, None] = field(default_factory=dict)

    def retire(self, keys: Iterable[ProcessKey]) -> None:
        """Remember processes that belong to an earlier generation, the newest `MAX_RETIRED`."""
        self.retired.update(dict.fromkeys(keys))
        while len(self.retired) > MAX_RETIRED:
            self.retired.pop(next(iter(self.retired)))


def digests_of(dump: RankDump) -> Iterator[str]:
    """Name every stack of a dump, those of its children included."""
    for threads in (dump.threads, *(child.threads for child in dump.children)):
        for thread in threads:
            yield thread.digest

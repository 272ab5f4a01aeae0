"""A job: its present generation, and what is remembered of the earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from watchtower.core.fleet.attempts import AttemptLimit
from watchtower.core.fleet.generation import Generation, ProcessKey
from watchtower.core.fleet.sizes import KEY_BYTES, PACE_BYTES, RANK_BYTES
from watchtower.wire.report import JobLabels

MIN_RETIRED = 1024
RETIRED_PER_RANK = 64
"""Processes of earlier generations remembered, so that their last reports are not taken as new: an
agent tells of 256 that ended, and a node has eight ranks or more; small jobs get a little extra."""

MAX_RETIRED = 262_144
"""... of one job, however large."""


@dataclass(slots=True)
class Job:
    """One job through its generations."""

    name: str
    """The tower's label for it."""
    generation: Generation
    founder: str = ""
    """Node that reported it first."""
    owner: str = ""
    """Whose it is; empty while no agent has said."""
    retired: dict[ProcessKey, float] = field(default_factory=dict)
    """Processes of earlier generations, and since when they are."""
    labels: JobLabels | None = None
    """What its first report with labels says of it, for people."""
    attempts: AttemptLimit = field(default_factory=AttemptLimit)
    """How many attempts may still begin."""

    @property
    def sharer(self) -> str:
        """Whose shares it uses: its owner's, else its own."""
        return self.owner or self.name

    @property
    def droppable_bytes(self) -> int:
        """Bytes that it takes beyond a record of each rank."""
        return sum(self._sizes())

    def drop(self, excess: int) -> None:
        """Drop so many bytes or somewhat more, the largest part first."""
        gen = self.generation
        drops: tuple[Callable[[], object], ...] = (
            lambda: gen.drop_dumps(excess),
            gen.drop_texts,
            gen.arrivals.clear,
            gen.rivals.clear,
            self.retired.clear,
            gen.drop_paces,
        )
        parts = sorted(zip(self._sizes(), drops, strict=True), key=lambda part: -part[0])
        for size, drop in parts:
            if excess <= 0 or not size:
                return
            before = self.droppable_bytes
            drop()
            excess -= before - self.droppable_bytes

    def _sizes(self) -> tuple[int, ...]:
        """Return the bytes of each part that may be dropped, in the order of `drop`."""
        gen = self.generation
        return (
            gen.dumps_bytes,
            gen.text_bytes,
            gen.arrivals.size,
            RANK_BYTES * len(gen.rivals),
            KEY_BYTES * len(self.retired),
            PACE_BYTES * max(0, len(gen.paces) - 1),
        )

    def retire(self, keys: Iterable[ProcessKey], now: float) -> None:
        """Remember processes that belong to an earlier generation, the newest ones."""
        self.retired.update(dict.fromkeys(keys, now))
        limit = max(MIN_RETIRED, RETIRED_PER_RANK * len(self.generation.ranks))
        limit = min(limit, MAX_RETIRED)
        while len(self.retired) > limit:
            self.retired.pop(next(iter(self.retired)))

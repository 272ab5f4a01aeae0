"""The roster of a job: its present generation, and the processes of earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from watchtower.jobs.generation import Generation
from watchtower.jobs.ranks import RANK_BYTES, ProcessKey
from watchtower.service.sharing import TokenBucket
from watchtower.wire.report import JobLabels

KEY_BYTES = 192
"""A stored process of an earlier attempt."""

PACE_BYTES = 7168
"""The step times of one phase."""


BURST = 6
"""Number of attempts that may begin without a wait. Real jobs need many seconds to start."""

REFILL_S = 10.0
"""Seconds between attempts after the burst: six attempts a minute."""


@dataclass(slots=True)
class AttemptLimit:
    """Limits the attempts of one job."""

    _bucket: TokenBucket = field(default_factory=lambda: TokenBucket(BURST, 1 / REFILL_S))
    _refused_at: float = float("-inf")

    def may_begin(self, now: float) -> bool:
        """Return whether an attempt may begin now; if so, it is counted."""
        if self._bucket.take(now):
            return True
        self._refused_at = now
        return False

    def explain_refusal(self, now: float, within_s: float) -> str:
        """Return a clause if an attempt was refused in the last `within_s` seconds, else empty."""
        if now - self._refused_at > within_s:
            return ""
        return f"it restarts too often: its next attempt is watched after at most {REFILL_S:g} s"


MIN_RETIRED = 1024
RETIRED_PER_RANK = 64
"""A job stores `RETIRED_PER_RANK` processes of earlier generations per rank, but at least
`MIN_RETIRED`. Otherwise their last reports would look like new ranks. An agent reports 256 ended
processes, and a node has eight ranks or more."""

MAX_RETIRED = 262_144
"""Most processes of earlier generations that one job stores."""


@dataclass(slots=True)
class Job:
    """One job through its generations."""

    name: str
    """The tower's label for it."""
    generation: Generation
    founder: str = ""
    """Node that reported it first."""
    owner: str = ""
    """Empty until an agent reports an owner."""
    retired: dict[ProcessKey, float] = field(default_factory=dict)
    """Processes of earlier generations, and when their generation ended."""
    labels: JobLabels | None = None
    """Labels from its first report that has any. They are only shown to people."""
    attempts: AttemptLimit = field(default_factory=AttemptLimit)
    """Limit on new attempts."""

    @property
    def sharer(self) -> str:
        """Key of the fair shares: the owner; the job's own name if the owner is not known."""
        return self.owner or self.name

    @property
    def droppable_bytes(self) -> int:
        """Bytes that it can drop: everything except one record per rank."""
        return sum(self._sizes())

    def drop(self, excess: int) -> None:
        """Drop at least `excess` bytes, largest part first; everything if there are fewer."""
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
        """Return the bytes of each part that may be dropped, in the order of `drops` in `drop`."""
        gen = self.generation
        return (
            gen.dumps_bytes,
            gen.text_bytes,
            gen.arrivals.size,
            RANK_BYTES * len(gen.rivals),
            KEY_BYTES * len(self.retired),
            PACE_BYTES * max(0, len(gen.paces) - 1),
        )

    def has_any(self, ranks: Mapping[ProcessKey, int]) -> bool:
        """Return whether one of these processes is its rank in this job, or was a rank of it."""
        own = self.generation.ranks
        return any(
            key in self.retired or (rank in own and own[rank].key == key)
            for key, rank in ranks.items()
        )

    def retire(self, keys: Iterable[ProcessKey], now: float) -> None:
        """Record processes of an earlier generation. Beyond the limit, the oldest are dropped."""
        self.retired.update(dict.fromkeys(keys, now))
        limit = max(MIN_RETIRED, RETIRED_PER_RANK * len(self.generation.ranks))
        limit = min(limit, MAX_RETIRED)
        while len(self.retired) > limit:
            self.retired.pop(next(iter(self.retired)))

"""An accusation: what one cause decides, with its sentences.

Its confidence is computed from its reasons and doubts. The weight of a reason is a probability.
Reasons are independent by source: of one source only the strongest counts, sources combine as
noisy-or. A contradiction halves the result; each doubt caps it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from math import prod
from typing import Literal, NamedTuple, TypeAlias

from watchtower.diagnosis.position import Position
from watchtower.wire.observations import Observation
from watchtower.wire.verdict import Cause

MIN_CONFIDENCE = 0.5
"""Below it the verdict is `unknown`, with what was found as alternatives."""

MAX_CONFIDENCE = 0.99
"""Nothing seen from outside a process is certain."""

CANDIDATE = 0.45
"""Below `MIN_CONFIDENCE`: a doubt with this ceiling leaves candidates, and no culprit."""

MAX_QUOTED = 3
"""Suspects whose reasons are given one by one; the others are in the rank sets."""


class Tier(IntEnum):
    """How strong a kind of evidence is; lower wins, weights only count inside one tier."""

    CANNOT_ANSWER = 1
    """The process is gone, stopped, traced, in uninterruptible sleep; its node, GPU or link is
    lost."""
    NEVER_CAME = 2
    """Missing ranks, stuck before the first collective, misconfigured."""
    WAIT_FOR = 3
    """The wait-for graph over collective logs."""
    MISMATCH = 4
    """Same collective, another operation, size or dtype."""
    STACKS = 5
    """Stack classes compared within a group."""
    PROGRESS = 6
    """Lowest step, device signature."""
    NOTHING = 9
    """No cause had an answer."""


class Doubt(NamedTuple):
    """A limit of a confidence: it is never above the lowest ceiling of its doubts."""

    kind: str
    """Published with a verdict, so that it never changes."""
    ceiling: float
    text: str
    """Completes "not certain because ...". It may name `{suspects}` and the `{unseen}` ranks."""
    halves: bool = False
    """It contradicts the accusation: what else speaks for it counts half."""


STACK_MISSING = Doubt(
    "stack_missing", 0.85, "the position of {unseen} is unknown, and the cause may be there"
)

Source: TypeAlias = Literal[
    "aftermath",
    "cgroup",
    "children",
    "difference",
    "ending",
    "fabric",
    "gil",
    "gpu",
    "heartbeat",
    "kernel",
    "movement",
    "network",
    "node",
    "order",
    "peers",
    "process",
    "records",
    "source",
    "stacks",
    "startup",
    "threads",
]
"""Where a reason comes from."""


class Reason(NamedTuple):
    """One observation that speaks for an accusation. A verdict shows it as evidence."""

    source: Source
    weight: float
    ranks: tuple[int, ...]
    text: str


def of_rank(source: Source, weight: float, position: Position, text: str) -> Reason:
    """Return a reason about one rank, whose sentence begins with the rank."""
    return Reason(source, weight, (position.rank,), f"rank {position.rank}: {text}")


def _say_nothing(_: Position) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accusation:
    """The answer of one cause."""

    cause: Cause
    tier: Tier
    suspects: tuple[Position, ...] = ()
    """None where no rank is to blame."""
    reasons: tuple[Reason, ...]
    doubts: tuple[Doubt, ...] = ()
    why: Callable[[Position], str] = _say_nothing
    """Completes "rank 3 (gpu-01, pid 7) ..." for a suspect."""
    summary: str = ""
    """If it is empty, the summary is about the first suspect, those like it, and who waits."""
    advice: tuple[str, ...] = ()
    """What helps, with names in braces: see `advice.py`."""
    names: Mapping[str, object] = field(default_factory=dict)
    """Values of names in the advice, besides those of `advice.py`."""
    witnesses: tuple[Position, ...] = ()
    """If no rank is to blame: the ranks that show the cause. Domain and advice are about them."""
    where: Callable[[Position], str | None] | None = None
    """Returns where a suspect is, if that is not where its main thread is."""
    is_shown_by_gpus: bool = False
    """All hosts wait for their GPUs, and only what the GPUs do names the suspect."""
    quoted: tuple[Observation, ...] = ()
    """Observations that its sentences contain: a verdict does not show them again."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks of the suspects."""
        return tuple(item.rank for item in self.suspects)

    @property
    def confidence(self) -> float:
        """From 0 to `MAX_CONFIDENCE`, inside the tier."""
        return weigh(_weights(self.reasons), self.doubts)

    @property
    def limits(self) -> tuple[Doubt, ...]:
        """Doubts without which the confidence could be higher, the lowest ceiling first."""
        halving = [doubt for doubt in self.doubts if doubt.halves]
        above = weigh(_weights(self.reasons), halving)
        found = {d.kind: d for d in self.doubts if d.halves or d.ceiling < above}
        return tuple(sorted(found.values(), key=lambda doubt: doubt.ceiling))


def _weights(reasons: Iterable[Reason]) -> Iterator[tuple[str, float]]:
    return ((each.source, each.weight) for each in reasons)


def weigh(weights: Iterable[tuple[str, float]], doubts: Iterable[Doubt] = ()) -> float:
    """Return the confidence that these weights, each with its source, and doubts give."""
    sources: dict[str, float] = {}
    for source, weight in weights:
        sources[source] = max(sources.get(source, 0.0), weight)
    combined, ceiling = 1 - prod(1 - weight for weight in sources.values()), MAX_CONFIDENCE
    for doubt in doubts:
        combined *= 0.5 if doubt.halves else 1.0
        ceiling = min(ceiling, doubt.ceiling)
    return round(min(combined, ceiling), 2)

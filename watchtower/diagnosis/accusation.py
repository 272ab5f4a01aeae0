"""An accusation: what one rule decides, as data. The writer makes sentences of it.

Its confidence is computed from its reasons and doubts. The weight of a reason is a probability.
Reasons are independent by family: inside a family only the strongest counts, families combine as
noisy-or. A contradiction halves the result; each doubt caps it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, IntEnum
from math import prod

from watchtower.diagnosis.doubts import Doubt
from watchtower.diagnosis.position import Position
from watchtower.diagnosis.subjects import AccusationSubject, ReasonSubject
from watchtower.wire.verdict import Cause

MIN_CONFIDENCE = 0.5
"""Below it the verdict is `unknown`, with what was found as alternatives."""

MAX_CONFIDENCE = 0.99
"""Nothing seen from outside a process is certain."""

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
    """No rule had an answer."""


class ReasonKind(Enum):
    """The kind of a reason. The first word is its family, and the source of its evidence."""

    STACK = "stacks", "where a rank is"
    SAME_CALL = "stacks", "where all ranks wait"
    WAIT_COUNTS = "stacks", "how often ranks were found waiting"
    EVEN_COUNTS = "stacks", "no rank waits much less than the others"
    KERNEL = "kernel", "what the kernel shows"
    STEP = "heartbeat", "the last step"
    PACE = "heartbeat", "how long a step takes"
    PEERS = "peers", "where the others wait"
    GAVE_UP = "peers", "where others waited until they gave up"
    OTHER_LINE = "peers", "waits at different lines"
    PATH = "records", "how the others come to wait"
    CALLED_BESIDE = "records", "calls of communication threads"
    OTHER_CALL = "records", "different calls as one number"
    MESSAGE = "records", "a message that was not sent"
    CYCLE = "records", "ranks that wait for each other"
    ALL_ENTERED = "records", "a call that all have entered"
    THREAD = "threads", "another thread"
    LOCK = "threads", "a lock that is never released"
    CHILD = "children", "a child it may wait for"
    WORKER = "children", "a worker that does not deliver"
    MOVEMENT = "movement", "CPU use and traffic"
    SOCKET = "network", "a network call"
    UNANSWERED = "network", "a connection that is not answered"
    GIL = "gil", "the thread that holds the GIL"
    ENDING = "ending", "how a rank ended"
    LINGERS = "ending", "a program that is over"
    AFTERMATH = "aftermath", "what became of the others"
    HELD = "process", "a process that cannot run"
    NOT_SEEN = "process", "ranks that were never seen"
    NODE = "node", "a silent node"
    GPU_ERROR = "gpu", "an error of its GPU"
    GPU_LOAD = "gpu", "what its GPU does"
    GPU_CLOCK = "gpu", "a GPU with reduced clocks"
    GPU_MEMORY = "gpu", "errors of the memory of a GPU"
    CPU_LIMIT = "cgroup", "a CPU limit that stops a rank"
    SEPARATE = "difference", "what separates a rank from the others"
    GPU_DRIVER = "gpu", "a call of the driver that does not return"
    LINK = "fabric", "a link that failed"
    SET_UP = "startup", "no rank has passed set-up"
    ODD = "order", "counts that break the order"
    AHEAD = "order", "a sender that has gone on"
    LOOP = "source", "loops around the calls"

    @property
    def family(self) -> str:
        """Family of the reason."""
        family: str = self.value[0]
        return family


@dataclass(frozen=True, slots=True)
class Reason:
    """One observation that speaks for an accusation."""

    kind: ReasonKind
    weight: float
    ranks: tuple[int, ...] = ()
    about: ReasonSubject = None
    """The value that its sentence is made of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accusation:
    """One rule's answer."""

    cause: Cause
    tier: Tier
    suspects: tuple[Position, ...] = ()
    """None where no rank is to blame."""
    reasons: tuple[Reason, ...]
    doubts: tuple[Doubt, ...] = ()
    advice: tuple[str, ...] = ()
    """Entries of `writer/advice.toml`."""
    about: AccusationSubject = None
    """The value that the summary is made of besides the suspects."""
    witnesses: tuple[Position, ...] = ()
    """If no rank is to blame: the ranks that show the cause. Domain and advice are about them."""

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
    return ((each.kind.family, each.weight) for each in reasons)


def weigh(weights: Iterable[tuple[str, float]], doubts: Iterable[Doubt] = ()) -> float:
    """Return the confidence that these weights, each with its family, and doubts give."""
    families: dict[str, float] = {}
    for family, weight in weights:
        families[family] = max(families.get(family, 0.0), weight)
    combined, ceiling = 1 - prod(1 - weight for weight in families.values()), MAX_CONFIDENCE
    for doubt in doubts:
        combined *= 0.5 if doubt.halves else 1.0
        ceiling = min(ceiling, doubt.ceiling)
    return round(min(combined, ceiling), 2)

"""Subjects of reasons and accusations: the values that their sentences are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from watchtower.diagnosis.bystanders import Bystander, Worker
from watchtower.diagnosis.deaths import Death
from watchtower.diagnosis.position import Position
from watchtower.diagnosis.separation import Separation
from watchtower.diagnosis.waits.graph import End
from watchtower.diagnosis.waits.messages import MissingSend
from watchtower.diagnosis.waits.mismatches import Split
from watchtower.diagnosis.waits.points import WaitPoint
from watchtower.evidence.gpus import EccErrors, GpuUse
from watchtower.evidence.links import LinkFault
from watchtower.evidence.threads import CommThreads
from watchtower.evidence.xids import GpuError
from watchtower.wire.dumps import ChildDump, ThreadDump
from watchtower.wire.observations import Observation
from watchtower.wire.verdict import Cause


@dataclass(frozen=True, slots=True)
class Ranks:
    """Several ranks."""

    items: tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class FailedLinks:
    """Links that failed, the most telling first."""

    items: tuple[LinkFault, ...]


@dataclass(frozen=True, slots=True)
class WaitShares:
    """How often a rank was found waiting, and the others."""

    slow: Position
    others: tuple[float, ...]
    """The share of samples of each other rank."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The step of a rank, and the steps of those that wait for it."""

    position: Position
    lowest: int
    highest: int


@dataclass(frozen=True, slots=True)
class Path:
    """How a rank comes to wait for the end of a graph."""

    hops: tuple[tuple[int, WaitPoint], ...]
    """Each rank, and where it waits."""
    end: End


@dataclass(frozen=True, slots=True)
class CalledBeside:
    """A call that the communication threads of other ranks have made, and that of one has not."""

    comm_threads: CommThreads
    point: WaitPoint
    rank: int
    called: int
    """Number of its last call."""


@dataclass(frozen=True, slots=True)
class AllEntered:
    """A call that no member keeps the others waiting in."""

    point: WaitPoint
    certain: bool
    """The members are known to have entered, not only to have called."""
    left: tuple[int, ...]
    """Members for which the call is over."""


@dataclass(frozen=True, slots=True)
class Deaths:
    """Ranks that caused an end, and the ranks that ended besides."""

    first: tuple[Death, ...]
    others: tuple[Death, ...]


@dataclass(frozen=True, slots=True)
class Held:
    """A rank that cannot run."""

    cause: Cause
    position: Position
    first: Position
    """The first of all that are held in this way."""


@dataclass(frozen=True, slots=True)
class Children:
    """Children that a rank may wait for."""

    found: Worker | tuple[ChildDump, ...]


@dataclass(frozen=True, slots=True)
class GilOwners:
    """The thread that holds the GIL, by rank."""

    by_rank: Mapping[int, ThreadDump]


@dataclass(frozen=True, slots=True)
class Lingering:
    """A rank that is on its way out and does not get there."""

    position: Position

    @property
    def has_raised(self) -> bool:
        """Whether an exception is known that ended its program."""
        beat = self.position.evidence.beat
        return beat is not None and bool(beat.exception_type or beat.exception_text)


@dataclass(frozen=True, slots=True)
class LingeringRanks:
    """Ranks whose program is over."""

    items: tuple[Lingering, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LostNode:
    """A node that stopped reporting, and its ranks that nothing is known of since."""

    node: str
    silent_for_s: float
    ranks: tuple[Position, ...]
    sure: bool
    """It has been silent for as long as an agent may never be."""
    with_the_job: bool
    """It fell silent when the job stopped, not while the job still stepped."""


@dataclass(frozen=True, slots=True)
class LostNodes:
    """Nodes that stopped reporting."""

    items: tuple[LostNode, ...]


@dataclass(frozen=True, slots=True)
class FaultyGpu:
    """A rank whose GPU reported errors, the earliest first."""

    position: Position
    errors: tuple[GpuError, ...]
    before_s: float
    """Seconds from the first error to the last step of the rank; negative if it came later."""


@dataclass(frozen=True, slots=True)
class FaultyGpus:
    """The ranks whose GPUs reported errors."""

    items: tuple[FaultyGpu, ...]


@dataclass(frozen=True, slots=True)
class OddGpu:
    """A rank whose GPU does what those of the others do not."""

    position: Position
    use: GpuUse
    waiting: tuple[Position, ...]
    """The ranks whose GPUs wait."""


@dataclass(frozen=True, slots=True)
class StuckDriver:
    """A rank whose GPU a call of the agent does not return for."""

    position: Position
    call: Observation


@dataclass(frozen=True, slots=True)
class NeverSeen:
    """Ranks that were never seen, and those that wait for them in set-up."""

    missing: tuple[Position, ...]
    in_init: tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class MissingSends:
    """Messages that were not sent."""

    items: tuple[MissingSend, ...]


@dataclass(frozen=True, slots=True)
class SameCall:
    """A call that all ranks wait in."""

    may_differ_in_root: bool
    """Some ranks have left it, and it has a root."""
    points_to_network: bool
    """Something measured shows that the fault is between the ranks."""


ReasonSubject: TypeAlias = (
    AllEntered
    | Bystander
    | CalledBeside
    | Children
    | Death
    | Deaths
    | EccErrors
    | End
    | FaultyGpu
    | GpuUse
    | Held
    | Lingering
    | LinkFault
    | LostNode
    | MissingSend
    | Observation
    | OddGpu
    | Path
    | Position
    | Ranks
    | Separation
    | Split
    | Steps
    | StuckDriver
    | ThreadDump
    | WaitShares
    | Worker
    | None
)
"""Which of them belongs to a kind of reasons: see `SENTENCES` in `writer/evidence.py`."""

AccusationSubject: TypeAlias = (
    Deaths
    | End
    | FailedLinks
    | FaultyGpus
    | GilOwners
    | LingeringRanks
    | LostNodes
    | MissingSends
    | NeverSeen
    | OddGpu
    | Ranks
    | SameCall
    | Separation
    | Split
    | StuckDriver
    | None
)
"""Values that summaries are made of besides the suspects. Which of them belongs to a cause: see
`TEXTS` in `writer/causes.py`."""

T = TypeVar("T")


def expect(subject: object, kind: type[T]) -> T:
    """Return the subject. Raises TypeError if it is of another type."""
    if not isinstance(subject, kind):
        raise TypeError(f"about a {type(subject).__name__}, not a {kind.__name__}")
    return subject

"""What a drill needs: a name, what it shows, how it is set up and the answer that is right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from watchtower.drills.settings import DrillSettings

BACKENDS = ("stdlib", "torch")
CALM = ("healthy", "recovered")
FINAL = ("hung", "ended")
"""Statuses of a job whose fault has become an incident."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The right answer: a cause for a fault, a status for a job with nothing wrong."""

    cause: str | None = None
    mentions: tuple[str, ...] = ()
    """Words the verdict must contain, such as the type of an exception."""
    statuses: tuple[str, ...] = CALM
    """The statuses that are right in the end."""
    passes: str | None = None
    """Without a cause: a status that must have been seen on the way."""

    @property
    def is_incident(self) -> bool:
        """Whether an incident belongs to the answer."""
        return self.cause is not None and self.statuses == FINAL


def names(cause: str, *mentions: str) -> Expected:
    """The answer to a fault that stops the job: this cause, and an incident."""
    return Expected(cause=cause, mentions=mentions, statuses=FINAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variables:
    """What is drawn or set anew for each run."""

    settings: DrillSettings
    rank: int
    """Where the fault goes."""
    ranks: int
    step: int
    """The step before which the fault comes."""


Plan = dict[str, object]


def _no_plan(_: Variables) -> Plan:
    return {}


def _no_detection(_: DrillSettings) -> Mapping[str, object]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillSetup:
    """Everything about a drill but what is done in a run of it."""

    name: str
    shows: str
    expected: Expected
    plan: Callable[[Variables], Plan] = field(default=_no_plan)
    """What the training program is to do, beyond training."""
    detection: Callable[[DrillSettings], Mapping[str, object]] = field(default=_no_detection)
    """Settings of the tower that this drill changes."""
    backends: tuple[str, ...] = BACKENDS
    forwarded: bool = False
    """Whether agents reach the tower through a forwarder that the drill can stop."""
    bare_launch: bool = False
    """Whether ranks are started one by one even where torchrun would start them."""
    named: bool = True
    """Whether the job has a name, as opposed to what a launcher calls every job."""
    networked: tuple[str, ...] = ()
    """The backends on which links are cut: each rank then runs in a network namespace."""
    parallelism: str = "data"
    """What the ranks share among them: "data", "grid" (pairs share layers) or "pipeline"."""
    breaks_parts: bool = False
    """Whether the drill kills the tower or an agent."""
    attacked: bool = False
    """Whether processes of another user attack: their jobs are on the same tower."""
    own_clock: bool = False
    """Whether everything reads a wall clock that the drill can set."""
    whole_node: bool = False
    """Whether the fault goes to every rank on the node of the chosen one."""
    blames: Callable[[int], tuple[int, ...]] | None = None
    """The ranks to be named when the fault is in this one, where that is not just this one."""
    least_ranks: int = 2
    """How many ranks the fault takes."""
    warmups: int = 1
    """How many warm-ups come before the fault: a slower pace is told by the one before."""
    whole_pairs: bool = False
    """Whether ranks come in pairs, so that there has to be an even number."""

    @property
    def is_fault(self) -> bool:
        """Whether a rank is to be named, as opposed to nothing being wrong."""
        return self.expected.cause is not None

    def needs_own_environment(self, backend: str) -> bool:
        """Whether tower and agents must be there for this drill alone."""
        apart = backend in self.networked or not self.named
        changed = self.breaks_parts or self.forwarded or self.own_clock
        return apart or changed or self.attacked

"""The definition of a drill: name, description, setup and the right answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from watchtower.drills.settings import DrillSettings

BACKENDS = ("stdlib", "torch", "queued")
TORCH_BACKENDS = ("torch", "queued")
CALM = ("healthy", "recovered")
FINAL = ("hung", "ended")
"""Statuses of a job whose fault has become an incident."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The right answer: a cause for a fault, a status for a healthy job."""

    cause: str | None = None
    or_causes: tuple[str, ...] = ()
    """Other causes that are as right."""
    domain: str | None = None
    """The domain that the verdict must have. None: it differs from run to run."""
    mentions: tuple[str, ...] = ()
    """Words that the verdict must contain, such as the type of an exception."""
    statuses: tuple[str, ...] = CALM
    """The statuses that are right in the end."""
    within_s: float | None = None
    """The most seconds from the fault to the first verdict with a cause. None: any."""
    passes: str | None = None
    """Without a cause: a status that must have occurred before the end."""

    @property
    def is_incident(self) -> bool:
        """Return whether the answer includes an incident."""
        return self.cause is not None and self.statuses == FINAL


def names(cause: str, *mentions: str, domain: str) -> Expected:
    """Return the answer to a fault that stops the job: this cause and domain, and an incident."""
    return Expected(cause=cause, domain=domain, mentions=mentions, statuses=FINAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variables:
    """Values that differ for each run."""

    settings: DrillSettings
    rank: int
    """The rank with the fault."""
    ranks: int
    step: int
    """The step before which the fault comes."""


Plan = dict[str, object]


def _no_plan(_: Variables) -> Plan:
    return {}


def plan_of_backend(backend: str, settings: DrillSettings) -> Plan:
    """Return the part of the plan that only programs of this backend need."""
    if backend != "queued":
        return {}
    return {
        "schedule": settings.queued_schedule,
        "log": settings.queued_log,
        "engine_thread": settings.queued_engine,
    }


def _no_detection(_: DrillSettings) -> Mapping[str, object]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillSetup:
    """A drill without its actions."""

    name: str
    shows: str
    expected: Expected
    plan: Callable[[Variables], Plan] = field(default=_no_plan)
    """Returns what the training program does besides training."""
    detection: Callable[[DrillSettings], Mapping[str, object]] = field(default=_no_detection)
    """Returns settings of the tower that this drill changes."""
    backends: tuple[str, ...] = BACKENDS
    forwarded: bool = False
    """Whether agents reach the tower through a forwarder that the drill can stop."""
    bare_launch: bool = False
    """Whether ranks are started one by one even if torchrun would start them."""
    named: bool = True
    """Whether the job has its own name, not the one that a launcher gives to every job."""
    renamed: bool = False
    """Whether ranks hide without meaning to: each sets its number at run time, under a title."""
    networked: tuple[str, ...] = ()
    """The backends on which links are cut: each rank then runs in a network namespace."""
    parallelism: str = "data"
    """Kind of parallelism: "data", "grid" (pairs share layers), "pipeline", or "server"."""
    libraries: tuple[str, ...] = ()
    """Python modules, besides that of the backend, that the program imports."""
    hangs_anywhere: bool = False
    """Whether the program can have its fault at every moment, not only in steps."""
    breaks_parts: bool = False
    """Whether the drill kills the tower or an agent."""
    attacked: bool = False
    """Whether processes of another user attack. Their jobs are on the same tower."""
    own_clock: bool = False
    """Whether all processes read a wall clock that the drill can set."""
    own_gpus: bool = False
    """Each node has a driver of the drill's own, and a kernel log that the drill can write."""
    whole_node: bool = False
    """Whether every rank on the node of the chosen rank has the fault."""
    blames: Callable[[int], tuple[int, ...]] | None = None
    """Returns the ranks that the verdict must name for a fault in this rank. None: only this
    rank.
    """
    least_ranks: int = 2
    """How many ranks the fault needs."""
    step: int | None = None
    """The step before which the fault comes. None: a random one after the warm-up."""
    warmups: int = 1
    """How many warm-ups come before the fault: a slower pace is detected from an earlier one."""
    sampled: bool = False
    """Whether the job has no heartbeats: the fault comes after two samples that saw it at work."""
    whole_pairs: bool = False
    """Whether ranks come in pairs, so that their number must be even."""

    @property
    def is_fault(self) -> bool:
        """Return whether the verdict must name a rank; False for a healthy job."""
        return self.expected.cause is not None

    def needs_own_environment(self, backend: str) -> bool:
        """Return whether this drill needs its own tower and agents."""
        apart = backend in self.networked or not self.named
        changed = self.breaks_parts or self.forwarded or self.own_clock
        return apart or changed or self.own_gpus or self.attacked

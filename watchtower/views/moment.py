"""The live state at one moment: every view of what is live is made of it, and of nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from watchtower.fleet.configuration import Configurations
from watchtower.fleet.nodes import NodeRecord
from watchtower.incidents.incident import Silence
from watchtower.jobs.detector import Detector
from watchtower.jobs.keeper import Keeper
from watchtower.jobs.progress import ProgressView, view_progress
from watchtower.jobs.verdicts import find_not_judged
from watchtower.views.people import Subject, job_subject
from watchtower.wire.verdict import NotJudged


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The state of all jobs and nodes. It is not copied: use it before anything else happens."""

    now: float
    """Seconds of the monotonic clock."""
    wall: float
    """UNIX seconds."""
    offset_s: float
    """UNIX seconds minus seconds of the monotonic clock, the same in every moment until the wall
    clock is set: a page that shows when something began does not change with time alone."""
    keepers: Mapping[str, Keeper]
    """All jobs. Those whose watch has not begun are not shown."""
    nodes: Mapping[str, NodeRecord]
    detector: Detector
    silence_of: Callable[[Subject], Silence | None]
    """Returns the silence of a job, node or user that lasts longest."""
    configurations: Configurations = field(default_factory=Configurations)
    """The configurations of ranks and nodes, by digest."""
    advisories_off: frozenset[str] = frozenset()
    """Names of advisories that the operator has switched off."""

    def wall_of(self, at: float) -> float:
        """Return the UNIX seconds of a time of the monotonic clock."""
        return at + self.offset_s

    def find(self, name: str) -> Keeper | None:
        """Return a live job; None if no agent reports it."""
        keeper = self.keepers.get(name)
        return keeper if keeper is not None and keeper.judgement is not None else None

    def live(self) -> list[Keeper]:
        """Return all live jobs, by name."""
        watched = (each for each in self.keepers.values() if each.judgement is not None)
        return sorted(watched, key=lambda each: each.name)

    def has_open_incident(self, name: str) -> bool:
        """Return whether a job is in an incident now."""
        keeper = self.find(name)
        incident = keeper.judged.current_incident if keeper is not None else None
        return incident is not None and incident.closed_at is None

    def find_silence(self, keeper: Keeper) -> Silence | None:
        """Return the silence of a job: of itself, its user, or the one node that slows it down."""
        return self.silence_of(job_subject(keeper, keeper.judged.slow_node))

    def find_not_judged(self, keeper: Keeper) -> NotJudged | None:
        """Return why it is not known whether a job is healthy; None if its status is known."""
        watch = keeper.judged.watch
        return find_not_judged(keeper.attempt, watch, self.detector, self.now, self.wall)

    def find_progress(self, keeper: Keeper) -> ProgressView:
        """Return whether a job makes steps."""
        attempt, watch = keeper.attempt, keeper.judged.watch
        limit_s = self.detector.step_limit_s(attempt)
        return view_progress(attempt, watch.kind, watch.diagnosis, limit_s=limit_s, now=self.now)


def known_step(step: int) -> int | None:
    """Return a step; None before the first one."""
    return None if step < 0 else step

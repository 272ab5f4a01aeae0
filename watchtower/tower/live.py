"""A live job: its watch, its incident, and the tasks that concern it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from watchtower.core.case import Case
from watchtower.core.diagnosis import Diagnosis
from watchtower.core.incidents import Watch
from watchtower.core.pace import Pauses
from watchtower.core.policy import Policy
from watchtower.core.scene import Scene
from watchtower.store.records import Incident
from watchtower.tower.clock import make_id, rfc3339
from watchtower.tower.verdicts import diagnosed_verdict, plain_verdict
from watchtower.wire.verdict import Status, Verdict


@dataclass(slots=True)
class LiveJob:
    """What the tower keeps about one generation of one job besides its fleet record."""

    name: str
    generation: int
    watch: Watch
    pauses: Pauses
    scene: Scene = Scene()
    incident: Incident | None = None
    """The open incident, else the latest one of this generation."""
    case: Case | None = None
    """Evidence of the latest diagnosis."""
    diagnosed_at: float = 0.0
    is_diagnosing: bool = False
    is_asked_again: bool = False
    """Evidence came in while a diagnosis was under way."""
    ended_at: float | None = None
    failures: int = 0
    """Ticks in a row that raised; logged when it starts."""

    @classmethod
    def begin(cls, name: str, generation: int, pauses: Pauses, policy: Policy) -> LiveJob:
        """Start to watch a generation."""
        return cls(name, generation, Watch(policy=policy, pauses=pauses), pauses)

    def verdict(self, step: int | None, now: float) -> Verdict:
        """What is to be said of this job now."""
        watch = self.watch
        if watch.status in (Status.RECOVERED, Status.ENDED) and self.incident is not None:
            return self.incident.verdict
        if watch.status in (Status.SUSPECT, Status.HUNG) and watch.diagnosis is not None:
            return self._diagnosed(watch.status, watch.diagnosis, now)
        return plain_verdict(self.name, self.generation, watch.status, watch.reason, step)

    def _diagnosed(self, status: Status, diagnosis: Diagnosis, now: float) -> Verdict:
        verdict = diagnosed_verdict(
            self.name, self.generation, status, diagnosis, self.diagnosed_at
        )
        stall = self.watch.stall
        if stall is not None:
            verdict = replace(verdict, stalled_for_s=round(max(0.0, now - stall.since), 1))
        if status is Status.SUSPECT or self.incident is None:
            return verdict
        opened_at = rfc3339(self.incident.opened_at)
        return replace(verdict, incident=self.incident.id, opened_at=opened_at)

    def open_incident(self, now: float, wall: float) -> Incident:
        """Open an incident with the present diagnosis."""
        diagnosis = self.watch.diagnosis
        assert diagnosis is not None, "an incident opens with a diagnosis"
        ident, status = make_id(wall), self.watch.status
        verdict = replace(
            self._diagnosed(status, diagnosis, now), incident=ident, opened_at=rfc3339(wall)
        )
        self.incident = Incident(
            id=ident,
            job=self.name,
            generation=self.generation,
            status=status,
            opened_at=wall,
            updated_at=wall,
            closed_at=wall if status is Status.ENDED else None,
            verdict=verdict,
            case=self.case,
        )
        return self.incident

    def update_incident(self, now: float, wall: float) -> Incident | None:
        """Bring the open incident up to date with the present diagnosis."""
        if self.incident is None or self.watch.diagnosis is None:
            return None
        verdict = self._diagnosed(self.watch.status, self.watch.diagnosis, now)
        self.incident = replace(self.incident, verdict=verdict, updated_at=wall, case=self.case)
        return self.incident

    def close_incident(self, status: Status, wall: float) -> Incident | None:
        """Close the open incident as recovered or ended; its verdict keeps what was concluded."""
        if self.incident is None or self.incident.closed_at is not None:
            return None
        self.incident = replace(
            self.incident,
            status=status,
            updated_at=wall,
            closed_at=wall,
            verdict=replace(self.incident.verdict, status=status),
        )
        return self.incident

"""An incident and its parts, as detection, store and views share them. Times are UNIX seconds.

In shadow mode incidents are counted and listed, and no alert is sent. It is for the first week on a
cluster, and for new causes. Whether an incident is in shadow mode is decided when it opens. It
leaves shadow mode if a later verdict has a cause that is not in shadow mode, or if the tower starts
with other settings. It never enters shadow mode later, because an alert that fires must not end by
a corrected verdict.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from enum import Enum

from watchtower.wire.stacks import Frame
from watchtower.wire.verdict import Cause, Domain, Status, Verdict, VerdictEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """The acknowledgement of an incident. Its alerts do not fire."""

    at: float
    by: str = ""
    note: str = ""


class IncidentKind(Enum):
    """The kinds of incidents."""

    HUNG = "hung"
    NEVER_STARTED = "never_started"
    """The job hangs, because not all of its ranks were started."""
    ENDED = "ended"
    """A rank died and ended the job."""

    @classmethod
    def _missing_(cls, value: object) -> IncidentKind:
        return cls.HUNG


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Properties of an incident that never change after its opening. Alerts have them as labels.

    If a later verdict changed a label, one alert would end and another one would fire.
    """

    kind: IncidentKind = IncidentKind.HUNG
    domain: Domain = Domain.UNKNOWN
    """Whom to call, by the first verdict. The current verdict may know better."""
    user: str = ""
    """User of the job by its scheduler; empty if it is not known."""
    outage: str = ""
    """Id of the first incident of its outage; empty without a shared cause."""
    suspect_at: float | None = None
    """When the job became suspect; None if it did not, or if that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The first message about an incident to a destination of alerts."""

    destination: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """The facts about a job besides its verdict. None or empty: not known.

    An incident keeps the facts of its time, because the job may not be live any more when a person
    reads about it.
    """

    ranks: int | None = None
    """World size."""
    nodes: int | None = None
    """Nodes that report its ranks."""
    scheduler: str = ""
    scheduler_id: str = ""
    name: str = ""
    """Its name in the scheduler."""
    user: str = ""
    partition: str = ""
    namespace: str = ""
    dumps_in: int | None = None
    """Reporting ranks of which a dump of this stall has arrived."""
    dumps_wanted: int | None = None
    """Ranks that report."""
    checkpoint_step: int | None = None
    """Step at which the last checkpoint was complete."""
    step_s: float | None = None
    """Seconds that a step usually takes."""
    founder: str = ""
    """Node that reported it first."""
    timeout_at: float | None = None
    """When its own timeout of the collective in which its ranks wait expires. The update of an
    incident sets it."""

    def or_before(self, before: JobFacts) -> JobFacts:
        """Return these facts. What is not known any more stays as before.

        The number of reporting ranks falls while a job is killed, so the larger one stays.
        """
        now = {each.name: getattr(self, each.name) for each in fields(self)}
        then = {name: getattr(before, name) for name in now}
        known = {name: then[name] if now[name] in (None, "", 0) else now[name] for name in now}
        if (before.dumps_wanted or 0) > (self.dumps_wanted or 0):
            known |= {"dumps_in": before.dumps_in, "dumps_wanted": before.dumps_wanted}
        return JobFacts(**known)


NO_FACTS = JobFacts()
"""Of a job that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One hang, or one end of a job for which the verdict names a suspect."""

    id: str
    job: str
    generation: int
    status: Status
    opened_at: float
    updated_at: float
    verdict: Verdict
    closed_at: float | None = None
    evidence: bytes | None = None
    """The case of the verdict as JSON; None in lists of incidents."""
    summary: bytes | None = None
    """The summary of that case, as text. Only of an incident that is to be stored: the store
    returns it by itself."""
    ack: Ack | None = None
    identity: Identity = Identity()
    verdicts: tuple[VerdictEntry, ...] = ()
    """All verdicts of this stall with their times, oldest first. `verdict` is the current one."""
    only_node: str = ""
    """The node of all ranks that the verdicts since the opening have named. Empty if they have
    named several nodes, or if one of them has named no rank. Once empty, it stays empty."""
    shadow: bool = False
    """Whether no alert is sent, because the tower or the cause is in shadow mode. Once false, it
    stays false."""
    sharer: str = ""
    """Owner of the job; the job's own name if the owner is not known."""
    facts: JobFacts = NO_FACTS
    """The facts about the job while the incident was open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackGroup:
    """Ranks whose main threads had the same stack."""

    ranks: str
    """Rank set, such as "0-6,8"."""
    frames: tuple[Frame, ...]
    """Innermost first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowMode:
    """Which incidents have no alert."""

    everything: bool = False
    causes: frozenset[Cause] = frozenset()

    def covers(self, cause: Cause | None) -> bool:
        """Return whether an incident with this cause opens in shadow mode."""
        return self.everything or (cause or Cause.UNKNOWN) in self.causes

    def settle(self, incident: Incident) -> Incident:
        """Return an incident of shadow mode, out of it if its verdict has another cause now."""
        if incident.shadow and not self.covers(incident.verdict.cause):
            return replace(incident, shadow=False)
        return incident

    def settle_all(self, incidents: Iterable[Incident]) -> tuple[Incident, ...]:
        """Return the incidents of the last run, whose shadow mode may have been another one."""
        return tuple(map(self.settle, incidents))

    def describe(self) -> str:
        """Return one sentence for the log and for `/readyz`; empty if shadow mode is off."""
        effect = "incidents are listed and counted, and no alert is sent"
        if self.everything:
            return f"shadow mode is on: {effect}"
        names = ", ".join(sorted(cause.value for cause in self.causes))
        return f"shadow mode is on for {names}: {effect}" if names else ""


NO_SHADOW = ShadowMode()
"""Every incident has an alert."""


class SilenceKind(Enum):
    """The subject that a silence names."""

    JOB = "job"
    NODE = "node"
    USER = "user"


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """A job, node or user whose alerts do not fire until `until`. Jobs are monitored as before."""

    id: str
    kind: SilenceKind
    name: str
    since: float
    until: float
    reason: str = ""
    by: str = ""
    """The person who asked for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """The answer of a person to "was this right?" about the verdict of an incident."""

    incident: str
    job: str
    at: float
    right: bool
    rank: int | None = None
    """The rank that really held up the job; None if it was not given."""
    cause: Cause | None = None
    """The real cause; None if it was not given."""
    by: str = ""
    note: str = ""
    verdict_cause: Cause
    """Cause of the verdict that was judged."""
    confidence: float
    """Its confidence."""

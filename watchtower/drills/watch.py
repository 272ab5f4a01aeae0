"""Polls the tower about the job, and records when each answer first came."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from watchtower.drills.client import Json, PatientClient, json_list
from watchtower.drills.judging import is_final, names_cause, suspect_ranks
from watchtower.drills.setup import FINAL

INCIDENTS_EVERY_S = 0.5
JOB_EVERY_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the tower said from one moment until it said something else."""

    at: float
    status: str
    cause: str | None
    domain: str | None
    ranks: tuple[int, ...]
    """The accused ranks."""
    confidence: float | None


@dataclass(slots=True)
class Observed:
    """All observations so far; displays draw them."""

    job: str
    started_at: float
    final_statuses: tuple[str, ...] = FINAL
    """The statuses that end the wait for a verdict."""
    fault_at: float | None = None
    verdict: Json | None = None
    view: Json | None = None
    incidents: list[Json] = field(default_factory=list)
    statuses: list[str] = field(default_factory=list)
    history: list[Shown] = field(default_factory=list)
    """Every change of the verdict."""
    named_at: float | None = None
    hung_at: float | None = None
    final_since: float | None = None
    complaints: list[str] = field(default_factory=list)
    """Problems that the drill itself found; judged with the verdict."""

    @property
    def fault_to_verdict_s(self) -> float | None:
        """Return the seconds from the fault to the first verdict with a cause."""
        return _between(self.fault_at, self.named_at)

    @property
    def fault_to_hung_s(self) -> float | None:
        """Return the seconds from the fault to the incident."""
        return _between(self.fault_at, self.hung_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """An outage as the tower lists it."""

    jobs: int
    cause: str
    """"mount nfs1:/data"."""
    domain: str


class Watch:
    """Polls the tower and records changes."""

    def __init__(
        self,
        client: PatientClient,
        job: str,
        final_statuses: tuple[str, ...],
        *,
        alone: bool = True,
    ) -> None:
        """Watch a job. `alone`: every job of this tower belongs to the drill."""
        self.observed = Observed(
            job=job, started_at=time.monotonic(), final_statuses=final_statuses
        )
        self._client = client
        self._alone = alone
        self._job_at = 0.0
        self._incidents_at = 0.0

    def poll(self) -> None:
        """Poll once."""
        verdict = self._client.verdict(self.observed.job)
        now = time.monotonic()
        if verdict is not None:
            note_verdict(self.observed, verdict, now)
        if now - self._job_at >= JOB_EVERY_S:
            self._job_at = now
            self.observed.view = self._client.job(self.observed.job) or self.observed.view
        if now - self._incidents_at >= INCIDENTS_EVERY_S:
            self._incidents_at = now
            self.read_incidents()

    def read_incidents(self) -> None:
        """Read the incidents now: all of the tower if it watches only the drill."""
        incidents = self._client.incidents(None if self._alone else self.observed.job)
        if incidents is not None:
            self.observed.incidents = incidents

    def make_twin(self, job: str) -> Watch:
        """Return a watch for another job of the same tower."""
        return Watch(self._client, job, self.observed.final_statuses, alone=False)

    def count_jobs(self, owner: str) -> int:
        """Return how many live jobs of this owner the tower knows."""
        return sum(summary.get("owner") == owner for summary in self._client.jobs() or [])

    def find_status(self, job: str) -> str | None:
        """Return the status of a job of the same tower; None if it has none."""
        verdict = self._client.verdict(job)
        return str(verdict["status"]) if verdict else None

    def has_series(self, name: str, more: str = "") -> bool:
        """Return whether a metric has a series of the job, also with the label `more`."""
        label = f'training_job="{self.observed.job}"'
        lines = (self._client.metrics() or "").splitlines()
        series = (line for line in lines if line.startswith(f"{name}{{"))
        return any(label in line and more in line for line in series)

    def read_metric(self, series: str) -> float | None:
        """Return the value of one series, as /metrics writes its name; None without it."""
        lines = (self._client.metrics() or "").splitlines()
        values = [line.rpartition(" ")[2] for line in lines if line.startswith(f"{series} ")]
        return float(values[0]) if values else None

    def find_outage(self) -> Outage | None:
        """Return the outage that contains an incident of the job; None without one."""
        for outage in self._client.outages() or []:
            incidents = json_list(outage.get("incidents"))
            if self.observed.job in {one.get("job") for one in incidents}:
                cause = outage.get("shared_cause")
                shown = (
                    f"{cause.get('kind')} {cause.get('name')}" if isinstance(cause, dict) else ""
                )
                return Outage(jobs=len(incidents), cause=shown, domain=str(outage.get("domain")))
        return None

    def find_job(self, pids: set[int]) -> str | None:
        """Return the tower's name for the job of exactly these processes; None if it has none
        yet.
        """
        for summary in self._client.jobs() or []:
            name = str(summary.get("job"))
            ranks = json_list((self._client.job(name) or {}).get("rank_states"))
            if {rank.get("pid") for rank in ranks} == pids:
                return name
        return None

    def incidents_in_full(self) -> list[Json]:
        """Return every incident of the job with its verdict and stacks."""
        self.read_incidents()
        found = (self._client.incident(str(one.get("id"))) for one in self.observed.incidents)
        return [incident for incident in found if incident is not None]


def note_verdict(observed: Observed, verdict: Json, now: float) -> None:
    """Record a verdict that was read at `now`."""
    observed.verdict = verdict
    status = str(verdict.get("status"))
    if not observed.statuses or observed.statuses[-1] != status:
        observed.statuses.append(status)
    shown = _read(verdict, now)
    if not observed.history or replace(observed.history[-1], at=now) != shown:
        observed.history.append(shown)
    if observed.fault_at is None:
        return
    if observed.named_at is None and names_cause(verdict):
        observed.named_at = now
    if observed.hung_at is None and status == "hung":
        observed.hung_at = now
    if not is_final(verdict, observed.final_statuses):
        observed.final_since = None
    elif observed.final_since is None:
        observed.final_since = now


def _read(verdict: Json, now: float) -> Shown:
    def text(name: str) -> str | None:
        value = verdict.get(name)
        return None if value is None else str(value)

    confidence = verdict.get("confidence")
    return Shown(
        at=now,
        status=str(verdict.get("status")),
        cause=text("cause"),
        domain=text("domain"),
        ranks=suspect_ranks(verdict),
        confidence=confidence if isinstance(confidence, float) else None,
    )


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else round(end - start, 2)

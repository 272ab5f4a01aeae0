"""The diagnoses of one suspicion: the accepted one with its case and time, and all verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from watchtower.diagnosis.diagnosed import Diagnosis
from watchtower.incidents.incident import Incident
from watchtower.jobs.verdicts import add_entry
from watchtower.wire.verdict import VerdictEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisResult:
    """The result of one diagnosis."""

    diagnosis: Diagnosis
    """If the diagnosis failed, its `why_not` contains the reason."""
    evidence: bytes | None
    """The case of the diagnosis as JSON; None if no case could be made."""
    summary: bytes | None = None
    """The summary of the case (`diagnoser.summaries`); None if there is none."""


@dataclass(slots=True)
class Tries:
    """How the latest diagnoses of a job went."""

    deaths: int = 0
    """Consecutive ones that were ended because they exceeded their limits."""
    again_at: float = 0.0
    """When the next one may begin."""
    is_long: bool = False
    """A brief try is not enough for it."""


Question = tuple[float, float, bool]
"""The subject of a diagnosis: a suspicion, slowness, or the end of a job."""


@dataclass(slots=True)
class DiagnosisHistory:
    """The diagnoses of one attempt in memory. The account of bytes includes their cases."""

    evidence: bytes | None = None
    """Case of the accepted diagnosis, as JSON."""
    summary: bytes | None = None
    """Summary of that case. It stays when the store has both."""
    earlier: bytes | None = None
    """Evidence of an open incident from the tower's last run, as JSON."""
    diagnosed_at: float = 0.0
    verdicts: tuple[VerdictEntry, ...] = ()
    """All verdicts of the current suspicion, or of the incident that it became."""
    _question: Question | None = None
    """The question when that suspicion began."""
    _latest: DiagnosisResult | None = None
    """The latest diagnosis, until it is accepted."""
    _latest_at: float = 0.0

    @property
    def droppable_bytes(self) -> int:
        """Bytes of the cases and summaries in memory."""
        return sum(map(len, {id(case): case for case in self._cases()}.values()))

    def drop(self, excess: int) -> None:
        """Drop the cases and summaries. An incident that opens with this diagnosis then has
        neither."""
        self.evidence = self.summary = self.earlier = None
        if self._latest is not None:
            self._latest = replace(self._latest, evidence=None, summary=None)

    def _cases(self) -> Iterator[bytes]:
        latest = (self._latest.evidence, self._latest.summary) if self._latest else ()
        return filter(None, (self.evidence, self.summary, self.earlier, *latest))

    def resume(self, incident: Incident, question: Question) -> None:
        """Continue with the open incident of the tower's last run."""
        self.evidence = self.earlier = incident.evidence
        self.verdicts, self._question = incident.verdicts, question

    def take(self, result: DiagnosisResult, wall: float) -> None:
        """Store the latest diagnosis. `adopt` checks whether it was accepted."""
        self._latest, self._latest_at = result, wall

    def adopt(self, accepted: Diagnosis | None, question: Question) -> None:
        """If the latest diagnosis was accepted, add its verdict and use its case and time."""
        latest = self._latest
        if latest is None or accepted is not latest.diagnosis:
            return
        if self._question != question:
            self.verdicts, self._question = (), question
        self.evidence, self.summary = latest.evidence, latest.summary
        self.diagnosed_at = self._latest_at
        self.verdicts = add_entry(self.verdicts, latest.diagnosis, self._latest_at)
        self._latest = None

    def drop_unused(self) -> None:
        """Drop the case and the latest diagnosis: the next incident begins with another one."""
        self.evidence = self.summary = self._latest = None

    def drop_earlier(self) -> None:
        """Drop the evidence from the tower's last run, because the incident is over."""
        self.earlier = None

    def hand_over_evidence(self) -> bytes | None:
        """Return the case for the store, and drop it here."""
        evidence, self.evidence = self.evidence, None
        return evidence

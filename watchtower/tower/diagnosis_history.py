"""The diagnoses of one suspicion: the one that stands, its case and its time, and all verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from watchtower.core.diagnosed import Diagnosis
from watchtower.store.values import Incident
from watchtower.tower.diagnosis_result import DiagnosisResult
from watchtower.tower.verdicts import add_entry
from watchtower.wire.verdict import VerdictEntry

Question = tuple[float, float, bool]
"""What a diagnosis is about: a suspicion, slowness, or the end of a job."""


@dataclass(slots=True)
class DiagnosisHistory:
    """What the tower keeps of the diagnoses of one attempt. Cases are in the account of bytes."""

    evidence: bytes | None = None
    """Case of the diagnosis that stands, as JSON."""
    earlier: bytes | None = None
    """Evidence that the tower's last run left with an open incident."""
    diagnosed_at: float = 0.0
    verdicts: tuple[VerdictEntry, ...] = ()
    """Every verdict of the present suspicion, or of the incident that it became."""
    _question: Question | None = None
    """What that suspicion was when it began."""
    _latest: DiagnosisResult | None = None
    """The latest diagnosis, while it does not stand."""
    _latest_at: float = 0.0

    @property
    def droppable_bytes(self) -> int:
        """Bytes of the cases that it keeps."""
        return sum(map(len, {id(case): case for case in self._cases()}.values()))

    def drop(self, excess: int) -> None:
        """Drop its cases. An incident that opens with this diagnosis has none."""
        self.evidence = self.earlier = None
        if self._latest is not None:
            self._latest = replace(self._latest, evidence=None)

    def _cases(self) -> Iterator[bytes]:
        latest = self._latest.evidence if self._latest else None
        return filter(None, (self.evidence, self.earlier, latest))

    def resume(self, incident: Incident, question: Question) -> None:
        """Take over the open incident of the tower's last run."""
        self.evidence = self.earlier = incident.evidence
        self.verdicts, self._question = incident.verdicts, question

    def take(self, result: DiagnosisResult, wall: float) -> None:
        """Take the latest diagnosis; `adopt` says whether it stands."""
        self._latest, self._latest_at = result, wall

    def adopt(self, standing: Diagnosis | None, question: Question) -> None:
        """Keep the latest diagnosis with its case and its time, once it is the one that stands."""
        latest = self._latest
        if latest is None or standing is not latest.diagnosis:
            return
        if self._question != question:
            self.verdicts, self._question = (), question
        self.evidence, self.diagnosed_at = latest.evidence, self._latest_at
        self.verdicts = add_entry(self.verdicts, latest.diagnosis, self._latest_at)
        self._latest = None

    def drop_unused(self) -> None:
        """Drop what no incident will need: the next one begins with another diagnosis."""
        self.evidence = self._latest = None

    def drop_earlier(self) -> None:
        """Drop what the tower's last run left: the incident is over."""
        self.earlier = None

    def hand_over_evidence(self) -> bytes | None:
        """Return the case. It is the store's from now on."""
        evidence, self.evidence = self.evidence, None
        return evidence
